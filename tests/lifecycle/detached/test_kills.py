"""A watcher that is killed at any point of its way, and started again, sends one job."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.lifecycle.detached.driven import DrivenFolder
from cloudtrain.lifecycle.detached.waiting import ChainService
from cloudtrain.lifecycle.store.schema import read_store
from cloudtrain.plans.states import RunState
from tests.lifecycle.detached import dying
from tests.lifecycle.detached.conftest import Cloud
from tests.lifecycle.submission.kill_points import kill_points

pytestmark = [pytest.mark.lifecycle, pytest.mark.slow]


def watched(
    cloud: Cloud, run: ct.Run, state_dir: Path, point: int
) -> subprocess.CompletedProcess[str]:
    """A watcher in a process of its own, to its end."""
    command = [
        sys.executable,
        dying.__file__,
        str(state_dir),
        run.name,
        cloud.target.type,
        str(point),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def waiting(cloud: Cloud, first: ct.Run, source: Path, monkeypatch: pytest.MonkeyPatch) -> ct.Run:
    """A run whose watcher died as soon as it had taken over, while the other run ended."""

    def start(_: ChainService, folder: DrivenFolder) -> None:
        folder.write_status(RunState.QUEUED, f"waits for {first.name}", start_time=time.time())

    monkeypatch.setattr(ChainService, "_start", start)
    run = cloud.submit(cloud.reader(source, first.name))
    cloud.end(first)
    return run


@pytest.mark.parametrize("point", kill_points(dying.POINTS))
def test_a_killed_watcher_sends_one_job(
    cloud: Cloud,
    first: ct.Run,
    source: Path,
    state_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: int,
) -> None:
    """Whatever it had done. The next one finds that out, and leaves nothing behind."""
    run = waiting(cloud, first, source, monkeypatch)
    died = watched(cloud, run, state_dir, point)
    assert died.returncode == -signal.SIGKILL, died.stderr
    again = watched(cloud, run, state_dir, 0)
    assert again.returncode == 0, again.stderr
    assert cloud.names == [first.name, run.name]
    assert type(ct.run(run.name)) is ct.Run
    assert not ct.run(run.name).status().state.is_final
    assert not DrivenFolder(state_dir, "chain", run.name).sending.exists()
    with read_store(state_dir) as store:
        assert store.unfinished() == []


def test_the_points_are_all_there_are(
    cloud: Cloud, first: ct.Run, source: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a step was added that no test kills."""
    run = waiting(cloud, first, source, monkeypatch)
    assert watched(cloud, run, state_dir, 0).stdout == f"{dying.POINTS}\n"


def test_a_stop_after_a_kill_sends_nothing_new(
    cloud: Cloud, first: ct.Run, source: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing had left yet, nothing leaves any more."""
    run = waiting(cloud, first, source, monkeypatch)
    assert watched(cloud, run, state_dir, 6).returncode == -signal.SIGKILL
    DrivenFolder(state_dir, "chain", run.name).stop.touch()
    assert watched(cloud, run, state_dir, 0).returncode == 0
    assert run.status().reason == "stopped while it was waiting, so nothing runs"
    assert cloud.names == [first.name]
