"""The hint of a wrong field is true: what it says to write is accepted, and nothing else is wrong because of it."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import yaml

import cloudtrain as ct
from cloudtrain.errors import JobError, Problem, ValidNames
from cloudtrain.job.file import parse_job
from tests.hints import one_of, suggested, words_before_name

SUGGESTS = words_before_name(suggested(""))
LISTS = words_before_name(one_of(""))

WRONG = """\
inputs: {x: {local: /d, type: uri_flie}}
inputs: {x: {local: /d, fomat: csv}}
inputs: {x: {local: /d, acess: rw}}
inputs: {x: csv}
inputs: {x: s3://bucket/train}
inputs: {x: {}}
inputs: {x: {local: /d, value: 3}}
inputs: {x: {local: /d, shuffle_seed: csv}}
inputs: {x: {local: /d, attribute_names: csv}}
inputs: {x: {local: /d, data_type: csv}}
inputs: {x: {local: /d, compression: csv}}
inputs: {x: {value: .nan}}
inputs: {x-y: {local: /d}}
inputs: {x: {local: /d, shard: "yes"}}
outputs: {x: {mode: csv}}
outputs: csv
checkpoint: csv
max_runtime: csv
max_runtime: 0
max_runtime: .inf
resources: {shm_size: 0}
resources: {shm_size: 12q}
resources: {instance_count: 0}
resources: {instance_count: 5000}
resources: {instance_count: two}
resources: {instance_count: "2"}
resources: {instance_count: 2.0}
resources: {interconnect: csv}
resources: {instance_preferences: ml.g5.xlarge}
resources: {num_nodes: 2}
resources: {max_wait: 2h}
environment: {version: 2.1}
environment: {conda_file: 3}
environment: {variables: {A: 1}}
environment: {variables: csv}
environment: {variables: [A=1]}
environment: {shm_size: 2g}
spot: csv
spot: true
tags: csv
metrics: csv
metrics: {a: 3}
description: 3
hyperparameters: csv
hyperparameters: {a: .nan}
sagemaker_overrides: csv
azureml_overrides: [1]
distribution: csv
distribution: ddp
distribution: {type: torhc}
distribution: {type: pytorch}
distribution: {processes_per_instance: 2}
distribution: {type: tensorflow, workers: csv}
distribution: {type: tensorflow, processes_per_instance: 2}
distribution: {type: tensorflow, parameter_servers: 2}
distribution: {type: none, processes_per_instance: 2}
distribution: {type: torch, workers: 2}
distribution: {type: torch, options: x}
distribution: {type: mpi, mpi_options: x}
distribution: {type: mpi, options: 3}
distribution: {type: smp, version: 3}
distribution: {type: smp, version: 2, mpi_options: x}
processes_per_instance: 4
resources: {processes_per_instance: 4}
instance_type: ml.g5.xlarge
instance_cuont: 2
command: python train.py
hyperparameters: {a: "${{inputs.q}}"}
"""
"""Lines that are added to a small job, each with one mistake."""

HUMAN = {
    "inputs: {x: {local: /d, fomat: csv}}",
    "inputs: {x: {local: /d, value: 3}}",
    "command: python train.py",
}
"""Nothing is near, or one of two has to go: only a human can choose."""


def problems(data: dict[str, Any]) -> list[Problem]:
    try:
        ct.TrainingJob(**data)
    except JobError as error:
        return list(error.problems)
    return []


def follow(data: dict[str, Any], problem: Problem) -> dict[str, Any] | None:
    """The job after what the hint says; None where it says nothing that can be typed."""
    hint, path, job = problem.hint or "", problem.path, copy.deepcopy(data)
    holder: Any = job
    for part in path[:-1]:
        holder = holder[part] if isinstance(holder, list) else holder.setdefault(part, {})
    name = path[-1]
    if hint.startswith("remove it"):
        del holder[name]
    elif found := re.search(r"it belongs under `([\w.]+)`", hint):
        job.setdefault(found[1], {})[name] = holder.pop(name)
        if kind := re.search(r"with a `type` that has it: `type: (\w+)`", hint):
            job[found[1]].setdefault("type", kind[1])
    elif found := re.match(r"add `(\w+)` under `(\w+)`", hint):
        job.setdefault(found[2], {})[found[1]] = {"local": "/d"}
    elif found := re.match(
        r"(?:write|add)(?: for example| a mapping:)? `(\w+: .*?)`(?: under `(\w+)`)?", hint
    ):
        text = yaml.safe_load(found[1])
        home = (
            job[found[2]]
            if found[2]
            else holder[name]
            if "needs a location" in problem.message and isinstance(holder.get(name), dict)
            else holder
        )
        home.update({key: {} if "..." in str(value) else value for key, value in text.items()})
    elif found := re.match(
        rf"(?:{SUGGESTS}|{LISTS}|write(?: for example| a mapping:)? )`([^`]*)`", hint
    ):
        is_unknown = problem.code == "CT010"
        if isinstance(problem.hint, ValidNames) and is_unknown:
            return None
        is_name = is_unknown or "cannot name" in problem.message
        if not is_name:
            holder[name] = yaml.safe_load(found[1])
        else:
            *above, new = found[1].split(".")
            home = job if above else holder
            for part in above:
                home = home.setdefault(part, {})
            home[new] = holder.pop(name)
    else:
        return None
    return job


@pytest.mark.parametrize("line", WRONG.splitlines())
def test_a_hint_that_is_followed_helps(line: str) -> None:
    """The problem is gone, and no other one has come."""
    data = {"name": "job", "entry_point": "train.py"} | yaml.safe_load(line)
    before = problems(data)
    assert before
    mended = follow(data, before[0])
    assert (mended is None) == (line in HUMAN), before[0].hint
    assert mended is None or problems(mended) == before[1:], f"{before[0].hint}: {mended}"


@pytest.mark.parametrize(
    ("place", "name", "hint"),
    [
        (
            "resources",
            "processes_per_instance",
            "it belongs under `distribution` with a `type` that has it: `type: torch`",
        ),
        ("environment", "instance_type", "it belongs under `resources`"),
        ("resources", "processes_per_instanse", SUGGESTS),
    ],
)
def test_a_field_at_the_wrong_place_is_not_a_similar_one(place: str, name: str, hint: str) -> None:
    """A field that exists elsewhere is the one that was meant, even if one of this place has nearly its name."""
    [problem] = problems({"name": "job", "entry_point": "train.py", place: {name: 2}})
    assert (problem.hint or "").startswith(hint)


@pytest.mark.parametrize(
    ("format", "text", "hint"),
    [
        ("toml", 'distribution = "ddp"', 'write `distribution = {type = "torch"}`'),
        ("toml", 'tags = "x"', 'write for example `tags = {NAME = "text"}`'),
        ("toml", '[inputs]\nx = "s3://b/k"', 'write `x = {sagemaker = "s3://b/k"}`'),
        ("toml", '[environment]\nvariables = ["A=1"]', 'write `variables = {A = "1"}`'),
        ("json", '"tags": ["A=1", "B=x y"]', 'write `"tags": {"A": "1", "B": "x y"}`'),
        (
            "json",
            '"hyperparameters": ["lr=0.1", "bf16"]',
            'write `"hyperparameters": {"lr": 0.1}`',
        ),
        (
            "toml",
            '[environment]\nsecrets = ["A=1"]',
            'write for example `secrets = {NAME = {azureml = "..."}}`',
        ),
        (
            "toml",
            '[resources]\ninstance_preferences = "ml.g5.xlarge"',
            'write `instance_preferences = ["ml.g5.xlarge"]`',
        ),
        ("json", '"distribution": "ddp"', 'write `"distribution": {"type": "torch"}`'),
        (
            "json",
            '"resources": {"instance_count": "two"}',
            'write for example `"instance_count": 1`',
        ),
    ],
)
def test_a_hint_is_written_as_the_file_is(format: Any, text: str, hint: str) -> None:
    """YAML would be a mistake of its own in a TOML or JSON file."""
    start = (
        'name = "job"\nentry_point = "train.py"\n'
        if format == "toml"
        else '{"name": "job", "entry_point": "train.py", '
    )
    with pytest.raises(JobError) as caught:
        parse_job(start + text + ("" if format == "toml" else "}"), format=format, file="job")
    assert [problem.hint for problem in caught.value.problems] == [hint]
