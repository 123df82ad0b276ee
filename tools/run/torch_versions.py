"""Run every training script, small, on several versions of PyTorch, and keep docs/reference/torch-versions.md true.

    python tools/run/torch_versions.py [VERSION ...]            the versions of the page, unless given; exit code 1
                                                                where a cell fails, or the page says otherwise
    python tools/run/torch_versions.py --write [VERSION ...]    write the page
    python tools/run/torch_versions.py --share 3 --seed 7 2.13.0    a third of the cells
    python tools/run/torch_versions.py newest                   the newest version that the registry offers

Each version but this environment's own has an environment beside `.venv`, `.venv-torch-2.8`. A cell either trains, with
the gradients that it should have, or the script refuses with one sentence. Any other result is a failure.
"""

from __future__ import annotations

import argparse
import difflib
import os
import random
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import versions
from environments import ROOT, make_environment

from cloudtrain.runtime import parse_metrics

PAGE = ROOT / "docs" / "reference" / "torch-versions.md"
SCRIPTS = ROOT / "training_scripts"
VERSIONS = ("2.8.0", "2.11.0", "2.13.0", "2.15.0")
"""The columns of the page: the versions that job files ask the clouds for, that GPU machines often have, that this
project pins, and that was the newest when somebody looked. `newest` is what the registry offers now."""

EQUAL, TRAINS = "equal", "trains"
LIMIT = 1e-4
"""The largest difference of a gradient that counts as zero, as a share of its norm; fp32 keeps 1e-7."""

DEADLINE = 300
"""Seconds for one run; a run takes a few."""

Reading = Callable[[str], Iterator[tuple[str, str]]]
"""Maps a script's output to (way, verdict)."""


def trained(way: str) -> Reading:
    """Accept runs that ended well and reported losses."""

    def read(output: str) -> Iterator[tuple[str, str]]:
        yield (
            way,
            TRAINS
            if any("loss" in (parse_metrics(line) or {}) for line in output.splitlines())
            else "no loss",
        )

    return read


def printed(way: str, pattern: str) -> Reading:
    """Accept runs that ended well and printed something that fits the pattern."""

    def read(output: str) -> Iterator[tuple[str, str]]:
        yield way, "runs" if re.search(pattern, output) else f"nothing like `{pattern}` was printed"

    return read


def compared(pattern: str, limits: Mapping[str, float] = {}) -> Reading:
    """Read a table with a row for each way: its name, and the difference of its gradients from one process's."""

    def read(output: str) -> Iterator[tuple[str, str]]:
        for match in re.finditer(pattern, output, re.MULTILINE):
            name, difference = match[1].strip(), float(match[2])
            good = difference <= limits.get(name, LIMIT)
            yield f"`{name}`", EQUAL if good else f"gradients differ by {difference:g}"

    return read


@dataclass(frozen=True)
class Cell:
    """One run: a script with a number of processes."""

    script: str
    processes: int
    arguments: str
    read: Reading
    ways: tuple[str, ...] = ()
    """Return the names of the table's rows, where the reading does not give them."""


SMALL_GPT = "--layers 2 --width 32 --context 32 --steps 4 --report_every 1"
COMPARED = r"^([a-z0-9, ]+?) +\d+ x \d+ x \d+ +[\d.]+ +[\d.e+-]+ +([\d.e+-]+) "
BF16 = ("bf16", "fsdp, bf16", "fsdp x tp, bf16")
GRIDS = r"^([a-z0-9, -]+?) +\d+ x \d+ x \d+ x \d+ +5\.\d+ +[\d.e+-]+ +([\d.e+-]+)$"
VOLUMES = "--steps 2 --patch 16,16,8 --channels 4,8 --report_every 1 --pictures 0"

