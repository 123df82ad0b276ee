"""Output of every rank, of running and finished jobs: nothing twice, nothing lost, no byte asked for again."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from cloudtrain.errors import TargetError
from cloudtrain.plans.progress import LogLine, RunStatus
from cloudtrain.plans.states import RunState
from cloudtrain.targets.azureml.reading import Body
from cloudtrain.targets.azureml.service import blobs as storage
from cloudtrain.targets.azureml.service.blobs import Blobs
from cloudtrain.targets.azureml.service.client import SUBMIT, Client
from cloudtrain.targets.azureml.service.logs import RunLog
from cloudtrain.targets.common.services import Denied, Pace, follow_log
from tests.fakes.azureml import FakeAzure
from tests.fakes.azureml.files import ARTIFACTS, artifact
from tests.fakes.azureml.job import Job
from tests.targets.clock import Clock

pytestmark = pytest.mark.lifecycle

NAME = "digits-3f9a1c22-1"
BODY: dict[str, Any] = {
    "jobType": "Command",
    "command": "python train.py",
    "distribution": {"distributionType": "PyTorch", "processCountPerInstance": 4},
    "resources": {"instanceCount": 2},
}
RANKS = range(8)


def file_of(rank: int) -> str:
    return f"user_logs/std_log_process_{rank}.txt"


@pytest.fixture
def job(fake: FakeAzure, client: Client) -> Job:
    """A job on two instances of four ranks each, which is running."""
    client.send(
        "PUT", f"jobs/{NAME}", api_version=SUBMIT, content=json.dumps({"properties": BODY}).encode()
    )
    job = fake.jobs[NAME]
    job.enter("Running")
    return job


def log_of(client: Client, **options: Any) -> RunLog:
    return RunLog(Blobs(client), NAME, Body({"properties": BODY}), **options)


def texts(lines: Iterator[LogLine]) -> list[str]:
    return [line.text for line in lines]


def ranges(fake: FakeAzure, rank: int = 0) -> list[str]:
    """The ranges of a file that were asked for."""
    asked = fake.received("GET", re.escape(file_of(rank)))
    return [item.headers.get("x-ms-range", "whole") for item in asked]


def test_every_rank_of_a_finished_job(fake: FakeAzure, client: Client, job: Job) -> None:
    """Two instances, eight ranks: every line, with its rank and its instance."""
    for rank in RANKS:
        fake.logs.write(NAME, file_of(rank), *(f"{rank}.{number}" for number in range(20)))
    fake.logs.write(NAME, "system_logs/lifecycler/lifecycler.log", "not the script's")
    job.end("Completed")
    asked = int(time.time())
    lines = list(log_of(client).new_lines())
    assert [line.text for line in lines] == [
        f"{rank}.{number}" for rank in RANKS for number in range(20)
    ]
    assert {(line.rank, line.instance) for line in lines} == {(rank, rank // 4) for rank in RANKS}
    assert all(asked <= line.time <= time.time() for line in lines)


def test_one_rank_and_one_instance_ask_for_their_files_alone(
    fake: FakeAzure, client: Client, job: Job
) -> None:
    """The other files are not even looked at."""
    for rank in RANKS:
        fake.logs.write(NAME, file_of(rank), f"rank {rank}")
    assert texts(log_of(client, rank=5).new_lines()) == ["rank 5"]
    assert texts(log_of(client, instance=1).new_lines()) == [f"rank {rank}" for rank in range(4, 8)]
    asked = {item.path.rpartition("_")[2] for item in fake.received("GET", "user_logs/")}
    assert asked == {f"{rank}.txt" for rank in range(4, 8)}


def test_only_new_bytes_are_asked_for(fake: FakeAzure, client: Client, job: Job) -> None:
    """A file is read on from where it was left, and one that has not changed costs no body."""
    log = log_of(client)
    fake.logs.write(NAME, file_of(0), "one")
    assert texts(log.new_lines()) == ["one"]
    assert texts(log.new_lines()) == []
    fake.logs.write(NAME, file_of(0), "two")
    assert texts(log.new_lines()) == ["two"]
    assert [text.split("-")[0] for text in ranges(fake)] == ["bytes=0", "bytes=4", "bytes=4"]


def test_half_a_line_waits(fake: FakeAzure, client: Client, job: Job) -> None:
    """Until its end has come, or nothing more will."""
    log = log_of(client)
    fake.logs.write_bytes(NAME, file_of(0), b"one\ntw" + "é".encode()[:1])
    assert texts(log.new_lines()) == ["one"]
    fake.logs.write_bytes(NAME, file_of(0), "é".encode()[1:] + b"\nthree")
    assert texts(log.new_lines()) == ["twé"]
    assert texts(log.rest()) == ["three"]


def test_a_long_file_comes_in_parts(
    fake: FakeAzure, client: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request asks for more than a part, and no byte is asked for twice."""
    monkeypatch.setattr(storage, "READ", 64)
    monkeypatch.setitem(storage.read.__kwdefaults__, "length", 64)
    fake.logs.write(NAME, file_of(0), *(f"line {number}" for number in range(50)))
    assert texts(log_of(client).new_lines()) == [f"line {number}" for number in range(50)]
    found = [re.findall(r"\d+", text) for text in ranges(fake)]
    assert [int(start) for start, _ in found] == list(range(0, 440, 64))


