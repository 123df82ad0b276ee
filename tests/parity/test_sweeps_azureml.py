"""azure-ai-ml makes exactly the body of a sweep's plan, of `command(...).sweep(...)` and of a YAML file.

Both are written by hand for each case, around the command of one trial, whose whole body is the plan's
(`test_jobs_azureml.py`). `completed` and `as_ours` list every difference.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from math import log
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloudtrain.job.sweep import Sweep
from cloudtrain.plans.plan import Bundle, CompileContext, Plan
from cloudtrain.targets.azureml.compile.sweep import compile_azureml_sweep
from cloudtrain.targets.azureml.settings import AzureML
from tests.parity.azureml_jobs import (
    ACCOUNT,
    BASE,
    RUN,
    STORE,
    Case,
    distribution,
    machine,
    plan_of,
)
from tests.parity.test_jobs_azureml import compiled

pytestmark = pytest.mark.parity("azureml")

Word = tuple[str, dict[str, Any]]
"""What the SDK and its YAML call something, and its fields."""

RATE: Word = ("uniform", {"min_value": 0.01, "max_value": 0.9})
LOG: Word = ("loguniform", {"min_value": log(1e-4), "max_value": log(0.1)})
CLASSES = {
    "uniform": "Uniform", "loguniform": "LogUniform", "choice": "Choice", "bandit": "BanditPolicy",
    "median_stopping": "MedianStoppingPolicy", "random": "RandomSamplingAlgorithm",
}  # fmt: skip


@dataclass(frozen=True)
class Swept:
    """A sweep, its job, and what Azure's own tools call the same."""

    sweep: dict[str, Any] = field(default_factory=dict)
    space: dict[str, Word] = field(default_factory=lambda: {"lr": RATE})
    azure: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    target: dict[str, Any] = field(default_factory=dict)


def choice(*values: Any) -> Word:
    """A list."""
    return ("choice", {"values": list(values)})


def seeded(seed: int) -> dict[str, Any]:
    """Random sampling from a seed."""
    return {"sampling": ("random", {"seed": seed, "rule": "random"})}


