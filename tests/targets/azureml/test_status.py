"""Where a job is: every word of the service, reasons, times, phases and money; stop and list."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cloudtrain.errors import RunNotFound, TargetError
from cloudtrain.machines.table import instance_named
from cloudtrain.plans.states import RunRef, RunState
from cloudtrain.targets.azureml.service.service import AzureMLService
from cloudtrain.targets.azureml.service.status import STATES, seconds, state_of
from tests.fakes.azureml import FakeAzure
from tests.fakes.azureml.job import STATES as SERVICE
from tests.fakes.azureml.job import Job
from tests.targets.azureml.conftest import NAME, PLACE, REF, WORKSPACE, plan_of

pytestmark = pytest.mark.lifecycle

TYPE = "Standard_ND96isr_H200_v5"
"""A type without a list price."""


def price_of(name: str) -> float:
    found = instance_named("azureml", name)
    assert found is not None
    assert found.price is not None
    return found.price


def test_every_state_is_mapped() -> None:
    """All thirteen, and none that does not exist."""
    assert set(STATES) == set(SERVICE)
    assert len(STATES) == 13


def test_words_of_a_newer_service() -> None:
    """They mean that the job goes on, never that it ended."""
    assert state_of("Pondering") is RunState.RUNNING


@pytest.mark.parametrize("word", SERVICE)
def test_each_state(service: AzureMLService, job: Job, word: str) -> None:
    """What the service says is what the table says, and `status` and `runs` agree."""
    job.enter(word)
    assert service.status(REF).state is STATES[word]
    assert next(service.runs(PLACE)).status.state is STATES[word]


PHASES = [
    ("Provisioning", "preparing"),
    ("Preparing", "preparing"),
    ("Running", "running"),
    ("Finalizing", "running"),
]


def test_the_life_of_a_job(service: AzureMLService, job: Job) -> None:
    """Made, begun and ended; the phases are the wait, the work and the end."""
    job.created = 1_700_000_000.0
    assert [item.phase for item in service.status(REF).transitions] == ["Starting"]
    for phase, state in PHASES:
        job.enter(phase, at=1_700_000_060.5)
        assert service.status(REF).state.value == state
    assert [(item.phase, item.ended) for item in service.status(REF).transitions] == [
        ("Queued", 1_700_000_060.5), ("Finalizing", None),
    ]  # fmt: skip
    job.end("Completed", at=1_700_003_660.25)
    status = service.status(REF)
    assert (status.created, status.started, status.ended) == (
        1_700_000_000.0,
        1_700_000_060.5,
        1_700_003_660.25,
    )
    assert [(item.phase, item.started) for item in status.transitions] == [
        ("Queued", 1_700_000_000.0), ("Running", 1_700_000_060.5), ("Completed", 1_700_003_660.25),
    ]  # fmt: skip
    assert status.reason is None


@pytest.mark.parametrize("text", [
    "2026-11-21T05:45:03.1234567Z", "2026-11-21T05:45:03.1234567+00:00", "2026-11-21T06:45:03.1234567+0100",
    "2026-11-21T05:45:03.1234567",
])  # fmt: skip
def test_times(text: str) -> None:
    """In all forms that the services write; without a zone it is UTC."""
    assert seconds(text) == pytest.approx(1795239903.1234567, abs=1e-6)


def test_no_time() -> None:
    """Is None, never the year one."""
    assert seconds(None) is None
    assert seconds("soon") is None


@pytest.mark.parametrize(
    ("word", "part"), [("Paused", "resumed"), ("NotResponding", "no sign of life")]
)
def test_states_that_need_a_word(service: AzureMLService, job: Job, word: str, part: str) -> None:
    """Neither has ended; the reason says what it means."""
    job.enter(word)
    status = service.status(REF)
    assert not status.state.is_final
    assert part in (status.reason or "")


def test_what_a_job_waits_for(service: AzureMLService, job: Job) -> None:
    """The service's last warning, in one line."""
    job.warnings += ["old", "There is not enough\n quota for 48 cores."]
    assert service.status(REF).reason == "There is not enough quota for 48 cores."


def test_a_failure(service: AzureMLService, job: Job) -> None:
    """One line, the exit code, and the lines that explain it."""
    job.enter("Running")
    traceback = (
        'Traceback (most recent call last):\n  File "train.py", line 3\nValueError: bad thing'
    )
    job.end(
        "Failed",
        error=f"Execution failed. User process 'python' exited with status code 1. Error: {traceback}",
    )
    status = service.status(REF)
    assert status.state is RunState.FAILED
    assert status.reason == "the script failed with exit code 1: ValueError: bad thing"
    assert status.exit_code == 1
    assert status.details[-1] == "ValueError: bad thing"


