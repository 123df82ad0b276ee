"""Output from CloudWatch: all hosts, all pages, in order, followed to the last line through faults, nothing twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.errors import TargetUnreachable, UsageError
from cloudtrain.plans.progress import LogLine, RunStatus
from cloudtrain.plans.states import RunState
from cloudtrain.targets.common.services import Pace
from cloudtrain.targets.sagemaker.service.logs import lines_of
from cloudtrain.targets.sagemaker.service.service import SageMakerService
from tests.fakes.sagemaker.jobs import Job
from tests.fakes.sagemaker.server import FakeAws
from tests.targets.clock import Clock
from tests.targets.sagemaker.conftest import NAME, REF, plan_of

pytestmark = pytest.mark.lifecycle

T0 = 1_700_000_000.0


def texts(lines: Iterator[LogLine]) -> list[str]:
    return [line.text for line in lines]


@pytest.mark.slow
def test_no_log_group_yet(service: SageMakerService, job: Job) -> None:
    """Before the account's first line there is not even a group: no lines, no error."""
    assert list(service.logs(REF)) == []


def test_merged_by_time(fake: FakeAws, service: SageMakerService, job: Job) -> None:
    """Lines of several hosts, in the order of their times, each with its instance."""
    for second in range(3):
        for host in (2, 1, 10):
            fake.logs.write(
                f"{NAME}/algo-{host}-17", f"host {host} at {second}", at=T0 + second + host / 100
            )
    lines = list(service.logs(REF))
    assert [line.text for line in lines] == [
        f"host {host} at {s}" for s in range(3) for host in (1, 2, 10)
    ]
    assert [line.instance for line in lines[:3]] == [0, 1, 9]
    assert lines[0].time == pytest.approx(T0 + 0.01)


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
def test_every_page_of_more_than_fifty_streams(
    fake: FakeAws, service: SageMakerService, job: Job, sparse: bool
) -> None:
    """A hundred and twenty hosts, several pages each, empty pages in between: every line once."""
    fake.logs.events_per_page, fake.logs.sparse = 2, sparse
    for host in range(1, 121):
        fake.logs.write(f"{NAME}/algo-{host}-17", *(f"{host}.{n}" for n in range(5)), at=T0)
    found = texts(service.logs(REF))
    assert len(found) == 600
    assert set(found) == {f"{host}.{n}" for host in range(1, 121) for n in range(5)}
    assert len(fake.operations("DescribeLogStreams")) == 3


def test_streams_of_other_jobs(fake: FakeAws, service: SageMakerService, job: Job) -> None:
    """A job whose name begins with ours is another job."""
    fake.logs.write(f"{NAME}/algo-1-17", "ours")
    fake.logs.write(f"{NAME}0/algo-1-17", "theirs")
    assert texts(service.logs(REF)) == ["ours"]


def test_one_host(fake: FakeAws, service: SageMakerService, job: Job) -> None:
    """Only its streams are read, those of a container that was started again too."""
    for stream in ("algo-1-17", "algo-2-17", "algo-2-99", "algo-12-17"):
        fake.logs.write(f"{NAME}/{stream}", stream)
    assert sorted(texts(service.logs(REF, instance=1))) == ["algo-2-17", "algo-2-99"]
    assert {item.body["logStreamName"] for item in fake.operations("GetLogEvents")} == {
        f"{NAME}/algo-2-17", f"{NAME}/algo-2-99",
    }  # fmt: skip


def test_one_rank(fake: FakeAws, service: SageMakerService, job: Job) -> None:
    """By the tags of mpirun."""
    fake.logs.write(
        f"{NAME}/algo-1-17", "[1,0]<stdout>:a", "[1,1]<stdout>:b", "[1,11]<stderr>:c", "mpirun says"
    )
    assert texts(service.logs(REF, rank=1)) == ["b"]
    assert texts(service.logs(REF, rank=11)) == ["c"]


def test_one_rank_of_lines_without_ranks(fake: FakeAws, service: SageMakerService) -> None:
    """Silence would read as a rank that wrote nothing."""
    service.submit(plan_of(HyperParameters={"sagemaker_torch_distributed_enabled": "true"}))
    fake.logs.write(f"{NAME}/algo-1-17", "epoch 1")
    with pytest.raises(UsageError, match="do not name their ranks") as error:
        texts(service.logs(REF, rank=1))
    assert "--host algo-1" in (error.value.hint or "")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """By which jobs are followed."""
    return Clock.of_following(monkeypatch)


