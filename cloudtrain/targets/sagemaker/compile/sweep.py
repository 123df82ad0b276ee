"""Compile a sweep into the body of CreateHyperParameterTuningJob, made from the request of a
trial's training job.

Features that the tuner does not support cause an error that names an alternative: container entry
points, instance groups, profiler, warm pools and similar. The SageMaker SDK drops them silently.
The request differs on purpose from SDK 2.257.7 in two points: a categorical number stays a number
(the SDK turns it into text), and the description of the SDK's own estimator class is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cloudtrain.errors import JobError, Problem, UsageError
from cloudtrain.job.model import overrides_of
from cloudtrain.job.sweep import Range, Sweep
from cloudtrain.plans.plan import CompileContext, Plan
from cloudtrain.targets.common.compiling import Problems, tuner_plan
from cloudtrain.targets.sagemaker.compile.places import place_problems
from cloudtrain.targets.sagemaker.compile.training import (
    TrainingParts,
    compile_sagemaker,
    finished_request,
    parts_of,
)
from cloudtrain.targets.sagemaker.launch.shell import arrives_intact
from cloudtrain.targets.sagemaker.request import JsonMapping, JsonObject
from cloudtrain.targets.sagemaker.settings import SageMaker

LONGEST_NAME = 32
"""Longest name of a tuning job. The names of its trials are 13 characters longer."""

_SUFFIX = len("-00000000-00")
_MOST_RANGES, _MOST_VALUES, _MOST_VARIABLES, _MOST_STATIC = 30, 30, 48, 100
_LONGEST_VALUE = 256
_QUOTA, _MOST_AT_ONCE, _MOST_TRIALS = 10, 100, 750
"""The tuner's limits: trials at once by default and with a raised quota, and trials in all.

The last limit holds for every strategy but random.
"""

_KINDS = ("Continuous", "Integer", "Categorical")
_STRATEGIES = {"grid": "Grid", "random": "Random", "bayesian": "Bayesian", "hyperband": "Hyperband"}

_DEFINITION = (
    "RoleArn", "InputDataConfig", "VpcConfig", "OutputDataConfig", "StoppingCondition",
    "EnableNetworkIsolation",
    "EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining", "RetryStrategy",
    "Environment",
)  # fmt: skip
"""Fields that a tuning job's training definition shares with a training job."""

_MACHINES = ("InstanceType", "InstanceCount", "VolumeSizeInGB", "VolumeKmsKeyId")
_OF_THE_ALGORITHM = ("TrainingImage", "AlgorithmName", "TrainingInputMode", "MetricDefinitions")
_TAKEN_APART = {
    "TrainingJobName", "AlgorithmSpecification", "HyperParameters", "ResourceConfig", "Tags",
    "CheckpointConfig",
}  # fmt: skip
_UNSAID = {"ProfilerConfig": {"DisableProfiler": True}}
"""Fields that switch a feature off in a training job; in a tuning job the feature is always off."""

_ALTERNATIVE = "use `driver: cloudtrain`, which starts each trial as a separate job"


def compile_tuning(sweep: Sweep, target: SageMaker, context: CompileContext) -> Plan:
    """Return the plan of a sweep that SageMaker's own tuner runs."""
    problems = Problems()
    parts = parts_of(sweep.job, target, context, problems)
    problems += place_problems(sweep.job)
    problems.refuse()
    assert parts is not None, "nothing stands in the way"
    request = finished_request(parts, overrides_of(sweep.job, "sagemaker"))
    refused = [
        Problem(path, text, hint, code="CT061")
        for path, text, hint in _cannot(sweep, parts, request)
    ]
    if refused:
        raise JobError(refused)
    trial = compile_sagemaker(sweep.job, target, context)
    return tuner_plan(
        sweep, trial, _tuning_request(sweep, context.run_name, request), _notes(sweep)
    )


