"""What the machines of a run do: in its status, in lists, as a table, and read from a log."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.plans.document import to_text
from cloudtrain.plans.progress import RunStatus
from cloudtrain.plans.status import machine_text, run_document
from cloudtrain.runtime.metrics_file import MetricWriter
from tests.cli.conftest import Cli
from tests.deadlines import DEADLINE
from tests.fakes.sagemaker.server import FakeAws
from tests.runtime.nvml import fake_nvml

GIB = float(1 << 30)
IDLE = """\
import time
print("epoch 1 loss: 0.5", flush=True)
print("epoch 2 loss: 0.4", flush=True)
print("epoch 3 loss: 0.3", flush=True)
{end}
"""
VALUES = {"cpu": 40.0, "memory": 16 * GIB, "memory_limit": 64 * GIB, "disk_free": 100 * GIB}
GPUS = {
    f"gpu{number}.{kind}": value
    for number in range(8)
    for kind, value in (
        ("utilization", 90.0 + number % 2),
        ("memory", (40.0 + number) * GIB),
        ("memory_limit", 80 * GIB),
        ("power", 350.0),
    )
}


@pytest.mark.lifecycle
def test_values_of_machines_are_no_metrics(
    cli: Cli, clean_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have a call and a table of their own, and do not keep others from being recognised."""
    monkeypatch.chdir(clean_environment)
    Path("train.py").write_text(IDLE.format(end=""))
    run = ct.submit(ct.TrainingJob(name="job", entry_point="train.py"))
    assert run.wait().state == ct.RunState.SUCCEEDED
    assert run.directory is not None
    for instance in (0, 1):
        writer = MetricWriter(str(run.directory / "metrics"), "machine", f"instance{instance}")
        for cpu in (40.0, 20.0 + instance, 60.0):
            writer.add({**VALUES, "cpu": cpu}, 1.7e9)
        writer.flush()
        writer.close()

    assert set(run.metrics().columns()) == {"loss"}
    assert [row["cpu"] for row in run.machines(instance=1)] == [40.0, 21.0, 60.0]
    assert run.machines().columns()["instance0/cpu"].source == "machine"
    shown = cli("metrics", "last", "instance1/cpu", "instance1/memory", "--machines").out
    assert [line.split() for line in shown.splitlines()] == [
        ["VALUE", "LOWEST", "MEAN", "HIGHEST", "LAST"],
        ["instance1/cpu", "21", "40.3333", "60", "60"],
        ["instance1/memory", *["16", "GiB"] * 4],
    ]
    assert "loss" in cli("metrics", "last").out
    assert cli("metrics", "last", "cpu").code == 2
    assert "machine" not in cli("status", "last").out


def test_one_line_for_each_instance() -> None:
    """With what a person looks for: how busy, and how full."""
    status = RunStatus(ct.RunState.RUNNING, machines={0: VALUES | GPUS})
    assert "  machine    8 GPUs 90%, GPU memory 59%, 2800 W, cpu 40%, memory 25%" in to_text(
        run_document("run", "ref", status)
    )
    status = RunStatus(ct.RunState.RUNNING, machines={0: VALUES, 1: GPUS})
    page = to_text(run_document("run", "ref", status))
    assert "instance 0  cpu 40%" in page
    assert "instance 1  8 GPUs 90%, GPU memory 59%, 2800 W" in page
    assert machine_text([]) == machine_text([{}]) == ""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAws]:
    with FakeAws() as service:
        for name, value in service.environ.items():
            monkeypatch.setenv(name, value)
        yield service


JOB = """\
name: digits
entry_point: train.py
environment: {framework: pytorch}
resources: {instance_type: {sagemaker: ml.g5.xlarge}, instance_count: 2}
max_runtime: 1h
"""
SETTINGS = """\
[sagemaker]
role = "arn:aws:iam::123456789012:role/SageMakerRole"
region = "eu-west-1"
"""


ODD = [
    "[machine] cpu=nan",
    "[machine] disk_free=-inf",
    "[machine] is up",
    "[metrics] step=1 loss=0.5",
]
"""Lines that no watch has written."""


def test_lines_in_the_log_of_a_cloud(
    cli: Cli, fake: FakeAws, make_source: Callable[..., Path]
) -> None:
    """Become values of their instances; the log is shown without them."""
    folder = make_source({"train.py": "", "job.yaml": JOB, "cloudtrain.toml": SETTINGS})
    submitted = cli(
        "submit", str(folder / "job.yaml"), "--target", "sagemaker", "--detach", "--offline"
    )
    name = submitted.out.strip()
    job = fake.jobs[name]
    job.enter("Training", at=time.time() - 100)
    for host in (1, 2):
        fake.logs.write(
            f"{name}/algo-{host}-17",
            *ODD,
            f"[machine] cpu={host}0 gpu0.utilization=9{host}",
            "[1,0]<stdout>:[machine] cpu=50",
        )
    run = ct.run(name)
    assert [row["cpu"] for row in run.machines(instance=1)] == [20.0, 50.0]
    assert run.machines().columns()["instance0/gpu0.utilization"].value.tolist() == [91.0]
    assert run.metrics() == [{"step": 1.0, "loss": 0.5}]
    lines = cli("logs", name, "--no-prefix").out.splitlines()
    assert sorted(lines) == [line for line in ODD for _ in range(2)]
    assert len(cli("logs", name, "--grep", "cpu=.0").out.splitlines()) == 4
    assert json.loads(cli("status", name, "--json").out)["machines"] == {
        "0": {"cpu": 50.0},
        "1": {"cpu": 50.0},
    }


@pytest.mark.lifecycle
@pytest.mark.slow
def test_a_run_that_idles_is_seen_and_stopped(
    cli: Cli, clean_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like one that has reached its `max_runtime`."""
    monkeypatch.chdir(clean_environment)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_nvml().parent))
    monkeypatch.setenv("FAKE_NVML_UTILIZATION", "3")
    Path("train.py").write_text(IDLE.format(end="time.sleep(600)"))
    run = ct.submit(ct.TrainingJob(name="job", entry_point="train.py", stop_when_idle="9s"))
    end = time.monotonic() + DEADLINE
    while not run.machines():
        assert time.monotonic() < end
        time.sleep(0.2)
    assert "machine    2 GPUs 3%, GPU memory 14%" in cli("status", "last").out
    assert "2 GPUs 3%" in cli("ps", "--wide").out
    assert "2 GPUs" not in cli("ps").out
    status = run.wait(DEADLINE)
    assert status.state == ct.RunState.STOPPED
    assert "stop_when_idle" in (status.reason or "")
