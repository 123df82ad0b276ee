"""The exports of a plan: its CreateTrainingJob request as calls of the SageMaker SDK.

Version 2's estimator sends exactly this request. cloudtrain takes the first of three forms that
gives it:

1. The framework's class with a `distribution`, as a user would write it by hand.
2. The framework's class with explicit `sagemaker_*` hyperparameters, if the SDK has no
   `distribution` for them or refuses it.
3. The generic `Estimator` with every hyperparameter as text and the code as a channel. This form is
   for requests that start cloudtrain's launcher, and for requests that the framework's class would
   change.

Version 3's `ModelTrainer` takes the first of two forms that can start the job:

1. With version 3's own drivers, which a channel brings. They start torchrun, MPI and plain scripts.
2. Without these drivers: the request's hyperparameters are unchanged, for the toolkit in the image.

The trainer sends the request with the changes in `DIFFERENCES`, and with drivers also those in
`WITH_DRIVERS`: version 3 offers no way to avoid these changes.

Facts about the SDK are those of versions 2.257.7 and 3 (sagemaker-train 1.27.0).
"""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from cloudtrain.errors import CloudtrainError, JobError, TargetError, UsageError, dotted, quoted
from cloudtrain.plans.plan import Plan
from cloudtrain.runtime.sagemaker_launcher import LAUNCH_KEY
from cloudtrain.targets.common.export import (
    Call,
    Fields,
    Program,
    Ref,
    build,
    build_arguments,
    python_code,
)
from cloudtrain.targets.sagemaker.aws_errors import FailedCall, errors_of_boto3, translate_error
from cloudtrain.targets.sagemaker.catalogue.images import (
    SMP2_REPOSITORY,
    device_of,
    image_of_uri,
    resolve_image,
)
from cloudtrain.targets.sagemaker.catalogue.shapes import violations
from cloudtrain.targets.sagemaker.export import distributions as dist
from cloudtrain.targets.sagemaker.export.distributions import (
    SDK_TABLES,
    StartedScript,
    ToolkitScript,
    fit_inputs,
    script_of,
    snake_case,
    start_of,
)
from cloudtrain.targets.sagemaker.fields import (
    ALGORITHM,
    CHANNELS,
    CHECKPOINT,
    DEBUG_RULES,
    DEBUGGER,
    ENCRYPTION,
    EXPERIMENT,
    GROUP_FIELDS,
    IMAGE,
    ISOLATION,
    LIMITS,
    MACHINES,
    METRICS,
    NAME,
    NETWORK,
    OUTPUT,
    PARAMETERS,
    PROFILER,
    PROFILER_RULES,
    ROLE,
    RULE_FIELDS,
    SERVICE_METRICS,
    SPOT,
    TAGS,
    TENSORBOARD,
    TRAINING_FIELDS,
    VARIABLES,
)
from cloudtrain.targets.sagemaker.plan import TRAINING, S3Uri, is_of_api
from cloudtrain.targets.sagemaker.reading import image_in, instances_in
from cloudtrain.targets.sagemaker.request import INFO, JsonMapping, JsonObject, only, without_nulls
from cloudtrain.targets.sagemaker.settings import AwsPlace

# Find the SDK version 2 class for a request's image, and the version arguments that select this
# image.

_BASES = {"pytorch": "pytorch_version", "tensorflow": "tensorflow_version"}
_VERSIONS = ("framework_version", *_BASES.values())


def version_arguments(
    uri: str, region: str, types: Sequence[str], distribution: JsonMapping
) -> dict[str, str] | None:
    """Return the version arguments for which the SDK chooses exactly the image `uri`; None if there
    are none."""
    image = image_of_uri(uri)
    if image is None or image.sdk != 2:
        return None
    if image.device == "neuron" or not image.python:
        return None
    library = distribution.get("smdistributed", {})
    smp2 = "torch_distributed" in distribution and "modelparallel" in library
    if smp2 != (image.repository == SMP2_REPOSITORY):
        return None
    of_gpus = [name for name in types if device_of(name) == "gpu"]
    try:
        picked = resolve_image(
            image.framework,
            image.version,
            region=region,
            instance=of_gpus[0] if of_gpus else types[0],  # the SDK chooses by the same type
            python=image.python,
            base=image.base or None,
            smp2=smp2,
            smdistributed="smdistributed" in distribution,
        )
    except JobError:
        return None
    if picked.uri != image.uri:
        return None
    if image.framework != "huggingface":
        return {"framework_version": image.version, "py_version": image.python}
    base, version = image.engine
    return {
        "transformers_version": image.version,
        _BASES[base]: version,
        "py_version": image.python,
    }


