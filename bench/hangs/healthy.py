"""Run healthy trainings with evaluations, checkpoints, compilation and slow first steps. None may get a notice.

python bench/hangs/healthy.py                     ten of one script, and what was said about them
python bench/hangs/healthy.py --record FILE       all of that script, and the times of their reports as a file for the tests
python bench/hangs/healthy.py --scripts --record FILE    the bundled scripts instead
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from cloudtrain.plans.progress import Notice
from cloudtrain.signals.notices import read_notices
from cloudtrain.signals.rows import read_files

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

BASE = ("--step 0.05", "--step 0.2 --spread 3", "--step 0.5 --first 6", "--step 0.02 --spread 10")
PAUSES = (
    "--evaluate 4 --evaluate-every 20",
    "--save 2 --save-every 12",
    "--evaluate 6 --evaluate-every 30 --save 1 --save-every 9",
    "--first 12 --compiled",
    "--evaluate 2 --evaluate-every 7 --compiled",
    "--save 5 --save-every 25 --spread 1",
    "",
)
RECIPES = [f"{base} {pauses}".strip() for pauses in PAUSES for base in BASE]
RECIPES += ["--step 3 --seconds 40 --evaluate 9 --evaluate-every 3", "--step 1.5 --seconds 40"]

SCRIPTS = [
    "digits_ddp compile=true epochs=30 checkpoint_every=20",
    "gpt_fsdp compile=true steps=40 evaluate_every=10 checkpoint_every=15",
    "gpt_fsdp recompute=full steps=40 evaluate_every=5 evaluate_windows=256 checkpoint_every=0",
    "pipeline_gpt steps=40 checkpoint_every=15",
    "resnet_model_parallel steps=30 checkpoint_every=10",
    "spleen_segmentation steps=40 evaluate_every=15 checkpoint_every=10",
]
"""Bundled scripts, each with values of its hyperparameters."""


def command_of(recipe: str) -> list[str]:
    """Return the arguments of `cloudtrain submit` for a recipe."""
    if recipe.startswith("--"):
        words = ["--set", "distribution.type=torch", "--nproc", "2"]
        return [*words, str(HERE / "healthy_train.py"), *recipe.split()]
    script, *values = recipe.split()
    words = [str(ROOT / "training_scripts" / script / "job.yaml"), "--nproc", "2"]
    for value in values:
        words += ["--set", f"hyperparameters.{value}"]
    return words


def train(folder: Path, number: int, recipe: str) -> tuple[list[float], list[Notice]]:
    """Run a training to its end. Return the times of its reports, from the first, and its notices; no times if it
    failed."""
    environ = {
        **os.environ,
        "CLOUDTRAIN_STATE_DIR": str(folder / "state"),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "cloudtrain", "submit", "--detach", "--json"]
    command += ["--set", f"name=healthy-{number}", *command_of(recipe)]

    def call(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, cwd=folder, env=environ, stdout=subprocess.PIPE, text=True, check=False
        )

    submitted = call(*command)
    submitted.check_returncode()
    run = json.loads(submitted.stdout)["name"]
    if call(sys.executable, "-m", "cloudtrain", "wait", run).returncode:
        return [], []
    metrics = str(folder / "state" / "runs" / run / "metrics")
    times: list[float] = []
    for file in read_files(metrics):
        if file.writer.source == "runtime" and file.writer.rank == 0:
            column: Any = memoryview(file.rows).cast("d")[2::4]
            times += column
    kinds = ("waiting", "stalled")
    notices = [notice for notice in read_notices(metrics) if notice.kind in kinds]
    # a report has a row for each of its values
    return [round(moment - times[0], 2) for moment in dict.fromkeys(times)], notices


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", metavar="FILE", type=Path)
    parser.add_argument("--scripts", action="store_true", help="the bundled scripts")
    parser.add_argument("--at-once", type=int, default=3)
    options = parser.parse_args()
    recipes = RECIPES if options.record else RECIPES[::3][:10]
    if options.scripts:
        recipes = SCRIPTS
    with (
        tempfile.TemporaryDirectory(prefix="healthy-") as name,
        ThreadPoolExecutor(options.at_once) as pool,
    ):
        done = list(pool.map(lambda item: train(Path(name), *item), enumerate(recipes)))
    lines = []
    alarms = 0
    failures = 0
    for recipe, (times, notices) in zip(recipes, done, strict=True):
        if not times:
            print(f"failed: {recipe}")
            failures += 1
            continue
        pauses = [after - before for before, after in pairwise(times)]
        print(f"{len(times):5} reports, longest pause {max(pauses, default=0.0):5.1f} s  {recipe}")
        for notice in notices:
            print(f"      {notice.kind}: {notice.text}")
        alarms += len(notices)
        # of steps that are alike, the file holds few
        lines.append(json.dumps({"recipe": recipe, "times": times[:400]}))
    if options.record:
        options.record.write_text("\n".join(lines) + "\n")
    print(f"{alarms} notices in {len(recipes)} healthy runs")
    return 1 if alarms or failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
