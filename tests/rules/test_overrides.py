"""Rules look at the request that is sent: what the overrides write counts as what the job's fields say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.plans.plan import Finding
from tests.rules import azureml_rule_cases as azure
from tests.rules import sagemaker_rule_cases as aws
from tests.rules import test_rules as local
from tests.rules.test_azureml_rules import check as check_azure
from tests.rules.test_sagemaker_rules import check as check_aws

MakeSource = Callable[..., Path]

TORCH, MPI, NONE = {"type": "torch"}, {"type": "mpi"}, {"type": "none"}
P4D, G5 = aws.on("ml.p4d.24xlarge", 2), aws.on("ml.g5.12xlarge")
PROCESSES = "sagemaker_mpi_num_of_processes_per_host"


def on_aws(over: dict[str, Any], **fields: Any) -> aws.Case:
    """A job on SageMaker whose overrides say more."""
    return aws.Case({"sagemaker_overrides": over, "max_runtime": "1h"} | fields)


def on_azure(over: dict[str, Any], **fields: Any) -> azure.Case:
    """A job on Azure ML whose overrides say more."""
    return azure.Case({"azureml_overrides": over} | fields)


def found(case: Any, make_source: MakeSource) -> tuple[Finding, ...]:
    """The findings on whichever target the case is for."""
    if isinstance(case, local.Case):
        return local.check(case, make_source)
    return (
        check_aws(case, make_source)
        if isinstance(case, aws.Case)
        else check_azure(case, make_source)
    )


WRONG: dict[str, tuple[str, Any, tuple[str, ...], str]] = {
    "a rank": (
        "CT204", on_aws({"Environment": {"RANK": "0"}}), ("sagemaker_overrides", "Environment", "RANK"),
        "remove `Environment.RANK` from `sagemaker_overrides`",
    ),
    "an address on Azure": (
        "CT204", on_azure({"environmentVariables": {"MASTER_ADDR": "x"}}),
        ("azureml_overrides", "environmentVariables", "MASTER_ADDR"),
        "remove `environmentVariables.MASTER_ADDR` from `azureml_overrides`",
    ),
    "a rank in an emulation": (
        "CT204",
        local.Case(
            {"resources": {"instance_type": "ml.m5.xlarge"}, "sagemaker_overrides": {"Environment": {"LOCAL_RANK": "0"}}},
            local.ct.Local(emulate="sagemaker"),
        ),
        ("sagemaker_overrides", "Environment", "LOCAL_RANK"), "remove `Environment.LOCAL_RANK`",
    ),
    "a rank among mpirun's options": (
        "CT204", aws.job(resources=P4D, distribution=MPI | {"options": "-x RANK=3"}), ("distribution", "options"),
        "remove `-x RANK` from `distribution.options`",
    ),
    "a rank among mpirun's options on Azure": (
        "CT204", azure.job(distribution=MPI | {"options": "-x WORLD_SIZE=3"}), ("distribution", "options"),
        "remove `-x WORLD_SIZE` from `distribution.options`",
    ),
    "a rank among mpirun's options, overridden": (
        "CT204",
        on_aws({"HyperParameters": {"sagemaker_mpi_custom_mpi_options": '"-x RANK=3"'}}, resources=P4D, distribution=MPI),
        ("sagemaker_overrides", "HyperParameters", "sagemaker_mpi_custom_mpi_options"),
        "remove `HyperParameters.sagemaker_mpi_custom_mpi_options`",
    ),
    "a rank on this machine": (
        "CT204", local.Case({"distribution": MPI | {"options": "-x RANK=3"}}), ("distribution", "options"), "remove `-x RANK`",
    ),
    "a name": (
        "CT203", on_azure({"environmentVariables": {"a-b": "x"}}), ("azureml_overrides", "environmentVariables", "a-b"),
        "write `a_b`",
    ),
    "a secret": (
        "CT205", on_aws({"Environment": {"HF_TOKEN": "hf_1"}}), ("sagemaker_overrides", "Environment", "HF_TOKEN"), "secretsmanager:",
    ),
    "a hyperparameter's name": (
        "CT201", on_aws({"HyperParameters": {"--lr": "1"}}), ("sagemaker_overrides", "HyperParameters", "--lr"), "write `lr`",
    ),
    "a hyperparameter for a shell": (
        "SM601",
        aws.Case({"sagemaker_overrides": {"HyperParameters": {"note": '"two words"'}}}, {"launch": "toolkit"}),
        ("sagemaker_overrides", "HyperParameters", "note"), "remove `HyperParameters.note`",
    ),
    "several instances": (
        "CT501", on_aws({"ResourceConfig": {"InstanceCount": 3}}), ("distribution",), "add `distribution: {type: torch}`",
    ),
    "several instances on Azure": (
        "CT501", on_azure({"resources": {"instanceCount": 3}}), ("distribution",), "add `distribution: {type: torch}`",
    ),
    "several instances here": (
        "CT501", local.Case(target=local.ct.Local(instance_count=2)), ("distribution",), "type: torch",
    ),
    "a distribution that is taken away": (
        "CT501", on_azure({"distribution": None, "resources": {"instanceCount": 2}}, distribution=TORCH),
        ("azureml_overrides", "distribution"), "remove `distribution` from `azureml_overrides`",
    ),
    "too many processes": (
        "SM332", on_aws({"HyperParameters": {PROCESSES: "5"}}, resources=G5, distribution=TORCH),
        ("sagemaker_overrides", "HyperParameters", PROCESSES), f"remove `HyperParameters.{PROCESSES}` from `sagemaker_overrides`",
    ),
    "too few processes": (
        "SM331", on_aws({"HyperParameters": {PROCESSES: "2"}}, resources=G5, distribution=TORCH),
        ("sagemaker_overrides", "HyperParameters", PROCESSES), f"remove `HyperParameters.{PROCESSES}`",
    ),
    "no launcher any more": (
        "SM331", on_aws({"HyperParameters": {"sagemaker_torch_distributed_enabled": None}}, resources=G5, distribution=TORCH),
        ("sagemaker_overrides", "HyperParameters"), "remove `HyperParameters` from `sagemaker_overrides`",
    ),
    "no distribution any more": (
        "AZ321", on_azure({"distribution": None}, resources=azure.on(azure.EIGHT_GPUS), distribution=TORCH),
        ("azureml_overrides", "distribution"), "remove `distribution` from `azureml_overrides`",
    ),
    "another launcher": (
        "SM323", on_aws({"HyperParameters": {"sagemaker_mpi_enabled": "true"}}, resources=aws.TRN, distribution=NONE),
        ("sagemaker_overrides", "HyperParameters"), "remove `HyperParameters` from `sagemaker_overrides`",
    ),
    "too many processes on Azure": (
        "AZ322", on_azure({"distribution": {"processCountPerInstance": 2}}, distribution=TORCH),
        ("azureml_overrides", "distribution", "processCountPerInstance"),
        "remove `distribution.processCountPerInstance` from `azureml_overrides`",
    ),
    "spot capacity": (
        "CT401",
        on_aws({"EnableManagedSpotTraining": True, "StoppingCondition": {"MaxWaitTimeInSeconds": 7200}}),
        ("sagemaker_overrides", "StoppingCondition", "MaxWaitTimeInSeconds"), "checkpoint",
    ),
    "a metric": (
        "CT206",
        on_aws({"AlgorithmSpecification": {"MetricDefinitions": [{"Name": "loss", "Regex": "loss="}]}}),
        ("sagemaker_overrides", "AlgorithmSpecification", "MetricDefinitions"), "loss=([0-9.eE+-]+)",
    ),
    "spot training switched off": (
        "CT210",
        on_aws({"EnableManagedSpotTraining": False}, spot={"max_wait": "2h"}, checkpoint={"sagemaker": "s3://my-bucket/c"}),
        ("sagemaker_overrides", "EnableManagedSpotTraining"), "remove `EnableManagedSpotTraining`",
    ),
    "another address of an input": (
        "CT210",
        on_aws(
            {"InputDataConfig": [{"ChannelName": "train", "DataSource": {"S3DataSource": {"S3Uri": "s3://old/d"}}}]},
            inputs={"train": {"sagemaker": "s3://my-bucket/d"}},
        ),
        ("sagemaker_overrides", "InputDataConfig"), "remove `InputDataConfig` from `sagemaker_overrides`",
    ),
    "another address of an input on Azure": (
        "CT210",
        on_azure(
            {"inputs": {"train": {"uri": "https://a.blob.core.windows.net/c/old"}}},
            inputs={"train": {"azureml": "https://a.blob.core.windows.net/c/new"}},
        ),
        ("azureml_overrides", "inputs", "train"), "remove `inputs.train` from `azureml_overrides`",
    ),
    "another limit on Azure": (
        "CT210", on_azure({"limits": {"timeout": "PT600S"}}, max_runtime="1h"),
        ("azureml_overrides", "limits", "timeout"), "remove `limits.timeout` from `azureml_overrides`",
    ),
    "a group twice": (
        "SM211",
        on_aws({"ResourceConfig": {
            "InstanceType": None, "InstanceCount": None,
            "InstanceGroups": [{"InstanceGroupName": "a", "InstanceType": "ml.m5.xlarge", "InstanceCount": 1}] * 2,
        }}),
        ("sagemaker_overrides", "ResourceConfig", "InstanceGroups"), "call one `a-2`",
    ),
}  # fmt: skip

RIGHT: dict[str, tuple[str, Any]] = {
    "a variable that is taken away": (
        "CT204", on_aws({"Environment": {"RANK": None}}, environment={"variables": {"RANK": "0"}}),
    ),
    "a variable that is forwarded": ("CT204", aws.job(resources=P4D, distribution=MPI | {"options": "-x RANK"})),
    "a checkpoint by the overrides": (
        "CT401",
        on_aws(
            {"CheckpointConfig": {"S3Uri": "s3://my-bucket/c", "LocalPath": "/opt/ml/checkpoints"}},
            spot={"max_wait": "2h"}, max_runtime="1h",
        ),
    ),
    "one instance by the overrides": (
        "CT501", on_aws({"ResourceConfig": {"InstanceCount": 1}}, resources=aws.on("ml.g5.xlarge", 4)),
    ),
    "one instance by the overrides, on Azure": (
        "CT501", on_azure({"resources": {"instanceCount": 1}}, resources=azure.on(azure.ONE_GPU, 4)),
    ),
    "a distribution by the overrides": (
        "CT501",
        on_azure({"distribution": {"distributionType": "PyTorch", "processCountPerInstance": 1}, "resources": {"instanceCount": 2}}),
    ),
    "a longer wait by the overrides": (
        "CT402",
        on_aws({"StoppingCondition": {"MaxWaitTimeInSeconds": 7200}}, spot={"max_wait": "1h"}, max_runtime="2h"),
    ),
    "as many processes as the other type has GPUs": (
        "SM332",
        on_aws(
            {"ResourceConfig": {"InstanceType": "ml.g5.48xlarge"}}, resources=G5,
            distribution=TORCH | {"processes_per_instance": 8},
        ),
    ),
    "more about a channel": (
        "CT210",
        on_aws(
            {"InputDataConfig": [{"ChannelName": "train", "ContentType": "text/csv"}], "Environment": {"A": "1"}},
            inputs={"train": {"sagemaker": "s3://my-bucket/d"}}, environment={"variables": {"A": "1"}}, spot={},
        ),
    ),
    "a Boolean for the same text": (
        "CT210",
        on_azure(
            {"environmentVariables": {"B": True}},
            environment={"framework": "pytorch", "version": "2.8", "variables": {"B": "true"}},
        ),
    ),
    "groups for purposes of their own": ("CT501", aws.job(resources=aws.groups())),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_the_overrides_write_is_found(name: str, make_source: MakeSource) -> None:
    """With the place in the overrides, and a hint that says to change it there."""
    code, case, path, hint = WRONG[name]
    told = [finding for finding in found(case, make_source) if finding.code == code]
    assert [finding.path for finding in told] == [path]
    assert hint in (told[0].hint or "")


@pytest.mark.parametrize("name", RIGHT)
def test_what_the_overrides_mend_is_left_alone(name: str, make_source: MakeSource) -> None:
    """A field of the job that the request does not have is nobody's mistake."""
    code, case = RIGHT[name]
    assert code not in {finding.code for finding in found(case, make_source)}
