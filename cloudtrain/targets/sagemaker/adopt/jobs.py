"""Turn a CreateTrainingJob request into a job and the target's settings: the inverse of
`compile/request`.

Details without a matching job field are left out here. They become overrides when the request is
compared with the one compiled from the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cloudtrain.job.distribution import MPI, SMP, NoDistribution
from cloudtrain.job.nodes import PLACE_NAME
from cloudtrain.job.script import job_name_from
from cloudtrain.machines.overlay import type_named
from cloudtrain.plans.plan import map_texts
from cloudtrain.rules.engine import mapping_at, text_at, value_at
from cloudtrain.targets.adoption import Draft, Original
from cloudtrain.targets.common.services import own_value
from cloudtrain.targets.sagemaker.adopt.hook import ACCOUNT, ROLE
from cloudtrain.targets.sagemaker.adopt.trainers import CODE, DRIVERS, draft_fields, place_of
from cloudtrain.targets.sagemaker.catalogue.images import has_other_toolkit, image_of_uri
from cloudtrain.targets.sagemaker.compile.machines import DEFAULT_VOLUME_GIB
from cloudtrain.targets.sagemaker.compile.places import CHECKPOINT_DIR
from cloudtrain.targets.sagemaker.export.distributions import SDK_TABLES
from cloudtrain.targets.sagemaker.plan import RUN_TAG
from cloudtrain.targets.sagemaker.reading import DEFAULT_MAX_RUNTIME, Start
from cloudtrain.targets.sagemaker.request import (
    GROUPS,
    OF_TOOLKIT,
    PROGRAM,
    REGION,
    RUN_NAME,
    SUBMIT_DIRECTORY,
    JsonMapping,
    JsonObject,
)
from cloudtrain.targets.sagemaker.settings import CHECKPOINT_PATH, account_id

# Turn a request's profiler, debugger and their rules into settings: the inverse of
# `compile/monitoring`.


def monitoring_settings(request: JsonMapping, output: str | None) -> JsonObject:
    """Return the settings; None for each setting with its default value. `output` is the S3 folder
    of the outputs."""
    settings: JsonObject = {
        "profiler_rules": [_rule(row) for row in request.get("ProfilerRuleConfigurations") or ()]
        or None,
        "debug_rules": [_rule(row) for row in request.get("DebugRuleConfigurations") or ()] or None,
    }
    if value_at(request, "ProfilerConfig", "DisableProfiler") is False:
        settings |= {"profiler": True, **_by_table(request, "settings_of_profiler")}
    if (hook := request.get("DebugHookConfig")) is not None:
        rows = [
            row for row in hook.get("CollectionConfigurations") or () if "CollectionName" in row
        ]
        collections = {row["CollectionName"]: row.get("CollectionParameters") or {} for row in rows}
        settings |= {"debugger": True, **_by_table(request, "settings_of_debugger")}
        settings["debugger_collections"] = collections or None
    usual = [
        name for name in ("profiler_output", "debugger_output") if settings.get(name) == output
    ]
    return settings | dict.fromkeys(usual)


def _rule(row: JsonMapping) -> JsonObject:
    size = row.get("VolumeSizeInGB")
    rule = {
        ours: row[theirs] for theirs, ours in SDK_TABLES["rule_settings"].items() if row.get(theirs)
    }
    return rule | ({"volume_size": f"{size}g"} if size else {})


_S3 = re.compile(r"s3://(?P<bucket>[^/]+)/?(?P<key>.*)")
_REGION = re.compile(r"\d{12}\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.")
_DATA_TYPES: Mapping[Any, str] = {
    "ManifestFile": "manifest",
    "AugmentedManifestFile": "augmented_manifest",
}
from cloudtrain.targets.sagemaker.fields import MODES

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
        if is_of_one_run(original.name):
            _name_every_run(draft, original.name, by_drivers=original.start is not None)
        yield draft


def is_of_one_run(name: str) -> bool:
    """Return whether only one run can have this name, because it contains a date or an id."""
    return re.search(r"\d{4}|[0-9a-f]{8}", name) is not None


def _name_every_run(draft: Draft, name: str, *, by_drivers: bool) -> None:
    """Replace the original's name in the places of a draft. Hyperparameters and variables with the
    name leave the draft, so that overrides express them: there cloudtrain replaces the name too."""
    fields = {
        key: value
        for key, value in draft.job.items()
        if key not in ("name", "hyperparameters", "environment")
    }
    draft.job |= map_texts(fields, lambda text: text.replace(name, RUN_NAME))
    draft.settings = map_texts(draft.settings, lambda text: text.replace(name, RUN_NAME))
    variables = draft.job.get("environment", {}).get("variables", {})
    for values in (variables, {} if by_drivers else draft.job.get("hyperparameters", {})):
        for key in [key for key, value in values.items() if name in str(value)]:
            del values[key]
    draft.job = {
        key: value for key, value in draft.job.items() if (key, value) != ("hyperparameters", {})
    }


def _drafts_of_one_run(original: Original) -> Iterator[Draft]:
    request = original.request
    parameters = mapping_at(request, "HyperParameters")
    if original.start is not None:
        yield from _by_drivers(original, original.start)
    elif own_value(parameters.get(PROGRAM)):
        algorithm = mapping_at(request, "AlgorithmSpecification")
        if algorithm.get("EnableSageMakerMetricsTimeSeries"):
            yield from _by_framework(original)
        yield _script(original, {"image": {"sagemaker": algorithm.get("TrainingImage", "")}})
    yield _image_alone(original)


def _by_drivers(original: Original, start: JsonMapping) -> Iterator[Draft]:
    """Yield jobs that start the same processes as the drivers of version 3 of the SDK.

    The first job uses cloudtrain's launcher, which bypasses the image's toolkit as the drivers do.
    The second job uses the toolkit, because some distributions need it.
    """
    for mode in ("entrypoint", "toolkit"):
        draft = _common(original)
        environment = {
            "image": {
                "sagemaker": mapping_at(original.request, "AlgorithmSpecification")["TrainingImage"]
            }
        }
        environment |= {"requirements": start["requirements"]} if "requirements" in start else {}
        draft.job["inputs"] = {
            n: v for n, v in draft.job.get("inputs", {}).items() if n not in (CODE, DRIVERS)
        }
        draft.job["environment"] = environment | draft.job.get("environment", {})
        draft.job |= {
            "source_dir": original.source or (CODE_FOLDER if original.code else None)
        } | draft_fields(start)
        draft.job = _order_fields({name: value for name, value in draft.job.items() if value != {}})
        draft.settings["launch"] = mode
        yield draft


def _by_framework(original: Original) -> Iterator[Draft]:
    uri = mapping_at(original.request, "AlgorithmSpecification").get("TrainingImage")
    image = image_of_uri(uri) if isinstance(uri, str) else None
    if image is None:
        return
    python = ".".join(map(str, image.python_version))
    fields = {
        "framework": image.framework,
        "version": image.version,
        "base": image.base,
        "python": python,
    }
    yield _script(original, {name: value for name, value in fields.items() if value})


def _script(original: Original, environment: JsonObject) -> Draft:
    """Return the job of a script that the image's toolkit starts."""
    request = original.request
    parameters = {
        name: own_value(text) for name, text in mapping_at(request, "HyperParameters").items()
    }
    draft = _common(original)
    job: JsonObject = {
        "name": draft.job["name"],
        "source_dir": original.source or (CODE_FOLDER if original.code else "."),
    }
    job["entry_point"] = parameters[PROGRAM]
    own = {
        name: parameters[name]
        for name in parameters
        if name not in OF_TOOLKIT and not name.startswith(OF_SDK)
    }
    if own:
        job["hyperparameters"] = own
    distribution = _distribution(Start.of(request), _gpus(request))
    image = str(mapping_at(request, "AlgorithmSpecification").get("TrainingImage"))
    # MXNet's servers
    if distribution and not (distribution["type"] == "tensorflow" and has_other_toolkit(image)):
        job["distribution"] = distribution
    groups = parameters.get(GROUPS)
    if isinstance(groups, list) and "instance_groups" in draft.job.get("resources", {}):
        draft.job["resources"]["distribution_groups"] = groups
    variables = draft.job.pop("environment", {})
    draft.job = (
        job
        | {"environment": environment | variables}
        | {k: v for k, v in draft.job.items() if k != "name"}
    )
    draft.job = _order_fields(draft.job)
    draft.settings["launch"] = "toolkit"
    code = code_uri(request)
    if original.code is None and original.source is None:
        fetch = f"aws s3 cp {code} - | tar xz" if code else "copy the code of the job here"
        draft.comments[("source_dir",)] = (
            f"guessed: the folder of the job's code. To fetch it:\n  {fetch}"
        )
    bucket = _S3.fullmatch(code or "")
    if bucket:
        owner = account_id(str(request.get("RoleArn", "")))
        if bucket["bucket"] != f"sagemaker-{draft.settings.get('region')}-{owner}":  # the default
            draft.settings["bucket"] = bucket["bucket"]
    return draft


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


