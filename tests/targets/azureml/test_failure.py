"""Why a run failed: what the service says, and what the rank that failed first wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.targets.azureml.service.service import AzureMLService
from cloudtrain.targets.azureml.service.status import reason_of
from tests.fakes.azureml import FakeAzure
from tests.fakes.azureml.files import ARTIFACTS, artifact
from tests.fakes.azureml.job import Job
from tests.targets.azureml.conftest import NAME, REF, plan_of

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: bad thing'
SCRIPT = (
    "Execution failed. User process 'python' exited with status code 1. "
    f"Please check log file 'user_logs/std_log.txt' for error details. Error: {TRACEBACK}"
)
CODES = json.dumps(
    {"code": "ExecutionFailed", "error_details": [{"key": "exit_codes", "value": "137"}]}, indent=2
)
NO_SUCH = "AzureMLCompute job failed.\nJobFailed: Submitted script failed with a non-zero exit code; see the driver log"

REASONS: dict[str, tuple[Any, str, int | None]] = {
    "a traceback": ({"code": "UserError", "message": SCRIPT}, "the script failed with exit code 1: ValueError: bad thing", 1),
    "an error that the runtime told, before those of its peers": (
        {"message": SCRIPT.replace(TRACEBACK, "\nerror: `x.pt` is broken\n\nhint: remove it\n" + TRACEBACK.replace(
            "ValueError: bad thing", "RuntimeError: Connection closed by peer"))},
        "the script failed with exit code 1: `x.pt` is broken", 1,
    ),
    "inside of JSON": (
        {"code": "UserError", "message": json.dumps({"NonCompliant": SCRIPT}) + "\n" + CODES},
        "the script failed with exit code 1: ValueError: bad thing", 1,
    ),
    "an exit code behind the JSON": (
        {"message": json.dumps({"Compliant": "Process 'worker 0' exited with a signal"}) + CODES},
        "the script failed with exit code 137", 137,
    ),
    "nothing but that it failed": ({"code": "UserError", "message": NO_SUCH}, "the script failed", None),
    "a reason of the service": (
        {"code": "ServiceError", "message": "The node\n was lost."}, "ServiceError: The node was lost.", None,
    ),
    "in the details": (
        {"code": "UserError", "details": [{"details": [{"message": "no space left"}]}]}, "no space left", None,
    ),
    "only a code": ({"code": "CapacityError"}, "CapacityError", None),
    "nothing": (None, "the service gives no reason", None),
    "something else": ("?", "the service gives no reason", None),
}  # fmt: skip


@pytest.mark.parametrize("case", REASONS)
@pytest.mark.parametrize("wrapped", [True, False])
def test_reason(case: str, wrapped: bool) -> None:
    """One line, without what every failure says, and the exit code where it is told; in run history's envelope too."""
    error, text, code = REASONS[case]
    reason = reason_of(
        {"error": error, "correlation": {}} if wrapped and isinstance(error, dict) else error
    )
    assert (reason.text, reason.exit_code) == (text, code)


def test_the_lines_behind_it_are_details() -> None:
    """A traceback is kept, and the file that the service names."""
    reason = reason_of({"message": SCRIPT})
    assert reason.details[-1] == "ValueError: bad thing"
    assert reason.file == "user_logs/std_log.txt"


@given(st.recursive(st.text() | st.none() | st.integers(), lambda inner: st.dictionaries(
    st.sampled_from(["error", "code", "message", "details", "innerError"]), inner) | st.lists(inner)))  # fmt: skip
def test_whatever_the_service_says(error: Any) -> None:
    """It is one line of bounded length, never a crash."""
    text = reason_of(error).text
    assert text
    assert "\n" not in text
    assert len(text) <= 400


@pytest.fixture
def failed(fake: FakeAzure, service: AzureMLService) -> Job:
    """A job of four ranks on two instances that has failed, of which the service says nothing."""
    distribution = {"distributionType": "PyTorch", "processCountPerInstance": 2}
    service.submit(plan_of(distribution=distribution, resources={"instanceCount": 2}))
    job = fake.jobs[NAME]
    job.enter("Running")
    job.end("Failed", error=NO_SUCH)
    return job


