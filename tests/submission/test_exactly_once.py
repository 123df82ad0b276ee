"""No submission is lost or doubled: killed at every point and run again, exactly one job exists and is in the store."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain import api, backends
from cloudtrain._lock import ProcessLock
from cloudtrain.errors import TargetError
from cloudtrain.store.store import open_store, read_store
from tests.submission.later import a_minute_later

pytestmark = pytest.mark.lifecycle

CRASHING = str(Path(__file__).with_name("crashing.py"))
POINTS = 16


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that stands for the target."""
    folder = tmp_path / "service"
    folder.mkdir()
    monkeypatch.setenv("FAKE_SERVICE", str(folder))
    monkeypatch.setitem(backends.BUILT_IN, "local", "tests.fakes.file_backend:FileBackend")
    return folder


@pytest.fixture
def source(make_source: Callable[..., Path]) -> Path:
    """A source folder with one script."""
    return make_source({"train.py": "print(1)\n"})


@pytest.fixture
def job(source: Path) -> ct.TrainingJob:
    """The job that `crashing.py` submits."""
    return ct.TrainingJob(name="job", source_dir=str(source), entry_point="train.py")


def submit_dying_at(point: int, source: Path) -> subprocess.CompletedProcess[str]:
    """Submit in a process of its own that kills itself at that point."""
    command = [sys.executable, CRASHING, str(point), str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_points_are_all_known(service: Path, source: Path) -> None:
    """A submission passes exactly the points that the next test kills it at."""
    assert submit_dying_at(0, source).stderr.strip() == str(POINTS)


@pytest.mark.parametrize("point", range(1, POINTS + 1))
def test_killed_anywhere(
    point: int, service: Path, source: Path, job: ct.TrainingJob, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any point and submitted again, exactly one job exists and is in the store; and so it is with recover."""
    assert submit_dying_at(point, source).returncode == -signal.SIGKILL
    copies = {name: shutil.copytree(folder, f"{folder}-copy") for name, folder in _places(service, state_dir).items()}
    _submit_again(point, service, job, state_dir)
    for name, copy in copies.items():
        monkeypatch.setenv(name, str(copy))
    _recover(Path(copies["FAKE_SERVICE"]))


def _places(service: Path, state_dir: Path) -> dict[str, Path]:
    """Everything that a killed submission left, by the variable that names it."""
    return {"FAKE_SERVICE": service, "CLOUDTRAIN_STATE_DIR": state_dir}


def _submit_again(point: int, service: Path, job: ct.TrainingJob, state_dir: Path) -> None:
    """One job at the target, one row in the store, under the same name."""
    already_there = [path.name for path in service.iterdir()]
    run = ct.submit(job, "local")
    jobs = sorted(path.name for path in service.iterdir())
    if point == POINTS:  # the last point comes after the store was told that the submitter knows: a new run is meant
        assert len(jobs) == 2
        return
    assert jobs == [run.name]
    assert run.adopted == bool(already_there)
    with read_store(state_dir) as store:
        assert store is not None
        assert [(row.name, row.stage) for row in store.newest()] == [(run.name, "reported")]
        assert store.unfinished() == []
    assert list((state_dir / "submitting").iterdir()) == []


def _recover(service: Path) -> None:
    """The store holds exactly what is at the target, and what became of the submission is said; once."""
    reported = {found.name: found.outcome for found in api.recover()}
    at_target = {path.name for path in service.iterdir()}
    assert {run.name for run in ct.runs()} == at_target
    assert {name for name, outcome in reported.items() if outcome == "finished"} <= at_target
    assert not {name for name, outcome in reported.items() if outcome == "forgotten"} & at_target
    assert api.recover() == []


def test_an_unreachable_target_keeps_the_question_open(
    service: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the target cannot be asked, the submission is neither forgotten nor repeated; later it is settled."""
    points_after_creation = next(p for p in range(1, POINTS) if submit_dying_at(p, source) and any(service.iterdir()))
    assert points_after_creation
    monkeypatch.setenv("FAKE_UNREACHABLE", "1")
    (found,) = api.recover()
    assert found.outcome == "unknown"
    monkeypatch.delenv("FAKE_UNREACHABLE")
    (found,) = api.recover()
    assert found.outcome == "finished"
    assert [run.name for run in ct.runs()] == [path.name for path in service.iterdir()]


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
    assert [(found.name, found.outcome) for found in api.recover()] == [(interrupted, "unknown")]
    (service / interrupted).write_text("{}")
    assert [(found.name, found.outcome) for found in api.recover()] == [(interrupted, "finished")]
    assert [run.name for run in ct.runs()] == [interrupted]


def test_an_interrupted_request_is_sent_again_under_its_name(
    service: Path, interrupted: str, job: ct.TrainingJob, state_dir: Path
) -> None:
    """The next submit of the same plan; were the first request still on its way, the target would take one of them."""
    run = ct.submit(job, "local")
    assert (run.name, run.adopted) == (interrupted, False)
    assert [path.name for path in service.iterdir()] == [interrupted]
    with read_store(state_dir) as store:
        assert store is not None
        assert [(row.name, row.stage) for row in store.newest()] == [(interrupted, "reported")]
    assert ct.submit(job, "local").name != interrupted


def test_an_interrupted_request_that_never_arrives_is_forgotten(interrupted: str, state_dir: Path) -> None:
    """A minute later nothing is on its way any more."""
    a_minute_later(state_dir)
    assert [(found.name, found.outcome) for found in api.recover()] == [(interrupted, "forgotten")]
    assert api.recover() == ct.runs() == []


def test_a_name_that_an_earlier_run_has_is_passed_over(service: Path, job: ct.TrainingJob, state_dir: Path) -> None:
    """With an empty store the numbers begin again; a run of an hour ago is not taken for the one that is meant."""
    earlier = ct.submit(job, "local").name
    os.utime(service / earlier, (0, time.time() - 3600))
    shutil.rmtree(state_dir)
    run = ct.submit(job, "local")
    assert (earlier[-2:], run.name) == ("-1", earlier.removesuffix("-1") + "-2")
    assert sorted(path.name for path in service.iterdir()) == [earlier, run.name]
    assert [(known.name, known.adopted) for known in ct.runs()] == [(run.name, False)]


def test_a_run_that_was_reported_meanwhile_is_not_adopted(
    service: Path, source: Path, job: ct.TrainingJob, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its submitter was told after another one saw it waiting: two submits of one plan make two runs."""
    point = next(p for p in range(1, POINTS) if submit_dying_at(p, source) and any(service.iterdir()))
    assert point < POINTS
    name = next(service.iterdir()).name
    api.run(name)  # any command: from `sent` to `accepted`
    take, taken = ProcessLock.take, list[Path]()

    def slowly(path: Path) -> ProcessLock | None:
        taken.append(path)
        if len(taken) == 2:  # the first is recovery's, which leaves an accepted run alone
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
    assert ct.submit(bad, "local", ignore=["CT101"]).name


def test_ten_concurrent_submits_lose_nothing(service: Path, source: Path, state_dir: Path) -> None:
    """Ten processes submit the same job at once: ten jobs, ten rows, the numbers one to ten."""
    command = [sys.executable, CRASHING, "0", str(source)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(10)]
    outputs = [worker.communicate(timeout=120)[0].split() for worker in workers]
    names = sorted(name for name, _ in outputs)
    assert len(set(names)) == 10
    assert sorted(path.name for path in service.iterdir()) == names
    assert sorted(int(name.rsplit("-", 1)[1]) for name in names) == list(range(1, 11))
    with open_store(state_dir) as store:
        assert sorted(row.name for row in store.newest()) == names


def test_a_living_submitter_is_left_alone(service: Path, job: ct.TrainingJob, state_dir: Path) -> None:
    """Recovery does not touch a submission whose process is alive."""
    seen = []

    def look(plan: ct.Plan) -> None:
        seen.append(plan.run_name)

    with open_store(state_dir) as store:
        from cloudtrain.submission import _planned

        lock = store.reserve(_planned(ct.plan(job, "local"), "ab" * 32, "me@here", 1))
        assert lock is not None
        assert api.recover() == []
        assert len(store.unfinished()) == 1
        lock.release()
    assert [found.outcome for found in api.recover()] == ["forgotten"]
    ct.submit(job, "local", on_plan=look)
    assert len(seen) == 1


def test_names_differ_between_users(service: Path, job: ct.TrainingJob, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert os.path.isabs(data["request"]["run_dir"])  # noqa: PTH117
