"""Sweeps as the requests of the services' own tuners, compared whole with what the SDKs send; and what they cannot do."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import log
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.errors import JobError

GOLDEN = Path(__file__).parents[2] / "golden" / "sweeps"
SAGEMAKER = ct.SageMaker(region="us-west-2", role="arn:aws:iam::123456789012:role/SageMakerRole")
AZUREML = ct.AzureML(
    subscription_id="11111111-2222-3333-4444-555555555555",
    resource_group="rg",
    workspace="ws",
    compute="gpu-cluster",
)
JOB: dict[str, Any] = {
    "name": "tune",
    "entry_point": "train.py",
    "hyperparameters": {"epochs": 3},
    "distribution": {"type": "torch"},
    "resources": {
        "instance_count": 2,
        "instance_type": {"sagemaker": "ml.g5.12xlarge", "azureml": "Standard_ND96asr_v4"},
    },
    "environment": {"framework": "pytorch", "version": "2.8"},
}

IMAGE = {
    "entry_point": None,
    "distribution": {"type": "none"},
    "environment": {"image": "123456789012.dkr.ecr.us-west-2.amazonaws.com/a:1"},
}

Make = Callable[..., ct.Sweep]


@pytest.fixture
def make(make_source: Callable[..., Path]) -> Make:
    """`make(trials=3)` is a sweep with other fields."""
    source = make_source({"train.py": "print(1)\n"})

    def sweep(*, job: dict[str, Any] | None = None, **fields: Any) -> ct.Sweep:
        given = {
            "search": {"lr": {"log": [1e-4, 1e-1]}},
            "objective": {"minimize": "val_loss"},
            "trials": 8,
            **fields,
        }
        return ct.Sweep(
            **{"name": "tune", "job": {**JOB, "source_dir": str(source), **(job or {})}, **given}
        )

    return sweep


def test_the_tuning_request_is_the_sdks(make: Make) -> None:
    """Whole, with the differences that are meant: our names and places, and categorical numbers that stay numbers."""
    sweep = make(
        search={"lr": {"log": [1e-4, 1e-1]}, "bs": [16, 32], "depth": {"int": [1, 4]}},
        strategy="bayesian",
        parallel=2,
        stop_early={"median": {}},
        job={
            "inputs": {"train": {"sagemaker": "s3://my-bucket/train", "mode": "download"}},
            "metrics": {"val_loss": "val_loss=([0-9.]+)"},
            "environment": {"framework": "pytorch", "version": "2.8", "variables": {"FOO": "bar"}},
        },
    )
    plan = ct.plan(sweep, SAGEMAKER)
    expected = json.loads((GOLDEN / "sagemaker_tuner.json").read_text())["request"]
    expected["HyperParameterTuningJobName"] = plan.run_name
    ranges = expected["HyperParameterTuningJobConfig"]["ParameterRanges"]
    ranges["CategoricalParameterRanges"][0]["Values"] = ["16", "32"]
    ranges["IntegerParameterRanges"][0]["ScalingType"] = "Linear"
    definition = expected["TrainingJobDefinition"]
    static = definition["StaticHyperParameters"]
    static["sagemaker_job_name"] = f'"{plan.run_name}"'
    static["sagemaker_submit_directory"] = json.dumps(plan.uploads[0].destination)
    del static["sagemaker_estimator_class_name"], static["sagemaker_estimator_module"]
    definition["OutputDataConfig"]["S3OutputPath"] += "cloudtrain/output"
    expected["Tags"] = [{"Key": "cloudtrain:run", "Value": plan.run_name}]
    assert plan.request == expected
    assert len(plan.run_name) <= 32


def test_the_sweep_body_is_the_sdks(make: Make) -> None:
    """Whole, with the differences that are meant: ids instead of short names, our label, the model, the seed's rule."""
    sweep = make(search={"lr": {"uniform": [0.01, 0.9]}}, trials=4, parallel=2, max_runtime="2h",
                 objective={"minimize": "loss"}, job={"hyperparameters": {}})  # fmt: skip
    plan = ct.plan(sweep, AZUREML)
    body = plan.request["properties"]
    expected = json.loads((GOLDEN / "azureml_sweep.json").read_text())["properties"]
    expected |= {
        "computeId": body["computeId"],
        "displayName": plan.run_name,
        "experimentName": "tune",
        "outputs": {"model": {"jobOutputType": "uri_folder"}},
        "properties": {"cloudtrain.run": plan.run_name},
    }
    expected["trial"] |= {
        "codeId": plan.uploads[0].destination,
        "environmentVariables": body["trial"]["environmentVariables"],
    }
    assert body == expected
    assert body["computeId"].endswith("/computes/gpu-cluster")