def _order_fields(job: JsonObject) -> JsonObject:
    order = (
        "name description source_dir entry_point command hyperparameters distribution resources "
        "environment inputs"
    ).split()
    return {name: job[name] for name in order if name in job} | job


def _image_alone(original: Original) -> Draft:
    """Return a job that runs the image's own entry point, with all hyperparameters of the
    request."""
    draft = _common(original)
    algorithm = mapping_at(original.request, "AlgorithmSpecification")
    parameters = mapping_at(original.request, "HyperParameters")
    own: JsonObject = {}
    for name, text in parameters.items():
        value = own_value(text)  # a number such as 64 for `64`, if it turns back into the same text
        is_number = (
            isinstance(value, int | float) and not isinstance(value, bool) and str(value) == text
        )
        own[name] = value if is_number else text
    environment = {
        "image": {"sagemaker": algorithm.get("TrainingImage") or "image-of-the-algorithm:1"}
    }
    draft.job["environment"] = environment | draft.job.get("environment", {})
    draft.job |= {"hyperparameters": own} if own else {}
    if (
        own_value(parameters.get(PROGRAM)) is None
        and original.code is None
        and original.source is None
    ):
        draft.job["source_dir"] = None
    draft.job, draft.last_resort = _order_fields(draft.job), True
    return draft


