"""`cloudtrain adopt`: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.adoption.test_requests import AZUREML, SAGEMAKER
from tests.cli.conftest import Cli, cli

__all__ = ["cli"]


@pytest.fixture
def request_file(clean_environment: Path) -> str:
    (clean_environment / "request.json").write_text(json.dumps(SAGEMAKER["pt_torchdist"]))
    return "request.json"


def test_equal_is_success(cli: Cli, request_file: str) -> None:
    """The job file on stdout, the verdict on stderr."""
    found = cli("adopt", request_file)
    assert found.code == 0
    assert "entry_point: train.py" in found.out
    assert '# role = "arn:aws:iam::123456789012:role/SageMakerRole"' in found.out
    assert found.err.startswith("equal: ")


def test_different_is_exit_code_1(cli: Cli, clean_environment: Path) -> None:
    """Each difference with its reason."""
    job = {
        "type": "command",
        "command": "ls",
        "environment": "azureml:e:1",
        "compute": "azureml:cpu",
        "colour": "red",
    }
    Path("job.json").write_text(json.dumps(job))
    found = cli("adopt", "job.json", "--json")
    assert found.code == 1
    data = json.loads(found.out)
    assert not data["equal"]
    assert [item["path"] for item in data["differences"]] == ["colour"]
    assert all(item["reason"] for item in data["differences"])
    assert data["settings"]["azureml"]["compute"] == "cpu"


def test_data_of_this_machine_stays_a_path(cli: Cli, clean_environment: Path) -> None:
    """A submit uploads it, as the SDK does; the file's folder is where the path starts."""
    Path("body.json").write_text(json.dumps(AZUREML["inputs_all"]))
    found = cli("adopt", "body.json", "--json")
    assert found.code == 0
    inputs = json.loads(found.out)["job"]["inputs"]
    assert inputs["local_rel"] == {"azureml": "./src"}
    assert inputs["local_file"]["azureml"].startswith("./")


def test_what_is_written_can_be_planned(cli: Cli, request_file: str) -> None:
    """The two files are all that a plan needs, beside the code; files that exist are kept."""
    assert cli("adopt", request_file, "--write", "mine").code == 0
    Path("mine/train.py").write_text("")
    plan = cli("plan", "mine/job.yaml", "--target", "sagemaker", "--format", "request")
    assert (
        json.loads(plan.out)["AlgorithmSpecification"]
        == SAGEMAKER["pt_torchdist"]["AlgorithmSpecification"]
    )
    again = cli("adopt", request_file, "--write", "mine")
    assert again.code == 2
    assert "--force" in again.err
    assert cli("adopt", request_file, "--write", "mine", "--force").code == 0


@pytest.mark.parametrize("source", ["nothing.json", ".", "", "a" * 5000, "\0"])
def test_a_source_that_cannot_be_read(cli: Cli, source: str) -> None:
    """An error with a hint, and no traceback."""
    found = cli("adopt", source)
    assert found.code == 2
    assert "hint: " in found.err


WRONG = {
    "a truth value": "a: !!bool x\n",
    "a day that no month has": "a: 2026-02-30\n",
    "a number in base 60": f"a: {'1:' * 100_000}1\n",
    "a long number": f"name: a\nrun: torchrun train.py\nnum_nodes: {'9' * 4000}\n",
    "half of a character": '{"TrainingJobName": "\\ud800"}',
    "a name that is none": "name: true\nrun: torchrun --nproc_per_node=8 train.py\nresources: {}\n",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_a_value_that_yaml_or_json_cannot_hold(
    cli: Cli, clean_environment: Path, text: str
) -> None:
    """Whatever notices it, the document is named."""
    name = "source.json" if text.startswith("{") else "source.yaml"
    Path(name).write_text(text)
    found = cli("adopt", name)
    assert (found.code, found.out) == (2, "")
    assert f"`{name}`" in found.err
    assert "[CT981]" in found.err


def _replaced(data: object, value: object) -> Iterator[object]:
    """Yield the data with each of its values, one after the other, replaced."""
    for key in (
        list(data) if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    ):
        for inner in (value, *_replaced(data[key], value)):  # type: ignore[index]
            copied = data.copy()  # type: ignore[attr-defined]
            copied[key] = inner
            yield copied


@pytest.mark.parametrize(
    "value", [True, [], "\ud800", {"a": {"b": [1]}}], ids=["truth", "list", "half", "mapping"]
)
@pytest.mark.parametrize(
    "original", [SAGEMAKER["pt_torchdist"], next(iter(AZUREML.values()))], ids=["SM", "AZ"]
)
@pytest.mark.slow_after(1)
def test_a_value_of_another_type(
    cli: Cli, clean_environment: Path, original: object, value: object
) -> None:
    """In each place of a request: a job, or an error that names the document."""
    codes = set()
    for changed in _replaced(original, value):
        Path("request.json").write_text(json.dumps(changed))
        found = cli("adopt", "request.json")
        assert found.code in (0, 1, 2), found.err
        assert found.code != 2 or "[CT" in found.err, found.err
        codes.add(found.code)
    assert 2 in codes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirection", "said"),
    [("<&-", "it is closed"), ("</dev/zero", "more than 4 MiB"), ("<bytes", "is not UTF-8")],
)
def test_stdin(clean_environment: Path, redirection: str, said: str) -> None:
    """Closed, endless, or no text."""
    Path("bytes").write_bytes(b"\xff")
    line = f"exec '{sys.executable}' -m cloudtrain adopt - {redirection}"
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, check=False, env=environ
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the text on stdin")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [("HyperParameters", [1]), ("ResourceConfig", "x"), ("Tags", {"a": 1}), ("InputDataConfig", [{"ChannelName": "a"}, "y"])],
)  # fmt: skip
def test_a_malformed_request(cli: Cli, name: str, value: Any) -> None:
    """The wrong field is named; it is no defect of cloudtrain."""
    request = {
        "TrainingJobName": "a",
        "RoleArn": "r",
        "OutputDataConfig": {},
        "AlgorithmSpecification": {},
        name: value,
    }
    Path("request.json").write_text(json.dumps(request))
    found = cli("adopt", "request.json")
    assert found.code == 2
    assert f"`{name}" in found.err
    assert "hint: " in found.err


def test_a_malformed_tuning_job(cli: Cli) -> None:
    """Refused, whatever is wrong."""
    for broken in (
        {"TrainingJobDefinition": 5},
        {"TrainingJobDefinitions": [{"HyperParameterRanges": [1]}]},
    ):
        Path("request.json").write_text(json.dumps({"HyperParameterTuningJobName": "a", **broken}))
        assert cli("adopt", "request.json").code == 2
