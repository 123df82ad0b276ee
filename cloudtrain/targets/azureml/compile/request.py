"""Write the body of the job's PUT, field by field.

Fields that the SDK always sends are always present, even if empty, so that the body can be compared with the SDK's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from cloudtrain.catalogue.machines import MachineGroup
from cloudtrain.core.job import TrainingJob
from cloudtrain.core.plan import CompileContext
from cloudtrain.core.references import references_in
from cloudtrain.errors import JobError, Problem
from cloudtrain.targets.azureml.account import AzureMLAccount
from cloudtrain.targets.azureml.compile.command import command_of
from cloudtrain.targets.azureml.compile.durations import duration_text
from cloudtrain.targets.azureml.compile.environments import ChosenEnvironment
from cloudtrain.targets.azureml.compile.identifiers import code_id, compute_id, is_virtual_cluster
from cloudtrain.targets.azureml.compile.machines import is_cluster, is_own_type
from cloudtrain.targets.azureml.compile.mpi_options import option_variables
from cloudtrain.targets.azureml.compile.network import network_variables
from cloudtrain.targets.azureml.compile.places import inputs_of, outputs_of
from cloudtrain.targets.azureml.settings import AzureML, Service
from cloudtrain.targets.common.problems import Problems

RUN_PROPERTY = "cloudtrain.run"
"""The property that marks a job as ours; its value is the run's name. Properties, unlike tags, can never be changed."""

_TIERS = {"basic": "Basic", "standard": "Standard", "premium": "Premium"}
_PRIORITIES = {"low": 1, "medium": 2, "high": 3}
_IDENTITIES = {"user": "UserIdentity", "managed": "Managed", "aml_token": "AMLToken"}
_EVENTS = {"completed": "JobCompleted", "failed": "JobFailed", "cancelled": "JobCancelled"}
_SERVICES = {"ssh": "SSH", "tensor_board": "TensorBoard", "jupyter_lab": "JupyterLab", "vs_code": "VSCode"}


class Parts(NamedTuple):
    """A job and the decisions about it, such as `machines`. The request is written from them."""

    job: TrainingJob
    target: AzureML
    context: CompileContext
    machines: MachineGroup
    distribution: dict[str, Any] | None
    environment: ChosenEnvironment

    @property
    def account(self) -> AzureMLAccount:
        """Return the account settings, which name the workspace."""
        account: AzureMLAccount = self.context.account
        return account


def request_of(parts: Parts, problems: Problems) -> dict[str, Any]:
    """Return the body without the user's overrides. Parts with problems are left out, and their problems are added to
    `problems`.
    """
    job, target, account = parts.job, parts.target, parts.account
    properties = {
        "jobType": "Command",
        "displayName": target.display_name or parts.context.run_name,
        "experimentName": target.experiment or job.name,
        "description": job.description,
        "command": problems.value(lambda: command_of(job), ""),
        "codeId": None if job.source_dir is None else code_id(account.workspace_id, parts.context.bundle.sha256),
        "environmentId": parts.environment.id,
        "computeId": _compute(target, account),
        "distribution": parts.distribution,
        "resources": _resources(parts),
        "limits": _limits(job),
        "queueSettings": problems.value(lambda: _queue(job, target), None),
        "identity": _identity(target),
        "notificationSetting": _notifications(target),
        "services": {name: _service(item) for name, item in target.services.items()} or None,
        "inputs": inputs_of(job, account, problems),
        "outputs": outputs_of(job, parts.context.run_name, problems),
        "environmentVariables": _variables(parts, problems),
        "properties": {RUN_PROPERTY: parts.context.run_name},
        "tags": dict(job.tags),
        "isArchived": False,
    }
    return {"properties": {key: value for key, value in properties.items() if value is not None}}


def _compute(target: AzureML, account: AzureMLAccount) -> str | None:
    return compute_id(account.workspace_id, target.compute) if target.compute is not None else None


def _resources(parts: Parts) -> dict[str, Any] | None:
    """Return the body's `resources`; None for a single instance of a cluster, which is the service's default."""
    target, resources = parts.target, parts.job.resources
    arguments = target.docker_args
    asked = {
        "instanceType": _instance_type(parts),
        "locations": list(target.locations) or None,
        "maxInstanceCount": target.max_instance_count,
        "shmSize": size_text(resources.shm_size) if resources.shm_size is not None else None,
        "dockerArgs": arguments if isinstance(arguments, str) else None,
        "dockerArgsList": list(arguments) if isinstance(arguments, tuple) else None,
    }
    given = {key: value for key, value in asked.items() if value is not None}
    if given or resources.instance_count > 1 or "instance_count" in resources.model_fields_set:
        return {"instanceCount": resources.instance_count, "properties": {}, **given}
    return None