@pytest.fixture
def patient(fake: FakeAws, tmp_path: Path) -> SageMakerService:
    """A service that tries each request once, and takes its time between two."""
    return SageMakerService({**fake.environ, "AWS_MAX_ATTEMPTS": "1"}, Pace())


@pytest.fixture
def life(clock: Clock, fake: FakeAws, job: Job) -> None:
    """A job that writes numbered lines on two hosts while it is followed, then ends; its last line comes late."""
    clock.at(1, lambda: job.enter("Training"))
    for number in range(30):
        stream = f"{NAME}/algo-{1 + number % 2}-17"
        clock.at(1 + number / 2, partial(fake.logs.write, stream, f"line {number}"))
    clock.at(40, lambda: job.end("Completed"))
    clock.at(
        45, partial(fake.logs.write, f"{NAME}/algo-3-17", "a stream that appeared after the end")
    )


WHOLE = [*(f"line {number}" for number in range(30)), "a stream that appeared after the end"]


@pytest.mark.usefixtures("life")
def test_follow_to_the_very_end(patient: SageMakerService) -> None:
    """Streams that appear late, and lines that come after the end of a job that had long been silent."""
    seen: list[RunStatus] = []
    found = texts(patient.logs(REF, follow=True, on_status=seen.append))
    assert sorted(found) == sorted(WHOLE)
    assert seen[-1].state is RunState.SUCCEEDED
    assert len({(status.state, len(status.transitions)) for status in seen}) == len(seen)


@pytest.mark.parametrize("operation", ["GetLogEvents", "DescribeLogStreams", "DescribeTrainingJob"])
@pytest.mark.parametrize("fault", ["close_before", "close_after", "throttle"])
@pytest.mark.usefixtures("life")
@pytest.mark.slow_after(3)
def test_follow_through_faults(
    operation: str, fault: str, fake: FakeAws, patient: SageMakerService
) -> None:
    """More faults in a row than one request is tried: no line is lost, none comes twice."""
    found = []
    for line in patient.logs(REF, follow=True):
        found.append(line.text)
        if len(found) in (3, 15):
            getattr(fake.faults, fault)(operation, times=3)
    assert sorted(found) == sorted(WHOLE)


@pytest.mark.slow
@pytest.mark.usefixtures("life")
def test_credentials_that_expire_while_following(fake: FakeAws, patient: SageMakerService) -> None:
    """They are read again, and following goes on."""
    fake.faults.refuse("GetLogEvents", "ExpiredTokenException", times=1)
    assert sorted(texts(patient.logs(REF, follow=True))) == sorted(WHOLE)


def test_patience_ends(fake: FakeAws, job: Job, clock: Clock, patient: SageMakerService) -> None:
    """When AWS stays out of reach for ten minutes, following ends with an error."""
    lines = patient.logs(REF, follow=True)
    fake.faults.close_before("*", times=10_000)
    with pytest.raises(TargetUnreachable):
        list(lines)
    assert 600 < clock.slept < 700


def test_a_finished_job_is_not_waited_for(
    fake: FakeAws, service: SageMakerService, job: Job, clock: Clock
) -> None:
    """Long after the end nothing more can come, so following returns at once."""
    fake.logs.write(f"{NAME}/algo-1-17", "old", at=T0)
    job.enter("Training", at=T0)
    job.end("Completed", at=T0 + 10)
    assert texts(service.logs(REF, follow=True)) == ["old"]
    assert len(fake.operations("DescribeLogStreams")) == 1
    assert clock.slept == 0


CASES = [
    ("[1,3]<stdout>:text", (3, "stdout", "text")),
    ("[1,12]<stderr>:  File", (12, "stderr", "  File")),
    ("[prterun-algo-1-7@1,2]<stderr>: text", (2, "stderr", "text")),
    ("[rank3]: Traceback", (3, "stdout", "Traceback")),
    ("[rank 3] text", (3, "stdout", "text")),
    ("[default2]:text", (6, "stdout", "text")),
    ("[1, 2]", (None, "stdout", "[1, 2]")),
    ("plain", (None, "stdout", "plain")),
    ("10%\r50%\r100%", (None, "stdout", "100%")),
    ("", (None, "stdout", "")),
]


@pytest.mark.parametrize(("message", "expected"), CASES)
def test_who_wrote_a_line(message: str, expected: tuple[int | None, str, str]) -> None:
    """The tags of mpirun, torchrun and PyTorch; on instance 1 of four ranks each."""
    (line,) = lines_of(message, T0, 1, range(4, 8))
    assert (line.rank, line.stream, line.text) == expected
    assert line.instance == 1


