"""Convert hyperparameters to the `distribution` argument of SDK version 2, and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cloudtrain.targets.sagemaker.launch.keys import (
    GROUPS,
    INSTANCE_TYPE,
    MIRRORED,
    MODEL_PARALLEL,
    MPI,
    MPI_OPTIONS,
    PARAMETER_SERVER,
    PROCESSES,
    SMDDP,
    SMDDP_OPTIONS,
    TORCH,
)

KEYS = (
    TORCH, MPI, PROCESSES, MPI_OPTIONS, SMDDP, SMDDP_OPTIONS, MODEL_PARALLEL, PARAMETER_SERVER, MIRRORED, GROUPS,
    INSTANCE_TYPE,
)  # fmt: skip
"""All hyperparameters into which the SDK can turn a `distribution`."""


@dataclass(frozen=True)
class Setting:
    """Properties of a job that influence how the SDK turns a `distribution` into hyperparameters.

    Attributes:
        framework: `pytorch`, `tensorflow` or `huggingface`.
        instance_type: None for a heterogeneous cluster.
        groups: instance group to instance type, in the request's order; empty for a homogeneous cluster.
        entry_point: the script.
        image_uri: the estimator's argument `image_uri`; empty if the estimator gets a version instead.
        version: the framework's version, if the estimator gets one.
        debugger: whether the request turns the debugger on.
    """

    framework: str
    instance_type: str | None
    groups: Mapping[str, str]
    entry_point: str
    image_uri: str = ""
    version: str | None = None
    debugger: bool = False

    @property
    def types(self) -> tuple[str, ...]:
        """Return all instance types of the job."""
        return (self.instance_type,) if self.instance_type is not None else tuple(self.groups.values())


def with_image(setting: Setting, arguments: Mapping[str, Any]) -> Setting:
    """Return a copy of `setting` that has the image or version from an estimator's arguments."""
    names = ("framework_version", "pytorch_version", "tensorflow_version")
    version = next((arguments[name] for name in names if name in arguments), None)
    return replace(setting, image_uri=arguments.get("image_uri", ""), version=version)


def distribution_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `distribution` that a user would write for these hyperparameters.

    Its item `instance_groups` holds the names of groups instead of the SDK's group objects.
    """
    found: dict[str, Any] = {}
    if values.get(TORCH) is True:
        found["torch_distributed"] = {"enabled": True}
    if MPI in values:
        found["mpi"] = _without_empty(
            enabled=values[MPI],
            processes_per_host=values.get(PROCESSES),
            custom_mpi_options=values.get(MPI_OPTIONS),
        )
    if values.get(SMDDP) is True:
        options = _without_empty(enabled=True, custom_mpi_options=values.get(SMDDP_OPTIONS))
        found["smdistributed"] = {"dataparallel": options}
    elif SMDDP in values and (MODEL_PARALLEL in values or TORCH in values):
        found["smdistributed"] = {"modelparallel": _without_empty(enabled=True, parameters=values.get(MODEL_PARALLEL))}
    elif SMDDP in values:
        found["smdistributed"] = {"dataparallel": {"enabled": False}}
    if PARAMETER_SERVER in values:
        found["parameter_server"] = {"enabled": values[PARAMETER_SERVER]}
    if MIRRORED in values:
        found["multi_worker_mirrored_strategy"] = {"enabled": values[MIRRORED]}
    if found and values.get(GROUPS):  # an empty value counts as missing, as in the toolkit
        found["instance_groups"] = list(values[GROUPS])
    return found


def sdk_hyperparameters(distribution: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
    """Return the hyperparameters that the SDK (2.257.7) would send for a distribution."""
    torch = distribution.get("torch_distributed", {}).get("enabled", False)
    if setting.framework == "tensorflow" or not torch:
        return _basic(distribution, setting)
    with_library = setting.framework == "pytorch" and "smdistributed" in distribution
    sent = _basic(distribution, setting) if with_library else {}
    sent[TORCH] = True
    if setting.instance_type is not None:
        sent[INSTANCE_TYPE] = setting.instance_type
    return sent


def _basic(distribution: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
    """Return the hyperparameters that the SDK's `Framework._distribution_configuration` returns."""
    sent: dict[str, Any] = {}
    groups = _groups(distribution, setting)
    if groups:
        sent[GROUPS] = groups
    if "parameter_server" in distribution:
        sent[PARAMETER_SERVER] = distribution["parameter_server"]["enabled"]
    if "mpi" in distribution:
        mpi = distribution["mpi"]
        sent[MPI] = mpi["enabled"]
        if mpi.get("processes_per_host"):
            sent[PROCESSES] = mpi["processes_per_host"]
        sent[MPI_OPTIONS] = mpi.get("custom_mpi_options", "")
    if "smdistributed" in distribution:
        sent |= _library(distribution["smdistributed"], setting)
    if "multi_worker_mirrored_strategy" in distribution:
        sent[MIRRORED] = distribution["multi_worker_mirrored_strategy"]["enabled"]
    return sent


