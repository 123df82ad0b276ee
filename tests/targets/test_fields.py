"""What each target does with each field of a job: it is sent, a notice says why not, an error, or
the field rightly does nothing. No field is dropped in silence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

import cloudtrain as ct
from cloudtrain.errors import CloudtrainError
from cloudtrain.job.processing import ProcessingJob
from cloudtrain.job.training import TrainingJob
from cloudtrain.targets.common.fields import Field, Needless, NoEffect, Refused

TARGETS = {
    "local": ct.Local(),
    "sagemaker": ct.SageMaker(
        role="arn:aws:iam::123456789012:role/r", region="eu-west-1", bucket="b"
    ),
    "azureml": ct.AzureML(
        subscription_id="11111111-2222-3333-4444-555555555555",
        resource_group="group",
        workspace="team",
    ),
    "slurm": ct.Slurm(shared_dir="/fsx/a", container="pyxis"),
}

DATA = {"sagemaker": "s3://b/k", "azureml": "azureml:c:1", "local": ".", "slurm": "/d"}
SAVED = {
    "sagemaker": "s3://b/c",
    "azureml": "azureml://datastores/workspaceblobstore/paths/c",
    "slurm": "/c",
    "local": "/tmp/c",
}
IMAGE = {
    "sagemaker": "123456789012.dkr.ecr.eu-west-1.amazonaws.com/x:1",
    "azureml": "r.azurecr.io/x:1",
    "slurm": "/images/x.sqsh",
    "local": "x:1",
}
SECRET = {
    "sagemaker": "secretsmanager:x",
    "azureml": "keyvault:https://v.vault.azure.net/secrets/x",
    "slurm": "env:TOKEN",
    "local": "env:TOKEN",
}

BASE: dict[str, Any] = {
    "name": "a",
    "source_dir": ".",
    "entry_point": "train.py",
    "environment": {"framework": "pytorch"},
    "resources": {
        "instance_type": {"sagemaker": "ml.g5.12xlarge", "azureml": "Standard_NC24ads_A100_v4"}
    },
    "max_runtime": "1h",
    "inputs": {"t": DATA},
    "outputs": {"m": {}},
}

OWN_IMAGE = {"environment": {"framework": None, "image": IMAGE}}
ASSET = {"environment": {**OWN_IMAGE["environment"], "asset_name": "x"}}
CONTEXT = {"environment": {"framework": None, "build": "context"}}
A100 = {"resources": {"instance_type": None, "gpu": "A100-40GB", "gpus_per_instance": 8}}
GROUPS = {
    "resources": {
        "instance_type": None,
        "instance_groups": [
            {"name": "a", "instance_type": "ml.g5.12xlarge", "instance_count": 1},
            {"name": "b", "instance_type": "ml.c5.xlarge", "instance_count": 1},
        ],
    }
}
CAPACITY = {"capacity": {"alternatives": [{"set": ["max_runtime=2h"]}]}}
GROUPED = {**GROUPS, "distribution": {"type": "torch"}}
PROJECT = {"environment": {"requirements": "pyproject.toml", "python": "3.12"}}

VALUES: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "name": ({}, {"name": "b"}),
    "description": ({}, {"description": "hello"}),
    "tags": ({}, {"tags": {"team": "x"}}),
    "source_dir": ({}, {"source_dir": "sub"}),
    "entry_point": ({}, {"entry_point": "other.py"}),
    "command": ({}, {"entry_point": None, "command": "python train.py"}),
    "hyperparameters": ({}, {"hyperparameters": {"lr": 0.1}}),
    "arguments": ({}, {"arguments": ["--lr", "3"]}),
    "bare_flags": ({"hyperparameters": {"flag": True}}, {"bare_flags": True}),
    "distribution": (
        {"resources": {"instance_count": 2}},
        {"distribution": {"type": "torch"}},
    ),
    "resources.instance_count": (
        {"distribution": {"type": "torch"}},
        {"resources": {"instance_count": 2}},
    ),
    "resources.instance_type": (
        {},
        {
            "resources": {
                "instance_type": {
                    "sagemaker": "ml.g5.48xlarge",
                    "azureml": "Standard_NC48ads_A100_v4",
                    "slurm": "big",
                }
            }
        },
    ),
    "resources.gpu": (A100, {"resources": {"gpu": "A100-80GB"}}),
    "resources.gpus_per_instance": (
        {"resources": {"instance_type": None, "gpu": "V100-16GB", "gpus_per_instance": 1}},
        {"resources": {"gpus_per_instance": 4}},
    ),
    "resources.interconnect": (
        {"resources": {"instance_type": None, "gpu": "V100-16GB", "gpus_per_instance": 4}},
        {"resources": {"interconnect": "rdma"}},
    ),
    "resources.instance_groups": ({}, GROUPS),
    "resources.distribution_groups": (GROUPED, {"resources": {"distribution_groups": ["a"]}}),
    "resources.instance_preferences": (
        {},
        {
            "resources": {
                "instance_type": None,
                "instance_preferences": ["ml.g5.12xlarge", "ml.g5.24xlarge"],
            }
        },
    ),
    "resources.volume_size": ({}, {"resources": {"volume_size": "100g"}}),
    "resources.shm_size": ({}, {"resources": {"shm_size": "8g"}}),
    "environment.framework": ({}, {"environment": {"framework": "tensorflow"}}),
    "environment.version": ({}, {"environment": {"version": "2.8"}}),
    "environment.base": (
        {"environment": {"framework": "huggingface", "version": "4.49"}},
        {"environment": {"base": "pytorch 2.5"}},
    ),
    "environment.python": ({}, {"environment": {"python": "3.9"}}),
    "environment.image": (
        OWN_IMAGE,
        {"environment": {"image": {name: f"{image}2" for name, image in IMAGE.items()}}},
    ),
    "environment.conda_file": (OWN_IMAGE, {"environment": {"conda_file": "conda.yml"}}),
    "environment.build": (OWN_IMAGE, {"environment": {"image": None, "build": "context"}}),
    "environment.dockerfile": (CONTEXT, {"environment": {"dockerfile": "Other"}}),
    "environment.asset_name": (OWN_IMAGE, {"environment": {"asset_name": "x"}}),
    "environment.asset_version": (ASSET, {"environment": {"asset_version": "3"}}),
    "environment.description": (ASSET, {"environment": {"description": "y"}}),
    "environment.tags": (ASSET, {"environment": {"tags": {"a": "b"}}}),
    "environment.requirements": ({}, {"environment": {"requirements": "more.txt"}}),
    "environment.groups": (PROJECT, {"environment": {"groups": ["dev"]}}),
    "environment.extras": (PROJECT, {"environment": {"extras": ["gpu"]}}),
    "environment.variables": ({}, {"environment": {"variables": {"A": "b"}}}),
    "environment.secrets": ({}, {"environment": {"secrets": {"TOKEN": SECRET}}}),
    "inputs.*.value": (
        {"inputs": {"v": {"value": 2}}, "hyperparameters": {"v": "${{inputs.v}}"}},
        {"inputs": {"v": {"value": 3}}},
    ),
    "inputs.*.mode": ({}, {"inputs": {"t": {"mode": "download"}}}),
    "inputs.*.type": ({}, {"inputs": {"t": {"type": "mltable"}}}),
    "inputs.*.channel": ({}, {"inputs": {"t": {"channel": "other"}}}),
    "inputs.*.shard": (
        {"resources": {"instance_count": 2}, "distribution": {"type": "torch"}},
        {"inputs": {"t": {"shard": True}}},
    ),
    "inputs.*.content_type": ({}, {"inputs": {"t": {"content_type": "text/csv"}}}),
    "inputs.*.compression": ({}, {"inputs": {"t": {"compression": "gzip"}}}),
    "inputs.*.record_wrapper": ({}, {"inputs": {"t": {"record_wrapper": "recordio"}}}),
    "inputs.*.data_type": ({}, {"inputs": {"t": {"data_type": "manifest"}}}),
    "inputs.*.attribute_names": (
        {"inputs": {"t": {"data_type": "augmented_manifest"}}},
        {"inputs": {"t": {"attribute_names": ["a"]}}},
    ),
    "inputs.*.shuffle_seed": ({}, {"inputs": {"t": {"shuffle_seed": 3}}}),
    "inputs.*.instance_groups": (GROUPS, {"inputs": {"t": {"instance_groups": ["a"]}}}),
    "inputs.*.access": ({}, {"inputs": {"t": {"access": "rw"}}}),
    "outputs.*.mode": ({}, {"outputs": {"m": {"mode": "upload"}}}),
    "outputs.*.type": ({}, {"outputs": {"m": {"type": "uri_file"}}}),
    "outputs.*.asset_name": ({}, {"outputs": {"m": {"asset_name": "x"}}}),
    "outputs.*.asset_version": (
        {"outputs": {"m": {"asset_name": "x"}}},
        {"outputs": {"m": {"asset_version": "2"}}},
    ),
    "checkpoint": ({}, {"checkpoint": SAVED}),
    "checkpoint.keep": ({"checkpoint": SAVED}, {"checkpoint": {"keep": 7}}),
    "tracking.mlflow": ({}, {"tracking": {"mlflow": "https://mlflow.example.org"}}),
    "tracking.wandb": ({}, {"tracking": {"wandb": "offline"}}),
    "tracking.tensorboard": ({}, {"tracking": {"tensorboard": True}}),
    "spot": ({"checkpoint": SAVED}, {"spot": {}}),
    "spot.max_wait": ({"checkpoint": SAVED, "spot": {}}, {"spot": {"max_wait": "2h"}}),
    "capacity.alternatives": ({}, CAPACITY),
    "capacity.wait": (CAPACITY, {"capacity": {"wait": "1h"}}),
    "capacity.give_up_after": (CAPACITY, {"capacity": {"give_up_after": "1d"}}),
    "max_runtime": ({}, {"max_runtime": "3h"}),
    "stop_when_idle": ({}, {"stop_when_idle": "1h"}),
    "stop_when_stalled": ({}, {"stop_when_stalled": "30m"}),
    "metrics": ({}, {"metrics": {"loss": "loss=([0-9.]+)"}}),
}
"""Field to what a job needs so that it may have the field, and a legal value that is not the
default."""

OUT_OF_REACH = {
    ("environment.base", "azureml"),
    ("inputs.*.instance_groups", "azureml"),
    ("resources.distribution_groups", "azureml"),
    ("inputs.*.instance_groups", "slurm"),
    ("resources.distribution_groups", "slurm"),
}
"""Cells whose field needs another one that the target refuses."""

FILES = {
    "train.py": "import argparse\n",
    "other.py": "import argparse\n\n",
    "sub/train.py": "",
    "conda.yml": "name: x\ndependencies: [python=3.12]\n",
    "context/Dockerfile": "FROM a:1\n",
    "context/Other": "FROM b:1\n",
    "more.txt": "numpy==1.26.4\n",
    "pyproject.toml": """\
