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
from cloudtrain.targets.common.compiling import OF_ONE_RUN, Problems, tuner_plan
from cloudtrain.targets.sagemaker.compile.places import place_problems
from cloudtrain.targets.sagemaker.compile.training import (
    TrainingParts,
    compile_sagemaker,
    finished_request,
    parts_of,
)
from cloudtrain.targets.sagemaker.fields import (
    ALGORITHM,
    CHANNELS,
    CHECKPOINT,
    ENCRYPTION,
    ISOLATION,
    LIMITS,
    MACHINES,
    NAME,
    NETWORK,
    OUTPUT,
    PARAMETERS,
    PROFILER,
    ROLE,
    SPOT,
    TAGS,
    VARIABLES,
)
from cloudtrain.targets.sagemaker.launch.shell import arrives_intact
from cloudtrain.targets.sagemaker.reading import TUNING, TUNING_MACHINES
from cloudtrain.targets.sagemaker.request import JsonMapping, JsonObject, only, without
from cloudtrain.targets.sagemaker.settings import SageMaker

LONGEST_NAME = 32
"""Longest name of a tuning job. The names of its trials are 13 characters longer."""

_SUFFIX = len("-00000000-00")
_MOST_RANGES = 30
_MOST_VALUES = 30
_MOST_VARIABLES = 48
_MOST_STATIC = 100
_LONGEST_VALUE = 256
_QUOTA = 10
"""The most trials at once, without a raised quota."""
_MOST_AT_ONCE = 100
_MOST_TRIALS = 750
"""The most trials of every strategy but random."""

_STRATEGIES = {"grid": "Grid", "random": "Random", "bayesian": "Bayesian", "hyperband": "Hyperband"}
_SCALES = {"log": "Logarithmic", "uniform": "Linear", "int": "Linear"}

_DEFINITION = (
    ROLE,
    CHANNELS,
    NETWORK,
    OUTPUT,
    LIMITS,
    ISOLATION,
    ENCRYPTION,
    SPOT,
    "RetryStrategy",
    VARIABLES,
)
"""Fields that a tuning job's training definition shares with a training job."""

_MACHINES = ("VolumeSizeInGB", "InstanceType", "InstanceCount", "VolumeKmsKeyId")
_OF_THE_ALGORITHM = ("TrainingImage", "AlgorithmName", "TrainingInputMode", "MetricDefinitions")
_TAKEN_APART = (NAME, ALGORITHM, PARAMETERS, MACHINES, TAGS, CHECKPOINT)
_UNSAID = {PROFILER: {"DisableProfiler": True}}
"""Fields that switch a feature off in a training job; in a tuning job the feature is always off."""

_ALTERNATIVE = "use `driver: cloudtrain`, which starts each trial as a separate job"


def compile_tuning(sweep: Sweep, target: SageMaker, context: CompileContext) -> Plan:
    """Return the plan of a sweep that SageMaker's own tuner runs. Raises a `JobError` with the
    problems of the job, or else with what the tuner cannot do."""
    problems = Problems()
    parts = parts_of(sweep.job, target, context, problems)
    problems += place_problems(sweep.job)
    problems.raise_if_any()
    assert parts is not None, "without problems there are parts"

    request = finished_request(parts, overrides_of(sweep.job, "sagemaker"))
    refused = list(_cannot(sweep, parts, request))
    if refused:
        raise JobError(refused)

    trial = compile_sagemaker(sweep.job, target, context)
    return tuner_plan(
        sweep, trial, _tuning_request(sweep, context.run_name, request), _notes(sweep)
    )