def test_values_are_translated(make: Make) -> None:
    """Natural logarithms and listed whole numbers for Azure ML; texts and steps as lists for SageMaker."""
    search = {
        "lr": {"log": [1e-4, 1e-1]},
        "width": {"int": [64, 192], "step": 64},
        "opt": ["adam", "sgd"],
    }
    sweep = make(search=search, seed=7)
    there = ct.plan(sweep, AZUREML).request["properties"]
    assert there["searchSpace"] == {
        "lr": ["loguniform", [log(1e-4), log(1e-1)]],
        "opt": ["choice", [["adam", "sgd"]]],
        "width": ["choice", [[64, 128, 192]]],
    }
    assert there["samplingAlgorithm"] == {
        "samplingAlgorithmType": "Random",
        "rule": "random",
        "seed": 7,
    }
    assert (
        "--lr ${{search_space.lr}} --opt ${{search_space.opt}} --width ${{search_space.width}}"
        in (there["trial"]["command"])
    )
    config = ct.plan(sweep, SAGEMAKER).request["HyperParameterTuningJobConfig"]
    assert config["RandomSeed"] == 7
    assert config["ParameterRanges"]["CategoricalParameterRanges"] == [
        {"Name": "opt", "Values": ['"adam"', '"sgd"']},
        {"Name": "width", "Values": ["64", "128", "192"]},
    ]


def test_the_objective_is_read_from_what_the_script_reports(make: Make) -> None:
    """Where the job has no expression for it."""
    definition = ct.plan(make(), SAGEMAKER).request["TrainingJobDefinition"]
    row = definition["AlgorithmSpecification"]["MetricDefinitions"][0]
    import re

    found = re.search(row["Regex"], "[metrics] step=3 val_loss=0.25 acc=0.5")
    assert row["Name"] == "val_loss"
    assert found is not None
    assert found[1] == "0.25"


def test_hyperband(make: Make) -> None:
    """Its resources go along, and early stopping is its own."""
    config = ct.plan(make(strategy="hyperband", hyperband={"min": 1, "max": 9}), SAGEMAKER).request[
        "HyperParameterTuningJobConfig"
    ]
    assert config["StrategyConfig"] == {
        "HyperbandStrategyConfig": {"MinResource": 1, "MaxResource": 9}
    }
    assert config["TrainingJobEarlyStoppingType"] == "Off"


