"""Find CreateTrainingJob requests in documents: plain requests, CloudTrail events and job
descriptions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cloudtrain.documents.toml_json import read_json
from cloudtrain.errors import UsageError
from cloudtrain.job.script import job_name_from
from cloudtrain.targets.adoption import Original, Search
from cloudtrain.targets.sagemaker.catalogue.shapes import members_of, violations
from cloudtrain.targets.sagemaker.compile.sweep import LONGEST_NAME
from cloudtrain.targets.sagemaker.export.distributions import SDK_TABLES
from cloudtrain.targets.sagemaker.request import OF_TOOLKIT, PROGRAM, JsonMapping, JsonObject

# Split a CreateHyperParameterTuningJob request into the training job of its trials and the fields
# of a sweep.

OF_SEARCH = ("HyperParameterTuningJobConfig", "WarmStartConfig")
"""Fields of a tuning job's request in addition to the training job."""

_STAMP = re.compile(r"-\d{6}-\d{4}$")
"""Matches the time at the end of a tuning job's name, which the SDK adds."""

_HASH = len("-00000000-00")


def flat(request: JsonMapping) -> JsonObject:
    """Return a tuning job's request in the form of a training job's request.

    The fields of the search are added in a canonical form, so that equal searches compare equal.
    """
    definition = dict(request["TrainingJobDefinition"])
    training = {
        "TrainingJobName": request.get("HyperParameterTuningJobName", "tuning"),
        "HyperParameters": definition.pop("StaticHyperParameters", {}),
        "ResourceConfig": definition.pop(
            "HyperParameterTuningResourceConfig", definition.get("ResourceConfig")
        ),
        **definition,
        **{name: request[name] for name in ("Tags", *OF_SEARCH) if request.get(name)},
    }
    config = json.loads(json.dumps(training.get(OF_SEARCH[0], {})))
    ranges = config.get("ParameterRanges", {})
    config["ParameterRanges"] = {
        kind: sorted(
            (_with_defaults(kind, row) for row in rows), key=lambda row: str(row.get("Name"))
        )
        for kind, rows in sorted(ranges.items())
        if rows
    }
    if config.get("Strategy") == "Grid":  # which ends by itself
        config.get("ResourceLimits", {}).pop("MaxNumberOfTrainingJobs", None)
    config.setdefault("TrainingJobEarlyStoppingType", "Off")
    return {name: value for name, value in training.items() if value is not None} | {
        OF_SEARCH[0]: config
    }


def _with_defaults(kind: str, row: JsonMapping) -> JsonMapping:
    """Return a range with its scale and with the bounds as floats. `0` and `0.0` are the same
    bound."""
    if not kind.startswith(("Continuous", "Integer")):
        return row
    bounds = {name: str(float(row[name])) for name in ("MinValue", "MaxValue") if name in row}
    return {"ScalingType": "Auto", **row, **bounds}


def sweep_fields(request: JsonMapping) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a sweep except its job. Raises an error if a sweep cannot express the
    search."""
    if "TrainingJobDefinition" not in request:
        raise ValueError("it has several training jobs")
    config = request["HyperParameterTuningJobConfig"]
    objective, limits = config["HyperParameterTuningJobObjective"], config["ResourceLimits"]
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


def _ranges(ranges: JsonMapping, *, is_script: bool) -> Iterator[tuple[str, Any]]:
    if ranges.get("AutoParameters"):
        raise ValueError("the tuner itself chooses the ranges (Autotune)")
    for name, number, kinds in (
        (
            "ContinuousParameterRanges",
            float,
            {"Logarithmic": "log", "Linear": "uniform", "Auto": "uniform"},
        ),
        ("IntegerParameterRanges", int, {"Linear": "int", "Auto": "int"}),
    ):
        for row in ranges.get(name, ()):
            scale = row.get("ScalingType", "Auto")
            if scale not in kinds:
                raise ValueError(f"a sweep has no scale `{scale}` for `{row['Name']}`")
            bounds = [number(row["MinValue"]), number(row["MaxValue"])]
            yield (
                row["Name"],
                {kinds[scale]: bounds} | ({"scale": "auto"} if scale == "Auto" else {}),
            )
    for row in ranges.get("CategoricalParameterRanges", ()):
        yield row["Name"], [json.loads(text) if is_script else text for text in row["Values"]]


_OPERATION = "CreateTrainingJob"

_SIGNS = {
    "TrainingJobName",
    "AlgorithmSpecification",
    "ResourceConfig",
    "OutputDataConfig",
    "RoleArn",
}
"""Fields that identify a request: each request has most of them."""

_SELECTED = ("SelectedInstanceType", "SelectedInstanceCount")
"""Fields of a description's `ResourceConfig` that requests may not have."""

