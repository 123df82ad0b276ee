"""Deaths around a run on this machine: of the supervisor, of the guard, of whoever submitted it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.errors import NameTaken, RunNotFound, TargetError
from cloudtrain.plans.states import RunRef, RunState
from cloudtrain.targets.local.folder import command
from tests.deadlines import DEADLINE
from tests.targets.places import Place, eventually

REPOSITORY = Path(__file__).parents[3]

TREE = """\
import subprocess, time
subprocess.Popen(["sleep", "3600"])
subprocess.Popen(["sleep", "3600"], start_new_session=True)
print("up", flush=True)
time.sleep(3600)
"""


def test_killed_supervisor(place: Place) -> None:
    """kill -9 of the supervisor: nothing is left running, without anybody asking, and the run is `lost`."""
    run = place.submit(TREE, target=ct.Local(instance_count=2))
    run.wait_for_line("up", times=2)
    run.ours("supervisor").kill()
    assert run.nothing_is_left()
    status = run.status
    assert status.state is RunState.LOST
    assert "was killed" in str(status.reason)
    assert status.ended is not None


def test_killed_supervisor_and_guard(place: Place) -> None:
    """When the guard is killed too, nobody who only asks for the status kills anything; `stop` cleans up."""
    run = place.submit(TREE)
    run.wait_for_line("up")
    supervisor, guard = run.ours("supervisor"), run.ours("guard")
    guard.kill()
    supervisor.kill()
    eventually(lambda: len(run.processes()) == 3, "only the script and its children are left")
    # a killed process leaves the table before the system closes its files, and with them its lock
    eventually(lambda: run.status.reason, "the run's lock is free")
    status = run.status
    assert not status.state.is_final
    assert f"`cloudtrain stop {run.ref.name}`" in str(status.reason)
    assert [listed.status.state for listed in run.service.runs()] == [status.state]
    assert len(run.processes()) == 3
    run.service.stop(run.ref)
    assert run.status.state is RunState.LOST
    assert run.nothing_is_left()


def test_killed_guard(place: Place) -> None:
    """The run goes on without its guard, and ends as it should."""
    run = place.submit(
        "import time, os\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)"
    )
    run.wait_for_line("up")
    run.ours("guard").kill()
    (run.folder / "code/go").touch()
    assert run.wait().state is RunState.SUCCEEDED


def test_log_of_a_lost_run_is_whole(place: Place) -> None:
    """What a process wrote before it was killed is in the log, even what the supervisor never read; nothing twice."""
    script = "import time\nfor n in range(200): print(n, flush=True)\ntime.sleep(0.2)\n"
    run = place.submit(
        script
        + "for n in range(200, 400): print(n, flush=True)\nopen('done', 'w')\ntime.sleep(3600)"
    )
    eventually(lambda: "100" in run.texts(), "first lines")
    supervisor = run.ours("supervisor")
    supervisor.suspend()
    eventually((run.folder / "code/done").exists, "all lines are written")
    supervisor.kill()
    followed = [line.text for line in run.lines(follow=True)]
    assert run.status.state is RunState.LOST
    assert followed == [str(n) for n in range(400)]
    assert (run.folder / "logs/rank_0.log").read_text().split() == followed


@pytest.mark.parametrize("broken", ["output.index", "launch.json"])
def test_lost_although_its_output_cannot_be_completed(place: Place, broken: str) -> None:
    """A journal that cannot be written, or a specification that is no longer whole, does not keep a run from ending."""
    run = place.submit(TREE)
    run.wait_for_line("up")
    supervisor, guard = run.ours("supervisor"), run.ours("guard")
    supervisor.suspend()
    guard.kill()
    (run.folder / broken).unlink()
    make = Path.mkdir if broken == "output.index" else Path.touch
    make(run.folder / broken)
    supervisor.kill()
    eventually(lambda: run.service.stop(run.ref) or run.status.state.is_final, "the run is lost")
    assert run.status.state is RunState.LOST
    assert "was killed, and with it every process of the run; its output is incomplete: " in str(
        run.status.reason
    )
    assert run.nothing_is_left()


@pytest.mark.parametrize("content", [b"", b'{"state": "runn'])
def test_a_status_that_a_power_cut_has_torn(place: Place, content: bytes) -> None:
    """The run is `lost` and says why; the other runs are listed as ever."""
    torn, other = place.submit("", name="torn-1"), place.submit("", name="other-1")
    torn.wait()
    other.wait()
    (torn.folder / "status.json").write_bytes(content)
    assert {listed.ref.name: listed.status.state for listed in place.service.runs()} == {
        "torn-1": RunState.LOST,
        "other-1": RunState.SUCCEEDED,
    }
    assert str(torn.status.reason).startswith("its status cannot be read: ")
    torn.service.stop(torn.ref)


def test_download_of_a_run_whose_specification_is_torn(place: Place) -> None:
    """Nobody knows where it has written; its folder is named."""
    run = place.submit("")
    run.wait()
    (run.folder / "launch.json").write_bytes(b"")
    with pytest.raises(TargetError, match="cannot be read") as caught:
        run.service.download(run.ref, "model", place.root / "got")
    assert str(run.folder) in str(caught.value.hint)
    assert caught.value.code == "CT952"


def test_submitter_gone_before_the_supervisor_took_over(place: Place) -> None:
    """The run exists from its first status on, whether anybody hears of it or not; the next submission finds it."""
    plan, bundle = place.plan("print('ran')")
    place.service.upload(plan, bundle)
    folder = Path(plan.request["run_dir"])
    folder.mkdir(parents=True)
    (folder / "launch.json").write_text(plan.request_json)
    reader, writer = os.pipe()
    os.close(reader)
    lives, held = os.pipe()  # by every process of the supervisor, until its end
    subprocess.run(
        command("supervisor", str(folder), str(writer)), pass_fds=(writer, held), check=True
    )
    os.close(writer)
    os.close(held)
    assert os.read(lives, 1) == b""
    os.close(lives)
    assert place.service.has(plan.ref)
    run = place.send(plan, again=True)
    assert run.wait().state is RunState.SUCCEEDED
    assert run.texts() == ["ran"]


def test_lost_run_stays_lost(place: Place) -> None:
    """A lost run is final: stop changes nothing, and its status does not move."""
    run = place.submit(TREE)
    run.wait_for_line("up")
    run.ours("supervisor").kill()
    lost = run.wait()
    run.service.stop(run.ref)
    assert run.status == lost


SUBMITTER = """\
import os, sys
from pathlib import Path
sys.path.insert(0, {repository!r})
from tests.targets.places import Place
run = Place(Path({root!r}), dict(os.environ)).submit({script!r})
for line in run.service.logs(run.ref, follow=True):
    print(line.text, flush=True)
