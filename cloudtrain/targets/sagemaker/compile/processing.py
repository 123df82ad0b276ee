"""Compile a processing job into the exact body of CreateProcessingJob.

Every instance runs one container. There, a shell unpacks the bundle, and
`cloudtrain.runtime.sagemaker_processing` starts the script. The SDK's processors differ:
ScriptProcessor uploads a raw script, and FrameworkProcessor uploads a `runproc.sh` into an input
`entrypoint`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cloudtrain.errors import Problem
from cloudtrain.job.model import format_duration, overrides_of
from cloudtrain.job.processing import ProcessingJob
from cloudtrain.job.training import TrainingJob
from cloudtrain.machines.choose import Machines
from cloudtrain.plans.plan import CompileContext, Plan, Upload
from cloudtrain.plans.processes import Alike, Process, Processes
from cloudtrain.rules.engine import mapping_at, rows_at, text_at
from cloudtrain.runtime.sagemaker_processing import container_entrypoint, script_argv
from cloudtrain.targets.common.compiling import (
    Problems,
    hyperparameter_argv,
    resolve_hyperparameters,
    resolve_text,
)
from cloudtrain.targets.sagemaker.compile import places as data
from cloudtrain.targets.sagemaker.compile.launch import python_too_old
from cloudtrain.targets.sagemaker.compile.machines import (
    ChosenImage,
    image_of,
    machine_values,
    machines_of,
    overridden,
)
from cloudtrain.targets.sagemaker.compile.places import bundle_uri
from cloudtrain.targets.sagemaker.compile.training import (
    cost,
    instances,
    max_runtime,
    network_values,
)
from cloudtrain.targets.sagemaker.fields import (
    CLUSTER,
    PROCESSING_FIELDS,
    encode_fields,
    values_of,
)
from cloudtrain.targets.sagemaker.plan import PROCESSING, RUN_TAG, outputs_of
from cloudtrain.targets.sagemaker.reading import DEFAULT_MAX_RUNTIME, machines_in
from cloudtrain.targets.sagemaker.request import JsonObject
from cloudtrain.targets.sagemaker.settings import SageMaker, SageMakerAccount

LONGEST_WORD = 256
"""Longest item of ContainerEntrypoint or ContainerArguments, in characters.

Items cannot contain line breaks (botocore 1.44.5: ContainerEntrypointString, ContainerArgument).
"""


def compile_processing(job: ProcessingJob, target: SageMaker, context: CompileContext) -> Plan:
    """Return the plan of a processing job on SageMaker.

    `context.account` must be a `SageMakerAccount`. CreateProcessingJob uses the target's settings
    for role, bucket, network, keys and experiment; other settings are ignored.

    Raises:
        CompileError: the job has problems; all of them are in the error.
    """
    problems = Problems()
    parts = problems.collect_from(lambda: _parts_of(job, target, context), None)
    problems += [*data.input_problems(job), *_word_problems(job)]

    plan = None
    if parts is not None:
        # cloudtrain's launcher must run in the image, because no toolkit exists for processing jobs
        too_old = python_too_old(parts.image.entry)
        if parts.brings_code and too_old is not None:
            problems.append(
                Problem(
                    ("environment", "version"),
                    too_old,
                    "use a newer `version`, or an image of your own",
                    code="CT034",
                )
            )
        plan = problems.collect_from(lambda: _plan(parts, context), None)

    problems.raise_if_any(plan)
    assert plan is not None
    return plan


def _parts_of(job: ProcessingJob, target: SageMaker, context: CompileContext) -> _Parts:
    """Choose the job's machines and image. Raises a `JobError` if none fits."""
    account: SageMakerAccount = context.account
    view = job.view
    machines = machines_of(view, account)
    image = image_of(view, account, machines)
    code_uri = bundle_uri(target, account, context.bundle.sha256)
    return _Parts(job, view, target, account, context.run_name, code_uri, machines, image)


def _plan(parts: _Parts, context: CompileContext) -> Plan:
    """Return the plan, leaving out inputs that SageMaker cannot read."""
    values = values_of(PROCESSING_FIELDS, parts.job, parts.target) | _decisions(parts)
    written = encode_fields(PROCESSING_FIELDS, values)
    request = overridden(written, overrides_of(parts.job, "sagemaker"), "CreateProcessingJob")
    machines = machines_in(mapping_at(request, *CLUSTER), parts.account)
    bundle = context.bundle
    upload = Upload("code", bundle.sha256, parts.code_uri, bundle.size, bundle.file_count)
    pairs = _summary(parts, machines, request)
    return Plan(
        target="sagemaker",
        run_name=context.run_name,
        job_name=parts.job.name,
        request=request,
        uploads=(upload,) if parts.brings_code else (),
        processes=_processes(parts, machines.count),
        summary=tuple((label, text) for label, text in pairs if text),
        notes=tuple(_notes(parts)),
        place=context.account.place,
        outputs=outputs_of(request, PROCESSING),
    )