def test_the_last_lines_of_a_failed_job(fake: FakeAzure, service: AzureMLService, job: Job) -> None:
    """What the rank that failed wrote is added to a reason that says little."""
    job.enter("Running")
    fake.logs.write(NAME, "user_logs/std_log_process_0.txt", "fine")
    fake.logs.write(
        NAME,
        "user_logs/std_log_process_1.txt",
        "Traceback (most recent call last):",
        "KeyError: 'x'",
    )
    job.end(
        "Failed",
        error="AzureMLCompute job failed.\nJobFailed: Submitted script failed with a non-zero exit code",
    )
    status = service.status(REF)
    assert "KeyError: 'x'" in (status.reason or "")
    assert status.failed_rank == 1


def test_out_of_time(service: AzureMLService, job: Job) -> None:
    """A job that was ended after as long as it may run says which limit it was; one that was stopped does not."""
    job.enter("Running", at=1_700_000_000.0)
    job.end("Canceled", at=1_700_003_600.0)
    assert service.status(REF).reason == "it reached `max_runtime` (1h)"
    job.ended = 1_700_003_000.0
    assert service.status(REF).reason is None


def test_cost_of_a_serverless_job(service: AzureMLService, job: Job) -> None:
    """Seconds of running times instances times the list price."""
    job.enter("Running", at=1_700_000_000.0)
    job.end("Completed", at=1_700_001_800.0)
    status = service.status(REF)
    assert status.billable_seconds == 1800
    assert status.cost == pytest.approx(2 * price_of("Standard_NC24ads_A100_v4") / 2)


def test_the_meter_stands_still_while_a_job_waits(
    fake: FakeAzure, service: AzureMLService, job: Job
) -> None:
    """It starts when the job runs, and runs on until the job ends."""
    assert service.status(REF).billable_seconds is None
    job.enter("Running", at=time.time() - 3600)
    status = service.status(REF)
    assert status.billable_seconds == pytest.approx(3600, abs=60)
    assert status.cost is not None


@pytest.mark.parametrize(("priority", "factor"), [("dedicated", 1), ("low_priority", None)])
def test_cost_on_a_cluster(
    fake: FakeAzure, service: AzureMLService, priority: str, factor: int | None
) -> None:
    """The cluster says which machines; it is asked once. What spare capacity costs stands in no list."""
    fake.computes.add("gpu", "STANDARD_NC24ADS_A100_V4", priority=priority)
    service.submit(plan_of(computeId=f"{WORKSPACE}/computes/gpu", resources={"instanceCount": 3}))
    fake.jobs[NAME].enter("Running", at=1_700_000_000.0)
    fake.jobs[NAME].end("Completed", at=1_700_003_600.0)
    costs = {service.status(REF).cost for _ in range(2)}
    assert costs == {3 * price_of("Standard_NC24ads_A100_v4") * factor if factor else None}
    assert len(fake.received("GET", "/computes/gpu")) == 1


def test_cost_of_spot(fake: FakeAzure, service: AzureMLService) -> None:
    """None: nobody lists it."""
    service.submit(plan_of(queueSettings={"jobTier": "Spot"}))
    fake.jobs[NAME].enter("Running")
    assert service.status(REF).cost is None


def test_cost_of_an_unknown_type(fake: FakeAzure, service: AzureMLService) -> None:
    """None, never zero."""
    service.submit(plan_of(resources={"instanceCount": 2, "instanceType": "Standard_New1"}))
    fake.jobs[NAME].enter("Running")
    assert service.status(REF).cost is None


@pytest.mark.parametrize("written", [TYPE, TYPE.upper()])
def test_cost_at_a_price_of_the_users_own(
    clean_environment: Path, fake: FakeAzure, service: AzureMLService, written: str
) -> None:
    """That of `instances.toml`, as in the plan: also for a type that the catalogue has no price of."""
    (clean_environment / "instances.toml").write_text(f"[azureml.{TYPE}]\nprice = 84.8\n")
    service.submit(plan_of(resources={"instanceCount": 2, "instanceType": written}))
    fake.jobs[NAME].enter("Running", at=1_700_000_000.0)
    fake.jobs[NAME].end("Completed", at=1_700_001_800.0)
    assert service.status(REF).cost == pytest.approx(84.8)


def test_a_cluster_that_is_gone(fake: FakeAzure, service: AzureMLService) -> None:
    """Its jobs have a status all the same."""
    fake.computes.add("gpu", "Standard_NC24ads_A100_v4")
    service.submit(plan_of(computeId=f"{WORKSPACE}/computes/gpu", resources={"instanceCount": 3}))
    fake.jobs[NAME].enter("Running")
    fake.faults.forbid("GET", "/computes/gpu", times=9)
    status = service.status(REF)
    assert (status.state, status.cost) == (RunState.RUNNING, None)


def test_who_may_not_read_run_history(fake: FakeAzure, service: AzureMLService, job: Job) -> None:
    """Gets the state without times; a run that history has not got yet is the same."""
    for fault in (lambda: fake.faults.forbid("GET", "/history/"),
                  lambda: fake.faults.refuse("GET", "/history/", 404, "UserError", "Run was not found")):  # fmt: skip
        fault()
        status = service.status(REF)
        assert status.state is RunState.PREPARING
        assert status.created == pytest.approx(job.created, abs=1)


