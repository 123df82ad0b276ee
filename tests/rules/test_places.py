"""Places of a job that collide: what one writes, another one reads or writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.code.tree import scan
from cloudtrain.plans.plan import CompileContext, Finding
from cloudtrain.rules.engine import check_plan
from cloudtrain.targets.sagemaker.compile.processing import compile_processing
from tests.rules import azureml_rule_cases as azure
from tests.rules import sagemaker_rule_cases as aws
from tests.rules import test_rules as local
from tests.rules.subjects import subject_of as make_subject
from tests.rules.test_overrides import found

MakeSource = Callable[..., Path]

STORE = "azureml://datastores/workspaceblobstore/paths"
WHOLE = (
    f"azureml://subscriptions/{azure.SUBSCRIPTION}/resourcegroups/research/workspaces/ws"
    "/datastores/workspaceblobstore/paths"
)
BLOB = "https://acct.blob.core.windows.net/data/x"


def on_azure(**places: Any) -> azure.Case:
    """A job with an output `model` and what else is said: inputs, outputs, a checkpoint."""
    return azure.job(**places)


COLLIDE: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "the checkpoint at an input": (
        "CT505", aws.job(inputs=aws.reads(), checkpoint={"sagemaker": "s3://my-bucket/train/"}), ("checkpoint", "sagemaker"),
    ),
    "models in the checkpoint's folder": (
        "CT505",
        aws.job(outputs={"model": {"sagemaker": "s3://my-bucket/x"}}, checkpoint={"sagemaker": "s3://my-bucket/x"}),
        ("checkpoint", "sagemaker"),
    ),
    "the checkpoint is the whole bucket": ("CT505", aws.job(checkpoint={"sagemaker": "s3://my-bucket"}), ("checkpoint", "sagemaker")),
    "the checkpoint by the overrides": (
        "CT505",
        aws.job(
            inputs=aws.reads(),
            sagemaker_overrides={"CheckpointConfig": {"S3Uri": "s3://my-bucket/train", "LocalPath": "/opt/ml/checkpoints"}},
        ),
        ("sagemaker_overrides", "CheckpointConfig"),
    ),
    "a model below the data": (
        "CT506",
        aws.job(inputs=aws.reads(), outputs={"model": {"sagemaker": "s3://my-bucket/train/models"}}),
        ("outputs", "model", "sagemaker"),
    ),
    "a bucket that is read whole": (
        "CT506", aws.job(inputs=aws.reads(sagemaker="s3://my-bucket/")), ("inputs", "train", "sagemaker"),
    ),
    "data below the checkpoint": (
        "CT506", aws.job(inputs=aws.reads(), checkpoint={"sagemaker": "s3://my-bucket/"}), ("checkpoint", "sagemaker"),
    ),
    "two outputs on Azure": (
        "CT505",
        on_azure(outputs={"a": {"azureml": f"{STORE}/x"}, "b": {"azureml": f"{STORE}/x/"}}),
        ("outputs", "b", "azureml"),
    ),
    "one output inside of another": (
        "CT505",
        on_azure(outputs={"a": {"azureml": f"{STORE}/x/y"}, "b": {"azureml": f"{STORE}/x"}}),
        ("outputs", "b", "azureml"),
    ),
    "the workspace's name makes no other place": (
        "CT505",
        on_azure(outputs={"a": {"azureml": f"{STORE}/x"}, "b": {"azureml": f"{WHOLE}/x"}}),
        ("outputs", "b", "azureml"),
    ),
    "another scheme makes no other place": (
        "CT505",
        on_azure(outputs={"a": {"azureml": BLOB}, "b": {"azureml": "wasbs://data@acct.blob.core.windows.net/x"}}),
        ("outputs", "b", "azureml"),
    ),
    "neither does http": (
        "CT505",
        on_azure(inputs={"a": {"azureml": BLOB.replace("https", "http")}}, outputs={"b": {"azureml": BLOB}}),
        ("outputs", "b", "azureml"),
    ),
    "a percent-encoded letter makes no other place": (
        "CT505",
        on_azure(outputs={"a": {"azureml": BLOB}, "b": {"azureml": "wasbs://data@acct.blob.core.windows.net/%78"}}),
        ("outputs", "b", "azureml"),
    ),
    "a key makes no other place": (
        "CT505", on_azure(outputs={"a": {"azureml": BLOB}, "b": {"azureml": f"{BLOB}?sig=x"}}), ("outputs", "b", "azureml"),
    ),
    "the checkpoint in an output": (
        "CT505",
        on_azure(checkpoint={"azureml": f"{STORE}/x/"}, outputs={"model": {"azureml": f"{STORE}/x"}}),
        ("checkpoint", "azureml"),
    ),
    "an output at its input": (
        "CT505",
        on_azure(inputs={"train": {"azureml": f"{STORE}/x"}}, outputs={"model": {"azureml": f"{STORE}/x"}}),
        ("outputs", "model", "azureml"),
    ),
    "an output by the overrides": (
        "CT505",
        on_azure(
            inputs={"train": {"azureml": f"{STORE}/x"}},
            azureml_overrides={"outputs": {"o": {"jobOutputType": "uri_folder", "uri": f"{STORE}/x"}}},
        ),
        ("azureml_overrides", "outputs", "o"),
    ),
    "an output below its input on Azure": (
        "CT506",
        on_azure(inputs={"train": {"azureml": f"{STORE}/x"}}, outputs={"model": {"azureml": f"{STORE}/x/y"}}),
        ("outputs", "model", "azureml"),
    ),
    "an output at its input, here": (
        "CT505",
        local.Case({"inputs": {"a": {"local": "/data"}}, "outputs": {"b": {"local": "/data/../data"}}}),
        ("outputs", "b", "local"),
    ),
    "the checkpoint in an output, here": (
        "CT505",
        local.Case({"outputs": {"model": {"local": "/out"}}, "checkpoint": {"local": "/out/checkpoint"}}),
        ("outputs", "model", "local"),
    ),
}  # fmt: skip

APART: dict[str, Any] = {
    "folders that only begin alike": aws.job(
        inputs=aws.reads(sagemaker="s3://my-bucket/train2"),
        checkpoint={"sagemaker": "s3://my-bucket/train"},
    ),
    "a host that is none": on_azure(
        inputs={"a": {"azureml": "https://[acct/x"}}, outputs={"b": {"azureml": BLOB}}
    ),
    "two inputs at one place": aws.job(
        inputs={"a": {"sagemaker": "s3://my-bucket/x"}, "b": {"sagemaker": "s3://my-bucket/x"}}
    ),
    "a model beside its checkpoints": aws.job(
        outputs={"model": {"sagemaker": "s3://my-bucket/run/models"}},
        checkpoint={"sagemaker": "s3://my-bucket/run/ckpt"},
    ),
    "another datastore": azure.job(
        inputs={"train": {"azureml": "azureml://datastores/a/paths/x"}},
        outputs={"model": {"azureml": "azureml://datastores/b/paths/x"}},
    ),
    "another workspace": azure.job(
        outputs={
            "a": {"azureml": f"{STORE}/x"},
            "b": {"azureml": WHOLE.replace("/ws/", "/other/") + "/x"},
        }
    ),
    "another storage account": azure.job(
        outputs={"a": {"azureml": BLOB}, "b": {"azureml": BLOB.replace("acct", "other")}}
    ),
    "an asset": azure.job(
        inputs={"train": {"azureml": "azureml:x:1"}}, outputs={"model": {"azureml": f"{STORE}/x"}}
    ),
}


@pytest.mark.parametrize("name", COLLIDE)
def test_places_that_collide(name: str, make_source: MakeSource) -> None:
    """The finding is at the place that should move."""
    code, case, path = COLLIDE[name]
    told = [finding for finding in found(case, make_source) if finding.code in ("CT505", "CT506")]
    assert (code, path) in [(finding.code, finding.path) for finding in told]


@pytest.mark.parametrize("name", APART)
def test_places_that_do_not_collide(name: str, make_source: MakeSource) -> None:
    """What only looks alike is left alone."""
    assert not {"CT505", "CT506"} & {finding.code for finding in found(APART[name], make_source)}


def processing(make_source: MakeSource, **places: Any) -> tuple[Finding, ...]:
    """The findings of a processing job on SageMaker."""
    fields: dict[str, Any] = {
        "name": "prep",
        "entry_point": "train.py",
        "resources": aws.on("ml.m5.xlarge"),
    }
    job = ct.ProcessingJob(**fields, **places)
    tree = scan(make_source({"train.py": ""}))
    plan = compile_processing(
        job, ct.SageMaker(), CompileContext("prep-1", tree.identity, aws.ACCOUNT)
    )
    return check_plan(make_subject(job.view, ct.SageMaker(), aws.ACCOUNT, plan, tree, job))


def test_outputs_of_a_processing_job(make_source: MakeSource) -> None:
    """Each output of a processing job has a place of its own in S3, which may be that of another one or of an input."""
    one, two = {"sagemaker": "s3://my-bucket/x"}, {"sagemaker": "s3://my-bucket/y"}
    twice = processing(make_source, outputs={"a": one, "b": one})
    assert [finding.path for finding in twice if finding.code == "CT505"] == [
        ("outputs", "b", "sagemaker")
    ]
    itself = processing(make_source, inputs={"raw": one}, outputs={"a": one})
    assert [finding.path for finding in itself if finding.code == "CT505"] == [
        ("outputs", "a", "sagemaker")
    ]
    assert not [
        item
        for item in processing(make_source, inputs={"raw": one}, outputs={"a": two})
        if item.code == "CT505"
    ]


def test_a_link_leads_to_the_same_place(tmp_path: Path, make_source: MakeSource) -> None:
    """On this machine two names of one folder are one place."""
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    case = local.Case(
        {
            "inputs": {"a": {"local": str(tmp_path / "data")}},
            "outputs": {"b": {"local": str(tmp_path / "link")}},
        }
    )
    assert "CT505" in {finding.code for finding in found(case, make_source)}