def _instance_type(parts: Parts) -> str | None:
    """Return the instance type for serverless compute, Kubernetes and virtual clusters; None for other clusters.

    Other clusters have only one type, so the body does not name it.
    """
    compute, name = parts.target.compute, parts.machines.instance_type
    if not name or (compute is not None and is_cluster(compute) and not is_own_type(compute, name)):
        return None
    return name


def size_text(size: int) -> str:
    """Return a size in bytes as docker writes it, in the largest exact unit: `64g`, `512m`, `1000b`."""
    for unit, bits in (("g", 30), ("m", 20), ("k", 10)):
        if size % (1 << bits) == 0:
            return f"{size >> bits}{unit}"
    return f"{size}b"


def _limits(job: TrainingJob) -> dict[str, str] | None:
    if job.max_runtime is None:
        return None
    return {"jobLimitsType": "Command", "timeout": duration_text(job.max_runtime)}


def _queue(job: TrainingJob, target: AzureML) -> dict[str, Any] | None:
    """Return the body's `queueSettings`: job tier and priority. On a cluster, spot capacity is the cluster's setting.

    Raises:
        JobError: the job asks for spot capacity on a cluster, or for two tiers.
    """
    queue: dict[str, Any] = {}
    if job.spot is not None:
        problems = list(_spot_problems(target))
        if problems:
            raise JobError(problems)
        queue["jobTier"] = "Spot"
    if target.job_tier is not None:
        queue["jobTier"] = _TIERS[target.job_tier]
    if target.priority is not None:
        queue["priority"] = _PRIORITIES[target.priority]
    return queue or None


def _spot_problems(target: AzureML) -> Iterator[Problem]:
    if target.compute is not None and is_cluster(target.compute) and not is_virtual_cluster(target.compute):
        message = f"a job cannot choose spot capacity on a cluster: it is a setting of the cluster `{target.compute}`"
        hint = "remove `spot` and name a cluster of the tier `low_priority`, or remove `compute`"
        yield Problem(("spot",), message, hint, code="CT031")
    if target.job_tier is not None:
        message = f"`spot` is a tier of its own, so `job_tier: {target.job_tier}` contradicts it"
        yield Problem(("spot",), message, "remove one of them", code="CT018")


def _identity(target: AzureML) -> dict[str, str] | None:
    ids = {"clientId": target.managed_identity_client_id, "resourceId": target.managed_identity_resource_id}
    named = {field: written for field, written in ids.items() if written}
    kind = target.identity or ("managed" if named else None)
    return None if kind is None else {"identityType": _IDENTITIES[kind], **named}


def _notifications(target: AzureML) -> dict[str, list[str]] | None:
    given = target.notifications
    if given is None:
        return None
    return {"emailOn": [_EVENTS[event] for event in given.on], "emails": list(given.emails)}


def _service(service: Service) -> dict[str, Any]:
    properties = {"sshPublicKeys": service.ssh_public_key, "logDir": service.log_dir}
    given = {key: value for key, value in properties.items() if value is not None}
    return {
        "jobServiceType": _SERVICES[service.type],
        **({"nodes": {"nodesValueType": "All"}} if service.all_instances else {}),
        **({"properties": given} if given else {}),
    }


def _variables(parts: Parts, problems: Problems) -> dict[str, str]:
    job = parts.job
    problems += [
        Problem(
            ("environment", "variables", name),
            f"Azure ML replaces references only in the command, so `{name}` would contain the text `{text}`",
            "pass it as a hyperparameter, or read `AZURE_ML_INPUT_NAME` in the script",
            code="CT031",
        )
        for name, text in job.environment.variables.items()
        if references_in(text)
    ]
    variables = network_variables(job, parts.machines, parts.environment.id)
    variables |= problems.value(lambda: option_variables(job), {})
    variables |= job.environment.variables
    if job.checkpoint is not None and "keep" in job.checkpoint.model_fields_set:
        variables["CLOUDTRAIN_CHECKPOINT_KEEP"] = str(job.checkpoint.keep)
    return variables
