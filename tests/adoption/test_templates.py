"""Requests inside the documents of other tools, in which some values are filled in later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from tests.adoption.test_requests import AZUREML, SAGEMAKER

PLAIN = SAGEMAKER["est_byoc_plain"]
TUNED = {"_tuning_objective_metric": "loss", "sagemaker_estimator_module": "sagemaker.pytorch"}


def without(*names: str, **fields: Any) -> dict[str, Any]:
    return {name: value for name, value in PLAIN.items() if name not in names} | fields


CASES: dict[str, tuple[Any, list[str]]] = {
    "an operator's arguments": ({"task": {"config": PLAIN}}, []),
    "a wrapper": ({"TrainingJobDefinition": PLAIN}, []),
    "a state machine": (
        {"States": {"Train": {"Type": "Task", "Parameters": without(
            "TrainingJobName", "RoleArn", **{"TrainingJobName.$": "$.name", "RoleArn.$": "$.role"})}}},
        ["RoleArn"],
    ),
    "a stack": (
        {"Resources": {"Job": {"Properties": without(OutputDataConfig={"S3OutputPath": {"Fn::Sub": "s3://${B}"}})}}},
        ["OutputDataConfig.S3OutputPath"],
    ),
    "a pipeline": (
        {"Steps": [{"Type": "Training", "Arguments": without("TrainingJobName", RoleArn={"Get": "Parameters.R"})}]},
        ["RoleArn"],
    ),
    "a text with a variable": ({"config": without(Environment={"DAY": "{{ ds }}"})}, ["Environment.DAY"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", ["json", "yaml"])
def test_the_request_in_a_document_is_adopted(case: str, form: str, tmp_path: Path) -> None:
    """A value that only the other tool knows is a difference."""
    document, lost = CASES[case]
    (tmp_path / f"request.{form}").write_text(json.dumps(document))
    found = ct.adopt(tmp_path / f"request.{form}")
    assert [item.path for item in found.differences] == lost


def test_what_a_tuner_adds_is_listed(tmp_path: Path) -> None:
    """The adopted job does not have it, and the verdict says so."""
    (tmp_path / "request.json").write_text(json.dumps({**PLAIN, "HyperParameters": TUNED}))
    found = ct.adopt(tmp_path / "request.json")
    assert found.equal
    assert {f"HyperParameters.{name}" for name in TUNED} <= {path for path, _ in found.renewed}


INTERPRETER = "/opt/envs/llm/bin/python"
COMMAND = AZUREML["single_node"]["properties"]
STARTS: dict[str, dict[str, Any]] = {
    "an entry point": without(
        AlgorithmSpecification={
            **PLAIN["AlgorithmSpecification"], "ContainerEntrypoint": [INTERPRETER], "ContainerArguments": ["train.py"],
        }
    ),
    "a shell": without(
        AlgorithmSpecification={
            **PLAIN["AlgorithmSpecification"], "ContainerEntrypoint": ["bash", "-c", f"{INTERPRETER} train.py"],
        }
    ),
    "a command": {"properties": {**COMMAND, "command": f"{INTERPRETER} train.py --lr 1"}},
    "a launcher": {"properties": {**COMMAND, "command": f"{INTERPRETER} -m torch.distributed.run train.py"}},
}  # fmt: skip


@pytest.mark.parametrize("case", STARTS)
def test_the_interpreter_of_a_request_starts_the_job(case: str, tmp_path: Path) -> None:
    """Its path stays, and equal means so."""
    (tmp_path / "request.json").write_text(json.dumps(STARTS[case]))
    found = ct.adopt(tmp_path / "request.json")
    assert found.equal
    assert INTERPRETER in found.job_text
