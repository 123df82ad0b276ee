"""The command line: one shell string, which every process of the job runs with `bash -c`.

The user's arguments reach the script unchanged, with spaces, quotes, `$`, `;`, newlines and any other character.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable

from cloudtrain.core.distribution import DeepSpeed
from cloudtrain.core.job import TrainingJob
from cloudtrain.errors import JobError, Problem
from cloudtrain.targets.azureml.compile.distributions import is_launcher
from cloudtrain.targets.azureml.compile.places import free_texts, reference_texts
from cloudtrain.targets.common.compiling import arguments_of, resolve_text

_REFERENCE = re.compile(r"\$\{\{(?:inputs|outputs)\.\w+\}\}")

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]*")
"""Text that every shell leaves unchanged."""

_INSTALL = "flock /tmp/cloudtrain-requirements.lock python -m pip install -q --disable-pip-version-check -r"
"""Installs the requirements.

Every process of an instance runs the command, so they take turns; only the first installs anything.
"""

_SECRETS = (
    'secrets="$(PYTHONPATH="$PWD" python -m cloudtrain.runtime.secret_values)" || exit; eval "$secrets"; unset secrets'
)
"""Reads the secrets as lines for the shell, which keeps their values out of command lines and files."""

_WITH_CODE = 'PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"'
"""Adds the bundle's folder to Python's path.

For a script in a subfolder, Python would search only that folder, and the runtime is above it.
"""

LAUNCHER = "cloudtrain.runtime.deepspeed_launcher"


def command_of(job: TrainingJob) -> str:
    """Return the body's `command`.

    Raises:
        JobError: the job has nothing to run.
    """
    texts = reference_texts(job)
    if job.command is not None:
        line = resolve_text(job.command, texts)
    elif job.entry_point is not None:
        line = " ".join(quote_word(word, free_texts(job)) for word in _words(job, texts))
        line = f"{_WITH_CODE} {line}" if "/" in job.entry_point else line
    else:
        message = "a job on Azure ML needs something to run: an image's own entry point is never started"
        raise JobError([Problem(("entry_point",), message, "add for example `entry_point: train.py`", code="CT036")])
    if job.environment.secrets:
        line = f"{_SECRETS}; {line}"
    requirements = job.environment.requirements
    # `&&` would bind only to the first command of a line with several.
    return line if requirements is None else f"{_INSTALL} {quote_word(requirements)} || exit; {line}"


def quote_word(word: str, free: Collection[str] = ()) -> str:
    """Quote one word of a shell line if needed. References such as `${{inputs.data}}` in the word stay unchanged.

    A word that contains a reference in `free` is always quoted, because the service replaces these references with text
    that the shell could split or interpret.
    """
    if word and _PLAIN.fullmatch(_REFERENCE.sub("", word)) and not any(text in word for text in free):
        return word
    return shlex.quote(word)


def _words(job: TrainingJob, texts: dict[str, str]) -> Iterable[str]:
    assert job.entry_point is not None
    script = resolve_text(job.entry_point, texts)
    arguments = arguments_of(job, texts)
    if isinstance(job.distribution, DeepSpeed) and is_launcher(job):
        return ["python", "-m", LAUNCHER, *_options(job.distribution), script, *arguments]
    # Azure ML's copy of the code has no executable files.
    return ["python" if script.endswith(".py") else "bash", script, *arguments]


def _options(distribution: DeepSpeed) -> list[str]:
    count = distribution.processes_per_instance
    try:
        return [*([] if count is None else ["--num_gpus", str(count)]), *shlex.split(distribution.launcher_options)]
    except ValueError as error:
        message = f"`launcher_options` is not valid shell syntax: {str(error).lower()}"
        raise JobError(
            [Problem(("distribution", "launcher_options"), message, "close the quotes", code="CT037")]
        ) from None