GRID = {"search": {"lr": [0.1, 0.2], "bs": [16, 32]}, "strategy": "grid", "trials": None}
GRID_SPACE = {"lr": choice(0.1, 0.2), "bs": choice(16, 32)}
CASES = {
    "uniform": Swept(),
    "loguniform": Swept({"search": {"lr": {"log": [1e-4, 0.1]}}}, {"lr": LOG}),
    "every_kind": Swept(
        {"search": {"lr": {"log": [1e-4, 0.1]}, "m": {"uniform": [0.01, 0.9]}, "depth": {"int": [1, 4]},
                    "width": {"int": [64, 192], "step": 64}, "opt": ["adam", "sgd"], "bs": [16, 32]}},
        {"lr": LOG, "m": RATE, "depth": choice(1, 2, 3, 4), "width": choice(64, 128, 192),
         "opt": choice("adam", "sgd"), "bs": choice(16, 32)},
    ),
    "switches": Swept({"search": {"amp": [True, False]}}, {"amp": choice(True, False)}),
    "seed": Swept({"seed": 7}, azure=seeded(7)),
    "seed_zero": Swept({"seed": 0}, azure=seeded(0)),
    "grid": Swept(GRID, GRID_SPACE, {"sampling": "grid", "total": 4}),
    "grid_at_once": Swept({**GRID, "parallel": 9}, GRID_SPACE, {"sampling": "grid", "total": 4, "parallel": 4}),
    "bayesian": Swept({"strategy": "bayesian", "trials": 40}, azure={"sampling": "bayesian", "total": 40}),
    "bayesian_list": Swept(
        {"strategy": "bayesian", "search": {"bs": [16, 32]}}, {"bs": choice(16, 32)}, {"sampling": "bayesian"}
    ),
    "bandit": Swept(
        {"stop_early": {"bandit": {"slack": 0.1, "after": 5}}},
        azure={"early": ("bandit", {"slack_factor": 0.1, "evaluation_interval": 1, "delay_evaluation": 5})},
    ),
    "median": Swept(
        {"stop_early": {"median": {"after": 3}}},
        azure={"early": ("median_stopping", {"evaluation_interval": 1, "delay_evaluation": 3})},
    ),
    "median_from_the_start": Swept(
        {"stop_early": {"median": {}}},
        azure={"early": ("median_stopping", {"evaluation_interval": 1, "delay_evaluation": 0})},
    ),
    "limits": Swept(
        {"trials": 100, "parallel": 20, "max_runtime": "1d"}, job={"max_runtime": "1h"},
        azure={"total": 100, "parallel": 20, "timeout": 86_400, "trial_timeout": 3600},
    ),
    "maximize": Swept({"objective": {"maximize": "val/acc"}}, azure={"goal": "maximize", "metric": "val/acc"}),
    "torch": Swept(job=distribution("torch")),
    "mpi": Swept(job=distribution("mpi", processes_per_instance=4)),
    "tensorflow": Swept(job=distribution("tensorflow", workers=2)),
    "cluster": Swept(target={"compute": "gpu-cluster"}),
    "shared_memory": Swept(job=machine("Standard_NC24ads_A100_v4", shm_size="64g")),
    "locations_docker": Swept(target={"locations": ["eastus"], "docker_args": "--ipc=host"}),
    "spot": Swept(job={"spot": {}}),
    "priority": Swept(target={"job_tier": "premium", "priority": "high"}),
    "identity_managed": Swept(target={"managed_identity_client_id": "00000000-0000-0000-0000-000000000001"}),
    "identity_user": Swept(target={"identity": "user"}),
    "no_inputs": Swept(job={"inputs": None}),
    "input_download": Swept(job={"inputs": {"train": {"azureml": f"{STORE}/x", "mode": "download"}}}),
    "outputs": Swept(job={"outputs": {"logs": {"mode": "upload"}}}),
    "variables": Swept(job={"environment": {**BASE["environment"], "variables": {"NCCL_DEBUG": "INFO", "N": "1"}}}),
    "tags": Swept(job={"tags": {"team": "vision"}, "description": "all of it"}, target={"experiment": "digits"}),
}  # fmt: skip


def trial_of(case: Swept) -> Plan:
    """The command of one trial, with an input for each hyperparameter of the search, as Azure's tools want it."""
    job = {**BASE, **case.job}
    environment = {**job["environment"]}
    searched = {name: f"${{{{inputs.{name}}}}}" for name in case.space}
    inputs = {**(job["inputs"] or {}), **{name: {"value": "1"} for name in case.space}}
    changes = {
        "environment": environment,
        "inputs": inputs,
        "hyperparameters": {**job["hyperparameters"], **searched},
    }
    plan = plan_of(Case({**case.job, **changes}, case.target))
    text = plan.request_json
    for name in case.space:  # the quotes are for an input's own value; those of a search need none
        text = text.replace(f"'${{{{inputs.{name}}}}}'", f"${{{{inputs.{name}}}}}")
    return replace(plan, request=json.loads(text))


def planned(case: Swept) -> dict[str, Any]:
    """The body of the sweep's plan."""
    search = {"lr": {"uniform": [0.01, 0.9]}}
    fields: dict[str, Any] = {
        "search": search,
        "objective": {"minimize": "loss"},
        "trials": 8,
        **case.sweep,
    }
    job = {name: value for name, value in (BASE | case.job).items() if value is not None}
    context = CompileContext(RUN, Bundle("ab" * 32, 1000, 3), ACCOUNT)
    return compile_azureml_sweep(
        Sweep(name="parity", job=job, **fields), AzureML(**case.target), context
    ).request


