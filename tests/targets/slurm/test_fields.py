"""What a Slurm cluster does with each field of a job: it is sent, has a notice, or is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import cloudtrain as ct
from cloudtrain.errors import JobError
from cloudtrain.job.data import Checkpoint, Input, Output
from cloudtrain.job.processing import ProcessingInput, ProcessingOutput
from cloudtrain.job.training import (
    Capacity,
    Environment,
    Resources,
    Spot,
    Tracking,
    TrainingJob,
)
from cloudtrain.lifecycle.store.records import labels_of
from cloudtrain.plans.plan import Finding
from cloudtrain.system.plugins import target_names
from cloudtrain.targets.common.fields import NoEffect, Refused
from cloudtrain.targets.slurm.fields import FIELDS
from tests.locks import PROJECT, package, write

PARTS: dict[str, type[BaseModel]] = {
    "resources": Resources,
    "environment": Environment,
    "inputs.*": Input,
    "outputs.*": Output,
    "checkpoint": Checkpoint,
    "capacity": Capacity,
    "spot": Spot,
    "tracking": Tracking,
}
"""The models inside a job. Each stands as one row per field, and not as a row of its own."""

ONLY_PROCESSING = {"inputs.*.path": ProcessingInput, "outputs.*.path": ProcessingOutput}

OF_ONE_KIND = {"distribution.added_property"}
"""Fields that only some kinds of a part have, beside the row of the whole part."""

ONLY_SHOWN = {"description"}
"""Fields that rightly change nothing: people read them in the job."""

LONGER: dict[str, Any] = {"alternatives": [{"set": ["max_runtime=2h"]}]}
GROUPS = [{"name": "a", "instance_type": "ml.p4d.24xlarge", "instance_count": 2}]
NUMPY = '[\n    { name = "numpy" },\n]\n'
LOCK = (
    'version = 1\nrevision = 5\nrequires-python = ">=3.10"\n\n'
    + package("own", "0.1", source='virtual = "."', archives=False)
    + f"[package.optional-dependencies]\ngpu = {NUMPY}\n"
    + f"[package.dev-dependencies]\ntrain = {NUMPY}\n"
    + '[package.metadata]\nrequires-dist = [{ name = "numpy", marker = "extra == \'gpu\'" }]\n'
    + f"[package.metadata.requires-dev]\ntrain = {NUMPY}\n"
    + package("numpy", "2.3.0")
)
"""The lock of a project with one extra and one group."""

OF_PROJECT = {"requirements": "project/pyproject.toml", "python": "3.12"}
MANIFEST = {"data_type": "augmented_manifest", "attribute_names": ["image"]}

VALUES: dict[str, Any] = {
    "name": "other",
    "source_dir": "other",
    "entry_point": "other.py",
    "command": {"entry_point": None, "hyperparameters": {}, "command": "python other.py"},
    "hyperparameters": {"epochs": 7},
    "arguments": ["--fast"],
    "bare_flags": {"bare_flags": True, "hyperparameters": {"fast": True}},
    "distribution": {"type": "torch"},
    "resources.instance_count": 2,
    "resources.instance_type": {"slurm": "p5"},
    "resources.gpu": {"resources": {"gpu": "H100", "gpus_per_instance": 8}},
    "resources.gpus_per_instance": 8,
    "resources.interconnect": "rdma",
    "resources.instance_groups": GROUPS,
    "resources.distribution_groups": {
        "resources": {"instance_groups": GROUPS, "distribution_groups": ["a"]}
    },
    "resources.instance_preferences": ["ml.p4d.24xlarge"],
    "resources.volume_size": "100g",
    "resources.shm_size": "8g",
    "environment.framework": "pytorch",
    "environment.version": "2.8",
    "environment.base": "pytorch2.8.0",
    "environment.python": "3.12",
    "environment.image": {"slurm": "/images/pytorch.sif"},
    "environment.conda_file": "conda.yml",
    "environment.build": "image",
    "environment.dockerfile": "Dockerfile.gpu",
    "environment.asset_name": "vision",
    "environment.asset_version": "2",
    "environment.description": "for vision",
    "environment.tags": {"team": "vision"},
    "environment.requirements": "more.txt",
    "environment.groups": {"environment": OF_PROJECT | {"groups": ["train"]}},
    "environment.extras": {"environment": OF_PROJECT | {"extras": ["gpu"]}},
    "environment.variables": {"NCCL_DEBUG": "INFO"},
    "environment.secrets": {"TOKEN": "env:TOKEN"},
    "environment.slurm": "vision",
    "inputs.*.slurm": "/data/other",
    "inputs.*.value": {"inputs": {"train": {"value": 3, "slurm": None}}},
    "inputs.*.mode": "download",
    "inputs.*.type": "uri_file",
    "inputs.*.channel": "train-1",
    "inputs.*.shard": True,
    "inputs.*.content_type": "text/csv",
    "inputs.*.compression": "gzip",
    "inputs.*.record_wrapper": "recordio",
    "inputs.*.data_type": "manifest",
    "inputs.*.attribute_names": {"inputs": {"train": MANIFEST}},
    "inputs.*.shuffle_seed": 3,
    "inputs.*.instance_groups": ["a"],
    "inputs.*.access": "rw",
    "outputs.*.slurm": "/data/scores",
    "outputs.*.mode": "upload",
    "outputs.*.type": "uri_file",
    "outputs.*.asset_name": "scores",
    "outputs.*.asset_version": "2",
    "checkpoint.slurm": "/data/checkpoint",
    "checkpoint.keep": {"checkpoint": {"keep": 5, "slurm": "/data/own"}},
    "distribution.added_property": {"distribution": {"type": "torch", "added_property": 3}},
    "capacity.alternatives": {"capacity": LONGER},
    "capacity.wait": {"capacity": LONGER | {"wait": "1h"}},
    "capacity.give_up_after": {"capacity": LONGER | {"give_up_after": "1d"}},
    "spot.max_wait": "5h",
    "max_runtime": "2h",
    "stop_when_idle": "30m",
    "stop_when_stalled": "30m",
    "metrics": {"loss": "loss=([0-9.]+)"},
    "tracking.mlflow": "https://mlflow.example.org",
    "tracking.wandb": "offline",
    "tracking.tensorboard": True,
    "tags": {"team": "vision"},
    "slurm_overrides": {"nice": 5},
}
"""For each field a legal value that is not the default; or, where a value needs others beside it,
the fields of a job."""

BESIDE: dict[str, dict[str, Any]] = {
    "bare_flags": {"hyperparameters": {"fast": True}},
    "environment.groups": {"environment": OF_PROJECT},
    "environment.extras": {"environment": OF_PROJECT},
    "capacity.wait": {"capacity": LONGER},
    "capacity.give_up_after": {"capacity": LONGER},
    "spot.max_wait": {"spot": {}},
}
"""The fields that some values need beside them."""

BASE: dict[str, Any] = {
    "name": "digits",
    "source_dir": "src",
    "entry_point": "train.py",
    "hyperparameters": {"epochs": 1},
    "max_runtime": "1h",
    "inputs": {"train": {"slurm": "/data/train"}},
    "outputs": {"scores": {}},
    "checkpoint": {"slurm": "/data/own"},
}

ROWS = {field.job: field for field in FIELDS}
SENT = [path for path, field in ROWS.items() if field.effect is None and path not in ONLY_SHOWN]
DROPPED = [
    path
    for path, field in ROWS.items()
    if isinstance(field.effect, NoEffect) and path not in ONLY_PROCESSING
]
REFUSED = [path for path, field in ROWS.items() if isinstance(field.effect, Refused)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code, and the files that a job can name, in the working directory."""
    files = {
        "src/train.py": "print(1)\n",
        "src/other.py": "print(2)\n",
        "src/requirements.txt": "numpy\n",
        "src/more.txt": "numpy\nscipy\n",
        "src/conda.yml": "name: vision\ndependencies: [python=3.12]\n",
        "src/image/Dockerfile": "FROM scratch\n",
        "src/project/pyproject.toml": (
            PROJECT.format(dependencies="")
            + '[project.optional-dependencies]\ngpu = ["numpy"]\n'
            + '[dependency-groups]\ntrain = ["numpy"]\n'
        ),
        "src/project/uv.lock": LOCK,
        "other/train.py": "print(3)\n",
    }
    write(tmp_path, files)
    monkeypatch.chdir(tmp_path)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for name, value in changes.items():
        old = result.get(name)
        is_part = isinstance(value, dict) and isinstance(old, dict)
        result[name] = merged(old, value) if is_part and name in PARTS_AND_ITEMS else value
    return result


