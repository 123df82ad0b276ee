"""The parameter server, run for real: bare torchrun, a kill, a stop, other numbers of workers, the experiment."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import psutil  # noqa: TID253 - tests may start slowly
import pytest
import yaml

from cloudtrain import TrainingJob
from cloudtrain.runtime import parse_metrics
from tests.deadlines import DEADLINE
from tests.training_scripts.runs import (
    REPOSITORY,
    Disturb,
    check_out,
    kill_rank,
    lines_of,
    plant,
    start,
    terminate,
)

pytestmark = pytest.mark.torch

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a checkout as a user has it."""
    return check_out("parameter_server", tmp_path_factory.mktemp("checkout"))


def run(
    folder: Path, *command: str | Path, at: dict[tuple[int, int], Disturb] | None = None
) -> tuple[int, list[str], str]:
    """Exit code, lines and stderr. `at` does something to the run once the server's n-th start reports that step."""
    todo, process = dict(at or {}), start(folder, *command)
    lines, starts = [], 0
    for line in lines_of(process):
        lines.append(line.rstrip("\n"))
        starts += line.startswith("processes=")
        reached = (parse_metrics(line) or {}).get("step", 0)
        for begun, step in [
            (begun, step) for begun, step in todo if begun == starts and reached >= step
        ]:
            todo.pop((begun, step))(psutil.Process(process.pid))
    return process.wait(timeout=DEADLINE), lines, (folder / "stderr.txt").read_text()


def losses(lines: list[str]) -> dict[int, float]:
    found = [parse_metrics(line) or {} for line in lines]
    return {int(values["step"]): values["loss"] for values in found if "loss" in values}


def test_a_server_and_one_worker_do_what_one_process_does(script: Path, tmp_path: Path) -> None:
    """One worker's gradients are never stale, so the losses are the same, and the digits are learned."""
    (tmp_path / "alone").mkdir()
    (tmp_path / "two").mkdir()
    code, alone, errors = run(tmp_path / "alone", sys.executable, script)
    assert code == 0, errors
    code, two, errors = run(tmp_path / "two", *TORCHRUN, "--nproc-per-node", "2", script)
    assert code == 0, errors
    assert two[0] == "processes=2 workers=1 max_staleness=None"
    assert len(losses(alone)) == sum(" total=440 " in line for line in alone) == 22
    assert losses(two) == losses(alone)
    assert "staleness mean 0.00 max 0 bound none" in two
    accuracy = float(two[-1].split()[2])
    assert accuracy >= 0.95
    assert alone[-1].startswith(f"test accuracy {accuracy:.4f} after 440 updates")
    assert (tmp_path / "two" / "model" / "model.pt").is_file()


def test_killed_stopped_and_resumed_with_other_workers_it_still_learns(
    script: Path, tmp_path: Path
) -> None:
    """`kill -9` of a worker, a restart, SIGTERM, a resume in one process: every step is reported, none lost."""
    two = [
        "--nproc-per-node",
        "3",
        "--max-restarts",
        "1",
        script,
        "--step_seconds",
        "0.12",  # so that kill and SIGTERM may come late
        "--checkpoint_every",
        "20",
    ]
    events = {(1, 60): kill_rank(2), (2, 160): terminate}
    _, first, errors = run(tmp_path, *TORCHRUN, *two, at=events)
    assert "error: worker 2 has died" in errors
    (restarted,) = [
        int(line.split()[4].rstrip(";"))
        for line in errors.splitlines()
        if "resumed from update" in line
    ]
    assert restarted >= 60
    marker = json.loads((tmp_path / "checkpoint" / "preempted").read_text())
    assert marker["signal"] == "SIGTERM"
    assert 160 <= marker["step"] < 440

    code, second, errors = run(tmp_path, sys.executable, script)
    assert code == 0, errors
    assert f"resumed from update {marker['step']}; 0 batches under way" in errors
    assert not (tmp_path / "checkpoint" / "preempted").exists()
    assert set(losses(first)) | set(losses(second)) == set(range(20, 441, 20))
    assert float(second[-1].split()[2]) >= 0.93


