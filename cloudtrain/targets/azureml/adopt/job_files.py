"""Turn job files of `az ml job create`, and the output of `az ml job show`, into the body that
azure-ai-ml 1.35.2 sends.

Files are read as YAML 1.1, as Azure ML's tools read them: `flag: yes` is true, and is sent as the
text `True`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from cloudtrain.documents.document import Unreadable, load_toml, read_document, read_text
from cloudtrain.errors import UsageError, did_you_mean
from cloudtrain.job.data import DataType
from cloudtrain.targets.adoption import Original
from cloudtrain.targets.azureml.compile.job import PRIORITIES, SERVICES
from cloudtrain.targets.azureml.compile.places import SCHEMES
from cloudtrain.targets.azureml.parts import JsonMapping, JsonObject, camel, duration_text
from cloudtrain.targets.azureml.reading import KINDS

_WORKSPACE = re.compile(
    r"/subscriptions/(?P<subscription_id>[^/]+)/resource[gG]roups/(?P<resource_group>[^/]+)"
    r"/providers/Microsoft\.MachineLearningServices/workspaces/(?P<workspace>[^/]+)"
)

TABLES = load_toml(Path(__file__).parent.with_name("export.toml").read_text("utf-8"))
"""The names that azure-ai-ml has for the parts of a job."""

_KINDS: dict[str, str] = TABLES["kinds"]
_IDENTITIES: dict[str, str] = TABLES["identities"]
_MODES = {word: mode for mode, word in (TABLES["input_modes"] | TABLES["output_modes"]).items()}
_MODES |= {"mount": "ReadWriteMount"}

_KEYS = frozenset(TABLES["keys"]["command"].split())
_READ_ONLY = frozenset(TABLES["keys"]["shown"].split())
"""Fields that only `az ml job show` prints."""

_SINGLE_BRACES = re.compile(r"(?<!\{)\{(inputs|outputs|search_space)\.([^}]*)\}(?!\})")
"""The older form of a reference. azure-ai-ml 1.35.2 sends it as `${{...}}`."""

CONDA_FILE = "conda.yml"


def originals_in_job_file(data: JsonMapping, folder: str | None) -> list[Original]:
    """Return the command jobs of a job file, such as a sweep's trial or a pipeline's steps; empty
    if the data is not a job file. Raises `UsageError` if it is a job file of Azure ML without a
    command job."""
    kind = _kind_of(data)
    if kind == "command":
        is_shown = "id" in data or "creation_context" in data
        title = "the output of `az ml job show`" if is_shown else "a command job file of Azure ML"
        return [_original(data, title, folder, {})]
    if kind == "sweep":
        return [_sweep(data, folder)]
    if kind == "pipeline":
        return list(_steps(data, folder))
    if kind is not None:
        raise not_a_command(kind)
    return []


def not_a_command(kind: str) -> UsageError:
    title = _KINDS.get(kind, f"a job of the type `{kind}`")
    hint = "cloudtrain adopts command jobs; `cloudtrain init` writes a job file to fill in by hand"
    return UsageError(
        f"the document is {title} of Azure ML, not a command job", hint=hint, code="CT981"
    )


def _kind_of(data: JsonMapping) -> str | None:
    """Return the type of object that an Azure ML file describes, such as `command` or `sweep`; None
    for other files."""
    schema, kind = str(data.get("$schema", "")).lower(), str(data.get("type", "")).lower()
    if "azureml" in schema or "azuremlschemas" in schema:
        name = schema.rpartition("/")[2].partition(".")[0]
        if name.startswith("command") and "component" not in name:
            return "command"
        own = (word for word in ("sweep", "pipeline") if f"{word}job" in name)
        return next(own, None) or next((word for word in _KINDS if word in name), "command")
    if kind in ("command", "sweep", "pipeline", *_KINDS):
        signs = {"command", "trial", "jobs", "environment", "compute", "experiment_name"}
        return kind if signs & data.keys() else None
    if (
        kind == ""
        and isinstance(data.get("command"), str)
        and {"environment", "compute", "code"} & data.keys()
    ):
        return "command"
    return None


def _original(
    data: JsonMapping, kind: str, folder: str | None, lost: Mapping[str, str]
) -> Original:
    unknown = {
        key: f"Azure ML's command jobs have no key `{key}`: {did_you_mean(key, _KEYS)}"
        for key in data
        if key not in _KEYS | _READ_ONLY
    }
    files: dict[str, str] = {}
    if unknown_keys := _unknown_of_distribution(data):
        unknown |= unknown_keys
        rest = {
            key: value
            for key, value in data["distribution"].items()
            if f"distribution.{key}" not in unknown_keys
        }
        data = {**data, "distribution": rest}
    for name, key in _OLDER_FORMS.items():
        if isinstance(data.get(name), Mapping):
            unknown[name] = (
                f"Azure ML's tools refuse this older form: write the value of `{key}` alone"
            )
            data = {**data, name: data[name].get(key)}
    unknown |= dict(_refused_inputs(data))
    if str(data.get("compute")).lower() in ("local", "azureml:local"):
        unknown["compute"] = (
            "`local` is Docker on this machine; `cloudtrain submit --target local` needs no Docker"
        )
        data = {key: value for key, value in data.items() if key != "compute"}
    if str(data.get("code")).startswith("git+"):
        unknown["code"] = (
            "the code is in a repository: clone it, and name its folder in `source_dir`"
        )
    body = body_of(data, folder, files)
    return Original(
        "azureml",
        {
            "properties": body
            | {"environmentVariables": variable_texts(body["environmentVariables"])}
        },
        str(data.get("name") or ""),
        kind,
        workspace_in(data),
        files,
        folder,
        lost={**unknown, **lost},
    )


def _unknown_of_distribution(data: JsonMapping) -> dict[str, str]:
    """azure-ai-ml refuses a file with such a key."""
    fields = mapping(data.get("distribution"))
    kind = str(fields.get("type", "")).lower()
    keys = (
        TABLES["distribution_keys"][kind].split()
        if kind in TABLES["distribution_keys"]
        else fields.keys()
    )
    reason = f"Azure ML's distribution `{kind}` has no such key, and its tools refuse the file"
    return {f"distribution.{key}": reason for key in fields if key not in (*keys, "type")}


def _refused_inputs(data: JsonMapping) -> Iterator[tuple[str, str]]:
    """Yield the inputs with which azure-ai-ml 1.35.2 refuses a file, each with the reason."""
    for name, item in mapping(data.get("inputs")).items():
        if not isinstance(item, Mapping) or "value" in item:
            continue
        if item.get("type", "uri_folder") not in get_args(DataType):
            yield (
                f"inputs.{name}",
                f"Azure ML's tools refuse the type `{item['type']}`: write the value alone",
            )
        elif not item.get("path"):
            yield f"inputs.{name}", "Azure ML's tools refuse an input without a path"


_OLDER_FORMS = {"code": "local_path", "compute": "target"}


def _sweep(data: JsonMapping, folder: str | None) -> Original:
    trial = data.get("trial")
    if not isinstance(trial, Mapping):
        hint = (
            "adopt the file that it names: `cloudtrain adopt "
            f"{str(trial or 'TRIAL').removeprefix('file:')}`"
        )
        raise UsageError("the sweep's trial is defined in another file", hint=hint, code="CT981")
    whole = _original(
        {**{key: data[key] for key in data if key in _KEYS - {"type", "limits"}}, **trial},
        "",
        folder,
        {},
    )
    early, limits = mapping(data.get("early_termination")), mapping(data.get("limits"))
    algorithm = data.get("sampling_algorithm")
    words = dict(algorithm) if isinstance(algorithm, Mapping) else {"type": algorithm or "random"}
    search: JsonObject = {
        "searchSpace": {
            name: _expression(mapping(item))
            for name, item in mapping(data.get("search_space")).items()
        },
        "samplingAlgorithm": {
            "samplingAlgorithmType": str(words.pop("type", "")).capitalize(),
            **words,
        },
        "objective": {camel(key): value for key, value in mapping(data.get("objective")).items()},
        "limits": {
            camel(key): duration_text(value)
            if "timeout" in key and isinstance(value, int)
            else value
            for key, value in limits.items()
        },
    }
    if early:
        policy = "".join(map(str.capitalize, str(early.pop("type", "")).split("_")))
        search["earlyTermination"] = {
            "policyType": policy,
            **{camel(key): value for key, value in early.items()},
        }
    body = whole.request["properties"] | search
    return replace(whole, request={"properties": body}, kind="a sweep file of Azure ML")


def _expression(space: JsonMapping) -> list[Any]:
    """Return a range as the API writes it: its kind, and the list of its arguments."""
    if "values" in space:
        return [space.get("type"), [space["values"]]]
    return [
        space.get("type"),
        [
            space[key]
            for key in ("mu", "sigma", "upper", "min_value", "max_value", "q")
            if key in space
        ],
    ]


def _steps(data: JsonMapping, folder: str | None) -> Iterator[Original]:
    jobs = mapping(data.get("jobs"))
    defaults = mapping(data.get("settings"))
    inline = {
        name: job for name, job in jobs.items() if isinstance(job, Mapping) and "command" in job
    }
    if not inline:
        elsewhere = [
            str(job["component"])
            for job in jobs.values()
            if isinstance(job, Mapping) and "component" in job
        ]
        names = ", ".join(f"`{name}`" for name in elsewhere[:5]) or "other files"
        hint = f"write a job file for a step with `cloudtrain init`; its command is in {names}"
        raise UsageError(
            "the pipeline's steps are components, not command jobs", hint=hint, code="CT981"
        )
    others = {f"jobs.{name}": why_left_out(job) for name, job in jobs.items() if name not in inline}
    for name, job in inline.items():
        compute = job.get("compute") or data.get("compute") or defaults.get("default_compute")
        step = {key: value for key, value in job.items() if key != "type"}
        step |= {"name": name} | ({"compute": compute} if compute else {})
        bound = [
            key for key, value in mapping(job.get("inputs")).items() if "${{parent." in str(value)
        ]
        lost = {
            f"inputs.{key}": "the pipeline gives this input; write a place or a value"
            for key in bound
        } | others
        inputs = {
            key: ("FROM-PIPELINE" if key in bound else item)
            for key, item in mapping(job.get("inputs")).items()
        }
        yield _original(
            step | {"inputs": inputs},
            f"the step {name} of a pipeline file of Azure ML",
            folder,
            lost,
        )


def why_left_out(step: object) -> str:
    component = str(mapping(step).get("component") or mapping(step).get("componentId") or "")
    if not component:
        kind = mapping(step).get("type")
        what = f"a job of the type `{kind}`" if kind else "the step"
        return f"{what} is not a command job; write a job for it: `cloudtrain init`"
    return (
        f"its command is in `{component.removeprefix('file:')}`; write a job for it: "
        "`cloudtrain init`"
    )


def body_of(data: JsonMapping, folder: str | None, files: dict[str, str]) -> JsonObject:
    """Return the body that the SDK sends for a job file. Parts that must be separate files, such as
    an inline conda definition, are added to `files`."""
    code, compute = _place(data.get("code")), data.get("compute")
    if isinstance(compute, str) and not compute.startswith("azureml://"):
        compute = compute.removeprefix("azureml:")
    limits, identity = mapping(data.get("limits")), mapping(data.get("identity"))
    body = {
        "jobType": "Command",
        "displayName": data.get("display_name"),
        "experimentName": data.get("experiment_name") or (Path(folder).name if folder else None),
        "description": data.get("description"),
        "command": _SINGLE_BRACES.sub(r"${{\1.\2}}", str(data.get("command", ""))),
        "codeId": code,
        "environmentId": _environment(data.get("environment"), code, folder, files),
        "computeId": compute,
        "distribution": _distribution(mapping(data.get("distribution"))),
        "resources": _resources(mapping(data.get("resources"))),
        "limits": {"jobLimitsType": "Command", "timeout": duration_text(int(limits["timeout"]))}
        if isinstance(limits.get("timeout"), int)
        else None,
        "queueSettings": _queue(mapping(data.get("queue_settings"))),
        "identity": {
            "identityType": _IDENTITIES.get(
                str(identity.get("type", "")).lower(), identity.get("type")
            ),
            "clientId": identity.get("client_id"),
            "objectId": identity.get("object_id"),
            "resourceId": identity.get("msi_resource_id") or identity.get("resource_id"),
        }
        if identity
        else None,
        "services": {
            name: _service(mapping(item)) for name, item in mapping(data.get("services")).items()
        },
        "inputs": {name: _input(item) for name, item in mapping(data.get("inputs")).items()},
        "outputs": {
            name: _output(mapping(item)) for name, item in mapping(data.get("outputs")).items()
        },
        "environmentVariables": mapping(data.get("environment_variables")),
        "properties": mapping(data.get("properties")),
        "tags": {key: _text(value) for key, value in mapping(data.get("tags")).items()},
        "parentJobName": data.get("parent_job_name"),
    }
    return {key: _without_none(value) for key, value in body.items() if value is not None}


def variable_texts(variables: object) -> dict[str, str]:
    """azure-ai-ml 1.35.2 sends numbers and booleans as they are, and a variable of a process is a
    text."""
    return {
        key: item if isinstance(item, str) else json.dumps(item)
        for key, item in mapping(variables).items()
    }


def _text(value: object) -> str:
    """Convert a value to text as the SDK does: in Python's notation."""
    return "" if value is None else str(value)