def _common(original: Original) -> Draft:
    """Return a draft with the fields that do not depend on how the job starts."""
    request, comments = original.request, dict[tuple[str | int, ...], str]()
    name = job_name_from(_STAMP.sub("", original.name) or "training")
    if name != original.name:
        comments[("name",)] = f"was {original.name!r}; every run of cloudtrain adds its own ending"
    job: JsonObject = {"name": name}
    job["resources"] = _resources(mapping_at(request, "ResourceConfig"))
    variables = dict(mapping_at(request, "Environment"))
    if variables:
        job["environment"] = {"variables": variables}
    inputs = dict(_inputs(request))
    for item in inputs.values():
        # which the script uploads from this machine
        if (path := original.data.get(item["sagemaker"])) is not None:
            item |= {"sagemaker": f"./{path}".rstrip("/")} | (
                {} if path.endswith("/") else {"type": "uri_file"}
            )
    if inputs:
        job["inputs"] = inputs
    checkpoint = mapping_at(request, "CheckpointConfig")
    if "S3Uri" in checkpoint:
        job["checkpoint"] = {"sagemaker": checkpoint["S3Uri"]}
    stopping = mapping_at(request, "StoppingCondition")
    if request.get("EnableManagedSpotTraining"):
        wait = stopping.get("MaxWaitTimeInSeconds")
        job["spot"] = {"max_wait": wait} if wait is not None else {}
    if stopping.get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME) != DEFAULT_MAX_RUNTIME:
        job["max_runtime"] = stopping["MaxRuntimeInSeconds"]
    metrics = mapping_at(request, "AlgorithmSpecification").get("MetricDefinitions")
    if isinstance(metrics, list) and metrics:
        job["metrics"] = {
            row["Name"]: row["Regex"] for row in metrics if {"Name", "Regex"} <= row.keys()
        }
    tags = {
        row["Key"]: row["Value"] for row in request.get("Tags", ()) if row.get("Key") != RUN_TAG
    }
    if tags:
        job["tags"] = tags
    settings = _settings(original)
    guessed = (_PLACEHOLDER,) if ACCOUNT in str(settings) else ()
    return Draft(job, settings, comments, settings_head=guessed)