def _library(library: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
    parameters = library.get("modelparallel", {}).get("parameters")
    data_parallel = library.get("dataparallel", {})
    enabled = data_parallel.get("enabled", False)
    sent: dict[str, Any] = {MODEL_PARALLEL: parameters} if parameters else {}
    sent |= {SMDDP: enabled, INSTANCE_TYPE: setting.instance_type}
    if enabled:
        sent[SMDDP_OPTIONS] = data_parallel.get("custom_mpi_options", "")
    return sent


def _groups(distribution: Mapping[str, Any], setting: Setting) -> list[str]:
    """Return the names of the instance groups that the SDK uses for a distribution.

    If the cluster has a single group, this is always that group, even if the distribution does not name it.
    """
    if distribution and len(setting.groups) == 1:
        return list(setting.groups)
    return list(distribution.get("instance_groups", ()))


TORCH_VERSIONS = frozenset("1.13.1 2.0.0 2.0.1 2.1.0 2.1.2 2.2.0 2.3.0 2.3.1 2.4.1 2.5.1 2.6.0 2.7.1 2.8.0".split())
"""PyTorch versions for which the SDK (2.257.7) accepts `torch_distributed` if no image is given."""

SMDDP_VERSIONS = {
    "pytorch": frozenset(
        "1.6.0 1.7.1 1.8.0 1.8.1 1.9.0 1.9.1 1.10.0 1.10.2 1.11.0 1.12.0 1.12.1 1.13.1 2.0.0 2.0.1 2.1.0 2.1.2 "
        "2.2.0".split()
    ),
    "tensorflow": frozenset(
        "2.3.1 2.3.2 2.4.1 2.4.3 2.5.0 2.5.1 2.6.0 2.6.2 2.6.3 2.7.1 2.8.0 2.9.1 2.9.2 2.10.1 2.11.0".split()
    ),
}
"""Versions for which the SDK (2.257.7) accepts `smdistributed.dataparallel` if no image is given."""

_NO_SMDISTRIBUTED = "2.0.1-gpu-py310-cu121"
"""Part of the only image URI that the SDK refuses for smdistributed without torch_distributed."""


def objection(distribution: Mapping[str, Any], values: Mapping[str, Any], setting: Setting) -> str | None:
    """Explain why the SDK refuses a distribution or does not send exactly `values`; None if it sends them."""
    for reason in _REFUSALS:
        found = reason(distribution, setting)
        if found is not None:
            return found
    for name, value in sdk_hyperparameters(distribution, setting).items():
        if name not in values:
            return f"it would add `{name}`"
        if values[name] != value:
            return f"it would set `{name}` to `{json.dumps(value)}`"
    return None


def _groups_refusal(distribution: Mapping[str, Any], setting: Setting) -> str | None:
    unknown = [name for name in distribution.get("instance_groups", ()) if name not in setting.groups]
    if unknown:
        return f"the job has no instance group `{unknown[0]}`"
    count = len(distribution.get("instance_groups", ()))
    if len(setting.groups) > 1 and count != 1:
        return f"it takes exactly one instance group for a distribution, and here are {count or 'all'}"
    plain_torch = "torch_distributed" in distribution and "smdistributed" not in distribution
    mpi = distribution.get("mpi", {}).get("enabled", False)
    data_parallel = distribution.get("smdistributed", {}).get("dataparallel", {}).get("enabled", False)
    if setting.groups and not plain_torch and not (mpi or data_parallel):
        return "it takes instance groups only with `mpi` and `smdistributed.dataparallel`"
    return None


def _types(distribution: Mapping[str, Any], setting: Setting) -> Iterable[str]:
    if setting.instance_type is not None:
        return (setting.instance_type,)
    names = _groups(distribution, setting)
    return [setting.groups[name] for name in names if name in setting.groups]


def _torch_refusal(distribution: Mapping[str, Any], setting: Setting) -> str | None:
    if "torch_distributed" not in distribution or setting.framework == "tensorflow":
        return None
    if not setting.entry_point.endswith(".py"):
        return "it takes `torch_distributed` only with a Python entry point"
    if setting.image_uri:
        return None
    if any(not name.startswith(("ml.p", "ml.g")) for name in _types(distribution, setting)):
        return "it takes `torch_distributed` without an image only on GPU instances"
    if setting.version not in TORCH_VERSIONS:
        return f"it does not take `torch_distributed` with version {setting.version}"
    return None


def _library_refusal(distribution: Mapping[str, Any], setting: Setting) -> str | None:
    library = distribution.get("smdistributed")
    if library is None or ("torch_distributed" in distribution and setting.framework != "tensorflow"):
        return None
    if any("p5.48xlarge" in name for name in setting.types):
        return "it refuses smdistributed on p5 instances"
    if _NO_SMDISTRIBUTED in setting.image_uri:
        return "it refuses smdistributed with this image"
    supported = SMDDP_VERSIONS["tensorflow" if setting.framework == "tensorflow" else "pytorch"]
    enabled = library.get("dataparallel", {}).get("enabled", False)
    if enabled and not setting.image_uri and setting.version not in supported:
        return f"it does not take `smdistributed.dataparallel` with version {setting.version}"
    return None


def _mirrored_refusal(distribution: Mapping[str, Any], setting: Setting) -> str | None:
    if not distribution.get("multi_worker_mirrored_strategy", {}).get("enabled", False):
        return None
    if setting.framework != "tensorflow":
        return "it takes `multi_worker_mirrored_strategy` only for TensorFlow"
    if setting.version is None or tuple(map(int, setting.version.split(".")[:2])) < (2, 9):
        return "it takes `multi_worker_mirrored_strategy` only with a version from 2.9 on"
    if distribution.keys() & {"smdistributed", "parameter_server"}:
        return "it does not take `multi_worker_mirrored_strategy` together with another strategy"
    return None


def _trainium_refusal(distribution: Mapping[str, Any], setting: Setting) -> str | None:
    trainium = any(name.startswith("ml.trn") for name in _types(distribution, setting))
    if trainium and list(distribution) != ["torch_distributed"]:
        return "it takes only `torch_distributed` on Trainium"
    return None


def _debugger_refusal(distribution: Mapping[str, Any], setting: Setting) -> str | None:
    servers = distribution.get("parameter_server", {}).get("enabled", False)
    if setting.framework == "tensorflow" and setting.debugger and servers:
        return "it turns the debugger off beside parameter servers"
    return None


_REFUSALS: tuple[Callable[[Mapping[str, Any], Setting], str | None], ...] = (
    _groups_refusal,
    _torch_refusal,
    _library_refusal,
    _mirrored_refusal,
    _trainium_refusal,
    _debugger_refusal,
)


def _without_empty(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value not in ("", {})}
