"""Turn job files of `az ml job create`, and the output of `az ml job show`, into the body that
azure-ai-ml 1.35.2 sends.

Files are read as YAML 1.1, as Azure ML's tools read them: `flag: yes` is true, and is sent as the
text `True`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloudtrain.documents.document import Unreadable, load_table, read_document, read_text
from cloudtrain.errors import JobError, Problem, UsageError, dotted
from cloudtrain.targets.adoption import Original
from cloudtrain.targets.azureml.adopt.job_schema import Refusal, refused
from cloudtrain.targets.azureml.compile.places import SCHEMES
from cloudtrain.targets.azureml.fields import (
    DISPLAY_NAME,
    EXPERIMENT,
    FIELDS,
    VARIABLES,
    JsonMapping,
    JsonObject,
    camel,
    duration_text,
    tool_codec,
)
from cloudtrain.targets.azureml.parts import pick, without

_WORKSPACE = (
    r"/subscriptions/(?P<subscription_id>[^/]+)/resource[gG]roups/(?P<resource_group>[^/]+)"
    r"/providers/Microsoft\.MachineLearningServices/workspaces/(?P<workspace>[^/]+)"
)

_KINDS: dict[str, str] = load_table(__file__, "../export.toml")["kinds"]
_SHARED = frozenset(field.word.partition(".")[0] for field in FIELDS if field.word)
"""Fields that the table codes."""

_REFERENCE = r"\{\s*(inputs|outputs|search_space)\.([^}\s]*)\s*\}"
"""A reference in a command, in the older or the newer form."""

_SINGLE_BRACES = re.compile(r"(?<!\{)\{(inputs|outputs|search_space)\.([^}]*)\}(?!\})")
"""The older form of a reference. azure-ai-ml 1.35.2 sends it as `${{...}}`."""

CONDA_FILE = "conda.yml"

MADE_UP = {"display_name": DISPLAY_NAME, "experiment_name": EXPERIMENT}
"""Fields whose values the SDK makes up, in the words of the SDK and of a body."""


def originals_in_job_file(data: JsonMapping, folder: str | None) -> list[Original]:
    """Return the command jobs of a job file, such as a sweep's trial or a pipeline's steps; empty
    if the data is not a job file. Raises `UsageError` if it is a job file of Azure ML without a
    command job. `folder` is None for what azure-ai-ml itself says of a job."""
    kind = _kind_of(data)
    if kind is None:
        return []
    if kind not in ("command", "sweep", "pipeline"):
        raise not_a_command(kind)
    if kind == "pipeline":
        return list(_steps(data, folder))

    is_shown = "id" in data or "creation_context" in data
    if kind == "sweep":
        original = _sweep(data, folder)
    else:
        title = "a command job file of Azure ML"
        if is_shown:
            title = "the output of `az ml job show`"
        original = _original(data, title, folder)
    if folder is None or is_shown:
        return [original]
    lost = {dotted(path): reason for path, reason in _refusals(data, kind, folder)}
    return [replace(original, lost={**lost, **original.lost})]


def _refusals(data: JsonMapping, kind: str, folder: str) -> Iterator[Refusal]:
    """Yield what Azure ML's tools refuse of a file."""
    yield from refused(data, kind)
    trial = ("trial",) if kind == "sweep" else ()
    fields = mapping(data.get("trial")) or data
    for path, reason in _wrong_places(fields, folder):
        yield (*trial, *path), reason
    if data.get("type", "command") != kind:
        yield ("type",), f"Azure ML's tools refuse the file: write `type: {kind}`"
    for word, name in re.findall(_REFERENCE, str(fields.get("command"))):
        if name not in mapping(data.get(word)):
            yield (*trial, "command"), f"the job has no `{word}.{name}`"
    for name, item in mapping(data.get("inputs")).items():
        if isinstance(item, Mapping) and not (item.get("path") or "value" in item):
            yield ("inputs", name, "path"), "the service needs the place of the data"


