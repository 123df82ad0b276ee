"""Find script arguments that torchrun would parse as its own options, and protect them.

torchrun parses its command line with argparse, which examines every argument, including those after
the script. An argument that could abbreviate several of torchrun's options stops torchrun:
`torchrun train.py --log 3` fails with "ambiguous option: --log could match --log-dir, --log_dir,
--logs-specs, --logs_specs" (torch 2.13 on Python 3.11). A `--` before the script prevents this,
because it ends the options.
"""

from __future__ import annotations

from collections.abc import Sequence

_OPTIONS = (
    "duplicate-stderr-filters duplicate-stdout-filters event-log-handler help local-addr "
    "local-ranks-filter log-dir "
    "logs-specs master-addr master-port max-restarts module monitor-interval nnodes no-python "
    "node-rank nproc-per-node "
    "numa-binding rdzv-backend rdzv-conf rdzv-endpoint rdzv-id redirects role run-path "
    "shutdown-timeout "
    "signals-to-handle standalone start-method tee virtual-local-rank"
).split()
"""Long options of torch 2.13."""

_UNDERSCORES = frozenset(option.replace("-", "_") for option in _OPTIONS)
_BOTH = _UNDERSCORES.union(_OPTIONS)


PLATFORM_ARGUMENTS = ("local_rank", "model_dir", "mp_parameters")
"""Arguments that launchers add to those of the job: DeepSpeed's `--local_rank`, SageMaker's
`--model_dir` (TensorFlow images) and `--mp_parameters` (model parallelism), as sagemaker-training
5.1.4 passes them."""


def misread(words: Sequence[str], *, dashes: bool = True) -> list[str]:
    """Return the script arguments that torchrun would refuse as ambiguous options. Pass
    `dashes=False` for torch before 2.0, whose options have only underscores."""
    options = _BOTH if dashes else _UNDERSCORES
    refused = []
    for word in words:
        name = word[2:].partition("=")[0]
        if not word.startswith("--") or not name or name in options:
            continue
        matches = [option for option in options if option.startswith(name)]
        if len(matches) > 1:
            refused.append(word)
    return refused


def guard_program(program: Sequence[str]) -> list[str]:
    """Return the end of torchrun's command line: the script and its arguments, with `--` before
    them if needed. `-m` is an option of torchrun too, so it stays before `--`."""
    words = list(program)
    if misread(words):
        words.insert(int(words[0] == "-m"), "--")
    return words


def words_of_script(entry_point: str) -> list[str]:
    """Return the words that follow `python` or `torchrun`: the script, or `-m` and the module."""
    return entry_point.split(" ") if is_module(entry_point) else [entry_point]


def is_module(entry_point: str) -> bool:
    return entry_point.startswith("-m ")


def is_python(entry_point: str) -> bool:
    """Return whether Python runs the entry point, or the program that begins with it."""
    return entry_point.endswith(".py") or entry_point == "-m" or is_module(entry_point)