# Turn a request's debugger, profiler and TensorBoard fields into arguments of SDK version 2's
# estimators.


def monitoring_arguments(fields: Fields, output: str) -> JsonObject:
    """Return the estimator's arguments for these fields. Fields that no argument can express stay
    in `fields`.

    `output` is the S3 folder that the SDK uses by default.
    """
    rows = fields.take(DEBUG_RULES, ())
    # the SDK drops it from a plain rule
    if any("action_json" in row.get("RuleParameters", {}) for row in rows):
        fields.put_back(DEBUG_RULES, rows)
        rows = ()
    rules = [_rule("Rule", row) for row in rows]

    # the SDK refuses profiler rules if the profiler is off
    if fields.take_if(f"{PROFILER}.DisableProfiler", False):
        for row in fields.take(PROFILER_RULES, ()):
            rules.append(_rule("ProfilerRule", row))

    arguments = _hook(fields.take(DEBUGGER), output)
    if rules:
        arguments["rules"] = rules
    board = fields.take(TENSORBOARD)
    if board is not None:
        arguments["tensorboard_output_config"] = Call(
            "sagemaker.debugger.TensorBoardOutputConfig", _places(board)
        )
    return arguments | _profiler(fields, output)


def _rule(kind: str, rule: JsonObject) -> Call:
    """Return the SDK's object for a rule. `kind` is its class: `Rule` or `ProfilerRule`."""
    arguments = {field.word: rule.get(field.request) for field in RULE_FIELDS if field.word}
    arguments["rule_parameters"] = dict(rule.get("RuleParameters", {}))
    if kind == "Rule":
        arguments["collections_to_save"] = []
    return Call(f"sagemaker.debugger.{kind}", arguments)


def _hook(hook: JsonObject | None, output: str) -> JsonObject:
    """Return the argument for the debugger; empty if it is the SDK's default."""
    if hook is None:
        return {"debugger_hook_config": False}
    if hook == {"S3OutputPath": output, "CollectionConfigurations": []}:
        return {}
    arguments = _places(hook)
    if "HookParameters" in hook:
        arguments["hook_parameters"] = hook["HookParameters"]
    collections = []
    for row in hook.get("CollectionConfigurations", ()):
        words = {"name": row["CollectionName"], "parameters": row.get("CollectionParameters")}
        collections.append(Call("sagemaker.debugger.CollectionConfig", without_nulls(words)))
    arguments["collection_configs"] = collections
    return {"debugger_hook_config": Call("sagemaker.debugger.DebuggerHookConfig", arguments)}


def _places(config: JsonObject) -> JsonObject:
    """Return the arguments for the folders of a debugger's or TensorBoard's output."""
    return without_nulls(
        {
            "s3_output_path": config["S3OutputPath"],
            "container_local_output_path": config.get("LocalPath"),
        }
    )


def _profiler(fields: Fields, output: str) -> JsonObject:
    """Return the argument for the profiler; empty if it is the SDK's default."""
    if fields.take_if(f"{PROFILER}.DisableProfiler", True):
        return {"disable_profiler": True}
    fields.take(f"{PROFILER}.DisableProfiler")
    place = fields.take(f"{PROFILER}.S3OutputPath")
    interval = fields.take(f"{PROFILER}.ProfilingIntervalInMilliseconds")
    if place == output and interval is None:
        return {}
    arguments = {"s3_output_path": place}
    if interval:
        arguments["system_monitor_interval_millis"] = interval
    return {"profiler_config": Call("sagemaker.debugger.ProfilerConfig", arguments)}


# Pass code, image and hyperparameters to SDK version 2, in one of the three forms above.


