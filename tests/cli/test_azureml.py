"""The command line against the fake Azure ML: a run's whole life, and runs of others."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.lifecycle.store.schema import read_store
from cloudtrain.machines.table import instance_named
from tests.cli.conftest import Cli
from tests.fakes.azureml import FakeAzure

pytestmark = pytest.mark.lifecycle

TYPE = "Standard_NC24ads_A100_v4"
JOB = (
    "name: digits\nentry_point: train.py\nenvironment: {framework: pytorch, version: '2.8'}\n"
    f"resources: {{instance_type: {{azureml: {TYPE}}}}}\nmax_runtime: 1h\n"
)
SETTINGS = (
    '[azureml]\nsubscription_id = "00000000-0000-0000-0000-000000000000"\n'
    'resource_group = "rg"\nworkspace = "ws"\ncompute = "a100"\n'
)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAzure]:
    """A workspace with a cluster."""
    with FakeAzure() as service:
        service.computes.add("a100", TYPE)
        for name, value in service.environ.items():
            monkeypatch.setenv(name, value)
        yield service


@pytest.fixture
def name(cli: Cli, make_source: Callable[..., Path], fake: FakeAzure) -> str:
    """The name of a run that was just submitted."""
    job_file = (
        make_source({"train.py": "print(1)\n", "job.yaml": JOB, "cloudtrain.toml": SETTINGS})
        / "job.yaml"
    )
    result = cli("submit", str(job_file), "--target", "azureml", "--detach")
    assert result.code == 0, result.err
    return result.out.strip()


def test_the_life_of_a_run(cli: Cli, fake: FakeAzure, name: str, tmp_path: Path) -> None:
    """Submitted, looked at, followed to its end, downloaded; each command says what it should."""
    price = instance_named("azureml", TYPE)
    assert price is not None
    assert price.price is not None
    job = fake.jobs[name]
    assert "state      preparing" in cli("status", name).out
    job.enter("Running", at=1_700_000_000.0)
    fake.logs.write(name, "user_logs/std_log.txt", "hello")
    assert cli("logs", name, "--no-prefix").out == "hello\n"
    job.end("Completed", at=1_700_003_600.0)
    fake.outputs.write(name, "model", "weights.bin", b"w")
    result = cli("wait", name)
    assert result.code == 0, result.err
    shown = cli("status", name).out
    assert f"1h billed on each instance, ${price.price:,.2f} by list price" in " ".join(
        shown.split()
    )
    assert f"https://ml.azure.com/runs/{name}" in shown
    status = json.loads(cli("status", name, "--json").out)
    assert (status["state"], status["billable_seconds"]) == ("succeeded", 3600)
    assert status["page"].startswith(f"https://ml.azure.com/runs/{name}?wsid=")
    assert [item["phase"] for item in status["transitions"]] == ["Queued", "Running", "Completed"]
    got = cli("download", name, "model/", "--to", str(tmp_path / "got"))
    assert got.out == f"{tmp_path / 'got/weights.bin'}\n"


def test_no_key_is_kept(
    cli: Cli, make_source: Callable[..., Path], fake: FakeAzure, state_dir: Path
) -> None:
    """Of an output with a signature in its address, which was sent on purpose, the store keeps the address."""
    place = "https://account.blob.core.windows.net/data/x"
    job = f'{JOB}outputs: {{clean: {{azureml: "{place}?sp=rw&sig=TOPSECRET"}}}}\n'
    job_file = (
        make_source({"train.py": "print(1)\n", "job.yaml": job, "cloudtrain.toml": SETTINGS})
        / "job.yaml"
    )
    result = cli("submit", str(job_file), "--target", "azureml", "--detach", "--ignore", "AZ512")
    assert result.code == 0, result.err
    with read_store(state_dir) as store:
        assert store.outputs_of(result.out.strip())["outputs/clean"] == place
    assert b"TOPSECRET" not in b"".join(
        path.read_bytes() for path in state_dir.rglob("*") if path.is_file()
    )


def test_a_failed_run(cli: Cli, fake: FakeAzure, name: str) -> None:
    """Why, in one line, and exit code 1."""
    fake.jobs[name].enter("Running")
    fake.logs.write(
        name, "user_logs/std_log.txt", "Traceback (most recent call last):", "KeyError: 'x'"
    )
    fake.jobs[name].end(
        "Failed", error="Execution failed. User process 'python' exited with status code 1."
    )
    result = cli("wait", name)
    assert result.code == 1
    assert "the script failed with exit code 1: KeyError: 'x'" in " ".join(result.err.split())


def test_a_run_whose_end_is_not_told(cli: Cli, fake: FakeAzure, name: str) -> None:
    """Its last change may be earlier than its start, as recorded in February 2026: no duration and no cost are made up."""
    fake.jobs[name].enter("Running", at=1_700_000_000.0)
    fake.jobs[name].end("Completed")
    details = {
        "runId": name, "status": "Completed", "createdTimeUtc": "2026-02-27T20:39:50.0000000+00:00", "logFiles": {},
        "startTimeUtc": "2026-02-27T20:40:16.0000000+00:00", "lastModifiedUtc": "2026-02-27T20:40:01.0000000+00:00",
    }  # fmt: skip
    fake.faults.say("GET", "/details", 200, json.dumps(details).encode())
    shown = cli("status", name).out
    assert "state      succeeded" in shown
    assert "duration" not in shown
    assert "billed" not in shown
    (row,) = json.loads(cli("ps", "--json").out)
    assert (row["started"] is not None, row["ended"]) == (True, None)
    assert not re.search(r"\s\d+d(\d+h)?\s", cli("ps").out)  # the run's age is in seconds


def test_stop(cli: Cli, fake: FakeAzure, name: str) -> None:
    """The job is asked to stop, and what the service does then is not waited for."""
    fake.jobs.cancel_lingers = True
    assert cli("stop", name).code == 0
    assert fake.jobs[name].status == "CancelRequested"


def test_runs_of_others(
    cli: Cli,
    fake: FakeAzure,
    name: str,
    make_source: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`ps --target` lists the workspace's jobs, and a reference attaches to one that this machine did not submit."""
    ours = fake.jobs[name]
    theirs = type(ours)(
        "their-job",
        {"properties": {**ours.properties, "properties": {}}},
        ours.workspace,
        ours.created,
    )
    fake.jobs.by_name["their-job"] = theirs
    monkeypatch.chdir(make_source({"cloudtrain.toml": SETTINGS}))
    listed = cli("ps", "--target", "azureml").out
    assert name in listed
    assert "their-job" in listed
    place = json.loads(cli("status", name, "--json").out)["ref"].rpartition("/")[0]
    assert cli("status", f"{place}/their-job").code == 0