def as_ours(body: dict[str, Any]) -> dict[str, Any]:
    """What Azure's tools make, as cloudtrain sends it: without the second slack that the YAML adds to a bandit, and
    without the empty variables that the YAML alone has."""
    trial = body["properties"]["trial"]
    if trial.get("environmentVariables") == {}:
        del trial["environmentVariables"]
    early = body["properties"].get("earlyTermination", {})
    if early.get("slackAmount") == 0:
        del early["slackAmount"]
    return body


def test_there_are_enough_cases() -> None:
    """The table does not shrink unseen."""
    assert len(CASES) >= 30


@pytest.mark.parametrize("name", CASES)
def test_the_command_makes_the_plan(name: str) -> None:
    """`command(...)(lr=Uniform(...)).sweep(...)` becomes the plan's body, whole."""
    from azure.ai.ml import sweep as sdk

    def made(word: Any) -> Any:
        return getattr(sdk, CLASSES[word[0]])(**word[1]) if isinstance(word, tuple) else word

    case = CASES[name]
    command = trial_of(case).to_command()
    azure = case.azure
    swept = command(**{key: made(word) for key, word in case.space.items()}).sweep(
        primary_metric=azure.get("metric", "loss"),
        goal=azure.get("goal", "minimize"),
        sampling_algorithm=made(azure.get("sampling", "random")),
        max_total_trials=azure.get("total", 8),
        max_concurrent_trials=azure.get("parallel", 1),
        timeout=azure.get("timeout"),
        trial_timeout=azure.get("trial_timeout"),
        early_termination_policy=made(azure.get("early")),
    )
    assert as_ours(compiled(completed(swept, command))) == planned(case)


def completed(swept: Any, command: Any) -> Any:
    """The sweep with what `sweep()` loses of the command."""
    job = swept._to_job()
    for name in ("display_name", "experiment_name", "properties", "description"):
        setattr(job, name, getattr(command, name))
    return job


@pytest.mark.parametrize("name", [name for name in CASES if name != "switches"])
def test_the_yaml_makes_the_plan(name: str, tmp_path: Path) -> None:
    """What `load_job` reads of a file with `type: sweep` becomes the plan's body, whole. Its lists have no booleans."""
    from azure.ai.ml import load_job

    def written(word: Any) -> Any:
        return {"type": word[0], **word[1]} if isinstance(word, tuple) else word

    case, azure = CASES[name], CASES[name].azure
    job: dict[str, Any] = yaml.safe_load(trial_of(case).to_yaml())
    of_the_trial = (
        "code",
        "command",
        "environment",
        "environment_variables",
        "distribution",
        "resources",
    )
    trial = {key: job[key] for key in of_the_trial if key in job}
    limits = {"timeout": azure.get("timeout"), "trial_timeout": azure.get("trial_timeout")}
    for key in case.space:
        trial["command"] = trial["command"].replace(
            f"${{{{inputs.{key}}}}}", f"${{{{search_space.{key}}}}}"
        )
        del job["inputs"][key]
    kept = {
        key: value
        for key, value in job.items()
        if key not in {*of_the_trial, "$schema", "services", "limits"}
    }
    sweep = {
        **kept,
        "type": "sweep",
        "trial": trial,
        "search_space": {key: written(word) for key, word in case.space.items()},
        "sampling_algorithm": written(azure.get("sampling", "random")),
        "objective": {
            "goal": azure.get("goal", "minimize"),
            "primary_metric": azure.get("metric", "loss"),
        },
        "limits": {
            "max_total_trials": azure.get("total", 8),
            "max_concurrent_trials": azure.get("parallel", 1),
            **{key: value for key, value in limits.items() if value is not None},
        },
        **({"early_termination": written(azure["early"])} if "early" in azure else {}),
        **({"resources": job["resources"]} if "resources" in job else {}),
    }
    file = tmp_path / "sweep.yml"
    file.write_text(json.dumps(sweep), encoding="utf-8")
    assert as_ours(compiled(load_job(file))) == planned(case)
