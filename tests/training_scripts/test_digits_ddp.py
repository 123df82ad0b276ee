"""The digits script, run for real: same losses with any number of processes, and across stops and crashes.

Every run here is bare: plain python or torchrun, in a folder where cloudtrain is not installed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.deadlines import DEADLINE
from tests.ports import free_port
from tests.training_scripts.runs import (
    HOLD,
    Run,
    assert_same_losses,
    check_out,
    held_once,
    kill_rank,
    run,
    start,
    terminate,
)

pytestmark = pytest.mark.torch

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a checkout as a user has it."""
    return check_out("digits_ddp", tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def alone(script: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One process, never interrupted: what all other runs are compared with."""
    folder = tmp_path_factory.mktemp("alone")
    result = run(folder, sys.executable, script)
    assert result.exit_code == 0, result.errors
    assert (folder / "model" / "model.pt").is_file()
    return result


def test_one_process_learns_the_digits(alone: Run) -> None:
    """At least 95% of the test scans are read right, and the last line says how many."""
    assert len(alone.accuracies) == 20
    accuracy = alone.accuracies[max(alone.accuracies)]
    assert accuracy >= 0.95
    assert alone.lines[-1].startswith(f"test accuracy {accuracy:.4f} after 460 steps")
    assert alone.losses[1] == pytest.approx(2.303, abs=0.05)
    assert alone.losses[460] < 0.1


def test_two_processes_begin_the_same(script: Path, tmp_path: Path) -> None:
    """A short run alone and under bare torchrun: the same losses and the same accuracy."""
    alone = run(tmp_path / "alone", sys.executable, script, "--epochs", "2")
    found = run(
        tmp_path / "two",
        *TORCHRUN,
        "--standalone",
        "--nproc-per-node",
        "2",
        script,
        "--epochs",
        "2",
    )
    assert (alone.exit_code, found.exit_code) == (0, 0), alone.errors + found.errors
    assert_same_losses(found, alone, at_least=5)
    assert found.accuracies == alone.accuracies
    assert len(alone.accuracies) == 2


def test_two_processes_learn_the_same(script: Path, alone: Run, tmp_path: Path) -> None:
    """Under bare torchrun: the same losses to 5 decimals, the same accuracy, one report per step."""
    found = run(tmp_path, *TORCHRUN, "--standalone", "--nproc-per-node", "2", script)
    assert found.exit_code == 0, found.errors
    assert found.lines[0] == "processes=2 device=cpu backend=gloo"
    assert_same_losses(found, alone, at_least=47)
    assert found.accuracies == alone.accuracies
    assert len(found.lines) == len(alone.lines)


def test_two_simulated_instances_with_accumulation_learn_the_same(
    script: Path, alone: Run, tmp_path: Path
) -> None:
    """Two torchrun agents with one process each, and two micro-batches per step: still the same losses."""
    port = str(free_port())
    command = [
        *TORCHRUN,
        "--nnodes",
        "2",
        "--nproc-per-node",
        "1",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        port,
    ]
    second = start(tmp_path / "second", *command, "--node-rank", "1", script, "--accumulate", "2")
    found = run(tmp_path / "first", *command, "--node-rank", "0", script, "--accumulate", "2")
    out, _ = second.communicate(timeout=DEADLINE)
    assert (found.exit_code, second.returncode) == (0, 0), found.errors
    assert_same_losses(found, alone, at_least=47)
    assert out == ""


def test_stopped_twice_it_goes_on_with_2_processes_and_then_with_1(
    script: Path, alone: Run, tmp_path: Path
) -> None:
    """SIGTERM, resume with 2 processes, SIGTERM, resume with 1: the losses of a run that was never stopped."""
    marker = tmp_path / "checkpoint" / "preempted"
    two = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", script, "--step_delay", "0.01"]

    first = run(tmp_path, *two, disturb=terminate, at=30)
    stopped_at = json.loads(marker.read_text())["step"]
    assert 30 <= stopped_at < 460

    second = run(tmp_path, *two, disturb=terminate, at=stopped_at + 30)
    assert f"resumed from step {stopped_at}\n" in second.errors
    stopped_again_at = json.loads(marker.read_text())["step"]
    assert stopped_at + 30 <= stopped_again_at < 460

    third = run(tmp_path, sys.executable, script)
    assert third.exit_code == 0, third.errors
    assert f"resumed from step {stopped_again_at}\n" in third.errors
    assert not marker.exists()

    assert min(second.losses) == stopped_at + 1
    assert min(third.losses) == stopped_again_at + 1
    for part in (first, second, third):
        assert_same_losses(part, alone, at_least=3)
    assert third.accuracies[460] == alone.accuracies[460]


def test_a_killed_rank_is_started_again_from_the_last_checkpoint(
    script: Path, alone: Run, tmp_path: Path
) -> None:
    """`kill -9` of rank 1 under `torchrun --max-restarts 1`: all ranks come back and lose no more than 10 steps."""
    command = [
        *TORCHRUN,
        "--standalone",
        "--max-restarts",
        "1",
        "--nproc-per-node",
        "2",
        held_once(script),
    ]
    variables = {HOLD: "30"}
    found = run(
        tmp_path, *command, "--checkpoint_every", "10", disturb=kill_rank(1), at=30, **variables
    )
    assert found.exit_code == 0, found.errors
    assert len(found.resumed_from) == 1
    assert found.resumed_from[0] >= 20
    assert_same_losses(found, alone, at_least=47)


def test_a_checkpoint_of_another_network_is_refused_without_a_traceback(
    script: Path, tmp_path: Path
) -> None:
    """A forgotten folder of an earlier run: the message has the shapes, and says what to do."""
    assert run(tmp_path, sys.executable, script, "--epochs", "1").exit_code == 0
    found = run(tmp_path, sys.executable, script, "--epochs", "2", "--hidden", "64")
    assert found.exit_code == 1
    assert "error: Error(s) in loading state_dict for Sequential" in found.errors
    assert "(loaded: the checkpoint `checkpoint/000001-step-23`)" in found.errors
    assert "remove the checkpoints to start from the beginning" in found.errors
    assert "Traceback" not in found.errors


def test_without_scikit_learn_it_says_what_to_install(script: Path, tmp_path: Path) -> None:
    """The data comes with scikit-learn; its absence is one line and a hint."""
    (tmp_path / "sklearn.py").write_text("")  # a module of that name without data
    code = (
        f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); runpy.run_path({str(script)!r})"
    )
    found = run(tmp_path, sys.executable, "-c", code)
    assert found.exit_code == 1
    assert found.errors == (
        "error: the digits come with scikit-learn, which is not installed\n\nhint: pip install scikit-learn\n"
    )