def _wrong_places(fields: JsonMapping, folder: str) -> Iterator[Refusal]:
    """Yield what Azure ML's tools, or the service, refuse of the code and of the environment among
    `fields`, because of what is in `folder` or of how it is written."""
    code = str(fields.get("code", "azureml:/"))
    has_version = re.match(r"git\+|azureml:/|.*:.*:|.*@", code)
    if not has_version and not os.path.exists(os.path.join(folder, code)):
        yield ("code",), f"`{code}` is not a folder here, or the version is missing"

    environment = fields.get("environment")
    if isinstance(environment, str) and environment.startswith("file:"):
        environment = _environment_file(environment.removeprefix("file:"), folder)
        yield from refused(environment, "environment", ("environment",))
    if not isinstance(environment, Mapping):
        if not str(environment).startswith("azureml:"):
            yield ("environment",), "Azure ML's tools refuse the file: write `azureml:NAME:VERSION`"
        return
    if ("image" in environment) == ("build" in environment):
        yield ("environment",), "Azure ML's tools need either an `image` or a `build`"
    if str(environment.get("conda_file")).startswith("file:"):
        yield ("environment", "conda_file"), "Azure ML's tools refuse the file: remove `file:`"
    build = mapping(environment.get("build"))
    file = os.path.join(str(build.get("path")), str(build.get("dockerfile_path", "Dockerfile")))
    if build and is_local(file) and not os.path.isfile(os.path.join(folder, file)):
        yield ("environment", "build", "path"), f"there is no file `{file}`"


def not_a_command(kind: str) -> UsageError:
    title = _KINDS.get(kind, f"a job of the type `{kind}`")
    hint = "cloudtrain adopts command jobs; `cloudtrain init` writes a job file to fill in by hand"
    return UsageError(
        f"the document is {title} of Azure ML, not a command job", hint=hint, code="CT981"
    )


def _kind_of(data: JsonMapping) -> str | None:
    """Return the type of object that an Azure ML file describes, such as `command` or `sweep`; None
    for other files."""
    schema = str(data.get("$schema", "")).lower()
    kind = str(data.get("type", "")).lower()
    is_job = "job.schema" in schema
    if is_job and not kind and isinstance(data.get("command"), str):
        return "command"  # as Azure ML's tools do, whatever the name of the schema
    if "azureml" in schema and not (is_job and kind in ("command", "sweep", "pipeline")):
        file = schema.rpartition("/")[2].partition(".")[0]
        return next((kind for kind in (*_KINDS, "sweep", "pipeline") if kind in file), "command")

    if kind in ("command", "sweep", "pipeline", *_KINDS):
        signs = {"command", "trial", "jobs", "environment", "compute", "experiment_name"}
        return kind if signs & data.keys() else None

    has_place = {"environment", "compute", "code"} & data.keys()
    if kind == "" and isinstance(data.get("command"), str) and has_place:
        return "command"
    return None


def _original(data: JsonMapping, kind: str, folder: str | None) -> Original:
    """Return a job of `kind` from the fields of a job file, without the parts that no job does in
    the same way."""
    data = dict(data)
    lost: dict[str, str] = {}
    if str(data.get("compute")).lower() in ("local", "azureml:local"):
        lost["compute"] = (
            "`local` is Docker on this machine; `cloudtrain submit --target local` needs no Docker"
        )
        del data["compute"]
    if str(data.get("code")).startswith("git+"):
        lost["code"] = "the code is in a repository: clone it, and name its folder in `source_dir`"

    code = data.get("code")
    source = None
    if folder is not None and isinstance(code, str) and os.path.exists(os.path.join(folder, code)):
        source = code

    files: dict[str, str] = {}
    body = body_of(data, folder, files)
    body[VARIABLES] = variable_texts(body[VARIABLES])
    return Original(
        "azureml",
        {"properties": body},
        str(data.get("name") or ""),
        kind,
        workspace_in(data),
        files,
        folder,
        source,
        lost=lost,
    )


