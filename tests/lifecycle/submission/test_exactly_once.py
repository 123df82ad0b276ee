"""No submission is lost or doubled: killed at every point and run again, exactly one job exists and is in the store."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.errors import TargetError
from cloudtrain.lifecycle.store.schema import open_store, read_store
from cloudtrain.system import plugins as targets
from cloudtrain.system.files import STORE_FILE
from cloudtrain.system.processes import ProcessLock
from tests.deadlines import DEADLINE
from tests.fakes.file_target import FileTarget
from tests.lifecycle.store.records import record
from tests.lifecycle.submission.forking import Submitter, start_submitter
from tests.lifecycle.submission.kill_points import kill_points
from tests.lifecycle.submission.later import a_minute_later, later

pytestmark = pytest.mark.lifecycle

CRASHING = Path(__file__).with_name("crashing.py")
POINTS = 20


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that stands for the target."""
    folder = tmp_path / "service"
    folder.mkdir()
    monkeypatch.setenv("FAKE_SERVICE", str(folder))
    monkeypatch.setitem(targets.LOADED, "local", FileTarget())
    return folder


@pytest.fixture
def source(make_source: Callable[..., Path]) -> Path:
    """A source folder with one script."""
    return make_source({"train.py": "print(1)\n"})


@pytest.fixture
def job(source: Path) -> ct.TrainingJob:
    """The job that `crashing.py` submits."""
    return ct.TrainingJob(name="job", source_dir=str(source), entry_point="train.py")


@pytest.fixture(scope="module")
def submitter() -> Iterator[Submitter]:
    """The process that forks submitters."""
    with start_submitter(CRASHING) as found:
        yield found


@pytest.fixture
def submit_dying_at(submitter: Submitter, source: Path) -> Callable[..., dict[str, Any]]:
    """Submit in a process that kills itself at that point."""
    return lambda point, name="job": submitter.submit(point=point, source=str(source), name=name)


Dying = Callable[..., dict[str, Any]]


def test_the_points_are_all_known(service: Path, submit_dying_at: Dying) -> None:
    """A submission passes exactly the points that the next test kills it at."""
    assert submit_dying_at(0)["points"] == POINTS


@pytest.mark.parametrize("point", kill_points(POINTS))
def test_killed_anywhere_and_submitted_again(
    point: int, service: Path, job: ct.TrainingJob, state_dir: Path, submit_dying_at: Dying
) -> None:
    """Exactly one job exists and is in the store, and the user was told its name."""
    died = submit_dying_at(point)
    assert died["ended"] == -signal.SIGKILL
    _submit_again(died["told"].split()[:1], service, job, state_dir)


@pytest.mark.parametrize("point", kill_points(POINTS))
def test_killed_anywhere_and_recovered(point: int, service: Path, submit_dying_at: Dying) -> None:
    """The store holds exactly what is at the target, and the user was told of it."""
    died = submit_dying_at(point)
    assert died["ended"] == -signal.SIGKILL
    _recover(died["told"].split()[:1], service)


def _submit_again(told: list[str], service: Path, job: ct.TrainingJob, state_dir: Path) -> None:
    """One job at the target, one row in the store, under the same name."""
    already_there = [path.name for path in service.iterdir()]
    was_noted = any(stage == "reported" for _, stage in _rows(state_dir))
    run = ct.submit(job, "local")
    jobs = sorted(path.name for path in service.iterdir())
    if was_noted:  # the store knows that the user was told: a new run is meant
        assert told == already_there
        assert jobs == sorted([*told, run.name])
        return
    assert jobs == [run.name]
    assert run.adopted == bool(already_there)
    assert _rows(state_dir) == [(run.name, "reported")]
    assert list((state_dir / "submitting").iterdir()) == []


def _rows(state_dir: Path) -> list[tuple[str, str]]:
    """Name and stage of every submission in the store."""
    with read_store(state_dir) as store:
        return [(record.name, record.stage) for record in store.newest()]