def _environment(fields: object, code: object, folder: str | None, files: dict[str, str]) -> Any:
    if isinstance(fields, str) and fields.startswith("file:"):
        fields = _environment_file(fields.removeprefix("file:"), folder)
    if not isinstance(fields, Mapping):
        return fields
    # the SDK ignores `name` and `version` in a job file
    keys = ("asset_name", "asset_version", "description")
    definition: JsonObject = {key: str(fields[key]) for key in keys if fields.get(key) is not None}
    definition["tags"] = {key: _text(value) for key, value in mapping(fields.get("tags")).items()}
    build = fields.get("build")
    if isinstance(build, Mapping):
        path = _from_code(str(build.get("path", ".")), code, folder)
        return definition | {
            "build": {"path": path, "dockerfilePath": build.get("dockerfile_path")}
        }
    definition["image"] = fields.get("image")
    conda = fields.get("conda_file")
    if isinstance(conda, Mapping):
        import yaml

        files[CONDA_FILE] = yaml.safe_dump(dict(conda), sort_keys=False)
        return definition | {"condaFile": files[CONDA_FILE], "condaPath": CONDA_FILE}
    if isinstance(conda, str):
        place = os.path.join(folder or ".", conda.removeprefix("file:"))
        text = _conda_text(place)
        # the job's source folder is then that of its new file, which may be elsewhere
        if code is None:
            files[CONDA_FILE] = text
        path = CONDA_FILE if code is None else _from_code(conda, code, folder)
        return definition | {"condaFile": text, "condaPath": path}
    return definition


