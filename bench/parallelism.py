"""Measure what the training scripts promise, with their own measuring commands, beside what theory allows.

    python bench/parallelism.py [--json FILE] [--only NAME ...]        (a part of make bench)

Needs two idle cores, which stand for two devices. Exit code 1 when a promise is not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "training_scripts"


@dataclass(frozen=True)
class Promise:
    """A figure as the script printed it, its expected value, and whether it is met."""

    name: str
    measured: float
    unit: str
    limit: str
    ok: bool = True


def output_of(processes: int, script: str, *arguments: str) -> str:
    """Return a script's output with this number of processes of one thread each, in a folder of its own."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, *(launch if processes > 1 else []), str(SCRIPTS / script), *arguments],
            check=False, capture_output=True, text=True, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    if done.returncode:
        sys.exit(f"error: {script} ended with {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def cells(output: str, pattern: str) -> Iterator[re.Match[str]]:
    """Yield the rows of a table. A pattern that fits no row is an error, because the output has changed."""
    found = list(re.finditer(pattern, output, re.MULTILINE))
    if not found:
        sys.exit(f"error: nothing like {pattern!r} was printed\n{output[-2000:]}")
    return iter(found)


def ddp() -> Iterator[Promise]:
    """Compare data parallel training of a GPT in two processes with one, where gradients are large for the work, and
    `no_sync`."""
    small = (
        "--layout ddp --steps 25 --layers 6 --width 256 --context 128 --checkpoint_every 0".split()
    )
    speeds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(3):  # in turn, so that a machine that slows down slows both
        for processes, found in speeds.items():
            rows = cells(
                output_of(processes, "gpt_fsdp/train.py", *small), r"tokens_per_s=([\d.e+]+)"
            )
            found.append(max(float(row[1]) for row in rows))
    speed_up = median(speeds[2]) / median(speeds[1])
    yield Promise("DDP, a GPT in 2 processes", speed_up, "x", "at least 1.7", speed_up >= 1.7)
    output = output_of(2, "digits_ddp/compare.py", "--tables", "speed,no_sync")
    for row in cells(output, r"^ *(\d+) +\d+ +[\d.]+ +[\d.]+ +([\d.]+)x$"):
        yield Promise(f"DDP, wide layers, {row[1]} images", float(row[2]), "x", "reported")
    for row in cells(output, r"^ *(\d+) +[\d.]+ +[\d.]+ +(-?[\d.]+)% "):
        yield Promise(f"no_sync, {row[1]} micro-batches", float(row[2]), "%", "reported")


def pipeline() -> Iterator[Promise]:
    """Compare two stages on two processes with one process, beside 2m / (m + 1)."""
    output = output_of(
        2, "pipeline_gpt/train.py", "--measure", "--experiments", "speed", "--repeat", "7"
    )
    for row in cells(output, r"^ *(\d+) +[\d.]+ +([\w-]+) +[\d.]+ +[\d.]+ +[\d.]+ +(\d+)%$"):
        share = float(row[3])
        yield Promise(
            f"{row[2]}, {row[1]} microbatches", share, "% of 2m/(m+1)", "at least 90", share >= 90
        )


def bubble() -> Iterator[Promise]:
    """Compare the measured bubble of four sleeping stages with the formula, or with the simulation where no formula
    exists."""
    output = output_of(4, "pipeline_gpt/train.py", "--measure", "--experiments", "bubble")
    section = ""
    for row in cells(
        output,
        r"^bubbles of .* and (\d+) micro.*$|^([\w-]+) +([\d.]+|-) +([\d.]+) +([\d.]+) +[\d.]+$",
    ):
        if row[1]:
            section = row[1]
            continue
        points = 100 * (float(row[5]) - float(row[4] if row[3] == "-" else row[3]))
        yield Promise(
            f"{row[2]}, m = {section}", points, "points over theory", "within 3", abs(points) <= 3
        )


def split() -> Iterator[Promise]:
    """Split ResNet50 over two processes: what splitting alone costs, and what the pipeline gains beside its own
    limit."""
    output = output_of(2, "resnet_model_parallel/train.py", "--experiment", "--repeats", "7")
    overhead = float(next(cells(output, r"^split without pipelining: ([+-][\d.]+)%"))[1])
    yield Promise("ResNet50, naive split", overhead, "% more time", "under 5", overhead < 5)
    row = next(
        cells(output, r"^pipelined at split size (\d+): ([+-][\d.]+)% .*at most ([+-][\d.]+)%")
    )
    yield Promise(
        f"ResNet50, pipelined by {row[1]}", float(row[2]), "% faster", f"reported; at most {row[3]}"
    )


PROMISES: dict[str, Callable[[], Iterator[Promise]]] = {
    "ddp": ddp,
    "pipeline": pipeline,
    "bubble": bubble,
    "split": split,
}


def main() -> int:
    """Measure, print, write. Return 1 when a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--json", type=Path, default=ROOT / "bench-parallelism.json", metavar="FILE"
    )
    parser.add_argument("--only", nargs="+", choices=PROMISES, default=list(PROMISES))
    options = parser.parse_args()
    results: list[Promise] = []
    for name in options.only:
        for promise in PROMISES[name]():
            results.append(promise)
            verdict = "" if promise.ok else "  NOT KEPT"
            print(
                f"{promise.name:34} {promise.measured:7.2f} {promise.unit:20} {promise.limit}{verdict}",
                flush=True,
            )
    options.json.write_text(json.dumps([asdict(promise) for promise in results], indent=2) + "\n")
    return 0 if all(promise.ok for promise in results) else 1


if __name__ == "__main__":
    sys.exit(main())
