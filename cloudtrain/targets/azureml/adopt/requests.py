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
from cloudtrain.job.script import job_name_from
from cloudtrain.plans.comparison import ValuePath, overrides_between
from cloudtrain.plans.plan import CompileContext, Plan, Upload
from cloudtrain.rules.engine import text_at
from cloudtrain.targets.adoption import UNREAD, Comparable, Draft, Original, draft_context
from cloudtrain.targets.azureml.adopt.job_files import (
    MADE_UP,
    is_local,
    mapping,
    not_a_command,
    originals_in_job_file,
    steps_of,
    variable_texts,
    workspace_in,
)
from cloudtrain.targets.azureml.adopt.sweeps import (
    OF_SEARCH,
    canonical,
    lifted,
    start_of_trials,
    with_search,
)
from cloudtrain.targets.azureml.compile.job import RUN_PROPERTY
from cloudtrain.targets.azureml.compile.places import ASSET_FIELDS, LOCAL_UPLOAD
from cloudtrain.targets.azureml.fields import (
    ARCHIVED,
    CODE,
    COMPUTE,
    DISPLAY_NAME,
    ENVIRONMENT,
    EVENTS,
    EXPERIMENT,
    INPUT_MODES,
    JOB_TYPE,
    LITERAL,
    QUEUE,
    VARIABLES,
    JsonMapping,
    JsonObject,
    duration_seconds,
    read_fields,
)
from cloudtrain.targets.azureml.parts import (
    MODELS,
    UNNAMED,
    asset_id,
    compute_id,
    pick,
    without,
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
    if isinstance(properties, Mapping) and JOB_TYPE in properties:
        return list(_from_body(data, properties, folder))
    return [with_search(item) for item in originals_in_job_file(data, folder)]


def _from_body(
    data: JsonMapping, properties: JsonMapping, folder: str | None
) -> Iterator[Original]:
    """Yield the jobs of `data`, a body of the REST API or the service's answer, whose fields are in
    `properties`."""
    kind = str(properties[JOB_TYPE]).lower()
    name = str(data.get("name") or data.get("id") or "").rpartition("/")[2]
    settings = workspace_in(data)
    if kind == "pipeline":
        yield from _steps(properties, name, settings, folder)
        return
    if kind not in ("command", "sweep"):
        raise not_a_command(kind)

    is_answer = "id" in data or "status" in properties or "systemData" in data
    body = without(lifted(properties), _READ_ONLY)
    if body.get(VARIABLES):
        body[VARIABLES] = variable_texts(body[VARIABLES])
    if is_answer:
        for field, is_added in _ADDED.items():
            values = mapping(body.get(field))
            own = {key: value for key, value in values.items() if not is_added(key, value)}
            body[field] = own or None

    title = "the body of a command job"
    if kind == "sweep":
        title = "the body of a sweep"
    elif is_answer:
        title = "what the service says of a command job"
    original = Original("azureml", {"properties": body}, name, title, settings, folder=folder)
    yield with_search(original)


def _steps(
    properties: JsonMapping, name: str, settings: JsonMapping, folder: str | None
) -> Iterator[Original]:
    """Yield the steps of a pipeline's body that are commands, each as a command job."""
    commands, lost = steps_of(properties.get("jobs") or {})
    for step, job in commands.items():
        # A step names its kind in `type`, a job's body in `jobType`.
        request = {"properties": {JOB_TYPE: "Command", **without(job, ("type",))}}
        kind = f"step {step} of the pipeline {name}".rstrip()
        yield Original("azureml", request, step, kind, settings, folder=folder, lost=lost)


# Convert the body of a command job into a cloudtrain job and settings of the target: the inverse of
# `compile/job`.
#
# This module leaves out details without a matching job field; the later comparison puts them into
# the overrides.


def drafts_of(original: Original) -> Iterator[Draft]:
    """Yield the only draft: every body is read in one way."""
    body = Body(original.request)
    comments: dict[ValuePath, str] = {}
    properties = body.properties
    found = read_fields(properties)
    settings = _settings(original, body, found.pop("settings"))

    title = original.name or properties.get(DISPLAY_NAME) or properties.get(EXPERIMENT)
    name = job_name_from(str(title or "training"))
    if original.name and name != original.name:
        comments[("name",)] = f"was {original.name!r}; every run of cloudtrain adds its own ending"

    environment = _environment(properties.get(ENVIRONMENT))
    if variables := variable_texts(body.mapping(VARIABLES)):
        environment["variables"] = variables
    inputs = body.mapping("inputs")
    resources = found.get("resources", {})
    if body.instance_type:
        resources["instance_type"] = {"azureml": body.instance_type}
    optional = {
        "distribution": _distribution(body, found.get("distribution", {}), comments),
        "resources": pick(resources, ("instance_count", "instance_type", "shm_size")),
        "environment": environment,
        "inputs": {key: _input(mapping(item)) for key, item in inputs.items()},
        "outputs": _outputs(body, found.get("outputs", {})),
    }

    job: JsonObject = {"name": name}
    if "description" in found:
        job["description"] = found["description"]
    job["source_dir"] = _source(original, properties.get(CODE), comments)
    job["command"] = properties.get("command", "")
    job |= {key: value for key, value in optional.items() if value}
    if body.is_spot:
        job["spot"] = {}
    for key in ("max_runtime", "tags"):
        if found.get(key):
            job[key] = found[key]
    if original.search is not None:
        job = _with_search(job, original, original.search.fields["search"])

    yield Draft(job, settings, comments)


def _with_search(job: JsonObject, original: Original, searched: JsonMapping) -> JsonObject:
    """Return the job of a sweep's trials, which starts a script instead of a command."""
    start = start_of_trials(str(original.request["sweep"].get("command")), searched)
    options = start.get("hyperparameters", {})
    start["hyperparameters"] = {key: _parse(text) for key, text in options.items()}

    # The values that the sweep searches are no inputs of the job.
    inputs = without(job.pop("inputs", {}), searched)
    first_fields = {"name": job["name"], "source_dir": job["source_dir"]}
    fields = {**first_fields, **start, **without(job, ("command",)), "inputs": inputs}
    return {key: value for key, value in fields.items() if value != {} or key == "spot"}


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


def _distribution(body: Body, found: JsonMapping, comments: dict[ValuePath, str]) -> JsonObject:
    """Return the job's `distribution`; empty without one. `found` is what the table of fields
    reads."""
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
        fields: JsonObject = {"type": "tensorflow"}
        if servers := body.parameter_servers:
            fields |= {"strategy": "parameter_server", "parameter_servers": servers}
        if body.distribution.get("workerCount") is not None:
            fields["workers"] = body.distribution["workerCount"]
        return fields
    if body.kind == "Ray":
        return {"type": "ray", **found}
    return {}


def _environment(environment: object) -> JsonObject:
    """Return the job's `environment`: a registered one, or a definition."""
    if not environment:
        return {}
    if not isinstance(environment, Mapping):
        text = str(environment)
        is_complete = text.startswith(("azureml:", "/"))
        return {"azureml": text if is_complete else f"azureml:{text}"}

    fields: JsonObject = {}
    build = environment.get("build")
    if isinstance(build, Mapping):
        fields["build"] = build["path"]
        if build.get("dockerfilePath") not in (None, "", "Dockerfile"):
            fields["dockerfile"] = build["dockerfilePath"]
    else:
        fields["image"] = {"azureml": environment.get("image", "")}
        if "condaPath" in environment:
            fields["conda_file"] = environment["condaPath"]
    return fields | {name: environment[name] for name in ASSET_FIELDS if environment.get(name)}


def _input(item: JsonMapping) -> JsonObject:
    """Return an input of the body in the words of the job."""
    kind = item.get("jobInputType", "uri_folder")
    if kind == LITERAL:
        return {"value": _parse(item.get("value"))}

    place = with_prefix(item.get("uri", ""))
    if place.startswith("/subscriptions/"):
        place = f"azureml:{place}"  # without it, a job would mean a path on this machine
    if is_local(place):
        path = place.removeprefix("file://").removeprefix("file:")
        place = path if is_local_path(path) else f"./{path}"

    fields: JsonObject = {"azureml": place}
    if kind != "uri_folder":
        fields["type"] = kind
    if item.get("mode") in INPUT_MODES:  # overrides keep other modes
        mode, access = INPUT_MODES[item["mode"]]
        fields["mode"] = mode
        if access == "rw":
            fields["access"] = access
    return fields


def with_prefix(uri: object) -> str:
    """Return a reference to an asset as `azureml:NAME:VERSION`, and any other address unchanged."""
    text = str(uri)
    if "/" in text or text.startswith(("azureml:", "http:", "https:")):
        return text
    has_version = text.count(":") == 1
    has_label = "@" in text and ":" not in text
    return f"azureml:{text}" if has_version or has_label else text


def _parse(text: object) -> object:
    """Convert a text that is written like a number or a boolean; return any other text
    unchanged."""
    if not isinstance(text, str):
        return text
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    for number_type in (int, float):
        with suppress(ValueError):
            value = number_type(text)
            # The job must send the same text: `007` and `1_000` stay texts.
            if isfinite(value) and hyperparameter_text(value) == text:
                return value
    return text


_BOOLEANS = {"True": True, "False": False}


def _outputs(body: Body, found: JsonMapping) -> JsonObject:
    """Return the job's `outputs`. `found` is what the table of fields reads."""
    outputs: JsonObject = {}
    for name in body.mapping("outputs"):
        outputs[name] = pick(found.get(name, {}), _OUTPUT)
        if outputs[name].get("type") == "uri_folder":
            del outputs[name]["type"]
    return outputs


_OUTPUT = ("azureml", "type", "mode", "asset_name", "asset_version")

_SETTINGS = (
    "compute", "experiment", "display_name", "job_tier", "priority", "identity",
    "managed_identity_client_id", "managed_identity_resource_id", "docker_args", "locations",
    "max_instance_count", "services", "notifications",
)  # fmt: skip
"""The settings that come from a body, in the order in which they are written."""


def _settings(original: Original, body: Body, found: JsonObject) -> JsonObject:
    """Return the settings of the target. `found` is what the table of fields reads."""
    # a compute of the job's own workspace by its name, any other by its id
    start = f"/workspaces/{original.settings.get('workspace')}/computes/"
    compute = body.text(COMPUTE).removeprefix("azureml:")
    found["compute"] = compute.rpartition(start)[2] or None
    if EXPERIMENT not in original.replaced:
        found["experiment"] = body.experiment
    notifications = found.pop("notifications", {})
    if notifications.get("emails"):
        events = notifications.get("on") or EVENTS.decode(None)
        found["notifications"] = {"emails": notifications["emails"], "on": events}
    settings: JsonObject = _without_empty({**original.settings, **pick(found, _SETTINGS)})
    return settings


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
        environment = mapping(original.request["properties"].get(ENVIRONMENT))
        build = UNREAD if "build" in environment else None
        name = original.name or "job"
        return draft_context(name, account, conda=environment.get("condaFile"), build=build)

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

        (body.get("properties") or {}).pop(RUN_PROPERTY, None)
        if plan is not None:
            changes.append(
                (f"properties.{RUN_PROPERTY}", "the property makes the run known to cloudtrain")
            )

        if body.get(CODE) is not None:
            body[CODE] = _CODE
            changes.append((CODE, "cloudtrain uploads the code under the hash of its content"))
        if body.get(DISPLAY_NAME) in (None, context.run_name):
            body.pop(DISPLAY_NAME, None)
            changes.append((DISPLAY_NAME, "the run's name is used if the job has no display name"))
        body.setdefault(EXPERIMENT, DEFAULT_EXPERIMENT)
        if EXPERIMENT in original.replaced:
            del body[EXPERIMENT]
        body[ENVIRONMENT] = self._environment(body.get(ENVIRONMENT), context, plan, changes)
        workspace = context.account.workspace_id
        if body.get(COMPUTE):
            body[COMPUTE] = compute_id(workspace, body[COMPUTE])
        _complete_inputs(body, workspace, changes)

        queue = body.get(QUEUE) or {}
        if queue.get("jobTier") == "Null":  # the service's word for a body without a tier
            del queue["jobTier"]
        # `PT1H` and `PT60M` are the same limit.
        limits = body.get("limits") or {}
        for key, value in limits.items():
            seconds = duration_seconds(str(value))
            if seconds is not None:
                limits[key] = f"PT{seconds}S"
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
                why = "cloudtrain names the environment by another hash of its definition"
                changes.append((ENVIRONMENT, why))
            return {"defined as": _definition(environment)}
        for upload in plan.uploads if plan else ():
            if upload.destination == environment and upload.content is not None:
                return {"defined as": _definition(_uploaded(upload, upload.content))}
        text = str(environment or "")
        return asset_id(context.account.workspace_id, text, "environments") or text

    def overrides(self, ours: JsonMapping, theirs: JsonMapping) -> JsonObject:
        """The code's id, and an environment that is not registered yet, are left out."""
        wanted: JsonObject = {name: {} for name in _MAPPINGS if name in ours["properties"]}
        wanted |= theirs["properties"]
        overrides = overrides_between(ours["properties"], wanted)

        if "searchSpace" in wanted:
            overrides = without(overrides, ("limits", *OF_SEARCH))
        if isinstance(overrides.get(ENVIRONMENT), Mapping):
            del overrides[ENVIRONMENT]
        if overrides.get(CODE) == _CODE:
            del overrides[CODE]
        return overrides

    def hook(self) -> str:
        return File(__file__).with_name("hook.py").read_text(encoding="utf-8")

    def home(self, environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
        yield from ()  # jobs name their workspace themselves

    def captured(
        self, record: JsonMapping, uploads: Mapping[str, bytes]
    ) -> tuple[list[Original], bytes | None]:
        workspace = mapping(record.get("workspace"))
        job = dict(record["job"])
        replaced: dict[str, str] = {}
        if "experiment_name" in record["made_up"]:
            replaced[EXPERIMENT] = "the SDK takes the name of the script's folder"
        if JOB_TYPE in job.get("properties", {}):
            made_up = [MADE_UP[field] for field in record["made_up"]]
            job["properties"] = without(job["properties"], made_up)

        jobs: list[Original] = []
        for item in originals_in(job, None):
            place = text_at(item.request, "properties", CODE)
            settings = {**workspace, **item.settings}
            source = place if place and is_local(place) else None
            jobs.append(replace(item, settings=settings, source=source, replaced=replaced))
        return jobs, uploads.get(str(record.get("code")))

    def reason(self, path: ValuePath) -> str:
        field = "".join(map(str, path[1:2]))
        return _REASONS.get(field, "a job has no field for this")


def _complete_inputs(body: JsonObject, workspace: str, changes: list[tuple[str, str]]) -> None:
    """Write the inputs' addresses as complete ids. A fixed text replaces those of local data."""
    for item in (body.get("inputs") or {}).values():
        if not isinstance(item, dict) or not item.get("uri"):
            continue
        uri = with_prefix(item["uri"])
        if is_local(uri) or uri.startswith(f"{LOCAL_UPLOAD}/{UNREAD}/"):
            uri = _DATA
            changes.append(
                ("inputs", "data of this machine is uploaded under the hash of its content")
            )
        kind = "models" if item.get("jobInputType") in MODELS else "data"
        item["uri"] = asset_id(workspace, uri, kind) or uri


def _uploaded(upload: Upload, content: str) -> JsonObject:
    """Return the definition of an environment that a plan registers, in the words of job files."""
    definition: JsonObject = json.loads(content)["properties"]
    if upload.folder is not None:
        definition["build"]["path"] = upload.folder
    *_, name, _, version = upload.destination.split("/")
    if name != UNNAMED:
        definition["asset_name"] = name
        if version != upload.sha256[:32]:
            definition["asset_version"] = version
    return definition


def _definition(fields: JsonMapping) -> JsonObject:
    """Return an environment's definition, with the parsed content of its conda file instead of the
    file's text."""
    definition = pick(fields, ("image", *ASSET_FIELDS))
    if fields.get("condaFile"):
        import yaml

        conda = yaml.safe_load(fields["condaFile"])
        definition["condaFile"] = json.loads(json.dumps(conda, default=str))
    build = fields.get("build")
    if isinstance(build, Mapping):
        file = build.get("dockerfilePath") or "Dockerfile"
        definition["build"] = {"path": build.get("path"), "dockerfilePath": file}
    return definition


def _without_empty(value: Any) -> Any:
    """Return the value without null and empty fields and `isArchived: false`, which the service
    treats as missing."""
    if not isinstance(value, Mapping):
        return value
    fields: JsonObject = {}
    for key, item in value.items():
        kept = _without_empty(item)
        is_usual = key == ARCHIVED and kept is False
        if kept not in (None, {}, []) and not is_usual:
            fields[key] = kept
    return fields


_MAPPINGS = (VARIABLES, "inputs", "outputs", "tags", "properties")
"""Fields that must stay mappings in a body: their entries are removed one by one."""

_REASONS = {ENVIRONMENT: "the environment has no version or definition that a job can contain"}
_REASONS |= dict.fromkeys(OF_SEARCH, "a sweep has no field for it")
