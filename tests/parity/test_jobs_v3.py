"""`plan.to_model_trainer().train(...)` sends `plan.request` but for the listed differences, for every job that it takes.

Compared is the whole request. Left out are the fields of `DIFFERENCES`, and where version 3's drivers start the job
those of `WITH_DRIVERS`: there the hyperparameters of the script and all channels but `code` and `sm_drivers` are equal.
"""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from cloudtrain.errors import TargetError
from cloudtrain.plans.plan import Plan
from cloudtrain.targets.sagemaker.export.distributions import KEYS
from cloudtrain.targets.sagemaker.export.exports import DIFFERENCES, WITH_DRIVERS
from tests.parity.conftest import LOOKUPS, session_of
from tests.parity.jobs import CASES, Case, machine, plan_of
from tests.parity.wire import Wire

pytestmark = pytest.mark.parity(3)

REFUSED = {
    "servers_and_debugger": "DebugHookConfig",
    "groups_checkpoint_debugger": "DebugHookConfig",
    "checkpoint_debugger": "DebugHookConfig",
    "checkpoint_debugger_transformers": "DebugHookConfig",
    "debugger": "DebugHookConfig",
    "override_hook": "DebugHookConfig",
    "profiler": "ProfilerConfig",
    "profiler_and_debugger": "ProfilerConfig",
    "override_profiler": "ProfilerConfig",
    "override_rules": "DebugRuleConfigurations",
    "override_debug_rule": "DebugRuleConfigurations",
    "experiment": "ExperimentConfig",
    "experiment_run": "ExperimentConfig",
    "debugger_in_detail": "DebugHookConfig",
    "profiler_in_detail": "ProfilerConfig",
    "rules": "DebugRuleConfigurations",
    "rules_and_debugger": "DebugRuleConfigurations",
}
"""Case to the field that version 3 has no word for."""

WITHOUT_DRIVERS = {
    "smddp", "smddp_options", "smddp_tensorflow", "smddp_transformers", "smddp_image", "smp1", "smp1_options",
    "smp1_no_parameters", "smp1_tensorflow", "smp1_transformers", "mirrored", "mirrored_cpu", "mirrored_own_image",
    "mirrored_version_the_sdk_lacks", "servers", "groups_torch", "groups_mpi", "groups_mpi_two", "groups_smddp",
    "groups_smp2", "groups_mirrored", "groups_inputs", "image_alone", "override_text",
}  # fmt: skip
"""Cases that version 3's drivers cannot start: the toolkit of the image does."""

LAUNCH = {*KEYS, "cloudtrain_launch"} | {
    f"sagemaker_{name}"
    for name in ("submit_directory", "program", "container_log_level", "job_name", "region")
}


def train(plan: Plan, wire: Wire) -> dict[str, Any]:
    """Run `train`; the one request that CreateTrainingJob received."""
    plan.to_model_trainer(session_of(plan.place)).train(
        **plan.train_arguments(), wait=False, logs=False
    )
    assert wire.calls.count("sagemaker:CreateTrainingJob") == 1
    return wire.training_jobs.pop()


def without(request: dict[str, Any], paths: Any) -> dict[str, Any]:
    """The request without the fields at these paths."""
    request = deepcopy(request)
    for path in paths:
        *parents, name = path.split(".")
        place = request
        for parent in parents:
            place = place.get(parent, {})
        place.pop(name, None)
    return request


def own_parameters(request: dict[str, Any]) -> dict[str, str]:
    """The script's hyperparameters."""
    return {
        name: text
        for name, text in request.get("HyperParameters", {}).items()
        if name not in LAUNCH
    }


