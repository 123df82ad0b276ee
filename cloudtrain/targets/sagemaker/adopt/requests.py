"""Find CreateTrainingJob requests in documents: plain requests and job descriptions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from cloudtrain.errors import UsageError
from cloudtrain.job.script import job_name_from
from cloudtrain.rules.engine import rows_at, text_at
from cloudtrain.targets.adoption import FILL_IN, Original, Search
from cloudtrain.targets.sagemaker.catalogue.shapes import members_of, violations
from cloudtrain.targets.sagemaker.compile.sweep import LONGEST_NAME
from cloudtrain.targets.sagemaker.export.distributions import SDK_TABLES
from cloudtrain.targets.sagemaker.fields import (
    ALGORITHM,
    MACHINES,
    NAME,
    OUTPUT,
    PARAMETERS,
    ROLE,
    TAGS,
)
from cloudtrain.targets.sagemaker.reading import TUNING, TUNING_MACHINES
from cloudtrain.targets.sagemaker.request import (
    OF_TOOLKIT,
    PROGRAM,
    JsonMapping,
    JsonObject,
    only,
    without,
    without_nulls,
)

# Split a CreateHyperParameterTuningJob request into the training job of its trials and the fields
# of a sweep.

OF_SEARCH = (TUNING, "WarmStartConfig")
"""Fields of a tuning job's request in addition to the training job."""

_STAMP = re.compile(r"-\d{6}-\d{4}$")
"""Matches the time at the end of a tuning job's name, which the SDK adds."""

_HASH = len("-00000000-00")


def flat(request: JsonMapping) -> JsonObject:
    """Return a tuning job's request in the form of a training job's request.

    The fields of the search are added in a canonical form, so that equal searches compare equal.
    """
    definition = dict(request["TrainingJobDefinition"])
    static = definition.pop("StaticHyperParameters", {})
    machines = definition.pop(TUNING_MACHINES, definition.get(MACHINES))
    training: JsonObject = {
        NAME: request.get("HyperParameterTuningJobName", "tuning"),
        PARAMETERS: static,
        MACHINES: machines,
        **definition,
    }
    for name in (TAGS, *OF_SEARCH):
        if request.get(name):
            training[name] = request[name]
    search = _canonical(training.get(TUNING, {}))
    return without_nulls(training) | {TUNING: search}


def _canonical(search: JsonMapping) -> JsonObject:
    """Return the fields of a search in a form that is equal for equal searches."""
    config: JsonObject = json.loads(json.dumps(search))
    ranges: JsonObject = {}
    for kind, rows in sorted(config.get("ParameterRanges", {}).items()):
        if rows:
            full_rows = [_with_defaults(kind, row) for row in rows]
            ranges[kind] = sorted(full_rows, key=lambda row: str(row.get("Name")))
    config["ParameterRanges"] = ranges
    if config.get("Strategy") == "Grid":  # which ends by itself
        config.get("ResourceLimits", {}).pop("MaxNumberOfTrainingJobs", None)
    config.setdefault("TrainingJobEarlyStoppingType", "Off")
    return config


def _with_defaults(kind: str, row: JsonMapping) -> JsonMapping:
    """Return a range with its scale and with the bounds as floats. `0` and `0.0` are the same
    bound."""
    if not kind.startswith(("Continuous", "Integer")):
        return row
    full_row = {"ScalingType": "Auto", **row}
    for name in ("MinValue", "MaxValue"):
        if name in row:
            full_row[name] = str(float(row[name]))
    return full_row


