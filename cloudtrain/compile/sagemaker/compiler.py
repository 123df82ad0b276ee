"""Job, target and context in, plan out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudtrain.catalogue.images import image_of_uri
from cloudtrain.compile.sagemaker.images import contents_of, image_of
from cloudtrain.compile.sagemaker.machines import Machines, machines_in, machines_of
from cloudtrain.compile.sagemaker.modes import launch_of
from cloudtrain.compile.sagemaker.overrides import overridden
from cloudtrain.compile.sagemaker.places import bundle_uri
from cloudtrain.compile.sagemaker.request import Parts, request_of
from cloudtrain.compile.sagemaker.settings import refuse_unreadable
from cloudtrain.compile.sagemaker.summary import summary
from cloudtrain.job import TrainingJob
from cloudtrain.launch import sagemaker_container as container
from cloudtrain.plans import CompileContext, Plan, Process, SageMakerAccount, Upload
from cloudtrain.targets import SageMaker


def compile_sagemaker(job: TrainingJob, target: SageMaker, context: CompileContext) -> Plan:
    """The plan of a job on SageMaker. `context.account` is a `SageMakerAccount`; `request` is the body of
    CreateTrainingJob.

    Raises:
        JobError: the job asks for something that SageMaker does not have, with the alternative.
    """
    parts = parts_of(job, target, context)
    request = finished_request(parts, job.sagemaker_overrides)
    machines = machines_in(request["ResourceConfig"], parts.account)
    processes = _processes(parts, machines, request)
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
    """The request with the user's overrides, such that whoever starts the job can read it.

    Raises:
        JobError: it is not.
    """
    request = overridden(request_of(parts), overrides)
    refuse_unreadable(request, parts.job)
    return request


def parts_of(job: TrainingJob, target: SageMaker, context: CompileContext) -> Parts:
    """What is decided about the job: its machines, its image, and who starts it."""
    account: SageMakerAccount = context.account
    machines = machines_of(job, account)
    image = image_of(job, account, machines)
    return Parts(
        job=job,
        target=target,
        account=account,
        run_name=context.run_name,
        code_uri=bundle_uri(target, account, context.bundle.sha256),
        machines=machines,
        image=image,
        launch=launch_of(job, target, machines, image),
    )


def _processes(parts: Parts, machines: Machines, request: dict[str, Any]) -> tuple[Process, ...]:
    """What the container will really run, seen from the finished request, the user's overrides included."""
    if parts.launch.mode == "image":
        return ()

    devices = {group.instance_type: group.accelerators for group in machines.groups}
    image = request["AlgorithmSpecification"].get("TrainingImage")
    known = parts.image.known if image == parts.image.uri else image_of_uri(image or "")
    rows = {group.instance_type: group.known for group in machines.groups}
    return container.view(request, contents_of(known), devices.__getitem__, known=rows.get)