def _tuning_request(sweep: Sweep, name: str, request: JsonMapping) -> JsonObject:
    """Return the body of CreateHyperParameterTuningJob, from the `request` of a trial's training
    job. `name` is the tuning job's name."""
    algorithm = only(request[ALGORITHM], _OF_THE_ALGORITHM)
    metrics = _metrics(sweep, algorithm.get("MetricDefinitions", []))
    if metrics:
        algorithm["MetricDefinitions"] = metrics

    static = without(request[PARAMETERS], sweep.search)
    definition = {
        "StaticHyperParameters": static,
        ALGORITHM: algorithm,
        TUNING_MACHINES: only(request[MACHINES], _MACHINES),
        **only(request, _DEFINITION),
    }
    shared = [name for name in OF_ONE_RUN if name not in sweep.job.environment.variables]
    definition[VARIABLES] = without(definition.get(VARIABLES, {}), shared)
    return {
        "HyperParameterTuningJobName": name,
        TUNING: _config(sweep),
        "TrainingJobDefinition": {
            key: value for key, value in definition.items() if value not in ({}, [])
        },
        TAGS: request[TAGS],
    }


def _config(sweep: Sweep) -> JsonObject:
    """Return the fields of the search: strategy, objective, limits and ranges."""
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
        "TrainingJobEarlyStoppingType": "Off" if sweep.stop_early is None else "Auto",
    }

    if sweep.hyperband is not None:
        bounds = {"MinResource": sweep.hyperband.min, "MaxResource": sweep.hyperband.max}
        config["StrategyConfig"] = {"HyperbandStrategyConfig": bounds}
    if sweep.seed is not None:
        config["RandomSeed"] = sweep.seed
    return config


def _ranges(sweep: Sweep) -> JsonObject:
    rows: dict[str, list[JsonObject]] = {
        "ContinuousParameterRanges": [],
        "IntegerParameterRanges": [],
        "CategoricalParameterRanges": [],
    }
    is_script = sweep.job.entry_point is not None
    for name, item in sweep.space.ranges.items():
        if _is_listed(sweep, item):
            values = [_text(value, as_json=is_script) for value in item.values or ()]
            rows["CategoricalParameterRanges"].append({"Name": name, "Values": values})
        elif item.kind == "int":
            rows["IntegerParameterRanges"].append(_range_row(name, item))
        else:
            rows["ContinuousParameterRanges"].append(_range_row(name, item))
    return rows


def _range_row(name: str, item: Range) -> JsonObject:
    """Return the row of `ParameterRanges` for numbers between two bounds."""
    low, high = item.bounds
    if item.kind == "int":
        low = int(low)
        high = int(high)
    return {
        "Name": name,
        "MinValue": str(low),
        "MaxValue": str(high),
        "ScalingType": "Auto" if item.scale else _SCALES[item.kind],
    }


def _is_listed(sweep: Sweep, item: Range) -> bool:
    """Return whether the values of the range `item` must be listed one by one.

    The tuner supports no steps, and its grid search accepts only listed values.
    """
    if item.kind == "int":
        return sweep.strategy == "grid" or item.step not in (None, 1)
    return item.kind == "choice"


def _text(value: Any, *, as_json: bool) -> str:
    return json.dumps(value) if as_json else str(value)