def _resources(config: JsonMapping) -> JsonObject:
    resources: JsonObject = {}
    groups, preferences = config.get("InstanceGroups"), config.get("InstancePreferences")
    if groups:
        resources["instance_groups"] = [
            {
                "name": row.get("InstanceGroupName", ""),
                "instance_type": row.get("InstanceType", ""),
                "instance_count": row.get("InstanceCount", 1),
            }
            for row in groups
        ]
    elif preferences:
        counts = [row.get("InstanceCount", config.get("InstanceCount", 1)) for row in preferences]
        alike = len(set(counts)) == 1
        if alike:
            resources["instance_count"] = counts[0]
        resources["instance_preferences"] = [
            _preference(row, None if alike else count)
            for row, count in zip(preferences, counts, strict=True)
        ]
    else:
        resources["instance_count"] = config.get("InstanceCount", 1)
        resources["instance_type"] = {"sagemaker": config.get("InstanceType", "")}
    volume = config.get("VolumeSizeInGB", DEFAULT_VOLUME_GIB)
    return resources | ({"volume_size": f"{volume}g"} if volume != DEFAULT_VOLUME_GIB else {})


def _preference(row: JsonMapping, count: int | None) -> Any:
    """Return a preferred instance type for a job file: its name, or a dict if it has a `count` or a
    training plan."""
    name, plans = row.get("InstanceType", ""), row.get("TrainingPlanArns")
    own = {"instance_count": count, "training_plan": plans[0] if plans else None}
    options = {key: value for key, value in own.items() if value is not None}
    return {"instance_type": name, **options} if options else name


def _gpus(request: JsonMapping) -> int | None:
    config = mapping_at(request, "ResourceConfig")
    row: JsonObject = next(iter(config.get("InstanceGroups") or [config]), {})
    entry = type_named("sagemaker", str(row.get("InstanceType", "")), None)
    return entry.gpus if entry is not None else None


def _inputs(request: JsonMapping) -> Iterator[tuple[str, JsonObject]]:
    job_mode = text_at(request, "AlgorithmSpecification", "TrainingInputMode") or "File"
    isolated = (
        str(mapping_at(request, "HyperParameters").get(SUBMIT_DIRECTORY, ""))
        .strip('"')
        .startswith("/opt")
    )
    channels = request.get("InputDataConfig", ())
    names = {str(channel.get("ChannelName")) for channel in channels}
    for channel in channels:
        name = channel.get("ChannelName")
        key = _input_name(str(name), names)
        names.add(key)
        own = {} if key == name else {"channel": name}
        source = mapping_at(channel, "DataSource")
        if name == "code" and isolated:
            continue
        if "FileSystemDataSource" in source:
            yield key, _file_system(source["FileSystemDataSource"]) | own
        elif "S3DataSource" in source:
            yield key, input_of(source["S3DataSource"], channel, job_mode) | own