def _environment_file(path: str, folder: str | None) -> JsonObject:
    """Paths become relative to the job file's folder."""
    import yaml

    place = os.path.join(folder or ".", path)
    try:
        text = read_text(place)
        read_document(text, "yaml")  # it refuses deep nesting, and aliases that multiply
        data = yaml.safe_load(text)
    except (
        OSError,
        Unreadable,
        yaml.YAMLError,
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
    ):
        hint = "create the file at that path, or mend its YAML"
        raise UsageError(
            f"the environment file `{place}` cannot be read", hint=hint, code="CT981"
        ) from None
    definition, beside = mapping(data), os.path.dirname(path)
    if isinstance(definition.get("conda_file"), str):
        definition["conda_file"] = os.path.join(
            beside, definition["conda_file"].removeprefix("file:")
        )
    build = definition.get("build")
    if isinstance(build, Mapping):
        path = os.path.join(beside, str(build.get("path", ".")))
        definition["build"] = {**build, "path": path}
    return definition


def _conda_text(place: str) -> str:
    try:
        return read_text(place)
    except (OSError, Unreadable):
        raise UsageError(
            f"the conda file `{place}` cannot be read",
            hint="create the file at that path, or correct the path",
            code="CT981",
        ) from None


def _from_code(path: str, code: object, folder: str | None) -> str:
    """Convert a path that is relative to the job file's folder into one that is relative to the
    code's folder. If the code is not a local folder, the path stays relative to the job file's
    folder."""
    start = os.path.join(folder or ".", code if isinstance(code, str) and is_local(code) else ".")
    return os.path.relpath(os.path.join(folder or ".", path.removeprefix("file:")), start)