def _sweep(data: JsonMapping, folder: str | None) -> Original:
    """Return the trial of a sweep file, with the search beside the fields of its body."""
    trial = data.get("trial")
    if not isinstance(trial, Mapping):
        file = str(trial or "TRIAL").removeprefix("file:")
        hint = f"adopt the file that it names: `cloudtrain adopt {file}`"
        raise UsageError("the sweep's trial is defined in another file", hint=hint, code="CT981")

    shared = without(data, ("trial", "type", "limits"))
    job = _original({**shared, **trial}, "a sweep file of Azure ML", folder)
    spaces = mapping(data.get("search_space")).items()
    search: JsonObject = {
        "searchSpace": {name: _expression(mapping(item)) for name, item in spaces},
        "samplingAlgorithm": _algorithm(data.get("sampling_algorithm")),
        "objective": _in_camel_case(mapping(data.get("objective"))),
        "limits": _sweep_limits(mapping(data.get("limits"))),
    }
    early = mapping(data.get("early_termination"))
    if early:
        policy = camel(f"_{early.pop('type', '')}")
        search["earlyTermination"] = {"policyType": policy, **_in_camel_case(early)}
    return replace(job, request={"properties": job.request["properties"] | search})


def _in_camel_case(fields: JsonMapping) -> JsonObject:
    return {camel(key): value for key, value in fields.items()}


def _algorithm(algorithm: object) -> JsonObject:
    """Return a `sampling_algorithm`, which is a name or a mapping, as the API writes it."""
    fields = mapping(algorithm) or {"type": algorithm or "random"}
    return {"samplingAlgorithmType": str(fields.pop("type", "")).capitalize(), **fields}


def _sweep_limits(limits: JsonMapping) -> JsonObject:
    """Return the limits of a sweep as the API writes them, with durations as text."""
    body = _in_camel_case(limits)
    for key, value in limits.items():
        if "timeout" in key and isinstance(value, int):
            body[camel(key)] = duration_text(max(value, 60))  # as the SDK does
    return body


def _expression(space: JsonMapping) -> list[Any]:
    """Return a range as the API writes it: its kind, and the list of its arguments."""
    if "values" in space:
        return [space.get("type"), [space["values"]]]
    names = ("mu", "sigma", "upper", "min_value", "max_value", "q")
    return [space.get("type"), list(pick(space, names).values())]


def _steps(data: JsonMapping, folder: str | None) -> Iterator[Original]:
    """Yield the steps of a pipeline file that are commands. Raises `UsageError` if there is
    none."""
    default = mapping(data.get("settings")).get("default_compute")
    commands, others = steps_of(mapping(data.get("jobs")))
    if not commands:
        message = "the pipeline's steps are components, not command jobs"
        hint = next(iter(others.values()), "write a job for a step: `cloudtrain init`")
        raise UsageError(message, hint=hint, code="CT981")

    for name, job in commands.items():
        step = {**job, "name": name}
        step.pop("type", None)
        compute = job.get("compute") or data.get("compute") or default
        if compute:
            step["compute"] = compute

        lost = dict(others)
        for path, reason in [*refused(job, "step"), *_wrong_places(job, folder or ".")]:
            lost[dotted(("jobs", name, *path))] = reason
        inputs = mapping(job.get("inputs"))
        for key, value in inputs.items():
            if "${{parent." in str(value):
                inputs[key] = "FROM-PIPELINE"
                lost[f"inputs.{key}"] = "the pipeline gives this input; write a place or a value"
        step["inputs"] = inputs

        original = _original(step, f"the step {name} of a pipeline file of Azure ML", folder)
        yield replace(original, lost={**lost, **original.lost})


def steps_of(jobs: JsonMapping) -> tuple[dict[str, JsonObject], dict[str, str]]:
    """Return the steps of a pipeline that are commands, and why the others are left out. Each step
    is adopted alone, so each names all others."""
    commands: dict[str, JsonObject] = {}
    lost: dict[str, str] = {}
    for name, job in jobs.items():
        step = mapping(job)
        component = str(step.get("component") or step.get("componentId") or "")
        why = "it is not a command job"
        if component:
            why = f"its command is in `{component.removeprefix('file:')}`"
        if "command" in step:
            commands[name] = step
        else:
            lost[f"jobs.{name}"] = f"{why}; write a job for it: `cloudtrain init`"
    return commands, lost


