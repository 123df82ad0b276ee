"""Parts of the body that are read as well as written: distributions, ids, machines."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeGuard

from cloudtrain.errors import JobError, Problem
from cloudtrain.job.distribution import (
    DeepSpeed,
    Distribution,
    NoDistribution,
    Ray,
    TensorFlow,
    launcher_of,
)
from cloudtrain.job.training import TrainingJob
from cloudtrain.machines.choose import MachineGroup
from cloudtrain.machines.overlay import type_named
from cloudtrain.rules.engine import ValuePath
from cloudtrain.targets.azureml.catalogue import nearest_size
from cloudtrain.targets.azureml.fields import FIELDS, JsonMapping, JsonObject
from cloudtrain.targets.azureml.settings import AzureMLAccount
from cloudtrain.targets.common.compiling import type_by_gpu
from cloudtrain.targets.common.fields import Refused, values_set


def present(fields: JsonMapping) -> JsonObject:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def pick(fields: JsonMapping, names: Iterable[str]) -> JsonObject:
    """Return the fields with these names that are there, in the order of the names."""
    return {name: fields[name] for name in names if name in fields}


def without(fields: JsonMapping, names: Collection[str]) -> JsonObject:
    return {name: value for name, value in fields.items() if name not in names}


# A job's distribution in the body: the launcher, and the number of processes that Azure ML starts.

LAUNCHER = "cloudtrain.runtime.deepspeed_launcher"
"""The module that starts DeepSpeed's processes where the job chooses cloudtrain's launcher."""


def distribution_of(job: TrainingJob, machines: MachineGroup) -> JsonObject | None:
    """Return the body's `distribution`, without what the table of fields writes there; None for a
    single process without a distribution."""
    distribution = job.distribution
    if alternative := _ALTERNATIVES.get(distribution.type):
        message = f"`{distribution.type}` is SageMaker's own library and does not exist on Azure ML"
        raise JobError([Problem(("distribution", "type"), message, alternative, code="CT030")])

    if isinstance(distribution, NoDistribution):
        return None
    if isinstance(distribution, TensorFlow):
        return _tensorflow(distribution, machines.count)
    if isinstance(distribution, Ray):
        return {"distributionType": "Ray"}

    kind = "Mpi" if launcher_of(distribution) == "mpirun" else "PyTorch"
    count = 1
    if not is_launcher(distribution):
        count = processes_per_instance(job, machines)
    return {"distributionType": kind, "processCountPerInstance": count}


_ALTERNATIVES = {
    "smddp": "use `distribution: {type: torch}`: the same script with NCCL",
    "smp": (
        "use `distribution: {type: torch}` as in `cloudtrain scripts copy pipeline_gpt`, or FSDP2"
    ),
}
"""Distributions that only SageMaker has, with what to do instead."""


def is_launcher(distribution: Distribution) -> TypeGuard[DeepSpeed]:
    """Return whether DeepSpeed's own launcher starts the processes of each instance."""
    return isinstance(distribution, DeepSpeed) and distribution.launch == "launcher"


def processes_per_instance(job: TrainingJob, machines: MachineGroup) -> int:
    """The body always has the number: the service's default of one would leave seven of eight GPUs
    idle."""
    count: int | None = getattr(job.distribution, "processes_per_instance", None)
    if count is None and machines.known is not None:
        count = machines.known.devices
    if count is not None:
        return count

    # The number is unknown. The path and the hint name the field that is most likely wrong.
    path: ValuePath = ("distribution", "processes_per_instance")
    hint = (
        "add `processes_per_instance` to `distribution` (the GPUs of an instance), or name a "
        "known type in `resources.instance_type`"
    )
    reason = "no instance type given"
    if machines.instance_type:
        reason = f"`{machines.instance_type}` is not in the catalogue"
        if near := nearest_size(machines.instance_type):
            path = ("resources", "instance_type")
            hint = f"{near} Or {hint}"
    message = f"the number of processes per instance is not known: {reason}"
    raise JobError([Problem(path, message, hint, code="CT040")])


def _tensorflow(distribution: TensorFlow, instances: int) -> JsonObject:
    """By default the service starts one worker on each instance. With parameter servers, the body
    always contains the number of workers, because the service would also start workers on the
    servers' instances."""
    servers = 0
    workers = distribution.workers
    if distribution.strategy == "parameter_server":
        servers = distribution.parameter_servers or 1
        workers = workers or max(1, instances - servers)

    body = {"distributionType": "TensorFlow", "parameterServerCount": servers}
    return present({**body, "workerCount": workers})


# Ids in Azure Resource Manager.
#
# `azureml:name:version` becomes an id without the network, so a plan needs no request.

_PREFIX = "azureml:"
_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_ASSET = rf"(?P<name>{_WORD}):(?P<version>{_WORD}(?::{_WORD})*)"
"""The name ends at the first colon, as azure-ai-ml 1.35.2 reads it: `mine:18.04:2022` has the
version `18.04:2022`."""

_LATEST = rf"(?P<name>{_WORD})@latest"
"""`latest` is the only label that Azure ML's own tools look up."""
_MEANT = rf"(?:{_PREFIX})*(?P<name>{_WORD})(?:@.*|:(?P<version>{_WORD})?:?)?"
_LABELLED = (
    r"(?P<thing>/subscriptions/.+/(?P<kind>environments|data|models)/(?P<name>[^/]+))/labels/latest"
)


