"""Pass code, image and hyperparameters to SDK version 2, in one of the three forms of `estimator.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cloudtrain.targets.common.export.calls import Ref
from cloudtrain.targets.sagemaker.export import distributions as dist
from cloudtrain.targets.sagemaker.export.images import framework_of, version_arguments, version_in
from cloudtrain.targets.sagemaker.export.monitoring import HOOK
from cloudtrain.targets.sagemaker.export.scripts import LOG_LEVEL, Script, script_of
from cloudtrain.targets.sagemaker.launch import keys

_PYTORCH_AND_TENSORFLOW = ("pytorch", "tensorflow")


@dataclass(frozen=True)
class Form:
    """The class of an estimator, and the arguments that depend on the class.

    Attributes:
        framework: the framework whose class is used; None for the generic `Estimator`.
        arguments: the class's arguments.
        channels: the channels that the user gives to `fit`.
        metrics: the class's default of `EnableSageMakerMetricsTimeSeries`.
        notes: explanations for calls that may surprise the user.
    """

    framework: str | None
    arguments: dict[str, Any]
    channels: list[dict[str, Any]]
    metrics: bool | None = None
    notes: tuple[str, ...] = ()


def form_of(request: dict[str, Any], region: str) -> Form:
    """Return the first of the three forms with which the SDK sends exactly this request."""
    script = script_of(request, region)
    if script is None:
        return _plain(request)
    framework = _framework(request, script)
    checkpoint = request.get("CheckpointConfig", {})
    if framework in _PYTORCH_AND_TENSORFLOW and HOOK in request and "LocalPath" in checkpoint:
        return _plain(request, "Beside a checkpoint, the framework's class would turn the debugger off.")
    return _with_script(request, script, framework, region)


def _plain(request: dict[str, Any], *notes: str) -> Form:
    arguments: dict[str, Any] = {"image_uri": request["AlgorithmSpecification"]["TrainingImage"]}
    if request.get("HyperParameters"):
        arguments["hyperparameters"] = dict(request["HyperParameters"])
    return Form(None, arguments, list(request.get("InputDataConfig", ())), notes=notes)


def _framework(request: dict[str, Any], script: Script) -> str | None:
    """Return the framework whose class is used; None for the generic `Estimator`.

    For an AWS image, this is the image's framework. For a user's own image, a class that supports the job's
    distribution is chosen, because the generic class ignores `distribution`.
    """
    known = framework_of(request["AlgorithmSpecification"]["TrainingImage"])
    if known is not None:
        return known
    if script.values.keys() & {keys.PARAMETER_SERVER, keys.MIRRORED}:
        return "tensorflow"
    return "pytorch" if dist.distribution_of(script.values) else None


def _with_script(request: dict[str, Any], script: Script, framework: str | None, region: str) -> Form:
    image = request["AlgorithmSpecification"]["TrainingImage"]
    arguments: dict[str, Any] = {"entry_point": script.entry_point, "source_dir": script.source_dir}
    if script.log_level != LOG_LEVEL:
        arguments["container_log_level"] = script.log_level
    values = dict(script.values)
    notes: tuple[str, ...] = ()
    if framework is None:
        arguments["image_uri"] = image
    else:
        chosen = _choose_image(request, script, framework, region)
        arguments |= chosen.image | ({"distribution": chosen.distribution} if chosen.distribution else {})
        values = {name: value for name, value in values.items() if name not in chosen.sent}
        notes = chosen.notes + _lost_keys_note(values, chosen)
    if framework == "tensorflow":
        arguments |= _model_dir(values, request, arguments.get("distribution", {}))
    if values:
        arguments["hyperparameters"] = values
    metrics = True if framework == "huggingface" or "framework_version" in arguments else None
    return Form(framework, arguments, script.channels, metrics, notes)


def _lost_keys_note(values: dict[str, Any], chosen: _Chosen) -> tuple[str, ...]:
    """Return a note that names the toolkit's hyperparameters that the SDK's `distribution` would not send.

    Returns no note if `distribution` would send all of them.
    """
    names = [f"`{name}`" for name in values if name in dist.KEYS] if chosen.distribution else []
    return (f"The SDK's `distribution` would not send {', '.join(names)}.",) if names else ()


def _model_dir(values: dict[str, Any], request: dict[str, Any], distribution: dict[str, Any]) -> dict[str, Any]:
    """Return the argument `model_dir`; empty if its value is the default of the TensorFlow class.

    The class sends the value as a hyperparameter, except if it is False.
    """
    given = values.pop("model_dir", False)
    output, name = request["OutputDataConfig"]["S3OutputPath"], request["TrainingJobName"]
    mpi = distribution.get("mpi", {}).get("enabled", False)
    default = "/opt/ml/model" if mpi else f"{output.rstrip('/')}/{name}/model"
    return {} if given == default else {"model_dir": given}


@dataclass(frozen=True)
class _Chosen:
    image: dict[str, Any]
    distribution: dict[str, Any]
    sent: frozenset[str] = frozenset()
    """The hyperparameters that the SDK sends for the distribution."""
    notes: tuple[str, ...] = ()


def _choose_image(request: dict[str, Any], script: Script, framework: str, region: str) -> _Chosen:
    """Return the estimator's arguments for the image and the distribution.

    The image is given as a version if the SDK chooses exactly this image for the version, or else by its URI.
    """
    uri = request["AlgorithmSpecification"]["TrainingImage"]
    wanted = dist.distribution_of(script.values)
    setting = _setting(request, script, framework)
    by_version = version_arguments(uri, region, setting.types, wanted)
    reason = None
    for image in _candidates(framework, uri, by_version, wanted):
        candidate = dist.with_image(setting, image)
        reason = dist.objection(wanted, script.values, candidate) if wanted else None
        if reason is None:
            sent = frozenset(dist.sdk_hyperparameters(wanted, candidate)) if wanted else frozenset[str]()
            return _Chosen(image, _with_group_objects(wanted, list(setting.groups)), sent)
    plain = version_arguments(uri, region, setting.types, {}) or _by_uri(framework, uri)
    return _Chosen(plain, {}, notes=(f"The SDK's own `distribution` is not used: {reason}.",))


def _candidates(
    framework: str, uri: str, by_version: dict[str, str] | None, wanted: dict[str, Any]
) -> list[dict[str, Any]]:
    candidates: list[dict[str, Any]] = [by_version] if by_version else []
    by_uri = _by_uri(framework, uri)
    if "multi_worker_mirrored_strategy" in wanted:  # the SDK checks the version even if an image is given
        by_uri["framework_version"] = version_in(uri)
    return [*candidates, by_uri]


def _by_uri(framework: str, uri: str) -> dict[str, Any]:
    return {"image_uri": uri} | ({"py_version": None} if framework == "huggingface" else {})


def _setting(request: dict[str, Any], script: Script, framework: str) -> dist.Setting:
    resources = request["ResourceConfig"]
    return dist.Setting(
        framework,
        instance_type=resources.get("InstanceType"),
        groups={group["InstanceGroupName"]: group["InstanceType"] for group in resources.get("InstanceGroups", ())},
        entry_point=script.entry_point,
        debugger=HOOK in request,
    )


def _with_group_objects(distribution: dict[str, Any], groups: list[str]) -> dict[str, Any]:
    """Replace the group names in a distribution with the estimator's group objects.

    The SDK accepts only these objects, because it compares groups by identity.
    """
    if "instance_groups" not in distribution:
        return distribution
    objects = [Ref("instance_groups", groups.index(name)) for name in distribution["instance_groups"]]
    return distribution | {"instance_groups": objects}