[project]
name = "p"
version = "1"
requires-python = ">=3.10"

[project.optional-dependencies]
gpu = ["numpy==1.26.4"]

[dependency-groups]
dev = ["tqdm==4.67.1"]

[tool.uv]
package = false
default-groups = []
""",
    "uv.lock": """\
version = 1
revision = 3
requires-python = ">=3.10"

[[package]]
name = "numpy"
version = "1.26.4"
source = { registry = "https://pypi.org/simple" }
wheels = [{ url = "https://pypi.org/numpy-1.26.4-py3-none-any.whl", hash = "sha256:HASH" }]

[[package]]
name = "tqdm"
version = "4.67.1"
source = { registry = "https://pypi.org/simple" }
wheels = [{ url = "https://pypi.org/tqdm-4.67.1-py3-none-any.whl", hash = "sha256:HASH" }]

[[package]]
name = "p"
version = "1"
source = { virtual = "." }

[package.optional-dependencies]
gpu = [{ name = "numpy" }]

[package.dev-dependencies]
dev = [{ name = "tqdm" }]

[package.metadata]
requires-dist = [{ name = "numpy", marker = "extra == 'gpu'", specifier = "==1.26.4" }]
provides-extras = ["gpu"]

[package.metadata.requires-dev]
dev = [{ name = "tqdm", specifier = "==4.67.1" }]
""".replace("HASH", "0" * 64),
}


@pytest.fixture
def project(clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script and the files that a job can name."""
    for name, text in FILES.items():
        path = clean_environment / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(clean_environment)
    return clean_environment


