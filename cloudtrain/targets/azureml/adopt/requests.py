"""Turn Azure ML's command jobs into cloudtrain jobs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from pathlib import Path as File
from typing import Any

from cloudtrain.job.data import is_local_path
from cloudtrain.job.distribution import Ray
from cloudtrain.job.script import job_name_from
from cloudtrain.plans.comparison import ValuePath, overrides_between
from cloudtrain.plans.plan import CompileContext, Plan
from cloudtrain.targets.adoption import UNREAD, Comparable, Draft, Original, draft_context
from cloudtrain.targets.azureml.adopt.hook import CODE
from cloudtrain.targets.azureml.adopt.job_files import (
    is_local,
    not_a_command,
    originals_in_job_file,
    variable_texts,
    why_left_out,
    workspace_in,
)
from cloudtrain.targets.azureml.adopt.sweeps import (
    OF_SEARCH,
    canonical,
    lifted,
    start_of_trials,
    with_search,
)
from cloudtrain.targets.azureml.compile.job import (
    EVENTS,
    IDENTITIES,
    PRIORITIES,
    RUN_PROPERTY,
    SERVICES,
)
from cloudtrain.targets.azureml.compile.places import INPUT_MODES, LOCAL_UPLOAD, OUTPUT_MODES
from cloudtrain.targets.azureml.parts import (
    MODELS,
    UNNAMED,
    JsonMapping,
    JsonObject,
    asset_id,
    camel,
    compute_id,
    duration_seconds,
    present,
)
from cloudtrain.targets.azureml.reading import DEFAULT_EXPERIMENT, Body
from cloudtrain.targets.azureml.settings import AzureML, account_of
from cloudtrain.targets.common.compiling import hyperparameter_text

# Find command jobs in documents: the body of a PUT, the service's answer, a job file of `az ml`.

_READ_ONLY = frozenset(
    {"status", "jobStatus", "creationContext", "logFiles", "parameters", "componentId", "warnings"}
)
"""Fields that the service adds to a body in its answer."""

_ADDED: Mapping[str, Callable[[str, Any], bool]] = {
    "services": lambda name, _: name in ("Tracking", "Studio"),
    "properties": lambda name, _: name.startswith(
        ("_azureml.", "ContentSnapshotId", "ProcessInfoFile", "ProcessStatus")
    ),
    "tags": lambda name, _: name.startswith("_aml_system_"),
    "outputs": lambda name, item: name == "default" and "/ExperimentRun/dcid." in str(item),
}
"""What the service adds to fields of a body: names and values."""


def originals_in(data: object, folder: str | None) -> list[Original]:
    """Return the command jobs of a document; empty if it does not come from Azure ML. Raises
    `UsageError` if it comes from Azure ML but contains no command job."""
    if isinstance(data, list):
        return [original for item in data for original in originals_in(item, folder)]
    if not isinstance(data, Mapping):
        return []
    properties = data.get("properties")
    if isinstance(properties, Mapping) and "jobType" in properties:
        return list(_from_body(data, properties, folder))
    return [with_search(item) for item in originals_in_job_file(data, folder)]


def _from_body(
    data: JsonMapping, properties: JsonMapping, folder: str | None
) -> Iterator[Original]:
    kind = str(properties["jobType"]).lower()
    identity = str(data.get("id", ""))
    name = str(data.get("name") or identity.rpartition("/")[2] or "")
    settings = workspace_in(data)
    is_answer = "id" in data or "status" in properties or "systemData" in data
    words = "what the service says of a command job" if is_answer else "the body of a command job"
    if kind in ("command", "sweep"):
        body = {key: value for key, value in lifted(properties).items() if key not in _READ_ONLY}
        body |= {
            key: variable_texts(body[key]) for key in ("environmentVariables",) if body.get(key)
        }
        if is_answer:
            body |= {
                field: {
                    key: value for key, value in body[field].items() if not is_added(key, value)
                }
                or None
                for field, is_added in _ADDED.items()
                if isinstance(body.get(field), Mapping)
            }
        words = words if kind == "command" else "the body of a sweep"
        yield with_search(
            Original("azureml", {"properties": body}, name, words, settings, folder=folder)
        )
    elif kind == "pipeline":
        yield from _steps(properties, name, settings, folder)
    else:
        raise not_a_command(kind)


def _steps(
    properties: JsonMapping, name: str, settings: JsonMapping, folder: str | None
) -> Iterator[Original]:
    jobs = properties.get("jobs") or {}
    inline = {
        step: job for step, job in jobs.items() if isinstance(job, Mapping) and "command" in job
    }
    lost = {f"jobs.{step}": why_left_out(job) for step, job in jobs.items() if step not in inline}
    for step, job in inline.items():
        body = {"jobType": "Command", **{key: value for key, value in job.items() if key != "type"}}
        kind = f"step {step} of the pipeline {name}".rstrip()
        yield Original(
            "azureml", {"properties": body}, step, kind, settings, folder=folder, lost=lost
        )


# Convert the body of a command job into a cloudtrain job and settings of the target: the inverse of
# `compile/request`.
#
# This module leaves out details without a matching job field; the later comparison puts them into
# the overrides.

_INPUT_MODES = {
    word: {"mode": mode} | ({"access": "rw"} if access == "rw" else {})
    for (mode, access), word in INPUT_MODES.items()
}
_OUTPUT_MODES = {word: mode for mode, word in OUTPUT_MODES.items()} | {"Mount": "mount"}
_PRIORITIES = {word: name for name, word in PRIORITIES.items()}
_IDENTITIES = {word: name for name, word in IDENTITIES.items()}
_EVENTS = {word: name for name, word in EVENTS.items()}
_SERVICES = {word: name for name, word in SERVICES.items()}

ENVIRONMENT_WORDS = ("asset_name", "asset_version", "description", "tags")
"""What a definition of an environment says of the asset, under the names of the job's fields."""