def test_how_much_is_asked(fake: FakeAzure, service: AzureMLService, job: Job) -> None:
    """Of Azure, the first time five questions with one for the cloud; then two."""
    fake.requests.clear()
    fresh = AzureMLService(fake.environ, None)
    fresh.status(REF)
    assert len(fake.requests) == 5
    fresh.status(REF)
    assert fake.calls()[5:] == [
        f"GET {{WS}}/jobs/{NAME}",
        f"GET /history/v1.0{{WS}}/runs/{NAME}/details",
    ]


def test_an_expired_token_is_renewed(fake: FakeAzure, service: AzureMLService, job: Job) -> None:
    """A refusal gets a new token, once; credentials that stay expired say how to log in."""
    fake.faults.expire_token("GET", "/jobs/")
    assert service.status(REF).state is RunState.PREPARING
    fake.faults.expire_token("GET", "/jobs/", times=9)
    with pytest.raises(TargetError, match="login has expired") as caught:
        service.status(REF)
    assert "az login" in (caught.value.hint or "")


def test_tokens_that_run_out_while_a_job_is_watched(fake: FakeAzure, job: Job) -> None:
    """A new one is got while the old one is still good: Azure refuses nothing."""
    fake.identity.lifetime = 200
    fresh = AzureMLService(fake.environ, None)
    before = len(fake.identity.asked)
    for _ in range(3):
        fresh.status(REF)
    assert len(fake.identity.asked) > before + 3


def test_stop_asks_once_and_waits_for_nothing(
    fake: FakeAzure, service: AzureMLService, job: Job
) -> None:
    """The service's own long answer (202, asked for again every 30 s by its SDK) is not waited for."""
    fake.jobs.cancel_polls, fake.jobs.cancel_lingers = 99, True
    job.enter("Running")
    for _ in range(3):
        service.stop(REF)
    assert service.status(REF).state is RunState.STOPPING
    job.end("Canceled")
    service.stop(REF)
    assert len(fake.received("POST", "/cancel")) == 1
    assert fake.received("GET", "mfeOperationResults") == []
    assert service.status(REF).state is RunState.STOPPED


def test_a_job_that_ends_between_two_requests(
    fake: FakeAzure, service: AzureMLService, job: Job
) -> None:
    """Stopping it is no error, and it stays as it ended."""
    job.enter("Running")
    fake.before("POST", "/cancel", lambda _: job.end("Completed"))
    service.stop(REF)
    assert service.status(REF).state is RunState.SUCCEEDED


def test_a_job_that_is_finalizing(fake: FakeAzure, service: AzureMLService, job: Job) -> None:
    """Is left to end: its script has ended, and the service refuses to cancel it."""
    job.enter("Running")
    fake.before("POST", "/cancel", lambda _: job.enter("Finalizing"))
    service.stop(REF)
    service.stop(REF)
    assert len(fake.received("POST", "/cancel")) == 1


def test_who_may_not_stop_a_job(fake: FakeAzure, service: AzureMLService, job: Job) -> None:
    """Is told so."""
    job.enter("Running")
    fake.faults.forbid("POST", "/cancel")
    with pytest.raises(TargetError, match="may not do"):
        service.stop(REF)


def test_the_workspaces_jobs(fake: FakeAzure, service: AzureMLService) -> None:
    """Page by page, newest first, whoever made them, and no page that nobody looks at."""
    fake.jobs.page_size = 10
    for number in range(25):
        service.submit(plan_of(name=f"job-{number}"))
        fake.jobs[f"job-{number}"].created = 1_700_000_000.0 + number
    fake.requests.clear()
    found = service.runs(PLACE)
    assert [next(found).ref.name for _ in range(10)] == [
        f"job-{number}" for number in range(24, 14, -1)
    ]
    assert len(fake.received("GET", "/jobs$")) == 1
    rest = list(found)
    assert [item.ref.name for item in rest] == [f"job-{number}" for number in range(14, -1, -1)]
    assert rest[-1].status.created == 1_700_000_000.0
    assert len(fake.received("GET", "/jobs$")) == 3


def test_the_studios_page(service: AzureMLService, job: Job) -> None:
    """Is the one that the service names, in the status and in the list."""
    page = f"https://ml.azure.com/runs/{NAME}?wsid={WORKSPACE}&tid="
    for status in (service.status(REF), next(service.runs(PLACE)).status):
        assert str(status.page).startswith(page)


def test_an_unknown_run(service: AzureMLService) -> None:
    """Names the workspace, and how to find the runs that there are."""
    with pytest.raises(RunNotFound, match="`ws` has no run `nobody-1`") as caught:
        service.status(RunRef("azureml", PLACE, "nobody-1"))
    assert "cloudtrain ps" in (caught.value.hint or "")