def _distribution(fields: JsonMapping) -> JsonObject | None:
    if not fields:
        return None
    kind = str(fields.get("type", ""))
    rest = {camel(key): value for key, value in fields.items() if key != "type"}
    if kind.lower() == "tensorflow":
        rest = {"parameterServerCount": 0} | rest
    return {"distributionType": KINDS.get(kind.lower(), kind), **rest}


def _resources(fields: JsonMapping) -> JsonObject | None:
    if not fields:
        return None
    resources = {camel(key): value for key, value in fields.items() if key != "docker_args"}
    if isinstance(fields.get("properties"), Mapping):
        pairs = fields["properties"].items()
        resources["properties"] = {
            TABLES["renamed_resources"].get(key.lower(), key): value for key, value in pairs
        }
    arguments = fields.get("docker_args")
    if isinstance(arguments, list):
        resources["dockerArgsList"] = arguments
    elif arguments is not None:
        resources["dockerArgs"] = arguments
    return (
        {"instanceCount": 1} | resources
        if "instance_type" in fields or "shm_size" in fields or arguments
        else resources
    )


def _queue(fields: JsonMapping) -> JsonObject | None:
    tier, priority = fields.get("job_tier"), fields.get("priority")
    queue = {
        "jobTier": str(tier).capitalize() if tier else None,
        "priority": PRIORITIES.get(str(priority).lower()) if priority else None,
    }
    return queue if fields else None