def fields_of(target: str) -> tuple[Field, ...]:
    """The rows of a target."""
    rows: tuple[Field, ...] = import_module(f"cloudtrain.targets.{target}.fields").FIELDS
    return rows


def row_of(target: str, field: str) -> Field:
    """The row of a field, of the field that it is a part of, or of its first part."""
    rows = {row.job: row for row in fields_of(target)}
    name = field
    while name not in rows and "." in name:
        name = name.rpartition(".")[0]
    if name in rows:
        return rows[name]
    return next(row for job, row in rows.items() if job.startswith(f"{field}."))


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Values of `above` win; None takes a field away."""
    result = dict(below)
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = value
    return result


Outcome = tuple[str, frozenset[tuple[str, str, str]]]
"""What a plan sends, as text, and its findings, as code, level and text; or its errors alone."""


def outcome(spec: Mapping[str, Any], target: str) -> Outcome:
    """Plan a job."""
    try:
        plan = ct.plan(TrainingJob(**spec), TARGETS[target])
    except CloudtrainError as error:
        problems = getattr(error, "problems", [error])
        return "", frozenset((one.code, "error", str(one)) for one in problems)
    sent = plan.to_dict()
    findings = frozenset(
        (item["code"], item["level"], f"{item['message']} {item['path']} {item.get('details')}")
        for item in sent["findings"]
    )
    told = {key: sent.get(key) for key in ("request", "uploads", "processes", "environment")}
    return re.sub(r"\ba-[0-9a-f]{8}-\d+", "NAME", json.dumps(told, sort_keys=True)), findings


def models_in(kind: Any) -> Iterator[type[BaseModel]]:
    """The models in a type."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for part in get_args(kind):
        yield from models_in(part)