@dataclass(frozen=True)
class Form:
    """The class of an estimator, and the arguments that depend on the class."""

    framework: str | None
    """The framework whose class is used; None for the generic `Estimator`."""
    arguments: JsonObject
    channels: list[JsonObject]
    """The channels that the user gives to `fit`."""
    metrics: bool | None = None
    """The class's default of `EnableSageMakerMetricsTimeSeries`."""
    notes: tuple[str, ...] = ()
    """Explanations for calls that may surprise the user."""


def form_of(request: JsonObject, region: str) -> Form:
    """Return the first of the three forms with which the SDK sends exactly this request."""
    script = script_of(request, region)
    if script is None:
        return _generic(request)

    framework = _framework(request, script)
    keeps_checkpoints = "LocalPath" in request.get(CHECKPOINT, {})
    if framework in ("pytorch", "tensorflow") and DEBUGGER in request and keeps_checkpoints:
        return _generic(
            request, "Beside a checkpoint, the framework's class would turn the debugger off."
        )
    return _with_script(request, script, framework, region)


def _generic(request: JsonObject, *notes: str) -> Form:
    """Return the form with the generic `Estimator`."""
    arguments: JsonObject = {"image_uri": image_in(request)}
    if request.get(PARAMETERS):
        arguments["hyperparameters"] = dict(request[PARAMETERS])
    return Form(None, arguments, list(request.get(CHANNELS, ())), notes=notes)


def _framework(request: JsonObject, script: ToolkitScript) -> str | None:
    """Return the framework whose class is used; None for the generic `Estimator`.

    For an AWS image, this is the image's framework. For a user's own image, a class that supports
    the job's distribution is chosen, because the generic class ignores `distribution`.
    """
    image = image_of_uri(image_in(request))
    if image is not None:
        return image.framework
    distribution = dist.distribution_of(script.values)
    if distribution.keys() & {"parameter_server", "multi_worker_mirrored_strategy"}:
        return "tensorflow"
    return "pytorch" if distribution else None


def _with_script(
    request: JsonObject, script: ToolkitScript, framework: str | None, region: str
) -> Form:
    arguments: JsonObject = {"entry_point": script.entry_point, "source_dir": script.source_dir}
    if script.log_level != INFO:
        arguments["container_log_level"] = script.log_level

    values = dict(script.values)
    notes: tuple[str, ...] = ()
    if framework is None:
        arguments["image_uri"] = image_in(request)
    else:
        image, note = _image_arguments(request, script, framework, region, values)
        arguments |= image
        notes = tuple(filter(None, [note]))

    if framework == "tensorflow":
        arguments |= _model_dir(values, request, arguments.get("distribution", {}))
    if values:
        arguments["hyperparameters"] = values
    sends_metrics = framework == "huggingface" or "framework_version" in arguments
    return Form(framework, arguments, script.channels, sends_metrics or None, notes)


def _model_dir(values: JsonObject, request: JsonObject, distribution: JsonObject) -> JsonObject:
    """Return the argument `model_dir`; empty if its value is the default of the TensorFlow class.

    The class sends the value as a hyperparameter, except if it is False.
    """
    value = values.pop("model_dir", False)
    default = "/opt/ml/model"
    if not distribution.get("mpi", {}).get("enabled", False):
        output = request[OUTPUT]["S3OutputPath"].rstrip("/")
        default = f"{output}/{request[NAME]}/model"
    return {} if value == default else {"model_dir": value}