PARTS_AND_ITEMS = {"resources", "environment", "inputs", "train", "outputs", "scores", "checkpoint"}


def with_field(path: str) -> dict[str, Any]:
    """The fields of a job with the value of a field."""
    value = VALUES[path]
    top = path.partition(".")[0]
    if isinstance(value, dict) and top in value:
        return merged(BASE, value)
    item = {"inputs": "train", "outputs": "scores"}.get(top, "")
    changes = value
    for name in reversed(path.replace("*", item).split(".")):
        changes = {name: changes}
    return merged(BASE, changes)


def planned(fields: Mapping[str, Any]) -> ct.Plan:
    """The plan on a cluster with containers, whose environments are built for a job."""
    cluster = ct.Slurm(shared_dir="/fsx/ct", container="apptainer", build_environment=True)
    return ct.plan(TrainingJob(**fields), cluster)


def effects(fields: Mapping[str, Any]) -> str:
    """All that a field may change: the request, the uploads, the processes, and the run's labels in
    the store."""
    plan = planned(fields)
    content = plan.to_dict()
    kept = {name: content[name] for name in ("request", "uploads")}
    labels = labels_of(TrainingJob(**fields))
    text = json.dumps(kept, sort_keys=True) + repr(labels)
    return text.replace(plan.run_name, plan.job_name)


