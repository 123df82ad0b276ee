"""The life of a processing job on Azure ML, against the fake service, which really runs both of its instances."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.plans.states import RunState
from tests.deadlines import DEADLINE
from tests.fakes.azureml import FakeAzure
from tests.fakes.azureml.files import OUTPUTS
from tests.fakes.azureml.runner import Runner

pytestmark = pytest.mark.lifecycle

STORE = "azureml://datastores/workspaceblobstore/paths"
TARGET = ct.AzureML(
    subscription_id="00000000-0000-0000-0000-000000000000", resource_group="rg", workspace="ws"
)
SCRIPT = Path(__file__).parents[3] / "examples" / "code" / "prepare_data"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeAzure]:
    """A workspace whose blob store has three files of data, to which this process is led."""
    pytest.importorskip("azure.identity")
    with FakeAzure() as service:
        for name, value in service.environ.items():
            monkeypatch.setenv(name, value)
        for name in ("a.csv", "b/c.csv", "b/d.csv"):
            service.blobs.put(OUTPUTS, f"raw/{name}", f"size,species\n1,{name}\n,x\n".encode())
        runner = Runner(service, tmp_path / "machines")
        yield service
        runner.clean_up()


@pytest.fixture
def prepare() -> ct.ProcessingJob:
    """The example, on two instances."""
    return ct.ProcessingJob(
        name="prep",
        source_dir=str(SCRIPT),
        entry_point="prepare.py",
        hyperparameters={"label": "species"},
        resources={"instance_count": 2, "instance_type": "Standard_DS3_v2"},
        environment={"framework": "pytorch", "version": "2.8"},
        inputs={"raw": {"azureml": f"{STORE}/raw/", "shard": True}},
        outputs={"clean": {}, "summaries": {}},
        max_runtime="1h",
    )


@pytest.mark.slow
def test_each_instance_cleans_its_share_and_the_next_job_reads_it_all(
    fake: FakeAzure, prepare: ct.ProcessingJob, tmp_path: Path
) -> None:
    """Each file once, all in one output, which a later job names by this one; there is no model."""
    run = ct.submit(prepare, TARGET)
    assert run.wait(timeout=DEADLINE).state is RunState.SUCCEEDED, [
        line.text for line in run.logs()
    ]
    run.download("outputs/clean", tmp_path / "clean")
    cleaned = {
        str(path.relative_to(tmp_path / "clean")) for path in (tmp_path / "clean").rglob("*.jsonl")
    }
    assert cleaned == {"a.jsonl", "b/c.jsonl", "b/d.jsonl"}
    assert json.loads((tmp_path / "clean" / "b" / "c.jsonl").read_text()) == {
        "size": 1.0,
        "species": "b/c.csv",
    }
    run.download("outputs/summaries", tmp_path / "sums")
    summaries = [
        json.loads((tmp_path / "sums" / f"instance-{number}.json").read_text())
        for number in range(2)
    ]
    assert [(each["instance"], each["files"]) for each in summaries] == [(0, 2), (1, 1)]
    said = {
        line.rank: line.text for line in run.logs() if line.text.startswith("cloudtrain: files of")
    }
    assert said[1] == "cloudtrain: files of the input `raw` on instance 1 of 2 (the first is 0): 1"
    assert list(run.written) == ["outputs/clean", "outputs/summaries"]

    use = ct.TrainingJob(
        name="use",
        source_dir=str(SCRIPT),
        command="cat ${{inputs.clean}}/*.jsonl ${{inputs.clean}}/b/*.jsonl",
        resources={"instance_type": "Standard_DS3_v2"},
        environment={"framework": "pytorch", "version": "2.8"},
        inputs={"clean": {"azureml": "run:prep/output/clean"}},
        max_runtime="1h",
    )
    second = ct.submit(use, TARGET)
    assert second.wait(timeout=DEADLINE).state is RunState.SUCCEEDED
    species = [json.loads(line.text)["species"] for line in second.logs()]
    assert species == ["a.csv", "b/c.csv", "b/d.csv"]


@pytest.mark.slow
def test_an_instance_that_fails_is_named(fake: FakeAzure, prepare: ct.ProcessingJob) -> None:
    """Its exit code, its log and the end of what it wrote."""
    job = prepare.replace(
        entry_point=None,
        hyperparameters={},
        command='[ "$CLOUDTRAIN_INSTANCE" = 0 ] || { echo no volume; exit 3; }',
    )
    status = ct.submit(job, TARGET).wait(timeout=DEADLINE)
    assert (status.state, status.exit_code) == (RunState.FAILED, 3)
    assert status.reason == "the script failed with exit code 3"
    assert "user_logs/std_log_process_1.txt" in status.details[0]
    assert status.details[-1] == "no volume"