def _image_arguments(
    request: JsonObject, script: ToolkitScript, framework: str, region: str, values: JsonObject
) -> tuple[JsonObject, str]:
    """Return the estimator's arguments for the image and the distribution, and a note, or an empty
    one. Remove the hyperparameters from `values` that the SDK sends for the distribution.

    The image is given as a version if the SDK chooses exactly this image for the version, or else
    by its URI.
    """
    uri = image_in(request)
    resources = request[MACHINES]
    distribution = dist.distribution_of(values)
    groups = resources.get("InstanceGroups", ())
    setting = dist.Setting(
        framework,
        instance_type=resources.get("InstanceType"),
        groups={group["InstanceGroupName"]: group["InstanceType"] for group in groups},
        entry_point=script.entry_point,
        debugger=DEBUGGER in request,
    )
    by_uri: JsonObject = {"image_uri": uri}
    if framework == "huggingface":
        by_uri["py_version"] = None
    with_uri = dict(by_uri)
    # the SDK checks the version even if an image is given
    if "multi_worker_mirrored_strategy" in distribution:
        entry = image_of_uri(uri)
        with_uri["framework_version"] = entry.engine[1] if entry else None
    by_version = version_arguments(uri, region, setting.types, distribution)

    reason = None
    for image in (by_version, with_uri):
        if image is None:
            continue
        if not distribution:
            return image, ""
        versions = [*only(image, _VERSIONS).values(), None]
        uri_given = image.get("image_uri", "")
        candidate = replace(setting, image_uri=uri_given, version=versions[0])
        reason = dist.objection(distribution, values, candidate)
        if reason is None:
            for name in dist.sdk_hyperparameters(distribution, candidate):
                values.pop(name, None)
            lost = [name for name in values if name in dist.KEYS]
            note = f"The SDK's `distribution` would not send {quoted(lost)}." if lost else ""
            return {**image, "distribution": _with_group_objects(distribution, setting)}, note

    note = f"The SDK's own `distribution` is not used: {reason}."
    return version_arguments(uri, region, setting.types, {}) or by_uri, note


def _with_group_objects(distribution: JsonObject, setting: dist.Setting) -> JsonObject:
    """Replace the names of instance groups by group objects, which the SDK compares by identity."""
    if "instance_groups" not in distribution:
        return distribution
    names = list(setting.groups)
    groups = [Ref("instance_groups", names.index(one)) for one in distribution["instance_groups"]]
    return {**distribution, "instance_groups": groups}


# The error for requests that an SDK cannot express.


def refuse(sdk: str, paths: Iterable[str]) -> TargetError:
    """Return an error with all fields that an SDK cannot express. Its hint says how to send them
    without the SDK."""
    names = quoted(paths)
    return TargetError(
        f"{sdk} cannot express {names}",
        hint="send the request itself: "
        "`boto3.client('sagemaker').create_training_job(**plan.request)`, "
        "or `cloudtrain submit`",
        code="CT904",
    )


# The session of an SDK: region and credentials, without defaults from configuration files.

NO_CONFIGURATION = {
    "SchemaVersion": "1.0",
    "SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}},
}
"""An explicit session configuration without defaults for jobs, which keeps the SDK from reading
configuration files."""

NO_WAIT = {"wait": False}
"""The argument that makes printed code continue as soon as the job has started."""


def boto_session(region: str, profile: str | None) -> Call:
    """Return a boto3 session with the profile's credentials, or with boto3's default
    credentials."""
    arguments = {"region_name": region}
    if profile:
        arguments["profile_name"] = profile
    return Call("boto3.Session", arguments)


_SDK_2 = "version 2 of the SageMaker SDK"


def estimator_program(request: JsonObject, region: str, profile: str | None = None) -> Program:
    """Return the calls of version 2 that send exactly `request`. Raises a `TargetError` for fields
    that the SDK cannot express."""
    left_out = set(_left_out(request))
    if left_out:
        raise refuse(_SDK_2, [f"{path} left out" for path in sorted(left_out)])

    fields = Fields(request)
    arguments = _common(fields)
    experiment = fields.take(EXPERIMENT)
    metrics = fields.take(SERVICE_METRICS)
    for path in (IMAGE, PARAMETERS, CHANNELS):  # `form_of` expresses them
        fields.take(path)
    _, left_of_channels = fit_inputs(request.get(CHANNELS, []))
    left = fields.remaining_paths() + left_of_channels
    if left:
        raise refuse(_SDK_2, left)

    form = form_of(request, region)
    inputs, _ = fit_inputs(form.channels)
    if metrics != form.metrics:
        arguments["enable_sagemaker_metrics"] = metrics
    name = SDK_TABLES["estimators"][form.framework or "generic"]
    arguments["sagemaker_session"] = Ref("session")
    estimator = Call(name, form.arguments | arguments)
    # an explicit configuration, so that defaults from configuration files do not change the request
    session = {"boto_session": boto_session(region, profile), "sagemaker_config": NO_CONFIGURATION}
    variables = {
        "session": Call("sagemaker.session.Session", session),
        **_groups(request),
        "estimator": estimator,
    }
    fit = {"inputs": inputs or None, "job_name": request[NAME], "experiment_config": experiment}
    return Program(
        variables, "fit", without_nulls(fit), "sagemaker-sdk", form.notes, in_code=NO_WAIT
    )