def drafts_of(original: Original) -> Iterator[Draft]:
    body, comments = Body(original.request), dict[ValuePath, str]()
    properties = body.properties
    title = (
        original.name
        or properties.get("displayName")
        or properties.get("experimentName")
        or "training"
    )
    name = job_name_from(str(title))
    if original.name and name != original.name:
        comments[("name",)] = f"was {original.name!r}; every run of cloudtrain adds its own ending"
    job: JsonObject = {"name": name}
    if properties.get("description") is not None:
        job["description"] = properties["description"]
    job["source_dir"] = _source(original, properties.get("codeId"), comments)
    job["command"] = properties.get("command", "")
    variables = variable_texts(body.mapping("environmentVariables"))
    optional = {
        "distribution": _distribution(body, comments),
        "resources": _resources(body),
        "environment": _environment(properties.get("environmentId"))
        | ({"variables": variables} if variables else {}),
        "inputs": {key: _input(_mapping(item)) for key, item in body.mapping("inputs").items()},
        "outputs": {key: _output(_mapping(item)) for key, item in body.mapping("outputs").items()},
        "spot": {} if body.is_spot else None,
        "max_runtime": body.max_runtime,
        "tags": {
            key: value
            for key, value in _mapping(properties.get("tags")).items()
            if isinstance(value, str)
        },
    }
    job |= {
        key: value
        for key, value in optional.items()
        if value or (key == "spot" and value is not None)
    }
    if original.search is not None:
        searched = original.search.fields["search"]
        start = start_of_trials(str(original.request["sweep"].get("command")), searched)
        inputs = {key: item for key, item in job.pop("inputs", {}).items() if key not in searched}
        own = {key: _parse(text) for key, text in start.pop("hyperparameters", {}).items()}
        job = {
            "name": name,
            "source_dir": job.pop("source_dir"),
            **start,
            "hyperparameters": own,
            **job,
            "inputs": inputs,
        }
        job = {
            key: value
            for key, value in job.items()
            if key != "command" and (value != {} or key == "spot")
        }
    yield Draft(job, _settings(original, body), comments)


def _source(original: Original, code: object, comments: dict[ValuePath, str]) -> str | None:
    """None if the body has no `codeId` (`code`). If its folder is unknown, return `.` and add to
    `comments`."""
    if code is None:
        return None
    if original.code is not None or original.source is not None:
        return original.source or "code"
    text = str(code)
    if is_local(text):
        return text.removeprefix("file://")
    comments[("source_dir",)] = (
        f"guessed: the folder of the job's code, which was\n  {text}\n"
        f"To fetch it: az ml job download --name {original.name or 'NAME'} --all, or from the "
        "job's page in the studio"
    )
    return "."


