"""Turn a CreateTrainingJob request into a job and the target's settings: the inverse of the
compiler, by the same table of fields.

Details without a matching job field are left out here. They become overrides when the request is
compared with the one compiled from the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from cloudtrain.job.data import Input
from cloudtrain.job.distribution import MPI, SMP, NoDistribution
from cloudtrain.job.model import Model
from cloudtrain.job.nodes import PLACE_NAME
from cloudtrain.job.script import job_name_from
from cloudtrain.job.training import TrainingJob
from cloudtrain.machines.overlay import type_named
from cloudtrain.plans.comparison import ValuePath
from cloudtrain.plans.plan import map_texts
from cloudtrain.rules.engine import mapping_at, rows_at, text_at
from cloudtrain.targets.adoption import Draft, Original
from cloudtrain.targets.common.fields import default_of
from cloudtrain.targets.common.services import own_value
from cloudtrain.targets.sagemaker.adopt.hook import ACCOUNT, ROLE
from cloudtrain.targets.sagemaker.adopt.trainers import (
    CODE,
    DRIVERS,
    draft_fields,
    own_values,
    place_of,
)
from cloudtrain.targets.sagemaker.catalogue.images import has_other_toolkit, image_of_uri
from cloudtrain.targets.sagemaker.compile.machines import DEFAULT_VOLUME_GIB
from cloudtrain.targets.sagemaker.compile.places import CHECKPOINT_DIR
from cloudtrain.targets.sagemaker.fields import (
    ALGORITHM,
    CHANNEL_FIELDS,
    CHANNELS,
    DEBUGGER,
    FILE_SYSTEM_FIELDS,
    MACHINES,
    PARAMETERS,
    SETTING,
    TRAINING_FIELDS,
    decode_fields,
    put,
)
from cloudtrain.targets.sagemaker.plan import RUN_TAG
from cloudtrain.targets.sagemaker.reading import DEFAULT_MAX_RUNTIME, Start, image_in
from cloudtrain.targets.sagemaker.request import (
    GROUPS,
    OF_TOOLKIT,
    PROGRAM,
    REGION,
    RUN_NAME,
    SUBMIT_DIRECTORY,
    JsonMapping,
    JsonObject,
    only,
    without,
    without_nulls,
)
from cloudtrain.targets.sagemaker.settings import CHECKPOINT_PATH, SageMaker, account_id

_S3 = re.compile(r"s3://(?P<bucket>[^/]+)/?(?P<key>.*)")
_REGION = re.compile(r"\d{12}\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.")

OF_SDK = ("sagemaker_estimator", "sagemaker_s3_output", "sagemaker_training_compiler_")
"""Hyperparameters for images of reinforcement learning and of the Training Compiler (SDK
2.257.7)."""

CODE_FOLDER = "code"

_STAMP = re.compile(r"-\d{4}(-\d\d){5}-\d{3}$|-\d{10,14}(-\w{6})?$")
"""The timestamp that the SDKs append to a job's name."""

_PLACEHOLDER = (
    f"{ACCOUNT} stands for your account, and {ROLE} for your role, because the "
    "script asks AWS for both."
)


def drafts_of(original: Original) -> Iterator[Draft]:
    """Yield jobs that compile to the original's request, the most portable first.

    For a script, the first job names the framework's version and the second one the image's
    address. The last job runs the image's own entry point, and leaves the code at its location.
    """
    for draft in _drafts_of_one_run(original):
        draft.job = only(draft.job, TrainingJob.model_fields)
        if is_of_one_run(original.name):
            _name_every_run(draft, original.name, by_drivers=original.start is not None)
        yield draft


def is_of_one_run(name: str) -> bool:
    """Return whether only one run can have this name, because it contains a date or an id."""
    return re.search(r"\d{4}|[0-9a-f]{8}", name) is not None


def _name_every_run(draft: Draft, name: str, *, by_drivers: bool) -> None:
    """Replace the original's name in the places of a draft. Hyperparameters and variables with the
    name leave the draft, so that overrides express them: there cloudtrain replaces the name too."""

    def name_run(text: str) -> str:
        return text.replace(name, RUN_NAME)

    for key, value in draft.job.items():
        if key not in ("name", "hyperparameters", "environment"):
            draft.job[key] = map_texts(value, name_run)
    draft.settings = map_texts(draft.settings, name_run)

    _drop_with_name(draft.job.get("environment", {}).get("variables", {}), name)
    if not by_drivers:
        _drop_with_name(draft.job.get("hyperparameters", {}), name)
    if draft.job.get("hyperparameters") == {}:
        del draft.job["hyperparameters"]


