"""A cap on spending holds, whatever way around it is tried: everything that would be sent and can be paid for counts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

import cloudtrain as ct
from cloudtrain.plans.plan import Level

ROLE = "arn:aws:iam::111122223333:role/train"
CAP = "[sagemaker]\nmax_cost = 10\n[azureml]\nmax_cost = 10\n"
SAGEMAKER = f'[sagemaker]\nrole = "{ROLE}"\nregion = "us-west-2"\n'
AZUREML = '[azureml]\nsubscription_id = "99999999-2222-3333-4444-555555555555"\nresource_group = "g"\nworkspace = "w"\n'
JOB: dict[str, Any] = {
    "name": "j",
    "entry_point": "train.py",
    "environment": {"framework": "pytorch", "version": "2.10"},
    "resources": {"instance_type": {"sagemaker": "ml.g5.xlarge", "azureml": "Standard_NC24ads_A100_v4"}},
    "max_runtime": "1h",
}  # fmt: skip
"""One hour of a machine for $1.41 or $3.67."""


class Case(NamedTuple):
    """A job that is changed, with its settings; what it can spend, `unknown` for what nobody knows, `refused` for what
    is no job, or `allowed`."""

    expected: float | str
    job: Mapping[str, Any] = MappingProxyType({})
    project: str = ""
    own: str = CAP
    sweep: dict[str, Any] | None = None
    target: str | dict[str, Any] = "sagemaker"
    profile: str | None = None
    prices: str = ""
    """What the project says of the first type, or of all types."""
    own_prices: str = ""


def aws(**overrides: Any) -> dict[str, Any]:
    """Overrides of SageMaker's request."""
    return {"sagemaker_overrides": overrides}


def azure(**properties: Any) -> dict[str, Any]:
    """Overrides of Azure ML's body."""
    return {"azureml_overrides": properties}


def on(name: str | None, count: int = 1, **more: Any) -> dict[str, Any]:
    """Other machines."""
    return {"resources": {"instance_type": name, "instance_count": count, **more}}


def config(**cells: Any) -> dict[str, Any]:
    """Overrides of SageMaker's machines."""
    return aws(ResourceConfig=cells)


def trials(**resources: Any) -> dict[str, Any]:
    """Overrides that make a sweep of one trial, which has resources of its own."""
    limits = {"maxTotalTrials": 1, "trialTimeout": "PT1H"}
    return azure(jobType="Sweep", limits=limits, trial={"resources": resources})


def of_a_compute(**row: Any) -> dict[str, Any]:
    """Overrides that ask for machines of a kind of compute."""
    return azure(resources={"properties": {"AISuperComputer": row}})


GRID = {"search": {"seed": {"choice": list(range(1, 11))}}, "strategy": "grid"}
SERVICE = {
    "search": {"seed": {"int": [1, 999]}},
    "strategy": "random",
    "trials": 500,
    "objective": {"maximize": "acc"},
}
PLAN = "arn:aws:sagemaker:us-west-2:111122223333:training-plan/big"
GROUP = {"InstanceGroupName": "a", "InstanceType": "ml.p4d.24xlarge", "InstanceCount": 1}

WORKSPACE = (
    "/subscriptions/99999999-2222-3333-4444-555555555555/resourceGroups/g/providers"
    "/Microsoft.MachineLearningServices/workspaces/w"
)
PRICED = '[azureml."gpus"]\nvcpus = 4\nmemory_gib = 16\nprice = 20\n'