def _distribution(body: Body, comments: dict[ValuePath, str]) -> JsonObject:
    if body.kind in ("PyTorch", "Mpi"):
        if body.distribution.get("processCountPerInstance") is None:
            comments[("distribution",)] = (
                "the body leaves the processes of each instance to the service, which starts "
                "one; give it the GPUs of\n"
                "an instance, and remove `distribution` from the overrides"
            )
        kind = "torch" if body.kind == "PyTorch" else "mpi"
        return {"type": kind, "processes_per_instance": body.processes_per_instance}
    if body.kind == "TensorFlow":
        servers, workers = body.parameter_servers, body.distribution.get("workerCount")
        more = {"strategy": "parameter_server", "parameter_servers": servers} if servers else {}
        return {
            "type": "tensorflow",
            **more,
            **({"workers": workers} if workers is not None else {}),
        }
    if body.kind == "Ray":
        fields = {
            name: body.distribution.get(camel(name)) for name in Ray.model_fields if name != "type"
        }
        return {"type": "ray", **present(fields)}
    return {}


def _resources(body: Body) -> JsonObject:
    resources = body.mapping("resources")
    fields = {
        "instance_count": resources.get("instanceCount"),
        "instance_type": {"azureml": body.instance_type} if body.instance_type else None,
        "shm_size": resources.get("shmSize") or None,
    }
    return present(fields)


def _environment(environment: object) -> JsonObject:
    """Return the job's `environment`: a registered one, or a definition."""
    if isinstance(environment, Mapping):
        words = {name: environment[name] for name in ENVIRONMENT_WORDS if environment.get(name)}
        build = environment.get("build")
        if isinstance(build, Mapping):
            file = str(build.get("dockerfilePath") or "Dockerfile")
            return {
                "build": build["path"],
                **({"dockerfile": file} if file != "Dockerfile" else {}),
                **words,
            }
        image = {"image": {"azureml": environment.get("image", "")}}
        return (
            image
            | ({"conda_file": environment["condaPath"]} if "condaPath" in environment else {})
            | words
        )
    text = str(environment or "")
    if text and not text.startswith(("azureml:", "/")):
        text = f"azureml:{text}"
    return {"azureml": text} if text else {}


def _input(item: JsonMapping) -> JsonObject:
    kind = item.get("jobInputType", "uri_folder")
    if kind == "literal":
        return {"value": _parse(item.get("value"))}
    place = with_prefix(item.get("uri", ""))
    if place.startswith("/subscriptions/"):
        place = f"azureml:{place}"  # without it, a job would mean a path on this machine
    if is_local(place):
        path = place.removeprefix("file://").removeprefix("file:")
        place = path if is_local_path(path) else f"./{path}"
    own_type = {} if kind == "uri_folder" else {"type": kind}
    return {"azureml": place, **own_type, **_INPUT_MODES.get(item.get("mode", ""), {})}


def with_prefix(uri: object) -> str:
    """Return a reference to an asset as `azureml:NAME:VERSION`, and any other address unchanged."""
    text = str(uri)
    prefix = text.partition(":")[0]
    short = text.count(":") == 1 and "/" not in text and prefix not in ("azureml", "http", "https")
    return (
        f"azureml:{text}"
        if short or ("@" in text and "/" not in text and ":" not in text)
        else text
    )


def _parse(text: object) -> object:
    """Convert a text that is written like a number or a boolean; return any other text
    unchanged."""
    if not isinstance(text, str):
        return text
    for kind in (int, float, {"True": True, "False": False}.__getitem__):
        with suppress(ValueError, KeyError):
            value = kind(text)
            if isfinite(value) and hyperparameter_text(value) == text:
                return value
    return text


def _output(item: JsonMapping) -> JsonObject:
    kind = item.get("jobOutputType", "uri_folder")
    fields = {
        "azureml": item.get("uri"),
        "type": kind if kind != "uri_folder" else None,
        "mode": _OUTPUT_MODES.get(item.get("mode", "")),
        "asset_name": item.get("assetName"),
        "asset_version": item.get("assetVersion"),
    }
    return present(fields)


def _settings(original: Original, body: Body) -> JsonObject:
    resources, identity = body.mapping("resources"), body.mapping("identity")
    notifications, tier = body.mapping("notificationSetting"), body.tier.lower()
    settings = {
        **original.settings,
        "compute": _compute(body.properties.get("computeId"), original),
        "experiment": body.experiment,
        "display_name": body.properties.get("displayName"),
        "job_tier": tier if tier in ("basic", "standard", "premium") else None,
        "priority": _PRIORITIES.get(body.mapping("queueSettings").get("priority", 0)),
        "identity": _IDENTITIES.get(str(identity.get("identityType", ""))),
        "managed_identity_client_id": identity.get("clientId"),
        "managed_identity_resource_id": identity.get("resourceId"),
        "docker_args": resources.get("dockerArgs") or resources.get("dockerArgsList"),
        "locations": resources.get("locations"),
        "max_instance_count": resources.get("maxInstanceCount"),
        "services": {
            key: _service(_mapping(item)) for key, item in body.mapping("services").items()
        },
    }
    if notifications.get("emails"):
        events = [
            _EVENTS[event] for event in notifications.get("emailOn") or _EVENTS if event in _EVENTS
        ]
        settings["notifications"] = {"emails": notifications["emails"], "on": events}
    return {name: value for name, value in settings.items() if value not in (None, {}, [])}


