"""Split a CreateHyperParameterTuningJob request into the training job of its trials and the fields of a sweep."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from cloudtrain.core.script import job_name_from
from cloudtrain.targets.sagemaker.compile.sweep import LONGEST_NAME
from cloudtrain.targets.sagemaker.launch import keys

OF_SEARCH = ("HyperParameterTuningJobConfig", "WarmStartConfig")
"""Fields of a tuning job's request in addition to the training job."""

_STAMP = re.compile(r"-\d{6}-\d{4}$")
"""Matches the time at the end of a tuning job's name, which the SDK adds."""

_HASH = len("-00000000-00")


def flat(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tuning job's request in the form of a training job's request.

    The fields of the search are added in a canonical form, so that equal searches compare equal.
    """
    definition = dict(request["TrainingJobDefinition"])
    found = {
        "TrainingJobName": request.get("HyperParameterTuningJobName", "tuning"),
        "HyperParameters": definition.pop("StaticHyperParameters", {}),
        "ResourceConfig": definition.pop("HyperParameterTuningResourceConfig", definition.get("ResourceConfig")),
        **definition,
        **{name: request[name] for name in ("Tags", *OF_SEARCH) if request.get(name)},
    }
    config = json.loads(json.dumps(found.get(OF_SEARCH[0], {})))
    ranges = config.get("ParameterRanges", {})
    config["ParameterRanges"] = {kind: sorted(rows, key=_name) for kind, rows in sorted(ranges.items()) if rows}
    if config.get("Strategy") == "Grid":  # which ends by itself
        config.get("ResourceLimits", {}).pop("MaxNumberOfTrainingJobs", None)
    config.setdefault("TrainingJobEarlyStoppingType", "Off")
    return {name: value for name, value in found.items() if value is not None} | {OF_SEARCH[0]: config}


def sweep_fields(request: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields of a sweep except its job; None if a sweep cannot express the search."""
    try:
        return dict(_fields(request))
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


def _fields(request: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    config = request["HyperParameterTuningJobConfig"]
    objective, limits = config["HyperParameterTuningJobObjective"], config["ResourceLimits"]
    strategy = config["Strategy"].lower()
    is_script = keys.PROGRAM in request["TrainingJobDefinition"].get("StaticHyperParameters", {})
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


def _ranges(ranges: Mapping[str, Any], *, is_script: bool) -> Iterator[tuple[str, Any]]:
    for row in ranges.get("ContinuousParameterRanges", ()):
        kind = {"Logarithmic": "log", "Linear": "uniform", "Auto": "uniform"}[row.get("ScalingType", "Auto")]
        yield row["Name"], {kind: [float(row["MinValue"]), float(row["MaxValue"])]}
    for row in ranges.get("IntegerParameterRanges", ()):
        if row.get("ScalingType", "Auto") not in ("Linear", "Auto"):
            raise ValueError("for whole numbers, a sweep supports only a linear scale")
        yield row["Name"], {"int": [int(row["MinValue"]), int(row["MaxValue"])]}
    for row in ranges.get("CategoricalParameterRanges", ()):
        yield row["Name"], [json.loads(text) if is_script else text for text in row["Values"]]


def _name(row: Mapping[str, Any]) -> str:
    return str(row.get("Name"))
