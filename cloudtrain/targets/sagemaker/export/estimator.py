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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cloudtrain.errors import JobError, TargetError, dotted
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
    without_nulls,
)
from cloudtrain.targets.sagemaker.request import INFO, JsonMapping, JsonObject

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
    # the SDK chooses by the same type
    instance = next((name for name in types if device_of(name) == "gpu"), types[0])
    smp2 = "torch_distributed" in distribution and "modelparallel" in distribution.get(
        "smdistributed", {}
    )
    if smp2 != (image.repository == SMP2_REPOSITORY):
        return None
    try:
        picked = resolve_image(
            image.framework,
            image.version,
            region=region,
            instance=instance,
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

HOOK = "DebugHookConfig"
PROFILER = "ProfilerConfig"
DEBUG_RULES = "DebugRuleConfigurations"


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
        rules += [
            _rule("ProfilerRule", row) for row in fields.take("ProfilerRuleConfigurations", ())
        ]
    arguments = _hook(fields.take(HOOK), output) | ({"rules": rules} if rules else {})
    board = fields.take("TensorBoardOutputConfig")
    if board is not None:
        arguments["tensorboard_output_config"] = Call(
            "sagemaker.debugger.TensorBoardOutputConfig", _places(board)
        )
    return arguments | _profiler(fields, output)


def _rule(kind: str, rule: JsonObject) -> Call:
    arguments = {argument: rule.get(name) for name, argument in SDK_TABLES["rules"].items()}
    arguments["rule_parameters"] = dict(rule.get("RuleParameters", {}))
    if kind == "Rule":
        arguments["collections_to_save"] = []
    return Call(f"sagemaker.debugger.{kind}", arguments)


def _hook(hook: JsonObject | None, output: str) -> JsonObject:
    if hook is None:
        return {"debugger_hook_config": False}
    if hook == {"S3OutputPath": output, "CollectionConfigurations": []}:
        return {}
    arguments = _places(hook)
    if "HookParameters" in hook:
        arguments["hook_parameters"] = hook["HookParameters"]
    collections = [
        without_nulls(
            {"name": one["CollectionName"], "parameters": one.get("CollectionParameters")}
        )
        for one in hook.get("CollectionConfigurations", ())
    ]
    arguments["collection_configs"] = [
        Call("sagemaker.debugger.CollectionConfig", one) for one in collections
    ]
    return {"debugger_hook_config": Call("sagemaker.debugger.DebuggerHookConfig", arguments)}


def _places(config: JsonObject) -> JsonObject:
    places = {
        "s3_output_path": config["S3OutputPath"],
        "container_local_output_path": config.get("LocalPath"),
    }
    return without_nulls(places)


def _profiler(fields: Fields, output: str) -> JsonObject:
    if fields.take_if(f"{PROFILER}.DisableProfiler", True):
        return {"disable_profiler": True}
    fields.take(f"{PROFILER}.DisableProfiler")
    place = fields.take(f"{PROFILER}.S3OutputPath")
    interval = fields.take(f"{PROFILER}.ProfilingIntervalInMilliseconds")
    if place == output and interval is None:
        return {}
    arguments = {"s3_output_path": place} | (
        {"system_monitor_interval_millis": interval} if interval else {}
    )
    return {"profiler_config": Call("sagemaker.debugger.ProfilerConfig", arguments)}


# Pass code, image and hyperparameters to SDK version 2, in one of the three forms of
# `estimator.py`.


@dataclass(frozen=True)
class Form:
    """The class of an estimator, and the arguments that depend on the class.

    Attributes:
        framework: the framework whose class is used; None for the generic `Estimator`.
        channels: the channels that the user gives to `fit`.
        metrics: the class's default of `EnableSageMakerMetricsTimeSeries`.
        notes: explanations for calls that may surprise the user.
    """

    framework: str | None
    arguments: JsonObject
    channels: list[JsonObject]
    metrics: bool | None = None
    notes: tuple[str, ...] = ()


def form_of(request: JsonObject, region: str) -> Form:
    """Return the first of the three forms with which the SDK sends exactly this request."""
    script = script_of(request, region)
    if script is None:
        return _plain(request)
    framework = _framework(request, script)
    checkpoint = request.get("CheckpointConfig", {})
    if framework in ("pytorch", "tensorflow") and HOOK in request and "LocalPath" in checkpoint:
        return _plain(
            request, "Beside a checkpoint, the framework's class would turn the debugger off."
        )
    return _with_script(request, script, framework, region)


def _plain(request: JsonObject, *notes: str) -> Form:
    arguments: JsonObject = {"image_uri": request["AlgorithmSpecification"]["TrainingImage"]}
    if request.get("HyperParameters"):
        arguments["hyperparameters"] = dict(request["HyperParameters"])
    return Form(None, arguments, list(request.get("InputDataConfig", ())), notes=notes)


def _framework(request: JsonObject, script: ToolkitScript) -> str | None:
    """Return the framework whose class is used; None for the generic `Estimator`.

    For an AWS image, this is the image's framework. For a user's own image, a class that supports
    the job's distribution is chosen, because the generic class ignores `distribution`.
    """
    image = image_of_uri(request["AlgorithmSpecification"]["TrainingImage"])
    if image is not None:
        return image.framework
    distribution = dist.distribution_of(script.values)
    if distribution.keys() & {"parameter_server", "multi_worker_mirrored_strategy"}:
        return "tensorflow"
    return "pytorch" if distribution else None


def _with_script(
    request: JsonObject, script: ToolkitScript, framework: str | None, region: str
) -> Form:
    image = request["AlgorithmSpecification"]["TrainingImage"]
    arguments: JsonObject = {"entry_point": script.entry_point, "source_dir": script.source_dir}
    if script.log_level != INFO:
        arguments["container_log_level"] = script.log_level
    values = dict(script.values)
    notes: tuple[str, ...] = ()
    if framework is None:
        arguments["image_uri"] = image
    else:
        choice = _choose_image(request, script, framework, region)
        arguments |= choice.image | (
            {"distribution": choice.distribution} if choice.distribution else {}
        )
        values = {
            name: value for name, value in values.items() if name not in choice.hyperparameters
        }
        lost = [f"`{name}`" for name in values if name in dist.KEYS] if choice.distribution else []
        unsent = (f"The SDK's `distribution` would not send {', '.join(lost)}.",) if lost else ()
        notes = choice.notes + unsent
    if framework == "tensorflow":
        arguments |= _model_dir(values, request, arguments.get("distribution", {}))
    if values:
        arguments["hyperparameters"] = values
    metrics = True if framework == "huggingface" or "framework_version" in arguments else None
    return Form(framework, arguments, script.channels, metrics, notes)


def _model_dir(values: JsonObject, request: JsonObject, distribution: JsonObject) -> JsonObject:
    """Return the argument `model_dir`; empty if its value is the default of the TensorFlow class.

    The class sends the value as a hyperparameter, except if it is False.
    """
    value = values.pop("model_dir", False)
    output, name = request["OutputDataConfig"]["S3OutputPath"], request["TrainingJobName"]
    mpi = distribution.get("mpi", {}).get("enabled", False)
    default = "/opt/ml/model" if mpi else f"{output.rstrip('/')}/{name}/model"
    return {} if value == default else {"model_dir": value}


@dataclass(frozen=True)
class _Choice:
    image: JsonObject
    distribution: JsonObject
    hyperparameters: frozenset[str] = frozenset()
    """The hyperparameters that the SDK sends for the distribution."""
    notes: tuple[str, ...] = ()


def _choose_image(
    request: JsonObject, script: ToolkitScript, framework: str, region: str
) -> _Choice:
    """Return the estimator's arguments for the image and the distribution.

    The image is given as a version if the SDK chooses exactly this image for the version, or else
    by its URI.
    """
    uri, resources = request["AlgorithmSpecification"]["TrainingImage"], request["ResourceConfig"]
    distribution = dist.distribution_of(script.values)
    setting = dist.Setting(
        framework,
        instance_type=resources.get("InstanceType"),
        groups={
            group["InstanceGroupName"]: group["InstanceType"]
            for group in resources.get("InstanceGroups", ())
        },
        entry_point=script.entry_point,
        debugger=HOOK in request,
    )
    by_uri: JsonObject = {"image_uri": uri} | (
        {"py_version": None} if framework == "huggingface" else {}
    )
    version: JsonObject = {}
    # the SDK checks the version even if an image is given
    if "multi_worker_mirrored_strategy" in distribution:
        entry = image_of_uri(uri)
        version = {"framework_version": entry.engine[1] if entry else None}
    by_version, reason = version_arguments(uri, region, setting.types, distribution), None
    for image in ([by_version] if by_version else []) + [by_uri | version]:
        named = next((image[name] for name in _VERSIONS if name in image), None)
        candidate = replace(setting, image_uri=image.get("image_uri", ""), version=named)
        reason = dist.objection(distribution, script.values, candidate) if distribution else None
        if reason is None:
            names = (
                frozenset(dist.sdk_hyperparameters(distribution, candidate))
                if distribution
                else frozenset[str]()
            )
            # group objects, which the SDK compares by identity
            if "instance_groups" in distribution:
                numbers = map(list(setting.groups).index, distribution["instance_groups"])
                distribution = {
                    **distribution,
                    "instance_groups": [Ref("instance_groups", one) for one in numbers],
                }
            return _Choice(image, distribution, names)
    plain = version_arguments(uri, region, setting.types, {}) or by_uri
    return _Choice(plain, {}, notes=(f"The SDK's own `distribution` is not used: {reason}.",))


# The error for requests that an SDK cannot express.


def refuse(sdk: str, paths: Iterable[str]) -> TargetError:
    """Return an error with all fields that an SDK cannot express. Its hint says how to send them
    without the SDK."""
    names = ", ".join(f"`{path}`" for path in paths)
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
    return Call(
        "boto3.Session", {"region_name": region} | ({"profile_name": profile} if profile else {})
    )


SDK = "version 2 of the SageMaker SDK"


def estimator_program(request: JsonObject, region: str, profile: str | None = None) -> Program:
    always_sent = [path.split(".") for path in SDK_TABLES["names"]["always_sent"].split()]
    left_out = {
        f"{section}.{name}" for section, name in always_sent if name not in request.get(section, {})
    }
    left_out |= {dotted(fault.path) for fault in violations(request) if fault.kind == "missing"}
    if left_out:
        raise refuse(SDK, [f"{path} left out" for path in sorted(left_out)])
    fields = Fields(request)
    arguments = _common(fields)
    experiment = fields.take("ExperimentConfig")
    metrics = fields.take("AlgorithmSpecification.EnableSageMakerMetricsTimeSeries")
    # see forms.py
    for path in ("AlgorithmSpecification.TrainingImage", "HyperParameters", "InputDataConfig"):
        fields.take(path)
    left = fields.remaining_paths() + fit_inputs(request.get("InputDataConfig", []))[1]
    if left:
        raise refuse(SDK, left)
    form = form_of(request, region)
    if metrics != form.metrics:
        arguments["enable_sagemaker_metrics"] = metrics
    name = SDK_TABLES["estimators"][form.framework or "generic"]
    estimator = Call(name, form.arguments | arguments | {"sagemaker_session": Ref("session")})
    # an explicit configuration, so that defaults from configuration files do not change the request
    session = {"boto_session": boto_session(region, profile), "sagemaker_config": NO_CONFIGURATION}
    inputs, _ = fit_inputs(form.channels)
    fit = {
        "inputs": inputs or None,
        "job_name": request["TrainingJobName"],
        "experiment_config": experiment,
    }
    return Program(
        {"session": Call("sagemaker.session.Session", session)}
        | _groups(request)
        | {"estimator": estimator},
        "fit",
        without_nulls(fit),
        "sagemaker-sdk",
        form.notes,
        in_code=NO_WAIT,
    )


def _common(fields: Fields) -> JsonObject:
    """Return the arguments that all classes share, and remove the matching fields from `fields`."""
    fields.take("TrainingJobName")
    values = {argument: fields.take(path) for path, argument in SDK_TABLES["arguments"].items()}
    values |= {
        argument: fields.take_if(path, True) or None
        for path, argument in SDK_TABLES["flags"].items()
    }
    if fields.take("ResourceConfig.InstanceGroups"):
        values["instance_groups"] = Ref("instance_groups")
    if fields.take_if("OutputDataConfig.CompressionType", "NONE"):
        values["disable_output_compression"] = True
    if values["input_mode"] == "File":
        del values["input_mode"]
    return without_nulls(values) | monitoring_arguments(fields, str(values["output_path"]))


def _groups(request: JsonObject) -> dict[str, list[Call]]:
    names = SDK_TABLES["instance_group"]
    groups = [
        Call("sagemaker.instance_group.InstanceGroup", {names[key]: group[key] for key in names})
        for group in request["ResourceConfig"].get("InstanceGroups", ())
    ]
    return {"instance_groups": groups} if groups else {}