def test_a_resumed_run_drops_what_one_run_drops(tmp_path: Path) -> None:
    """With a layer of dropout, planted: a server and a worker, stopped, then one process, have the losses of one
    process that was never stopped."""
    script = check_out("parameter_server", tmp_path / "checkout")
    plant(
        script,
        (
            "worker.py",
            "nn.Sequential(*layers[:-1])",
            "nn.Sequential(nn.Dropout(0.3), *layers[:-1])",
        ),
    )
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    arguments = [script, "--epochs", "2", "--report_every", "1"]
    _, whole, errors = run(tmp_path / "whole", sys.executable, *arguments)
    # SIGTERM may come late
    two = [*TORCHRUN, "--nproc-per-node", "2", *arguments, "--step_seconds", "0.2"]
    _, first, _ = run(tmp_path / "parts", *two, at={(1, 20): terminate})
    code, second, errors = run(tmp_path / "parts", sys.executable, *arguments)
    assert code == 0, errors
    assert min(losses(second)) == max(losses(first)) + 1
    assert {**losses(first), **losses(second)} == losses(whole)
    assert len(losses(whole)) == 88


def test_the_experiment_prints_its_table_and_draws_its_picture(
    script: Path, tmp_path: Path
) -> None:
    """Two workers, one epoch: six rows that agree with what theory says of bytes and staleness."""
    pytest.importorskip("matplotlib")
    arguments = ["--experiment", "--epochs", "1", "--step_seconds", "0.008"]
    code, lines, errors = run(tmp_path, *TORCHRUN, "--nproc-per-node", "3", script, *arguments)
    assert code == 0, errors
    rows = [line.split() for line in lines if line.startswith(("ring", "asynchronous", "bounded"))]
    assert [row[0] for row in rows] == ["ring", "asynchronous", "bounded"] * 2
    _, _, _, staleness, largest, bound, per_gradient, per_worker, busiest, _ = zip(
        *(row[-10:] for row in rows), strict=True
    )
    megabytes = 26_122 * 4 / 1e6  # the network's parameters
    assert [float(text) for text in per_gradient] == pytest.approx([megabytes] * 6, abs=0.001)
    assert [float(text) for text in busiest] == pytest.approx(
        [22 * megabytes, 44 * megabytes, 44 * megabytes] * 2, rel=0.02
    )
    assert sum(float(text) for text in per_worker) == pytest.approx(6 * 22 * megabytes, rel=0.02)
    assert list(bound) == ["-", "-", "5"] * 2
    assert all(int(largest[row]) <= int(bound[row]) for row in (2, 5))
    assert (float(staleness[0]), float(staleness[3])) == (0, 0)
    # both start with the same weights, so one is late, however quick they are
    assert float(staleness[1]) > 0
    assert (tmp_path / "parameter_server.png").read_bytes()[:4] == b"\x89PNG"


def test_what_cannot_be_is_one_line(script: Path, tmp_path: Path) -> None:
    """All of it at once, and no traceback."""
    wrong = ["--epochs", "0", "--slow_worker", "3", "--experiment"]
    code, lines, errors = run(tmp_path, sys.executable, script, *wrong)
    assert (code, lines) == (1, [])
    assert errors == (
        "error: `--slow_worker` is 3, and the workers are 1 to 1; "
        "`--experiment` needs a server and two workers, so 3 processes; `--experiment` needs an epoch\n"
    )


def test_the_job_has_a_server_and_two_workers() -> None:
    """Rank 0 is the server: processes are workers plus one."""
    job = TrainingJob(
        **yaml.safe_load(
            (REPOSITORY / "training_scripts/parameter_server/job.yaml").read_text("utf-8")
        )
    )
    assert job.distribution.model_dump(exclude_none=True) == {
        "type": "torch",
        "processes_per_instance": 3,
    }
