"""The SageMaker rules on whole requests: those that the SageMaker SDK really sent, and those that make no sense."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.code.tree import scan
from cloudtrain.plans.plan import CompileContext, Finding, Plan
from cloudtrain.rules.engine import Subject, check_plan
from cloudtrain.targets.sagemaker.compile.training import compile_sagemaker
from cloudtrain.targets.sagemaker.settings import SageMakerAccount
from tests.rules.sagemaker_rule_cases import (
    BYOC,
    FILES,
    P4D,
    PS,
    SMDDP,
    TORCH,
    WORKERS,
    pytorch,
    tensorflow,
)
from tests.rules.subjects import subject_of as make_subject

GOLDEN = Path(__file__).parents[1] / "golden" / "sagemaker_sdk_v2"
ACCOUNT = SageMakerAccount("us-west-2", "arn:aws:iam::123456789012:role/SageMakerRole", "my-bucket")
MakeSource = Callable[..., Path]


def subject_of(
    make_source: MakeSource, target: dict[str, Any] | None = None, **fields: Any
) -> Subject:
    """A job with its plan; one ml.g5.xlarge unless the fields say otherwise."""
    resources = {"instance_type": {"sagemaker": "ml.g5.xlarge"}}
    job = ct.TrainingJob(
        **{"name": "job", "entry_point": "train.py", "resources": resources} | fields
    )
    tree, model = scan(make_source(FILES)), ct.SageMaker(**target or {})
    plan = compile_sagemaker(job, model, CompileContext("job-1a2b3c4d-1", tree.identity, ACCOUNT))
    return make_subject(job, model, ACCOUNT, plan, tree)


def with_plan(subject: Subject, plan: Plan) -> Subject:
    return replace(subject, reading=replace(subject.reading, plan=plan))


def codes(findings: tuple[Finding, ...], level: str = "error") -> set[str]:
    return {finding.code for finding in findings if finding.level.value == level}


SENT_BY_SDK: dict[str, tuple[dict[str, Any], str]] = {
    "pt_no_such_instance": ({"resources": {"instance_type": "ml.zz9.xlarge"}}, "SM201"),
    "pt_no_such_instance_g": ({"resources": {"instance_type": "ml.g99.xlarge"}}, "SM201"),
    "pt_image_uri_smddp": ({"distribution": SMDDP}, "SM301"),
    "pt_smddp_g5": ({"distribution": SMDDP}, "SM302"),
    "pt_smddp_p5en": ({"distribution": SMDDP}, "SM302"),
    "pt_pytorchddp_opts": ({"distribution": SMDDP}, "SM302"),
    "pt_smddp_p5_torchdist": ({"distribution": SMDDP | {"launch": "torch"}}, "SM302"),
    "pt_ps": ({"distribution": PS}, "SM303"),
    "pt_ps_p3": ({"distribution": PS}, "SM303"),
    "tf_torchdist": ({"distribution": TORCH}, "SM303"),
    "est_distribution_ignored": (
        {"distribution": TORCH, "entry_point": None, "environment": {"image": {"sagemaker": BYOC}}},
        "SM303",
    ),
    "pt_smp2_torchdist_pt28_py311": ({"distribution": {"type": "smp", "version": 2}}, "SM305"),
    "pt_spot_no_wait_err": ({"spot": {}}, "SM401"),
    "pt_spot_and_warm": ({"spot": {"max_wait": "1h"}, "max_runtime": "1h"}, "SM402"),
    "pt_spot_wait_lt_run": ({"spot": {"max_wait": "10m"}, "max_runtime": "1h"}, "CT402"),
    "pt_inputs_rich": (
        {"inputs": {"fsx": {"sagemaker": "fsx://fs-0123456789abcdef0/abc/data"}}},
        "SM508",
    ),
    "pt_full_lifecycle": ({"spot": {"max_wait": "2h"}, "max_runtime": "1h"}, "SM208"),
    "pt_bad_job_name": ({}, "SM110"),
}
"""What the SageMaker SDK (2.257.7) sent without a word, what the job asks for, and the rule that stops it."""


@pytest.mark.parametrize("name", SENT_BY_SDK)
def test_what_the_sdk_sends_in_silence_is_stopped(name: str, make_source: MakeSource) -> None:
    """The SDK's own request, byte for byte: a rule says why it would fail or waste money."""
    fields, code = SENT_BY_SDK[name]
    request = json.loads((GOLDEN / f"{name}.json").read_text())["request"]
    job = ct.TrainingJob(**{"name": "job", "entry_point": "train.py"} | fields)
    plan = Plan("sagemaker", request["TrainingJobName"], job.name, request)
    subject = make_subject(job, ct.SageMaker(), ACCOUNT, plan, scan(make_source(FILES)))
    assert code in codes(check_plan(subject))


