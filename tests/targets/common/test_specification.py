"""The launch specification as JSON: what is written can be read, and what was recorded is written the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cloudtrain as ct
from cloudtrain.plans.plan import Bundle, CompileContext, Machine
from cloudtrain.targets.common.launch import LocalAccount
from cloudtrain.targets.common.specification import CodePlace, LaunchSpecification, StartedProcess
from cloudtrain.targets.local.compile import compile_local
from cloudtrain.targets.local.variants import compile_here

GOLDEN = Path(__file__).parents[2] / "golden"
RECORDED = sorted([*(GOLDEN / "local").glob("*.json"), *(GOLDEN / "launch").glob("*.json")])

SPECIFICATIONS = st.builds(
    LaunchSpecification,
    emulates=...,
    code=st.builds(CodePlace, copies=...),
    files=...,
    programs=...,
    links=...,
    failure_files=...,
    places=...,
    processes=st.lists(st.builds(StartedProcess, directory=...), max_size=3).map(tuple),
    patience=st.floats(allow_nan=False),
)

JOB: dict[str, Any] = {
    "name": "job",
    "entry_point": "train.py",
    "distribution": {"type": "torch"},
    "inputs": {"train": {"local": "/data", "shard": True}},
    "outputs": {"plots": {}},
    "checkpoint": {"local": "/kept"},
    "environment": {"framework": "pytorch", "version": "2.8"},
    "resources": {
        "instance_count": 2,
        "instance_type": {"sagemaker": "ml.g5.12xlarge", "azureml": "Standard_ND96asr_v4"},
    },
}


@given(SPECIFICATIONS)
def test_what_is_written_can_be_read(specification: LaunchSpecification) -> None:
    """Through the text of a file too."""
    text = json.dumps(specification.to_json())
    assert LaunchSpecification.from_json(json.loads(text)) == specification


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_what_was_recorded_is_written_the_same(file: Path) -> None:
    """Byte for byte: keys, their order, and what is left out."""
    recorded = json.loads(file.read_text())["request"]
    assert json.dumps(LaunchSpecification.from_json(recorded).to_json()) == json.dumps(recorded)


@pytest.mark.parametrize("service", ["sagemaker", "azureml"])
@pytest.mark.parametrize("image", [None, "own.example/train:1"])
def test_emulations_are_as_recorded(
    service: str, image: str | None, golden: Callable[[str, str], None]
) -> None:
    """The whole request of a job with inputs, outputs and checkpoints, in the service's image and in one's own."""
    environment = JOB["environment"] if image is None else {"image": image}
    job = ct.TrainingJob(**{**JOB, "environment": environment})
    plan = compile_local(job, ct.Local(emulate=service), context())
    golden(f"launch/{service}{'' if image is None else '_own_image'}.json", text_of(plan.request))


def test_processing_is_as_recorded(golden: Callable[[str, str], None]) -> None:
    """The whole request of a job whose two instances have a shard each."""
    fields = {name: JOB[name] for name in ("name", "entry_point", "inputs", "outputs", "resources")}
    plan = compile_here(ct.ProcessingJob(**fields), ct.Local(), context())
    golden("launch/processing.json", text_of(plan.request))


def context() -> CompileContext:
    """A context that looks nothing up."""
    return CompileContext(
        "job-1", Bundle("ab" * 32, 1000, 3), LocalAccount("/state", "/py/bin/python", Machine(4))
    )


def text_of(request: dict[str, Any]) -> str:
    """What a golden file holds."""
    return json.dumps({"request": request}, indent=1) + "\n"


def removed(*way: str | int) -> Any:
    """A recorded specification without what is there."""
    recorded = json.loads((GOLDEN / "local/torch_2x2.json").read_text())["request"]
    inner = recorded
    for key in way[:-1]:
        inner = inner[key]
    del inner[way[-1]]
    return recorded


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "it is not a JSON object"),
        ({"version": 1}, "`name` is missing or wrong"),
        (removed("code", "sha256"), "`code.sha256` is missing or wrong"),
        (removed("processes", 1, "argv"), "`processes[1].argv` is missing or wrong"),
        ({**removed("ports"), "ports": [1]}, "`ports[0]` is missing or wrong"),
        ({**removed("grace_period"), "grace_period": "30"}, "`grace_period` is missing or wrong"),
    ],
)
def test_damage_is_named(data: Any, message: str) -> None:
    """Not what Python makes of it later."""
    with pytest.raises(ValueError) as caught:
        LaunchSpecification.from_json(data)
    assert str(caught.value) == message


@pytest.mark.parametrize("key", ["max_runtime", "version"])
def test_what_an_earlier_version_left_out(key: str) -> None:
    """What may be null may be missing."""
    assert LaunchSpecification.from_json(removed(key)) == LaunchSpecification.from_json(
        {**removed(key), "max_runtime": None}
    )


def test_what_a_later_version_adds() -> None:
    """Keys that are not known are no damage."""
    recorded = removed("version")
    assert LaunchSpecification.from_json(
        {**recorded, "colour": "red"}
    ) == LaunchSpecification.from_json(recorded)