_CURATED = "AzureML-"
"""The names of Microsoft's own environments. They are sent unchanged, because the service knows
them."""

UNNAMED = "cloudtrain"
"""Name of all environments that a job defines without a name. Their version is a hash of the
definition."""

MODELS = ("mlflow_model", "custom_model", "triton_model")
"""Types of data that are registered as models."""


def code_id(workspace_id: str, sha256: str) -> str:
    """Return the id of a bundle's code asset. It contains the content's hash, so the same code is
    the same asset."""
    return f"{workspace_id}/codes/cloudtrain-{sha256[:40]}/versions/1"


def compute_id(workspace_id: str, compute: str) -> str:
    """Return the id of a compute of the workspace. `serverless` counts as a compute, as in Azure
    ML's tools. `virtualClusters/NAME` is a compute outside the workspace. Complete ids stay
    unchanged."""
    plain = compute.removeprefix(_PREFIX)
    if plain.startswith("/subscriptions/"):
        return plain
    if is_virtual_cluster(plain):
        resource_group = workspace_id.partition("/workspaces/")[0]
        return f"{resource_group}/virtualclusters/{plain.partition('/')[2]}"
    return f"{workspace_id}/computes/{plain}"


def is_virtual_cluster(compute: str) -> bool:
    """Return whether a setting or an id names a virtual cluster: `virtualClusters/NAME`, in upper
    or lower case."""
    return "/virtualclusters/" in f"/{compute.removeprefix(_PREFIX)}".lower()


def asset_id(workspace_id: str, reference: str, kind: str) -> str | None:
    """Return the id of `azureml:name:version` or `azureml:name@latest`; ids and URIs stay
    unchanged. None for anything else: `azureml:foo` does not mean version `foo` of an asset
    `azureml`. `kind`: `environments`, `data`, `models`."""
    plain = reference.removeprefix(_PREFIX)
    if plain.startswith("/subscriptions/"):
        return plain
    if reference.startswith("azureml://"):
        return reference
    if plain.startswith(_PREFIX):
        return None

    if match := re.fullmatch(_ASSET, plain):
        end = f"versions/{match['version']}"
    elif match := re.fullmatch(_LATEST, plain):
        end = "labels/latest"
    else:
        return None
    if kind == "environments" and plain.startswith(_CURATED):
        return f"{_PREFIX}{plain}"
    return f"{workspace_id}/{kind}/{match['name']}/{end}"


def asset_meant(reference: str) -> tuple[str, str]:
    """Guess the name and version in a misspelt reference: `foo` and `2` in `azureml:azureml:foo:2`,
    or version `1` if it has none. Returns `NAME` and `VERSION` if that is impossible."""
    match = re.fullmatch(_MEANT, reference)
    if match is None:
        return "NAME", "VERSION"
    return match["name"], match["version"] or "1"


class Labelled(NamedTuple):
    """The newest version of an asset of a workspace: `.../environments/mine/labels/latest`. `thing`
    is the ARM id without version: `.../environments/mine`."""

    thing: str
    kind: str
    name: str


def parse_label(reference: object) -> Labelled | None:
    """Return the asset of an id that ends with the label `latest`. Returns None for other ids, and
    for ids of registries, whose labels the service itself resolves."""
    if isinstance(reference, str) and (match := re.fullmatch(_LABELLED, reference)):
        return Labelled(**match.groupdict())
    return None


# The machines of a job on Azure ML. A cluster has its own instance type; a job may name the type
# that it expects.

SERVERLESS = "serverless"


def is_cluster(compute: str | None) -> TypeGuard[str]:
    """Return whether `compute` names a cluster with its own machines; otherwise the job is
    serverless."""
    return compute is not None and re.split("[:/]", compute)[-1] != SERVERLESS


_OF_KUBERNETES = r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?"


def is_own_type(compute: str, name: str) -> bool:
    """Whether the job must name one of the compute's own types: an object of a Kubernetes cluster,
    such as `gpu-large`, or `Singularity.ND40rs_v2` of a virtual cluster. An Azure ML cluster has
    one type, a VM size, which the job may name. Only the form of `name`, the job's type, shows
    whether the cluster is a Kubernetes cluster."""
    return is_virtual_cluster(compute) or re.fullmatch(_OF_KUBERNETES, name) is not None


def machines_of(job: TrainingJob, account: AzureMLAccount) -> MachineGroup:
    """Return the machines that the job asks for. Raises `JobError` for fields of SageMaker's, and
    for a GPU that no instance type has."""
    problems: list[Problem] = []
    for field in FIELDS:
        effect = field.effect
        if isinstance(effect, Refused) and effect.hint is not None:
            for path, _ in values_set(job, field.job):
                message = f"`{path[-1]}` works only on SageMaker; Azure ML has no equivalent"
                problems.append(Problem(path, message, effect.hint, code=effect.code))
    if problems:
        raise JobError(problems)

    resources = job.resources
    name = resources.instance_type.of("azureml") if resources.instance_type else None
    if name is None and resources.gpu is not None:
        name = type_by_gpu("azureml", resources, account.overlay)
    row = type_named("azureml", name or "", account.overlay)
    if row is not None:
        name = row.name
    return MachineGroup(name or "", resources.instance_count, row)