CELLS = (
    Cell("digits_ddp/train.py", 2, "--epochs 1", trained("DistributedDataParallel")),
    Cell("digits_ddp/compare.py", 2, "--hidden 64 --layers 2 --batch 8 --rounds 1 --tables exchange",
         compared(r"^(DDP|all_reduce|ring|sharded servers|one server) .* ([\d.e+-]+)$")),
    Cell("toy_smddp/train.py", 2, "--steps 10", trained("DistributedDataParallel")),
    Cell("cifar_ddp/train.py", 2, "--epochs 1 --width 8", trained("DistributedDataParallel, loading workers")),
    Cell("parameter_server/train.py", 3, "--epochs 1", trained("rpc, 2 workers")),
    Cell("gpt_fsdp/train.py", 4, f"{SMALL_GPT} --compare", compared(COMPARED, {"fsdp, bf16": 0.02}),
         ("`ddp`", "`fsdp`", "`hsdp`", "`tp`", "`2d`")),
    Cell("gpt_fsdp/train.py", 4, f"{SMALL_GPT} --family qwen3 --kv_heads 2 --tied --layout 2d",
         trained("Qwen3, tied, 2d")),
    Cell("gpt_fsdp/train.py", 2, f"{SMALL_GPT} --family qwen2 --precision fp16", trained("Qwen2, fp16")),
    Cell("gpt_fsdp/train.py", 1, "--dry_run --family llama", printed("dry run of a Llama", "all that stays")),
    Cell("gpt_fsdp/train.py", 2, f"{SMALL_GPT} --async_checkpoints --checkpoint_every 2", trained("async checkpoints")),
    Cell("gpt_fsdp/train.py", 1, "--dry_run --world 64 --layout 2d --tensor 4", printed("dry run", "all that stays")),
    Cell("pipeline_gpt/train.py", 4, "--measure --experiments exact", compared(GRIDS),
         ("`simple`", "`1f1b`", "`interleaved`", "`zero-bubble`", "`zero-bubble-v`")),
    Cell("pipeline_gpt/train.py", 8, "--compare", compared(GRIDS, dict.fromkeys(BF16, 0.02)),
         ("`replicas`", "`fsdp`", "`tp`", "`fsdp x tp`")),
    Cell("pipeline_gpt/train.py", 4, f"{SMALL_GPT} --layers 6 --replicas 2", trained("1F1B in 2 replicas")),
    Cell("pipeline_gpt/train.py", 2, f"{SMALL_GPT} --family llama --recompute full", trained("Llama, recomputed")),
    Cell("pipeline_gpt/train.py", 1, "--engine smp", trained("SageMaker's smp")),
    Cell("resnet_model_parallel/train.py", 2, "--model resnet14 --batch 8 --split_size 4 --steps 2 --report_every 1",
         trained("two processes")),
    Cell("resnet_model_parallel/train.py", 1, "--model resnet14 --batch 8 --split_size 4 --steps 2 --report_every 1",
         trained("two stages in a process")),
    Cell("spleen_segmentation/train.py", 2, VOLUMES, trained("DistributedDataParallel")),
    Cell("mnist_horovod/train.py", 1, "--epochs 1", trained("one process, without Horovod")),
    Cell("bandwidth/train.py", 2, "--largest 65536 --width 32 --layers 1 --rounds 2", printed("two processes", "bus")),
    Cell("cifar_deepspeed/train.py", 1, "--epochs 1", trained("without DeepSpeed")),
)  # fmt: skip


def interpreter_of(version: str) -> Path:
    """Return an interpreter with that PyTorch: this one, or an environment's, made on the first call."""
    import importlib.metadata

    if importlib.metadata.version("torch").partition("+")[0] == version:
        return Path(sys.executable)
    if version == "newest":
        versions.write("newest-torch")
        return make_environment("newest-torch")
    return make_environment(f"torch-{version.removesuffix('.0')}")


def free_port() -> int:
    """Return a port below those that Linux takes for outgoing connections: the cell beside this one makes hundreds."""
    while True:
        with socket.socket() as probe, suppress(OSError):  # somebody listens there
            probe.bind(("127.0.0.1", 20_000 + secrets.randbelow(12_000)))
            return int(probe.getsockname()[1])


