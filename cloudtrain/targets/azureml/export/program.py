"""The job as calls of azure-ai-ml: `command(...)`, and the client that sends it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cloudtrain.targets.azureml.account_ref import AccountRef
from cloudtrain.targets.azureml.service.clouds import BUILT_IN
from cloudtrain.targets.azureml.service.credentials import kind_of
from cloudtrain.targets.common.export.calls import Call, Program, Ref

EXTRA = "azureml-sdk"
_SDK, _ENTITIES = "azure.ai.ml", "azure.ai.ml.entities"

CLASSES = {
    "pytorch": f"{_SDK}.PyTorchDistribution",
    "mpi": f"{_SDK}.MpiDistribution",
    "tensorflow": f"{_SDK}.TensorFlowDistribution",
    "ray": f"{_SDK}.RayDistribution",
    "managed_identity": f"{_ENTITIES}.ManagedIdentityConfiguration",
    "user_identity": f"{_ENTITIES}.UserIdentityConfiguration",
    "aml_token": f"{_ENTITIES}.AmlTokenConfiguration",
    "ssh": f"{_ENTITIES}.SshJobService",
    "tensor_board": f"{_ENTITIES}.TensorBoardJobService",
    "jupyter_lab": f"{_ENTITIES}.JupyterLabJobService",
    "vs_code": f"{_ENTITIES}.VsCodeJobService",
}
"""Maps the `type` of a part to its class."""

RESOURCES = ("instance_count", "instance_type", "locations", "docker_args", "shm_size")
"""Resources that are arguments of `command`."""


def command_program(job: Mapping[str, Any]) -> Program:
    """Return a program that only makes the `command(...)`. `job` is the result of `job_of`."""
    return Program({"job": _command(job)}, "", {}, EXTRA)


def submit_program(job: Mapping[str, Any], place: AccountRef) -> Program:
    """Return a program that makes the `command(...)` and a client, and sends the job to the workspace."""
    arguments = {
        "credential": _credential(place),
        "subscription_id": place.subscription_id,
        "resource_group_name": place.resource_group,
        "workspace_name": place.workspace,
    }
    client = Call(f"{_SDK}.MLClient", arguments | ({"cloud": place.cloud} if place.cloud else {}))
    variables = {"job": _command(job), "ml_client": client}
    return Program(variables, "jobs.create_or_update", {"job": Ref("job")}, EXTRA)


def _command(job: Mapping[str, Any]) -> Call:
    arguments: dict[str, Any] = {}
    for name, value in job.items():
        arguments |= _PARTS[name](value) if name in _PARTS else {name: value}
    return Call(f"{_SDK}.command", arguments)


def _resources(value: Mapping[str, Any]) -> dict[str, Any]:
    if value and set(value) <= set(RESOURCES):
        return dict(value)
    return {"resources": Call(f"{_ENTITIES}.JobResourceConfiguration", dict(value))}


def _inputs(value: Mapping[str, Any]) -> dict[str, Any]:
    return {"inputs": {name: _data("Input", item) if isinstance(item, dict) else item for name, item in value.items()}}


def _outputs(value: Mapping[str, Any]) -> dict[str, Any]:
    return {"outputs": {name: _data("Output", item) for name, item in value.items()}}


def _data(name: str, item: Mapping[str, Any]) -> Call:
    return Call(f"{_SDK}.{name}", dict(item))


def _make_call(value: Mapping[str, Any]) -> Call:
    return Call(CLASSES[value["type"]], {name: inner for name, inner in value.items() if name != "type"})


_PARTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "resources": _resources,
    "inputs": _inputs,
    "outputs": _outputs,
    "limits": dict,
    "queue_settings": dict,
    "distribution": lambda value: {"distribution": _make_call(value)},
    "identity": lambda value: {"identity": _make_call(value)},
    "services": lambda value: {"services": {name: _make_call(item) for name, item in value.items()}},
}
"""Parts of a job that are separate arguments, or objects."""


def _credential(place: AccountRef) -> Call:
    """Return the call that creates the target's credential. Outside Azure's public cloud, the call names the login
    service of the cloud.
    """
    kind = kind_of(place.credential)
    cloud = BUILT_IN.get(place.cloud or "AzureCloud")
    elsewhere = kind.takes_authority and place.cloud and cloud is not None and place.cloud != "AzureCloud"
    return Call(f"azure.identity.{kind.name}", {"authority": cloud.login} if elsewhere and cloud else {})
