"""Job, target and context in, plan out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.compile.azureml.distributions import distribution_of
from cloudtrain.compile.azureml.environments import environment_of
from cloudtrain.compile.azureml.identifiers import code_id
from cloudtrain.compile.azureml.machines import machines_of
from cloudtrain.compile.azureml.request import Parts, request_of
from cloudtrain.compile.azureml.summary import summary
from cloudtrain.compile.common import merged
from cloudtrain.errors import JobError, Problem
from cloudtrain.job import TrainingJob
from cloudtrain.launch import azureml_node
from cloudtrain.plans import CompileContext, Plan, Upload
from cloudtrain.targets import AzureML

if TYPE_CHECKING:
    from cloudtrain.processing import AnyJob

OVERRIDES = "azureml_overrides"


def compile_azureml(job: AnyJob, target: AzureML, context: CompileContext) -> Plan:
    """The plan of a job on Azure ML. `context.account` is an `AzureMLAccount`; `request` is the body that is PUT
    under the run's name. Nothing of it is filled in later: the code's id is made of the code's hash.

    Raises:
        JobError: the job asks for something that Azure ML does not have, with the alternative.
    """
    if not isinstance(job, TrainingJob):
        from cloudtrain.compile.azureml.processing import as_command_job, as_processing_plan

        return as_processing_plan(job, compile_azureml(as_command_job(job), target, context))
    parts = parts_of(job, target, context)
    request = overridden(request_of(parts), job.azureml_overrides)
    gpus = parts.machines.known.gpus if parts.machines.known is not None else None
    processes = azureml_node.view(request, context.run_name, parts.account.workspace_id, gpus)
    return Plan(
        target="azureml",
        run_name=context.run_name,
        job_name=job.name,
        request=request,
        uploads=tuple(_uploads(parts, request)),
        processes=processes,
        summary=tuple(summary(parts, request, processes)),
        place=parts.account.place,
    )


def parts_of(job: TrainingJob, target: AzureML, context: CompileContext) -> Parts:
    """What is decided about the job: its machines, its distribution and its environment."""
    machines = machines_of(job, target, context.account)
    distribution = distribution_of(job, machines)
    return Parts(job, target, context, machines, distribution, environment_of(job, context))


def overridden(request: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The body with what the user adds to its `properties`, merged last.

    Raises:
        JobError: the overrides take away what a plan reads, or turn it into something else.
    """
    properties = merged(request["properties"], overrides)
    problems = [
        Problem((OVERRIDES, name), f"`{name}` must stay {word} in the body", "leave it out of the overrides")
        for name, (kind, word) in _SHAPES.items()
        if (name in request["properties"] or name in properties) and not isinstance(properties.get(name), kind)
    ]
    if problems:
        raise JobError(problems)
    return {**request, "properties": properties}


_SHAPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "command": (str, "a text"),
    "environmentVariables": (dict, "a mapping"),
    "inputs": (dict, "a mapping"),
    "outputs": (dict, "a mapping"),
    "properties": (dict, "a mapping"),
    "tags": (dict, "a mapping"),
    "distribution": ((dict, type(None)), "a mapping"),
    "resources": ((dict, type(None)), "a mapping"),
    "limits": ((dict, type(None)), "a mapping"),
}
"""What every reader of a body relies on."""


def _uploads(parts: Parts, request: Mapping[str, Any]) -> list[Upload]:
    """What must be there first, unless the overrides have put something else in its place."""
    bundle = parts.context.bundle
    code = code_id(parts.account.workspace_id, bundle.sha256)
    uploads = [Upload("code", bundle.sha256, code, bundle.size, bundle.file_count)]
    if parts.environment.upload is not None:
        uploads.append(parts.environment.upload)
    named = [request["properties"].get("codeId"), request["properties"].get("environmentId")]
    return [upload for upload in uploads if upload.destination in named]