def _drop_with_name(values: JsonObject, name: str) -> None:
    """Remove the values that contain the name of the original."""
    for key in list(values):
        if name in str(values[key]):
            del values[key]


def _drafts_of_one_run(original: Original) -> Iterator[Draft]:
    """Yield the drafts of `drafts_of`, still with the original's name in their places."""
    request = original.request
    if original.start is not None:
        yield from _by_drivers(original, original.start)
    elif own_value(mapping_at(request, PARAMETERS).get(PROGRAM)):
        if mapping_at(request, ALGORITHM).get("EnableSageMakerMetricsTimeSeries"):
            yield from _by_framework(original)
        yield _script(original, {"image": {"sagemaker": image_in(request)}})
    yield _image_alone(original)


def _by_drivers(original: Original, start: JsonMapping) -> Iterator[Draft]:
    """Yield jobs that start the same processes as the drivers of version 3 of the SDK.

    The first job uses cloudtrain's launcher, which bypasses the image's toolkit as the drivers do.
    The second job uses the toolkit, because some distributions need it.
    """
    image = {"sagemaker": image_in(original.request)}
    environment: JsonObject = {"image": image} | only(start, ["requirements"])
    for mode in ("entrypoint", "toolkit"):
        draft = _common(original, environment)
        job = draft.job
        inputs = without(job.pop("inputs", {}), (CODE, DRIVERS))
        if inputs:
            job["inputs"] = inputs
        job["source_dir"] = original.source or (CODE_FOLDER if original.code else None)
        job |= draft_fields(start)
        draft.settings["launch"] = mode
        yield draft


def _by_framework(original: Original) -> Iterator[Draft]:
    """Yield the job of a script that names its framework; nothing if its image is none of AWS's."""
    image = image_of_uri(image_in(original.request))
    if image is None:
        return

    environment = {"framework": image.framework, "version": image.version}
    if image.base:
        environment["base"] = image.base
    if image.python_version:
        environment["python"] = ".".join(map(str, image.python_version))
    yield _script(original, environment)


def _script(original: Original, environment: JsonObject) -> Draft:
    """Return the job of a script that the image's toolkit starts."""
    request = original.request
    draft = _common(original, environment)
    job = draft.job
    parameters = own_values(request)
    for name, value in parameters.items():
        if name not in OF_TOOLKIT and not name.startswith(OF_SDK):
            job.setdefault("hyperparameters", {})[name] = value
    job["source_dir"] = original.source or (CODE_FOLDER if original.code else ".")
    job["entry_point"] = parameters[PROGRAM]

    distribution = _distribution(Start.of(request), _gpus(request))
    # MXNet's toolkit reads the same hyperparameter for servers of its own
    has_other = has_other_toolkit(image_in(request))
    of_mxnet = distribution.get("type") == "tensorflow" and has_other
    if distribution and not of_mxnet:
        job["distribution"] = distribution
    groups = parameters.get(GROUPS)
    if isinstance(groups, list) and "instance_groups" in job["resources"]:
        job["resources"]["distribution_groups"] = groups

    draft.settings["launch"] = "toolkit"
    _locate_code(draft, original)
    return draft


def _locate_code(draft: Draft, original: Original) -> None:
    """Say where the code of a script is, and set its bucket unless it is the default."""
    code = code_uri(original.request)
    if original.code is None and original.source is None:
        fetch = f"aws s3 cp {code} - | tar xz" if code else "copy the code of the job here"
        draft.comments[("source_dir",)] = (
            f"guessed: the folder of the job's code. To fetch it:\n  {fetch}"
        )
    match = _S3.fullmatch(code or "")
    if match:
        owner = account_id(str(draft.settings.get("role", "")))
        default = f"sagemaker-{draft.settings.get('region')}-{owner}"
        if match["bucket"] != default:
            draft.settings["bucket"] = match["bucket"]


