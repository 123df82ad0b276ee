"""What a plan can be had as: every plan has the methods, and those of other targets say whose they are."""

from __future__ import annotations

import re

import pytest

import cloudtrain as ct
from cloudtrain.plans.plan import PlanExports
from cloudtrain.system.plugins import all_targets, find_target, part

METHODS = (
    "fit_arguments",
    "to_command",
    "to_estimator",
    "to_model_trainer",
    "to_python",
    "to_yaml",
    "train_arguments",
)
SETTINGS = {
    "local": ct.Local(),
    "sagemaker": ct.SageMaker(
        region="us-west-2", role="arn:aws:iam::111122223333:role/SageMakerTraining"
    ),
    "azureml": ct.AzureML(
        subscription_id="00000000-0000-0000-0000-000000000000", resource_group="rg", workspace="ws"
    ),
    "slurm": ct.Slurm(shared_dir="/fsx/cloudtrain"),
}


def supports(target: str, method: str) -> bool:
    return hasattr(part(find_target(target), PlanExports), method)


def plan_for(target: str) -> ct.Plan:
    return ct.plan(ct.bundled_job("digits_ddp"), SETTINGS[target])


@pytest.mark.parametrize("target", SETTINGS)
def test_a_plan_has_what_its_target_supports(target: str) -> None:
    """The other methods are refused, and the formats are those that the target names."""
    own = {name for name in METHODS if supports(target, name)}
    plan = plan_for(target)
    for method in set(METHODS) - own:
        with pytest.raises(ct.CloudtrainError, match=f"a plan for `{target}` has no `{method}`"):
            getattr(plan, method)()
    assert set(plan.forms()) == set(find_target(target).facts.plan_formats)


def test_every_method_is_some_target_s() -> None:
    """None of them is refused by all."""
    assert {
        name for target in all_targets() for name in METHODS if supports(target.name, name)
    } == set(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_a_plan_says_which_target_has_the_method(method: str) -> None:
    """The error is one of a usage, has a code, and its hint names the targets whose plans have the method."""
    with pytest.raises(
        ct.CloudtrainError, match=f"a plan for `local` has no `{method}`"
    ) as refused:
        getattr(plan_for("local"), method)()
    assert (refused.value.code, refused.value.exit_code) == ("CT904", 2)
    named = re.findall(rf'`ct\.plan\(job, "(\w+)"\)\.{method}\(\)`', refused.value.hint)
    assert named == [target.name for target in all_targets() if supports(target.name, method)]
    assert named