_ALWAYS_SENT = (
    (MACHINES, "VolumeSizeInGB"),
    (LIMITS, "MaxRuntimeInSeconds"),
    (OUTPUT, "S3OutputPath"),
    (PROFILER, "DisableProfiler"),
)
"""Fields that the SDK always sends, because it fills in missing ones."""


def _left_out(request: JsonObject) -> Iterator[str]:
    """Yield the missing fields that the SDK would add, and those that the service requires."""
    for section, name in _ALWAYS_SENT:
        if name not in request.get(section, {}):
            yield f"{section}.{name}"
    for fault in violations(request):
        if fault.kind == "missing":
            yield dotted(fault.path)


def _common(fields: Fields) -> JsonObject:
    """Return the arguments that all classes share, and remove the matching fields from `fields`."""
    fields.take(NAME)
    values: JsonObject = {}
    for field in TRAINING_FIELDS:
        if field.request in (SPOT, ISOLATION, ENCRYPTION):  # sent only if true
            values[field.word] = fields.take_if(field.request, True) or None
        elif field.word:
            values[field.word] = fields.take(field.request)
    if fields.take(f"{MACHINES}.InstanceGroups"):
        values["instance_groups"] = Ref("instance_groups")
    if fields.take_if(f"{OUTPUT}.CompressionType", "NONE"):
        values["disable_output_compression"] = True
    if values["input_mode"] == "File":
        del values["input_mode"]
    return without_nulls(values) | monitoring_arguments(fields, str(values["output_path"]))


def _groups(request: JsonObject) -> dict[str, list[Call]]:
    """Return the variable with the instance groups; empty for a job without groups."""
    groups = []
    for group in request[MACHINES].get("InstanceGroups", ()):
        arguments = {field.word: group[field.request] for field in GROUP_FIELDS}
        groups.append(Call("sagemaker.instance_group.InstanceGroup", arguments))
    return {"instance_groups": groups} if groups else {}


# The trainer of version 3.

_SDK_3 = "version 3 of the SageMaker SDK"
EXTRA = "sagemaker-sdk-3"

DIFFERENCES: dict[str, str] = SDK_TABLES["differences"]
"""Maps fields to the change that version 3 always makes."""

WITH_DRIVERS: dict[str, str] = SDK_TABLES["with_drivers"]
"""Maps fields to the change that version 3 always makes for its drivers."""

SMP_PARAMETERS = frozenset(SDK_TABLES["names"]["smp_parameters"].split())
"""The parameters that version 3's `SMP` accepts."""

_SHAPES = "sagemaker.core.shapes"
_CONFIGS = "sagemaker.core.training.configs"


def trainer_program(request: JsonObject, region: str, profile: str | None = None) -> Program:
    """Return the calls of version 3 that send `request` with the changes in `DIFFERENCES` and
    `WITH_DRIVERS`."""
    start = start_of(request, region)
    obstacles = _obstacles(start, request)
    if obstacles and "ContainerEntrypoint" in request[ALGORITHM]:
        raise refuse(_SDK_3, obstacles)
    by_drivers = None if obstacles else start

    fields = Fields(request)
    fields.take_if(f"{PROFILER}.DisableProfiler", True)
    kept_whole = (PARAMETERS, CHANNELS)
    for path in (*DIFFERENCES, *(WITH_DRIVERS if by_drivers else kept_whole)):
        if path != PROFILER:
            fields.take(path)
    arguments: JsonObject = {"sagemaker_session": Ref("session")}
    arguments |= _arguments(fields, request[NAME][:48])
    if by_drivers:
        arguments |= _with_drivers(by_drivers)
    elif request.get(PARAMETERS):
        arguments["hyperparameters"] = dict(request[PARAMETERS])

    steps = _steps(fields)
    left = fields.remaining_paths()
    if left:
        raise refuse(_SDK_3, left)

    session: JsonObject = {"boto_session": boto_session(region, profile)}
    if by_drivers:
        # the session uploads the drivers to the bucket of the code
        session["default_bucket"] = S3Uri.parse(by_drivers.archive).bucket
    session["sagemaker_config"] = NO_CONFIGURATION
    channels = by_drivers.channels if by_drivers else request.get(CHANNELS, [])
    return Program(
        {
            "session": Call("sagemaker.core.helper.session_helper.Session", session),
            "trainer": Call("sagemaker.train.model_trainer.ModelTrainer", arguments),
        },
        "train",
        {"input_data_config": _shapes("Channel", channels)},
        EXTRA,
        tuple(_notes(by_drivers, request)),
        tuple(steps),
        NO_WAIT,
    )