"""

COUNTS = "import os, time\nn = 0\nwhile not os.path.exists('go'): print(n, flush=True); n += 1; time.sleep(0.02)"


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGINT, signal.SIGHUP])
@pytest.mark.slow_after(1)
def test_submitter_dies(place: Place, death: signal.Signals) -> None:
    """The run goes on when its submitter, and all of its process group, dies; another shell picks up its log."""
    code = SUBMITTER.format(repository=str(REPOSITORY), root=str(place.root), script=COUNTS)
    shell = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert shell.stdout is not None
    with shell.stdout:
        assert shell.stdout.readline() == b"0\n"
        os.killpg(shell.pid, death)
        shell.wait(timeout=DEADLINE)
    ((ref, _),) = place.service.runs()
    assert place.service.status(ref).state is RunState.RUNNING
    follower = place.service.logs(ref, follow=True)
    assert [next(follower).text for _ in range(3)] == ["0", "1", "2"]
    (place.root / f"state/runs/{ref.name}/code/go").touch()
    texts = [line.text for line in follower]
    assert texts == [str(n + 3) for n in range(len(texts))]
    assert place.service.status(ref).state is RunState.SUCCEEDED


def test_submit_twice(place: Place) -> None:
    """The same submission again is the same run, and another one of its name is refused: nothing is started twice."""
    script = f"open({str(place.root / 'starts')!r}, 'a').write('x')"
    run = place.submit(script)
    run.wait()
    assert place.send(run.plan, again=True).ref == run.ref
    with pytest.raises(NameTaken):
        place.send(run.plan)
    assert run.wait().state is RunState.SUCCEEDED
    assert (place.root / "starts").read_text() == "x"


def test_submit_at_the_same_time(place: Place) -> None:
    """Many submitters of one plan start one run."""
    plan, bundle = place.plan(f"open({str(place.root / 'starts')!r}, 'a').write('x')")
    place.service.upload(plan, bundle)
    service = place.service
    with ThreadPoolExecutor(8) as pool:
        refs = set(pool.map(lambda _: str(service.submit(plan, again=True)), range(8)))
    assert len(refs) == 1
    run = place.send(plan, again=True)
    run.wait()
    assert (place.root / "starts").read_text() == "x"


def test_another_plan_of_the_same_name(place: Place) -> None:
    """A name that is taken by another job is refused."""
    place.submit("print(1)").wait()
    for again in (True, False):
        with pytest.raises(NameTaken, match="already exists"):
            place.send(place.plan("print(2)")[0], again=again)


def test_broken_submission(place: Place) -> None:
    """A submitter that died before the supervisor took over left nothing that `find` would call a run."""
    plan, bundle = place.plan("print('ran')")
    place.service.upload(plan, bundle)
    folder = Path(plan.request["run_dir"])
    folder.mkdir(parents=True)
    (folder / "launch.json").write_text(plan.request_json)
    assert not place.service.has(plan.ref)
    assert list(place.service.runs()) == []
    run = place.send(plan, again=True)
    assert run.wait().state is RunState.SUCCEEDED
    assert run.texts() == ["ran"]


def test_request_is_what_was_planned(place: Place) -> None:
    """`launch.json` holds the very bytes of the plan."""
    run = place.submit("")
    assert (run.folder / "launch.json").read_bytes() == run.plan.request_json.encode()
    assert json.loads(run.plan.request_json) == run.plan.request


def test_run_of_another_machine(place: Place) -> None:
    """A run in a shared folder that belongs to another machine is not looked at from here."""
    run = place.submit("")
    run.wait()
    with pytest.raises(RunNotFound, match="elsewhere"):
        place.service.status(RunRef("local", "elsewhere", run.ref.name))


def test_state_folder_that_cannot_be_written(place: Place) -> None:
    """A state folder that is a file is an error with a hint, not a traceback."""
    plan, _ = place.plan("")
    (place.root / "state").write_text("in the way")
    with pytest.raises(TargetError) as caught:
        place.send(plan)
    assert "CLOUDTRAIN_STATE_DIR" in str(caught.value.hint)


def test_supervisor_that_cannot_start(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor that dies before it takes over is an error that repeats its words."""
    monkeypatch.setattr("cloudtrain.targets.local.folder._BOOT", "raise SystemExit('no way')")
    with pytest.raises(TargetError, match="no way"):
        place.submit("")


