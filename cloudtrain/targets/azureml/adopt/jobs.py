"""Convert the body of a command job into a cloudtrain job and settings of the target: the inverse of `compile/request`.

This module leaves out details without a matching job field; the later comparison puts them into the overrides.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from cloudtrain.core.adoption import Draft, Original
from cloudtrain.core.distribution import Ray
from cloudtrain.core.references import is_local_path
from cloudtrain.core.script import job_name_from
from cloudtrain.targets.azureml.compile.distributions import camel
from cloudtrain.targets.azureml.compile.durations import duration_seconds
from cloudtrain.targets.azureml.compile.places import SCHEMES
from cloudtrain.targets.azureml.compile.request import RUN_PROPERTY
from cloudtrain.targets.common.compiling import hyperparameter_text

_INPUT_MODES = {
    "ReadOnlyMount": {"mode": "mount"},
    "ReadWriteMount": {"mode": "mount", "access": "rw"},
    "Download": {"mode": "download"},
    "Direct": {"mode": "direct"},
    "EvalMount": {"mode": "eval_mount"},
    "EvalDownload": {"mode": "eval_download"},
}
_OUTPUT_MODES = {"ReadWriteMount": "mount", "Mount": "mount", "Upload": "upload", "Direct": "direct"}
_PRIORITIES = {1: "low", 2: "medium", 3: "high"}
_IDENTITIES = {"UserIdentity": "user", "Managed": "managed", "AMLToken": "aml_token"}
_EVENTS = {"JobCompleted": "completed", "JobFailed": "failed", "JobCancelled": "cancelled"}
_SERVICES = {"SSH": "ssh", "TensorBoard": "tensor_board", "JupyterLab": "jupyter_lab", "VSCode": "vs_code"}

ENVIRONMENT_WORDS = ("asset_name", "asset_version", "description", "tags")
"""What a definition of an environment says of the asset, under the names of the job's fields."""

DEFAULT_EXPERIMENT = "Default"
"""The experiment that the service chooses for a body that names none."""


def drafts_of(original: Original) -> Iterator[Draft]:
    """Yield the one job that compiles to the original's body."""
    body: Mapping[str, Any] = original.request["properties"]
    comments: dict[tuple[str | int, ...], str] = {}
    title = original.name or body.get("displayName") or body.get("experimentName") or "training"
    name = job_name_from(str(title))
    if original.name and name != original.name:
        comments[("name",)] = f"was {original.name!r}; every run of cloudtrain adds its own ending"
    job: dict[str, Any] = {"name": name}
    if body.get("description") is not None:
        job["description"] = body["description"]
    job["source_dir"] = _source(original, body.get("codeId"), comments)
    job["command"] = body.get("command", "")
    distribution = _distribution(_mapping(body.get("distribution")), comments)
    if distribution:
        job["distribution"] = distribution
    job["resources"] = _resources(_mapping(body.get("resources")))
    job["environment"] = _environment(body.get("environmentId"))
    variables = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in _mapping(body.get("environmentVariables")).items()
    }
    if variables:
        job["environment"]["variables"] = variables
    inputs = {key: _input(_mapping(item)) for key, item in _mapping(body.get("inputs")).items()}
    outputs = {key: _output(_mapping(item)) for key, item in _mapping(body.get("outputs")).items()}
    seconds = duration_seconds(str(_mapping(body.get("limits")).get("timeout", "")))
    optional = {
        "resources": job.pop("resources"),
        "environment": job.pop("environment"),
        "inputs": inputs,
        "outputs": outputs,
        "spot": {} if _mapping(body.get("queueSettings")).get("jobTier") == "Spot" else None,
        "max_runtime": seconds,
        "tags": {key: value for key, value in _mapping(body.get("tags")).items() if isinstance(value, str)},
    }
    job |= {key: value for key, value in optional.items() if value or (key == "spot" and value is not None)}
    yield Draft(job, _settings(original, body), comments)


def _source(original: Original, code: Any, comments: dict[Any, str]) -> str | None:
    """Return the job's `source_dir`; None if the body has no code. `code` is the body's `codeId`. If the folder of the
    code is unknown, return `.` and add a comment to `comments`.
    """
    if code is None:
        return None
    if original.code is not None:
        return "code"
    text = str(code)
    if is_local(text):
        return text.removeprefix("file://")
    comments[("source_dir",)] = (
        f"guessed: the folder of the job's code, which was\n  {text}\n"
        f"To fetch it: az ml job download --name {original.name or 'NAME'} --all, or from the job's page in the studio"
    )
    return "."


def is_local(place: str) -> bool:
    """Return whether an address is a path on this machine."""
    return not place.startswith((*SCHEMES, "azureml:", "/subscriptions/", "git+", "run:"))


def _distribution(given: Mapping[str, Any], comments: dict[Any, str]) -> dict[str, Any]:
    kind = str(given.get("distributionType", "")).lower()
    if kind in ("pytorch", "mpi"):
        count = given.get("processCountPerInstance")
        if count is None:
            comments[("distribution",)] = (
                "the body leaves the processes of each instance to the service, which starts one; give it the GPUs of\n"
                "an instance, and remove `distribution` from the overrides"
            )
        return {"type": "torch" if kind == "pytorch" else "mpi", "processes_per_instance": count or 1}
    if kind == "tensorflow":
        servers, workers = given.get("parameterServerCount") or 0, given.get("workerCount")
        more = {"strategy": "parameter_server", "parameter_servers": servers} if servers else {}
        return {"type": "tensorflow", **more, **({"workers": workers} if workers is not None else {})}
    if kind == "ray":
        fields = {name: given.get(camel(name)) for name in Ray.model_fields if name != "type"}
        return {"type": "ray", **{name: value for name, value in fields.items() if value is not None}}
    return {}


