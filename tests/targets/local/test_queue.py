"""The queue of this machine with real supervisors: what waits, what it gets, and what happens to it when things die.

GPUs are the ids of a setting: nothing here needs one.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil  # noqa: TID253 - tests may start slowly
import pytest

import cloudtrain as ct
from cloudtrain.errors import JobError, UsageError
from cloudtrain.plans.progress import RunStatus
from cloudtrain.plans.states import RunRef, RunState
from cloudtrain.targets.local.folder import RunFolder
from cloudtrain.targets.local.service import LocalService
from tests.deadlines import GRACE
from tests.targets.places import Place, Run, eventually

pytestmark = pytest.mark.lifecycle

HOLDS = """\
import os, time
print("got", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
"""

QUICK = """\
import os
print("got", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
"""


def queued(
    place: Place, name: str, script: str = QUICK, *, instances: int = 1, **settings: Any
) -> Run:
    """A run of `instances` processes that waits for its place."""
    given = {"slots": 1} | settings if "gpus" not in settings else settings
    target = ct.Local(**{"queue": True, "grace_period": GRACE, "instance_count": instances} | given)
    return place.submit(script, name=name, target=target)


def release(run: Run) -> None:
    """Let a script end that holds its place. A run that has just started may have no folder for its code yet."""
    eventually(lambda: (run.folder / "unpacked").exists(), "its code is unpacked")
    (run.folder / "code/go").touch()


def states(*runs: Run) -> list[str]:
    return [str(run.status.state) for run in runs]


def service(place: Place) -> LocalService:
    found = place.service
    assert isinstance(found, LocalService)
    return found


def test_one_after_the_other(place: Place) -> None:
    """A run waits as `queued`, with its place and what it waits for; nothing of it has started."""
    first, second, third = (
        queued(place, "run-1", HOLDS),
        queued(place, "run-2"),
        queued(place, "run-3"),
    )
    first.wait_for_line("got None")
    status = third.status
    assert (status.state, status.queue_place, status.started) == (RunState.QUEUED, 2, None)
    assert status.reason == "waits for 1 CPU slot of 1"
    # the supervisor, without guard and script
    assert [len(run.processes()) for run in (second, third)] == [1, 1]
    assert third.lines() == []
    release(first)
    ends = [run.wait() for run in (first, second, third)]
    assert [end.state for end in ends] == [RunState.SUCCEEDED] * 3
    assert [end.queue_place for end in ends] == [None] * 3
    assert ends[0].ended <= ends[1].started <= ends[1].ended <= ends[2].started  # type: ignore[operator]
    eventually(
        lambda: not list((place.root / "state/runs").glob("*/waiting")), "they leave nothing behind"
    )


def test_following_leads_through_the_queue(place: Place) -> None:
    """`logs -f` of a run that waits ends with the run, and has its lines."""
    first, second = queued(place, "run-1", HOLDS), queued(place, "run-2")
    seen = list[str]()

    def note(status: RunStatus) -> None:
        seen.append(str(status.state))
        release(first)

    lines = service(place).logs(second.ref, follow=True, on_status=note)
    assert [line.text for line in lines] == ["got None"]
    assert seen[0] == "queued"
    assert seen[-1] == "succeeded"


def test_each_run_sees_its_own_gpus(place: Place) -> None:
    """Ids are texts: indices, UUIDs and MIG names. A run of two instances gives each one its share."""
    gpus = "0,GPU-4f2a,MIG-11c7,3"
    one = queued(place, "one-1", HOLDS, gpus=gpus)
    two = queued(place, "two-1", HOLDS, gpus=gpus, instances=2)
    more = queued(place, "more-1", gpus=gpus, instances=2)
    one.wait_for_line("got 0")
    two.wait_for_line("got GPU-4f2a")
    two.wait_for_line("got MIG-11c7")
    assert sorted(two.texts()) == ["got GPU-4f2a", "got MIG-11c7"]
    assert (more.status.state, more.status.reason) == (
        RunState.QUEUED,
        f"waits for 2 GPUs of {gpus.replace(',', ', ')}",
    )
    release(one)
    assert more.wait().state is RunState.SUCCEEDED
    assert sorted(more.texts()) == ["got 0", "got 3"]
    release(two)
    two.wait()


def test_several_gpus_for_one_process(place: Place) -> None:
    """A plain script that asks for GPUs of an instance gets them."""
    target = ct.Local(queue=True, gpus="0,1,2")
    run = place.submit(
        QUICK, target=target, resources=ct.Resources(gpu="A100-40GB", gpus_per_instance=2)
    )
    run.wait()
    assert run.texts() == ["got 0,1"]


@pytest.mark.parametrize(("outer", "seen"), [("2,3", "2"), ("3", "3")])
def test_an_outer_mask_counts(place: Place, outer: str, seen: str) -> None:
    """What the submitter's CUDA_VISIBLE_DEVICES hides is not used."""
    place.environ["CUDA_VISIBLE_DEVICES"] = outer
    run = queued(place, "run-1", gpus="0,1,2,3")
    run.wait()
    assert run.texts() == [f"got {seen}"]


def test_a_job_with_a_mask_of_its_own(place: Place) -> None:
    """It waits for these GPUs, and finds its variable as it wrote it."""
    gpus = "0,1,2"
    first = queued(place, "run-1", HOLDS, gpus=gpus)
    first.wait_for_line("got 0")
    environment = ct.Environment(variables={"CUDA_VISIBLE_DEVICES": "0,2"})
    fixed = place.submit(
        QUICK, name="fixed-1", target=ct.Local(queue=True, gpus=gpus), environment=environment
    )
    assert fixed.status.state is RunState.QUEUED
    release(first)
    fixed.wait()
    assert fixed.texts() == ["got 0,2"]


@pytest.mark.slow
def test_runs_outside_of_the_queue_are_seen(place: Place) -> None:
    """A run that does not wait starts at once; the GPU that it takes is given to nobody."""
    gpus = "0,1"
    free = place.submit(HOLDS, name="free-1", target=ct.Local(gpus=gpus, grace_period=GRACE))
    free.wait_for_line("got 0,1")  # it sees both, and has one rank
    first, second = queued(place, "run-1", HOLDS, gpus=gpus), queued(place, "run-2", gpus=gpus)
    first.wait_for_line("got 1")
    assert second.status.state is RunState.QUEUED
    assert [(item.ref.name, item.has) for item in service(place).queue()][:2] == [
        ("free-1", "GPU 0"),
        ("run-1", "GPU 1"),
    ]
    release(free)
    second.wait()
    assert second.texts() == ["got 0"]
    release(first)
    assert first.wait().state is RunState.SUCCEEDED


def test_stop_while_it_waits(place: Place) -> None:
    """It ends as stopped, nothing was started, and those behind it move up."""
    first, second, third = (
        queued(place, "run-1", HOLDS),
        queued(place, "run-2"),
        queued(place, "run-3"),
    )
    service(place).stop(second.ref)
    status = second.wait()
    assert (status.state, status.started) == (RunState.STOPPED, None)
    assert status.reason == "stopped on request while it was queued; nothing had started"
    assert second.nothing_is_left()
    assert third.status.queue_place == 1
    release(first)
    assert third.wait().state is RunState.SUCCEEDED
    assert second.texts() == []


def test_drop(place: Place) -> None:
    """Ends a run that waits, and never one that has started."""
    first, second = queued(place, "run-1", HOLDS), queued(place, "run-2")
    service(place).drop(second.ref)
    assert second.wait().state is RunState.STOPPED
    for run, hint in ((first, "stop run-1"), (second, "lists the runs that wait")):
        with pytest.raises(UsageError, match="is not waiting") as caught:
            service(place).drop(run.ref)
        assert hint in str(caught.value.hint)
        assert caught.value.code == "CT940"
    release(first)
    assert first.wait().state is RunState.SUCCEEDED


def test_a_refused_change_settles_the_queue(place: Place) -> None:
    """What a dead run still holds becomes free, as with every change."""
    run = queued(place, "run-1")
    run.wait()
    table = place.root / "state/queue/table.json"
    dead = {"run": "dead-1", "gpus": [], "slots": 1, "since": 0.0}
    table.write_text(json.dumps({"waiting": [], "held": [dead], "dropped": []}))
    with pytest.raises(UsageError, match="is not waiting"):
        service(place).drop(run.ref)
    assert json.loads(table.read_text())["held"] == []


@pytest.mark.slow
def test_move(place: Place) -> None:
    """Runs start in the order that they were put into; a moved one keeps its place among other priorities."""
    order = (
        f"open({str(place.root / 'order')!r}, 'a').write(os.environ['CLOUDTRAIN_RUN_NAME'][0])\n"
    )
    first = queued(place, "x-1", HOLDS)
    first.wait_for_line("got None")
    runs = {name: queued(place, f"{name}-1", f"import os\n{order}") for name in "abcd"}
    urgent = queued(place, "u-1", f"import os\n{order}", priority=5)
    assert urgent.status.queue_place == 1
    queue = service(place)
    queue.move(runs["c"].ref)
    queue.move(runs["a"].ref, last=True)
    queue.move(runs["d"].ref, before=runs["b"].ref)
    assert [item.ref.name[0] for item in queue.queue()] == list("xcudba")
    with pytest.raises(UsageError, match="`x-1` is not waiting"):
        queue.move(runs["a"].ref, before=first.ref)
    release(first)
    for run in (*runs.values(), urgent):
        run.wait()
    assert (place.root / "order").read_text() == "cudba"


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        (
            {"slots": 2, "instance_count": 3},
            "3 CPU slots, but the queue of this machine has 2",
            "--instances 2`",
        ),
        (
            {"gpus": "0,1", "instance_count": 3},
            "need 3 GPUs, but this machine has 2: 0, 1",
            "leave `--queue` out",
        ),
    ],
)
def test_more_than_there_is(
    place: Place, settings: dict[str, Any], message: str, hint: str
) -> None:
    """Such a run would wait for ever: it is refused before it is queued, with what to type."""
    with pytest.raises(JobError, match=message) as caught:
        place.plan(QUICK, target=ct.Local(queue=True, **settings))
    assert hint in str(caught.value.hint)
    assert caught.value.code == "CT041"


