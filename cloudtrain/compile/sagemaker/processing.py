"""A processing job becomes the exact body of CreateProcessingJob.

Every instance runs one container: a shell unpacks the bundle, and `cloudtrain.runtime.sagemaker_processing` starts the
script there. The SDK's processors differ: they upload a raw script (ScriptProcessor), or a `runproc.sh` of their own
into an input `entrypoint` (FrameworkProcessor).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cloudtrain.compile.common import hyperparameter_argv, resolve_hyperparameters, resolve_text
from cloudtrain.compile.sagemaker import processing_data as data
from cloudtrain.compile.sagemaker.images import ChosenImage, image_of
from cloudtrain.compile.sagemaker.machines import Machines, cluster_config, machines_in, machines_of
from cloudtrain.compile.sagemaker.overrides import overridden
from cloudtrain.compile.sagemaker.places import bundle_uri
from cloudtrain.compile.sagemaker.request import DEFAULT_MAX_RUNTIME, experiment, network, tags
from cloudtrain.compile.sagemaker.summary import cost, instances, max_runtime
from cloudtrain.errors import JobError, Problem
from cloudtrain.job import TrainingJob
from cloudtrain.plans import CompileContext, Plan, Process, SageMakerAccount, Upload
from cloudtrain.processing import ProcessingJob
from cloudtrain.runtime.sagemaker_processing import container_entrypoint, script_argv
from cloudtrain.targets import SageMaker
from cloudtrain.units import format_duration

LONGEST_WORD = 256
"""Characters of one item of ContainerEntrypoint or ContainerArguments, which cannot hold line breaks either
(botocore 1.44.5: ContainerEntrypointString, ContainerArgument)."""


def compile_processing(job: ProcessingJob, target: SageMaker, context: CompileContext) -> Plan:
    """The plan of a processing job on SageMaker. `context.account` is a `SageMakerAccount`; of the target's settings
    those count that CreateProcessingJob has: role, bucket, network, keys, experiment.

    Raises:
        JobError: the job asks for something that SageMaker does not have, with the alternative.
    """
    parts = _Parts.of(job, target, context)
    problems = [*data.input_problems(job), *_word_problems(parts)]
    if problems:
        raise JobError(problems)
    request = overridden(_request(parts), job.sagemaker_overrides, "CreateProcessingJob")
    machines = machines_in(request["ProcessingResources"]["ClusterConfig"], parts.account)
    bundle = context.bundle
    upload = Upload("code", bundle.sha256, parts.code_uri, bundle.size, bundle.file_count)
    return Plan(
        target="sagemaker",
        run_name=context.run_name,
        job_name=job.name,
        request=request,
        uploads=(upload,) if parts.brings_code else (),
        processes=_processes(parts, machines.count),
        summary=tuple((label, text) for label, text in _summary(parts, machines, request) if text),
        notes=tuple(_notes(parts)),
    )


@dataclass(frozen=True)
class _Parts:
    """What was decided about a job before its request is written."""

    job: ProcessingJob
    view: TrainingJob
    target: SageMaker
    account: SageMakerAccount
    run_name: str
    code_uri: str
    machines: Machines
    image: ChosenImage

    @classmethod
    def of(cls, job: ProcessingJob, target: SageMaker, context: CompileContext) -> _Parts:
        view, account = job.as_training(), context.account
        machines = machines_of(view, account)
        return cls(
            job=job,
            view=view,
            target=target,
            account=account,
            run_name=context.run_name,
            code_uri=bundle_uri(target, account, context.bundle.sha256),
            machines=machines,
            image=image_of(view, account, machines),
        )

    @property
    def brings_code(self) -> bool:
        """False where the image's own entry point runs."""
        return self.job.entry_point is not None or self.job.command is not None

    @property
    def paths(self) -> dict[str, str]:
        """Reference to path in the container."""
        return data.paths_of(self.job)

    @property
    def words(self) -> list[str]:
        """What our launcher is told behind the shell line."""
        requirements = self.job.environment.requirements
        return [*(["--requirements", requirements] if requirements else []), *self.program]

    @property
    def program(self) -> list[str]:
        """The script, or the command line."""
        if self.job.command is not None:
            return ["--command", resolve_text(self.job.command, self.paths)]
        assert self.job.entry_point is not None
        return [resolve_text(self.job.entry_point, self.paths)]

    @property
    def arguments(self) -> list[str]:
        """The script's arguments."""
        return hyperparameter_argv(resolve_hyperparameters(self.view, self.paths))