def _recover(told: list[str], service: Path) -> None:
    """The store holds exactly what is at the target, and what became of the submission is said; once."""
    reported = {found.name: found.outcome for found in ct.recover()}
    at_target = {path.name for path in service.iterdir()}
    assert at_target <= {*reported, *told}
    assert {run.name for run in ct.runs()} == at_target
    assert {name for name, outcome in reported.items() if outcome == "finished"} <= at_target
    assert not {name for name, outcome in reported.items() if outcome == "forgotten"} & at_target
    assert ct.recover() == []


@pytest.mark.slow
def test_an_unreachable_target_keeps_the_question_open(
    service: Path, died_with: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the target cannot be asked, the submission is neither forgotten nor repeated; later it is settled."""
    monkeypatch.setenv("FAKE_UNREACHABLE", "1")
    (found,) = ct.recover()
    assert found.outcome == "unknown"
    monkeypatch.delenv("FAKE_UNREACHABLE")
    (found,) = ct.recover()
    assert found.outcome == "finished"
    assert [run.name for run in ct.runs()] == [path.name for path in service.iterdir()]


@pytest.fixture
def died_with(service: Path, submit_dying_at: Dying) -> str:
    """The name of the run of a submitter that died as soon as the target had it."""
    point = next(
        point for point in range(1, POINTS) if submit_dying_at(point) and any(service.iterdir())
    )
    assert point < POINTS
    return next(service.iterdir()).name


@pytest.fixture
def interrupted(service: Path, job: ct.TrainingJob, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a run whose request had left when its submitter was interrupted."""
    monkeypatch.setenv("FAKE_IN_FLIGHT", "60")
    with monkeypatch.context() as meanwhile:
        meanwhile.setenv("FAKE_INTERRUPTED", "1")
        with pytest.raises(KeyboardInterrupt):
            ct.submit(job, "local")
    return ct.plan(job, "local").run_name.removesuffix("-2") + "-1"


def test_an_interrupted_request_that_arrives_late_is_found(service: Path, interrupted: str) -> None:
    """That the target does not have it yet settles nothing: it is asked again, and then the run is there."""
    assert [(found.name, found.outcome) for found in ct.recover()] == [(interrupted, "unknown")]
    (service / interrupted).write_text("{}")
    assert [(found.name, found.outcome) for found in ct.recover()] == [(interrupted, "finished")]
    assert [run.name for run in ct.runs()] == [interrupted]


def test_an_interrupted_request_is_sent_again_under_its_name(
    service: Path, interrupted: str, job: ct.TrainingJob, state_dir: Path
) -> None:
    """The next submit of the same plan; were the first request still on its way, the target would take one of them."""
    run = ct.submit(job, "local")
    assert (run.name, run.adopted) == (interrupted, False)
    assert [path.name for path in service.iterdir()] == [interrupted]
    with read_store(state_dir) as store:
        assert [(row.name, row.stage) for row in store.newest()] == [(interrupted, "reported")]
    assert ct.submit(job, "local").name != interrupted


def test_an_interrupted_request_that_never_arrives_is_forgotten(
    interrupted: str, state_dir: Path
) -> None:
    """A minute later nothing is on its way any more."""
    a_minute_later(state_dir)
    assert [(found.name, found.outcome) for found in ct.recover()] == [(interrupted, "forgotten")]
    assert ct.recover() == ct.runs() == []


@pytest.mark.parametrize(
    "lose", [shutil.rmtree, lambda folder: (folder / STORE_FILE).write_bytes(b"")]
)
def test_with_the_store_lost_an_earlier_run_is_not_taken_for_the_new_one(
    lose: Callable[[Path], object], service: Path, job: ct.TrainingJob, state_dir: Path
) -> None:
    """Whatever name the next run has, it is another run, and the plan names it beforehand."""
    earlier = [ct.submit(job, "local").name, ct.submit(job, "local").name]
    lose(state_dir)
    planned = ct.plan(job, "local").run_name
    run = ct.submit(job, "local")
    assert sorted(path.name for path in service.iterdir()) == sorted([*earlier, run.name])
    assert [(known.name, known.adopted) for known in ct.runs()] == [(run.name, False)]
    assert run.name == planned or planned in earlier  # only the target knows that the name is taken


def test_a_job_of_another_name_is_another_run(
    service: Path, source: Path, submit_dying_at: Dying
) -> None:
    """A submit that died at any point says nothing about a job that differs in its name alone."""
    for point in (8, 12, 14, 16):
        died = submit_dying_at(point, f"a{point}")
        run = ct.submit(
            ct.TrainingJob(name=f"b{point}", source_dir=str(source), entry_point="train.py"),
            "local",
        )
        assert (died["ended"], run.name.split("-")[0], run.adopted) == (
            -signal.SIGKILL,
            f"b{point}",
            False,
        )
        assert (service / run.name).exists()


def test_two_state_folders_give_two_names(
    service: Path, job: ct.TrainingJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One user, one host, one job: each folder has its run, under the name that its plan shows."""
    names = []
    for folder in ("one", "two"):
        monkeypatch.setenv("CLOUDTRAIN_STATE_DIR", str(tmp_path / folder))
        planned = ct.plan(job, "local").run_name
        names.append(ct.submit(job, "local").name)
        assert names[-1] == planned
    assert sorted(path.name for path in service.iterdir()) == sorted(set(names))
    assert len(set(names)) == 2


@pytest.mark.slow
def test_a_copied_store_is_another_store(
    service: Path,
    died_with: str,
    job: ct.TrainingJob,
    state_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It lists the runs that it brings along, and offers none of them as its own: it gives other names."""
    shutil.copytree(state_dir, tmp_path / "copy")
    monkeypatch.setenv("CLOUDTRAIN_STATE_DIR", str(tmp_path / "copy"))
    run = ct.submit(job, "local")
    assert (run.adopted, run.name == died_with) == (False, False)
    assert {known.name for known in ct.runs()} == {died_with, run.name}
    monkeypatch.setenv("CLOUDTRAIN_STATE_DIR", str(state_dir))
    assert (ct.submit(job, "local").name, len(list(service.iterdir()))) == (died_with, 2)


@pytest.mark.slow
def test_an_untold_run_of_yesterday_is_named_and_another_one_starts(
    service: Path, died_with: str, job: ct.TrainingJob, state_dir: Path
) -> None:
    """After a day a submit means a new run; the user is told of the one that no command reported."""
    ct.run(died_with)  # any command: from `sent` to `accepted`
    later(state_dir, seconds=25 * 3600)
    run = ct.submit(job, "local")
    assert (run.adopted, run.unreported) == (False, (died_with,))
    assert ct.submit(job, "local").unreported == ()


@pytest.mark.slow
def test_an_untold_run_of_yesterday_is_named_by_the_first_submit_that_succeeds(
    service: Path,
    died_with: str,
    job: ct.TrainingJob,
    state_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A submit that the target refuses has told its user of no run, so that the next one names it."""
    ct.run(died_with)  # any command: from `sent` to `accepted`
    later(state_dir, seconds=25 * 3600)
    monkeypatch.setenv("FAKE_REFUSES", "1")
    with pytest.raises(TargetError, match="refuses"):
        ct.submit(job, "local")
    monkeypatch.delenv("FAKE_REFUSES")
    assert ct.submit(job, "local").unreported == (died_with,)


@pytest.mark.slow
def test_a_run_that_was_reported_meanwhile_is_not_adopted(
    service: Path,
    died_with: str,
    job: ct.TrainingJob,
    state_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its submitter was told after another one saw it waiting: two submits of one plan make two runs."""
    name = died_with
    ct.run(name)  # any command: from `sent` to `accepted`
    take, taken = ProcessLock.take, list[Path]()

    def slowly(path: Path) -> ProcessLock | None:
        taken.append(path)
        if len(taken) == 1:
            with open_store(state_dir) as other:
                other.advance(name, "reported")
        return take(path)

    monkeypatch.setattr(ProcessLock, "take", slowly)
    run = ct.submit(job, "local")
    assert not run.adopted
    assert len(list(service.iterdir())) == 2


def test_the_request_sent_is_the_one_planned(service: Path, job: ct.TrainingJob) -> None:
    """The bytes that the target received are the plan's, under the name that the plan showed."""
    plan = ct.plan(job, "local")
    run = ct.submit(job, "local")
    assert run.name == plan.run_name
    assert (service / run.name).read_text() == plan.request_json


def test_the_next_run_of_the_same_plan_counts_on(service: Path, job: ct.TrainingJob) -> None:
    """Submitting again on purpose makes a second run, and the plan names it beforehand."""
    first = ct.submit(job, "local")
    planned = ct.plan(job, "local").run_name
    second = ct.submit(job, "local")
    assert (first.name[-2:], second.name[-2:]) == ("-1", "-2")
    assert second.name == planned
    assert not second.adopted


def test_a_refused_submission_leaves_nothing(
    service: Path, job: ct.TrainingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the target refuses, the name is free again and the store is as before."""
    monkeypatch.setenv("FAKE_REFUSES", "1")
    with pytest.raises(TargetError, match="refuses"):
        ct.submit(job, "local")
    assert ct.runs() == []
    monkeypatch.delenv("FAKE_REFUSES")
    assert ct.submit(job, "local").name.endswith("-1")


def test_failed_checks_send_nothing(service: Path, source: Path) -> None:
    """A finding that is an error stops the submit before anything is written or uploaded."""
    bad = ct.TrainingJob(name="job", source_dir=str(source), entry_point="nope.py")
    with pytest.raises(ct.PreflightError) as caught:
        ct.submit(bad, "local")
    assert [finding.code for finding in caught.value.findings] == ["CT101"]
    assert list(service.iterdir()) == []
    assert ct.runs() == []


@pytest.mark.slow
def test_concurrent_submits_lose_nothing(service: Path, source: Path, state_dir: Path) -> None:
    """Twenty processes submit the same job under two names at once: twenty jobs, twenty rows, one to ten of each."""
    command = [sys.executable, str(CRASHING), str(source), *("a", "b") * 10]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=DEADLINE)
    names = sorted(line.split()[0] for line in done.stdout.splitlines())
    assert len(set(names)) == 20
    assert sorted(path.name for path in service.iterdir()) == names
    for job_name in ("a", "b"):
        numbers = [int(name.rsplit("-", 1)[1]) for name in names if name.startswith(f"{job_name}-")]
        assert sorted(numbers) == list(range(1, 11))
    assert sorted(name for name, _ in _rows(state_dir)) == names


def test_a_living_submitter_is_left_alone(
    service: Path, job: ct.TrainingJob, state_dir: Path
) -> None:
    """Recovery does not touch a submission whose process is alive."""
    seen = []

    def look(plan: ct.Plan) -> None:
        seen.append(plan.run_name)

    with open_store(state_dir) as store:
        lock = store.reserve(record("job-1-1"))
        assert lock is not None
        assert ct.recover() == []
        assert len(store.unfinished()) == 1
        lock.release()
    assert [found.outcome for found in ct.recover()] == ["forgotten"]
    ct.submit(job, "local", on_plan=look)
    assert len(seen) == 1


def test_names_differ_between_users(
    service: Path, job: ct.TrainingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same plan of another user has another name, so that two stores never make the same one."""
    monkeypatch.setenv("LOGNAME", "ada")
    one = ct.plan(job, "local").run_name
    monkeypatch.setenv("LOGNAME", "grace")
    assert ct.plan(job, "local").run_name != one


def test_the_plan_is_json_to_the_end(service: Path, job: ct.TrainingJob) -> None:
    """`to_json` holds the whole plan, and its request is the canonical one."""
    plan = ct.plan(job, "local")
    data = json.loads(plan.to_json())
    assert data["request"] == plan.request
    assert data["sha256"] == plan.sha256
    assert os.path.isabs(data["request"]["run_dir"])