def _input_name(channel: str, used_names: set[str]) -> str:
    """Return the channel's name. If an input cannot have this name, return a similar one, not in
    `used_names`."""
    if re.fullmatch(PLACE_NAME, channel):
        return channel
    name = re.sub(r"\W", "_", channel, flags=re.ASCII)
    name = f"_{name}" if name[:1].isdigit() else name
    while name in used_names:
        name += "_"
    return name


def _file_system(source: JsonMapping) -> JsonObject:
    scheme = "efs" if source.get("FileSystemType") == "EFS" else "fsx"
    place = f"{scheme}://{source.get('FileSystemId', '')}{source.get('DirectoryPath', '')}"
    return {"sagemaker": place} | (
        {"access": "rw"} if source.get("FileSystemAccessMode") == "rw" else {}
    )


def input_of(source: JsonMapping, channel: JsonMapping, job_mode: str) -> JsonObject:
    item = {
        "sagemaker": source.get("S3Uri", ""),
        "mode": MODES.get(channel.get("InputMode", job_mode)),
        "shard": source.get("S3DataDistributionType") == "ShardedByS3Key" or None,
        "data_type": _DATA_TYPES.get(source.get("S3DataType")),
        "content_type": channel.get("ContentType"),
        "compression": "gzip" if channel.get("CompressionType") == "Gzip" else None,
        "record_wrapper": "recordio" if channel.get("RecordWrapperType") == "RecordIO" else None,
        "shuffle_seed": mapping_at(channel, "ShuffleConfig").get("Seed"),
        "attribute_names": source.get("AttributeNames") or None,
        "instance_groups": source.get("InstanceGroupNames") or None,
    }
    return {name: value for name, value in item.items() if value is not None}


_UNLESS_EMPTY = frozenset(
    "output_kms_key volume_kms_key network_isolation encrypt_inter_container_traffic "
    "remote_debug infra_check "
    "session_tags profiler_parameters debugger_parameters".split()
)
"""Settings whose empty value is the default."""


def _settings(original: Original) -> JsonObject:
    request = original.request
    output = value_at(request, "OutputDataConfig", "S3OutputPath")
    settings: JsonObject = {"role": None, "region": region_of(original)}
    settings |= _by_table(request, "settings") | monitoring_settings(request, output)
    settings |= _by_table(request, "settings_of_records")
    settings["compress_output"] = False if settings["compress_output"] == "NONE" else None
    checkpoint = str(settings["checkpoint_path"])
    if checkpoint == CHECKPOINT_DIR or not re.fullmatch(CHECKPOINT_PATH, checkpoint):
        settings["checkpoint_path"] = None
    mode = value_at(request, "AlgorithmSpecification", "TrainingInputMode")
    settings["input_mode"] = MODES.get(mode) if mode != "File" else None
    return {name: value for name, value in settings.items() if value is not None}


def _by_table(request: JsonMapping, table: str) -> JsonObject:
    values = {name: value_at(request, *path.split(".")) for name, path in SDK_TABLES[table].items()}
    return {
        name: None if name in _UNLESS_EMPTY and not value else value
        for name, value in values.items()
    }


def region_of(original: Original) -> str | None:
    """Return the region of the request's hyperparameters, else of the settings or of the image's
    address."""
    request = original.request
    parameters = mapping_at(request, "HyperParameters")
    region = own_value(parameters.get(REGION)) or original.settings.get("region")
    if isinstance(region, str) and region:
        return region
    image = _REGION.match(text_at(request, "AlgorithmSpecification", "TrainingImage"))
    return image["region"] if image else None


def code_uri(request: JsonMapping) -> str | None:
    """Return the location of the request's code; None if the request does not name one."""
    submit_directory = own_value(mapping_at(request, "HyperParameters").get(SUBMIT_DIRECTORY))
    if isinstance(submit_directory, str) and submit_directory.startswith("s3://"):
        return submit_directory
    return place_of(request, CODE) or None