def _compute(compute: object, original: Original) -> str | None:
    if not compute:
        return None
    text = str(compute).removeprefix("azureml:")
    head, _, name = text.partition("/computes/")
    return (
        name
        if name and head.endswith(f"/workspaces/{original.settings.get('workspace')}")
        else text
    )


def _service(service: JsonMapping) -> JsonObject:
    kind, properties = str(service.get("jobServiceType")), _mapping(service.get("properties"))
    fields = {
        "type": _SERVICES.get(kind, kind),
        "all_instances": True
        if _mapping(service.get("nodes")).get("nodesValueType") == "All"
        else None,
        "ssh_public_key": properties.get("sshPublicKeys"),
        "log_dir": properties.get("logDir"),
    }
    return present(fields)


def _mapping(value: object) -> JsonObject:
    return (
        {key: item for key, item in value.items() if key != RUN_PROPERTY}
        if isinstance(value, Mapping)
        else {}
    )


# The Azure ML part of `cloudtrain adopt`.

_CODE = "(the code's own place)"
_DATA = "(the data's own place)"


class AzureMLAdopter:
    """Adopts command jobs, from their request bodies or from documents that contain them."""

    originals = staticmethod(originals_in)
    drafts = staticmethod(drafts_of)

    def context(self, original: Original, settings: AzureML) -> CompileContext:
        """The workspace that is configured on this machine is ignored."""
        account = account_of(settings, {"AZURE_CONFIG_DIR": "/nonexistent"}, File("/nonexistent"))
        environment = original.request["properties"].get("environmentId")
        conda = environment.get("condaFile") if isinstance(environment, Mapping) else None
        build = UNREAD if isinstance(environment, Mapping) and "build" in environment else None
        return draft_context(original.name or "job", account, conda=conda, build=build)

    def comparable(
        self, request: JsonMapping, original: Original, context: CompileContext, plan: Plan | None
    ) -> Comparable:
        """Short ids become the full ids that the SDK sends. The property that marks cloudtrain's
        runs is left out, and a fixed text replaces the code's id."""
        body: JsonObject = json.loads(json.dumps(request["properties"]))
        changes = [("name", "every run gets a name of its own")]
        if original.search is not None:
            body = canonical(request.get("sweep") or lifted(body))
            changes.append(
                ("command", "cloudtrain sorts the options, and a variable asks for the metrics")
            )
        properties = body.get("properties") or {}
        properties.pop(RUN_PROPERTY, None)
        if plan is not None:
            changes.append(
                (f"properties.{RUN_PROPERTY}", "the property makes the run known to cloudtrain")
            )
        if body.get("codeId") is not None:
            body["codeId"] = _CODE
            changes.append(("codeId", "cloudtrain uploads the code under the hash of its content"))
        if body.get("displayName") in (None, context.run_name):
            body.pop("displayName", None)
            changes.append(("displayName", "the run's name is used if the job has no display name"))
        body.setdefault("experimentName", DEFAULT_EXPERIMENT)
        body["environmentId"] = self._environment(body.get("environmentId"), context, plan, changes)
        workspace = context.account.workspace_id
        if body.get("computeId"):
            body["computeId"] = compute_id(workspace, body["computeId"])
        for item in (body.get("inputs") or {}).values():
            if isinstance(item, dict) and item.get("uri"):
                uri, kind = (
                    with_prefix(item["uri"]),
                    "models" if item.get("jobInputType") in MODELS else "data",
                )
                if is_local(uri) or uri.startswith(f"{LOCAL_UPLOAD}/{UNREAD}/"):
                    uri = _DATA
                    changes.append(
                        ("inputs", "data of this machine is uploaded under the hash of its content")
                    )
                item["uri"] = asset_id(workspace, uri, kind) or uri
        # the service's word for a body without a tier
        if (body.get("queueSettings") or {}).get("jobTier") == "Null":
            del body["queueSettings"]["jobTier"]
        for key, value in (body.get("limits") or {}).items():
            if (
                key.lower().endswith("timeout")
                and value is not None
                and duration_seconds(value) is not None
            ):
                body["limits"] = {**body["limits"], key: f"PT{duration_seconds(value)}S"}
        return Comparable({"properties": _without_empty(body)}, tuple(changes))

    def _environment(
        self,
        environment: object,
        context: CompileContext,
        plan: Plan | None,
        changes: list[tuple[str, str]],
    ) -> Any:
        """Return the definition of an environment that is not registered yet, or the complete id of
        a registered environment. If the id is different in each submission, add its field to
        `changes`."""
        if isinstance(environment, Mapping):
            if not environment.get("asset_version"):
                why = (
                    "cloudtrain names the environment by a hash of its definition; the SDK "
                    "uses another hash"
                )
                changes.append(("environmentId", why))
            return {"defined as": _definition(environment)}
        upload = (
            next((item for item in plan.uploads if item.destination == environment), None)
            if plan
            else None
        )
        if upload is not None and upload.content is not None:
            definition = json.loads(upload.content)["properties"]
            if upload.folder is not None:
                definition["build"]["path"] = upload.folder
            *_, name, _, version = str(environment).split("/")
            if name != UNNAMED:
                definition |= {
                    "asset_name": name,
                    "asset_version": None if version == upload.sha256[:32] else version,
                }
            return {"defined as": _definition(definition)}
        text = str(environment or "")
        return asset_id(context.account.workspace_id, text, "environments") or text

    def overrides(self, ours: JsonMapping, theirs: JsonMapping) -> JsonObject:
        """The code's id, and an environment that is not registered yet, are left out."""
        target = {name: {} for name in _MAPPINGS if name in ours["properties"]} | theirs[
            "properties"
        ]
        overrides = overrides_between(ours["properties"], target)
        for name in ("limits", *OF_SEARCH) if "searchSpace" in target else ():
            overrides.pop(name, None)
        if isinstance(overrides.get("environmentId"), Mapping):
            del overrides["environmentId"]
        if overrides.get("codeId") == _CODE:
            del overrides["codeId"]
        return overrides

    def hook(self) -> str:
        return File(__file__).with_name("hook.py").read_text(encoding="utf-8")

    def home(self, environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
        yield from ()  # jobs name their workspace themselves

    def captured(
        self, record: JsonMapping, uploads: Mapping[str, bytes]
    ) -> tuple[list[Original], bytes | None]:
        workspace = {
            str(name): str(value) for name, value in (record.get("workspace") or {}).items()
        }
        originals = originals_in(record.get("job"), None)
        places = [str(item.request["properties"].get("codeId") or "") or None for item in originals]
        jobs = [
            replace(
                item,
                settings={**workspace, **item.settings},
                source=place if place and is_local(place) else None,
            )
            for item, place in zip(originals, places, strict=True)
        ]
        return jobs, uploads.get(CODE)

    def reason(self, path: ValuePath) -> str:
        field = str(path[1]) if len(path) > 1 else ""
        return _REASONS.get(field, "a job has no field for this")


def _definition(fields: JsonMapping) -> JsonObject:
    """Return an environment's definition, with the parsed content of its conda file instead of the
    file's text."""
    definition: JsonObject = {
        key: fields[key] for key in ("image", *ENVIRONMENT_WORDS) if fields.get(key)
    }
    if fields.get("condaFile"):
        import yaml

        definition["condaFile"] = json.loads(
            json.dumps(yaml.safe_load(fields["condaFile"]), default=str)
        )
    build = fields.get("build")
    if isinstance(build, Mapping):
        definition["build"] = {
            "path": build.get("path"),
            "dockerfilePath": build.get("dockerfilePath") or "Dockerfile",
        }
    return definition


def _without_empty(value: Any) -> Any:
    """Return the value without null and empty fields and `isArchived: false`, which the service
    treats as missing."""
    if not isinstance(value, Mapping):
        return value
    fields = {
        key: _without_empty(item)
        for key, item in value.items()
        if not (key == "isArchived" and item is False)
    }
    return {key: item for key, item in fields.items() if item not in (None, {}, [])}


_MAPPINGS = ("environmentVariables", "inputs", "outputs", "tags", "properties")
"""Fields that must stay mappings in a body: their entries are removed one by one."""

_REASONS = {
    "environmentId": "the environment has no version or definition that a job can contain"
} | dict.fromkeys(OF_SEARCH, "a sweep has no field for it")