COMMON = [
    (
        {"objective": None, "strategy": "grid", "search": {"lr": [1, 2]}, "trials": None},
        "needs an objective",
    ),
    (
        {"strategy": "grid", "search": {"lr": [1, 2, 3]}, "trials": 2},
        "grid runs all 3 combinations",
    ),
]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *COMMON,
        (
            {"name": "a-name-of-more-than-twenty-letters"},
            "a tuning job's name has at most 32 letters",
        ),
        ({"search": {"lr": list(range(31))}}, "takes at most 30 listed values"),
        (
            {"search": {f"p{number}": [1, 2] for number in range(31)}},
            "searches at most 30 hyperparameters",
        ),
        ({"job": {"checkpoint": {"sagemaker": "s3://b/c"}}}, "one address for checkpoints"),
        (
            {"job": {"environment": {**JOB["environment"], "requirements": "more.txt"}}},
            "cannot start cloudtrain's launcher",
        ),
        ({"stop_early": {"bandit": {"slack": 0.1}}}, "has no bandit rule"),
        (
            {"search": {"lr": ["plain", "two words; and $more"]}},
            "would break the value `two words; and $more`",
        ),
        ({"search": {"sagemaker_x": [1, 2]}}, "is reserved by SageMaker"),
        ({"search": {"lr": [None, 1]}, "job": IMAGE}, "values that are neither text nor numbers"),
        ({"search": {"lr": ["x" * 300, "y"]}}, "a value of over 256 letters"),
        ({"max_runtime": "1m"}, "a tuning job's limit is at least 2m"),
        ({"parallel": 101}, "at most 100 trials at once, and `parallel` is 101"),
        ({"strategy": "bayesian", "trials": 751}, "at most 750 trials of `bayesian`, and this 751"),
        (
            {"job": {"hyperparameters": {f"p{n}": n for n in range(101)}}},
            "at most 100 fixed hyperparameters",
        ),
        (
            {
                "job": {
                    "environment": {
                        **JOB["environment"],
                        "variables": {f"V{n}": "" for n in range(49)},
                    }
                }
            },
            "at most 48",
        ),
    ],
)
def test_what_sagemakers_tuner_cannot_do(make: Make, change: dict[str, Any], message: str) -> None:
    """With `driver: service` it is an error with the alternative; without, our own driver does it, and says why."""
    with pytest.raises(JobError) as caught:
        ct.plan(make(driver="service", **change), SAGEMAKER)
    said = [problem for problem in caught.value.problems if message in problem.message]
    assert said
    assert said[0].code == "CT061"
    plan = ct.plan(make(**change), SAGEMAKER)
    assert message in dict(plan.summary)["driver"]
    assert "sweep" in plan.request


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"profiler": True}, "`ProfilerConfig`"),
        ({"debugger": True}, "`DebugHookConfig`"),
        ({"remote_debug": True}, "`RemoteDebugConfig`"),
        ({"infra_check": True}, "`InfraCheckConfig`"),
        ({"experiment": "e"}, "`ExperimentConfig`"),
        ({"keep_alive": "30m"}, "`KeepAlivePeriodInSeconds`"),
        (
            {"training_plan": "arn:aws:sagemaker:us-west-2:123456789012:training-plan/tp1"},
            "`TrainingPlanArn`",
        ),
        ({"launch": "entrypoint"}, "cannot start cloudtrain's launcher"),
    ],
)
def test_what_a_trial_of_sagemakers_tuner_cannot_have(
    make: Make, change: dict[str, Any], message: str
) -> None:
    """The SDK drops it without a word; here our own driver sends it with each trial, or it is an error."""
    target = ct.SageMaker(region="us-west-2", role=SAGEMAKER.role, **change)
    with pytest.raises(JobError) as caught:
        ct.plan(make(driver="service"), target)
    assert [
        item
        for item in caught.value.problems
        if message in item.message and "driver: cloudtrain" in item.hint
    ]
    assert message in dict(ct.plan(make(), target).summary)["driver"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *COMMON,
        ({"strategy": "bayesian"}, "Bayesian sampling does not support logarithmic ranges"),
        ({"strategy": "hyperband", "hyperband": {"max": 9}}, "has no hyperband"),
        ({"search": {"learning-rate": [1, 2]}}, "Azure ML cannot search"),
        ({"search": {"lr": {"int": [1, 5000]}}}, "5,000 whole numbers"),
        ({"search": {"lr": ["a b", "c"]}}, "shell would break the value `a b`"),
        ({"job": {"checkpoint": {"azureml": "azureml://datastores/d/paths/c"}}}, "has one address"),
        ({"job": {"checkpoint": {}}}, "has one address"),
        (
            {"job": {"outputs": {"logs": {"azureml": "azureml://datastores/d/paths/c"}}}},
            "has one address",
        ),
        (
            {"strategy": "bayesian", "search": {"lr": [1, 2]}, "stop_early": {"median": {}}},
            "stops no trial early",
        ),
        ({"trials": 1001}, "at most 1,000 trials, and this one 1,001"),
    ],
)
def test_what_azure_mls_tuner_cannot_do(make: Make, change: dict[str, Any], message: str) -> None:
    """The same."""
    with pytest.raises(JobError) as caught:
        ct.plan(make(driver="service", **change), AZUREML)
    assert [problem.code for problem in caught.value.problems if message in problem.message] == [
        "CT061"
    ]
    plan = ct.plan(make(**change), AZUREML)
    assert message in dict(plan.summary)["driver"]


def test_each_trial_has_its_own_checkpoints(make: Make) -> None:
    """Below the place that the job names."""
    from cloudtrain.lifecycle.sweeps.service import Specification
    from cloudtrain.targets.settings import load_settings

    sweep = make(job={"checkpoint": {"sagemaker": "s3://b/c/"}})
    specification = Specification.from_json(ct.plan(sweep, SAGEMAKER).request, load_settings())
    places = [specification.trial(number, {"lr": 0.1}).work.view.checkpoint for number in (1, 2)]
    assert [place.sagemaker for place in places if place is not None] == [
        f"s3://b/c/{specification.name}-t001",
        f"s3://b/c/{specification.name}-t002",
    ]


def test_each_trial_of_azures_tuner_has_its_own_places(make: Make) -> None:
    """The service puts an output without an address into the folder of each job."""
    outputs = ct.plan(make(job={"outputs": {"logs": {}}}), AZUREML).request["properties"]["outputs"]
    assert {name: output.get("uri") for name, output in outputs.items()} == {
        "logs": None,
        "model": None,
    }


def test_a_quota_that_few_accounts_have_is_said(make: Make) -> None:
    """More than ten trials at once."""
    assert [
        note for note in ct.plan(make(trials=20, parallel=11), SAGEMAKER).notes if "quota" in note
    ]
    assert not [
        note for note in ct.plan(make(trials=8, parallel=11), SAGEMAKER).notes if "quota" in note
    ]


def test_the_cost_of_all_trials_is_kept(make: Make) -> None:
    """`max_cost` stops a sweep before it starts, and says how many trials it pays for."""
    sweep = make(job={"max_runtime": "1h"})
    assert dict(ct.plan(sweep, SAGEMAKER).summary)["cost"].startswith("up to $")
    with pytest.raises(JobError) as caught:
        ct.plan(sweep.replace(max_cost=50), SAGEMAKER)
    problem = caught.value.problems[0]
    assert problem.code == "CT062"
    assert problem.message.startswith("8 trials can cost $")
    assert (problem.hint or "").startswith("write `trials: 3`")