def _notes(by_drivers: StartedScript | None, request: JsonObject) -> Iterator[str]:
    """Yield what the written code says about how version 3 starts the job."""
    if by_drivers is None:
        yield "The image's own toolkit starts the job: version 3 has no driver."
        return
    instances = instances_in(request[MACHINES]) or 1
    if by_drivers.launcher == "mpirun" and instances > 1:
        yield (
            "Version 3's MPI driver asks mpirun for the processes of one instance: the "
            "others stay idle."
        )


def _obstacles(start: StartedScript | None, request: JsonObject) -> list[str]:
    """Return the fields and features with which version 3's drivers cannot start the job; empty if
    they can start it.

    The drivers start torchrun, MPI and plain scripts, always on all instances. Their shell script
    does not escape hyperparameters, so values with `'` are listed too.
    """
    if start is None:
        return [PARAMETERS]
    obstacles = []
    if start.launcher not in ("torchrun", "mpirun", "single"):
        obstacles.append(f"{PARAMETERS}.{start.launcher}")
    groups = request[MACHINES].get("InstanceGroups", ())
    names = [group["InstanceGroupName"] for group in groups]
    if start.groups and set(start.groups) != set(names):
        obstacles.append("a distribution over some of the instance groups")
    if start.launcher == "torchrun":
        for name in sorted(start.model_parallel or ()):
            if name not in SMP_PARAMETERS:
                obstacles.append(f"mp_parameters.{name}")
    command = start.command
    if command is not None:
        is_one_line = " ".join(command.split()) == command
        if start.launcher != "single" or not is_one_line:
            obstacles.append(f"the command `{command}`")
    for name, text in start.hyperparameters.items():
        if "'" in text or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            obstacles.append(f"{PARAMETERS}.{name}")
    return obstacles


_PARTS = (LIMITS, OUTPUT, CHECKPOINT, f"{ALGORITHM}.TrainingImageConfig")
"""Fields of the request that are arguments of the trainer, each with the class of its name."""


def _arguments(fields: Fields, base_name: str) -> JsonObject:
    """Return the arguments of `ModelTrainer` that are the same with and without version 3's
    drivers."""
    compute = _shape(f"{_CONFIGS}.Compute", fields.take(MACHINES))
    if fields.take_if(SPOT, True):
        compute.arguments["enable_managed_spot_training"] = True
    network = _shape(f"{_CONFIGS}.Networking", fields.take(NETWORK, {}))
    for flag in (ISOLATION, ENCRYPTION):  # sent only if true
        if fields.take_if(flag, True):
            network.arguments[snake_case(flag)] = True
    tags = _shapes("Tag", fields.take(TAGS, []))
    arguments: JsonObject = {
        "role": fields.take(ROLE),
        "base_job_name": base_name,
        "training_image": fields.take(IMAGE),
        "training_input_mode": fields.take(f"{ALGORITHM}.TrainingInputMode", "File"),
        "compute": compute,
        "networking": network if network.arguments else None,
        "environment": fields.take(VARIABLES),
        "tags": tags or None,
    }
    for path in _PARTS:
        name = path.rpartition(".")[2]
        value = fields.take(path)
        if value is not None:
            arguments[snake_case(name)] = _shape(f"{_SHAPES}.{name}", value)
    return without_nulls(arguments)