@pytest.mark.parametrize(
    "content", [b"a new beginning\n", b"a new beginning that is longer than the old file\n"]
)
def test_a_file_that_was_replaced(
    fake: FakeAzure, client: Client, job: Job, content: bytes
) -> None:
    """A rank that was started again may write its file anew, shorter or longer: it is read from its beginning."""
    log = log_of(client)
    fake.logs.write_bytes(NAME, file_of(0), b"the first attempt\nhalf a li")
    fake.blobs.containers[ARTIFACTS][artifact(NAME, file_of(0))].made -= 60
    assert texts(log.new_lines()) == ["the first attempt"]
    fake.blobs.put(ARTIFACTS, artifact(NAME, file_of(0)), content)
    assert texts(log.new_lines()) == ["half a li", content.decode().strip()]


def test_a_file_that_was_stored_anew_and_goes_on(fake: FakeAzure, client: Client, job: Job) -> None:
    """The service may store a growing file whole each time: what was read of it does not come again."""
    log = log_of(client)
    fake.logs.write(NAME, file_of(0), "one")
    assert texts(log.new_lines()) == ["one"]
    fake.blobs.put(ARTIFACTS, artifact(NAME, file_of(0)), b"one\ntwo\n").made -= 60
    assert texts(log.new_lines()) == ["two"]


def test_an_empty_file(fake: FakeAzure, client: Client, job: Job) -> None:
    """It is there before its first line."""
    log = log_of(client)
    fake.logs.write_bytes(NAME, file_of(0), b"")
    assert texts(log.new_lines()) == []
    fake.logs.write(NAME, file_of(0), "one")
    assert texts(log.new_lines()) == ["one"]


def test_addresses_that_have_expired_are_got_anew(
    fake: FakeAzure, client: Client, job: Job
) -> None:
    """Their signatures last an hour; a new list has new ones."""
    log = log_of(client)
    fake.logs.write(NAME, file_of(0), "one")
    fake.history.sas_seconds = -1
    fake.after("GET", "/details", lambda _: setattr(fake.history, "sas_seconds", 3600))
    assert texts(log.new_lines()) == ["one"]
    assert len(fake.received("GET", "/details")) == 2
    assert fake.received("*", "datastores") == []


STORES = ["sas", "key", "none"]


@pytest.mark.parametrize("secrets", STORES)
def test_addresses_that_storage_refuses(
    fake: FakeAzure, client: Client, job: Job, secrets: Any
) -> None:
    """The artifact store is asked instead: by signature, by key, or as the caller (azure-ai-ml fails at two of these)."""
    fake.history.sas_seconds = -1
    fake.datastores["workspaceartifactstore"].secrets = secrets
    log = log_of(client)
    for rank in (0, 5):
        fake.logs.write(NAME, file_of(rank), f"rank {rank}")
    assert texts(log.new_lines()) == ["rank 0", "rank 5"]
    fake.logs.write(NAME, file_of(5), "more")
    assert texts(log.new_lines()) == ["more"]
    asked = len(fake.received("POST", "workspaceartifactstore/listSecrets"))
    assert asked == (0 if secrets == "none" else 1)


def test_an_account_that_takes_no_keys(fake: FakeAzure, client: Client, job: Job) -> None:
    """The key is refused, the caller's identity is not."""
    fake.history.sas_seconds = -1
    fake.blobs.allows_shared_key = False
    fake.logs.write(NAME, file_of(0), "one")
    assert texts(log_of(client).new_lines()) == ["one"]


def test_secrets_that_may_not_be_had(fake: FakeAzure, client: Client, job: Job) -> None:
    """The caller's identity may open storage all the same."""
    fake.history.sas_seconds = -1
    fake.faults.forbid("POST", "listSecrets", times=9)
    fake.logs.write(NAME, file_of(0), "one")
    assert texts(log_of(client).new_lines()) == ["one"]