def own_channels(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The channels of data."""
    return [
        one
        for one in request.get("InputDataConfig", [])
        if one["ChannelName"] not in ("code", "sm_drivers")
    ]


def archive(request: dict[str, Any]) -> str:
    """Where the code is."""
    channels = {one["ChannelName"]: one for one in request.get("InputDataConfig", [])}
    if "code" in channels:
        return str(channels["code"]["DataSource"]["S3DataSource"]["S3Uri"])
    return str(json.loads(request["HyperParameters"]["sagemaker_submit_directory"]))


@pytest.mark.parametrize("name", sorted(CASES.keys() - REFUSED.keys() - WITHOUT_DRIVERS))
def test_the_sdk_sends_the_plan_with_its_drivers(name: str, wire: Wire) -> None:
    """All that version 3 lets one set reaches CreateTrainingJob as the plan has it."""
    plan = plan_of(CASES[name])
    theirs = train(plan, wire)
    listed = (*DIFFERENCES, *WITH_DRIVERS)
    assert without(theirs, listed) == without(plan.request, listed)
    assert own_parameters(theirs) == own_parameters(plan.request)
    assert own_channels(theirs) == own_channels(plan.request)
    assert archive(theirs) == archive(plan.request)
    model_parallel = plan.request.get("HyperParameters", {}).get("mp_parameters", "null")
    assert json.loads(theirs.get("HyperParameters", {}).get("mp_parameters", "null")) == json.loads(
        model_parallel
    )


@pytest.mark.parametrize("name", sorted(WITHOUT_DRIVERS))
def test_the_sdk_sends_the_plan_without_drivers(name: str, wire: Wire) -> None:
    """What only the toolkit can start is sent with every hyperparameter and every channel of the plan."""
    plan = plan_of(CASES[name])
    assert without(train(plan, wire), DIFFERENCES) == without(plan.request, DIFFERENCES)


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_has_no_word_for_is_refused(name: str) -> None:
    """The message names the field."""
    with pytest.raises(
        TargetError, match=f"version 3 of the SageMaker SDK cannot express .*{REFUSED[name]}"
    ):
        plan_of(CASES[name]).to_model_trainer()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("torch", {"process_count_per_node": None, "smp": None}),
        ("torch_count", {"process_count_per_node": 4, "smp": None}),
        (
            "mpi_options",
            {"process_count_per_node": 2, "mpi_additional_options": ["-x", "A=b", "--tag-output"]},
        ),
    ],
)
def test_the_drivers_are_told_what_to_start(
    name: str, expected: dict[str, Any], wire: Wire
) -> None:
    """The file that the drivers read says how many processes, and with which options."""
    train(plan_of(CASES[name]), wire)
    (uploaded,) = [
        body for key, body in wire.objects.items() if key.endswith("sm_drivers/distributed.json")
    ]
    assert json.loads(_unchunked(uploaded)) == expected


TRAINING_PLAN = "arn:aws:sagemaker:us-west-2:123456789012:training-plan/plan-1"


def test_fields_that_version_2_lacks_are_sent(wire: Wire) -> None:
    """Instance preferences and the limit of waiting have a word in version 3, and none in version 2."""
    planned = {
        "instance_type": "ml.p4d.24xlarge",
        "instance_count": 4,
        "training_plan": TRAINING_PLAN,
    }
    resources = {"instance_preferences": ["ml.p5.48xlarge", planned], "instance_count": 2}
    plan = plan_of(Case({"resources": resources}, {"max_pending": "2h"}))
    theirs = train(plan, wire)
    assert theirs["ResourceConfig"] == plan.request["ResourceConfig"]
    assert theirs["StoppingCondition"] == plan.request["StoppingCondition"]


def test_it_goes_to_the_region_of_the_plan(wire: Wire) -> None:
    """The session that is made where none is given has the plan's region, and sends no telemetry."""
    plan = plan_of(Case({"resources": machine("ml.g5.xlarge")}, region="eu-west-2"))
    plan.to_model_trainer().train(**plan.train_arguments(), wait=False, logs=False)
    assert {host for host in wire.hosts if "sagemaker" in host} == {
        "api.sagemaker.eu-west-2.amazonaws.com"
    }
    assert not [host for host in LOOKUPS if "eu-west-2" in host]


@pytest.mark.parametrize("name", ["everything", "smddp"])
def test_the_code_sends_the_plan(name: str, wire: Wire) -> None:
    """The printed code, run as it is, sends the same, with the session that it makes itself."""
    plan = plan_of(CASES[name])
    exec(compile(plan.to_python(sdk=3), "job.py", "exec"), {})
    listed = (*DIFFERENCES, *WITH_DRIVERS)
    (theirs,) = wire.training_jobs
    assert without(theirs, listed) == without(plan.request, listed)


def _unchunked(body: bytes) -> str:
    """The content of an upload that botocore has framed as one chunk with a checksum."""
    text = body.decode()
    return text.split("\r\n")[1] if "\r\n" in text else text
