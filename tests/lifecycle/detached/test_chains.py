"""A job that reads from a run that goes on waits for it, and is sent once."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.cli.app import run_command
from cloudtrain.lifecycle.detached.waiting import ChainService
from cloudtrain.plans.progress import RunStatus
from cloudtrain.plans.states import RunState
from tests.deadlines import DEADLINE
from tests.lifecycle.detached.conftest import Cloud
from tests.targets.places import eventually

pytestmark = pytest.mark.lifecycle


def kill_watcher(state_dir: Path, run: ct.Run) -> None:
    """As a reboot does."""
    status = json.loads((state_dir / "chains" / run.name / "status.json").read_text())
    os.kill(status["pid"], signal.SIGKILL)
    eventually(lambda: run.status().state is RunState.LOST)


@pytest.mark.slow_after(1)
def test_it_is_sent_when_the_other_has_succeeded(
    cloud: Cloud, first: ct.Run, source: Path, state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the plan showed, under the name that was told, with the code as it was; then nothing is left here."""
    job = cloud.reader(source, first.name)
    plan = ct.plan(job, cloud.target)
    run = cloud.submit(job)
    assert run.name == plan.run_name
    found = run.status()
    assert (found.state, found.reason, found.started) == (
        RunState.QUEUED,
        f"waits for {first.name}",
        None,
    )
    assert run_command(["ps"]) == 0
    shown = capsys.readouterr()
    assert f"{run.name} queued {cloud.target.type}" in " ".join(shown.out.split())
    assert f"`{run.name}`: waits for {first.name}" in " ".join(shown.err.split())
    (source / "train.py").write_text("print(2)\n")
    cloud.end(first)
    eventually(lambda: run.name in cloud.names)
    eventually(lambda: not (state_dir / "chains" / run.name).exists())
    assert cloud.names == [first.name, run.name]
    sent = ct.run(run.name)
    assert type(sent) is ct.Run
    assert not sent.status().state.is_final
    request = sent.show().plan["request"]
    assert request == plan.request
    cloud.end(run)
    assert run.wait(DEADLINE).state is RunState.SUCCEEDED  # the handle from before goes on


@pytest.mark.slow
@pytest.mark.parametrize("how", ["failed", "was stopped"])
def test_it_ends_where_the_other_ends_badly(
    cloud: Cloud, first: ct.Run, source: Path, how: str
) -> None:
    """And so does one that waits for it in turn. Nothing is sent."""
    second = cloud.submit(cloud.reader(source, first.name))
    third = cloud.submit(cloud.reader(source, second.name).replace(name="third"))
    cloud.end(first, "Failed") if how == "failed" else first.stop()
    if how != "failed":
        cloud.end(first, "Stopped" if cloud.target.type == "sagemaker" else "Canceled")
    ended = second.wait(DEADLINE)
    again = "run it again, then submit this job again"
    assert (ended.state, ended.reason) == (
        RunState.FAILED,
        f"the run `{first.name}` {how}, so nothing was sent; {again}",
    )
    assert (
        third.wait(DEADLINE).reason
        == f"the run `{second.name}` failed, so nothing was sent; {again}"
    )
    assert cloud.names == [first.name]
    second.remove()
    assert second.name not in [run.name for run in ct.runs()]


@pytest.mark.slow
def test_one_that_waits_is_stopped(cloud: Cloud, first: ct.Run, source: Path) -> None:
    """At once, with nothing sent; the other goes on."""
    run = cloud.submit(cloud.reader(source, first.name))
    assert run_command(["stop", run.name, "--wait"]) == 0
    assert run.status().reason == "stopped while it was waiting, so nothing runs"
    cloud.end(first)
    assert run.status().state is RunState.STOPPED
    assert cloud.names == [first.name]
    assert run_command(["rerun", run.name]) == 2
    assert run_command(["download", run.name, "model/"]) == 2


@pytest.mark.slow
def test_a_stop_that_meets_the_sending_stops_the_run(
    cloud: Cloud, first: ct.Run, source: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks a watcher that has just sent the run and has not looked again."""
    run = cloud.submit(cloud.reader(source, first.name))
    cloud.end(first)
    eventually(lambda: run.name in cloud.names)
    eventually(lambda: not (state_dir / "chains" / run.name).exists())
    waited, waiting = [RunStatus(RunState.QUEUED)], ChainService.waiting
    monkeypatch.setattr(
        ChainService, "waiting", lambda self, ref: waited.pop() if waited else waiting(self, ref)
    )
    run.stop()
    assert not waited
    assert run.status().state in (RunState.STOPPING, RunState.STOPPED)


@pytest.mark.slow
def test_one_without_its_watcher_says_what_to_type(
    cloud: Cloud, first: ct.Run, source: Path, state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`continue` goes on waiting, and sends one job."""
    run = cloud.submit(cloud.reader(source, first.name))
    assert run_command(["continue", run.name, "--detach"]) == 2
    assert "CT995" in capsys.readouterr().err
    kill_watcher(state_dir, run)
    assert run_command(["ps"]) == 0
    assert f"`cloudtrain continue {run.name}` starts it again" in " ".join(
        capsys.readouterr().err.split()
    )
    cloud.end(first)
    assert run_command(["continue", run.name, "--detach"]) == 0
    eventually(lambda: run.name in cloud.names)
    eventually(lambda: not (state_dir / "chains" / run.name).exists())
    assert cloud.names == [first.name, run.name]


@pytest.mark.slow
def test_a_removed_folder_ends_the_wait(
    cloud: Cloud, first: ct.Run, source: Path, state_dir: Path
) -> None:
    """No process is left behind that asks for ever about a run that nobody knows, and nothing is sent."""
    psutil = pytest.importorskip("psutil")
    run = cloud.submit(cloud.reader(source, first.name))
    folder = state_dir / "chains" / run.name
    pid = json.loads((folder / "status.json").read_text())["pid"]
    # at once, whatever its process writes meanwhile
    removed = folder.rename(state_dir.with_name("removed"))
    shutil.rmtree(removed)
    eventually(lambda: not psutil.pid_exists(pid))
    assert cloud.names == [first.name]


@pytest.mark.slow
def test_following_leads_into_the_run(cloud: Cloud, first: ct.Run, source: Path) -> None:
    """Whoever follows a run that waits is told so, and gets the run's end in time."""

    def live(job: Any) -> None:
        cloud.created.append(job)
        job.end("Completed")

    cloud.fake.jobs.on_create = live
    run = cloud.submit(cloud.reader(source, first.name))
    states = list[RunState]()

    def told(status: RunStatus) -> None:
        if not states:
            cloud.end(first)
        states.append(status.state)

    for _ in run.logs(follow=True, on_status=told):
        pass
    assert states[0] is RunState.QUEUED
    assert run.wait(DEADLINE).state is RunState.SUCCEEDED
    assert cloud.names == [first.name, run.name]