_HIDDEN = "HIDDEN_DUE_TO_SECURITY_REASONS"
"""The text that CloudTrail writes in place of hidden values."""


def originals_in(data: Any, folder: str | None) -> list[Original]:
    """Return the training jobs of a document from the folder `folder`; empty if the document is not
    from SageMaker."""
    originals = list(_originals(_without_nulls(data), folder))
    if not originals and isinstance(data, Mapping):
        other = next(
            (
                title
                for key, title in SDK_TABLES["other_documents"].items()
                if key in data or _camel(key) in data
            ),
            None,
        )
        if other is not None:
            hint = (
                "cloudtrain adopts training jobs; `cloudtrain init` writes a job file to "
                "fill in by hand"
            )
            raise UsageError(
                f"this file describes a SageMaker {other}, not a training job",
                hint=hint,
                code="CT981",
            )
    return originals


def _without_nulls(value: Any) -> Any:
    """Return a document without nulls in mappings, which stand for missing fields, and without
    mappings of nulls only. Maps with the user's own keys keep them."""
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    full = {key: item for key, item in value.items() if item is not None}
    full = {
        key: item if str(key).lower() in _MAPS else _without_nulls(item)
        for key, item in full.items()
    }
    return {key: item for key, item in full.items() if item != {} or value[key] == {}}


_MAPS = ("hyperparameters", "statichyperparameters", "environment")


def _originals(data: Any, folder: str | None) -> Iterator[Original]:
    if isinstance(data, list):
        for item in data:
            yield from _originals(item, folder)
    elif not isinstance(data, Mapping):
        return
    elif "Records" in data or "Events" in data:
        yield from _originals(data.get("Records") or data.get("Events"), folder)
    elif isinstance(data.get("CloudTrailEvent"), str):  # `aws cloudtrail lookup-events`
        yield from _originals(_without_nulls(read_json(data["CloudTrailEvent"]).data), folder)
    elif "requestParameters" in data or "detail" in data:
        yield from _event(data, folder)
    elif "TrainingJobDefinition" in data or "TrainingJobDefinitions" in data:
        yield from _tuning(data, folder)
    elif _SIGNS & data.keys() and len(_SIGNS & data.keys()) >= 3:
        described = "TrainingJobStatus" in data or "TrainingJobArn" in data
        kind = (
            "the output of `aws sagemaker describe-training-job`"
            if described
            else "a CreateTrainingJob request"
        )
        yield _original(data, kind, folder)


def _event(event: JsonMapping, folder: str | None) -> Iterator[Original]:
    """Yield the request of a CloudTrail event, or of an EventBridge event that contains a
    CloudTrail event."""
    event = event["detail"] if isinstance(event.get("detail"), Mapping) else event
    request = event.get("requestParameters")
    if event.get("eventName") == _OPERATION and isinstance(request, Mapping):
        settings = {"region": event["awsRegion"]} if isinstance(event.get("awsRegion"), str) else {}
        yield _original(_as_request(request, ()), "a CloudTrail event", folder, settings)


def _as_request(value: Any, path: tuple[str | int, ...]) -> Any:
    """Return the value with the API's field names, because CloudTrail writes their first letter in
    lower case.

    Keys of maps stay unchanged, because users choose them.
    """
    if isinstance(value, list):
        return [_as_request(item, (*path, 0)) for item in value]
    if not isinstance(value, Mapping):
        return value
    members = members_of(_OPERATION, path)
    if members is None:
        return {key: _as_request(item, (*path, key)) for key, item in value.items()}
    names = {_camel(name): name for name in members} | {name.lower(): name for name in members}
    body = {}
    for key, item in value.items():
        name = names.get(key) or names.get(key.lower()) or key
        body[name] = _as_request(item, (*path, name)) if name in members else item
    return body


def _camel(name: str) -> str:
    return name[:1].lower() + name[1:]


