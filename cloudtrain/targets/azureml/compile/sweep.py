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
from cloudtrain.targets.azureml.compile.job import compile_azureml
from cloudtrain.targets.azureml.fields import (
    CODE,
    COMPUTE,
    ENVIRONMENT,
    EXPERIMENT,
    JOB_TYPE,
    NOTIFICATIONS,
    VARIABLES,
    JsonMapping,
    JsonObject,
    duration_text,
)
from cloudtrain.targets.azureml.parts import pick, present, without
from cloudtrain.targets.azureml.settings import AzureML
from cloudtrain.targets.common.compiling import tuner_plan

_MOST_LISTED = 1000
"""The most whole numbers that are listed one by one. The service's own kinds of ranges begin at 0,
or are not whole."""

_MOST_TRIALS = 1000

_TRIAL = ("command", CODE, ENVIRONMENT, "distribution", VARIABLES, "resources")
_DROPPED = ("services", NOTIFICATIONS)
_ALTERNATIVE = "use `driver: cloudtrain`, which starts each trial as a separate job"


def compile_azureml_sweep(sweep: Sweep, target: AzureML, context: CompileContext) -> Plan:
    """Return the plan of a sweep. Its request is the body of a sweep job."""
    trial = compile_azureml(sweep.job, target, context)
    # A reference would be quoted in the command, so each value has a mark until the body is made.
    names = enumerate(sweep.space.ranges)
    marks = {name: f"CLOUDTRAIN{index}SEARCH" for index, name in names}
    properties = compile_azureml(sweep.trial_job(marks), target, context).request["properties"]

    problems = [*_cannot(sweep), *_cannot_share(properties)]
    for name, item in sweep.space.ranges.items():
        problems += _cannot_search(sweep, name, item)
    if problems:
        raise JobError(problems)

    body = _body(sweep, properties, marks)
    return tuner_plan(sweep, trial, {"properties": body}, _notes(sweep))


def _body(sweep: Sweep, job: JsonMapping, marks: Mapping[str, str]) -> JsonObject:
    """Return the `properties` of the sweep's body. `job` are those of a trial's job, with the
    `marks` in place of the searched values."""
    assert sweep.objective is not None, "refused otherwise"
    trial = pick(job, _TRIAL)
    for name, mark in marks.items():
        reference = f"${{{{search_space.{name}}}}}"
        trial["command"] = trial["command"].replace(mark, reference)
    if not trial[VARIABLES]:  # the SDK leaves them out of a trial, unlike of a job
        del trial[VARIABLES]
    limits: JsonObject = {
        "jobLimitsType": "Sweep",
        "maxTotalTrials": sweep.trial_count,
        "maxConcurrentTrials": min(sweep.parallel, sweep.trial_count),
    }
    if sweep.max_runtime is not None:
        limits["timeout"] = duration_text(sweep.max_runtime)
    if "timeout" in job.get("limits", {}):
        limits["trialTimeout"] = job["limits"]["timeout"]

    algorithm: JsonObject = {"samplingAlgorithmType": sweep.strategy.capitalize()}
    if sweep.strategy == "random" and sweep.seed is not None:
        algorithm |= {"rule": "random", "seed": sweep.seed}

    body = without(job, (*_TRIAL, *_DROPPED, "limits"))
    body[JOB_TYPE] = "Sweep"
    if body[EXPERIMENT] == sweep.job.name:
        body[EXPERIMENT] = sweep.name
    ranges = sweep.space.ranges.items()
    body |= {
        "searchSpace": {name: _expression(item) for name, item in ranges},
        "samplingAlgorithm": algorithm,
        "objective": {"goal": sweep.objective.goal, "primaryMetric": sweep.objective.metric},
        "limits": limits,
        "trial": trial,
        "earlyTermination": _early_termination(sweep),
        "resources": job.get("resources"),
    }
    return present(body)


def _expression(item: Range) -> list[Any]:
    """Return a range as the API writes it: its kind, and the list of its arguments."""
    if item.values is not None:
        return ["choice", [list(item.values)]]
    low, high = item.bounds
    if item.kind == "log":
        return ["loguniform", [log(low), log(high)]]
    return ["uniform", [low, high]]