def job_fields(model: type[BaseModel] = TrainingJob, prefix: str = "") -> Iterator[str]:
    """The dotted paths of all fields of a job. Locations and names per target are one field."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        if name in TARGETS or name.endswith("_overrides"):
            continue
        parts = [] if name == "distribution" else [*models_in(field.annotation)]
        inner = [one for part in parts for one in job_fields(part, f"{path}.")]
        is_mapping = str(field.annotation).startswith("dict")
        if is_mapping:
            inner = [f"{path}.*{one.removeprefix(path)}" for one in inner]
        is_list = str(field.annotation).startswith("tuple")
        if inner and not is_list:
            yield from inner
        if not inner or is_list or name in ("spot", "checkpoint"):
            yield path


def test_every_field_has_a_value() -> None:
    """A new field of a job is tried on every target."""
    assert sorted(VALUES) == sorted(job_fields())


@pytest.mark.parametrize("target", TARGETS)
def test_every_field_has_a_row(target: str) -> None:
    """Every target says what it does with it, once, and with no other field."""
    jobs = [row.job for row in fields_of(target)]
    names = [name for name in jobs if name and not name.startswith("settings.")]
    own = {target, f"{target}_overrides"}
    known = {*job_fields(), *job_fields(ProcessingJob)}
    assert sorted({*names}) == sorted(names)
    for name in names:
        is_own = name.split(".")[-1] in own
        is_part = any(name.startswith(f"{field}.") for field in known)
        assert is_own or is_part or name in known, name
    for field in job_fields():
        row_of(target, field)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("field", VALUES)
def test_no_field_is_dropped_in_silence(field: str, target: str, project: Path) -> None:
    """The field does what its row says: it changes what is sent, or a notice or an error speaks of
    it; a few rightly do nothing."""
    needed, value = VALUES[field]
    before = outcome(merged(BASE, needed), target)
    after = outcome(merged(merged(BASE, needed), value), target)
    effect = row_of(target, field).effect
    new = after[1] - before[1]
    assert (before[0] == "") == ((field, target) in OUT_OF_REACH), before[1]
    if (field, target) in OUT_OF_REACH:
        assert "error" in {level for _, level, _ in after[1]}
    elif isinstance(effect, Refused):
        assert effect.code in {code for code, _, _ in after[1]}
    elif isinstance(effect, NoEffect) and (effect.when is None or after[0] == before[0]):
        assert [text for _, level, text in after[1] if level != "error" and effect.why in text]
    elif isinstance(effect, Needless):
        assert after[0] == before[0]
    else:
        assert after != before
        assert after[0] != before[0] or new
