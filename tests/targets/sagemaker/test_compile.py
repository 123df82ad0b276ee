"""A job on SageMaker becomes the very request that the SageMaker SDK sends for the same job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.plans.plan import Bundle, CompileContext, Plan
from cloudtrain.rules.engine import check_plan
from cloudtrain.targets.sagemaker.compile.training import compile_sagemaker
from cloudtrain.targets.sagemaker.settings import SageMakerAccount
from tests.rules.subjects import subject_of as make_subject
from tests.targets.sagemaker.sdk_cases import (
    BUCKET,
    SAME,
    STOPPED,
    STOPPED_OTHERWISE,
    UNSAYABLE,
    Case,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "sagemaker_sdk_v2"
ACCOUNT = SageMakerAccount("us-west-2", "arn:aws:iam::123456789012:role/SageMakerRole", BUCKET)
BUNDLE = Bundle("5" * 64, 1000, 2)
CODE = f"s3://{BUCKET}/cloudtrain/code/{BUNDLE.sha256}/sourcedir.tar.gz"


def target_of(case: Case) -> ct.SageMaker:
    return ct.SageMaker(**{"launch": "toolkit", "output": f"s3://{BUCKET}/"} | case.target)


def golden(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return found


def plan_of(case: Case) -> Plan:
    sdk = golden(case.golden)["request"]
    return compile_sagemaker(
        case.job, target_of(case), CompileContext(sdk["TrainingJobName"], BUNDLE, ACCOUNT)
    )


def as_ours(request: dict[str, Any], sdk_bug: dict[str, Any]) -> dict[str, Any]:
    """The SDK's request with the differences that we mean, all of them, applied:

    the profiler and the debugger are off; the code lies at its content's own place; our tag is added; and what the
    SDK loses of the distribution is there.
    """
    ours = json.loads(json.dumps(request))
    ours["ProfilerConfig"] = {"DisableProfiler": True}
    ours.pop("DebugHookConfig", None)
    ours.setdefault("Tags", []).append(
        {"Key": "cloudtrain:run", "Value": request["TrainingJobName"]}
    )
    if "sagemaker_submit_directory" in ours.get("HyperParameters", {}):
        where = ours["HyperParameters"]["sagemaker_submit_directory"]
        ours["HyperParameters"]["sagemaker_submit_directory"] = (
            json.dumps(CODE) if "s3://" in where else where
        )
    for channel in ours["InputDataConfig"]:
        if channel["ChannelName"] == "code":
            channel["DataSource"]["S3DataSource"]["S3Uri"] = CODE
    ours.get("HyperParameters", {}).update(sdk_bug)
    return ours


@pytest.mark.parametrize("case", [*SAME, *STOPPED], ids=lambda case: case.golden)
def test_same_request_as_the_sdk(case: Case) -> None:
    """The request is the SDK's, whole, but for the differences that `as_ours` lists."""
    assert plan_of(case).request == as_ours(golden(case.golden)["request"], case.sdk_bug)


@pytest.mark.parametrize("spans", [(), ("gpu",), ("data",)])
@pytest.mark.parametrize("order", [1, -1])
def test_the_first_group_with_gpus_decides_the_image(spans: tuple[str, ...], order: int) -> None:
    """The SDK looks for GPUs in all groups, in their order, whatever the distribution spans."""
    groups = [
        {"name": "data", "instance_type": "ml.c5.18xlarge", "instance_count": 1},
        {"name": "gpu", "instance_type": "ml.p4d.24xlarge", "instance_count": 1},
    ][::order]
    resources = {"instance_groups": groups, "distribution_groups": list(spans)}
    job = ct.TrainingJob(
        name="job", entry_point="train.py", resources=resources, distribution={"type": "mpi"},
        environment={"framework": "pytorch", "version": "2.8"},
    )  # fmt: skip
    plan = compile_sagemaker(job, ct.SageMaker(), CompileContext("job-1", BUNDLE, ACCOUNT))
    assert "-gpu-" in plan.request["AlgorithmSpecification"]["TrainingImage"]


@pytest.mark.parametrize("case", STOPPED, ids=lambda case: case.golden)
def test_nonsense_is_stopped(case: Case, make_source: Any) -> None:
    """What the SDK sends without a word, and what would fail or waste money, is an error that says why."""
    errors = {
        finding.code for finding in findings_of(case, make_source) if finding.level.value == "error"
    }
    assert set(case.codes) <= errors


ALSO_WRONG = {
    "pt_full_lifecycle": {"SM208"},  # a KMS key for a local disk that encrypts itself
    "pt_inputs_rich": {"SM601", "SM508"},  # a file system, and no subnets to reach it from
}
"""What the recorded jobs have wrong beside their subject. SM601: the toolkit's shell breaks `None` and lists
where the script is Python; shell scripts get quoted arguments."""


@pytest.mark.parametrize("case", SAME, ids=lambda case: case.golden)
def test_sense_is_not_stopped(case: Case, make_source: Any) -> None:
    """A job that makes sense has no error, but for what is really wrong with it."""
    script = case.job.entry_point or ""
    through_a_shell = (
        {"SM601"} if "layers" in case.job.hyperparameters and script.endswith(".py") else set()
    )
    errors = {
        finding.code for finding in findings_of(case, make_source) if finding.level.value == "error"
    }
    assert errors == ALSO_WRONG.get(case.golden, through_a_shell)


@pytest.mark.parametrize("name", STOPPED_OTHERWISE)
def test_ignored_distribution_is_stopped(name: str, make_source: Any) -> None:
    """Where the SDK drops the distribution in silence, ours is stopped because the image would ignore it."""
    assert "SM303" in {
        finding.code for finding in findings_of(STOPPED_OTHERWISE[name], make_source)
    }


@pytest.mark.parametrize("name", UNSAYABLE)
def test_unsayable(name: str) -> None:
    """What a job cannot say is refused by its model, with a hint."""
    with pytest.raises(ct.JobError) as caught:
        ct.TrainingJob(**{"name": "job", "entry_point": "train.py"} | UNSAYABLE[name])
    assert caught.value.hint


def test_every_golden_case_is_here() -> None:
    """No request of the SDK is left out."""
    here = {case.golden for case in [*SAME, *STOPPED]} | set(STOPPED_OTHERWISE) | set(UNSAYABLE)
    built = {
        file.stem for file in GOLDEN.glob("*.json") if golden(file.stem)["request"] is not None
    }
    assert built == here


def findings_of(case: Case, make_source: Any) -> tuple[Any, ...]:
    from cloudtrain.code.tree import scan

    tree = scan(make_source({"train.py": "", "train.sh": ""}))
    return check_plan(make_subject(case.job, target_of(case), ACCOUNT, plan_of(case), tree))