@dataclass(frozen=True)
class _Parts:
    """The values from which a processing job's request is written."""

    job: ProcessingJob
    view: TrainingJob
    target: SageMaker
    account: SageMakerAccount
    run_name: str
    code_uri: str
    machines: Machines
    image: ChosenImage

    @property
    def brings_code(self) -> bool:
        """Return whether the job has a script or a command; False if the image's own entry point
        runs."""
        return self.job.entry_point is not None or self.job.command is not None

    @property
    def paths(self) -> dict[str, str]:
        """Map each reference, such as `inputs.train`, to its path in the container."""
        return data.processing_paths_of(self.job)

    @property
    def program(self) -> list[str]:
        """Return the job's command or script, as cloudtrain's launcher takes it."""
        if self.job.command is not None:
            return ["--command", resolve_text(self.job.command, self.paths)]
        assert self.job.entry_point is not None
        return [resolve_text(self.job.entry_point, self.paths)]

    @property
    def arguments(self) -> list[str]:
        return hyperparameter_argv(resolve_hyperparameters(self.view.hyperparameters, self.paths))


def _decisions(parts: _Parts) -> JsonObject:
    """Return the values that neither the job nor a setting gives as they are sent."""
    job = parts.job
    target = parts.target
    code_uri = None
    entrypoint = None
    if parts.brings_code:
        code_uri = parts.code_uri
        words = parts.program
        if job.environment.requirements:
            words = ["--requirements", job.environment.requirements, *words]
        entrypoint = container_entrypoint(words)
    network = network_values(target)
    has_network = target.encrypt_inter_container_traffic or network["settings.subnets"] is not None
    variables = {
        name: resolve_text(text, parts.paths) for name, text in job.environment.variables.items()
    }
    return {
        "name": parts.run_name,
        "environment.image": parts.image.uri,
        "hyperparameters": parts.arguments or None,
        "entry_point": entrypoint,
        "settings.role": parts.account.role,
        "inputs": data.inputs(job, code_uri) or None,
        "outputs": data.outputs(job, target, parts.account, parts.run_name) or None,
        "environment.variables": variables,
        # false, too, beside other settings of the network, as the SDK's NetworkConfig writes it
        "settings.network_isolation": target.network_isolation or (False if has_network else None),
        "max_runtime": job.max_runtime or DEFAULT_MAX_RUNTIME,
        "tags": job.tags | {RUN_TAG: parts.run_name},
        **machine_values(parts.view, parts.machines),
        **network,
    }


def _word_problems(job: ProcessingJob) -> Iterator[Problem]:
    """Report arguments that the request cannot hold because they are too long or contain a line
    break."""
    paths = data.processing_paths_of(job)
    texts: dict[tuple[str, ...], str] = {}
    if job.command is not None:
        texts["command",] = resolve_text(job.command, paths)
    for name, value in resolve_hyperparameters(job.view.hyperparameters, paths).items():
        words = hyperparameter_argv({name: value})
        texts["hyperparameters", name] = words[-1]

    for path, text in texts.items():
        if len(text) > LONGEST_WORD or "\n" in text:
            message = f"`{path[-1]}` must be one line of at most {LONGEST_WORD} characters"
            hint = "write it to a file in the source folder, and give the file's name"
            if path == ("command",):
                hint = "put it into a script: `entry_point: run.sh`"
            yield Problem(path, message, hint, code="CT031")


def _processes(parts: _Parts, count: int) -> Processes:
    """Return one process for each of `count` instances; none if the image's own entry point
    runs."""
    if not parts.brings_code:
        return Processes()
    argv = tuple(script_argv([*parts.program, *parts.arguments]))

    def process(instance: int) -> Process:
        env = {"CLOUDTRAIN_INSTANCE": str(instance), "CLOUDTRAIN_INSTANCE_COUNT": str(count)}
        return Process(instance, "process", argv, env, rank=instance, local_rank=0)

    one_of_each = tuple((instance, 1) for instance in range(count))
    return Processes([Alike("process", one_of_each, process)])


def _notes(parts: _Parts) -> Iterator[str]:
    if parts.image.assumed is not None:
        yield f"the image is for {parts.image.assumed}"
    mounted = []
    for name, item in parts.job.inputs.items():
        if item.mode == "mount" and "mode" in item.model_fields_set:
            mounted.append(f"`{name}`")
    if mounted:
        yield (
            f"processing jobs have no FastFile mode, so {', '.join(mounted)} will be copied "
            "before the start"
        )


def _summary(parts: _Parts, machines: Machines, request: JsonObject) -> Iterator[tuple[str, str]]:
    job = parts.job
    yield "target", f"sagemaker ({parts.account.region})"
    yield "instances", instances(machines, together=False)
    sharded = [name for name, item in job.inputs.items() if item.shard]
    if sharded:
        names = ", ".join(sharded)
        yield "shards", f"{names}: dealt out by file over {machines.count} instances"
    yield "image", parts.image.uri
    yield "script", job.entry_point or job.command or ""
    outputs = rows_at(request, "ProcessingOutputConfig", "Outputs")
    yield "outputs", "\n".join(text_at(item, "S3Output", "S3Uri") for item in outputs)
    yield "max runtime", format_duration(max_runtime(request))
    yield "cost", cost(request, parts.account)
