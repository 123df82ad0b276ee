"""Split a request's hyperparameters into two groups: those that the SDK adds to run a script, and the user's own."""

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
    """The script that the container's toolkit starts, the address of its code, and the other hyperparameters.

    `channels` are the user's channels, without the code channel that the SDK adds to a network-isolated job.
    """

    entry_point: str
    source_dir: str
    log_level: int
    values: dict[str, Any]
    channels: list[dict[str, Any]]


def script_of(request: dict[str, Any], region: str) -> Script | None:
    """Return the script of a request; None if the SDK's estimator for scripts would not send this request."""
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
    """Return the code archive's S3 address if the last channel is exactly the SDK's code channel; None otherwise."""
    last = channels[-1] if channels else {}
    uri = last.get("DataSource", {}).get("S3DataSource", {}).get("S3Uri")
    return uri if uri is not None and last == isolated_code(uri) else None


def _decode(hyperparameters: dict[str, str]) -> dict[str, Any] | None:
    """Decode the hyperparameters from JSON; None if the SDK's encoder would write one of them differently."""
    values = {}
    for name, text in hyperparameters.items():
        try:
            values[name] = json.loads(text)
        except ValueError:
            return None
        if json.dumps(values[name]) != text:
            return None
    return values