def test_a_run_that_is_removed_while_runs_are_listed(place: Place) -> None:
    """The list goes on without it."""
    older, newer = place.submit("", name="older-1"), place.submit("", name="newer-1")
    older.wait()
    newer.wait()
    listed = iter(place.service.runs())
    assert next(listed).ref.name == "newer-1"
    shutil.rmtree(older.folder)
    assert list(listed) == []


WAITS = "import time, os\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)"


@pytest.mark.parametrize("end", ["goes on", "is killed", "is killed with its guard"])
@pytest.mark.slow_after(1)
def test_a_run_whose_folder_another_run_has(
    place: Place, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is taken as long as it lives. Where another run gets the folder all the same, from a machine that cannot
    see the processes, the first run is ended by nobody but itself and its guard, and neither touches the second run."""
    first = place.submit(WAITS)
    first.wait_for_line("up")
    supervisor, rank = first.ours("supervisor"), first.process_with("CLOUDTRAIN_RUN_NAME", "run-1")
    supervisor.suspend()
    shutil.rmtree(first.folder)
    with pytest.raises(NameTaken):
        place.send(first.plan)
    monkeypatch.setattr("cloudtrain.targets.local.service.is_folder_in_use", lambda _: False)
    second = place.send(first.plan)
    second.wait_for_line("up")
    if end == "is killed with its guard":
        first.ours("guard").kill()
    if end == "goes on":
        supervisor.resume()
    else:
        supervisor.kill()
    if end == "is killed with its guard":
        assert rank.is_running(), (
            "only a supervisor and a guard know which processes are of the removed run"
        )
        rank.kill()
    eventually(lambda: not (supervisor.is_running() or rank.is_running()), "the first run is over")
    assert second.status.state is RunState.RUNNING
    (second.folder / "code/go").touch()
    assert second.wait().state is RunState.SUCCEEDED
    assert second.nothing_is_left()


def test_a_run_whose_state_folder_is_removed(place: Place) -> None:
    """Nobody could find it or stop it any more: its processes end, and nothing is written where it was."""
    run = place.submit(TREE)
    run.wait_for_line("up")
    shutil.rmtree(place.root / "state")
    assert run.nothing_is_left()
    assert not (place.root / "state").exists()