@pytest.mark.parametrize("secrets", STORES)
def test_a_run_history_without_addresses(
    fake: FakeAzure, client: Client, job: Job, secrets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The artifact store lists the files of a job that has begun."""
    monkeypatch.setattr(fake.logs, "files", lambda _: iter(()))
    fake.datastores["workspaceartifactstore"].secrets = secrets
    fake.logs.write(NAME, file_of(3), "three")
    fake.logs.write(NAME, "azureml-logs/70_driver_log_4.txt", "four")
    fake.logs.write(f"{NAME}0", file_of(0), "another job's")
    assert texts(log_of(client).new_lines()) == ["three", "four"]


def test_a_job_that_has_not_begun(fake: FakeAzure, client: Client, job: Job) -> None:
    """It has no files, and storage is not asked for any."""
    job.started, job.status = None, "Queued"
    assert texts(log_of(client).new_lines()) == []
    assert fake.received("*", "datastores") == []


def test_a_job_that_run_history_does_not_know_yet(
    fake: FakeAzure, client: Client, job: Job
) -> None:
    """It was made a moment ago: no lines, no error."""
    fake.faults.refuse("GET", "/details", 404, "UserError", "Run was not found", times=1)
    fake.logs.write(NAME, file_of(0), "one")
    log = log_of(client)
    assert texts(log.new_lines()) == []
    assert texts(log.new_lines()) == ["one"]


def test_a_store_that_may_not_be_listed(
    fake: FakeAzure, client: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the job runs its files may be listed yet; at its end the refusal is what there is to say."""
    monkeypatch.setattr(fake.logs, "files", lambda _: iter(()))
    fake.faults.forbid("GET", "datastores/workspaceartifactstore", times=9)
    log = log_of(client)
    assert texts(log.new_lines()) == []
    job.end("Completed")
    with pytest.raises(Denied):
        list(log.new_lines())


def live(clock: Clock, fake: FakeAzure, job: Job) -> None:
    """The ranks write numbered lines in halves while the job is followed, then it ends; its last line comes late."""
    for number in range(40):
        data, file = f"line {number}\n".encode(), file_of(number % 8)
        clock.at(number / 2, partial(fake.logs.write_bytes, NAME, file, data[:4]))
        clock.at(number / 2 + 0.7, partial(fake.logs.write_bytes, NAME, file, data[4:]))
    clock.at(40, lambda: job.end("Completed"))
    clock.at(45, partial(fake.logs.write_bytes, NAME, file_of(7), b"the very last, without an end"))


WHOLE = sorted([*(f"line {number}" for number in range(40)), "the very last, without an end"])


def followed(
    fake: FakeAzure, client: Client, job: Job, trouble: Any = lambda count: None
) -> list[str]:
    """The lines of a life that is followed; `trouble` is told how many came so far."""

    def status() -> RunStatus:
        client.get(f"jobs/{NAME}", api_version="2024-01-01-preview")
        return RunStatus(RunState.SUCCEEDED if job.is_final else RunState.RUNNING, ended=job.ended)

    log, found = log_of(client), []
    with pytest.MonkeyPatch.context() as patch:
        live(Clock.of_following(patch), fake, job)
        for line in follow_log(log, status, None, Pace()):
            found.append(line.text)
            trouble(len(found))
    return sorted([*found, *texts(log.rest())])


@pytest.mark.slow
def test_follow_to_the_very_end(fake: FakeAzure, client: Client, job: Job) -> None:
    """Files that appear late, lines in halves, and what comes after the job has ended."""
    assert followed(fake, client, job) == WHOLE


@pytest.mark.slow
@pytest.mark.parametrize("what", [r"user_logs/", "/details", f"jobs/{NAME}$"])
@pytest.mark.parametrize("kind", ["close_before", "close_after"])
def test_follow_through_dropped_connections(
    fake: FakeAzure, client: Client, job: Job, what: str, kind: str
) -> None:
    """Three connections are dropped, twice: no line is lost, none comes twice."""

    def trouble(count: int) -> None:
        if count in (3, 15):
            getattr(fake.faults, kind)("GET", what, times=3)

    assert followed(fake, client, job, trouble) == WHOLE


@pytest.mark.slow
def test_follow_through_answers_that_are_cut_short(
    fake: FakeAzure, client: Client, job: Job
) -> None:
    """A part of an answer is not taken for the whole."""

    def trouble(count: int) -> None:
        if count == 3:
            fake.faults.cut("GET", "user_logs/", after=3, times=3)

    assert followed(fake, client, job, trouble) == WHOLE


def test_lines_of_others_are_not_lost_with_a_file_that_cannot_be_read(
    fake: FakeAzure, client: Client, job: Job
) -> None:
    """They come first; the file is read on when it can be."""
    log, found = log_of(client), list[str]()
    for rank in RANKS:
        fake.logs.write(NAME, file_of(rank), f"rank {rank}")
    fake.faults.refuse("GET", re.escape(file_of(2)), 400, "InvalidHeaderValue", times=1)
    # what came before it counts
    with pytest.raises(TargetError, match="InvalidHeaderValue"):  # noqa: PT012
        for line in log.new_lines():
            found.append(line.text)
    assert found == [f"rank {rank}" for rank in RANKS if rank != 2]
    assert texts(log.new_lines()) == ["rank 2"]