def _early_termination(sweep: Sweep) -> JsonObject | None:
    stop_early = sweep.stop_early
    if stop_early is None:
        return None
    pace = {"evaluationInterval": 1, "delayEvaluation": stop_early.after}
    if stop_early.bandit is not None:
        return {"policyType": "Bandit", "slackFactor": stop_early.bandit.slack, **pace}
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


def _problem(path: tuple[str, ...], message: str, hint: str) -> Problem:
    return Problem(path, message, f"{hint}, or {_ALTERNATIVE}", code="CT061")


def _cannot(sweep: Sweep) -> Iterator[Problem]:
    """Yield each feature of the sweep that the service lacks."""
    if sweep.objective is None:
        yield _problem(("objective",), "Azure ML's sweep needs an objective", "add one")
    if sweep.strategy == "hyperband":
        yield _problem(("strategy",), "Azure ML has no hyperband", "use `random` with `stop_early`")
    if sweep.strategy == "bayesian" and sweep.stop_early is not None:
        message = "Azure ML's Bayesian sampling stops no trial early"
        yield _problem(("stop_early",), message, "remove it, use `strategy: random`")
    if sweep.strategy == "grid" and sweep.trial_count < sweep.space.grid_size:
        message = (
            f"Azure ML's grid runs all {sweep.space.grid_words} combinations, and "
            f"`trials` is {sweep.trials}"
        )
        yield _problem(("trials",), message, "remove `trials`")
    if sweep.trial_count > _MOST_TRIALS:
        message = (
            f"Azure ML's sweep has at most {_MOST_TRIALS:,} trials, and this one "
            f"{sweep.trial_count:,}"
        )
        yield _problem(("trials",), message, "try fewer")


def _cannot_share(job: JsonMapping) -> Iterator[Problem]:
    """Yield each part of the body of a trial's job that a sweep cannot have."""
    for field in _DROPPED:
        if job.get(field):
            yield _problem(("job",), f"Azure ML's sweep has no `{field}`", "leave it out")
    resources = job.get("resources") or {}
    if not job.get(COMPUTE) and not resources.get("instanceType"):
        message = "Azure ML's sweep needs a cluster, or an instance type of serverless compute"
        yield _problem(
            ("job", "resources"), message, "add `compute` to `[azureml]` in cloudtrain.toml"
        )
    for name, item in (job.get("outputs") or {}).items():
        if not item or not item.get("uri"):
            continue
        path: tuple[str, ...] = ("job", "outputs", name)
        remedy = "leave out its address"
        if name == "checkpoint":
            path = ("job", name)
            remedy = "remove it"
        message = (
            f"the output `{name}` has one address, which all trials of Azure ML's sweep would share"
        )
        yield _problem(path, message, remedy)


def _cannot_search(sweep: Sweep, name: str, item: Range) -> Iterator[Problem]:
    """Yield why the service cannot search a range."""
    path = ("search", name)
    if not re.fullmatch(PLACE_NAME, name):
        message = f"Azure ML cannot search `{name}`: names must consist of letters, digits and `_`"
        yield _problem(path, message, "rename it")
    if sweep.strategy == "bayesian" and item.kind == "log":
        message = (
            "Azure ML's Bayesian sampling does not support logarithmic ranges, and "
            f"`{name}` has one"
        )
        yield _problem(path, message, "use `strategy: random`")
    count = len(item.values or ())
    if item.kind == "int" and count > _MOST_LISTED:
        message = f"`{name}` has {count:,} whole numbers, which Azure ML takes only as a list"
        yield _problem(path, message, "add a `step`")

    # The service writes a value into the command without quotes.
    for value in item.choice or ():
        is_broken = isinstance(value, str) and shlex.quote(value) != value
        if is_broken or isinstance(value, list | dict | None):
            message = f"Azure ML's shell would break the value `{value}` of `{name}`"
            yield _problem(path, message, "remove it")
            return
