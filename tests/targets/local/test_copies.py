"""Copied, moved and removed state folders: what is done with a copy does nothing to the runs of the original."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

import cloudtrain as ct
from cloudtrain.errors import TargetError
from cloudtrain.plans.progress import RunStatus
from cloudtrain.plans.states import RunState
from cloudtrain.system.processes import Owner, ProcessLock
from tests.targets.places import Place, Run, eventually

WAITS = "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)"


def copy(place: Place, name: str, *options: str) -> Place:
    """The place with a copy of its state folder."""
    root = place.root / name
    root.mkdir()
    subprocess.run(["cp", "-a", *options, place.root / "state", root / "state"], check=True)
    return Place(root, place.environ)


def end(run: Run) -> RunStatus:
    (run.folder / "code/go").touch()
    return run.wait()


def test_copies_of_a_running_run(place: Place) -> None:
    """Whatever is asked of a copy, also of one with hard links, the run goes on; the copy names the folder of the run."""
    run = place.submit(WAITS)
    run.wait_for_line("up")
    for name, options in (("plain", ()), ("linked", ("--link",))):
        service = copy(place, name, *options).service
        status = service.status(run.ref)
        assert status.state is RunState.LOST
        assert f"CLOUDTRAIN_STATE_DIR={place.root / 'state'} cloudtrain" in str(status.reason)
        assert [listed.status for listed in service.runs()] == [status]
        assert [line.text for line in service.logs(run.ref, follow=True)] == ["up"]
        service.stop(run.ref)
        assert run.status.state is RunState.RUNNING
    assert end(run).state is RunState.SUCCEEDED
    for name in ("plain", "linked"):
        assert Place(place.root / name, {}).service.status(run.ref).state is RunState.LOST


@pytest.mark.slow
def test_a_copy_of_a_run_whose_supervisor_was_killed(place: Place) -> None:
    """Its processes are those of the original: a copy does not end them, neither with `stop` nor by its queue."""
    slots = ct.Local(queue=True, grace_period=1)
    run = place.submit(WAITS, target=slots)
    run.wait_for_line("up")
    run.ours("guard").kill()
    run.ours("supervisor").kill()
    script = run.process_with("CLOUDTRAIN_RUN_NAME", "run-1")
    other = copy(place, "copy")
    other.service.stop(run.ref)
    follower = other.submit("", name="follower-1", target=slots)
    assert follower.wait().state is RunState.SUCCEEDED
    assert script.is_running()
    assert not run.status.state.is_final
    run.service.stop(run.ref)
    assert run.nothing_is_left()


@pytest.mark.slow
def test_a_moved_state_folder(place: Place) -> None:
    """The run is followed and stopped in its new place, and nothing is made in the old one."""
    run = place.submit(WAITS, target=ct.Local(queue=True, grace_period=1))
    run.wait_for_line("up")
    moved = Place(place.root / "moved", place.environ)
    moved.root.mkdir()
    (place.root / "state").rename(moved.root / "state")
    assert moved.service.status(run.ref).state is RunState.RUNNING
    moved.service.stop(run.ref)
    eventually(lambda: moved.service.status(run.ref).state is RunState.STOPPED, "it is stopped")
    assert run.nothing_is_left()
    assert not (place.root / "state").exists()
    assert moved.service.queue() == []


@pytest.mark.slow
def test_results_of_a_moved_and_a_copied_run(place: Place) -> None:
    """They are read where they are, not where they were."""
    script = (
        "import os\nopen(os.environ['CLOUDTRAIN_MODEL_DIR'] + '/w', 'w').write('x')\nprint('up')"
    )
    run = place.submit(script)
    run.wait()
    for name, act in (("copy", shutil.copytree), ("moved", shutil.move)):
        other = Place(place.root / name, {})
        act(place.root / "state", other.root / "state")
        files = other.service.download(run.ref, "", place.root / f"got-{name}")
        assert {path.name for path in files} >= {"w", "rank_0.log"}


def test_a_plan_of_another_state_folder(place: Place) -> None:
    """A run again in a copy would write into the original."""
    plan, bundle = place.plan("")
    (place.root / "copy").mkdir()
    (place.root / "link").symlink_to(place.root)
    with pytest.raises(TargetError) as caught:
        Place(place.root / "copy", {}).service.upload(plan, bundle)
    assert caught.value.code == "CT956"
    assert list((place.root / "copy").iterdir()) == []
    assert Place(place.root / "link", {}).service.upload(plan, bundle)


def test_stop_signals_only_the_supervisor(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The id in the status may be another process's: after a reboot, or in another container, which holds the lock."""
    monkeypatch.setattr("cloudtrain.targets.local.verdict._PATIENCE", 0.05)
    monkeypatch.setattr("cloudtrain.targets.local.service.os.kill", pytest.fail)
    run = place.submit("")
    run.wait()
    status = json.loads((run.folder / "status.json").read_bytes())
    me = Owner.of(run.folder)
    owner = Owner(*status["owner"])._replace(pid=me.pid, start=me.start)
    lock = ProcessLock.take(run.folder / "supervisor.lock", patience=1)
    assert lock is not None
    for other in ({"start": "0"}, {"boot": "another"}, {"pid": 2**22 + 1}):
        changed = {**status, "state": "running", "owner": owner._replace(**other)}
        (run.folder / "status.json").write_text(json.dumps(changed))
        with pytest.raises(TargetError) as caught:
            run.service.stop(run.ref)
        assert caught.value.code == "CT955"
    lock.release()
    run.service.stop(run.ref)
    assert run.status.state is RunState.LOST


@pytest.mark.slow
def test_a_copy_in_the_place_of_the_original(place: Place) -> None:
    """A backup that is put back while a run of it went on: the run ends by itself, and the copy is no run."""
    run = place.submit(WAITS)
    run.wait_for_line("up")
    copy(place, "backup")
    shutil.rmtree(place.root / "state")
    assert run.nothing_is_left()
    (place.root / "backup/state").rename(place.root / "state")
    assert run.status.state is RunState.LOST