def _with_drivers(start: StartedScript) -> JsonObject:
    """Return the arguments of `ModelTrainer` for a job that version 3's drivers start."""
    code = {
        "source_dir": start.archive,
        "entry_script": start.entry_point,
        "command": start.command,
        "requirements": start.requirements,
    }
    arguments = {
        "source_code": Call(f"{_CONFIGS}.SourceCode", without_nulls(code)),
        "distributed": _distribution_call(start),
        "hyperparameters": start.hyperparameters or None,
    }
    return without_nulls(arguments)


def _distribution_call(start: StartedScript) -> Call | None:
    if start.launcher == "single":
        return None
    arguments: JsonObject = {}
    if start.processes is not None:
        arguments["process_count_per_node"] = start.processes
    if start.launcher == "mpirun":
        if start.mpi_options:
            arguments["mpi_additional_options"] = shlex.split(start.mpi_options)
        return Call("sagemaker.train.distributed.MPI", arguments)
    if start.model_parallel is not None:
        arguments["smp"] = Call("sagemaker.train.distributed.SMP", dict(start.model_parallel))
    return Call("sagemaker.train.distributed.Torchrun", arguments)


def _steps(fields: Fields) -> list[tuple[str, JsonObject]]:
    """Return the trainer's methods to call before `train`, for fields that are no arguments."""
    steps: list[tuple[str, JsonObject]] = []
    for name, argument in SDK_TABLES["steps"].items():
        value = fields.take(name)
        if value is not None:
            shape = _shape(f"{_SHAPES}.{name}", value)
            steps.append((f"with_{argument}", {argument: shape}))
    metrics = fields.take(METRICS)
    if metrics is not None:
        shapes = _shapes("MetricDefinition", metrics)
        steps.append(("with_metric_definitions", {"metric_definitions": shapes}))
    return steps


def _shape(name: str, value: JsonObject) -> Call:
    """Turn a part of the request into an object of version 3, which has the same field names in
    snake case."""
    arguments = {snake_case(key): _value(key, inner) for key, inner in value.items()}
    return Call(name, arguments)


def _value(key: str, value: Any) -> Any:
    """Return a field's value: an object of version 3, a list of them, or the value as it is."""
    nested = SDK_TABLES["nested"].get(key)
    if nested is None:
        return value
    if isinstance(value, list):
        return _shapes(nested, value)
    return _shape(f"{_SHAPES}.{nested}", value)


def _shapes(name: str, values: list[JsonObject]) -> list[Call]:
    return [_shape(f"{_SHAPES}.{name}", value) for value in values]


# The exports of a plan: objects and code of the SDK, and the format of the AWS command line.


