"""A plan in the SageMaker SDK's words, as far as no SDK is needed; `tests/parity` runs the real ones."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.errors import MissingExtra, TargetError, UsageError
from cloudtrain.plans.plan import Plan
from cloudtrain.system.plugins import pip_line
from cloudtrain.targets.common.export import Call, Program, python_code
from tests.parity.jobs import CASES, Case, machine, plan_of

PREFERENCES = {"instance_preferences": ["ml.p5.48xlarge", "ml.p4d.24xlarge"]}


def override(**fields: Any) -> Case:
    """A job with fields of the request written by hand."""
    return Case({"sagemaker_overrides": fields})


def arguments_of(code: str, name: str) -> dict[str, str]:
    """Argument to its code, of the one call of `name` in the code."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    (call,) = [one for one in calls if ast.unparse(one.func) == name]
    return {str(keyword.arg): ast.unparse(keyword.value) for keyword in call.keywords}


@pytest.mark.parametrize(
    ("case", "field"),
    [
        (Case({"resources": PREFERENCES}), "ResourceConfig.InstancePreferences"),
        (Case({}, {"max_pending": "2h"}), "StoppingCondition.MaxPendingTimeInSeconds"),
        (override(OutputDataConfig={"CompressionType": "GZIP"}), "OutputDataConfig.CompressionType"),
        (override(EnableNetworkIsolation=False), "EnableNetworkIsolation"),
        (override(ProfilerRuleConfigurations=[{"RuleConfigurationName": "r", "RuleEvaluatorImage": "i"}]), "ProfilerRuleConfigurations"),
        (override(ProfilerConfig=None), "ProfilerConfig.DisableProfiler left out"),
        (
            override(ProfilerConfig={"ProfilingIntervalInMilliseconds": 500}),
            "ProfilerConfig.ProfilingIntervalInMilliseconds",
        ),
        (
            override(InputDataConfig=[{"ChannelName": "a", "EnableFFM": True, "DataSource": {"S3DataSource": {
                "S3Uri": "s3://b/a", "S3DataType": "S3Prefix", "S3DataDistributionType": "FullyReplicated"}}}]),
            "InputDataConfig[0].EnableFFM",
        ),
    ],
)  # fmt: skip
def test_what_version_2_cannot_say_is_named(case: Case, field: str) -> None:
    """The error names the field, and the hint what sends it all the same."""
    with pytest.raises(TargetError) as caught:
        plan_of(case).to_python()
    assert caught.value.message == f"version 2 of the SageMaker SDK cannot express `{field}`"
    assert "create_training_job(**plan.request)" in str(caught.value.hint)


def test_all_that_cannot_be_said_is_named_at_once() -> None:
    """Two fields, one error."""
    case = Case({"resources": PREFERENCES}, {"max_pending": "2h"})
    with pytest.raises(
        TargetError, match=r"`ResourceConfig\.InstancePreferences`, `StoppingCondition\.MaxPending"
    ):
        plan_of(case).to_python()


def test_the_code_is_what_one_would_write() -> None:
    """The framework's class with its version and a distribution, and the inputs in `fit`."""
    code = plan_of(CASES["torch"]).to_python()
    estimator = arguments_of(code, "PyTorch")
    assert estimator["framework_version"] == "'2.8.0'"
    assert estimator["distribution"] == "{'torch_distributed': {'enabled': True}}"
    assert estimator["hyperparameters"] == "{'epochs': 3, 'lr': 0.001}"
    assert "image_uri" not in estimator
    assert not {
        name for name in estimator if name.startswith("sagemaker_") and name != "sagemaker_session"
    }
    assert arguments_of(code, "estimator.fit")["job_name"] == "'parity-1a2b3c4d-1'"


def test_the_code_says_why_it_is_not() -> None:
    """Where the SDK's `distribution` would change the job, a comment says how, and the hyperparameters are spelled out."""
    code = plan_of(CASES["groups_smddp"]).to_python()
    comment = " ".join(
        line.removeprefix("# ") for line in code.splitlines() if line.startswith("#")
    )
    assert "it would set `sagemaker_instance_type` to `null`" in comment
    estimator = arguments_of(code, "PyTorch")
    assert "distribution" not in estimator
    assert "'sagemaker_instance_type': 'ml.p4d.24xlarge'" in estimator["hyperparameters"]


@pytest.mark.parametrize("kind", ["torch", "deepspeed"])
def test_the_code_says_what_our_launcher_makes_of_it(kind: str) -> None:
    """A list among the hyperparameters starts cloudtrain's launcher; a flag does not."""
    fields = {"distribution": {"type": kind}, "resources": machine("ml.g5.12xlarge", 2)}
    with_list = plan_of(Case({**fields, "hyperparameters": {"layers": [1, 2]}})).to_python()
    comment = with_list.replace("\n# ", " ")
    assert "generic `Estimator` sends this job, without a `distribution`" in comment
    assert "would break `layers`" in comment
    with_flag = plan_of(Case({**fields, "hyperparameters": {"flag": True}})).to_python()
    assert "\n# " not in with_flag
    assert "distribution" in arguments_of(with_flag, "PyTorch")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow_after(40)
def test_all_code_is_python_within_its_width(name: str) -> None:
    """It parses, it is the same each time, and only a text that cannot be broken is wider than 88 columns."""
    code = plan_of(CASES[name]).to_python()
    ast.parse(code)
    assert code == plan_of(CASES[name]).to_python()
    wide = [line for line in code.splitlines() if len(line) > 88]
    assert [
        line for line in wide if line.count(", ") > line.count('"') and not line.startswith('"""')
    ] == []


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(min_size=1), VALUES, min_size=1, max_size=6))
def test_values_survive_being_printed(values: dict[str, Any]) -> None:
    """Quotes, newlines, long lists, other alphabets: every value means the same in the code."""
    program = Program(
        {"estimator": Call("sagemaker.things.Thing", {"values": values})}, "go", {}, "sagemaker-sdk"
    )
    assert (
        ast.literal_eval(arguments_of(python_code(program, title="A thing"), "Thing")["values"])
        == values
    )


def test_the_profile_is_part_of_the_session() -> None:
    """The target's AWS profile, which the plan's place holds, is the session's."""
    plan = plan_of(Case())
    with_profile = replace(plan, place="my%20team@us-west-2")
    assert arguments_of(with_profile.to_python(), "boto3.Session") == {
        "region_name": "'us-west-2'",
        "profile_name": "'my team'",
    }
    assert arguments_of(plan.to_python(), "boto3.Session") == {"region_name": "'us-west-2'"}


def test_a_missing_sdk_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 2 and version 3 are different extras; the plan and its code need neither."""
    import sys

    monkeypatch.setitem(sys.modules, "sagemaker", None)
    plan = plan_of(Case({"resources": machine("ml.g5.xlarge")}))
    with pytest.raises(MissingExtra) as caught:
        plan.to_estimator()
    assert caught.value.hint == pip_line("sagemaker-sdk")
    with pytest.raises(MissingExtra) as caught:
        plan.to_model_trainer()
    assert caught.value.hint == pip_line("sagemaker-sdk-3")


def test_a_processing_plan_has_no_estimator() -> None:
    """Only a training job can be had as an object of the SDK; its forms say so too."""
    plan = Plan("sagemaker", "prep-1", "prep", {"ProcessingJobName": "prep-1"}, place="us-west-2")
    with pytest.raises(UsageError, match="only training jobs"):
        plan.to_estimator()
    assert list(plan.forms()) == ["aws-cli"]
    assert list(plan_of(Case()).forms()) == ["aws-cli", "python"]
