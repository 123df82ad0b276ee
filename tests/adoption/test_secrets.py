"""Secrets of an original become secrets by name. No file, verdict or output of an adoption has their text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from tests.adoption.test_requests import AZUREML, SAGEMAKER
from tests.code.credential_files import BASE64, Maker
from tests.code.credential_files import WORD as MIXED

KEY = Maker(3).letters(40)
TOKEN = Maker(4).letters(34, before="hf_")
WORD = Maker(6).of(MIXED, 12)
STORAGE = Maker(7).of(BASE64, 86, after="==")
PLAIN = SAGEMAKER["est_byoc_plain"]
COMMAND = AZUREML["single_node"]["properties"]


def azureml(**fields: Any) -> dict[str, Any]:
    return {"properties": {**COMMAND, **fields}}


VARIABLES = {
    "DB_URL": f"postgres://user:{WORD}@host/db",
    "JSON": json.dumps({"api_key": WORD}),
    "H": f"Authorization: Bearer {WORD}",
    "CONN": f"Server=a;Password={WORD};Uid=b",
    "OPTS": f"--api-key {WORD} --x 1",
    "STORAGE": STORAGE,
}
"""Variables that contain a secret."""

CASES: dict[str, tuple[Any, list[str]]] = {
    "variables that contain one": ({**PLAIN, "Environment": {**VARIABLES, "A": "b"}}, [*VARIABLES]),
    "Azure's variables that contain one": (
        azureml(environmentVariables=VARIABLES), [*VARIABLES],
    ),
    "Azure's description": (azureml(description=f"run with password={WORD} and {TOKEN}"), []),
    "Azure's input": (
        azureml(
            command="python t.py --key ${{inputs.key}} --lr ${{inputs.lr}}",
            inputs={
                "key": {"jobInputType": "literal", "value": TOKEN},
                "lr": {"jobInputType": "literal", "value": "0.1"},
            },
        ),
        [],
    ),
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
    "launch line with two": (
        f"CONN=Password={WORD} torchrun -m a.train --password {KEY} --token {TOKEN}", ["CONN"],
    ),
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
    for secret in (KEY, TOKEN, WORD, STORAGE):
        assert secret not in text
    assert sorted(found.job.environment.secrets) == sorted(names)
    assert not set(names) & set(found.job.environment.variables)
    reasons = [item.reason for item in found.differences]
    assert all("environment.secrets" in reason for reason in reasons), found.differences


def test_what_only_looks_like_a_secret_stays(tmp_path: Path) -> None:
    """A name that ends in `token` with a word of a tokenizer, a place, and a number."""
    variables = {
        "PAD_TOKEN": "<pad>",
        "MAX_TOKENS": "4096",
        "TOKEN_FILE": "/secrets/token",
        "SEED": "12345",
        "QUOTE": "the secret: patience",
        "MODEL": "tokenizer.pad_token=hello,max_tokens=100000,sort_key=column_name",
        "NOTE": "the password=$PASSWORD stays outside; token=<pad>",
        "DIGEST": "0" * 86 + "==",
    }
    (tmp_path / "request.json").write_text(json.dumps({**PLAIN, "Environment": variables}))
    found = ct.adopt(tmp_path / "request.json")
    assert found.equal
    assert found.job.environment.variables == variables


@pytest.mark.parametrize("where", ["variables", "input"])
def test_a_secret_in_a_job_file_of_azure(where: str, tmp_path: Path) -> None:
    """A literal input keeps a value to fill in, and a variable becomes a secret."""
    job: dict[str, Any] = {
        "command": "python t.py", "code": ".", "environment": "azureml:e:1", "compute": "c",
    }  # fmt: skip
    if where == "variables":
        job["environment_variables"] = VARIABLES
    else:
        job["inputs"] = {"lr": 0.1, "environment_token": TOKEN}
        job["command"] += " --k ${{inputs.environment_token}}"
    (tmp_path / "job.yml").write_text(json.dumps(job))
    found = ct.adopt(tmp_path / "job.yml")
    assert not found.equal
    for secret in (KEY, TOKEN, WORD, STORAGE):
        assert secret not in found.job_text
    assert "azureml_overrides" not in found.fields
    if where == "input":
        assert found.job.inputs["environment_token"].value == "FILL-IN"
    else:
        assert sorted(found.job.environment.secrets) == sorted(VARIABLES)