def test_the_plan_says_what_it_waits_for(place: Place) -> None:
    """Which GPUs it will get is not known yet; the need stands in the request."""
    plan, _ = place.plan(
        QUICK, target=ct.Local(queue=True, priority=3, gpus="0,1", instance_count=2)
    )
    assert plan.request["queue"] == {"count": 2, "gpus": ["0", "1"], "priority": 3}
    assert [process.env["CUDA_VISIBLE_DEVICES"] for process in plan.processes] == [
        "${{gpus.0}}",
        "${{gpus.1}}",
    ]
    assert ("queue", "waits for 2 GPUs of 0, 1, priority 3") in plan.summary


@pytest.mark.parametrize("guards", [True, False], ids=["with its guard", "alone"])
def test_a_killed_supervisor_frees_its_place(place: Place, guards: bool) -> None:
    """The next run starts, nobody asks for it, and what the killed one had started is dead before."""
    first, second = queued(place, "run-1", HOLDS), queued(place, "run-2")
    first.wait_for_line("got None")
    if not guards:
        first.ours("guard").kill()
    first.ours("supervisor").kill()
    eventually(lambda: _state(second) == "succeeded", "the second one has its turn")
    assert first.nothing_is_left()
    assert first.status.state is RunState.LOST


def _state(run: Run) -> str:
    """As the supervisor wrote it: asking the service would mend what is to be seen."""
    status = RunFolder(str(run.folder)).read_status()
    return str(status["state"]) if status is not None else ""


