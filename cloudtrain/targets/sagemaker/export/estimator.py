"""Turn a CreateTrainingJob request into the estimator of version 2 of the SDK that sends exactly
this request.

cloudtrain takes the first of three forms that gives the same request:

1. The framework's class with a `distribution`, as a user would write it by hand.
2. The framework's class with explicit `sagemaker_*` hyperparameters, if the SDK has no
   `distribution` for them or refuses it.
3. The generic `Estimator` with every hyperparameter as text and the code as a channel. This form is
   for requests that start cloudtrain's launcher, and for requests that the framework's class would
   change.

Facts about the SDK are those of version 2.257.7.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from cloudtrain.errors import JobError, TargetError, dotted, quoted
from cloudtrain.targets.common.export import Call, Fields, Program, Ref
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
    ToolkitScript,
    fit_inputs,
    script_of,
)
from cloudtrain.targets.sagemaker.fields import (
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
    NAME,
    OUTPUT,
    PARAMETERS,
    PROFILER,
    PROFILER_RULES,
    RULE_FIELDS,
    SERVICE_METRICS,
    SPOT,
    TENSORBOARD,
    TRAINING_FIELDS,
)
from cloudtrain.targets.sagemaker.reading import image_in
from cloudtrain.targets.sagemaker.request import INFO, JsonMapping, JsonObject, only, without_nulls

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
    if image is None or image.sdk != 2 or image.device == "neuron" or not image.python:
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
    arguments["collection_configs"] = list(
        map(_collection, hook.get("CollectionConfigurations", ()))
    )
    return {"debugger_hook_config": Call("sagemaker.debugger.DebuggerHookConfig", arguments)}


def _collection(row: JsonObject) -> Call:
    arguments = {"name": row["CollectionName"], "parameters": row.get("CollectionParameters")}
    return Call("sagemaker.debugger.CollectionConfig", without_nulls(arguments))


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


# Pass code, image and hyperparameters to SDK version 2, in one of the three forms of
# `estimator.py`.


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


SDK = "version 2 of the SageMaker SDK"


def estimator_program(request: JsonObject, region: str, profile: str | None = None) -> Program:
    """Return the calls of version 2 that send exactly `request`. Raises a `TargetError` for fields
    that the SDK cannot express."""
    left_out = set(_left_out(request))
    if left_out:
        raise refuse(SDK, [f"{path} left out" for path in sorted(left_out)])

    fields = Fields(request)
    arguments = _common(fields)
    experiment = fields.take(EXPERIMENT)
    metrics = fields.take(SERVICE_METRICS)
    for path in (IMAGE, PARAMETERS, CHANNELS):  # `form_of` expresses them
        fields.take(path)
    _, left_of_channels = fit_inputs(request.get(CHANNELS, []))
    left = fields.remaining_paths() + left_of_channels
    if left:
        raise refuse(SDK, left)

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
