"""Convert the body of a command job to the fields that azure-ai-ml's YAML and Python objects share.

If azure-ai-ml cannot send a body, cloudtrain names the fields that cause it. All facts about azure-ai-ml are those of
version 1.35.2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cloudtrain.errors import TargetError
from cloudtrain.targets.azureml.compile.durations import duration_seconds, duration_text
from cloudtrain.targets.azureml.compile.identifiers import parse_label
from cloudtrain.targets.azureml.export.words import (
    Convert,
    Wordless,
    constant,
    count,
    each,
    flag,
    kinds,
    mapping,
    not_empty,
    one_of,
    part,
    text,
    texts,
)

ALWAYS = (
    "displayName", "experimentName", "command", "environmentId", "inputs", "outputs", "environmentVariables",
    "properties", "tags", "isArchived",
)  # fmt: skip
"""Fields that the tool requires, or always sends because it fills in missing ones."""

_WRITTEN_EMPTY = ("inputs", "outputs", "environment_variables", "properties", "tags")

INPUT_MODES = {
    "ReadOnlyMount": "ro_mount",
    "ReadWriteMount": "rw_mount",
    "Download": "download",
    "Direct": "direct",
    "EvalMount": "eval_mount",
    "EvalDownload": "eval_download",
}
OUTPUT_MODES = {"ReadWriteMount": "rw_mount", "Upload": "upload", "Direct": "direct"}
TIERS = {"Spot": "spot", "Basic": "basic", "Standard": "standard", "Premium": "premium", "Null": "null"}
PRIORITIES = {1: "low", 2: "medium", 3: "high"}

SERVICE_SETTINGS = {"ssh": ("sshPublicKeys", "ssh_public_keys"), "tensor_board": ("logDir", "log_dir")}
"""Maps each type of service to the only property for which the tool has a separate name."""

_DATA = ("uri_file", "uri_folder", "mltable", "mlflow_model", "custom_model", "triton_model")
_RENAMED_RESOURCES = {
    "aisupercomputer": "AISuperComputer", "singularity": "AISuperComputer", "itp": "itp",
    "target_selector": "target_selector",
}  # fmt: skip
"""Properties of resources that the tool rewrites in its own spelling."""


def job_of(request: Mapping[str, Any], run_name: str) -> dict[str, Any]:
    """Return the job with the fields of `command(...)` and of the YAML schema, such as `compute` and `limits.timeout`.

    Inputs that are plain values become strings. Empty mappings that azure-ai-ml adds itself are left out.

    Raises:
        TargetError: azure-ai-ml cannot express a field; the message names the field.
    """
    try:
        found = _JOB(request["properties"])
        _check_command(found["command"], found["inputs"])
    except Wordless as error:
        raise refuse(error.paths) from None
    written = {name: value for name, value in found.items() if value != {} or name not in _WRITTEN_EMPTY}
    return {"name": run_name, **written}


def refuse(paths: Iterable[str], tool: str = "the SDK of Azure ML") -> TargetError:
    """Return an error that names the fields that a tool cannot express, with a hint on how to send them anyway."""
    names = ", ".join(f"`{path}`" for path in paths)
    hint = "send the body itself: `cloudtrain submit`, or `az rest --method put` with the output of `--format request`"
    return TargetError(f"{tool} cannot express {names}", hint=hint, code="CT904")


def _id(value: Any) -> str:
    """Return an asset's id as azure-ai-ml expects it; refuse other texts.

    azure-ai-ml sends complete ids and short names of curated environments unchanged, and resolves the label for an
    asset's newest version as `cloudtrain submit` does. For other texts, it would look something up or upload something
    before it sends the job.
    """
    if not text(value).startswith(("/subscriptions/", "azureml://", "azureml:AzureML-")):
        raise Wordless("")
    return write_label(value)


def write_label(value: Any) -> str:
    """Shorten an id with the label `latest` to `mine@latest`; return any other id or address unchanged."""
    label = parse_label(text(value))
    return f"{label.name}@latest" if label else str(value)


def _compute(value: Any) -> str:
    if text(value) in ("", "local"):  # `local` would start the job on the user's own machine
        raise Wordless("")
    return str(value)


def _seconds(value: Any) -> int:
    """Return the seconds of an ISO 8601 duration; refuse one that azure-ai-ml would write in another way."""
    seconds = duration_seconds(text(value))
    if not seconds or duration_text(seconds) != value:
        raise Wordless("")
    return seconds


def _resources(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = _RESOURCES(value)
    lost = [name for name in ("locations", "maxInstanceCount") if name in value]
    if "dockerArgsList" in value and lost:
        raise Wordless(*(f"{name} beside dockerArgsList" for name in lost))
    renamed = [name for name in value["properties"] if _RENAMED_RESOURCES.get(name.lower(), name) != name]
    if renamed:
        raise Wordless(*(f"properties.{name}" for name in renamed))
    if not found["properties"]:
        del found["properties"]
    return found


_RESOURCES = part(
    {
        "instanceCount": ("instance_count", count),
        "instanceType": ("instance_type", text),
        "locations": ("locations", texts),
        "maxInstanceCount": ("max_instance_count", count),
        "shmSize": ("shm_size", text),
        "dockerArgs": ("docker_args", text),
        "dockerArgsList": ("docker_args", texts),
        "properties": ("properties", mapping),
    },
    always=("properties",),
)


def _add_type(kind: str, convert: Convert) -> Convert:
    """Return a function that converts a value with `convert`, and adds the field `type` with the value `kind`."""
    return lambda value: {"type": kind, **convert(value)}


_PROCESSES = part({"processCountPerInstance": ("process_count_per_instance", count)})
_SERVERS = part(
    {
        "parameterServerCount": ("parameter_server_count", count),
        "workerCount": ("worker_count", count),
    },
    always=("parameterServerCount",),
)
_RAY = part(
    {
        "port": ("port", count),
        "address": ("address", text),
        "includeDashboard": ("include_dashboard", flag),
        "dashboardPort": ("dashboard_port", count),
        "headNodeAdditionalArgs": ("head_node_additional_args", text),
        "workerNodeAdditionalArgs": ("worker_node_additional_args", text),
    }
)
_DISTRIBUTIONS = {
    "PyTorch": _add_type("pytorch", _PROCESSES),
    "Mpi": _add_type("mpi", _PROCESSES),
    "TensorFlow": _add_type("tensorflow", _SERVERS),
    "Ray": _add_type("ray", _RAY),
}

_IDENTITIES = {
    "Managed": _add_type("managed_identity", part({"clientId": ("client_id", text), "objectId": ("object_id", text)})),
    "UserIdentity": _add_type("user_identity", part({})),
    "AMLToken": _add_type("aml_token", part({})),
}

_INPUT = part({"uri": ("path", write_label), "mode": ("mode", one_of(INPUT_MODES))}, always=("uri",))
_LITERAL = part({"value": ("value", text)}, always=("value",))
_INPUTS: dict[str, Convert] = {name: _add_type(name, _INPUT) for name in _DATA}
_INPUTS["literal"] = lambda value: _LITERAL(value)["value"]

_OUTPUT = part(
    {
        "uri": ("path", text),
        "mode": ("mode", one_of(OUTPUT_MODES)),
        "assetName": ("name", text),
        "assetVersion": ("version", text),
    }
)
_OUTPUTS = {name: _add_type(name, _OUTPUT) for name in _DATA}


def _service(kind: str) -> Callable[[Any], dict[str, Any]]:
    def convert(value: Any) -> dict[str, Any]:
        found = {"type": kind, **_SERVICE(value)}
        setting, word = SERVICE_SETTINGS.get(kind, ("", ""))
        if list(found.get("properties", ())) == [setting] and found["properties"][setting]:
            found[word] = found.pop("properties")[setting]
        return found

    return convert


_NODES = kinds("nodesValueType", {"All": lambda value: part({})(value) or "all"})
_SERVICE = part({"nodes": ("nodes", _NODES), "port": ("port", count), "properties": ("properties", each(text))})
_SERVICES = {
    "SSH": _service("ssh"),
    "TensorBoard": _service("tensor_board"),
    "JupyterLab": _service("jupyter_lab"),
    "VSCode": _service("vs_code"),
}

_JOB = part(
    {
        "jobType": ("", constant("Command")),
        "isArchived": ("", constant(False)),
        "displayName": ("display_name", text),
        "experimentName": ("experiment_name", text),
        "description": ("description", text),
        "command": ("command", text),
        "codeId": ("code", _id),
        "environmentId": ("environment", _id),
        "environmentVariables": ("environment_variables", mapping),
        "inputs": ("inputs", each(kinds("jobInputType", _INPUTS))),
        "outputs": ("outputs", each(kinds("jobOutputType", _OUTPUTS))),
        "computeId": ("compute", _compute),
        "resources": ("resources", _resources),
        "distribution": ("distribution", kinds("distributionType", _DISTRIBUTIONS)),
        "limits": (
            "limits",
            part(
                {"jobLimitsType": ("", constant("Command")), "timeout": ("timeout", _seconds)},
                always=("jobLimitsType", "timeout"),
            ),
        ),
        "queueSettings": (
            "queue_settings",
            not_empty(part({"jobTier": ("job_tier", one_of(TIERS)), "priority": ("priority", one_of(PRIORITIES))})),
        ),
        "identity": ("identity", kinds("identityType", _IDENTITIES)),
        "services": ("services", not_empty(each(kinds("jobServiceType", _SERVICES)))),
        "parentJobName": ("parent_job_name", text),
        "tags": ("tags", each(text)),
        "properties": ("properties", each(text)),
    },
    always=ALWAYS,
)

_OLD_REFERENCE = re.compile(r"(?<!\{)\{(?:inputs|outputs|search_space)\.[^}]*\}(?!\})")
"""Matches texts that the tool rewrites into a reference before it sends a command."""

_REFERENCE = re.compile(r"\$\{\{inputs\.([\w.-]+)\}\}")
"""Matches references that the tool looks up among the inputs, and refuses if they name none."""


def _check_command(command: str, inputs: Mapping[str, Any]) -> None:
    wordless = [match[0] for match in _OLD_REFERENCE.finditer(command)]
    wordless += [match[0] for match in _REFERENCE.finditer(command) if match[1] not in inputs]
    if wordless:
        raise Wordless(*(f"{words} in command" for words in dict.fromkeys(wordless)))