def fields_of(model: type[BaseModel], start: str = "") -> Iterator[str]:
    """Every field of a model, but the values of other targets."""
    others = set(target_names()) - {"slurm"}
    for name in model.model_fields:
        if name.removesuffix("_overrides") not in others:
            yield f"{start}{name}"


def test_every_field_has_one_row() -> None:
    """No field of a job is missing from the table, and none stands in it twice."""
    whole = set(fields_of(TrainingJob)) - {part.partition(".")[0] for part in PARTS}
    inner = {path for part, model in PARTS.items() for path in fields_of(model, f"{part}.")}
    rows = whole | inner | OF_ONE_KIND | ONLY_PROCESSING.keys()
    assert sorted(rows) == sorted(field.job for field in FIELDS)


def test_every_row_has_a_value() -> None:
    """Each row is tried below."""
    assert VALUES.keys() == ROWS.keys() - ONLY_PROCESSING.keys() - ONLY_SHOWN


@pytest.mark.parametrize("path", SENT)
def test_sent(path: str) -> None:
    """A field without an effect in its row changes the request, the uploads or the store."""
    base = merged(BASE, BESIDE.get(path, {}))
    assert effects(base) != effects(with_field(path))


@pytest.mark.parametrize("path", DROPPED)
def test_not_sent(path: str) -> None:
    """A field that is not sent has a notice at its place, with what to type instead."""
    (found,) = [
        finding for finding in notices(with_field(path)) if finding.path[-1] == path.split(".")[-1]
    ]
    assert found.message.endswith(f", so `{found.path[-1]}` is not sent")
    assert "`" in (found.hint or "")
    assert notices(BASE) == []


def notices(fields: Mapping[str, Any]) -> list[Finding]:
    return [finding for finding in planned(fields).findings if finding.code == "SL209"]


def test_fields_of_processing_jobs() -> None:
    """A path in a container of SageMaker has no effect on a cluster."""
    place = "/opt/ml/processing/data"
    job = ct.ProcessingJob(
        name="digits",
        source_dir="src",
        entry_point="train.py",
        inputs={"train": {"slurm": "/data/train", "path": place}},
        outputs={"scores": {"path": place}},
    )
    plan = ct.plan(job, ct.Slurm(shared_dir="/fsx/ct"))
    paths = [finding.path for finding in plan.findings if finding.code == "SL209"]
    assert paths == [("inputs", "train", "path"), ("outputs", "scores", "path")]


@pytest.mark.parametrize("path", REFUSED)
def test_refused(path: str, find_codes: Callable[[Mapping[str, Any]], set[str]]) -> None:
    """A field that the target refuses has the error or the finding of its row."""
    effect = ROWS[path].effect
    assert isinstance(effect, Refused)
    assert effect.code in find_codes(with_field(path))


@pytest.fixture
def find_codes() -> Callable[[Mapping[str, Any]], set[str]]:
    """The codes of what is wrong with a job, on a cluster without an environment."""

    def find(fields: Mapping[str, Any]) -> set[str]:
        try:
            plan = ct.plan(TrainingJob(**fields), ct.Slurm(shared_dir="/fsx/ct"))
        except JobError as error:
            return {problem.code for problem in error.problems if problem.code}
        return {finding.code for finding in plan.findings}

    return find
