"""`HyperparameterTuner` of version 2 of the SDK sends the request of a sweep's plan, whole, where it can say the sweep.

The tuner is written by hand for each case; its estimator is the plan's of one trial, which sends that trial's whole
request (`test_jobs_v2.py`). `as_ours` lists every difference.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.adoption.proof import adopt_original
from cloudtrain.job.sweep import Sweep
from cloudtrain.plans.plan import Bundle, CompileContext
from cloudtrain.targets.sagemaker.adopt.requests import originals_in
from cloudtrain.targets.sagemaker.compile.sweep import compile_tuning, continued
from cloudtrain.targets.sagemaker.settings import SageMaker, SageMakerAccount
from tests.parity.conftest import session_of
from tests.parity.jobs import (
    BASE,
    KEY,
    OWN,
    ROLE,
    SMDDP_IMAGE,
    TENSORFLOW,
    TRANSFORMERS,
    Case,
    machine,
    plan_of,
)
from tests.parity.wire import Wire

pytestmark = pytest.mark.parity(2)

LOSS = {"metrics": {"loss": "loss=([0-9.]+)"}}
TORCH = {"distribution": {"type": "torch"}}
RATE = {"lr": {"log": [1e-4, 0.1]}}
RANGES: dict[str, dict[str, tuple[str, tuple[Any, ...]]]] = {
    "rate": {"lr": ("Continuous", (1e-4, 0.1, "Logarithmic"))},
    "all": {
        "lr": ("Continuous", (1e-5, 0.1, "Logarithmic")),
        "momentum": ("Continuous", (0.5, 0.99, "Linear")),
        "depth": ("Integer", (2, 8, "Linear")),
        "bs": ("Categorical", ([16, 32, 64],)),
        "opt": ("Categorical", (["adam", "sgd"],)),
    },
    "grid": {"bs": ("Categorical", ([16, 32, 64],)), "drop": ("Categorical", ([0.1, 0.5],))},
    "steps": {"width": ("Categorical", ([64, 128, 192, 256],))},
}
"""Names to the SDK's own classes, and what they are made of."""

ALL = {
    "lr": {"log": [1e-5, 0.1]}, "momentum": {"uniform": [0.5, 0.99]}, "depth": {"int": [2, 8]},
    "bs": [16, 32, 64], "opt": ["adam", "sgd"],
}  # fmt: skip
NO_GPU = machine("ml.m5.xlarge")


@dataclass(frozen=True)
class Tuned:
    """A sweep, its job, and what the SDK calls the same."""

    sweep: dict[str, Any] = field(default_factory=dict)
    tuner: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    target: dict[str, Any] = field(default_factory=dict)
    ranges: str = "rate"


