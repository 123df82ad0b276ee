"""Compile a sweep into the body of a sweep job, based on the body of a trial's command job.

Like azure-ai-ml 1.35.2, cloudtrain sends the bounds of logarithmic ranges as natural logarithms,
and a list of choices inside another list. Unlike the SDK, it refuses features that the service
lacks, and names an alternative.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from math import log
from typing import Any

from cloudtrain.errors import JobError, Problem
from cloudtrain.job.nodes import PLACE_NAME
from cloudtrain.job.sweep import Range, Sweep
from cloudtrain.plans.plan import CompileContext, Plan
from cloudtrain.runtime.azureml_metrics import WANTED
from cloudtrain.targets.azureml.compile.job import compile_azureml
from cloudtrain.targets.azureml.fields import (
    CODE,
    COMPUTE,
    ENVIRONMENT,
    EXPERIMENT,
    JOB_TYPE,
    NOTIFICATIONS,
    VARIABLES,
    duration_text,
)
from cloudtrain.targets.azureml.parts import present
from cloudtrain.targets.azureml.settings import AzureML
from cloudtrain.targets.common.compiling import tuner_plan

_MOST_LISTED = 1000
"""The most whole numbers that are listed one by one. The service's own kinds of ranges begin at 0,
or are not whole."""

_MOST_TRIALS = 1000

_TRIAL = (CODE, ENVIRONMENT, "distribution", VARIABLES, "resources")
_DROPPED = ("services", NOTIFICATIONS)
_ALTERNATIVE = "use `driver: cloudtrain`, which starts each trial as a separate job"


def compile_azureml_sweep(sweep: Sweep, target: AzureML, context: CompileContext) -> Plan:
    """Return the plan of a sweep. Its request is the body of a sweep job."""
    trial = compile_azureml(sweep.job, target, context)
    marks = {name: f"CLOUDTRAIN{index}SEARCH" for index, name in enumerate(sweep.space.ranges)}
    plan = compile_azureml(sweep.trial_job(marks), target, context)
    properties = plan.request["properties"]
    problems = [
        Problem(path, text, hint, code="CT061") for path, text, hint in _cannot(sweep, properties)
    ]
    if problems:
        raise JobError(problems)
    return tuner_plan(sweep, trial, {"properties": _body(sweep, properties, marks)}, _notes(sweep))


def _body(sweep: Sweep, job: Mapping[str, Any], marks: Mapping[str, str]) -> dict[str, Any]:
    assert sweep.objective is not None, "refused otherwise"
    command = job["command"]
    for name, mark in marks.items():
        command = command.replace(mark, f"${{{{search_space.{name}}}}}")
    base = {
        key: value
        for key, value in job.items()
        if key not in (*_TRIAL, *_DROPPED, JOB_TYPE, "command", "limits")
    }
    limits: dict[str, Any] = {
        "jobLimitsType": "Sweep",
        "maxTotalTrials": sweep.trial_count,
        "maxConcurrentTrials": min(sweep.parallel, sweep.trial_count),
    }
    if sweep.max_runtime is not None:
        limits["timeout"] = duration_text(sweep.max_runtime)
    # With this variable `runtime.report` sends the objective to the workspace, where the service's
    # tuner reads it.
    variables = {WANTED: "azureml", **job.get(VARIABLES, {})}
    if "timeout" in job.get("limits", {}):
        limits["trialTimeout"] = job["limits"]["timeout"]
    body = {
        JOB_TYPE: "Sweep",
        **base,
        EXPERIMENT: sweep.name if job[EXPERIMENT] == sweep.job.name else job[EXPERIMENT],
        "searchSpace": {name: _expression(item) for name, item in sweep.space.ranges.items()},
        "samplingAlgorithm": _algorithm(sweep),
        "objective": {"goal": sweep.objective.goal, "primaryMetric": sweep.objective.metric},
        "limits": limits,
        "trial": {
            "command": command,
            **{key: job[key] for key in _TRIAL if key in job},
            VARIABLES: variables,
        },
        "earlyTermination": _early(sweep),
        "resources": job.get("resources"),
    }
    return present(body)


def _expression(item: Range) -> list[Any]:
    if item.values is not None:
        return ["choice", [list(item.values)]]
    low, high = item.bounds
    return ["loguniform", [log(low), log(high)]] if item.kind == "log" else ["uniform", [low, high]]


def _algorithm(sweep: Sweep) -> dict[str, Any]:
    algorithm: dict[str, Any] = {"samplingAlgorithmType": sweep.strategy.capitalize()}
    if sweep.strategy == "random" and sweep.seed is not None:
        algorithm |= {"rule": "random", "seed": sweep.seed}
    return algorithm


def _early(sweep: Sweep) -> dict[str, Any] | None:
    if sweep.stop_early is None:
        return None
    pace = {"evaluationInterval": 1, "delayEvaluation": sweep.stop_early.after}
    if sweep.stop_early.bandit is not None:
        return {"policyType": "Bandit", "slackFactor": sweep.stop_early.bandit.slack, **pace}
    return {"policyType": "MedianStopping", **pace}


def _notes(sweep: Sweep) -> Iterator[str]:
    metric = sweep.objective.metric if sweep.objective is not None else ""
    yield (
        f"report `{metric}` with `runtime.report` or `mlflow.log_metric`: Azure ML reads no "
        "lines of the log"
    )
    if sweep.seed is not None and sweep.strategy != "random":
        yield (
            "Azure ML accepts a seed only for random sampling, so `seed` is not sent with "
            f"`{sweep.strategy}`"
        )


def _cannot(sweep: Sweep, job: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield each feature of the sweep that the service lacks: the field's path, a message and an
    alternative."""
    if sweep.objective is None:
        yield ("objective",), "Azure ML's sweep needs an objective", _ALTERNATIVE
    if sweep.strategy == "hyperband":
        yield (
            ("strategy",),
            "Azure ML has no hyperband",
            f"use `random` with `stop_early`, or {_ALTERNATIVE}",
        )
    if sweep.strategy == "bayesian" and sweep.stop_early is not None:
        message = "Azure ML's Bayesian sampling stops no trial early"
        yield ("stop_early",), message, f"remove it, use `strategy: random`, or {_ALTERNATIVE}"
    if sweep.strategy == "grid" and sweep.trial_count < sweep.space.grid_size:
        message = (
            f"Azure ML's grid runs all {sweep.space.grid_words} combinations, and "
            f"`trials` is {sweep.trials}"
        )
        yield ("trials",), message, f"remove `trials`, or {_ALTERNATIVE}"
    if sweep.trial_count > _MOST_TRIALS:
        message = (
            f"Azure ML's sweep has at most {_MOST_TRIALS:,} trials, and this one "
            f"{sweep.trial_count:,}"
        )
        yield ("trials",), message, f"try fewer, or {_ALTERNATIVE}"
    for field in _DROPPED:
        if job.get(field):
            yield ("job",), f"Azure ML's sweep has no `{field}`", f"leave it out, or {_ALTERNATIVE}"
    if not job.get(COMPUTE) and not (job.get("resources") or {}).get("instanceType"):
        message = "Azure ML's sweep needs a cluster, or an instance type of serverless compute"
        yield ("job", "resources"), message, "add `compute` to `[azureml]` in cloudtrain.toml"
    for name, item in (job.get("outputs") or {}).items():
        if item and item.get("uri"):
            message = (
                f"the output `{name}` has one address, which all trials of Azure ML's "
                "sweep would share"
            )
            is_checkpoint = name == "checkpoint"
            path = ("job", name) if is_checkpoint else ("job", "outputs", name)
            less = "remove it" if is_checkpoint else "leave out its address"
            yield path, message, f"{less}, or {_ALTERNATIVE}"
    for name, item in sweep.space.ranges.items():
        yield from (
            (("search", name), message, hint) for message, hint in _cannot_search(sweep, name, item)
        )


def _cannot_search(sweep: Sweep, name: str, item: Range) -> Iterator[tuple[str, str]]:
    if not re.fullmatch(PLACE_NAME, name):
        message = f"Azure ML cannot search `{name}`: names must consist of letters, digits and `_`"
        yield message, f"rename it, or {_ALTERNATIVE}"
    if sweep.strategy == "bayesian" and item.kind == "log":
        message = (
            "Azure ML's Bayesian sampling does not support logarithmic ranges, and "
            f"`{name}` has one"
        )
        yield message, f"use `strategy: random`, or {_ALTERNATIVE}"
    if item.kind == "int" and len(item.values or ()) > _MOST_LISTED:
        message = (
            f"`{name}` has {len(item.values or ()):,} whole numbers, which Azure ML takes "
            "only as a list"
        )
        yield message, f"add a `step`, or {_ALTERNATIVE}"
    if item.choice is not None:
        odd: list[object] = [
            value for value in item.choice if isinstance(value, list | dict) or value is None
        ]
        odd += [
            value for value in item.choice if isinstance(value, str) and shlex.quote(value) != value
        ]
        if odd:
            yield f"Azure ML's shell would break the value `{odd[0]}` of `{name}`", _ALTERNATIVE