def body_of(data: JsonMapping, folder: str | None, files: dict[str, str]) -> JsonObject:
    """Return the body that the SDK sends for a job file. Parts that must be separate files, such as
    an inline conda definition, are added to `files`."""
    fields = without(data, data.keys() - _SHARED)
    fields["code"] = _place(data.get("code"))
    fields["environment"] = _environment(data.get("environment"), fields["code"], folder, files)
    if not fields.get("experiment_name") and folder:
        fields["experiment_name"] = Path(folder).name
    fields["command"] = _SINGLE_BRACES.sub(r"${{\1.\2}}", str(data.get("command", "")))
    compute = data.get("compute")
    fields["compute"] = None
    if isinstance(compute, str):
        fields["compute"] = re.sub("^azureml:(?!//)", "", compute)

    for name, complete in _COMPLETED.items():
        fields[name] = complete(mapping(data.get(name))) or None
    for name, complete_one in _ENTRIES.items():
        entries = mapping(data.get(name))
        fields[name] = {key: complete_one(item) for key, item in entries.items()}
    for name in ("environment_variables", "properties"):
        fields[name] = mapping(data.get(name))
    fields["properties"].pop("_azureml.ComputeTargetType", None)  # as the SDK does
    body: JsonObject = tool_codec().encode(_without_none(fields))
    return body


def variable_texts(variables: object) -> dict[str, str]:
    """azure-ai-ml 1.35.2 sends numbers and booleans as they are, and a variable of a process is a
    text."""
    texts: dict[str, str] = {}
    for name, value in mapping(variables).items():
        texts[name] = value if isinstance(value, str) else json.dumps(value)
    return texts


def _text(value: object) -> str:
    """Convert a value to text as the SDK does: in Python's notation."""
    return "" if value is None else str(value)


def _environment(fields: object, code: object, folder: str | None, files: dict[str, str]) -> Any:
    """Return the definition of an environment. A reference to a registered one stays unchanged."""
    if isinstance(fields, str) and fields.startswith("file:"):
        fields = _environment_file(fields.removeprefix("file:"), folder)
    if not isinstance(fields, Mapping):
        return fields

    definition: JsonObject = {}
    # the SDK ignores `name` and `version` in a job file
    for key in ("asset_name", "asset_version", "description"):
        if fields.get(key) is not None:
            definition[key] = str(fields[key])
    tags = mapping(fields.get("tags"))
    definition["tags"] = {key: _text(value) for key, value in tags.items()}

    build = fields.get("build")
    if isinstance(build, Mapping):
        path = _from_code(str(build.get("path", ".")), code, folder)
        definition["build"] = {"path": path, "dockerfilePath": build.get("dockerfile_path")}
        return definition

    definition["image"] = fields.get("image")
    conda = fields.get("conda_file")
    if isinstance(conda, Mapping):
        import yaml

        plain = json.loads(json.dumps(conda))  # without dates, which the reader marks
        text = yaml.safe_dump(plain, sort_keys=False)
    elif isinstance(conda, str):
        text = _conda_text(os.path.join(folder or ".", conda.removeprefix("file:")))
    else:
        return definition

    definition |= {"condaFile": text, "condaPath": CONDA_FILE}
    if isinstance(conda, str) and code is not None:
        definition["condaPath"] = _from_code(conda, code, folder)
    else:  # without code, the job's source folder is that of its new file, which may be elsewhere
        files[CONDA_FILE] = text
    return definition


