"""Compile a job, a target and a context into a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudtrain.catalogue.machines import Machines
from cloudtrain.core.job import TrainingJob
from cloudtrain.core.per_target import overrides_of
from cloudtrain.core.plan import CompileContext, Plan, Upload
from cloudtrain.core.processes import Processes
from cloudtrain.targets.common.problems import Problems
from cloudtrain.targets.sagemaker.account import SageMakerAccount
from cloudtrain.targets.sagemaker.catalogue.images import image_of_uri
from cloudtrain.targets.sagemaker.compile.images import NO_IMAGE, base_framework, contents_of, image_of
from cloudtrain.targets.sagemaker.compile.launch_parameters import refuse_unreadable
from cloudtrain.targets.sagemaker.compile.machines import machines_in, machines_of, some_machines
from cloudtrain.targets.sagemaker.compile.modes import Launch, launch_of
from cloudtrain.targets.sagemaker.compile.overrides import overridden
from cloudtrain.targets.sagemaker.compile.places import bundle_uri, place_problems
from cloudtrain.targets.sagemaker.compile.request import Parts, request_of
from cloudtrain.targets.sagemaker.compile.summary import summary
from cloudtrain.targets.sagemaker.launch import job as container
from cloudtrain.targets.sagemaker.settings import SageMaker


def compile_sagemaker(job: TrainingJob, target: SageMaker, context: CompileContext) -> Plan:
    """Return the plan of a job on SageMaker, whose `request` is the body of CreateTrainingJob.

    `context.account` must be a `SageMakerAccount`.

    Raises:
        JobError: SageMaker does not support the job; the message gives an alternative.
    """
    problems = Problems()
    parts = parts_of(job, target, context, problems)
    problems += place_problems(job)
    plan = problems.value(lambda: _plan(parts, context, problems), None) if parts is not None else None
    problems.refuse(plan)
    assert plan is not None
    return plan


def _plan(parts: Parts, context: CompileContext, problems: Problems) -> Plan:
    """Return the plan; problems with the container's processes are added to `problems`."""
    job = parts.job
    request = finished_request(parts, overrides_of(job, "sagemaker"))
    machines = machines_in(request["ResourceConfig"], parts.account)
    processes = problems.value(lambda: _processes(parts, machines, request, package=context.package), Processes())
    bundle = context.bundle
    uploads = (Upload("code", bundle.sha256, parts.code_uri, bundle.size, bundle.file_count),)
    return Plan(
        target="sagemaker",
        run_name=context.run_name,
        job_name=job.name,
        request=request,
        uploads=() if parts.launch.mode == "image" else uploads,
        processes=processes,
        summary=tuple(summary(parts, machines, request, processes)),
        notes=() if parts.image.assumed is None else (f"the image is for {parts.image.assumed}",),
    )


def finished_request(parts: Parts, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request with the user's overrides, after a check that the container's launcher can read it.

    Raises:
        JobError: the launcher cannot read the request.
    """
    request = overridden(request_of(parts), overrides)
    refuse_unreadable(request, parts.job)
    return request


def parts_of(job: TrainingJob, target: SageMaker, context: CompileContext, problems: Problems) -> Parts | None:
    """Choose the job's machines, its image, and the program that starts it.

    Errors are added to `problems`. If no image or launch mode fits, a placeholder is used. Returns None if no machines
    fit.
    """
    account: SageMakerAccount = context.account
    machines = problems.value(lambda: machines_of(job, account), None)
    known = machines or some_machines(job)
    image = problems.value(lambda: image_of(job, account, known), NO_IMAGE) if machines is not None else NO_IMAGE
    launch = problems.value(lambda: launch_of(job, target, known, image, package=context.package), None)
    if machines is None:
        return None
    if image is NO_IMAGE or launch is None:
        launch = Launch("image", "")
    return Parts(
        job=job,
        target=target,
        account=account,
        run_name=context.run_name,
        code_uri=bundle_uri(target, account, context.bundle.sha256),
        machines=machines,
        image=image,
        launch=launch,
    )


def _processes(parts: Parts, machines: Machines, request: dict[str, Any], *, package: bool) -> Processes:
    """Return the processes that the container will run, according to the finished request with its overrides.

    `package` is true if the bundle's top folder contains a `setup.py`.
    """
    if parts.launch.mode == "image":
        return Processes()
    devices = {group.instance_type: group.accelerators for group in machines.groups}
    image = request["AlgorithmSpecification"].get("TrainingImage")
    known = parts.image.known if image == parts.image.uri else image_of_uri(image or "")
    rows = {group.instance_type: group.known for group in machines.groups}
    inside = contents_of(known, base_framework(parts.job))
    return container.view(request, inside, devices.__getitem__, package=package, known=rows.get)