def _tuning_request(sweep: Sweep, name: str, request: JsonMapping) -> JsonObject:
    algorithm = {key: request["AlgorithmSpecification"][key] for key in _OF_THE_ALGORITHM
                 if key in request["AlgorithmSpecification"]}  # fmt: skip
    metrics = _metrics(sweep, algorithm.get("MetricDefinitions", []))
    algorithm |= {"MetricDefinitions": metrics} if metrics else {}
    static = {
        key: value for key, value in request["HyperParameters"].items() if key not in sweep.search
    }
    machines = {key: value for key, value in request["ResourceConfig"].items() if key in _MACHINES}
    definition = {
        "StaticHyperParameters": static,
        "AlgorithmSpecification": algorithm,
        "HyperParameterTuningResourceConfig": machines,
        **{key: request[key] for key in _DEFINITION if key in request},
    }
    return {
        "HyperParameterTuningJobName": name,
        "HyperParameterTuningJobConfig": _config(sweep),
        "TrainingJobDefinition": {
            key: value for key, value in definition.items() if value not in ({}, [])
        },
        "Tags": request["Tags"],
    }


def _config(sweep: Sweep) -> JsonObject:
    assert sweep.objective is not None, "refused otherwise"
    limits = {
        "MaxNumberOfTrainingJobs": sweep.trial_count,
        "MaxParallelTrainingJobs": sweep.parallel,
    }
    if sweep.max_runtime is not None:
        limits["MaxRuntimeInSeconds"] = sweep.max_runtime
    config: JsonObject = {
        "Strategy": _STRATEGIES[sweep.strategy],
        "HyperParameterTuningJobObjective": {
            "Type": sweep.objective.goal.capitalize(),
            "MetricName": sweep.objective.metric,
        },
        "ResourceLimits": limits,
        "ParameterRanges": _ranges(sweep),
        "TrainingJobEarlyStoppingType": "Auto" if sweep.stop_early is not None else "Off",
    }
    if sweep.hyperband is not None:
        bounds = {"MinResource": sweep.hyperband.min, "MaxResource": sweep.hyperband.max}
        config["StrategyConfig"] = {"HyperbandStrategyConfig": bounds}
    if sweep.seed is not None:
        config["RandomSeed"] = sweep.seed
    return config


def _ranges(sweep: Sweep) -> JsonObject:
    ranges: dict[str, list[JsonObject]] = {f"{kind}ParameterRanges": [] for kind in _KINDS}
    for name, item in sweep.space.ranges.items():
        if _is_listed(sweep, item):
            values = [
                _text(value, as_json=sweep.job.entry_point is not None)
                for value in item.values or ()
            ]
            ranges["CategoricalParameterRanges"].append({"Name": name, "Values": values})
            continue
        low, high = item.bounds
        kind = "IntegerParameterRanges" if item.kind == "int" else "ContinuousParameterRanges"
        scale = (
            "Auto"
            if item.scale
            else {"log": "Logarithmic", "uniform": "Linear", "int": "Linear"}[item.kind]
        )
        bounds = (int(low), int(high)) if item.kind == "int" else (low, high)
        row = {
            "Name": name,
            "MinValue": str(bounds[0]),
            "MaxValue": str(bounds[1]),
            "ScalingType": scale,
        }
        ranges[kind].append(row)
    return ranges


def _is_listed(sweep: Sweep, item: Range) -> bool:
    """Return whether the values of the range `item` must be listed one by one.

    The tuner supports no steps, and its grid search accepts only listed values.
    """
    return item.kind == "choice" or (
        item.kind == "int" and (sweep.strategy == "grid" or item.step not in (None, 1))
    )


def _text(value: Any, *, as_json: bool) -> str:
    return json.dumps(value) if as_json else str(value)