def sweep_fields(request: JsonMapping) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a sweep except its job. Raises an error if a sweep cannot express the
    search."""
    if "TrainingJobDefinition" not in request:
        raise ValueError("it has several training jobs")
    config = request[TUNING]
    objective = config["HyperParameterTuningJobObjective"]
    limits = config["ResourceLimits"]
    strategy = config["Strategy"].lower()
    is_script = PROGRAM in request["TrainingJobDefinition"].get("StaticHyperParameters", {})

    name = job_name_from(_STAMP.sub("", str(request["HyperParameterTuningJobName"])))
    yield "name", name[: LONGEST_NAME - _HASH].rstrip("-")
    yield "search", dict(_ranges(config["ParameterRanges"], is_script=is_script))
    yield "objective", {objective["Type"].lower(): objective["MetricName"]}
    yield "strategy", strategy
    if strategy != "grid":
        yield "trials", limits["MaxNumberOfTrainingJobs"]
    yield "parallel", limits["MaxParallelTrainingJobs"]
    if config.get("TrainingJobEarlyStoppingType") == "Auto":
        yield "stop_early", {"median": {}}
    if strategy == "hyperband":
        bounds = config["StrategyConfig"]["HyperbandStrategyConfig"]
        yield "hyperband", {"min": bounds["MinResource"], "max": bounds["MaxResource"]}
    if "RandomSeed" in config:
        yield "seed", config["RandomSeed"]
    if "MaxRuntimeInSeconds" in limits:
        yield "max_runtime", limits["MaxRuntimeInSeconds"]
    yield "driver", "service"


_NUMBERS: dict[str, tuple[Callable[[str], float], Mapping[str, str]]] = {
    "ContinuousParameterRanges": (
        float,
        {"Logarithmic": "log", "Linear": "uniform", "Auto": "uniform"},
    ),
    "IntegerParameterRanges": (int, {"Linear": "int", "Auto": "int"}),
}
"""Maps the lists of ranges to the type of their bounds, and their scales to a sweep's."""


def _ranges(ranges: JsonMapping, *, is_script: bool) -> Iterator[tuple[str, Any]]:
    """Yield name and range of each hyperparameter, as a sweep has them. `is_script`: the listed
    values are JSON texts."""
    if ranges.get("AutoParameters"):
        raise ValueError("the tuner itself chooses the ranges (Autotune)")
    for kind, (number, scales) in _NUMBERS.items():
        for row in ranges.get(kind, ()):
            scale = row.get("ScalingType", "Auto")
            if scale not in scales:
                raise ValueError(f"a sweep has no scale `{scale}` for `{row['Name']}`")
            bounds = [number(row["MinValue"]), number(row["MaxValue"])]
            item: JsonObject = {scales[scale]: bounds}
            if scale == "Auto":
                item["scale"] = "auto"
            yield row["Name"], item
    for row in ranges.get("CategoricalParameterRanges", ()):
        read = json.loads if is_script else str
        yield row["Name"], list(map(read, row["Values"]))


_SIGNS = {NAME, ALGORITHM, MACHINES, OUTPUT, ROLE}
"""Fields that identify a request: each request has most of them."""

_SELECTED = {"SelectedInstanceType", "SelectedInstanceCount"}
"""Fields of a description's `ResourceConfig` that requests may not have."""


def originals_in(data: Any, folder: str | None) -> list[Original]:
    """Return the training jobs of a document from the folder `folder`; empty if the document is not
    from SageMaker."""
    originals = [replace(item, folder=folder) for item in _originals(_without_nulls(data))]
    if originals or not isinstance(data, Mapping):
        return originals
    for key, title in SDK_TABLES["other_documents"].items():
        if key in data:
            message = f"this is a SageMaker {title}, not a training job"
            hint = (
                "cloudtrain adopts training jobs; `cloudtrain init` writes a job file to "
                "fill in by hand"
            )
            if key == "PipelineName":
                hint = "write `pipeline.definition()` into a file, and adopt its training steps"
            raise UsageError(message, hint=hint, code="CT981")
    return []