def _service(fields: JsonMapping) -> JsonObject:
    kind = str(fields.get("type") or fields.get("job_service_type") or "")
    properties = {
        "sshPublicKeys": fields.get("ssh_public_keys"),
        "logDir": fields.get("log_dir"),
        **mapping(fields.get("properties")),
    }
    return {
        "jobServiceType": SERVICES.get(kind.lower(), kind),
        "nodes": {"nodesValueType": "All"} if fields.get("nodes") == "all" else None,
        "properties": _without_none(properties) or None,
        "port": fields.get("port"),
    }


def _input(fields: object) -> JsonObject:
    if not isinstance(fields, Mapping):
        return {"jobInputType": "literal", "value": _text(fields)}
    if "path" not in fields and "value" in fields:
        return {"jobInputType": "literal", "value": _text(fields["value"])}
    return {"jobInputType": str(fields.get("type") or "uri_folder"), **_data(fields)}


def _data(fields: JsonMapping) -> JsonObject:
    mode = fields.get("mode")
    return {
        "uri": _place(fields.get("path")),
        "mode": _MODES.get(str(mode).lower(), mode) if mode else None,
    }


def is_local(place: str) -> bool:
    return not place.startswith((*SCHEMES, "azureml:", "/subscriptions/", "git+", "run:"))


def _place(path: object) -> object:
    """Remove `azureml:` from a path or URL. The SDK adds this prefix to both when it prints a
    job."""
    rest = path.removeprefix("azureml:") if isinstance(path, str) else ""
    is_place = rest.startswith((".", "/", *SCHEMES)) and not rest.startswith(
        ("//", "/subscriptions/")
    )
    return rest if is_place else path


def _output(fields: JsonMapping) -> JsonObject:
    return {
        "jobOutputType": str(fields.get("type") or "uri_folder"),
        **_data(fields),
        "assetName": fields.get("name"),
        "assetVersion": _text(fields["version"]) if fields.get("version") is not None else None,
        "description": fields.get("description"),
    }


def _without_none(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {key: _without_none(item) for key, item in value.items() if item is not None}


def mapping(value: object) -> JsonObject:
    return dict(value) if isinstance(value, Mapping) else {}


def workspace_in(value: object) -> dict[str, str]:
    """Return the subscription, resource group and workspace in the first id that contains all
    three."""
    match = _WORKSPACE.search(str(value))
    return match.groupdict() if match else {}