def _distribution(start: Start, gpus: int | None) -> JsonObject:
    """Return the job's field `distribution`; empty for none. `gpus`: those of each instance, if
    known."""
    distribution = start.distribution
    if isinstance(distribution, NoDistribution):
        return {}
    fields: JsonObject = {"type": distribution.type}
    for name, field in type(distribution).model_fields.items():
        value = getattr(distribution, name)
        if value not in (None, {}, field.default):
            fields[name] = value
    if isinstance(distribution, SMP) and distribution.processes_per_instance == gpus:
        fields.pop("processes_per_instance", None)  # the default of SMP
    if start.options:
        fields["options" if isinstance(distribution, MPI) else "mpi_options"] = start.options
    return fields


def _without_defaults(values: JsonMapping, model: type[Model]) -> JsonObject:
    """Return the values that differ from the model's defaults, in the order of its fields."""
    changed: JsonObject = {}
    for name, value in only(values, model.model_fields).items():
        if value is not None and value != default_of(model, name):
            changed[name] = value
    return changed


def _image_alone(original: Original) -> Draft:
    """Return a job that runs the image's own entry point, with all hyperparameters of the
    request."""
    image = image_in(original.request) or "image-of-the-algorithm:1"
    draft = _common(original, {"image": {"sagemaker": image}})
    job = draft.job
    parameters = mapping_at(original.request, PARAMETERS)
    if parameters:
        job["hyperparameters"] = {name: _number_or_text(text) for name, text in parameters.items()}

    brings_no_code = original.code is None and original.source is None
    if brings_no_code and own_value(parameters.get(PROGRAM)) is None:
        job["source_dir"] = None
    draft.last_resort = True
    return draft


def _number_or_text(text: Any) -> Any:
    """Return a number such as 64 for `64`, if it turns back into the same text."""
    value = own_value(text)
    if type(value) in (int, float) and str(value) == text:
        return value
    return text


_COPIED = (
    "checkpoint.sagemaker",
    "environment.variables",
    "max_runtime",
    "metrics",
    "tags",
)
"""Fields of the job whose values are those of the request."""


def _common(original: Original, environment: JsonMapping) -> Draft:
    """Return a draft with the fields that do not depend on how the job starts, and with an
    environment."""
    comments: dict[ValuePath, str] = {}
    name = job_name_from(_STAMP.sub("", original.name) or "training")
    if name != original.name:
        comments[("name",)] = f"was {original.name!r}; every run of cloudtrain adds its own ending"

    values = decode_fields(TRAINING_FIELDS, original.request)
    if values.get("max_runtime") == DEFAULT_MAX_RUNTIME:
        del values["max_runtime"]
    values.get("tags", {}).pop(RUN_TAG, None)
    job: JsonObject = {"name": name, "resources": _resources(values)}
    job["environment"] = dict(environment)
    for path in _COPIED:
        if values.get(path) not in (None, {}):
            put(job, path, values[path])
    if "spot" in values:
        job["spot"] = without_nulls({"max_wait": values.get("spot.max_wait")})
    inputs = dict(_inputs(original.request))
    for item in inputs.values():
        local = original.data.get(item["sagemaker"])
        if local is not None:  # the script uploads it
            item["sagemaker"] = f"./{local}".rstrip("/")
            if not local.endswith("/"):
                item["type"] = "uri_file"
    if inputs:
        job["inputs"] = inputs

    settings = _settings(original, values)
    guessed = (_PLACEHOLDER,) if ACCOUNT in str(settings) else ()
    return Draft(job, settings, comments, settings_head=guessed)


def _resources(values: JsonMapping) -> JsonObject:
    """Return the job's field `resources` from the values of a request."""
    resources: JsonObject = {}
    groups = values.get("resources.instance_groups")
    preferences = values.get("resources.instance_preferences")
    count = values.get("resources.instance_count", 1)

    if groups:
        resources["instance_groups"] = groups
    elif preferences:
        # one count for all types stands once in the job
        counts = {row.setdefault("instance_count", count) for row in preferences}
        if len(counts) == 1:
            resources["instance_count"] = counts.pop()
            for row in preferences:
                del row["instance_count"]
        resources["instance_preferences"] = list(map(_preference, preferences))
    else:
        resources["instance_count"] = count
        resources["instance_type"] = {"sagemaker": values.get("resources.instance_type", "")}

    volume = values.get("resources.volume_size")
    if volume not in (None, f"{DEFAULT_VOLUME_GIB}g"):
        resources["volume_size"] = volume
    return resources