def test_runs_without_a_workspace(cli: Cli, fake: FakeAzure) -> None:
    """None is guessed, and nobody is asked."""
    result = cli("ps", "--target", "azureml")
    assert result.code == 2
    assert "`subscription_id`, `resource_group`, `workspace` in [azureml]" in result.err
    assert fake.requests == []


def test_what_a_job_has_logged_with_mlflow(fake: FakeAzure, name: str) -> None:
    """Is read page by page, each once; a metric without news is not asked for again."""
    job = fake.jobs[name]
    job.enter("Running", at=1_700_000_000.0)
    start = 1_700_000_000_000
    job.logged["loss"] = [(start + step, step, 1 / step) for step in range(1, 6)]
    job.logged["sampled"] = [(start + number, 0, number / 2) for number in range(3)]
    fake.logs.write(name, "user_logs/std_log.txt", "step 1 loss: 7.5")
    columns = ct.run(name).metrics().columns()
    assert columns["loss"].source == "service"
    assert list(columns["loss"].step) == [1, 2, 3, 4, 5]
    assert columns["loss"].time[0] == 1_700_000_000.001
    assert list(columns["sampled"].value) == [0.0, 0.5, 1.0]
    assert math.isnan(columns["sampled"].step[-1])

    asked = len(histories(fake))
    job.logged["loss"] += [(start + 6, 6, "NaN"), (start + 7, 7, 0.25)]
    values = ct.run(name).metrics().columns()["loss"].value
    assert (len(values), values[-1]) == (7, 0.25)
    assert math.isnan(values[5])
    assert histories(fake)[asked:] == ["loss", "loss"]  # its last page, and the one behind it
    assert len(ct.run(name).metrics().columns()["loss"].value) == 7
    assert len(histories(fake)) == asked + 2


def histories(fake: FakeAzure) -> list[str]:
    """The metrics whose values were asked for."""
    return [item.query["metric_key"] for item in fake.received("GET", ".*get-history")]


def test_a_log_that_grows_is_read_on(fake: FakeAzure, name: str) -> None:
    """From the end of the last whole line; what was learnt in the lines before is known."""
    job = fake.jobs[name]
    job.enter("Running", at=1_700_000_000.0)
    log = "user_logs/std_log.txt"
    fake.logs.write_bytes(name, log, b"epoch,loss\n1,0.5\n2,0.")
    assert list(ct.run(name).metrics().columns()["loss"].value) == [0.5]
    # what a killed reader had written counts for nothing
    folder = Path(os.environ["CLOUDTRAIN_STATE_DIR"], "metrics", name, "found")
    for file in folder.glob("recognised.*"):
        file.write_bytes(file.read_bytes() * 2)
    (folder / "patterns.rank0.0.rows").write_bytes(bytes(64))
    fake.logs.write_bytes(name, log, b"25\n")
    column = ct.run(name).metrics().columns()["loss"]
    assert list(zip(column.step, column.value, strict=True)) == [(1, 0.5), (2, 0.25)]
    job.end("Completed", at=1_700_003_600.0)
    fake.logs.write_bytes(name, log, b"3,0.125")
    assert list(ct.run(name).metrics().columns()["loss"].value) == [0.5, 0.25, 0.125]