def write(fake: FakeAzure, rank: int, *lines: str, at: float) -> None:
    """A rank's last lines, at that time."""
    file = f"user_logs/std_log_process_{rank}.txt"
    fake.logs.write(NAME, file, "started", *lines)
    fake.blobs.containers[ARTIFACTS][artifact(NAME, file)].changed = at


def test_the_first_to_end_with_an_error_of_its_own(
    fake: FakeAzure, failed: Job, service: AzureMLService
) -> None:
    """A rank that lost another one may end sooner, and is not the cause."""
    write(
        fake,
        0,
        "torch.distributed.DistBackendError: NCCL error: remote process exited",
        at=1_700_000_000,
    )
    write(fake, 1, "all is well", at=1_700_000_001)
    write(fake, 2, *TRACEBACK.splitlines(), at=1_700_000_005)
    write(fake, 3, "KeyError: 'later'", at=1_700_000_009)
    status = service.status(REF)
    assert status.reason == "the script failed: ValueError: bad thing"
    assert status.failed_rank == 2
    assert status.details[-1] == "ValueError: bad thing"


def test_the_file_that_the_service_names(
    fake: FakeAzure, failed: Job, service: AzureMLService
) -> None:
    """It knows whose process it was."""
    failed.error = {"message": "Process exited with code 1. See user_logs/std_log_process_3.txt"}
    write(fake, 2, "ValueError: earlier", at=1_700_000_000)
    write(fake, 3, "KeyError: 'x'", at=1_700_000_009)
    assert service.status(REF).failed_rank == 3


def test_only_the_end_of_a_long_log_is_read(
    fake: FakeAzure, failed: Job, service: AzureMLService
) -> None:
    """A status does not wait for a day's output."""
    write(fake, 0, *("x" * 100 for _ in range(5000)), "ValueError: bad", at=1_700_000_000)
    assert service.status(REF).reason == "the script failed: ValueError: bad"
    (asked,) = fake.received("GET", "std_log_process_0")
    assert asked.headers["x-ms-range"].startswith("bytes=49")


def test_a_job_whose_image_could_not_be_made(
    fake: FakeAzure, failed: Job, service: AzureMLService
) -> None:
    """No process has written anything; the service's own log has."""
    fake.logs.write(
        NAME, "azureml-logs/20_image_build_log.txt", "Step 3", "pip.ResolutionError: no torch==99"
    )
    status = service.status(REF)
    assert (status.reason, status.failed_rank) == (
        "the script failed: pip.ResolutionError: no torch==99",
        None,
    )


def test_the_services_own_log_where_run_history_lists_no_files(
    fake: FakeAzure, failed: Job, service: AzureMLService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`logFiles` may be empty; the artifact store has the log all the same."""
    monkeypatch.setattr(fake.logs, "files", lambda _: iter(()))
    fake.logs.write(
        NAME, "system_logs/lifecycler/lifecycler.log", "Start", "docker.ImageError: cannot pull x:1"
    )
    assert service.status(REF).reason == "the script failed: docker.ImageError: cannot pull x:1"


def test_logs_that_may_not_be_read_hide_nothing(
    fake: FakeAzure, failed: Job, service: AzureMLService
) -> None:
    """The reason stays what the service said."""
    write(fake, 0, "ValueError: bad", at=1_700_000_000)
    fake.faults.refuse("GET", "user_logs", 403, "AuthorizationFailure", times=99)
    assert service.status(REF).reason == "the script failed"


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_a_log_that_is_listed_and_not_yet_written(
    fake: FakeAzure, failed: Job, service: AzureMLService, missing: int
) -> None:
    """It tells nothing, and hides nothing of what the others do."""
    for rank in range(4):
        write(fake, rank, "all is well", at=1_700_000_000)
    write(fake, 2, *TRACEBACK.splitlines(), at=1_700_000_005)
    file = f"user_logs/std_log_process_{missing}.txt"
    fake.before(
        "*", file, lambda _: fake.blobs.containers[ARTIFACTS].pop(artifact(NAME, file), None)
    )
    status = service.status(REF)
    assert fake.received("*", file)
    assert (status.reason, status.failed_rank) == ("the script failed: ValueError: bad thing", 2)
