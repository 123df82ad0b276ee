"""Caps on spending are asked before each send: of a job again, of each trial, of two commands at once, and for a day."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.errors import TargetError, UsageError
from cloudtrain.lifecycle.runs.sweep import sweep_of
from cloudtrain.lifecycle.store.schema import open_store
from tests.deadlines import DEADLINE
from tests.fakes.sagemaker.server import FakeAws

pytestmark = [pytest.mark.lifecycle, pytest.mark.slow]

ROLE = "arn:aws:iam::123456789012:role/train"
CODE = "CT073"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAws]:
    """The account that this process and its drivers talk to."""
    with FakeAws() as service:
        for name, value in {**service.environ, "AWS_MAX_ATTEMPTS": "3"}.items():
            monkeypatch.setenv(name, value)
        yield service


@pytest.fixture
def job(make_source: Callable[..., Path]) -> ct.TrainingJob:
    """An hour for $1.41."""
    return ct.TrainingJob(
        name="j",
        source_dir=str(make_source({"train.py": "print(1)\n"})),
        entry_point="train.py",
        environment={"framework": "pytorch", "version": "2.10"},
        resources={"instance_type": {"sagemaker": "ml.g5.xlarge"}},
        max_runtime="1h",
    )


@pytest.fixture
def cap(clean_environment: Path) -> Callable[[str], None]:
    """Writes the person's own settings."""
    own = clean_environment / ".config/cloudtrain"
    own.mkdir(parents=True)

    def write(line: str) -> None:
        (own / "cloudtrain.toml").write_text(f"[sagemaker]\n{line}\n")

    return write


TARGET = ct.SageMaker(region="eu-west-1", role=ROLE)


def numbered(job: ct.TrainingJob, number: int) -> ct.TrainingJob:
    return job.replace(hyperparameters={"number": number})


def grid(job: ct.TrainingJob, size: int) -> ct.Sweep:
    return ct.Sweep(
        name="s",
        job=job.model_dump(exclude_unset=True),
        search={"n": {"choice": list(range(size))}},
        strategy="grid",
        parallel=1,
    )


def sent(fake: FakeAws) -> int:
    """How many jobs the service was asked for."""
    return len(fake.operations("CreateTrainingJob"))


def submit(job: Any) -> ct.Run:
    return ct.submit(job, TARGET, online=False)


def refused(do: Callable[[], object]) -> str:
    """What is said where nothing is sent."""
    with pytest.raises(UsageError) as error:
        do()
    assert error.value.code == CODE
    assert error.value.hint
    return error.value.message


def test_a_loop_ends_at_the_cap_of_the_day(fake: FakeAws, job: ct.TrainingJob, cap: Any) -> None:
    """A finished run counts with its bill, one that was removed as if it ran, one of yesterday not at all."""
    cap("max_cost_per_day = 5")
    runs = [submit(numbered(job, number)) for number in (1, 2, 3)]
    message = refused(lambda: submit(numbered(job, 4)))
    assert "up to $1.41" in message
    assert "$4.23 of the last 24 hours" in message
    assert sent(fake) == 3

    fake.jobs[runs[0].name].end("Completed", BillableTimeInSeconds=60)
    runs[0].remember(runs[0].status())
    submit(numbered(job, 4))
    assert sent(fake) == 4

    fake.jobs[runs[1].name].end("Failed", FailureReason="boom", BillableTimeInSeconds=3600)
    runs[1].remember(runs[1].status())
    runs[1].remove()
    refused(lambda: submit(numbered(job, 5)))

    with open_store(runs[0]._settings.state_dir) as store:
        store._db.execute("UPDATE outlays SET at = at - 86401")
    submit(numbered(job, 5))
    assert sent(fake) == 5