@pytest.mark.slow
def test_killed_while_it_waits(place: Place) -> None:
    """It is lost, and says that it was queued; those behind it are not."""
    first = queued(place, "run-1", HOLDS)
    others = [queued(place, f"run-{number}") for number in range(2, 6)]
    first.wait_for_line("got None")
    for run in others[:3]:
        run.ours("supervisor").kill()
    eventually(
        lambda: all(_state(run) == "lost" for run in others[:3]),
        "who is behind sees that they are dead",
    )
    # each status is written before its place is given up
    eventually(
        lambda: [item.ref.name for item in service(place).queue()] == ["run-1", "run-5"],
        "they have left",
    )
    release(first)
    assert others[3].wait().state is RunState.SUCCEEDED
    for run in others[:3]:
        assert str(run.status.reason).endswith("was killed while the run was queued")


@pytest.mark.slow
def test_everything_killed_at_once(place: Place) -> None:
    """As after a power cut: the next run finds a queue in which nobody lives."""
    runs = [queued(place, f"run-{number}", HOLDS) for number in range(4)]
    pids = [run.ours("supervisor").pid for run in runs]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    later = queued(place, "later-1")
    assert later.wait().state is RunState.SUCCEEDED
    assert states(*runs) == ["lost"] * 4


def test_the_code_is_there_however_long_it_waits(place: Place) -> None:
    """`prune` removes archives after a day, and a run may wait longer."""
    first, second = queued(place, "run-1", HOLDS), queued(place, "run-2")
    first.wait_for_line("got None")  # it has its own code, from an archive that will be gone
    eventually(lambda: (second.folder / "unpacked").exists())
    for archive in (place.root / "state/bundles").rglob("*.tar.gz"):
        archive.unlink()
    release(first)
    assert second.wait().state is RunState.SUCCEEDED


