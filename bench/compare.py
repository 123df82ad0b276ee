"""Measure this checkout against another one of cloudtrain: each command in turn, as a whole process.

    python bench/compare.py OTHER [--pairs N] [--only NAME ...] [--instructions]

OTHER is a checkout with its own `.venv` (make .venv/.dev). Prints the medians of both for each command, and the
median of the pairs' ratios: a machine that slows down slows both halves of a pair. CPU seconds are those of the
command and of its children. Exit code 1 when a median ratio of CPU time is above 1.02.

With --instructions, prints instead how many instructions each plan executes, and their ratio to
those of `import pydantic, typer`. These numbers repeat to 0.1%, however busy the machine is.
valgrind counts them. One plan takes half a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
LIMIT = 1.02
FILL = "import sys; sys.path.insert(0, 'bench'); from pathlib import Path; import run; run._fill_store(Path({!r}), {})"


CIFAR = "examples/torch_cifar10.yaml"
PLANS = {
    "plan here": ["plan", "training_scripts/digits_ddp/job.yaml"],
    "plan for SageMaker": ["plan", CIFAR, "--target", "sagemaker", "--format", "aws-cli"],
    "plan for Azure ML": ["plan", CIFAR, "--target", "azureml", "--format", "az-cli"],
}
REFERENCE = ["-c", "import pydantic, typer"]


class Cost(NamedTuple):
    """Seconds of one command: on the clock (until its mark, where it leaves one) and of the processor."""

    wall: float
    cpu: float


def run_once(checkout: Path, argv: list[str], state: Path, mark: Path | None = None) -> Cost:
    """Run one of a checkout's programs in it.

    Raises:
        subprocess.CalledProcessError: It ended with another exit code than 0.
    """
    programs = checkout / ".venv" / "bin"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env |= {
        "CLOUDTRAIN_STATE_DIR": str(state),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{programs}{os.pathsep}{env['PATH']}",
    }
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    subprocess.run(
        [str(programs / argv[0]), *argv[1:]], check=True, capture_output=True, env=env, cwd=checkout
    )
    end, after = (
        float(mark.read_text()) if mark else time.time(),
        resource.getrusage(resource.RUSAGE_CHILDREN),
    )
    return Cost(end - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def write_job(folder: Path) -> Path:
    """Write a job of two processes that writes the time of its first training step into FOLDER/mark."""
    (folder / "code").mkdir()
    (folder / "code" / "first_step.py").write_text((ROOT / "bench" / "first_step.py").read_text())
    fields = {"name": "first-step", "source_dir": "code", "entry_point": "first_step.py",
              "hyperparameters": {"mark": str(folder / "mark")}, "distribution": {"type": "torch"}}  # fmt: skip
    (folder / "job.json").write_text(json.dumps(fields))
    return folder / "job.json"


def main() -> int:
    """Compare all commands and print a row for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--instructions", action="store_true")
    args = parser.parse_args()
    checkouts = [args.other.resolve(), ROOT.resolve()]
    if args.instructions:
        compare_instructions(checkouts)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        job = write_job(Path(folder))
        stores = [Path(folder) / f"store{i}" for i in range(2)]
        for checkout, store in zip(checkouts, stores, strict=True):
            code = FILL.format(str(store), 1000)
            subprocess.run(
                [str(checkout / ".venv" / "bin" / "python"), "-c", code], check=True, cwd=checkout
            )
        commands = {
            "import": ["python", "-c", "import cloudtrain"],
            "--help": ["cloudtrain", "--help"],
            "ps": ["cloudtrain", "ps"],
            "plan here": ["cloudtrain", *PLANS["plan here"]],
            "plan for SageMaker": ["cloudtrain", *PLANS["plan for SageMaker"]],
            "plan for Azure ML": ["cloudtrain", *PLANS["plan for Azure ML"]],
            "first step": ["cloudtrain", "submit", str(job), "--processes-per-instance", "2"],
        }
        ratios = [
            compare(
                name,
                argv,
                checkouts,
                stores,
                Path(folder) / "mark" if name == "first step" else None,
                args.pairs,
            )
            for name, argv in commands.items()
            if not args.only or name in args.only
        ]
    return int(any(ratio > LIMIT for ratio in ratios))


def compare_instructions(checkouts: list[Path]) -> None:
    """Print for each plan how many instructions both checkouts execute, and how often that is the
    reference."""
    with tempfile.TemporaryDirectory() as state:
        references = [instructions(checkout, REFERENCE, state) for checkout in checkouts]
        print(f"{'import pydantic, typer':24} {_millions(references)}", flush=True)
        for name, argv in PLANS.items():
            plan = ["-m", "cloudtrain", *argv]
            counts = [instructions(checkout, plan, state) for checkout in checkouts]
            before, after = (a / b for a, b in zip(counts, references, strict=True))
            change = counts[1] / counts[0] - 1
            row = f"{name:24} {_millions(counts)}   {before:.2f} {after:.2f} x {change:+6.1%}"
            print(row, flush=True)


def _millions(counts: list[int]) -> str:
    return " ".join(f"{count / 1e6:7.0f}" for count in counts) + " million"


def instructions(checkout: Path, argv: list[str], state: str) -> int:
    """Return how many instructions Python executes for `argv`, after a run that writes the compiled
    modules.

    Raises:
        FileNotFoundError: valgrind is not installed.
    """
    python = [str(checkout / ".venv" / "bin" / "python"), *argv]
    env = os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": str(checkout)}
    env["CLOUDTRAIN_STATE_DIR"] = state
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run(python, check=True, capture_output=True, env=env, cwd=checkout)

    valgrind = ["valgrind", "--tool=cachegrind", "--cache-sim=no"]
    valgrind.append("--cachegrind-out-file=/dev/null")
    done = subprocess.run(
        [*valgrind, *python], check=True, capture_output=True, text=True, env=env, cwd=checkout
    )
    counted = re.search(r"refs: +([\d,]+)", done.stderr)
    if counted is None:
        raise ValueError(f"valgrind printed no count: {done.stderr}")
    return int(counted[1].replace(",", ""))


def compare(
    name: str,
    argv: list[str],
    checkouts: list[Path],
    stores: list[Path],
    mark: Path | None,
    pairs: int,
) -> float:
    """Run a command `pairs` times on either side, print its row, and return the median ratio of CPU time."""
    turns: list[dict[int, Cost]] = []
    for turn in range(1 + (max(3, pairs // 3) if mark else pairs)):
        order = (0, 1) if turn % 2 else (1, 0)
        turns.append({side: run_once(checkouts[side], argv, stores[side], mark) for side in order})
    row, ratio = f"{name:20}", 0.0
    for what in Cost._fields:
        # the first one warms up
        other, ours = ([getattr(turn[side], what) for turn in turns[1:]] for side in (0, 1))
        ratio = statistics.median(b / a for a, b in zip(other, ours, strict=True))
        row += f"   {what} {statistics.median(other):6.3f} {statistics.median(ours):6.3f} s {ratio - 1:+6.1%}"
    print(row, flush=True)
    return ratio


if __name__ == "__main__":
    sys.exit(main())
