"""The body of the job's PUT, field by field. Its parts that are always there, empty ones too, are those that the SDK
always writes, so that the two can be compared as they are."""

from __future__ import annotations

from typing import Any, NamedTuple

from cloudtrain.compile.azureml.command import command_of
from cloudtrain.compile.azureml.durations import duration_text
from cloudtrain.compile.azureml.environments import ChosenEnvironment
from cloudtrain.compile.azureml.identifiers import code_id, compute_id
from cloudtrain.compile.azureml.machines import SERVERLESS, Machines
from cloudtrain.compile.azureml.mpi_options import option_variables
from cloudtrain.compile.azureml.network import network_variables
from cloudtrain.compile.azureml.places import inputs_of, outputs_of
from cloudtrain.errors import JobError, Problem
from cloudtrain.job import TrainingJob
from cloudtrain.plans import AzureMLAccount, CompileContext
from cloudtrain.references import references_in
from cloudtrain.targets import AzureML, Service

RUN_PROPERTY = "cloudtrain.run"
"""The property that makes a job ours; its value is the run's name. Properties, unlike tags, can never be changed."""

_TIERS = {"basic": "Basic", "standard": "Standard", "premium": "Premium"}
_PRIORITIES = {"low": 1, "medium": 2, "high": 3}
_IDENTITIES = {"user": "UserIdentity", "managed": "Managed", "aml_token": "AMLToken"}
_SERVICES = {"ssh": "SSH", "tensor_board": "TensorBoard", "jupyter_lab": "JupyterLab", "vs_code": "VSCode"}


class Parts(NamedTuple):
    """What was decided about a job before its request is written."""

    job: TrainingJob
    target: AzureML
    context: CompileContext
    machines: Machines
    distribution: dict[str, Any] | None
    environment: ChosenEnvironment

    @property
    def account(self) -> AzureMLAccount:
        """The workspace."""
        account: AzureMLAccount = self.context.account
        return account


def request_of(parts: Parts) -> dict[str, Any]:
    """The body without the user's overrides."""
    job, target, account = parts.job, parts.target, parts.account
    properties = {
        "jobType": "Command",
        "displayName": target.display_name or parts.context.run_name,
        "experimentName": target.experiment or job.name,
        "description": job.description,
        "command": command_of(job),
        "codeId": code_id(account.workspace_id, parts.context.bundle.sha256),
        "environmentId": parts.environment.id,
        "computeId": _compute(target, account),
        "distribution": parts.distribution,
        "resources": _resources(parts),
        "limits": _limits(job),
        "queueSettings": _queue(job, target),
        "identity": _identity(target),
        "services": {name: _service(item) for name, item in target.services.items()} or None,
        "inputs": inputs_of(job, account),
        "outputs": outputs_of(job, parts.context.run_name),
        "environmentVariables": _variables(parts),
        "properties": {RUN_PROPERTY: parts.context.run_name},
        "tags": dict(job.tags),
        "isArchived": False,
    }
    return {"properties": {key: value for key, value in properties.items() if value is not None}}


def _compute(target: AzureML, account: AzureMLAccount) -> str | None:
    return compute_id(account.workspace_id, target.compute) if target.compute is not None else None


def _resources(parts: Parts) -> dict[str, Any] | None:
    """Left out where the job asks for nothing but one instance of a cluster, which the service then takes.

    The SDK loses `locations` and `maxInstanceCount` where `docker_args` is a list; here they stay.
    """
    target, resources = parts.target, parts.job.resources
    arguments = target.docker_args
    asked = {
        "instanceType": parts.machines.instance_type if parts.machines.cluster is None else None,
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


def size_text(size: int) -> str:
    """Bytes as docker writes them, in the largest unit that is exact: `64g`, `512m`, `1000b`."""
    for unit, bits in (("g", 30), ("m", 20), ("k", 10)):
        if size % (1 << bits) == 0:
            return f"{size >> bits}{unit}"
    return f"{size}b"


def _limits(job: TrainingJob) -> dict[str, str] | None:
    if job.max_runtime is None:
        return None
    return {"jobLimitsType": "Command", "timeout": duration_text(job.max_runtime)}


def _queue(job: TrainingJob, target: AzureML) -> dict[str, Any] | None:
    """Spare capacity is a tier of serverless jobs; on a cluster it is the cluster's own.

    Raises:
        JobError: a cluster was asked for spare capacity, or a job for two tiers.
    """
    queue: dict[str, Any] = {}
    if job.spot is not None:
        if target.compute not in (None, SERVERLESS):
            message = f"whether `{target.compute}` is spare capacity is the cluster's own setting, not the job's"
            hint = "remove `spot` and name a cluster of the tier `low_priority`, or remove `compute`"
            raise JobError([Problem(("spot",), message, hint)])
        if target.job_tier is not None:
            message = f"`spot` is a tier of its own, so `job_tier: {target.job_tier}` contradicts it"
            raise JobError([Problem(("spot",), message, "remove one of them")])
        queue["jobTier"] = "Spot"
    if target.job_tier is not None:
        queue["jobTier"] = _TIERS[target.job_tier]
    if target.priority is not None:
        queue["priority"] = _PRIORITIES[target.priority]
    return queue or None


def _identity(target: AzureML) -> dict[str, str] | None:
    kind = target.identity or ("managed" if target.managed_identity_client_id else None)
    if kind is None:
        return None
    client = {"clientId": target.managed_identity_client_id} if target.managed_identity_client_id else {}
    return {"identityType": _IDENTITIES[kind], **client}


def _service(service: Service) -> dict[str, Any]:
    properties = {"sshPublicKeys": service.ssh_public_key, "logDir": service.log_dir}
    given = {key: value for key, value in properties.items() if value is not None}
    return {
        "jobServiceType": _SERVICES[service.type],
        **({"nodes": {"nodesValueType": "All"}} if service.all_instances else {}),
        **({"properties": given} if given else {}),
    }


def _variables(parts: Parts) -> dict[str, str]:
    job = parts.job
    problems = [
        Problem(
            ("environment", "variables", name),
            f"Azure ML replaces references in the command alone, so `{name}` would hold `{text}` as it is",
            "pass it as a hyperparameter, or read `AZURE_ML_INPUT_NAME` in the script",
        )
        for name, text in job.environment.variables.items()
        if references_in(text)
    ]
    if problems:
        raise JobError(problems)
    variables = network_variables(job, parts.machines, parts.environment.id) | option_variables(job)
    variables |= job.environment.variables
    if job.checkpoint is not None and "keep" in job.checkpoint.model_fields_set:
        variables["CLOUDTRAIN_CHECKPOINT_KEEP"] = str(job.checkpoint.keep)
    return variables
