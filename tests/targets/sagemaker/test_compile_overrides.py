"""What a user adds to a SageMaker request by hand: merged last, shown, and stopped where nothing sensible is left."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cloudtrain as ct
from cloudtrain.job.model import merged
from cloudtrain.plans.plan import Bundle, CompileContext, Plan
from cloudtrain.targets.sagemaker.compile.training import compile_sagemaker
from cloudtrain.targets.sagemaker.settings import SageMakerAccount

ACCOUNT = SageMakerAccount("us-west-2", "arn:aws:iam::123456789012:role/Training", "bucket")


def plan(overrides: dict[str, Any], **fields: Any) -> Plan:
    job = ct.TrainingJob(
        name="job",
        entry_point="train.py",
        distribution=fields.pop("distribution", ct.Torch()),
        resources=fields.pop("resources", {"instance_type": {"sagemaker": "ml.g5.12xlarge"}}),
        environment={"framework": "pytorch", "version": "2.8"},
        sagemaker_overrides=overrides,
        **fields,
    )
    return compile_sagemaker(
        job, ct.SageMaker(), CompileContext("job-1", Bundle("5" * 64, 1, 1), ACCOUNT)
    )


def test_merged_last() -> None:
    """Overrides win over the job, key by key; a null removes its key."""
    changed = plan(
        {"ResourceConfig": {"VolumeSizeInGB": 99}, "Tags": None}, tags={"team": "vision"}
    )
    assert changed.request["ResourceConfig"] == {
        "VolumeSizeInGB": 99,
        "InstanceType": "ml.g5.12xlarge",
        "InstanceCount": 1,
    }
    assert "Tags" not in changed.request


def test_the_plan_shows_what_was_made_of_it() -> None:
    """Machines, processes and cost are those of the finished request."""
    shown = plan({"ResourceConfig": {"InstanceType": "ml.g5.48xlarge", "InstanceCount": 2}})
    summary = dict(shown.summary)
    assert summary["instances"].startswith("2 x ml.g5.48xlarge (8 x A10G-24GB")
    assert summary["processes"] == "16 on 2 of 2 instances"


def test_the_plan_costs_what_the_dearest_preference_does() -> None:
    """Any of them may be taken: $25.25 an hour, not the $1.41 of the first; unknown where one has no price."""
    cheap, dear, unpriced = ({"InstanceType": f"ml.{name}", "InstanceCount": 1} for name in TYPES)
    known = {"InstanceType": None, "InstanceCount": None, "InstancePreferences": [cheap, dear]}
    shown = dict(plan({"ResourceConfig": known}, max_runtime="1h").summary)
    assert (
        shown["instances"]
        == "1 x ml.g5.xlarge (1 x A10G-24GB)\nor 1 x ml.p4d.24xlarge (8 x A100-40GB)"
    )
    assert shown["cost"] == "at most $25.25 at list prices"
    unknown = known | {"InstancePreferences": [cheap, dear, unpriced]}
    assert dict(plan({"ResourceConfig": unknown}).summary)["cost"].startswith("unknown")


TYPES = ("g5.xlarge", "p4d.24xlarge", "p5e.48xlarge")


def test_the_job_s_own_preferences_cost_what_the_dearest_does() -> None:
    """The same, without overrides."""
    resources = {"instance_preferences": ("ml.g5.xlarge", "ml.p4d.24xlarge")}
    assert (
        dict(plan({}, max_runtime="1h", resources=resources).summary)["cost"]
        == "at most $25.25 at list prices"
    )


@pytest.mark.parametrize(
    ("overrides", "place"),
    [
        ({"StoppingCondition": None}, "sagemaker_overrides.StoppingCondition"),
        ({"TrainingJobName": None}, "sagemaker_overrides.TrainingJobName"),
        ({"OutputDataConfig": None}, "sagemaker_overrides.OutputDataConfig"),
        ({"ResourceConfig": "x"}, "sagemaker_overrides.ResourceConfig"),
        ({"HyperParameters": "x"}, "sagemaker_overrides.HyperParameters"),
        ({"HyperParameters": {"a": 1}}, "sagemaker_overrides.HyperParameters.a"),
        ({"AlgorithmSpecification": []}, "sagemaker_overrides.AlgorithmSpecification"),
        ({"InputDataConfig": "x"}, "sagemaker_overrides.InputDataConfig"),
        ({"ResourceConfig": {"InstanceType": None}}, "sagemaker_overrides.ResourceConfig"),
        (
            {"StoppingCondition": {"MaxRuntimeInSeconds": "2h"}},
            "sagemaker_overrides.StoppingCondition.MaxRuntimeInSeconds",
        ),
    ],
)
def test_no_request_left(overrides: dict[str, Any], place: str) -> None:
    """Overrides that leave something that is no request are refused, each at its place."""
    with pytest.raises(ct.JobError) as caught:
        plan(overrides)
    assert place in [problem.dotted for problem in caught.value.problems]


UNREADABLE = {
    "sagemaker_distribution_instance_groups": 3,
    "sagemaker_instance_type": ["ml.p4d.24xlarge"],
    "sagemaker_mpi_num_of_processes_per_host": [1],
    "sagemaker_mpi_num_processes": "all",
    "sagemaker_mpi_custom_mpi_options": 3,
    "sagemaker_distributed_dataparallel_custom_mpi_options": {"a": 1},
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_launchers_hyperparameter_that_it_cannot_read(name: str) -> None:
    """Written as a hyperparameter or as an override, it is refused at its place."""
    with pytest.raises(ct.JobError, match=name) as caught:
        plan({}, hyperparameters={name: UNREADABLE[name]}, distribution=ct.NoDistribution())
    assert [problem.dotted for problem in caught.value.problems] == [f"hyperparameters.{name}"]
    with pytest.raises(ct.JobError, match=name) as caught:
        plan({"HyperParameters": {name: json.dumps(UNREADABLE[name])}})
    assert [problem.dotted for problem in caught.value.problems] == [
        f"sagemaker_overrides.HyperParameters.{name}"
    ]


def test_a_number_of_processes_in_quotes() -> None:
    """The toolkit takes it, and so does the plan."""
    shown = plan({"HyperParameters": {"sagemaker_mpi_num_of_processes_per_host": '"2"'}})
    assert dict(shown.summary)["processes"] == "2"


json_values = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=3)),
    lambda inner: (
        st.dictionaries(st.text("ab", max_size=2), inner, max_size=3) | st.lists(inner, max_size=2)
    ),
    max_leaves=6,
)
mappings = st.dictionaries(st.text("ab", max_size=2), json_values, max_size=4)


@given(mappings)
def test_nothing_changes_nothing(request_: dict[str, Any]) -> None:
    """Without overrides the request is what it was."""
    assert merged(request_, {}) == request_


@given(mappings, mappings)
def test_merging_twice_is_merging_once(request_: dict[str, Any], overrides: dict[str, Any]) -> None:
    """Overrides that are in have nothing more to say, and the arguments stay as they are."""
    before = repr((request_, overrides))
    once = merged(request_, overrides)
    assert merged(once, overrides) == once
    assert repr((request_, overrides)) == before