def _metrics(sweep: Sweep, metrics: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the job's metrics. A missing objective gets a pattern that matches the lines of
    `runtime.report`. Metrics of AWS's own algorithms, such as `validation:auc`, get none: the
    service knows them and refuses definitions."""
    assert sweep.objective is not None, "refused otherwise"
    name = sweep.objective.metric
    of_algorithm = ":" in name and sweep.job.entry_point is None
    if of_algorithm or any(row["Name"] == name for row in metrics):
        return metrics
    escaped_name = name.replace(".", "\\.")
    regex = rf"\[metrics\].* {escaped_name}=([0-9.eE+-]+)"
    return [*metrics, {"Name": name, "Regex": regex}]


def _notes(sweep: Sweep) -> Iterator[str]:
    """Yield what the printed plan says about the limits of the tuner."""
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


def _problem(path: tuple[str, ...], message: str, hint: str = _ALTERNATIVE) -> Problem:
    return Problem(path, message, hint, code="CT061")


def _cannot(sweep: Sweep, parts: TrainingParts, request: JsonMapping) -> Iterator[Problem]:
    """Yield a problem for each feature that the tuner does not support."""
    most = LONGEST_NAME - _SUFFIX
    if len(sweep.name) > most:
        message = f"a tuning job's name has at most {LONGEST_NAME} letters, including a hash"
        yield _problem(("name",), message, f"shorten it to {most} letters, or {_ALTERNATIVE}")
    if sweep.objective is None:
        yield _problem(("objective",), "SageMaker's tuner needs an objective")
    if parts.launch.mode == "entrypoint":
        message = (
            "SageMaker's tuner cannot start cloudtrain's launcher, which this job needs: "
            f"{parts.launch.reason}"
        )
        yield _problem(("job",), message)
    if request.get(CHECKPOINT):
        message = (
            "SageMaker's tuner gives all trials one address for checkpoints, which they would share"
        )
        yield _problem(("job", "checkpoint"), message, f"remove `checkpoint`, or {_ALTERNATIVE}")
    if len(request.get(VARIABLES, {})) > _MOST_VARIABLES:
        message = f"a tuning job has at most {_MOST_VARIABLES} environment variables"
        yield _problem(("job", "environment", "variables"), message)

    hint = f"leave it out, or {_ALTERNATIVE}"
    for field, value in request.items():
        is_known = field in _DEFINITION or field in _TAKEN_APART
        if not is_known and _UNSAID.get(field) != value:
            yield _problem(("job",), f"SageMaker's tuner has no `{field}`", hint)
    for field in request[MACHINES]:
        if field not in _MACHINES:
            yield _problem(("job", "resources"), f"SageMaker's tuner has no `{field}`", hint)

    yield from _broken_by_shell(sweep, parts)
    yield from _cannot_search(sweep, request)


def _broken_by_shell(sweep: Sweep, parts: TrainingParts) -> Iterator[Problem]:
    """Yield a problem for each listed value that the shell of the image's toolkit changes."""
    if parts.launch.mode != "toolkit" or parts.image.entry is None:
        return
    toolkit = parts.image.entry.toolkit
    if toolkit is None:
        return

    script = sweep.job.entry_point or "train.py"
    for name, item in sweep.space.ranges.items():
        for value in item.choice or ():
            if not arrives_intact(value, toolkit, script=script):
                message = (
                    f"the shell of toolkit {toolkit} would break the value `{value}` of `{name}`"
                )
                yield _problem(("search", name), message)


def _cannot_search(sweep: Sweep, request: JsonMapping) -> Iterator[Problem]:
    """Yield problems with the limits of the tuner: numbers of hyperparameters and trials, rules for
    an early stop, and time."""
    ranges = sweep.space.ranges
    if len(ranges) > _MOST_RANGES:
        message = (
            f"SageMaker's tuner searches at most {_MOST_RANGES} hyperparameters, and this "
            f"sweep has {len(ranges)}"
        )
        yield _problem(("search",), message)
    static = request.get(PARAMETERS, {}).keys() - ranges.keys()
    if len(static) > _MOST_STATIC:
        message = f"a tuning job has at most {_MOST_STATIC} fixed hyperparameters"
        yield _problem(("job", "hyperparameters"), message)
    if sweep.strategy == "grid" and sweep.trial_count < sweep.space.grid_size:
        message = (
            f"SageMaker's grid runs all {sweep.space.grid_words} combinations, and "
            f"`trials` is {sweep.trials}"
        )
        yield _problem(("trials",), message, f"remove `trials`, or {_ALTERNATIVE}")
    if sweep.parallel > _MOST_AT_ONCE:
        message = (
            f"a tuning job runs at most {_MOST_AT_ONCE} trials at once, and `parallel` is "
            f"{sweep.parallel}"
        )
        hint = f"write `parallel: {_MOST_AT_ONCE}`, or {_ALTERNATIVE}"
        yield _problem(("parallel",), message, hint)
    if sweep.strategy != "random" and sweep.trial_count > _MOST_TRIALS:
        message = (
            f"a tuning job has at most {_MOST_TRIALS} trials of `{sweep.strategy}`, and "
            f"this {sweep.trial_count:,}"
        )
        hint = f"try fewer, use `strategy: random`, or {_ALTERNATIVE}"
        yield _problem(("trials",), message, hint)
    if sweep.stop_early is not None and sweep.stop_early.bandit is not None:
        message = "SageMaker's tuner has no bandit rule"
        yield _problem(("stop_early",), message, f"use `median: {{}}`, or {_ALTERNATIVE}")
    if sweep.max_runtime is not None and sweep.max_runtime < 120:
        message = "a tuning job's limit is at least 2m"
        yield _problem(("max_runtime",), message, f"write `max_runtime: 2m`, or {_ALTERNATIVE}")
    for name, item in ranges.items():
        yield from _cannot_try(sweep, name, item)


def _cannot_try(sweep: Sweep, name: str, item: Range) -> Iterator[Problem]:
    """Yield problems with the name and the listed values of one hyperparameter."""
    path = ("search", name)
    if name.startswith(("sagemaker_", "_")) or name == "mp_parameters":
        message = f"`{name}` is reserved by SageMaker"
        yield _problem(path, message, "give the hyperparameter another name")
    if not _is_listed(sweep, item):
        return

    values = item.values or ()
    if len(values) > _MOST_VALUES:
        message = (
            f"SageMaker's tuner takes at most {_MOST_VALUES} listed values, and "
            f"`{name}` has {len(values)}"
        )
        yield _problem(path, message, f"list fewer, use a range without `step`, or {_ALTERNATIVE}")
    elif any(isinstance(value, list | dict) or value is None for value in values):
        yield _problem(path, f"`{name}` has values that are neither text nor numbers")
    elif any(len(_text(value, as_json=True)) > _LONGEST_VALUE for value in values):
        message = f"`{name}` has a value of over {_LONGEST_VALUE} letters"
        yield _problem(path, message, f"shorten it, or {_ALTERNATIVE}")


# Requests for tuning jobs that continue earlier tuning jobs through SageMaker's warm start.

WARM_START = "IdenticalDataAndAlgorithm"
"""Continues with the same code and data, so that the objectives of all trials can be compared."""

_MOST_PARENTS = 5
_MOST_WITH_PARENTS = {"Bayesian": 750, "Random": 10_000}
"""The most trials of a tuning job and its parents."""


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
    config = dict(request["HyperParameterTuningJobConfig"])
    parents = [*parents_of(request), name]
    reason = _cannot_continue(config["Strategy"], len(parents), earlier + trials)
    if reason is not None:
        hint = (
            "submit another sweep; with `driver: cloudtrain`, sweeps continue without these limits"
        )
        raise UsageError(reason, hint=hint, code="CT064")

    limits = dict(config["ResourceLimits"])
    limits["MaxNumberOfTrainingJobs"] = trials
    limits["MaxParallelTrainingJobs"] = min(limits["MaxParallelTrainingJobs"], trials)
    config["ResourceLimits"] = limits
    if "RandomSeed" in config:
        # the same seed would draw the same values once more
        config["RandomSeed"] = (config["RandomSeed"] + earlier) % 2**31
    jobs = [{"HyperParameterTuningJobName": parent} for parent in parents]
    return {
        **request,
        "HyperParameterTuningJobConfig": config,
        "WarmStartConfig": {"ParentHyperParameterTuningJobs": jobs, "WarmStartType": WARM_START},
    }


def _cannot_continue(strategy: str, parents: int, trials: int) -> str | None:
    """Explain why SageMaker cannot continue a search; None if it can."""
    if strategy not in _MOST_WITH_PARENTS:
        return f"SageMaker can continue only a bayesian or random search, not `{strategy.lower()}`"
    if parents > _MOST_PARENTS:
        return f"SageMaker can continue a sweep at most {_MOST_PARENTS} times"
    most = _MOST_WITH_PARENTS[strategy]
    if trials > most:
        return (
            f"a tuning job has at most {most:,} trials with those that it continues, and "
            f"this {trials:,}"
        )
    return None