CASES = {
    "random": Tuned(),
    "every_kind": Tuned({"search": ALL, "parallel": 3}, {"max_parallel_jobs": 3}, TORCH, ranges="all"),
    "bayesian": Tuned({"search": ALL, "strategy": "bayesian"}, {"strategy": "Bayesian"}, ranges="all"),
    "bayesian_seed": Tuned({"strategy": "bayesian", "seed": 7}, {"strategy": "Bayesian", "random_seed": 7}, TORCH),
    "seed_zero": Tuned({"seed": 0}, {"random_seed": 0}),
    "grid": Tuned(
        {"search": {"bs": [16, 32, 64], "drop": [0.1, 0.5]}, "strategy": "grid", "trials": None},
        {"strategy": "Grid", "max_jobs": 6}, ranges="grid",
    ),
    "grid_of_whole_numbers": Tuned(
        {"search": {"width": {"int": [64, 256], "step": 64}}, "strategy": "grid", "trials": None},
        {"strategy": "Grid", "max_jobs": 4}, ranges="steps",
    ),
    "steps": Tuned({"search": {"width": {"int": [64, 256], "step": 64}}}, ranges="steps"),
    "hyperband": Tuned(
        {"strategy": "hyperband", "hyperband": {"min": 2, "max": 27}}, {"strategy": "Hyperband", "hyperband": (27, 2)}
    ),
    "stop_early": Tuned({"stop_early": {"median": {}}}, {"early_stopping_type": "Auto"}),
    "maximize": Tuned({"objective": {"maximize": "loss"}}, {"objective_type": "Maximize"}),
    "time_limit": Tuned({"max_runtime": "12h"}, {"max_runtime_in_seconds": 43_200}),
    "many_at_once": Tuned({"trials": 500, "parallel": 100}, {"max_jobs": 500, "max_parallel_jobs": 100}),
    "more_metrics": Tuned(job={"metrics": {"loss": "loss=([0-9.]+)", "acc": 'acc "([0-9.]+)"', "lr": "lr=(.*)"}}),
    "the_lines_of_report": Tuned(job={"metrics": {}}),
    "a_value_of_the_job_is_replaced": Tuned(job={"hyperparameters": {"lr": 0.5, "epochs": 3, "name": "resnet"}}),
    "torch_p5": Tuned(job={**TORCH, "resources": machine("ml.p5.48xlarge", 4)}),
    "smddp": Tuned(job={"distribution": {"type": "smddp"}, **SMDDP_IMAGE}),
    "mpi": Tuned(job={"distribution": {"type": "mpi", "processes_per_instance": 4, "options": "-x A=b"}}),
    "horovod_transformers": Tuned(job={"distribution": {"type": "horovod"}, **TRANSFORMERS}),
    "tensorflow": Tuned(job={"distribution": {"type": "tensorflow"}, **TENSORFLOW}),
    "image_alone": Tuned(
        {"search": ALL}, job={**OWN, "entry_point": None, "hyperparameters": {"a": True, "b": [1], "c": "x"}},
        ranges="all",
    ),
    "spot": Tuned(job={"spot": {"max_wait": "6h"}, "max_runtime": "2h"}),
    "network": Tuned(target={"subnets": ["subnet-1", "subnet-2"], "security_group_ids": ["sg-1"]}),
    "keys": Tuned(target={"output_kms_key": KEY, "volume_kms_key": KEY}, job={"resources": NO_GPU}),
    "isolation": Tuned(job=TORCH, target={"network_isolation": True, "encrypt_inter_container_traffic": True}),
    "retries": Tuned(target={"max_retries": 5}),
    "tags": Tuned(job={"tags": {"team": "vision", "a:b": "c=d"}}),
    "variables": Tuned(job={"environment": {**BASE["environment"], "variables": {"NCCL_DEBUG": "INFO", "A": "b c"}}}),
    "volume": Tuned(job={"resources": machine("ml.c5.9xlarge", volume_size="200g")}),
    "file_system": Tuned(
        job={"inputs": {"train": {"sagemaker": "fsx://fs-0123456789abcdef0/fsx/data"}}},
        target={"subnets": ["subnet-1"], "security_group_ids": ["sg-1"]},
    ),
    "sharded_pipe": Tuned(job={"inputs": {"train": {"sagemaker": "s3://data/train", "mode": "pipe", "shard": True}}}),
    "output": Tuned(job={"outputs": {"model": {"sagemaker": "s3://data/models"}}}),
}  # fmt: skip


def as_ours(request: dict[str, Any]) -> dict[str, Any]:
    """What the SDK sends as cloudtrain sends it; these two are all the differences.

    A number of a categorical range is a text there, which `json.loads` in the container makes a text of again; and
    what lets `HyperparameterTuner.attach` find the class of the estimator is not sent by cloudtrain.
    """
    ranges = request["HyperParameterTuningJobConfig"]["ParameterRanges"]
    for row in ranges.get("CategoricalParameterRanges", ()):
        row["Values"] = [
            json.loads(text) if re.match(r'"\d', text) else text for text in row["Values"]
        ]
    static = request["TrainingJobDefinition"].get("StaticHyperParameters", {})
    for name in ("sagemaker_estimator_class_name", "sagemaker_estimator_module"):
        static.pop(name, None)
    return request


def test_there_are_enough_cases() -> None:
    """The table does not shrink unseen."""
    assert len(CASES) >= 30