ODD: tuple[Any, ...] = (
    "text",
    7,
    True,
    None,
    [],
    ["text", 7],
    {},
    {"text": 7},
    [{}],
    [{"InstanceType": 7}],
)


@pytest.mark.slow
@pytest.mark.parametrize("value", ODD, ids=json.dumps)
def test_no_rule_stumbles_over_an_odd_request(value: Any, make_source: MakeSource) -> None:
    """Overrides can make anything of a request. Every rule still answers, and the odd part is an error."""
    subject = subject_of(
        make_source,
        {
            "subnets": ["subnet-1"],
            "security_group_ids": ["sg-1"],
            "keep_alive": "10m",
            "max_cost": 10.0,
        },
        distribution=TORCH,
        inputs={"train": {"sagemaker": "s3://my-bucket/train"}},
        checkpoint={},
        tags={"team": "vision"},
    )
    request = subject.plan.request
    places = [(name,) for name in request]
    places += [
        (name, inner)
        for name in request
        if isinstance(request[name], dict)
        for inner in request[name]
    ]
    for place in places:
        changed = json.loads(json.dumps(request))
        around = changed if len(place) == 1 else changed[place[0]]
        around[place[-1]] = value
        assert isinstance(
            check_plan(with_plan(subject, replace(subject.plan, request=changed))), tuple
        )


def test_a_wrong_type_is_an_error(make_source: MakeSource) -> None:
    """What the rules pass over because it has the wrong type, SM110 names."""
    subject = subject_of(make_source)
    changed = subject.plan.request | {"ResourceConfig": "ml.g5.xlarge"}
    found = check_plan(with_plan(subject, replace(subject.plan, request=changed)))
    assert codes(found) == {"SM110"}


PLACES: list[tuple[dict[str, Any], tuple[str | int, ...]]] = [
    ({"hyperparameters": {"text": "x" * 2501}}, ("hyperparameters", "text")),
    ({"environment": {"variables": {"TEXT": "x" * 513}}}, ("environment", "variables", "TEXT")),
    ({"metrics": {"loss": "(x)" + "y" * 500}}, ("metrics", "loss")),
    ({"metrics": {f"m{n}": "(x)" for n in range(41)}}, ("metrics",)),
    ({"tags": {"team": "x" * 257}}, ("tags", "team")),
    ({"tags": {f"t{n}": "x" for n in range(50)}}, ("tags",)),
    ({"inputs": {"train": {"sagemaker": f"s3://my-bucket/{'x' * 1024}"}}}, ("inputs", "train")),
    ({"inputs": {f"i{n}": {"sagemaker": "s3://my-bucket/x"} for n in range(21)}}, ("inputs",)),
    ({"environment": {"image": {"sagemaker": f"registry/{'x' * 255}"}}}, ("environment", "image")),
    (
        {
            "resources": {
                "instance_groups": [
                    {"name": f"g{n}", "instance_type": "ml.m5.xlarge", "instance_count": 1}
                    for n in range(6)
                ]
            }
        },
        ("resources", "instance_groups"),
    ),
    ({"checkpoint": {"sagemaker": f"s3://my-bucket/{'x' * 1024}"}}, ("checkpoint", "sagemaker")),
    (
        {"sagemaker_overrides": {"AlgorithmSpecification": {"TrainingInputMod": "File"}}},
        ("sagemaker_overrides", "AlgorithmSpecification", "TrainingInputMod"),
    ),
    (
        {"sagemaker_overrides": {"Tags": [{"Key": "a"}]}},
        ("sagemaker_overrides", "Tags", 0, "Value"),
    ),
    ({"sagemaker_overrides": {"MlflowConfig": {}}}, ("sagemaker_overrides", "MlflowConfig")),
]