def _without_nulls(value: Any) -> Any:
    """Return a document without nulls in mappings, which stand for missing fields, and without
    mappings of nulls only. Maps with the user's own keys keep them."""
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    full: JsonObject = {}
    for key, item in value.items():
        inner = item
        if str(key).lower() not in _MAPS:
            inner = _without_nulls(item)
        had_only_nulls = inner == {} and item != {}
        if inner is not None and not had_only_nulls:
            full[key] = inner
    return full


_MAPS = ("hyperparameters", "statichyperparameters", "environment")


def _originals(data: Any) -> Iterator[Original]:
    """Yield the training jobs of a document without nulls; none if it is of another kind."""
    if isinstance(data, list):
        for item in data:
            yield from _originals(item)
    if not isinstance(data, Mapping):
        return

    if "TrainingJobDefinitions" in data or (TUNING in data and _DEFINITION in data):
        yield from _tuning(data)
    elif len(_SIGNS & {key.removesuffix(".$") for key in data}) >= 3:
        kind = "a CreateTrainingJob request"
        if _is_description(data):
            kind = "the output of `aws sagemaker describe-training-job`"
        lost: dict[str, str] = {}
        request = _filled(data, "", lost)
        if lost.pop(NAME, None) or not request.get(NAME):
            request[NAME] = "training"  # every run gets a name of its own
        yield _original(request, kind, lost=lost)
    else:
        # a template, a workflow or an operator's arguments hold requests
        for value in data.values():
            yield from _originals(value)


_DEFINITION = "TrainingJobDefinition"

_REFERENCE = re.compile(r"Ref|Get|Fn::\w+|Std:\w+")
"""Keys of the mappings that CloudFormation and SageMaker's pipelines replace by a value."""

_TEMPLATE = re.compile(r"\{\{.*\}\}|\{%.*%\}|\$\{\w+\}", re.DOTALL)


def _filled(value: Any, path: str, lost: dict[str, str]) -> Any:
    """Return a request with a placeholder for each value that only a template's tool knows; such
    values are added to `lost`."""
    if isinstance(value, list):
        return [_filled(item, path, lost) for item in value]
    is_reference = isinstance(value, Mapping) and len(value) == 1
    if is_reference and _REFERENCE.fullmatch(str(*value)):
        value = "${REFERENCE}"
    if isinstance(value, str) and _TEMPLATE.search(value):
        lost[path] = _OF_TEMPLATE
        return FILL_IN
    if not isinstance(value, Mapping):
        return value

    fields: JsonObject = {}
    for key, inner in value.items():
        name = str(key).removesuffix(".$")  # Step Functions reads it from its input
        if name != key:
            inner = {"Ref": inner}
        fields[name] = _filled(inner, f"{path}.{name}".removeprefix("."), lost)
    return fields


_OF_TEMPLATE = "it is filled in only where its template is used: write the value into the job file"


def _is_description(data: JsonMapping) -> bool:
    return "TrainingJobStatus" in data or "TrainingJobArn" in data


def _tuning(data: JsonMapping) -> Iterator[Original]:
    """Yield the training jobs that a tuning job defines, with the search if a sweep can express
    it."""
    definitions = data.get("TrainingJobDefinitions") or [data["TrainingJobDefinition"]]
    if len(definitions) == 1:
        data = _of_one_definition(data, definitions[0])

    name = str(data.get("HyperParameterTuningJobName", "tuning"))
    for definition in definitions:
        search = data.get(TUNING, {})
        ranges = definition.get("HyperParameterRanges") or search.get("ParameterRanges", {})
        fields: JsonObject = {}
        why = ""
        try:
            fields = dict(sweep_fields(data))
        except ValueError as error:
            why = f"{error}"
        except (KeyError, TypeError, AttributeError) as error:
            why = f"a part of it is missing or not valid: {error}"

        lost = {TUNING: f"a sweep cannot express the search: {why}"}
        searched = _searched(ranges)
        if searched:
            lost["ParameterRanges"] = (
                f"the tuner gives these values to each job: {', '.join(searched)}"
            )

        if fields:
            arn = text_at(data, "HyperParameterTuningJobArn")
            original = _original(flat(data), f"the tuning job {name}", arn=arn)
            yield replace(original, search=Search(fields, lost))
        else:
            request = _training_job(definition, ranges, name)
            yield _original(request, f"a training job of the tuning job {name}", lost=lost)


