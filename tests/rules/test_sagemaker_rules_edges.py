"""SageMaker rules at their edges: cases that look wrong and are right, and one that each needs other words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.machines.overlay import read_overlay
from cloudtrain.targets.sagemaker.catalogue.images import resolve_image, versions
from tests.hints import suggested
from tests.rules.sagemaker_rule_cases import (
    BYOC,
    CASES,
    DLC,
    G5,
    MPI,
    P4D,
    PS,
    SMDDP,
    TORCH,
    TRN,
    WITH_REQUIREMENTS,
    WORKERS,
    Case,
    account,
    entrypoint,
    groups,
    image,
    job,
    on,
    pytorch,
    reads,
    retired,
    settings,
    tensorflow,
    toolkit,
)
from tests.rules.test_sagemaker_rules import check

MakeSource = Callable[..., Path]

EARLIER = {
    "sagemaker": {
        "ml.p5e.48xlarge": {"price": 60.0},
        "ml.g9.xlarge": {"vcpus": 4, "memory_gib": 16},
    }
}
OVERLAY = account(overlay=read_overlay(EARLIER, "instances.toml"))


def script(name: str) -> Case:
    return Case({"entry_point": name}, {"launch": "toolkit"}, files={name: ""})


def mpi(options: str, **fields: Any) -> Case:
    """Several instances, so that the image's toolkit starts mpirun."""
    return job(resources=P4D, distribution=MPI | {"options": options}, **fields)