@pytest.mark.parametrize("name", CASES)
def test_the_tuner_sends_the_plan(name: str, wire: Wire, tmp_path: Path) -> None:
    """The request that reaches CreateHyperParameterTuningJob is the plan's, field for field; adopted it is a sweep whose
    plan is equal."""
    case = CASES[name]
    job = {**LOSS, **case.job}
    trial = plan_of(Case(job, case.target))
    settings = {"resources": machine("ml.p4d.24xlarge", 2)} | BASE | job
    fields: dict[str, Any] = {
        "search": RATE,
        "objective": {"minimize": "loss"},
        "trials": 20,
        **case.sweep,
    }
    sweep = Sweep(name="parity", job=settings, **fields)
    account = SageMakerAccount(region="us-west-2", role=ROLE, bucket="my-bucket")
    context = CompileContext(trial.run_name, Bundle("ab" * 32, 1000, 3), account)
    plan = compile_tuning(sweep, SageMaker(**case.target), context)
    theirs = sent(case, trial, wire)
    adopted = adopt_original(originals_in(theirs, None)[0], tmp_path)
    assert adopted.sweep is not None
    assert adopted.equal, [vars(item) for item in adopted.differences]
    assert as_ours(theirs) == plan.request


WARM = {
    "bayesian": Tuned({"search": ALL, "strategy": "bayesian"}, {"strategy": "Bayesian"}, ranges="all"),
    "random": Tuned({"parallel": 3}, {"max_parallel_jobs": 3}),
    "fewer_than_at_a_time": Tuned({"parallel": 10}, {"max_parallel_jobs": 5}),
    # the same one would draw the same values once more
    "seed": Tuned({"seed": 7}, {"random_seed": 7 + 20}),
    "stop_early": Tuned({"stop_early": {"median": {}}, "max_runtime": "12h"},
                        {"early_stopping_type": "Auto", "max_runtime_in_seconds": 43_200}),
}  # fmt: skip


@pytest.mark.parametrize("name", WARM)
def test_a_sweep_that_goes_on(name: str, wire: Wire) -> None:
    """With a warm start from the parents, as the SDK writes it; the SDK has them in any order."""
    from sagemaker.tuner import WarmStartConfig, WarmStartTypes

    case = WARM[name]
    trial = plan_of(Case(LOSS, case.target))
    settings = {"resources": machine("ml.p4d.24xlarge", 2)} | BASE | LOSS
    fields: dict[str, Any] = {
        "search": RATE,
        "objective": {"minimize": "loss"},
        "trials": 15,
        **case.sweep,
    }
    account = SageMakerAccount(region="us-west-2", role=ROLE, bucket="my-bucket")
    context = CompileContext(trial.run_name, Bundle("ab" * 32, 1000, 3), account)
    plan = compile_tuning(
        Sweep(name="parity", job=settings, **fields), SageMaker(**case.target), context
    )
    second = continued(plan.request, "first-1", 5, 15)
    third = continued(second, "second-1", 5, 20)
    warm = WarmStartConfig(WarmStartTypes.IDENTICAL_DATA_AND_ALGORITHM, {"first-1", "second-1"})
    theirs = as_ours(
        sent(
            replace(case, tuner={"max_jobs": 5, "warm_start_config": warm, **case.tuner}),
            trial,
            wire,
        )
    )
    theirs["WarmStartConfig"]["ParentHyperParameterTuningJobs"].sort(
        key=lambda row: row["HyperParameterTuningJobName"]
    )
    if name == "seed":
        third["HyperParameterTuningJobConfig"]["RandomSeed"] -= 15  # after two times
    assert theirs == third


def sent(case: Tuned, trial: Any, wire: Wire) -> dict[str, Any]:
    """What the SDK's tuner sends."""
    from sagemaker import tuner as sdk

    estimator = trial.to_estimator(session_of("us-west-2"))
    arguments = {
        "strategy": "Random", "objective_type": "Minimize", "max_jobs": 20, "max_parallel_jobs": 1, "tags": estimator.tags,
        **case.tuner,
    }  # fmt: skip
    if "hyperband" in arguments:
        arguments["strategy_config"] = sdk.StrategyConfig(
            sdk.HyperbandStrategyConfig(*arguments.pop("hyperband"))
        )
    ranges = {
        key: getattr(sdk, f"{kind}Parameter")(*given)
        for key, (kind, given) in RANGES[case.ranges].items()
    }
    metrics = estimator.metric_definitions or [
        {"Name": "loss", "Regex": r"\[metrics\].* loss=([0-9.eE+-]+)"}
    ]
    tuner = sdk.HyperparameterTuner(estimator, "loss", ranges, metrics, **arguments)
    tuner.fit(**trial.fit_arguments(), wait=False)
    return wire.tuning_jobs.pop()