def run(python: Path, cell: Cell) -> dict[tuple[str, str], tuple[str, str]]:
    """Map (script, way) to verdict and output."""
    launch = ["-u", "-m", "cloudtrain.runtime.fork_launcher", "--master-port", str(free_port())]
    launch += ["--processes-per-instance", str(cell.processes)]
    name = cell.script.removesuffix("/train.py").removesuffix(".py").replace("/", ", ")
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as logs:
        command = [
            str(python),
            *([*launch, "--log-dir", logs] if cell.processes > 1 else []),
            str(SCRIPTS / cell.script),
            *cell.arguments.split(),
        ]
        usual = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("CLOUDTRAIN_", "PYTEST_"))
        }
        started = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, start_new_session=True,
            env={**usual, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        try:
            output, errors = started.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)  # the launcher and its ranks
            output, errors = started.communicate()
            errors += f"\nkilled after {DEADLINE} s"
        # Each rank has a file of its own: gloo of PyTorch 2.8 prints to stdout, and ranks that
        # share it tear each other's lines.
        output += "".join(file.read_text() for file in sorted(Path(logs).rglob("stdout.log")))
        errors += "".join(file.read_text() for file in sorted(Path(logs).rglob("stderr.log")))
    found = dict(cell.read(output)) if started.returncode == 0 else {}
    if not found:
        refusal = re.search(r"^error: (.*)$", errors, re.MULTILINE)
        known = [way for way, _ in cell.read("")] or list(cell.ways)
        verdict = f"refuses: {refusal[1]}" if refusal and "Traceback" not in errors else "FAILED"
        found = dict.fromkeys(known, verdict)
    return {(name, way): (verdict, output + errors) for way, verdict in found.items()}


def column(
    version: str, cells: Sequence[Cell], pool: ThreadPoolExecutor
) -> dict[tuple[str, str], str]:
    """Return what the cells give with one version, as many at a time as the pool has threads."""
    python, started = interpreter_of(version), time.monotonic()
    found: dict[tuple[str, str], str] = {}
    for cell, results in zip(cells, pool.map(lambda cell: run(python, cell), cells), strict=True):
        for key, (verdict, output) in results.items():
            found[key] = verdict
            if not is_good(verdict):
                print(
                    f"PyTorch {version}, {cell.script} {cell.arguments}: {verdict}\n{output[-3000:]}",
                    flush=True,
                )
    good, seconds = sum(map(is_good, found.values())), time.monotonic() - started
    print(
        f"PyTorch {version}: {len(found)} cells, {good} as they should be, in {seconds:.0f} s",
        flush=True,
    )
    return found


def is_good(verdict: str) -> bool:
    """Return whether the run did its work, or said in one sentence why it cannot."""
    return verdict in (EQUAL, TRAINS, "runs") or verdict.startswith("refuses: ")


def page(columns: Mapping[str, Mapping[tuple[str, str], str]]) -> str:
    """Return the document."""
    refusals = list(
        dict.fromkeys(
            v for found in columns.values() for v in found.values() if v.startswith("refuses")
        )
    )
    lines = [
        "# Training scripts and PyTorch versions",
        "",
        "Written by `python tools/run/torch_versions.py --write`, and checked by `make test-torch`: every script in small, on",
        "this machine's CPUs. `equal`: the gradients are those of one process. `trains`: it reports losses and ends",
        "well. A number: it refuses, with the sentence below.",
        "",
        f"| script | way | {' | '.join(columns)} |",
        f"|---|---|{'---|' * len(columns)}",
    ]
    for script, way in next(iter(columns.values())):
        cells = [found.get((script, way), "FAILED") for found in columns.values()]
        shown = [f"{refusals.index(cell) + 1}" if cell in refusals else cell for cell in cells]
        lines.append(f"| `{script}` | {way} | {' | '.join(shown)} |")
    lines += [
        "",
        *(f"{number}. {text.removeprefix('refuses: ')}" for number, text in enumerate(refusals, 1)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Write or compare the page. Exit code 1 when a cell failed, or the page differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--share", type=int, default=1, metavar="N", help="one of N cells")
    parser.add_argument("--seed", type=int, default=0, help="chooses these cells")
    options = parser.parse_args()
    cells = random.Random(options.seed).sample(CELLS, ceil(len(CELLS) / options.share))
    if options.share == 1:
        cells = CELLS  # in the order of the page
    elif options.write:
        parser.error("the page has all cells: give no --share")
    for version in options.versions:
        interpreter_of(version)
    with ThreadPoolExecutor(2) as pool:
        columns = {version: column(version, cells, pool) for version in options.versions}
    good = all(is_good(verdict) for found in columns.values() for verdict in found.values())
    if options.write:
        PAGE.write_text(page(columns))
    elif (tuple(options.versions), options.share) == (VERSIONS, 1) and PAGE.read_text() != (
        found := page(columns)
    ):
        print(
            "docs/reference/torch-versions.md says something else; run `python tools/run/torch_versions.py --write`",
            file=sys.stderr,
        )
        changed = difflib.unified_diff(
            PAGE.read_text().splitlines(), found.splitlines(), lineterm="", n=0
        )
        print("\n".join(changed), file=sys.stderr)
        return 1
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