RIGHT: dict[str, tuple[str, Case]] = {
    "a registry whose name says something": (
        "SM313",
        job(
            resources=G5, distribution=TORCH, environment=image("tensorflow-cpu.example.com/mine:1")
        ),
    ),
    "packages of the job's own": (
        "SM312",
        Case(
            {
                "distribution": TORCH,
                "environment": tensorflow() | {"requirements": "requirements.txt"},
            },
            {"launch": "entrypoint"},
            files=WITH_REQUIREMENTS,
        ),
    ),
    "Horovod is for both": (
        "SM312",
        job(resources=G5, distribution={"type": "horovod"}, environment=tensorflow("2.11")),
    ),
    "an image of the catalogue": ("CT207", job()),
    "servers on the instances without workers": (
        "SM328",
        entrypoint(
            resources=on("ml.g5.xlarge", 3),
            distribution=PS | {"workers": 2, "parameter_servers": 3},
            environment=tensorflow(),
        ),
    ),
    "workers that the toolkit decides on, which SM324 says": (
        "SM328",
        toolkit(
            resources=on("ml.g5.xlarge", 3),
            distribution=WORKERS | {"workers": 2},
            environment=tensorflow(),
        ),
    ),
    "a sign at the start of a file's name": ("SM343", script("a/+b.py")),
    "a path from here": ("SM343", script("./train.py")),
    "a script out of the bundle, which CT101 says": (
        "SM343",
        Case({"entry_point": "../a b.py"}, {"launch": "toolkit"}),
    ),
    "a bucket of 2010 in us-east-1": (
        "SM501",
        Case({"inputs": reads(sagemaker="s3://My_Bucket/x")}, account=account(region="us-east-1")),
    ),
    "an access point": (
        "SM501",
        job(inputs=reads(sagemaker="s3://arn:aws:s3:us-west-2:123456789012:accesspoint/a/x")),
    ),
    "no bucket is known, which SM101 says": (
        "SM501",
        Case(account=account(bucket="BUCKET", missing=("bucket",))),
    ),
    "a role by the overrides": (
        "SM101",
        Case(
            {"sagemaker_overrides": {"RoleArn": "arn:aws:iam::123456789012:role/Train"}},
            account=account(missing=("role",)),
        ),
    ),
    "no role is known, which SM101 says": (
        "SM102",
        Case(account=account(role="ROLE", missing=("role",))),
    ),
    "a type of the user's own": ("SM201", Case({"resources": on("ml.g9.xlarge")}, account=OVERLAY)),
    "EC2's name, which SM202 says": (
        "SM201",
        job(resources=on("g5.xlarge"), environment=image(BYOC)),
    ),
    "a price of the user's own": (
        "SM413",
        Case({"resources": on("ml.p5e.48xlarge"), "max_runtime": "1h"}, {"max_cost": 100}, OVERLAY),
    ),
    "a type that is not used is retired": ("SM203", Case(account=retired("ml.p2.xlarge"))),
    "Ethernet that is meant so": (
        "SM204",
        job(resources=on("ml.g5.xlarge", 4, interconnect="ethernet"), distribution=TORCH),
    ),
    "workers reach parameter servers over TCP": (
        "SM204",
        job(resources=on("ml.g5.xlarge", 4), distribution=PS),
    ),
    "independent instances need no EFA": ("SM204", job(resources=on("ml.g5.xlarge", 4))),
    "the plugin of newer images finds EFA": (
        "SM206",
        toolkit(
            resources=on("ml.p5en.48xlarge", 2), distribution=TORCH, environment=pytorch("2.6")
        ),
    ),
    "one process of TensorFlow takes all GPUs without a distribution too": (
        "SM331",
        job(resources=P4D, environment=tensorflow()),
    ),
    "one instance needs no EFA": (
        "SM206",
        toolkit(resources=on("ml.p5en.48xlarge"), distribution=TORCH),
    ),
    "the toolkit switches EFA on for p4d": ("SM206", toolkit(resources=P4D, distribution=TORCH)),
    "cloudtrain's launcher switches EFA on": (
        "SM206",
        Case(
            {"resources": on("ml.p5en.48xlarge", 2), "distribution": TORCH},
            {"launch": "entrypoint"},
        ),
    ),
    "CPU groups beside a GPU group": ("SM306", job(resources=groups("gpu"), distribution=MPI)),
    "a group that works alone has one process": (
        "SM331",
        job(resources=groups("gpu"), distribution=MPI),
    ),
    "one TensorFlow process takes all GPUs": (
        "SM331",
        job(
            resources=P4D,
            distribution=PS,
            environment={"framework": "tensorflow", "version": "2.19"},
        ),
    ),
    "Horovod is installed by the job": (
        "SM311",
        Case(
            {
                "resources": on("ml.g5.12xlarge"),
                "distribution": {"type": "horovod"},
                "environment": pytorch("2.8") | {"requirements": "requirements.txt"},
            },
            files={"train.py": "", "requirements.txt": "horovod\n"},
        ),
    ),
    "an old image for Trainium": (
        "SM309",
        job(resources=TRN, distribution=TORCH, environment=pytorch("1.11.0")),
    ),
    "a list that no shell sees": (
        "SM601",
        Case({"hyperparameters": {"layers": [1, 2]}}, {"launch": "entrypoint"}),
    ),
    "a reference becomes a plain path": (
        "SM601",
        toolkit(hyperparameters={"out": "${{outputs.model}}"}),
    ),
    "quotes that are meant for the shell": (
        "SM601",
        toolkit(hyperparameters={"fsdp": '"full_shard auto_wrap"'}),
    ),
    "AWS's own image of scikit-learn": (
        "SM310",
        toolkit(environment=image(f"{DLC}/sagemaker-scikit-learn:1.2-1-cpu-py3")),
    ),
    "quick to run for a day": ("SM411", job(resources=on("ml.m5.xlarge"))),
    "quotes that the shell takes away again": ("SM605", mpi("-x 'A=b c'")),
    "a line break between options": ("SM605", mpi("-x A=b\n-x C=d")),
    "quotes for our own launcher": (
        "SM605",
        entrypoint(resources=G5, distribution=MPI | {"options": "-x 'A=b;  c'"}),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_only_looks_wrong_is_left_alone(name: str, make_source: MakeSource) -> None:
    """A rule that cries wolf is ignored, also where it is right."""
    code, case = RIGHT[name]
    assert code not in {finding.code for finding in check(case, make_source)}


WRONG: dict[str, tuple[str, Case, str]] = {
    "an image of PyTorch beside another framework": (
        "SM312",
        job(environment=tensorflow() | image(f"{DLC}/pytorch-training:2.8.0-gpu-py312")),
        "remove `framework`",
    ),
    "TensorFlow's image by its version": (
        "SM312",
        entrypoint(resources=G5, distribution={"type": "deepspeed"}, environment=tensorflow()),
        "framework: pytorch",
    ),
    "an image of one's own whose name says TensorFlow": (
        "SM313",
        job(
            resources=G5,
            distribution=TORCH,
            environment=image(BYOC.replace("mine", "mine/tensorflow-2")),
        ),
        "framework: pytorch",
    ),
    "an image of one's own for Neuron": (
        "SM313",
        job(resources=G5, environment=image(BYOC.replace("mine:1", "mine:2.9-neuronx"))),
        "for GPUs",
    ),
    "an image by the overrides": (
        "CT207",
        job(sagemaker_overrides={"AlgorithmSpecification": {"TrainingImage": "Mine:1"}}),
        "write `mine:1`",
    ),
    "an image with a scheme": (
        "CT207",
        job(environment=image(f"docker://{BYOC}")),
        f"write `{BYOC}`",
    ),
    "a second command among mpirun's options": (
        "SM605",
        mpi("-x A=b ; rm -rf x"),
        "without quotes",
    ),
    "a command inside of mpirun's options": ("SM605", mpi("-x A=$(cat x)"), "without quotes"),
    "two blanks in quotes, of which the toolkit leaves one": (
        "SM605",
        mpi("-x 'A=b  c'"),
        "without quotes",
    ),
    "options of the data-parallel library": (
        "SM605",
        job(
            resources=P4D,
            distribution=SMDDP | {"mpi_options": "-x A=b && x"},
            environment=pytorch("2.2.0"),
        ),
        "environment.variables",
    ),
    "quotes for a toolkit without a shell": (
        "SM605",
        toolkit(
            resources=P4D, distribution=MPI | {"options": "-x 'A=b c'"}, environment=image(BYOC)
        ),
        "without quotes",
    ),
    "a second command for our own launcher": (
        "SM605",
        entrypoint(resources=G5, distribution=MPI | {"options": "-x A=b; x"}),
        "without quotes",
    ),
    "options of the overrides": (
        "SM605",
        mpi(
            "",
            sagemaker_overrides={
                "HyperParameters": {"sagemaker_mpi_custom_mpi_options": '"-x A=`x`"'}
            },
        ),
        "remove `HyperParameters.sagemaker_mpi_custom_mpi_options` from `sagemaker_overrides`",
    ),
    "a bucket that the role of an override does not give": (
        "SM101",
        Case(
            {"sagemaker_overrides": {"RoleArn": "arn:aws:iam::123456789012:role/Train"}},
            account=account(bucket="BUCKET", missing=("role", "bucket")),
        ),
        'bucket = "NAME"',
    ),
    "a session of the role": (
        "SM102",
        Case(account=account(role="arn:aws:sts::123456789012:assumed-role/Train/me")),
        'role = "arn:aws:iam::123456789012:role/Train"',
    ),
    "a CPU image for Trainium": (
        "SM306",
        job(
            resources=TRN,
            distribution=TORCH,
            environment=image(f"{DLC}/pytorch-training:2.8.0-cpu-py312"),
        ),
        "Trainium",
    ),
    "a Trainium image for GPUs": (
        "SM306",
        job(
            environment=image(
                f"{DLC}/pytorch-training-neuronx:2.9.0-neuronx-py312-sdk2.30.0-ubuntu24.04"
            )
        ),
        "GPUs",
    ),
    "variables for mpirun are options": (
        "SM206",
        job(resources=on("ml.p5en.48xlarge", 2), distribution=MPI, environment=pytorch("2.5")),
        '`options: "-x FI_PROVIDER=efa -x FI_EFA_USE_DEVICE_RDMA=1"`',
    ),
    "the other launcher cannot start SMDDP": (
        "SM601",
        job(
            resources=P4D,
            distribution=SMDDP,
            environment=pytorch("2.2.0"),
            hyperparameters={"x": "a b"},
        ),
        "write it into a file in the source folder, and give `x` the file's name",
    ),
    "fewer processes than asked for by the job itself": (
        "SM331",
        job(resources=P4D, distribution=TORCH | {"processes_per_instance": 2}),
        "set `distribution.processes_per_instance` to 8",
    ),
    "the dearest preference counts": (
        "SM412",
        Case(
            {
                "resources": {"instance_preferences": ["ml.g5.xlarge", "ml.p4d.24xlarge"]},
                "max_runtime": "1h",
            },
            {"max_cost": 25},
        ),
        "at most `59m",
    ),
    "one preference without a price": (
        "SM413",
        Case(
            {
                "resources": {"instance_preferences": ["ml.p4d.24xlarge", "ml.p5en.48xlarge"]},
                "max_runtime": "1h",
            },
            {"max_cost": 30},
        ),
        '`[sagemaker."ml.p5en.48xlarge"]` and below it `price = 12.34`',
    ),
    "a type that nobody knows has no price either": (
        "SM413",
        Case({"resources": on("ml.nope.xlarge")}, {"max_cost": 30}),
        "`vcpus = 4`, `memory_gib = 16` and `price = 12.34`",
    ),
    "a limit that the overrides take away is the service's default": (
        "SM412",
        Case(
            {
                "max_runtime": "1h",
                "sagemaker_overrides": {"StoppingCondition": {"MaxRuntimeInSeconds": None}},
            },
            {"max_cost": 30},
        ),
        "set `max_runtime` to at most `21h",
    ),
    "a cap below the price of the bare machine": (
        "SM413",
        Case({"resources": on("ml.p5en.48xlarge"), "max_runtime": "1h"}, {"max_cost": 60}),
        "`price = 12.34`",
    ),
    "overridden instance type": (
        "SM201",
        job(sagemaker_overrides={"ResourceConfig": {"InstanceType": "ml.nope.xlarge"}}),
        "cloudtrain instances",
    ),
    "Azure's name": (
        "SM201",
        job(resources=on("Standard_ND96asr_v4"), environment=pytorch("2.8")),
        "write `ml.p4d.24xlarge`",
    ),
    "a family without its letter": (
        "SM201",
        job(resources=on("ml.p4.24xlarge")),
        suggested("ml.p4d.24xlarge"),
    ),
    "a size that the family lacks": (
        "SM201",
        job(resources=on("ml.p5.24xlarge")),
        suggested("ml.p5.4xlarge"),
    ),
    "a sign at the start of the path": ("SM343", script("+train.py"), "to `train.py`"),
    "a dash at the start of the name": ("SM343", script("./-train.py"), "to `train.py`"),
    "a letter that is none of ASCII's": ("SM343", script("trän.py"), "to `tr_n.py`"),
    "half a network": ("SM701", settings(security_group_ids=["sg-1"]), "subnets = "),
    "no bucket at all": ("SM501", job(inputs=reads(sagemaker="s3:///x")), "s3://BUCKET/KEY"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_in_another_way_is_found(name: str, make_source: MakeSource) -> None:
    """The same rules, reached by other ways, with hints that fit these."""
    code, case, hint = WRONG[name]
    found = [finding for finding in check(case, make_source) if finding.code == code]
    assert found
    assert hint in (found[0].hint or "")


def test_the_last_images_with_smddp_are_named(make_source: MakeSource) -> None:
    """Those that a message names have the library, and no newer ones."""
    bad, _, _ = CASES["SM301"]
    message = next(one.message for one in check(bad, make_source) if one.code == "SM301")
    for framework, title in (("pytorch", "PyTorch"), ("tensorflow", "TensorFlow")):
        has = [
            version
            for version in versions(framework, "gpu")
            if resolve_image(framework, version, region="us-west-2", device="gpu").smddp
        ]
        assert f"{title} {has[-1].rpartition('.')[0]}" in message
