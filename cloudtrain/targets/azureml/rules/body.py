"""The fields that the body of a command job can have, and the accepted values of each field.

The fields come from the models of the REST API in azure-ai-ml 1.35.2 (version 2025-01-01-preview), plus fields that the
SDK's code sends: `parentJobName`, `priority`, `locations`, `maxInstanceCount` and Ray's fields. The field names are
those of the API.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cloudtrain.errors import did_you_mean
from cloudtrain.targets.azureml.rules.view import Path


class Named(NamedTuple):
    """The schema of a mapping whose keys the user chooses, such as `tags`; `value` is the schema of its values."""

    value: Any


class Fields(NamedTuple):
    """The schema of a mapping with fixed keys. `known` maps the API's field names to the schemas of their values."""

    known: Mapping[str, Any]


class OneOf(NamedTuple):
    """The schema of a text that must be one of `words`, in upper or lower case."""

    words: tuple[str, ...]


TEXT, WHOLE, TRUTH, LIST, ANY = "a text", "a whole number", "`true` or `false`", "a list", ""
"""The kinds of values, as messages name them; another rule checks `ANY`."""

_MATCHES = {TEXT: str, WHOLE: int, TRUTH: bool, LIST: list | tuple}

_INPUT = Fields(
    {
        "jobInputType": OneOf(
            ("literal", "uri_file", "uri_folder", "mltable", "custom_model", "mlflow_model", "triton_model")
        ),
        "description": TEXT,
        "mode": OneOf(("ReadOnlyMount", "ReadWriteMount", "Download", "Direct", "EvalMount", "EvalDownload")),
        "pathOnCompute": TEXT,
        "uri": TEXT,
        "value": TEXT,
    }
)

_OUTPUT = Fields(
    {
        "jobOutputType": OneOf(("uri_file", "uri_folder", "mltable", "custom_model", "mlflow_model", "triton_model")),
        "assetName": TEXT,
        "assetVersion": TEXT,
        "autoDeleteSetting": ANY,
        "description": TEXT,
        "mode": OneOf(("ReadWriteMount", "Upload", "Direct")),
        "pathOnCompute": TEXT,
        "uri": TEXT,
    }
)

_DISTRIBUTION = Fields(
    {
        "distributionType": OneOf(("PyTorch", "Mpi", "TensorFlow", "Ray")),
        "processCountPerInstance": ANY,
        "parameterServerCount": ANY,
        "workerCount": ANY,
        **dict.fromkeys(("address", "headNodeAdditionalArgs", "workerNodeAdditionalArgs"), TEXT),
        **dict.fromkeys(("port", "dashboardPort"), WHOLE),
        "includeDashboard": TRUTH,
    }
)

_SERVICE = Fields(
    {
        "endpoint": TEXT,
        "errorMessage": TEXT,
        "jobServiceType": OneOf(("SSH", "TensorBoard", "JupyterLab", "VSCode")),
        "nodes": Fields({"nodesValueType": OneOf(("All",))}),
        "port": WHOLE,
        "properties": Named(TEXT),
        "status": TEXT,
    }
)

BODY = Fields(
    {
        "jobType": OneOf(("Command",)),
        **dict.fromkeys(("codeId", "command", "componentId", "computeId", "environmentId"), TEXT),
        **dict.fromkeys(("description", "displayName", "experimentName", "parentJobName"), TEXT),
        "autologgerSettings": ANY,
        "distribution": _DISTRIBUTION,
        "environmentVariables": Named(ANY),
        "identity": Fields(
            {
                "identityType": OneOf(("Managed", "AMLToken", "UserIdentity")),
                **dict.fromkeys(("clientId", "objectId", "resourceId"), TEXT),
            }
        ),
        "inputs": Named(_INPUT),
        "isArchived": TRUTH,
        "limits": Fields({"jobLimitsType": OneOf(("Command",)), "timeout": ANY}),
        "notificationSetting": Fields({"emailOn": LIST, "emails": LIST, "webhooks": ANY}),
        "outputs": Named(_OUTPUT),
        "properties": Named(TEXT),
        "queueSettings": Fields(
            {"jobTier": OneOf(("Null", "Spot", "Basic", "Standard", "Premium")), "priority": WHOLE}
        ),
        "resources": Fields(
            {
                "dockerArgs": TEXT,
                "dockerArgsList": LIST,
                "instanceCount": ANY,
                "instanceType": TEXT,
                "locations": LIST,
                "maxInstanceCount": WHOLE,
                "properties": ANY,
                "shmSize": ANY,
            }
        ),
        "secretsConfiguration": ANY,
        "services": Named(_SERVICE),
        "tags": Named(TEXT),
    }
)


@dataclass(frozen=True)
class Violation:
    """A field or value in the body that the API does not accept. `is_unknown`: the API has no such field."""

    path: Path
    message: str
    hint: str | None
    is_unknown: bool = False


def violations(value: Any, kind: Any = BODY, path: Path = ()) -> Iterator[Violation]:
    """Yield the violations of the schema `kind` in `value`, in the order of its fields.

    `path` is the path of `value` in the body.
    """
    if isinstance(kind, Fields | Named):
        if isinstance(value, Mapping):
            yield from _inside(value, kind, path)
        else:
            yield Violation(
                path, f"{_show_path(path)} must be a mapping, not `{value}`", "write it as `{FIELD: VALUE}`"
            )
    elif isinstance(kind, OneOf):
        if not isinstance(value, str) or value.casefold() not in map(str.casefold, kind.words):
            yield Violation(path, f"{_show_path(path)} cannot be `{value}`", did_you_mean(str(value), kind.words))
    elif kind != ANY and (not isinstance(value, _MATCHES[kind]) or (kind == WHOLE and isinstance(value, bool))):
        shown = str(value).lower() if isinstance(value, bool) else value
        hint = f'write `"{shown}"`' if kind == TEXT and isinstance(value, int | float) else f"write {kind}"
        yield Violation(path, f"{_show_path(path)} must be {kind}, not `{shown}`", hint)


def _inside(value: Mapping[str, Any], kind: Fields | Named, path: Path) -> Iterator[Violation]:
    for name, item in value.items():
        if isinstance(kind, Named):
            yield from violations(item, kind.value, (*path, name))
        elif name in kind.known:
            yield from violations(item, kind.known[name], (*path, name))
        else:
            hint = did_you_mean(name.replace("_", ""), kind.known)
            where = f"{_show_path(path)} has no field" if path else "a job has no field"
            yield Violation((*path, name), f"{where} `{name}` in Azure ML's API", hint, is_unknown=True)


def _show_path(path: Path) -> str:
    return f"`{'.'.join(map(str, path))}`"
