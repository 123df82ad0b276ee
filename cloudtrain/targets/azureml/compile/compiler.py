"""Compile a job, a target and a context into a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.core.job import TrainingJob
from cloudtrain.core.merging import merged
from cloudtrain.core.per_target import overrides_of
from cloudtrain.core.plan import CompileContext, Plan, Upload
from cloudtrain.core.units import MAX_COUNT
from cloudtrain.errors import JobError, Problem
from cloudtrain.targets.azureml.compile.distributions import distribution_of, only_sagemaker
from cloudtrain.targets.azureml.compile.environments import ChosenEnvironment, environment_of
from cloudtrain.targets.azureml.compile.identifiers import code_id
from cloudtrain.targets.azureml.compile.machines import machines_of, some_machines
from cloudtrain.targets.azureml.compile.request import Parts, request_of
from cloudtrain.targets.azureml.compile.summary import summary
from cloudtrain.targets.azureml.launch import job as azureml_node
from cloudtrain.targets.azureml.settings import AzureML
from cloudtrain.targets.common.problems import Problems

if TYPE_CHECKING:
    from cloudtrain.core.processing import AnyJob

OVERRIDES = "azureml_overrides"


def compile_azureml(job: AnyJob, target: AzureML, context: CompileContext) -> Plan:
    """Return the plan of a job on Azure ML, whose `request` is the body of the job's PUT.

    `context.account` must be an `AzureMLAccount`. The request is complete before any upload, because the code's id
    contains the code's hash.

    Raises:
        JobError: the job asks for something that Azure ML does not have; the hint names an alternative.
    """
    if not isinstance(job, TrainingJob):
        from cloudtrain.targets.azureml.compile.processing import as_command_job, as_processing_plan, shard_problems

        command_job = as_command_job(job)
        return as_processing_plan(job, _compile(command_job, target, context, Problems(shard_problems(job))))
    return _compile(job, target, context, Problems())


def _compile(job: TrainingJob, target: AzureML, context: CompileContext, problems: Problems) -> Plan:
    """Return the plan; if there are problems, raise JobError with all of them, including those in `problems`."""
    parts = parts_of(job, target, context, problems)
    body = request_of(parts, problems)
    request = problems.value(lambda: overridden(body, overrides_of(job, "azureml")), None)
    # If the overrides break the body, the rules check the body without them.
    plan = _plan(parts, body if request is None else request)
    problems.refuse(plan)
    return plan


def _plan(parts: Parts, request: dict[str, Any]) -> Plan:
    context = parts.context
    gpus = parts.machines.known.gpus if parts.machines.known is not None else None
    processes = azureml_node.view(request, context.run_name, parts.account.workspace_id, gpus)
    return Plan(
        target="azureml",
        run_name=context.run_name,
        job_name=parts.job.name,
        request=request,
        uploads=tuple(_uploads(parts, request)),
        processes=processes,
        summary=tuple(summary(parts, request, processes)),
        place=parts.account.place,
    )


def parts_of(job: TrainingJob, target: AzureML, context: CompileContext, problems: Problems) -> Parts:
    """Return the job with the decisions about its machines, its distribution and its environment.

    If a part cannot be decided, the reasons are added to `problems` and a placeholder is used.
    """
    machines = problems.value(lambda: machines_of(job, context.account), None)
    known = machines or some_machines(job)
    is_known = machines is not None or only_sagemaker(job)
    distribution = problems.value(lambda: distribution_of(job, known), None) if is_known else None
    environment = problems.value(lambda: environment_of(job, context), ChosenEnvironment(""))
    return Parts(job, target, context, known, distribution, environment)


def overridden(request: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the user's overrides into the body's `properties`.

    Raises:
        JobError: the overrides remove a field that the plan reads, or change its type.
    """
    properties = merged(request["properties"], overrides)
    problems = [
        Problem(
            (OVERRIDES, name), f"`{name}` must stay {word} in the body", "leave it out of the overrides", code="CT035"
        )
        for name, (kind, word) in _SHAPES.items()
        if (name in request["properties"] or name in properties) and not isinstance(properties.get(name), kind)
    ]
    problems += _count_problems(properties)
    if problems:
        raise JobError(problems)
    return {**request, "properties": properties}


def _count_problems(properties: Mapping[str, Any]) -> Iterator[Problem]:
    """Report counts in the overrides, such as `instanceCount: 100000`, that exceed the limit for the job's fields."""
    for section, name in _COUNTS:
        found = properties.get(section)
        count = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(count, int) and count > MAX_COUNT:
            message = f"`{name}` must be at most {MAX_COUNT}, not `{count}`"
            yield Problem((OVERRIDES, section, name), message, f"write {MAX_COUNT} or less", code="CT035")


_COUNTS = (
    ("resources", "instanceCount"),
    ("distribution", "processCountPerInstance"),
    ("distribution", "workerCount"),
    ("distribution", "parameterServerCount"),
)


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
"""The types that every reader of a body relies on."""


def _uploads(parts: Parts, request: Mapping[str, Any]) -> list[Upload]:
    """Return the uploads that the request needs, leaving out those that the overrides have replaced."""
    bundle = parts.context.bundle
    code = code_id(parts.account.workspace_id, bundle.sha256)
    uploads = [Upload("code", bundle.sha256, code, bundle.size, bundle.file_count)]
    if parts.environment.upload is not None:
        uploads.append(parts.environment.upload)
    named = [request["properties"].get("codeId"), request["properties"].get("environmentId")]
    return [upload for upload in uploads if upload.destination in named]