def test_a_removed_table(place: Place) -> None:
    """Somebody has tidied up: who waits stands in the queue again as soon as something happens."""
    first, second = queued(place, "run-1", HOLDS), queued(place, "run-2")
    first.wait_for_line("got None")
    eventually(lambda: (second.folder / "unpacked").exists())
    (place.root / "state/queue/table.json").unlink()
    release(first)
    first.wait()
    assert second.wait().state is RunState.SUCCEEDED


@pytest.mark.slow
def test_waiting_supervisors_sleep(place: Place) -> None:
    """While others come, move and go, a supervisor that waits is not woken once. (The head looks around in a minute.)"""
    first, head, waits = (
        queued(place, "run-1", HOLDS),
        queued(place, "run-2"),
        queued(place, "run-3"),
    )
    eventually(lambda: (waits.folder / "unpacked").exists())
    supervisor = psutil.Process(waits.ours("supervisor").pid)
    switches = eventually(lambda: _settled(supervisor), "it sleeps")
    others = [queued(place, f"other-{number}") for number in range(4)]
    for run in others[:2]:
        service(place).move(run.ref, last=True)
        service(place).drop(run.ref)
        run.wait()
    assert supervisor.num_ctx_switches().voluntary == switches
    release(first)
    for run in (head, waits, *others[2:]):
        assert run.wait().state is RunState.SUCCEEDED


def _settled(process: psutil.Process) -> int:
    """How often it has waited for something, once that stays as it is and it sleeps: one that is ready to run, and gets
    no processor, does not count on either.
    """
    before, slept = process.num_ctx_switches().voluntary, process.status() == psutil.STATUS_SLEEPING
    time.sleep(0.5)
    sleeps = process.status() == psutil.STATUS_SLEEPING
    return before if slept and sleeps and process.num_ctx_switches().voluntary == before else 0


@pytest.mark.slow
def test_sixty_four_runs(place: Place) -> None:
    """All of them, one after the other and in their order, although the third supervisor is killed while it waits."""
    ended = place.root / "ended"
    script = (
        f"import os\nopen({str(ended)!r}, 'a').write(os.environ['CLOUDTRAIN_RUN_NAME'] + ' ')\n"
    )
    first = queued(place, "run-0", HOLDS)
    first.wait_for_line("got None")
    runs = [queued(place, f"run-{number}", script) for number in range(1, 64)]
    assert [run.status.queue_place for run in runs] == list(range(1, 64))
    runs[1].ours("supervisor").kill()  # the third of all
    release(first)
    assert runs[-1].wait().state is RunState.SUCCEEDED
    assert states(*runs) == ["succeeded", "lost", *["succeeded"] * 61]
    assert ended.read_text().split() == [f"run-{number}" for number in range(1, 64) if number != 2]
    times = [(run.status.started, run.status.ended) for run in runs if run is not runs[1]]
    assert times == sorted(times)  # type: ignore[type-var]
    table = place.root / "state/queue/table.json"
    eventually(
        lambda: json.loads(table.read_text()) == {"waiting": [], "held": [], "dropped": []},
        "all have left",
    )


def test_unknown_run(place: Place) -> None:
    """As everywhere: there is no such run."""
    from cloudtrain.errors import RunNotFound

    queued(place, "run-1").wait()
    ref: RunRef = place.submitted[0].ref
    other = RunRef(ref.target, ref.place, "nobody-1")
    with pytest.raises(RunNotFound):
        service(place).drop(other)
    with pytest.raises(RunNotFound):
        service(place).move(ref, before=other)
    assert Path(place.root / "state/queue").stat().st_mode & 0o077 == 0