def _searched(ranges: JsonMapping) -> list[str]:
    """Return the names of the script's hyperparameters whose values the tuner chooses."""
    names = []
    for kind in ranges:
        for row in rows_at(ranges, kind):
            name = str(row.get("Name"))
            if name not in OF_TOOLKIT:
                names.append(name)
    return names


def _training_job(definition: JsonMapping, ranges: JsonMapping, name: str) -> JsonObject:
    """Return the request of a training job that a tuning job defines, with the tuner's hints for
    the hyperparameters that it chooses."""
    request = without(definition, _OF_TUNER)
    hints: JsonObject = {}
    for row in ranges.get("AutoParameters", ()):
        hints[str(row.get("Name"))] = row.get("ValueHint")
    request[NAME] = str(definition.get("DefinitionName") or name)
    request[MACHINES] = request.pop(TUNING_MACHINES, request.get(MACHINES, {}))
    request[PARAMETERS] = {**hints, **definition.get("StaticHyperParameters", {})}
    return request


def _of_one_definition(data: JsonMapping, definition: JsonMapping) -> JsonObject:
    """Return a request with a list of one training job as a request with that job, whose search is
    the request's."""
    request = without(data, {"TrainingJobDefinitions"})
    search = dict(data.get(TUNING, {}))
    job: JsonObject = {}
    for key, value in definition.items():
        if key in _OF_SEVERAL:
            search[_OF_SEVERAL[key]] = value
        elif key != "DefinitionName":
            job[key] = value
    return request | {TUNING: search, "TrainingJobDefinition": job}


_OF_SEVERAL = {
    "HyperParameterRanges": "ParameterRanges",
    "TuningObjective": "HyperParameterTuningJobObjective",
}
"""Fields of one of several training jobs, each with the field of the search for a single one."""

_OF_TUNER = {"StaticHyperParameters", "DefinitionName", *_OF_SEVERAL}


def _original(
    data: JsonMapping,
    kind: str,
    *,
    lost: Mapping[str, str] = {},
    arn: str = "",
) -> Original:
    """Return a request or job description as an original, without the fields that only a
    description has.

    `kind` describes the document in words. `lost` explains, by field, why fields cannot be adopted.
    """
    request = without_nulls(data)
    if _is_description(data):
        request = only(request, members_of("CreateTrainingJob"))
    replaced: dict[str, str] = {}
    for section, others in ((MACHINES, _SELECTED), (PARAMETERS, _SET_BY_TUNER)):
        if isinstance(request.get(section), Mapping):
            for name in others & request[section].keys():
                replaced[f"{section}.{name}"] = "the SDK or the service adds it"
            request[section] = without(request[section], others)

    reasons = dict(lost)
    for wrong in violations(request):
        if wrong.kind == "type" and wrong.hint in ("write a mapping", "write a list"):
            raise UsageError(
                wrong.message,
                hint=(
                    "adopt the request as it was sent: the output of `aws sagemaker "
                    "describe-training-job`"
                ),
                code="CT981",
            )
        if wrong.path == (NAME,):
            reasons[NAME] = f"{wrong.message}: {wrong.hint}"

    parts = (arn or text_at(data, "TrainingJobArn")).split(":")
    region = parts[3] if len(parts) > 5 else ""
    name = str(request.get(NAME, ""))
    return Original(
        "sagemaker",
        request,
        name,
        kind,
        {"region": region} if region else {},
        lost=reasons,
        replaced=replaced,
    )


_SET_BY_TUNER = {
    "_tuning_objective_metric",
    "sagemaker_estimator_class_name",
    "sagemaker_estimator_module",
}