def _resources(given: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if given.get("instanceCount") is not None:
        found["instance_count"] = given["instanceCount"]
    if given.get("instanceType"):
        found["instance_type"] = {"azureml": given["instanceType"]}
    if given.get("shmSize"):
        found["shm_size"] = given["shmSize"]
    return found


def _environment(given: Any) -> dict[str, Any]:
    """Return the job's `environment`: a registered one, or a definition."""
    if isinstance(given, Mapping):
        words = {name: given[name] for name in ENVIRONMENT_WORDS if given.get(name)}
        build = given.get("build")
        if isinstance(build, Mapping):
            file = str(build.get("dockerfilePath") or "Dockerfile")
            return {"build": build["path"], **({"dockerfile": file} if file != "Dockerfile" else {}), **words}
        image = {"image": {"azureml": given.get("image", "")}}
        return image | ({"conda_file": given["condaPath"]} if "condaPath" in given else {}) | words
    text = str(given or "")
    if text and not text.startswith(("azureml:", "/")):
        text = f"azureml:{text}"
    return {"azureml": text} if text else {}


def _input(given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("jobInputType") == "literal":
        return {"value": _parse(given.get("value"))}
    place = with_prefix(given.get("uri", ""))
    kind = given.get("jobInputType", "uri_folder")
    if is_local(place):
        path = place.removeprefix("file://").removeprefix("file:")
        place = path if is_local_path(path) else f"./{path}"
    found: dict[str, Any] = {"azureml": place}
    if kind != "uri_folder":
        found["type"] = kind
    return found | _INPUT_MODES.get(given.get("mode", ""), {})


def with_prefix(uri: Any) -> str:
    """Return a reference to an asset as `azureml:NAME:VERSION`, even if `uri` lacks the prefix `azureml:`. Return other
    addresses unchanged.
    """
    text = str(uri)
    named = text.partition(":")[0]
    short = text.count(":") == 1 and "/" not in text and named not in ("azureml", "http", "https")
    return f"azureml:{text}" if short or ("@" in text and "/" not in text and ":" not in text) else text


def _parse(text: Any) -> Any:
    """Convert a text that is written like a number or a boolean; return any other text unchanged."""
    if not isinstance(text, str):
        return text
    for value in (_number(text, int), _number(text, float), {"True": True, "False": False}.get(text)):
        if value is not None and hyperparameter_text(value) == text:
            return value
    return text


def _number(text: str, kind: type[int] | type[float]) -> int | float | None:
    try:
        value = kind(text)
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None


def _output(given: Mapping[str, Any]) -> dict[str, Any]:
    kind, mode = given.get("jobOutputType", "uri_folder"), _OUTPUT_MODES.get(given.get("mode", ""))
    found = {
        "azureml": given.get("uri"),
        "type": kind if kind != "uri_folder" else None,
        "mode": mode,
        "asset_name": given.get("assetName"),
        "asset_version": given.get("assetVersion"),
    }
    return {key: value for key, value in found.items() if value is not None}


def _settings(original: Original, body: Mapping[str, Any]) -> dict[str, Any]:
    resources, queue = _mapping(body.get("resources")), _mapping(body.get("queueSettings"))
    identity = _mapping(body.get("identity"))
    tier = str(queue.get("jobTier") or "").lower()
    notified = _mapping(body.get("notificationSetting"))
    found = {
        **original.settings,
        "compute": _compute(body.get("computeId"), original),
        "experiment": body.get("experimentName") or DEFAULT_EXPERIMENT,
        "display_name": body.get("displayName"),
        "job_tier": tier if tier in ("basic", "standard", "premium") else None,
        "priority": _PRIORITIES.get(queue.get("priority", 0)),
        "identity": _IDENTITIES.get(str(identity.get("identityType", ""))),
        "managed_identity_client_id": identity.get("clientId"),
        "managed_identity_resource_id": identity.get("resourceId"),
        "docker_args": resources.get("dockerArgs") or resources.get("dockerArgsList"),
        "locations": resources.get("locations"),
        "max_instance_count": resources.get("maxInstanceCount"),
        "services": {key: _service(_mapping(item)) for key, item in _mapping(body.get("services")).items()},
    }
    if notified.get("emails"):
        events = [_EVENTS[event] for event in notified.get("emailOn") or _EVENTS if event in _EVENTS]
        found["notifications"] = {"emails": notified["emails"], "on": events}
    return {name: value for name, value in found.items() if value not in (None, {}, [])}


def _compute(given: Any, original: Original) -> str | None:
    if not given:
        return None
    text = str(given).removeprefix("azureml:")
    head, _, name = text.partition("/computes/")
    return name if name and head.endswith(f"/workspaces/{original.settings.get('workspace')}") else text


def _service(given: Mapping[str, Any]) -> dict[str, Any]:
    properties = _mapping(given.get("properties"))
    found = {
        "type": _SERVICES.get(str(given.get("jobServiceType")), str(given.get("jobServiceType"))),
        "all_instances": True if _mapping(given.get("nodes")).get("nodesValueType") == "All" else None,
        "ssh_public_key": properties.get("sshPublicKeys"),
        "log_dir": properties.get("logDir"),
    }
    return {key: value for key, value in found.items() if value is not None}


def _mapping(value: Any) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key != RUN_PROPERTY} if isinstance(value, Mapping) else {}