def _request(parts: _Parts) -> dict[str, Any]:
    """The request, without the user's overrides."""
    job, target = parts.job, parts.target
    request = {
        "ProcessingJobName": parts.run_name,
        "ProcessingResources": {"ClusterConfig": cluster_config(parts.view, target, parts.machines)},
        "AppSpecification": _application(parts),
        "RoleArn": parts.account.role,
        "ProcessingInputs": data.inputs(job, parts.code_uri if parts.brings_code else None),
        "ProcessingOutputConfig": data.outputs(job, target, parts.account, parts.run_name),
        "Environment": {key: resolve_text(text, parts.paths) for key, text in job.environment.variables.items()},
        "NetworkConfig": _network(target),
        "StoppingCondition": {"MaxRuntimeInSeconds": job.max_runtime or DEFAULT_MAX_RUNTIME},
        "ExperimentConfig": experiment(target),
        "Tags": tags(job.tags, parts.run_name),
    }
    return {key: value for key, value in request.items() if value not in (None, {}, [])}


def _application(parts: _Parts) -> dict[str, Any]:
    application: dict[str, Any] = {"ImageUri": parts.image.uri}
    if parts.arguments:
        application["ContainerArguments"] = parts.arguments
    if parts.brings_code:
        application["ContainerEntrypoint"] = container_entrypoint(parts.words)
    return application


def _network(target: SageMaker) -> dict[str, Any]:
    """Only where something is asked for, and then whole, as the SDK's NetworkConfig writes it."""
    config: dict[str, Any] = {}
    if target.encrypt_inter_container_traffic:
        config["EnableInterContainerTrafficEncryption"] = True
    if vpc := network(target):
        config["VpcConfig"] = vpc
    if config or target.network_isolation:
        config["EnableNetworkIsolation"] = target.network_isolation
    return config


def _word_problems(parts: _Parts) -> Iterator[Problem]:
    """Words that the request has no room for; there is no other way for them into the container."""
    if parts.job.command is not None:
        yield from _word_problem(parts.words[-1], ("command",), "put it into a script: `entry_point: run.sh`")
    for name, value in resolve_hyperparameters(parts.view, parts.paths).items():
        text = hyperparameter_argv({name: value})[-1]
        hint = "write it to a file in the source folder, and give the file's name"
        yield from _word_problem(text, ("hyperparameters", name), hint)


def _word_problem(text: str, path: tuple[str, ...], hint: str) -> Iterator[Problem]:
    if len(text) > LONGEST_WORD:
        message = f"`{path[-1]}` has {len(text)} characters, and a processing job takes at most {LONGEST_WORD}"
        yield Problem(path, message, hint)
    elif "\n" in text:
        yield Problem(path, f"`{path[-1]}` has a line break, which a processing job cannot take", hint)


def _processes(parts: _Parts, count: int) -> tuple[Process, ...]:
    """One process per instance: what starts once the bundle is unpacked."""
    if not parts.brings_code:
        return ()
    argv = tuple(script_argv([*parts.program, *parts.arguments]))
    return tuple(
        Process(
            instance=instance,
            role="process",
            argv=argv,
            env={"CLOUDTRAIN_INSTANCE": str(instance), "CLOUDTRAIN_INSTANCE_COUNT": str(count)},
            rank=instance,
            local_rank=0,
        )
        for instance in range(count)
    )


def _notes(parts: _Parts) -> Iterator[str]:
    if parts.image.assumed is not None:
        yield f"the image is for {parts.image.assumed}"
    read_on_demand = [
        n for n, item in parts.job.inputs.items() if "mode" in item.model_fields_set and item.mode == "mount"
    ]
    if read_on_demand:
        names = ", ".join(f"`{name}`" for name in read_on_demand)
        yield f"processing jobs have no FastFile mode, so {names} will be copied before the start"


def _summary(parts: _Parts, machines: Machines, request: dict[str, Any]) -> Iterator[tuple[str, str]]:
    job = parts.job
    sharded = [name for name, item in job.inputs.items() if item.shard]
    yield "target", f"sagemaker ({parts.account.region})"
    yield "instances", instances(machines, together=False)
    yield "shards", f"{', '.join(sharded)}: dealt out by file over {machines.count} instances" if sharded else ""
    yield "image", parts.image.uri
    yield "script", job.entry_point or job.command or ""
    yield "outputs", "\n".join(_output_places(request))
    yield "max runtime", format_duration(max_runtime(request))
    yield "cost", cost(machines, request)


def _output_places(request: dict[str, Any]) -> Iterator[str]:
    for item in request.get("ProcessingOutputConfig", {}).get("Outputs", ()):
        yield item.get("S3Output", {}).get("S3Uri", "")