@pytest.mark.parametrize(
    ("fields", "path"),
    PLACES,
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_a_refusal_leads_to_the_job(
    fields: dict[str, Any], path: tuple[str | int, ...], make_source: MakeSource
) -> None:
    """A part of the request that the service refuses is traced back to the field of the job that it comes from."""
    found = [
        finding
        for finding in check_plan(subject_of(make_source, **fields))
        if finding.code == "SM110"
    ]
    assert path in [finding.path for finding in found]


STARTED: list[tuple[str, dict[str, Any], dict[str, Any], bool]] = [
    ("pytorch", pytorch("2.8.0"), TORCH, True),
    ("pytorch", pytorch("2.8.0"), {"type": "mpi"}, True),
    ("pytorch", pytorch("2.8.0"), {"type": "deepspeed"}, True),
    ("pytorch", pytorch("2.8.0"), WORKERS, False),
    ("pytorch", pytorch("2.8.0"), PS, False),
    ("tensorflow", tensorflow(), WORKERS, True),
    ("tensorflow", tensorflow(), PS, True),
    ("tensorflow", tensorflow(), {"type": "horovod"}, True),
    ("tensorflow", tensorflow(), TORCH, False),
    ("own", {"image": {"sagemaker": BYOC}}, {"type": "mpi"}, True),
    ("own", {"image": {"sagemaker": BYOC}}, {"type": "none"}, True),
    ("own", {"image": {"sagemaker": BYOC}}, TORCH, False),
    ("own", {"image": {"sagemaker": BYOC}}, WORKERS, False),
    ("own", {"image": {"sagemaker": BYOC}}, SMDDP, True),
]


@pytest.mark.parametrize(("name", "environment", "distribution", "known"), STARTED)
def test_each_toolkit_against_each_distribution(
    name: str,
    environment: dict[str, Any],
    distribution: dict[str, Any],
    known: bool,
    make_source: MakeSource,
) -> None:
    """SM303 speaks exactly where the launch view shows one process on each instance instead of what was asked for."""
    subject = subject_of(
        make_source,
        {"launch": "toolkit"},
        environment=environment,
        distribution=distribution,
        resources=P4D,
    )
    assert ("SM303" not in codes(check_plan(subject))) is known
    roles = {process.role for process in subject.plan.processes}
    if distribution["type"] not in ("none", "tensorflow"):
        assert (not roles & {"torchrun", "mpirun"}) is not known


@pytest.mark.slow
def test_rules_of_sagemaker_are_not_imported_for_another_target(make_source: MakeSource) -> None:
    """A run on this machine does not wait for the rules of a cloud."""
    import subprocess
    import sys

    source = make_source({"train.py": "print(1)\n"})
    code = (
        "import sys, cloudtrain as ct; job = ct.TrainingJob(name='j', entry_point='train.py', "
        f"source_dir={str(source)!r}); ct.plan(job, target='local'); "
        "print([m for m in sys.modules if m.startswith('cloudtrain.rules.engine.sagemaker')])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_a_processing_job_meets_only_the_rules_that_fit(make_source: MakeSource) -> None:
    """The request of a processing job is held against its own operation, and rules about training leave it alone."""
    subject = subject_of(
        make_source, resources={"instance_type": {"sagemaker": "ml.m5.xlarge"}, "instance_count": 2}
    )
    cluster = {"InstanceType": "ml.m5.xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30}
    request = {
        "ProcessingJobName": subject.plan.run_name,
        "ProcessingResources": {"ClusterConfig": cluster},
        "AppSpecification": {"ImageUri": BYOC},
        "RoleArn": ACCOUNT.role,
        "Tags": [{"Key": "cloudtrain:run", "Value": subject.plan.run_name}],
    }
    plan = replace(subject.plan, request=request, processes=())
    subject = replace(
        subject,
        reading=replace(
            subject.reading, processing=ct.ProcessingJob(name="job", entry_point="train.py")
        ),
    )
    assert codes(check_plan(with_plan(subject, plan))) == set()
    wrong = replace(
        plan,
        request=request
        | {"ProcessingResources": {"ClusterConfig": cluster | {"InstanceType": "ml.x"}}},
    )
    assert codes(check_plan(with_plan(subject, wrong))) == {"SM110"}