def _tuning(data: JsonMapping, folder: str | None) -> Iterator[Original]:
    """Yield the training jobs that a tuning job defines, with the search if a sweep can express
    it."""
    definitions = data.get("TrainingJobDefinitions") or [data["TrainingJobDefinition"]]
    if len(definitions) == 1:
        data = _of_one_definition(data, definitions[0])
    name = str(data.get("HyperParameterTuningJobName", "tuning"))
    for definition in definitions:
        request = {key: value for key, value in definition.items() if key not in _OF_TUNER}
        request["TrainingJobName"] = str(definition.get("DefinitionName") or name)
        request["ResourceConfig"] = request.pop(
            "HyperParameterTuningResourceConfig", request.get("ResourceConfig", {})
        )
        ranges = definition.get("HyperParameterRanges") or data.get(
            "HyperParameterTuningJobConfig", {}
        ).get("ParameterRanges", {})
        hints = {
            str(row.get("Name")): row.get("ValueHint") for row in ranges.get("AutoParameters", ())
        }
        request["HyperParameters"] = {**hints, **definition.get("StaticHyperParameters", {})}
        names = [
            str(row.get("Name"))
            for rows in ranges.values()
            for row in rows
            if isinstance(row, Mapping)
        ]
        searched = [name for name in names if name not in OF_TOOLKIT]
        try:
            fields, why = dict(sweep_fields(data)), ""
        except ValueError as error:
            fields, why = {}, f"{error}"
        except (KeyError, TypeError, AttributeError) as error:
            fields, why = {}, f"a part of it is missing or not valid: {error}"
        lost = {OF_SEARCH[0]: f"a sweep cannot express the search: {why}"}
        if searched:
            lost["ParameterRanges"] = (
                f"the tuner gives these values to each job: {', '.join(searched)}"
            )
        if not fields:
            yield _original(request, f"a training job of the tuning job {name}", folder, lost=lost)
        else:
            original = _original(flat(data), f"the tuning job {name}", folder)
            region = _region_of(data.get("HyperParameterTuningJobArn"))
            settings = {**original.settings, **({"region": region} if region else {})}
            yield replace(original, settings=settings, search=Search(fields, lost))


def _of_one_definition(data: JsonMapping, definition: JsonMapping) -> JsonObject:
    """Return a request with a list of one training job as a request with that job, whose search is
    the request's."""
    own = {name: definition[key] for key, name in _OF_SEVERAL.items() if key in definition}
    job = {
        key: value
        for key, value in definition.items()
        if key not in (*_OF_SEVERAL, "DefinitionName")
    }
    whole = {key: value for key, value in data.items() if key != "TrainingJobDefinitions"}
    return whole | {
        OF_SEARCH[0]: {**data.get(OF_SEARCH[0], {}), **own},
        "TrainingJobDefinition": job,
    }


_OF_SEVERAL = {
    "HyperParameterRanges": "ParameterRanges",
    "TuningObjective": "HyperParameterTuningJobObjective",
}
"""Fields of one of several training jobs, each with the field of the search for a single one."""

_OF_TUNER = {"StaticHyperParameters", "DefinitionName", *_OF_SEVERAL}


def _original(
    data: JsonMapping,
    kind: str,
    folder: str | None,
    settings: JsonMapping | None = None,
    lost: Mapping[str, str] | None = None,
) -> Original:
    """Return a request or job description as an original, without the fields that only a
    description has.

    `kind` describes the document in words. `lost` explains, by field, why fields cannot be adopted.
    """
    members = members_of(_OPERATION, ()) or ()
    described = "TrainingJobStatus" in data or "TrainingJobArn" in data
    request = {
        key: value
        for key, value in data.items()
        if (key in members or not described) and value is not None
    }
    config = request.get("ResourceConfig")
    if isinstance(config, Mapping):
        request["ResourceConfig"] = {
            key: value for key, value in config.items() if key not in _SELECTED
        }
    parameters = request.get("HyperParameters")
    if isinstance(parameters, Mapping):
        request["HyperParameters"] = {
            key: value for key, value in parameters.items() if key not in _SET_BY_TUNER
        }
    reasons = dict(lost or {})
    for name in ("Environment", "HyperParameters"):
        hidden = request.get(name)
        texts = (
            [hidden]
            if isinstance(hidden, str)
            else list(hidden.values())
            if isinstance(hidden, Mapping)
            else []
        )
        if _HIDDEN in texts:
            del request[name]
            reasons[name] = (
                "CloudTrail hides it: take it from `aws sagemaker describe-training-job`"
            )
    for wrong in violations(request):
        if wrong.kind == "type" and wrong.hint in ("write a mapping", "write a list"):
            hint = (
                "adopt the request as it was sent: the output of `aws sagemaker "
                "describe-training-job`"
            )
            raise UsageError(wrong.message, hint=hint, code="CT981")
    region = _region_of(data.get("TrainingJobArn"))
    own_settings = {**(settings or {}), **({"region": region} if region else {})}
    return Original(
        "sagemaker",
        request,
        str(request.get("TrainingJobName", "")),
        kind,
        own_settings,
        folder=folder,
        lost=reasons,
    )


_SET_BY_TUNER = {
    "_tuning_objective_metric",
    "sagemaker_estimator_class_name",
    "sagemaker_estimator_module",
}


def _region_of(arn: Any) -> str | None:
    parts = arn.split(":") if isinstance(arn, str) else []
    return parts[3] if len(parts) > 5 and parts[3] else None