def _environment_file(path: str, folder: str | None) -> JsonObject:
    """Read an environment file. The paths in it become relative to the job file's folder."""
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
        message = f"the environment file `{place}` cannot be read"
        raise JobError([Problem(("environment",), message, hint, code="CT981")]) from None

    definition = mapping(data)
    beside = os.path.dirname(path)
    conda = definition.get("conda_file")
    if isinstance(conda, str):
        definition["conda_file"] = os.path.join(beside, conda.removeprefix("file:"))
    build = definition.get("build")
    if isinstance(build, Mapping):
        folder_path = os.path.join(beside, str(build.get("path", ".")))
        definition["build"] = {**build, "path": folder_path}
    return definition


def _conda_text(place: str) -> str:
    try:
        return read_text(place)
    except (OSError, Unreadable):
        message = f"the conda file `{place}` cannot be read"
        hint = "create the file at that path, or correct the path"
        path = ("environment", "conda_file")
        raise JobError([Problem(path, message, hint, code="CT981")]) from None


def _from_code(path: str, code: object, folder: str | None) -> str:
    """Convert a path that is relative to the job file's folder into one that is relative to the
    code's folder. If the code is not a local folder, the path stays relative to the job file's
    folder."""
    base = folder or "."
    start = base
    if isinstance(code, str) and is_local(code):
        start = os.path.join(base, code)
    place = os.path.join(base, path.removeprefix("file:"))
    return os.path.relpath(place, start)


# What azure-ai-ml fills in before it sends the parts of a job file.


def _distribution(fields: JsonObject) -> JsonObject:
    if str(fields.get("type", "")).lower() == "tensorflow":
        fields.setdefault("parameter_server_count", 0)
    return fields


def _resources(fields: JsonObject) -> JsonObject:
    if "instance_type" in fields or "shm_size" in fields or fields.get("docker_args"):
        fields.setdefault("instance_count", 1)
    if isinstance(fields.get("docker_args"), list):  # beside it, the SDK sends neither
        return without(fields, ("locations", "max_instance_count"))
    return fields


def _limits(fields: JsonObject) -> JsonObject:
    timeout = fields.get("timeout")
    return {"timeout": timeout} if isinstance(timeout, int) and timeout > 0 else {}


_COMPLETED = {
    "distribution": _distribution,
    "resources": _resources,
    "limits": _limits,
}


def _service(fields: object) -> JsonObject:
    return without(mapping(fields), ("endpoint", "status", "error_message"))


def _input(fields: object) -> object:
    if not isinstance(fields, Mapping):
        return _text(fields)
    if "path" not in fields and "value" in fields:
        return _text(fields["value"])
    return _data(fields)


def _data(fields: JsonMapping) -> JsonObject:
    """Return what inputs and outputs have in common."""
    return {
        "type": str(fields.get("type") or "uri_folder"),
        "path": _place(fields.get("path")),
        "mode": fields.get("mode") or None,
    }


def _output(fields: object) -> JsonObject:
    given = mapping(fields)
    output = _data(given) | pick(given, ("name",))
    if given.get("version") is not None:
        output["version"] = _text(given["version"])
    return output


_ENTRIES: Mapping[str, Callable[[object], object]] = {
    "services": _service,
    "inputs": _input,
    "outputs": _output,
    "tags": _text,
}


def is_local(place: str) -> bool:
    """Return whether a text is a path of this machine, not an address or an id."""
    return not place.startswith((*SCHEMES, "azureml:", "/subscriptions/", "git+", "run:"))


def _place(path: object) -> object:
    """Remove `azureml:` from a path or URL. The SDK adds this prefix to both when it prints a
    job."""
    if not isinstance(path, str):
        return path
    rest = path.removeprefix("azureml:")
    if rest.startswith(("//", "/subscriptions/")):
        return path
    return rest if rest.startswith((".", "/", *SCHEMES)) else path


def _without_none(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {key: _without_none(item) for key, item in value.items() if item is not None}


def mapping(value: object) -> JsonObject:
    """Return a copy of a mapping; empty for any other value."""
    return dict(value) if isinstance(value, Mapping) else {}


def workspace_in(value: object) -> dict[str, str]:
    """Return the subscription, resource group and workspace in the first id that contains all
    three."""
    match = re.search(_WORKSPACE, str(value))
    return match.groupdict() if match else {}
