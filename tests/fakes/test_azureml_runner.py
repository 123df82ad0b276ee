"""The fake Azure ML can really run its jobs: code, processes, inputs, outputs, logs, ends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import DEADLINE
from tests.fakes.azureml import FakeAzure
from tests.fakes.azureml.files import OUTPUTS
from tests.fakes.azureml.runner import Runner
from tests.fakes.conftest import Answer

pytestmark = pytest.mark.lifecycle

Submit = Callable[..., Answer]


@pytest.fixture
def running(fake: FakeAzure, tmp_path: Path) -> Iterator[FakeAzure]:
    """A workspace whose jobs run."""
    runner = Runner(fake, tmp_path / "service")
    yield fake
    runner.clean_up()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def code(fake: FakeAzure, **files: str) -> str:
    """The id of code with these files: `train` is train.py."""
    for name, text in files.items():
        fake.blobs.put("code", f"src/{name}.py", text.encode())
    return fake.assets.add("codes", "c", "1", codeUri=f"{fake.blobs.url}/code/src")


def log(fake: FakeAzure, rank: int | None = None) -> str:
    file = "std_log.txt" if rank is None else f"std_log_process_{rank}.txt"
    return fake.blobs.get("azureml", f"ExperimentRun/dcid.j1/user_logs/{file}").decode()


def test_every_process_of_every_instance_runs(running: FakeAzure, submit: Submit) -> None:
    """PyTorch: instances times processes, each with its variables and its log."""
    names = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "AZUREML_RUN_ID", "OWN")
    source = code(running, train=f"import os\nprint(*[os.environ[name] for name in {names}])\n")
    submit(
        "j1", codeId=source, resources={"instanceCount": 2}, environmentVariables={"OWN": "x y"},
        distribution={"distributionType": "PyTorch", "processCountPerInstance": 2},
    )  # fmt: skip
    eventually(lambda: running.jobs["j1"].is_final)
    assert running.jobs["j1"].status == "Completed"
    logs = [log(running, rank) for rank in range(4)]
    assert logs == [f"{rank} {rank % 2} {rank // 2} 4 j1 x y\n" for rank in range(4)]
    assert [status for status, _ in running.jobs["j1"].history] == [
        "Starting", "Preparing", "Running", "Finalizing", "Completed",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name", "wanted"),
    [
        ("Mpi", "OMPI_COMM_WORLD_SIZE", "2"),
        ("TensorFlow", "TF_CONFIG", {"type": "worker", "index": 1}),
    ],
)
def test_other_distributions_have_other_variables(
    running: FakeAzure, submit: Submit, kind: str, name: str, wanted: Any
) -> None:
    """And not RANK."""
    submit(
        "j1", command=f"echo ${{RANK-none}}; echo ${name}", resources={"instanceCount": 2},
        distribution={"distributionType": kind},
    )  # fmt: skip
    eventually(lambda: running.jobs["j1"].is_final)
    none, value = log(running, 1).splitlines()
    assert none == "none"
    assert (json.loads(value)["task"] if kind == "TensorFlow" else value) == wanted


def test_inputs_and_outputs(running: FakeAzure, submit: Submit) -> None:
    """References become paths and values; what is written is in the blob store, and among the artifacts."""
    running.blobs.put(OUTPUTS, "digits/a.txt", b"seven")
    uri = "azureml://datastores/workspaceblobstore/paths/digits/"
    submit(
        "j1",
        command="cat ${{inputs.data}}/a.txt ; echo ' ${{inputs.rate}}'; cp ${{inputs.data}}/a.txt ${{outputs.model}}/b.txt; "
        "mkdir outputs; echo 1 > outputs/metrics; echo $AZURE_ML_OUTPUT_model",
        inputs={
            "data": {"jobInputType": "uri_folder", "uri": uri},
            "rate": {"jobInputType": "literal", "value": "0.1"},
        },
        outputs={"model": {"jobOutputType": "uri_folder"}},
    )
    eventually(lambda: running.jobs["j1"].is_final)
    assert log(running).startswith("seven 0.1\n/")
    assert running.blobs.get(OUTPUTS, "azureml/j1/model/b.txt") == b"seven"
    assert running.blobs.get("azureml", "ExperimentRun/dcid.j1/outputs/metrics") == b"1\n"


def test_one_that_fails_ends_the_others(running: FakeAzure, submit: Submit) -> None:
    """The error names its log and its last lines, and the exit code."""
    submit(
        "j1", command='if [ "$RANK" = 1 ]; then echo bad thing >&2; exit 3; fi; sleep 60', resources={"instanceCount": 2},
        distribution={"distributionType": "PyTorch", "processCountPerInstance": 1},
    )  # fmt: skip
    eventually(lambda: running.jobs["j1"].is_final)
    error = running.jobs["j1"].error
    assert error is not None
    assert "exited with status code 3" in error["message"]
    assert "user_logs/std_log_process_1.txt" in error["message"]
    assert error["message"].endswith("bad thing\n")


def test_a_running_job_is_canceled(running: FakeAzure, submit: Submit, call: Any) -> None:
    """Its processes get SIGTERM."""
    submit("j1", command="trap 'echo over; exit 0' TERM; echo up; while :; do sleep 0.02; done")
    name = "ExperimentRun/dcid.j1/user_logs/std_log.txt"
    eventually(lambda: name in running.blobs.containers["azureml"])
    call("POST", "{WS}/jobs/j1/cancel", version="2023-04-01-preview")
    eventually(lambda: running.jobs["j1"].is_final)
    assert running.jobs["j1"].status == "Canceled"
    lines = log(running).splitlines()
    assert (lines[0], lines[-1]) == ("up", "over")
