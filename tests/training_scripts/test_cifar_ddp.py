"""The CIFAR-10 script, run for real: the same losses with 1 and 2 processes, and across a stop. Runs are bare."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deadlines import DEADLINE
from tests.training_scripts.runs import (
    HOLD,
    Run,
    assert_same_losses,
    check_out,
    held_once,
    kill_rank,
    run,
    terminate,
)

pytestmark = pytest.mark.torch

TWO = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# In fp32 the order of a sum shows in its last digit, and a network at this learning rate doubles
# such a difference at every step or two. What theory says of equal losses is therefore asked in
# fp64.
SMALL = ["--precision", "fp64", "--width", "4", "--epochs", "1", "--report_every", "1"]
EQUAL = 2e-6


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a checkout as a user has it."""
    return check_out("cifar_ddp", tmp_path_factory.mktemp("checkout"))


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


@pytest.fixture(scope="module")
def alone(script: Path, archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One process that loads its own batches, never interrupted: what other runs are compared with."""
    folder = tmp_path_factory.mktemp("alone")
    result = run(
        folder,
        sys.executable,
        script,
        *SMALL,
        "--workers",
        "0",
        CLOUDTRAIN_INPUT_CIFAR=str(archive),
    )
    assert result.exit_code == 0, result.errors
    assert len(result.losses) == 22
    assert (folder / "model" / "model.pt").is_file()
    return result


def classes(run: Run) -> list[tuple[int, int]]:
    """Right and all images of each class, from the table at the end."""
    found = [re.match(r"  \w+ +(\d+) of +(\d+)  ", line) for line in run.lines]
    return [(int(match[1]), int(match[2])) for match in found if match]


def test_without_cifar_it_learns_digits_and_says_so(script: Path, tmp_path: Path) -> None:
    """The plain command: a notice about the data, and at least 90% of the test scans read right."""
    found = run(tmp_path, sys.executable, script)
    assert found.exit_code == 0, found.errors
    assert "no input `cifar`: training on handwritten digits" in found.errors
    assert found.lines[0].endswith("precision=fp32 train=1438 test=359 classes=10")
    accuracy = found.last("test_accuracy")
    assert accuracy >= 0.9
    assert found.lines[-1].startswith(f"test accuracy {accuracy:.4f} after 88 steps")


def test_it_can_do_without_momentum(script: Path, archive: Path, tmp_path: Path) -> None:
    """Plain gradient descent, here of no step: Nesterov's look ahead needs a momentum and is left out."""
    none = ("--momentum", "0", "--epochs", "0", "--workers", "0")
    found = run(
        tmp_path, sys.executable, script, *SMALL, *none, CLOUDTRAIN_INPUT_CIFAR=str(archive)
    )
    assert found.exit_code == 0, found.errors
    assert sum(of for _, of in classes(found)) == 359


def test_synchronised_batch_norm_needs_gpus(script: Path, tmp_path: Path) -> None:
    """torch's refusal would come with a traceback, in the first step."""
    found = run(tmp_path, sys.executable, script, "--norm", "sync", CUDA_VISIBLE_DEVICES="")
    assert found.exit_code == 1
    assert found.errors.startswith("error: `--norm sync` needs GPUs\n\nhint: use `--norm group`")


def test_accuracy_per_class_counts_every_test_image(alone: Run) -> None:
    """As many images per class as the test batch has, and their sum is the accuracy that was reported."""
    assert [of for _, of in classes(alone)] == [38, 31, 51, 31, 34, 39, 33, 32, 40, 30]
    assert sum(right for right, _ in classes(alone)) / 359 == pytest.approx(
        alone.last("test_accuracy"), abs=1e-6
    )


def test_two_processes_that_are_stopped_go_on_as_one(
    script: Path, archive: Path, alone: Run, tmp_path: Path
) -> None:
    """Two processes with two workers each, SIGTERM (which torchrun passes to workers, too), then one process: the
    losses of one that was never stopped, the same test images right, and the marker gone."""
    two = [*TWO, script, *SMALL, "--workers", "2", "--step_delay", "0.1"]
    first = run(tmp_path, *two, CLOUDTRAIN_INPUT_CIFAR=str(archive), disturb=terminate, at=8)
    stopped_at = json.loads((tmp_path / "checkpoint" / "preempted").read_text())["step"]
    assert 8 <= stopped_at < 22
    assert "DataLoader worker" not in first.errors

    second = run(tmp_path, sys.executable, script, *SMALL, CLOUDTRAIN_INPUT_CIFAR=str(archive))
    assert second.exit_code == 0, second.errors
    assert f"resumed from step {stopped_at}\n" in second.errors
    assert not (tmp_path / "checkpoint" / "preempted").exists()
    assert (min(first.losses), min(second.losses)) == (1, stopped_at + 1)
    for part in (first, second):
        assert_same_losses(part, alone, within=EQUAL)
    assert classes(second) == classes(alone)


def test_two_processes_of_which_one_is_killed_count_as_one_does(
    script: Path, archive: Path, alone: Run, tmp_path: Path
) -> None:
    """`kill -9` of rank 1 with `--max-restarts 1`, then to the end: the losses and the images counted of one process
    that was left alone."""
    command = [*TWO, "--max-restarts", "1", held_once(script), *SMALL, "--checkpoint_every", "5"]
    variables = {"CLOUDTRAIN_INPUT_CIFAR": str(archive), HOLD: "11"}
    found = run(tmp_path, *command, disturb=kill_rank(1), at=11, **variables)
    assert found.exit_code == 0, found.errors
    assert len(found.resumed_from) == 1
    assert found.resumed_from[0] >= 10
    assert len(found.losses) == 22
    assert_same_losses(found, alone, within=EQUAL)
    assert classes(found) == classes(alone)