@dataclass(frozen=True)
class SageMakerExports:
    """Exports a plan to the tools that AWS offers. Everything is made from `plan.request`.

    If you start the job with the SDK, the archive of the code must already be at the S3 address in
    `plan.uploads`. `cloudtrain submit --upload-only` uploads it.
    """

    _plan: Plan

    @classmethod
    def of(cls, plan: Plan) -> SageMakerExports | None:
        """Return the exports of a plan; None if its request is not one of SageMaker's API."""
        return cls(plan) if is_of_api(plan.request) else None

    def to_estimator(self, session: object = None) -> object:
        """Return the estimator of version 2 of the SDK whose `fit` sends exactly `request`.

            plan.to_estimator().fit(**plan.fit_arguments())

        It is the framework's estimator with a `distribution` where the image's toolkit starts the
        job. Where cloudtrain's own launcher does, for example because the toolkit's shell would
        break a list among the hyperparameters, it is the SDK's generic `Estimator` without a
        `distribution`. A Python warning then says so, with the reason, as it does for everything
        else that the SDK cannot say in its usual way.

        If you pass a `sagemaker.Session`, it must use this plan's region. Its configuration must
        set no defaults for training jobs, because the SDK would add them to the request. By
        default, cloudtrain makes a session that reads no configuration files and sends no
        telemetry.

        Raises:
            MissingExtra: the SDK is not installed.
            TargetError: the SDK cannot express a field of the request; the message names it. Or
                AWS does not answer the SDK.
            SettingsError: there is no such AWS profile.
            UsageError: the plan is not for a training job.
        """
        return self._built(self._estimator(), session)

    def fit_arguments(self) -> JsonObject:
        """Return the arguments for the estimator's `fit`: inputs, the job's name, and the
        experiment.

        Raises: the same errors as `to_estimator`.
        """
        return build_arguments(self._estimator())

    def to_python(self, sdk: Literal[2, 3] = 2) -> str:
        """Return Python code that starts the job with version `sdk` of the SDK.

        The code makes an estimator for version 2, and a `ModelTrainer` for version 3. The SDK need
        not be installed.

        Raises:
            TargetError: the SDK cannot express a field of the request; the message names it.
            UsageError: the plan is not for a training job.
        """
        program = self._estimator() if sdk == 2 else self._trainer()
        install = "pip install 'sagemaker<3'" if sdk == 2 else "pip install 'sagemaker>=3'"
        name = self._plan.run_name
        title = f"Training job `{name}`, for version {sdk} of the SageMaker Python SDK: {install}"
        if self._plan.uploads:
            title += (
                "\n\nThe archive of the code must be in its place: `cloudtrain submit` "
                "puts it there.\n"
            )
        return python_code(program, title=title)

    def to_model_trainer(self, session: object = None) -> object:
        """Return the `ModelTrainer` of version 3 of the SDK.

            plan.to_model_trainer().train(**plan.train_arguments())

        In version 3, the SDK's own drivers start torchrun, MPI and plain scripts. The image's
        toolkit starts all other jobs. The trainer sends `request`, except for the fields in
        `export.exports.DIFFERENCES` and `WITH_DRIVERS`, which version 3 always changes, such as the
        job's name. The drivers pass `True` to the script as `true`, and run an MPI job only on the
        first instance. The SDK sends a request to IAM when the trainer is made.

        Raises:
            MissingExtra: the SDK is not installed.
            TargetError: version 3 cannot express a field of the request, or cannot start the job;
                the message names it. Or AWS does not answer the SDK, which asks IAM about the role.
            SettingsError: there is no such AWS profile.
            UsageError: the plan is not for a training job.
        """
        return self._built(self._trainer(), session)

    def train_arguments(self) -> JsonObject:
        """Return the arguments for the trainer's `train`: the inputs.

        Raises: the same errors as `to_model_trainer`.
        """
        return build_arguments(self._trainer())

    def _built(self, program: Program, session: object) -> object:
        """Return the object that a program makes. Warn the caller of the public method of what is
        unusual about it."""
        for note in program.notes:
            warnings.warn(note, stacklevel=4)
        try:
            return build(program, session=session)[0]
        except CloudtrainError:
            raise
        except errors_of_boto3() as error:
            place = AwsPlace.parse(self._plan.place)
            raise translate_error(
                error, FailedCall("iam", "SimulatePrincipalPolicy", place.region, place.profile)
            ) from error

    def _estimator(self) -> Program:
        request, region, profile = self._training_job()
        program = estimator_program(request, region, profile)
        if LAUNCH_KEY not in request.get(PARAMETERS, {}):
            return program
        reason = dict(self._plan.summary).get("launch", "cloudtrain's own launcher")
        note = (
            "The SDK's generic `Estimator` sends this job, without a `distribution`, because the "
            f'job starts through {reason}. With `launch = "toolkit"` under `[sagemaker]`, it would '
            "be the framework's class, if the image's toolkit can start the job."
        )
        return program._replace(notes=(*program.notes, note))

    def _trainer(self) -> Program:
        return trainer_program(*self._training_job())

    def _training_job(self) -> tuple[JsonObject, str, str | None]:
        """Return the request of a training job, the AWS region to which it is sent, and the
        target's AWS profile."""
        if TRAINING.name not in self._plan.request:
            raise UsageError(
                "only training jobs can be exported to the SageMaker SDK",
                hint="print the request with `--format aws-cli`, or send `plan.request` with boto3",
                code="CT904",
            )
        place = AwsPlace.parse(self._plan.place)
        return self._plan.request, place.region or "", place.profile
