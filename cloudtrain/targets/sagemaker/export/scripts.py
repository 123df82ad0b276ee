"""The hyperparameters of a request: what the SDK itself adds for a script, and what the user gave."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from cloudtrain.targets.sagemaker.compile.places import ISOLATED_BUNDLE
from cloudtrain.targets.sagemaker.export.inputs import isolated_code
from cloudtrain.targets.sagemaker.launch import keys

LOG_LEVEL = 20


@dataclass(frozen=True)
class Script:
    """A job that the container's toolkit starts: the script, where its archive is, and all other hyperparameters.

    `channels` are those that the user gives: without the one that the SDK adds for the code of an isolated job.
    """

    entry_point: str
    source_dir: str
    log_level: int
    values: dict[str, Any]
    channels: list[dict[str, Any]]


def script_of(request: dict[str, Any], region: str) -> Script | None:
    """The script of a request, or None where the SDK would not write its hyperparameters in this way."""
    values = _decode(request.get("HyperParameters", {}))
    channels = list(request.get("InputDataConfig", ()))
    if values is None or "ContainerEntrypoint" in request["AlgorithmSpecification"]:
        return None
    program, place = values.pop(keys.PROGRAM, None), values.pop(keys.SUBMIT_DIRECTORY, None)
    level = values.pop(keys.LOG_LEVEL, None)
    names = (values.pop(keys.JOB_NAME, None), values.pop(keys.REGION, None))
    if names != (request["TrainingJobName"], region) or not isinstance(program, str) or not isinstance(level, int):
        return None
    if request.get("EnableNetworkIsolation") is True:
        archive = _isolated_archive(channels) if place == ISOLATED_BUNDLE else None
        return None if archive is None else Script(program, archive, level, values, channels[:-1])
    if not isinstance(place, str) or not place.startswith("s3://"):
        return None
    return Script(program, place, level, values, channels)


def _isolated_archive(channels: list[dict[str, Any]]) -> str | None:
    """The archive of the code channel, if it is just as the SDK writes it: the last one, with no option."""
    last = channels[-1] if channels else {}
    uri = last.get("DataSource", {}).get("S3DataSource", {}).get("S3Uri")
    return uri if uri is not None and last == isolated_code(uri) else None


def _decode(hyperparameters: dict[str, str]) -> dict[str, Any] | None:
    """Hyperparameters by their JSON values; None where one is not the text that the SDK's encoder would give."""
    values = {}
    for name, text in hyperparameters.items():
        try:
            values[name] = json.loads(text)
        except ValueError:
            return None
        if json.dumps(values[name]) != text:
            return None
    return values
