"""Secrets of an original become secrets by name. No file, verdict or output of an adoption has their text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from tests.adoption.test_requests import AZUREML, SAGEMAKER
from tests.code.credential_files import Maker

KEY = Maker(3).letters(40)
TOKEN = Maker(4).letters(34, before="hf_")
PLAIN = SAGEMAKER["est_byoc_plain"]
COMMAND = AZUREML["single_node"]["properties"]


def azureml(**fields: Any) -> dict[str, Any]:
    return {"properties": {**COMMAND, **fields}}


CASES: dict[str, tuple[Any, list[str]]] = {
    "variable": ({**PLAIN, "Environment": {"WANDB_API_KEY": KEY, "A": "b"}}, ["WANDB_API_KEY"]),
    "variable by its value": ({**PLAIN, "Environment": {"HUB": TOKEN}}, ["HUB"]),
    "hyperparameter": ({**PLAIN, "HyperParameters": {"hf_token": json.dumps(TOKEN), "lr": "1"}}, []),
    "tag": ({**PLAIN, "Tags": [{"Key": "api_key", "Value": KEY}, {"Key": "a", "Value": "b"}]}, []),
    "argument": (
        {**PLAIN, "AlgorithmSpecification": {
            **PLAIN["AlgorithmSpecification"], "ContainerEntrypoint": ["python", "t.py"],
            "ContainerArguments": ["--password", KEY, "--token", TOKEN],
        }},
        [],
    ),
    "Azure's variable": (azureml(environmentVariables={"HF_TOKEN": TOKEN}), ["HF_TOKEN"]),
    "Azure's command": (azureml(command=f"python t.py --api-key {KEY} --hf-token {TOKEN}"), []),
    "Azure's tag": (azureml(tags={"secret": KEY}), []),
    "launch line": (f"HF_TOKEN={TOKEN} torchrun --nproc-per-node 8 train.py", ["HF_TOKEN"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_secret_becomes_a_name(case: str, tmp_path: Path) -> None:
    """It is a difference, and a variable is a secret of the job."""
    document, names = CASES[case]
    if not isinstance(document, str):
        (tmp_path / "request.json").write_text(json.dumps(document))
        document = tmp_path / "request.json"
    found = ct.adopt(document)
    assert not found.equal
    text = f"{found.job_text} {found.settings_text} {found.to_dict()} {found.kind}"
    assert KEY not in text
    assert TOKEN not in text
    assert list(found.job.environment.secrets) == names
    reasons = [item.reason for item in found.differences]
    assert all("environment.secrets" in reason for reason in reasons), found.differences


def test_what_only_looks_like_a_secret_stays(tmp_path: Path) -> None:
    """A name that ends in `token` with a word of a tokenizer, a place, and a number."""
    variables = {
        "PAD_TOKEN": "<pad>",
        "MAX_TOKENS": "4096",
        "TOKEN_FILE": "/secrets/token",
        "SEED": "12345",
    }
    (tmp_path / "request.json").write_text(json.dumps({**PLAIN, "Environment": variables}))
    found = ct.adopt(tmp_path / "request.json")
    assert found.equal
    assert found.job.environment.variables == variables