def _metrics(sweep: Sweep, metrics: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the job's metrics. A missing objective gets a pattern that matches the lines of
    `runtime.report`. Metrics of AWS's own algorithms, such as `validation:auc`, get none: the
    service knows them and refuses definitions."""
    assert sweep.objective is not None, "refused otherwise"
    name = sweep.objective.metric
    if any(row["Name"] == name for row in metrics) or (
        ":" in name and sweep.job.entry_point is None
    ):
        return metrics
    plain = name.replace(".", "\\.")
    return [*metrics, {"Name": name, "Regex": rf"\[metrics\].* {plain}=([0-9.eE+-]+)"}]


def _notes(sweep: Sweep) -> Iterator[str]:
    if min(sweep.parallel, sweep.trial_count) > _QUOTA:
        yield (
            f"without a raised quota SageMaker starts no tuning job with more than {_QUOTA} "
            "trials at once"
        )
    if sweep.stop_early is not None and sweep.stop_early.after:
        yield (
            "SageMaker decides itself how long a trial runs before `stop_early` compares it: "
            "`after` is not sent"
        )


def _cannot(
    sweep: Sweep, parts: TrainingParts, request: JsonMapping
) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield each feature that the tuner does not support: its path in the sweep, a message, and the
    alternative."""
    if len(sweep.name) > LONGEST_NAME - _SUFFIX:
        most = LONGEST_NAME - _SUFFIX
        message = f"a tuning job's name has at most {LONGEST_NAME} letters, including a hash"
        yield ("name",), message, f"shorten it to {most} letters, or {_ALTERNATIVE}"
    if sweep.objective is None:
        yield ("objective",), "SageMaker's tuner needs an objective", _ALTERNATIVE
    if parts.launch.mode == "entrypoint":
        message = (
            "SageMaker's tuner cannot start cloudtrain's launcher, which this job needs: "
            f"{parts.launch.reason}"
        )
        yield ("job",), message, _ALTERNATIVE
    if request.get("CheckpointConfig"):
        message = (
            "SageMaker's tuner gives all trials one address for checkpoints, which they would share"
        )
        yield ("job", "checkpoint"), message, f"remove `checkpoint`, or {_ALTERNATIVE}"
    if len(request.get("Environment", {})) > _MOST_VARIABLES:
        message = f"a tuning job has at most {_MOST_VARIABLES} environment variables"
        yield ("job", "environment", "variables"), message, _ALTERNATIVE
    for field, value in request.items():
        fields = {*_DEFINITION, *_TAKEN_APART}
        if field not in fields and _UNSAID.get(field) != value:
            yield (
                ("job",),
                f"SageMaker's tuner has no `{field}`",
                f"leave it out, or {_ALTERNATIVE}",
            )
    for field in request["ResourceConfig"].keys() - set(_MACHINES):
        yield (
            ("job", "resources"),
            f"SageMaker's tuner has no `{field}`",
            f"leave it out, or {_ALTERNATIVE}",
        )
    toolkit = (
        parts.image.entry.toolkit
        if parts.launch.mode == "toolkit" and parts.image.entry is not None
        else None
    )
    for name, item in sweep.space.ranges.items():
        for value in item.choice or ():
            if toolkit is not None and not arrives_intact(
                value, toolkit, script=sweep.job.entry_point or "train.py"
            ):
                message = (
                    f"the shell of toolkit {toolkit} would break the value `{value}` of `{name}`"
                )
                yield ("search", name), message, _ALTERNATIVE
    yield from _cannot_search(sweep, request)


def _cannot_search(
    sweep: Sweep, request: JsonMapping
) -> Iterator[tuple[tuple[str, ...], str, str]]:
    ranges = sweep.space.ranges
    if len(ranges) > _MOST_RANGES:
        message = (
            f"SageMaker's tuner searches at most {_MOST_RANGES} hyperparameters, and this "
            f"sweep has {len(ranges)}"
        )
        yield ("search",), message, _ALTERNATIVE
    if len(request.get("HyperParameters", {}).keys() - ranges.keys()) > _MOST_STATIC:
        message = f"a tuning job has at most {_MOST_STATIC} fixed hyperparameters"
        yield ("job", "hyperparameters"), message, _ALTERNATIVE
    if sweep.strategy == "grid" and sweep.trial_count < sweep.space.grid_size:
        message = (
            f"SageMaker's grid runs all {sweep.space.grid_words} combinations, and "
            f"`trials` is {sweep.trials}"
        )
        yield ("trials",), message, f"remove `trials`, or {_ALTERNATIVE}"
    if sweep.parallel > _MOST_AT_ONCE:
        message = (
            f"a tuning job runs at most {_MOST_AT_ONCE} trials at once, and `parallel` is "
            f"{sweep.parallel}"
        )
        yield ("parallel",), message, f"write `parallel: {_MOST_AT_ONCE}`, or {_ALTERNATIVE}"
    if sweep.strategy != "random" and sweep.trial_count > _MOST_TRIALS:
        message = (
            f"a tuning job has at most {_MOST_TRIALS} trials of `{sweep.strategy}`, and "
            f"this {sweep.trial_count:,}"
        )
        yield ("trials",), message, f"try fewer, use `strategy: random`, or {_ALTERNATIVE}"
    if sweep.stop_early is not None and sweep.stop_early.bandit is not None:
        yield (
            ("stop_early",),
            "SageMaker's tuner has no bandit rule",
            f"use `median: {{}}`, or {_ALTERNATIVE}",
        )
    if sweep.max_runtime is not None and sweep.max_runtime < 120:
        yield (
            ("max_runtime",),
            "a tuning job's limit is at least 2m",
            f"write `max_runtime: 2m`, or {_ALTERNATIVE}",
        )
    for name, item in ranges.items():
        if name.startswith(("sagemaker_", "_")) or name == "mp_parameters":
            yield (
                ("search", name),
                f"`{name}` is reserved by SageMaker",
                "give the hyperparameter another name",
            )
        if not _is_listed(sweep, item):
            continue
        values = item.values or ()
        if len(values) > _MOST_VALUES:
            message = (
                f"SageMaker's tuner takes at most {_MOST_VALUES} listed values, and "
                f"`{name}` has {len(values)}"
            )
            yield (
                ("search", name),
                message,
                f"list fewer, use a range without `step`, or {_ALTERNATIVE}",
            )
        elif any(isinstance(value, list | dict) or value is None for value in values):
            yield (
                ("search", name),
                f"`{name}` has values that are neither text nor numbers",
                _ALTERNATIVE,
            )
        elif any(len(_text(value, as_json=True)) > _LONGEST_VALUE for value in values):
            yield (
                ("search", name),
                f"`{name}` has a value of over {_LONGEST_VALUE} letters",
                f"shorten it, or {_ALTERNATIVE}",
            )


# Requests for tuning jobs that continue earlier tuning jobs through SageMaker's warm start.

WARM_START = "IdenticalDataAndAlgorithm"
"""Continues with the same code and data, so that the objectives of all trials can be compared."""

_WARM_START_STRATEGIES = ("Bayesian", "Random")
_MOST_PARENTS, _WARM_START_MOST_TRIALS, _MOST_RANDOM = 5, 750, 10_000
"""Limits of a tuning job, including its parents: parent jobs, trials, and trials of a random
search."""


def parents_of(request: JsonMapping) -> list[str]:
    """Return the names of the tuning jobs that a request or job description continues, oldest
    first."""
    config = request.get("WarmStartConfig") or {}
    if config.get("WarmStartType") != WARM_START:
        return []
    return [row["HyperParameterTuningJobName"] for row in config["ParentHyperParameterTuningJobs"]]


def continued(request: JsonMapping, name: str, trials: int, earlier: int) -> JsonObject:
    """Return the request of the tuning job that continues `name` with `trials` more trials.

    A tuning job learns only from the parents that its request names, so the request also names the
    parents of `name`, which started `earlier` trials together with it.
    """
    config, parents = request["HyperParameterTuningJobConfig"], [*parents_of(request), name]
    most = _MOST_RANDOM if config["Strategy"] == "Random" else _WARM_START_MOST_TRIALS
    reason = None
    if config["Strategy"] not in _WARM_START_STRATEGIES:
        reason = (
            "SageMaker can continue only a bayesian or random search, not "
            f"`{config['Strategy'].lower()}`"
        )
    elif len(parents) > _MOST_PARENTS:
        reason = f"SageMaker can continue a sweep at most {_MOST_PARENTS} times"
    elif earlier + trials > most:
        reason = (
            f"a tuning job has at most {most:,} trials with those that it continues, and "
            f"this {earlier + trials:,}"
        )
    if reason is not None:
        hint = (
            "submit another sweep; with `driver: cloudtrain`, sweeps continue without these limits"
        )
        raise UsageError(reason, hint=hint, code="CT064")
    limits = {**config["ResourceLimits"], "MaxNumberOfTrainingJobs": trials}
    limits["MaxParallelTrainingJobs"] = min(limits["MaxParallelTrainingJobs"], trials)
    # the same seed would draw the same values once more
    seed = (
        {"RandomSeed": (config["RandomSeed"] + earlier) % 2**31} if "RandomSeed" in config else {}
    )
    jobs = [{"HyperParameterTuningJobName": parent} for parent in parents]
    return {
        **request,
        "HyperParameterTuningJobConfig": {**config, "ResourceLimits": limits, **seed},
        "WarmStartConfig": {"ParentHyperParameterTuningJobs": jobs, "WarmStartType": WARM_START},
    }