@given(st.text(st.characters(blacklist_characters="\r\n[")), st.integers(0, 10_000))
def test_tags_take_nothing_from_the_text(text: str, rank: int) -> None:
    """Whatever a rank writes comes through, without its tag."""
    (line,) = lines_of(f"[1,{rank}]<stdout>:{text}\n", T0, 0)
    assert line.rank == rank
    assert line.text == text


def test_scripts_without_a_launcher_are_their_instances_rank(
    fake: FakeAws, service: SageMakerService
) -> None:
    """One process on each instance: its number is its rank."""
    service.submit(plan_of())
    fake.logs.write(f"{NAME}/algo-2-17", "hello")
    assert [line.rank for line in service.logs(REF)] == [1]


def launcher(**launch: Any) -> dict[str, str]:
    return {"cloudtrain_launch": json.dumps({"entry_point": "train.py", **launch})}


def toolkit(**more: Any) -> dict[str, str]:
    return {
        "sagemaker_program": '"train.py"',
        **{f"sagemaker_{name}": json.dumps(item) for name, item in more.items()},
    }


TORCHRUN = toolkit(torch_distributed_enabled=True)
TWELVE = {"InstanceCount": 12, "InstanceType": "ml.g5.12xlarge"}
GROUPS = {
    "InstanceGroups": [
        {"InstanceGroupName": name, "InstanceType": instance_type, "InstanceCount": count}
        for name, instance_type, count in (("a", "ml.g5.xlarge", 1), ("b", "ml.g5.12xlarge", 2))
    ]
}

JOBS = {
    "toolkit": (TORCHRUN, TWELVE, {1: 0, 10: 4, 12: 12, 2: 16}),
    "pytorch ddp": (toolkit(pytorch_ddp_enabled=True), TWELVE, {1: 0, 10: 4, 2: 16}),
    "own launcher": (launcher(launcher="torchrun", processes_per_instance=2), TWELVE, {1: 0, 10: 2, 2: 8}),
    "plain script": (toolkit(), TWELVE, {1: 0, 10: 1, 2: 4}),
    "single": (launcher(launcher="single"), TWELVE, {1: 0, 10: 1, 2: 4}),
    "every group alone": (TORCHRUN, GROUPS, {1: 0, 2: 0, 3: 4}),
    "both groups": (
        toolkit(torch_distributed_enabled=True, distribution_instance_groups=["b", "a"]), GROUPS, {1: 0, 2: 1, 3: 5}
    ),
    "one group": (
        toolkit(torch_distributed_enabled=True, distribution_instance_groups=["b"]), GROUPS, {1: None, 2: 0, 3: 4}
    ),
    "groups of the own launcher": (
        launcher(launcher="torchrun", instance_groups=["b", "a"]), GROUPS, {1: 8, 2: 0, 3: 4}
    ),
    "all groups of the own launcher": (launcher(launcher="torchrun"), GROUPS, {1: 0, 2: 1, 3: 5}),
    "a number in quotes": (toolkit(mpi_enabled=True, mpi_num_of_processes_per_host="2"), TWELVE, {1: 0, 10: 2}),
    "somebody else's launch": (toolkit() | {"cloudtrain_launch": "mine"}, TWELVE, {1: 0, 10: 1}),
    "no number": (toolkit(mpi_enabled=True, mpi_num_of_processes_per_host=[1]), TWELVE, {1: None, 10: None}),
}  # fmt: skip


@pytest.mark.parametrize("case", JOBS)
@pytest.mark.slow_after(4)
def test_the_ranks_of_hosts(case: str, fake: FakeAws, service: SageMakerService) -> None:
    """Hosts are numbered as their launcher numbers them: by name, so that `algo-10` is the second of twelve."""
    hyperparameters, resources, expected = JOBS[case]
    service.submit(plan_of(HyperParameters=hyperparameters, ResourceConfig=resources))
    for number, host in enumerate(expected):
        fake.logs.write(f"{NAME}/algo-{host}-17", "[default0]: hello", at=T0 + number)
    found = [(line.instance + 1, line.rank) for line in service.logs(REF)]
    assert found == list(expected.items())


def test_the_failed_rank_of_twelve_hosts(fake: FakeAws, service: SageMakerService) -> None:
    """The rank that `status` names is the rank of the plan."""
    service.submit(plan_of(HyperParameters=TORCHRUN, ResourceConfig=TWELVE))
    fake.logs.write(
        f"{NAME}/algo-10-17",
        "[default1]: Traceback (most recent call last):",
        "[default1]: ValueError: no",
    )
    fake.jobs[NAME].end("Failed", FailureReason="AlgorithmError: , exit code: 1")
    assert service.status(REF).failed_rank == 5