def _preference(row: JsonObject) -> Any:
    """Return a preferred instance type for a job file: its name, if the row has no more."""
    if row.keys() == {"instance_type"}:
        return row["instance_type"]
    return row or ""


def _gpus(request: JsonMapping) -> int | None:
    """Return the GPUs of each instance, of the first group; None for an unknown type."""
    config = mapping_at(request, MACHINES)
    first: JsonMapping = (config.get("InstanceGroups") or [config])[0]
    entry = type_named("sagemaker", str(first.get("InstanceType", "")), None)
    return None if entry is None else entry.gpus


def _inputs(request: JsonMapping) -> Iterator[tuple[str, JsonObject]]:
    """Yield name and fields of the job's input for each channel, except the code channel."""
    default_mode = text_at(request, ALGORITHM, "TrainingInputMode") or "File"
    directory = str(mapping_at(request, PARAMETERS).get(SUBMIT_DIRECTORY, ""))
    is_isolated = directory.strip('"').startswith("/opt")
    channels = rows_at(request, CHANNELS)
    used_names = {str(channel.get("ChannelName")) for channel in channels}
    for channel in channels:
        channel_name = channel.get("ChannelName")
        name = _input_name(str(channel_name), used_names)
        used_names.add(name)
        if channel_name == "code" and is_isolated:
            continue

        source = mapping_at(channel, "DataSource")
        if "FileSystemDataSource" in source:
            item = decode_fields(FILE_SYSTEM_FIELDS, channel)
        elif "S3DataSource" in source:
            item = decode_fields(CHANNEL_FIELDS, {"InputMode": default_mode, **channel})
        else:
            continue
        if name == channel_name:
            item.pop("channel", None)
        # the mode also if it is the default of jobs: the request's may be another
        fields = {"sagemaker": ""} | only(item, ("sagemaker", "mode"))
        yield name, fields | _without_defaults(item, Input)


def _input_name(channel: str, used_names: set[str]) -> str:
    """Return the channel's name. If an input cannot have this name, return a similar one, not in
    `used_names`."""
    if re.fullmatch(PLACE_NAME, channel):
        return channel
    name = re.sub(r"\W", "_", channel, flags=re.ASCII)
    if name[:1].isdigit():
        name = f"_{name}"
    while name in used_names:
        name += "_"
    return name


def _settings(original: Original, values: JsonMapping) -> JsonObject:
    """Return the target's settings for a request, without defaults."""
    settings: JsonObject = {"region": region_of(original)}
    for path, value in values.items():
        if path.startswith(SETTING):
            settings[path.removeprefix(SETTING)] = value
    if original.request.get(DEBUGGER) is not None:
        settings["debugger"] = True

    # settings of a profiler that is off, and folders that the compiler chooses by itself
    if not settings.get("profiler"):
        for name in ("profiler_output", "profiler_interval", "profiler_parameters"):
            settings.pop(name, None)
    for name in ("profiler_output", "debugger_output"):
        if settings.get(name) == settings.get("output"):
            settings.pop(name, None)
    path = str(settings.get("checkpoint_path"))
    if path == CHECKPOINT_DIR or not re.fullmatch(CHECKPOINT_PATH, path):
        settings.pop("checkpoint_path", None)
    return _without_defaults(settings, SageMaker)


def region_of(original: Original) -> str | None:
    """Return the region of the request's hyperparameters, else of the settings or of the image's
    address."""
    region = own_value(mapping_at(original.request, PARAMETERS).get(REGION))
    region = region or original.settings.get("region")
    if isinstance(region, str) and region:
        return region
    image = _REGION.match(image_in(original.request))
    return image["region"] if image else None


def code_uri(request: JsonMapping) -> str | None:
    """Return the location of the request's code; None if the request does not name one."""
    submit_directory = own_value(mapping_at(request, PARAMETERS).get(SUBMIT_DIRECTORY))
    if str(submit_directory).startswith("s3://"):
        return str(submit_directory)
    return place_of(request, CODE) or None