CASES = {
    "one job": Case("allowed"),
    "a long job": Case(11.28, {"max_runtime": "8h"}),
    "many instances": Case(11.28, on("ml.g5.xlarge", 8)),
    "no time limit": Case(33.84, {"max_runtime": None}),
    "a grid": Case(14.10, sweep=GRID),
    "a grid of few trials": Case("allowed", sweep=GRID | {"trials": 7}),
    "few at a time": Case(14.10, sweep=GRID | {"parallel": 1}),
    "a sweep of the service": Case(705.0, sweep=SERVICE),
    "a sweep of the driver": Case(705.0, sweep=SERVICE | {"driver": "cloudtrain"}),
    "a sweep whose end is near": Case(705.0, sweep=SERVICE | {"max_runtime": "1m"}),
    "a sweep with a cap of its own": Case(14.10, sweep=GRID | {"max_cost": 1000}),
    "a warm pool of the project": Case(11.28, on("ml.g5.xlarge", 4), "keep_alive = '1h'\n"),
    "a warm pool in the overrides": Case(15.51, config(KeepAlivePeriodInSeconds=36_000)),
    "a warm pool of each trial": Case(28.20, sweep=GRID, project="keep_alive = '1h'\n"),
    "a warm pool of less than nothing": Case("unknown", config(KeepAlivePeriodInSeconds=-36_000)),
    "a warm pool for ever": Case("refused", config(KeepAlivePeriodInSeconds="1000000")),
    "retries": Case("allowed", project="max_retries = 30\n"),
    "instances in the overrides": Case(141.0, config(InstanceCount=100)),
    "a type in the overrides": Case(25.25, config(InstanceType="ml.p4d.24xlarge")),
    "groups in the overrides": Case(25.25, config(InstanceGroups=[GROUP], InstanceType=None, InstanceCount=None)),
    "groups that would earn money": Case(
        25.25, config(InstanceGroups=[GROUP, GROUP | {"InstanceGroupName": "b", "InstanceCount": -9}], InstanceType=None, InstanceCount=None)
    ),
    "a heterogeneous cluster": Case(
        26.66,
        {"resources": {"instance_groups": [
            {"name": "a", "instance_type": "ml.p4d.24xlarge", "instance_count": 1},
            {"name": "b", "instance_type": "ml.g5.xlarge", "instance_count": 1},
        ]}},
    ),
    "the dearest preference": Case(25.25, {"resources": {"instance_preferences": ["ml.g5.xlarge", "ml.p4d.24xlarge"]}}),
    "preferences in the overrides": Case(
        50.50,
        config(InstancePreferences=[{"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2}], InstanceType=None, InstanceCount=None),
    ),
    "a limit in the overrides": Case(14.10, aws(StoppingCondition={"MaxRuntimeInSeconds": 36_000})),
    "no limit in the overrides": Case(33.84, aws(StoppingCondition={"MaxRuntimeInSeconds": None})),
    "a limit below nothing": Case(33.84, aws(StoppingCondition={"MaxRuntimeInSeconds": -1})),
    "a limit as text": Case("refused", aws(StoppingCondition={"MaxRuntimeInSeconds": "60"})),
    "a limit of 400 digits": Case("unknown", aws(StoppingCondition={"MaxRuntimeInSeconds": 10**400})),
    "400 digits of instances": Case("refused", config(InstanceCount=10**400)),
    "spot": Case(14.10, {"max_runtime": "10h", "spot": {"max_wait": "11h"}}),
    "spot that waits": Case("allowed", {"spot": {"max_wait": "20h"}}),
    "spot with no end": Case(33.84, {"spot": {}, "max_runtime": None}),
    "a training plan": Case(25.25, on("ml.p4d.24xlarge"), f"training_plan = '{PLAN}'\n"),
    "a rule that runs beside it": Case(
        26.66, aws(DebugRuleConfigurations=[{"RuleConfigurationName": "r", "RuleEvaluatorImage": "i", "InstanceType": "ml.p4d.24xlarge"}])
    ),
    "a serverless job": Case("refused", aws(ResourceConfig=None)),
    "the machines of a processing job beside it": Case(
        26.66, aws(ProcessingResources={"ClusterConfig": {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 1}})
    ),
    "trials in the overrides of a job": Case("unknown", aws(HyperParameterTuningJobConfig={"ResourceLimits": {"MaxNumberOfTrainingJobs": 9}})),
    "a type without a price": Case("unknown", on("ml.p5e.48xlarge", 50)),
    "a type that nobody knows": Case("unknown", config(InstanceType="ml.new.48xlarge")),
    "a price of the project": Case(25.25, on("ml.p4d.24xlarge"), prices="price = 0.01\n"),
    "the only price, of the project": Case("unknown", on("ml.p5e.48xlarge"), prices="price = 0.01\n"),
    "a cap of the project": Case(11.28, {"max_runtime": "8h"}, "max_cost = 10000\n"),
    "a lower cap of the project": Case(1.41, {}, "max_cost = 1\n"),
    "a cap in words of the project": Case(11.28, {"max_runtime": "8h"}, "max_cost = '1e9'\n"),
    "a profile of the project": Case(
        11.28, {"max_runtime": "8h"}, "[profiles.big.sagemaker]\nmax_cost = 1000\n", profile="big"
    ),
    "a profile of your own": Case(
        "allowed", {"max_runtime": "8h"}, own=CAP + "[profiles.big.sagemaker]\nmax_cost = 1000\n", profile="big"
    ),
    "settings in Python": Case(11.28, {"max_runtime": "8h"}, target={"max_cost": 1000.0}),
    "settings in Python without a cap": Case(11.28, {"max_runtime": "8h"}, target={}),
    "a lower cap in Python": Case(1.41, {}, target={"max_cost": 1.0}),
    "the cap of a day": Case(11.28, {"max_runtime": "8h"}, own="[sagemaker]\nmax_cost_per_day = 10\n"),
    "a price under the cap of a day": Case("unknown", on("ml.p5e.48xlarge"), own="[sagemaker]\nmax_cost_per_day = 10\n"),
    "no cap": Case("allowed", on("ml.p5e.48xlarge", 50), own=""),
    "this machine": Case("allowed", {"max_runtime": None}, target="local"),
    "a job on Azure": Case("allowed", target="azureml"),
    "many nodes on Azure": Case(36.73, on("Standard_NC24ads_A100_v4", 10), target="azureml"),
    "no limit on Azure": Case(1851.19, {"max_runtime": None}, target="azureml"),
    "nodes in the overrides on Azure": Case(36.73, azure(resources={"instanceCount": 10}), target="azureml"),
    "nodes as text on Azure": Case("unknown", azure(resources={"instanceCount": "10"}), target="azureml"),
    "a size in the overrides on Azure": Case(98.32, azure(resources={"instanceType": "standard_nd96isr_h100_v5"}), target="azureml"),
    "a limit in the overrides on Azure": Case(36.73, azure(limits={"timeout": "PT10H"}), target="azureml"),
    "a limit below nothing on Azure": Case(1851.19, azure(limits={"timeout": "-PT1H"}), target="azureml"),
    "low priority on Azure": Case(617.06, azure(limits={"timeout": None}, queueSettings={"jobTier": "Spot"}), target="azureml"),
    "a cluster on Azure": Case("unknown", {"resources": {}}, "compute = 'gpus'\n", target="azureml"),
    "a cluster that may have a dearer type": Case("unknown", {}, "compute = 'gpus'\n", target="azureml"),
    "a cluster that may be dearer than too much": Case(36.73, {"max_runtime": "10h"}, "compute = 'gpus'\n", target="azureml"),
    "a cluster in the overrides": Case("unknown", azure(computeId=f"{WORKSPACE}/computes/gpus"), target="azureml"),
    "a cluster with a slash at its end": Case("unknown", azure(computeId=f"{WORKSPACE}/computes/gpus/"), target="azureml"),
    "a type in the overrides of a cluster": Case(
        "unknown", azure(resources={"instanceType": "Standard_NC4as_T4_v3"}), "compute = 'gpus'\n", target="azureml"
    ),
    "a virtual cluster": Case("unknown", {}, "compute = 'virtualClusters/vc'\n", target="azureml"),
    "a cluster that is called like a type": Case(
        "unknown", azure(computeId=f"{WORKSPACE}/computes/Standard_NC4as_T4_v3"), target="azureml"
    ),
    "a cluster without a cap": Case("allowed", {}, "compute = 'gpus'\n", own="", target="azureml"),
    "a price of a cluster": Case(20.0, {}, "compute = 'gpus'\n", target="azureml", own_prices=PRICED),
    "a price of another cluster": Case("unknown", {}, "compute = 'cpus'\n", target="azureml", own_prices=PRICED),
    "a price of a cluster, of the project": Case("unknown", {}, "compute = 'gpus'\n", target="azureml", prices=PRICED),
    "an elastic job": Case(36.73, project="max_instance_count = 10\n", target="azureml"),
    "an elastic job in the overrides": Case(36.73, azure(resources={"maxInstanceCount": 10}), target="azureml"),
    "a compute in other letters": Case("unknown", azure(ComputeId=f"{WORKSPACE}/computes/gpus"), target="azureml"),
    "machines in other letters": Case("unknown", azure(Resources={"instanceCount": 99}), target="azureml"),
    "a number in other letters": Case("unknown", azure(resources={"InstanceCount": 99}), target="azureml"),
    "a limit in other letters": Case("unknown", azure(limits={"TIMEOUT": "PT99H"}), target="azureml"),
    "a sweep on Azure": Case(1836.5, sweep=SERVICE, target="azureml"),
    "another kind of job on Azure": Case("unknown", azure(jobType="Pipeline"), target="azureml"),
    "trials in the overrides on Azure": Case(33057.0, azure(jobType="Sweep", limits={"maxTotalTrials": 9000, "trialTimeout": "PT1H"}), target="azureml"),
    "nodes of the trials on Azure": Case(183.65, trials(instanceCount=50), target="azureml"),
    "elastic trials on Azure": Case(183.65, trials(maxInstanceCount=50), target="azureml"),
    "a size of the trials on Azure": Case("unknown", trials(instanceType="Standard_ND96isr_H100_v5"), target="azureml"),
    "nodes of the trials in other letters": Case("unknown", trials(InstanceCount=50), target="azureml"),
    "nodes for one kind of compute": Case(183.65, of_a_compute(instanceCount=50), target="azureml"),
    "a size for one kind of compute": Case("unknown", of_a_compute(instanceType="Standard_ND96isr_H100_v5"), target="azureml"),
    "nodes for one kind of compute in other letters": Case("unknown", of_a_compute(InstanceCount=50), target="azureml"),
    "nodes of a sweep for one kind of compute": Case(
        367.30, of_a_compute(instanceCount=50), sweep=SERVICE | {"trials": 2}, target="azureml"
    ),
    "a size of the job, said twice": Case("allowed", of_a_compute(instanceType="Standard_NC24ads_A100_v4", instanceCount=1), target="azureml"),
    "machines that are added later": Case("unknown", of_a_compute(scalePolicy={"maxInstanceTypeCount": 50}), target="azureml"),
    "machines that are added later, in other letters": Case("unknown", of_a_compute(ScalePolicy={"maxInstanceTypeCount": 50}), target="azureml"),
    "machines that are added to a sweep later": Case(
        "unknown", of_a_compute(scalePolicy={"autoScaleInstanceTypeCountSet": [1, 50]}), sweep=SERVICE | {"trials": 2}, target="azureml"
    ),
    "machines that nothing adds": Case("allowed", of_a_compute(scalePolicy=None), target="azureml"),
    "a component": Case("unknown", azure(componentId=f"{WORKSPACE}/components/c/versions/1"), target="azureml"),
    "a size without a price on Azure": Case("unknown", on("Standard_ND96isr_H200_v5"), target="azureml"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_cap_holds(name: str, clean_environment: Path) -> None:
    """What can be spent is refused where it is more than the cap, with the amount; it cannot be ignored."""
    case = CASES[name]
    own = clean_environment / ".config/cloudtrain"
    own.mkdir(parents=True)
    (own / "cloudtrain.toml").write_text(case.own)
    (clean_environment / "train.py").write_text("import argparse\n")
    of_azure = AZUREML + case.project if case.target == "azureml" else AZUREML
    (clean_environment / "cloudtrain.toml").write_text(
        of_azure if case.target == "azureml" else SAGEMAKER + case.project
    )
    if case.prices:
        machine = case.job.get("resources", {}).get("instance_type")
        head = "" if case.prices.startswith("[") else f'[sagemaker."{machine}"]\n'
        (clean_environment / "instances.toml").write_text(head + case.prices)
    (own / "instances.toml").write_text(case.own_prices)

    job: Any = ct.TrainingJob(**{**JOB, **case.job})
    if case.sweep is not None:
        job = ct.Sweep(name="s", job=job.model_dump(exclude_unset=True), **case.sweep)
    target: Any = case.target
    if isinstance(target, dict):
        target = ct.SageMaker(role=ROLE, region="us-west-2", **target)
    if case.expected == "refused":
        with pytest.raises(ct.JobError):
            ct.plan(job, target, profile=case.profile)
        return
    ignore = ["AZ111"] if case.target == "azureml" else []
    found = ct.plan(job, target, profile=case.profile, ignore=ignore).findings
    codes = {
        item.code: item.message
        for item in found
        if item.code in ("SM412", "SM413", "AZ412", "AZ413")
    }
    assert all(item.level is Level.ERROR for item in found if item.code in codes)

    said = " ".join(codes.values())
    amount = re.search(r"spend up to \$([\d,.]+) ", said)
    if case.expected == "allowed":
        assert codes == {}
    elif case.expected == "unknown":
        assert "cannot be checked" in said
        assert amount is None
    else:
        assert amount, said
        assert float(amount[1].replace(",", "")) == pytest.approx(case.expected, abs=0.011)


@pytest.mark.parametrize(
    "cap", ["0", "-5", "nan", "inf", "1e400", "'10 USD'", "'$10'", "'ten'", "[10]"]
)
@pytest.mark.parametrize("field", ["max_cost", "max_cost_per_day"])
def test_a_cap_that_is_none_is_refused(field: str, cap: str, clean_environment: Path) -> None:
    """Whoever writes it means a bound, so it is never taken for none."""
    own = clean_environment / ".config/cloudtrain"
    own.mkdir(parents=True)
    (own / "cloudtrain.toml").write_text(f"[sagemaker]\n{field} = {cap}\n")
    targets: list[Callable[[], Any]] = [
        lambda: "sagemaker",
        lambda: ct.SageMaker(role=ROLE, region="us-west-2"),
    ]
    for target in targets:
        with pytest.raises(ct.SettingsError) as error:
            ct.plan(ct.TrainingJob(**JOB), target())
        (problem,) = error.value.problems
        assert problem.path == ("sagemaker", field)
        assert (problem.file, problem.line) == (str(own / "cloudtrain.toml"), 2)