def test_a_price_of_the_project_lowers_no_bill(
    fake: FakeAws, job: ct.TrainingJob, cap: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run that has ended counts with its time at the price that the caps count."""
    project = tmp_path / "cheap"
    project.mkdir()
    (project / "cloudtrain.toml").write_text("")
    (project / "instances.toml").write_text('[sagemaker."ml.g5.xlarge"]\nprice = 0.0001\n')
    monkeypatch.chdir(project)
    cap("max_cost_per_day = 3")
    for number in (1, 2):
        run = submit(numbered(job, number))
        fake.jobs[run.name].end("Completed", BillableTimeInSeconds=3600)
        run.remember(run.status())
    refused(lambda: submit(numbered(job, 3)))


def test_a_day_above_its_cap(fake: FakeAws, job: ct.TrainingJob, cap: Any) -> None:
    """A cap that was lowered below what the day has taken asks for no negative number of trials."""
    cap("max_cost_per_day = 5")
    for number in (1, 2, 3):
        submit(numbered(job, number))
    cap("max_cost_per_day = 2")
    with pytest.raises(UsageError) as error:
        submit(grid(job.replace(max_runtime="30m"), 2))
    assert error.value.code == CODE
    assert "trials" not in str(error.value.hint)
    assert sent(fake) == 3


def test_a_warm_pool_counts_after_the_end(fake: FakeAws, job: ct.TrainingJob, cap: Any) -> None:
    """No bill of a job contains it."""
    cap("max_cost_per_day = 3")
    run = ct.submit(job, TARGET.replace(keep_alive="1h"), online=False)
    fake.jobs[run.name].end("Completed", BillableTimeInSeconds=60)
    run.remember(run.status())
    message = refused(lambda: submit(numbered(job, 2).replace(max_runtime="70m")))
    assert "$1.43 of the last 24 hours" in message


def test_a_run_again_asks_the_caps_of_today(fake: FakeAws, job: ct.TrainingJob, cap: Any) -> None:
    """With the request as it was, and with changes; those that the run was sent under hold no longer."""
    cap("max_cost = 2")
    run = submit(job)
    cap("max_cost = 1")
    assert "up to $1.41" in refused(run.rerun)
    with pytest.raises(ct.PreflightError, match="SM412"):
        run.rerun(["hyperparameters.x=1"], online=False)
    assert sent(fake) == 1
    cap("max_cost = 3")
    run.rerun(["max_runtime=2h"], online=False)
    assert sent(fake) == 2


def lost(fake: FakeAws, job: Any) -> None:
    """Submit without an answer: the request may arrive yet."""
    fake.faults.close_before("CreateTrainingJob", times=9)
    fake.faults.close_before("DescribeTrainingJob", times=9)
    with pytest.raises(TargetError):
        submit(job)
    fake.faults.clear()


SINCE: dict[str, Callable[[ct.TrainingJob], object]] = {
    "another run": lambda job: numbered(job, 1),
    "a longer run": lambda job: job.replace(max_runtime="2h"),
    "a sweep": lambda job: grid(job, 2),
}


@pytest.mark.parametrize("case", SINCE)
def test_a_request_that_is_sent_again_asks_too(
    fake: FakeAws, job: ct.TrainingJob, cap: Any, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent since counts, and its first request does not; that may arrive yet, so it is not forgotten."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    fake.faults.close_before("CreateTrainingJob", times=1)
    with pytest.raises(TargetError):
        submit(job)
    since = submit(SINCE[case](job))
    cap("max_cost_per_day = 2")
    assert "of the last 24 hours" in refused(lambda: submit(job))
    (still_open,) = ct.recover()
    assert still_open.outcome == "unknown"

    cap("max_cost_per_day = 4.3")
    assert submit(job).name == still_open.name
    since.stop()


LATER_TABLES = ("outlays", "notifying", "outbox", "deliveries", "revisions", "annotations", "plans")
"""Those of the versions since the one before caps."""


def of_an_earlier_version(run: ct.Run, **columns: Any) -> None:
    """Leave the store as the version before caps had it."""
    with open_store(run._settings.state_dir) as store:
        db = store._db
        found = db.execute("SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'view')")
        for kind, name in found.fetchall():
            db.execute(f"DROP {kind} {name}")
        for table in LATER_TABLES:
            db.execute(f"DROP TABLE {table}")
        db.execute("DROP INDEX runs_by_revision")
        for column in ("main", "revision"):
            db.execute(f"ALTER TABLE runs DROP COLUMN {column}")
        db.execute("PRAGMA user_version = 7")
        for name, value in columns.items():
            store._db.execute(f"UPDATE runs SET {name} = ?", (value,))


def test_runs_of_an_earlier_version_count(fake: FakeAws, job: ct.TrainingJob, cap: Any) -> None:
    """A day at their price until their bill is known; those of yesterday no longer."""
    run = submit(job)
    of_an_earlier_version(run)
    cap("max_cost_per_day = 30")
    assert "$33.84 of the last 24 hours" in refused(lambda: submit(numbered(job, 1)))
    fake.jobs[run.name].end("Completed", BillableTimeInSeconds=60)
    run.remember(run.status())
    submit(numbered(job, 1))

    of_an_earlier_version(run, created=1.0, state="failed")
    submit(numbered(job, 2))


@pytest.mark.parametrize("key", ["sweep:1", "tuner:1"])
def test_a_sweep_of_an_earlier_version_counts(
    fake: FakeAws, job: ct.TrainingJob, cap: Any, key: str
) -> None:
    """What it can still start is not known, so nothing is sent until it has ended."""
    run = submit(job)
    of_an_earlier_version(run, key=key, created=1.0, state="running")
    cap("max_cost_per_day = 1000")
    if key == "tuner:1":
        with open_store(run._settings.state_dir) as store:
            store._db.execute("UPDATE outlays SET at = 1e12")
    assert "is not known" in refused(lambda: submit(numbered(job, 1)))
    with open_store(run._settings.state_dir) as store:
        store._db.execute("UPDATE runs SET state = 'stopped'")
        store._db.execute("UPDATE outlays SET at = 1")
    submit(numbered(job, 1))


def test_a_run_without_a_price_counts(fake: FakeAws, job: ct.TrainingJob, cap: Any) -> None:
    """Sent without a cap, it leaves the day unknown until its bill is there."""
    dear = job.replace(resources={"instance_type": {"sagemaker": "ml.p5e.48xlarge"}})
    run = submit(dear)
    cap("max_cost_per_day = 1000")
    assert "is not known" in refused(lambda: submit(job))
    assert sent(fake) == 1
    with open_store(run._settings.state_dir) as store:
        store._db.execute("UPDATE outlays SET at = at - 86401")
    submit(job)


def test_two_commands_at_once_share_the_day(fake: FakeAws, job: ct.TrainingJob, cap: Any) -> None:
    """One transaction asks and takes, so exactly as many are sent as are paid for."""
    cap("max_cost_per_day = 3")

    def attempt(number: int) -> bool:
        try:
            submit(numbered(job, number))
        except UsageError as error:
            return error.code != CODE
        return True

    submit(numbered(job, 0))
    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(attempt, range(1, 5))) == 1
    assert sent(fake) == 2


def test_a_sweep_sets_its_trials_aside(fake: FakeAws, job: ct.TrainingJob, cap: Any) -> None:
    """They count once, whether started or not; more of them are asked for."""
    cap("max_cost_per_day = 5")
    fake.jobs.on_create = lambda new: new.end("Completed", BillableTimeInSeconds=3600)
    sweep = grid(job, 5)
    with pytest.raises(ct.PreflightError, match=r"7\.05"):
        submit(sweep)
    run = sweep_of(submit(sweep.replace(trials=3)))
    assert run.wait(DEADLINE).state is ct.RunState.SUCCEEDED
    assert sent(fake) == 3
    assert "$4.23 of the last 24 hours" in refused(lambda: run.resume(2))
    refused(lambda: submit(job))
    cap("max_cost_per_day = 6")
    run.resume(1)
    assert run.wait(DEADLINE).state is ct.RunState.SUCCEEDED
    assert sent(fake) == 4


def test_a_run_that_waits_counts(fake: FakeAws, job: ct.TrainingJob, cap: Any) -> None:
    """Until it is sent, however long that takes."""
    cap("max_cost_per_day = 3")
    first = submit(job)
    after = numbered(job, 2).replace(inputs={"model": {"sagemaker": f"run:{first.name}/model"}})
    run = submit(after)
    assert run.waits
    assert sent(fake) == 1
    with open_store(first._settings.state_dir) as store:
        store._db.execute("UPDATE outlays SET at = 0")
    assert "$1.41 of the last 24 hours" in refused(
        lambda: submit(numbered(job, 3).replace(max_runtime="2h"))
    )
    run.stop()


def test_trials_ask_too(fake: FakeAws, job: ct.TrainingJob, cap: Any) -> None:
    """The driver sends none for which neither its sweep nor the day has money left, and says why."""
    cap("max_cost_per_day = 5")
    run = sweep_of(submit(grid(job, 2)))
    first = f"{run.name}-t001"
    end = time.monotonic() + DEADLINE
    while not run.trials() or not run.trials()[0].run:
        assert time.monotonic() < end
        time.sleep(0.05)
    with open_store(run._settings.state_dir) as store:
        store._db.execute("UPDATE outlays SET most = 5 WHERE name = ?", (first,))
        store._db.execute("UPDATE outlays SET most = 1 WHERE name = ?", (run.name,))
    fake.jobs[first].end("Failed", FailureReason="boom")
    run.wait(DEADLINE)
    assert sent(fake) == 1
    assert "your cap for 24 hours is $5.00" in (run.trials()[1].reason or "")
