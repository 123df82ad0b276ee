"""The table of fields: every recorded request goes through it and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.rules.engine import value_at
from cloudtrain.targets.common.fields import Field
from cloudtrain.targets.sagemaker.catalogue.shapes import members_of
from cloudtrain.targets.sagemaker.fields import (
    CHANNEL_FIELDS,
    FILE_SYSTEM_FIELDS,
    TRAINING_FIELDS,
    decode_fields,
    encode_fields,
)

GOLDEN = Path(__file__).parents[2] / "golden"
SDK = {
    file.stem: json.loads(file.read_text()).get("request")
    for file in sorted((GOLDEN / "sagemaker_sdk_v2").glob("*.json"))
}
SENT = {name: request for name, request in SDK.items() if request}
RECORDED = {
    name: answer["body"]
    for name, answer in json.loads((GOLDEN / "sagemaker_recorded/answers.json").read_text()).items()
    if "TrainingJobName" in answer.get("body", {})
}


def there_and_back(table: tuple[Field, ...], request: dict[str, Any]) -> dict[str, Any]:
    """The request as the table writes what it reads of it; decisions of the compiler stay."""
    decisions = {
        field.job or field.request: value_at(request, *field.request.split("."))
        for field in table
        if field.codec is None
    }
    return encode_fields(table, decode_fields(table, request) | decisions)


def test_there_are_requests() -> None:
    """Of the SDK, and of the service."""
    assert len(SENT) > 60
    assert len(RECORDED) >= 4


@pytest.mark.parametrize("name", SENT)
def test_a_request_of_the_sdk_comes_back_equal(name: str) -> None:
    """Whole: the table has every field that the SDK sends."""
    assert there_and_back(TRAINING_FIELDS, SENT[name]) == SENT[name]


@pytest.mark.parametrize("name", SENT)
def test_the_channels_of_the_sdk_come_back_equal(name: str) -> None:
    """Data in S3 and in file systems."""
    for channel in SENT[name].get("InputDataConfig", ()):
        mounted = "FileSystemDataSource" in channel["DataSource"]
        table = FILE_SYSTEM_FIELDS if mounted else CHANNEL_FIELDS
        assert there_and_back(table, channel) == channel


@pytest.mark.parametrize("name", RECORDED)
def test_what_the_table_reads_of_an_answer_comes_back_equal(name: str) -> None:
    """The service's answers name defaults, too, which no job has to name."""
    members = members_of("CreateTrainingJob")
    answer = {key: value for key, value in RECORDED[name].items() if key in members}
    values = decode_fields(TRAINING_FIELDS, answer)
    again = encode_fields(TRAINING_FIELDS, values)
    for field in TRAINING_FIELDS:
        path = field.request.split(".")
        if (field.job or field.request) in values and value_at(again, *path) is not None:
            if field.request.endswith("RuleConfigurations"):
                continue  # their empty disks are not sent
            assert value_at(again, *path) == value_at(answer, *path)


def test_reading_leaves_the_request_alone() -> None:
    """Whoever changes a value that was read changes a copy."""
    request = {"Environment": {"A": "b"}, "Tags": [{"Key": "a", "Value": "b"}]}
    values = decode_fields(TRAINING_FIELDS, request)
    values["environment.variables"].clear()
    values["tags"].clear()
    assert request == {"Environment": {"A": "b"}, "Tags": [{"Key": "a", "Value": "b"}]}


BASE: dict[str, Any] = {
    "name": "a",
    "source_dir": None,
    "environment": {"image": "123456789012.dkr.ecr.us-west-2.amazonaws.com/mine:1"},
    "resources": {"instance_type": "ml.g5.xlarge"},
}
PLACE = {"sagemaker": "s3://b/k"}
FILES = {"sagemaker": "fsx://fs-0123abcd/k"}


def noticed(**values: Any) -> list[str]:
    """The fields that a plan says are not sent."""
    job = ct.TrainingJob(**BASE | values)
    role = "arn:aws:iam::123456789012:role/r"
    plan = ct.plan(job, ct.SageMaker(role=role, region="us-west-2"))
    return sorted(".".join(map(str, item.path)) for item in plan.findings if item.code == "SM113")


@pytest.mark.parametrize(
    ("job", "paths"),
    [
        ({}, []),
        ({"resources": BASE["resources"] | {"shm_size": "8g"}}, ["resources.shm_size"]),
        (
            {"environment": BASE["environment"] | {"asset_name": "x", "tags": {"a": "b"}}},
            ["environment.asset_name", "environment.tags"],
        ),
        ({"outputs": {"m": {"asset_name": "x"}, "n": {}}}, ["outputs.m.asset_name"]),
        (
            {"outputs": {"m": {"mode": "upload", "type": "uri_file"}}},
            ["outputs.m.mode", "outputs.m.type"],
        ),
        (
            {"inputs": {"t": PLACE | {"type": "mltable"}, "u": PLACE | {"type": "uri_file"}}},
            ["inputs.t.type"],
        ),
        (
            {"inputs": {"t": PLACE | {"access": "rw"}, "u": FILES | {"access": "rw"}}},
            ["inputs.t.access"],
        ),
        (
            {"inputs": {"t": PLACE | {"mode": "download"}, "u": FILES | {"mode": "download"}}},
            ["inputs.u.mode"],
        ),
    ],
)
def test_a_field_without_effect_is_a_notice(job: dict[str, Any], paths: list[str]) -> None:
    """Only where it has none: a file's `type` decides its path, and a file system has rights."""
    assert noticed(**job) == paths


def test_a_processing_job_uploads_as_it_says() -> None:
    """Its outputs have a mode."""
    job = ct.ProcessingJob(
        **BASE | {"source_dir": ".", "outputs": {"m": {"mode": "mount", "asset_name": "x"}}}
    )
    role = "arn:aws:iam::123456789012:role/r"
    plan = ct.plan(job, ct.SageMaker(role=role, region="us-west-2"))
    found = [item.path for item in plan.findings if item.code == "SM113"]
    assert found == [("outputs", "m", "asset_name")]
