"""The CIFAR-10 script, run for real: the same losses with 1 and 2 processes, and across a stop. Runs are bare."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cloudtrain.runtime import parse_metrics

pytestmark = pytest.mark.torch

REPOSITORY = Path(__file__).parents[2]
TWO = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# In fp32 the order of a sum shows in its last digit, and a network at this learning rate doubles such a difference at
# every step or two. What theory says of equal losses is therefore asked in fp64.
SMALL = ["--precision", "fp64", "--width", "4", "--epochs", "1", "--report_every", "1"]
EQUAL = 2e-6
DEADLINE = 120


@dataclass
class Run:
    """What came out of a run."""

    losses: dict[int, float] = field(default_factory=dict)
    accuracy: float | None = None
    lines: list[str] = field(default_factory=list)
    exit_code: int | None = None
    errors: str = ""

    def add(self, line: str) -> None:
        """One line of output."""
        self.lines.append(line.rstrip("\n"))
        values = parse_metrics(line) or {}
        if "loss" in values:
            self.losses[int(values["step"])] = values["loss"]
        self.accuracy = values.get("test_accuracy", self.accuracy)

    @property
    def classes(self) -> list[tuple[int, int]]:
        """Right and all images of each class, from the table at the end."""
        found = [re.match(r"  \w+ +(\d+) of +(\d+)  ", line) for line in self.lines]
        return [(int(match[1]), int(match[2])) for match in found if match]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout as a user has it: the script, and the runtime two folders up."""
    checkout = tmp_path_factory.mktemp("checkout")
    skip = shutil.ignore_patterns("__pycache__")
    for part in (Path("training_scripts", "cifar_ddp"), Path("cloudtrain", "runtime")):
        shutil.copytree(REPOSITORY / part, checkout / part, ignore=skip)
    shutil.copy(REPOSITORY / "cloudtrain" / "__init__.py", checkout / "cloudtrain")
    return checkout / "training_scripts" / "cifar_ddp" / "train.py"


@pytest.fixture(scope="module")
def archive(script: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`cifar-10-python.tar.gz`, made by the command that the script's folder has for it."""
    folder = tmp_path_factory.mktemp("archive")
    made = subprocess.run(
        [sys.executable, script.parent / "make_digits.py", folder, "--archive"],
        capture_output=True, text=True, check=True, timeout=DEADLINE,
    )  # fmt: skip
    assert made.stdout.strip() == str(folder / "cifar-10-python.tar.gz")
    return Path(made.stdout.strip())


def terminate(process: subprocess.Popen[str]) -> None:
    """What losing a spot instance looks like."""
    process.send_signal(signal.SIGTERM)


def kill_rank_1(process: subprocess.Popen[str]) -> None:
    """What losing a process looks like."""
    import psutil

    ranks = psutil.Process(process.pid).children()
    next(rank for rank in ranks if rank.environ().get("RANK") == "1").kill()


def run(
    folder: Path,
    *command: str | Path,
    cifar: Path | None = None,
    disturb: Callable[[subprocess.Popen[str]], None] | None = None,
    at: int = 0,
) -> Run:
    """Run to the end in `folder`; `disturb` is called with the process once step `at` is reported."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    environment |= {"CLOUDTRAIN_INPUT_CIFAR": str(cifar)} if cifar else {}
    result, arguments = Run(), [str(part) for part in command]
    with (folder / "stderr.txt").open("w") as errors:
        process = subprocess.Popen(
            arguments, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=errors
        )
    assert process.stdout is not None
    timer = threading.Timer(DEADLINE, process.kill)
    timer.start()
    with process.stdout:
        for line in process.stdout:
            result.add(line)
            if disturb is not None and max(result.losses, default=0) >= at:
                disturb(process)
                disturb = None
    result.exit_code = process.wait(timeout=DEADLINE)
    timer.cancel()
    result.errors = (folder / "stderr.txt").read_text()
    return result


@pytest.fixture(scope="module")
def alone(script: Path, archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One process that loads its own batches, never interrupted: what other runs are compared with."""
    folder = tmp_path_factory.mktemp("alone")
    result = run(folder, sys.executable, script, *SMALL, "--workers", "0", cifar=archive)
    assert result.exit_code == 0, result.errors
    assert len(result.losses) == 22
    assert (folder / "model" / "model.pt").is_file()
    return result


def assert_same_losses(found: Run, reference: Run) -> None:
    """Every loss reported is that of the reference, to the last digits that are printed."""
    assert found.losses
    for step, loss in found.losses.items():
        assert loss == pytest.approx(reference.losses[step], abs=EQUAL), f"step {step}"


def test_without_cifar_it_learns_digits_and_says_so(script: Path, tmp_path: Path) -> None:
    """The plain command: a notice about the data, and at least 90% of the test scans read right."""
    found = run(tmp_path, sys.executable, script)
    assert found.exit_code == 0, found.errors
    assert "no input `cifar`: training on handwritten digits" in found.errors
    assert found.lines[0].endswith("precision=fp32 train=1438 test=359 classes=10")
    assert found.accuracy is not None
    assert found.accuracy >= 0.9
    assert found.lines[-1].startswith(f"test accuracy {found.accuracy:.4f} after 88 steps")


def test_accuracy_per_class_counts_every_test_image(alone: Run) -> None:
    """As many images per class as the test batch has, and their sum is the accuracy that was reported."""
    assert [of for _, of in alone.classes] == [38, 31, 51, 31, 34, 39, 33, 32, 40, 30]
    assert sum(right for right, _ in alone.classes) / 359 == pytest.approx(alone.accuracy, abs=1e-6)


def test_two_processes_that_are_stopped_go_on_as_one(script: Path, archive: Path, alone: Run, tmp_path: Path) -> None:
    """Two processes with two workers each, SIGTERM (which torchrun passes to workers, too), then one process: the
    losses of one that was never stopped, the same test images right, and the marker gone."""
    two = [*TWO, script, *SMALL, "--workers", "2", "--step_delay", "0.1"]
    first = run(tmp_path, *two, cifar=archive, disturb=terminate, at=8)
    stopped_at = json.loads((tmp_path / "checkpoint" / "preempted").read_text())["step"]
    assert 8 <= stopped_at < 22
    assert "DataLoader worker" not in first.errors

    second = run(tmp_path, sys.executable, script, *SMALL, cifar=archive)
    assert second.exit_code == 0, second.errors
    assert f"resumed from step {stopped_at}\n" in second.errors
    assert not (tmp_path / "checkpoint" / "preempted").exists()
    assert (min(first.losses), min(second.losses)) == (1, stopped_at + 1)
    for part in (first, second):
        assert_same_losses(part, alone)
    assert second.classes == alone.classes


def test_two_processes_of_which_one_is_killed_count_as_one_does(
    script: Path, archive: Path, alone: Run, tmp_path: Path
) -> None:
    """`kill -9` of rank 1 with `--max-restarts 1`, then to the end: the losses and the images counted of one process
    that was left alone."""
    command = [*TWO, "--max-restarts", "1", script, *SMALL, "--checkpoint_every", "5"]
    found = run(tmp_path, *command, cifar=archive, disturb=kill_rank_1, at=11)
    assert found.exit_code == 0, found.errors
    resumed = [int(step) for step in re.findall(r"resumed from step (\d+)\n", found.errors)]
    assert len(resumed) == 1
    assert resumed[0] >= 10
    assert len(found.losses) == 22
    assert_same_losses(found, alone)
    assert found.classes == alone.classes
