"""Compile a job, a target and a context into a plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import methodcaller
from typing import Any, NamedTuple

from cloudtrain.errors import JobError, Problem
from cloudtrain.job.distribution import SMP, Distribution
from cloudtrain.job.model import format_duration, overrides_of
from cloudtrain.job.training import TrainingJob
from cloudtrain.machines.choose import MachineGroup, Machines
from cloudtrain.machines.spending import Spending
from cloudtrain.plans.plan import CompileContext, Plan, Upload, map_texts
from cloudtrain.plans.processes import Processes
from cloudtrain.rules.engine import count_in, mapping_at
from cloudtrain.runtime.sagemaker_launcher import CONTAINER_ENTRYPOINT
from cloudtrain.runtime.sagemaker_launcher.arguments import decode_hyperparameters
from cloudtrain.targets.common.compiling import (
    Problems,
    resolve_hyperparameters,
    resolve_text,
    stall_variables,
    tracking_variables,
)
from cloudtrain.targets.sagemaker import request as keys
from cloudtrain.targets.sagemaker.compile.launch import (
    LaunchChoice,
    distribution_pairs,
    launch_of,
    launch_pairs,
)
from cloudtrain.targets.sagemaker.compile.machines import (
    FIELD,
    NO_IMAGE,
    ChosenImage,
    image_of,
    machine_values,
    machines_of,
    overridden,
)
from cloudtrain.targets.sagemaker.compile.places import (
    CHECKPOINT_VARIABLE,
    ISOLATED_BUNDLE,
    OUTPUT_ROOT,
    bundle_uri,
    channels,
    checkpoint_values,
    code_channel,
    output_place,
    paths_of,
    place_problems,
)
from cloudtrain.targets.sagemaker.fields import (
    ALGORITHM,
    CHANNELS,
    CHECKPOINT,
    ENTRYPOINT,
    LIMITS,
    MACHINES,
    OUTPUT,
    PARAMETERS,
    SERVICE_METRICS,
    SPOT,
    TRAINING_FIELDS,
    encode_fields,
    values_of,
)
from cloudtrain.targets.sagemaker.launch import processes as container
from cloudtrain.targets.sagemaker.plan import RUN_TAG, TRAINING, outputs_of
from cloudtrain.targets.sagemaker.reading import (
    DEFAULT_GROUP,
    DEFAULT_MAX_RUNTIME,
    Start,
    distribution_in,
    machines_in,
    uses_in,
)
from cloudtrain.targets.sagemaker.request import JsonMapping, JsonObject
from cloudtrain.targets.sagemaker.settings import SageMaker, SageMakerAccount

# Write the body of CreateTrainingJob, field by field.


class TrainingParts(NamedTuple):
    """The values from which a training job's request is written."""

    job: TrainingJob
    target: SageMaker
    account: SageMakerAccount
    run_name: str
    code_uri: str
    machines: Machines
    image: ChosenImage
    launch: LaunchChoice

    @property
    def paths(self) -> dict[str, str]:
        """Map each reference, such as `inputs.train`, to its path in the container."""
        own = self.target.checkpoint_path
        return paths_of(self.job) | ({"checkpoint": own} if own else {})

    @property
    def needs_code_channel(self) -> bool:
        """Return whether the bundle needs an input channel, because the container does not download
        it itself."""
        if self.launch.mode == "toolkit":
            return self.target.network_isolation
        return self.launch.mode == "entrypoint"


def request_of(parts: TrainingParts) -> JsonObject:
    """Return the request, without the user's overrides."""
    values = values_of(TRAINING_FIELDS, parts.job, parts.target)
    return encode_fields(TRAINING_FIELDS, values | _decisions(parts))


def _decisions(parts: TrainingParts) -> JsonObject:
    """Return the values that neither the job nor a setting gives as they are sent."""
    job = parts.job
    target = parts.target
    account = parts.account
    place = output_place(job, target, account)
    starts_our_launcher = parts.launch.mode == "entrypoint"
    return {
        "name": parts.run_name,
        "settings.role": account.role,
        "environment.image": parts.image.uri,
        SERVICE_METRICS: parts.image.by_version or None,
        ENTRYPOINT: list(CONTAINER_ENTRYPOINT) if starts_our_launcher else None,
        "hyperparameters": _hyperparameters(parts) or None,
        CHANNELS: _inputs(parts) or None,
        "settings.output": place,
        "max_runtime": job.max_runtime or DEFAULT_MAX_RUNTIME,
        "environment.variables": _variables(parts),
        "tags": job.tags | {RUN_TAG: parts.run_name},
        **machine_values(job, parts.machines),
        **checkpoint_values(job, target, account, parts.run_name),
        **network_values(target),
        **_monitoring_values(target, place),
    }


def network_values(target: SageMaker) -> JsonObject:
    """Return the settings of the VPC: both lists even if one is empty, or None for both."""
    if not target.subnets and not target.security_group_ids:
        return {"settings.subnets": None, "settings.security_group_ids": None}
    return {
        "settings.subnets": target.subnets,
        "settings.security_group_ids": target.security_group_ids,
    }


def _monitoring_values(target: SageMaker, output: str) -> JsonObject:
    """Return settings of profiler, debugger and TensorBoard.

    Profiler and debugger are off by default, unlike in the SDK. `DisableProfiler` is sent because
    the service profiles by default. If they are on, they write to `output`, unless the settings
    name another folder.
    """
    values: JsonObject = {}
    if target.profiler:
        values["settings.profiler_output"] = target.profiler_output or output
    if target.debugger:
        values["settings.debugger_output"] = target.debugger_output or output
    else:
        values["settings.debugger_collections"] = None
    if not target.tensorboard:
        values["settings.tensorboard"] = None
        values["settings.tensorboard_path"] = None
    return values


def _hyperparameters(parts: TrainingParts) -> dict[str, str]:
    """Return the hyperparameters: as JSON for scripts, which the toolkit decodes to the same types,
    and as plain text for an image's own entry point, as the SDK's generic estimator does."""
    of_job = resolve_hyperparameters(parts.job.hyperparameters, parts.paths)
    if parts.launch.mode == "image":
        return {name: str(value) for name, value in of_job.items()}

    if parts.launch.mode == "entrypoint":
        of_launcher = launch_pairs(parts.job, parts.machines, parts.paths)
    else:
        assert parts.job.entry_point is not None, "toolkit mode runs scripts"
        of_launcher = {
            keys.SUBMIT_DIRECTORY: ISOLATED_BUNDLE if parts.needs_code_channel else parts.code_uri,
            keys.PROGRAM: resolve_text(parts.job.entry_point, parts.paths),
            keys.LOG_LEVEL: keys.INFO,
            keys.JOB_NAME: parts.run_name,
            keys.REGION: parts.account.region,
            **distribution_pairs(parts.job, parts.machines),
        }
    return {name: json.dumps(value) for name, value in (of_job | of_launcher).items()}


def _inputs(parts: TrainingParts) -> list[JsonObject]:
    """Return the rows of `InputDataConfig`: the job's inputs, and the code if it needs a
    channel."""
    default_mode = parts.target.input_mode
    rows = channels(parts.job, default_mode)
    if parts.needs_code_channel:
        # if any channel names instance groups, all must; the code goes to every group
        group_names: tuple[str, ...] = ()
        if any(item.instance_groups for item in parts.job.inputs.values()):
            group_names = tuple(group.name for group in parts.machines.groups)
        rows.append(code_channel(parts.code_uri, group_names, default_mode))
    return rows


def _variables(parts: TrainingParts) -> dict[str, str]:
    """Return the job's environment variables, and those of its checkpoint."""
    variables = tracking_variables(parts.job, "sagemaker", OUTPUT_ROOT, keys.RUN_NAME)
    variables |= stall_variables(parts.job)
    for name, text in parts.job.environment.variables.items():
        variables[name] = resolve_text(text, parts.paths)
    checkpoint = parts.job.checkpoint
    if checkpoint is None:
        return variables

    # A number that the job does not write is left to the runtime, which has the same default.
    if "keep" in checkpoint.model_fields_set:
        variables["CLOUDTRAIN_CHECKPOINT_KEEP"] = str(checkpoint.keep)
    # The job's own variable wins over the setting.
    if parts.target.checkpoint_path is not None:
        variables.setdefault(CHECKPOINT_VARIABLE, parts.target.checkpoint_path)
    return variables


# The lines at the top of a printed plan: machines, processes, data locations and maximum cost.

_MODES = {
    "toolkit": "the image's training toolkit",
    "entrypoint": "cloudtrain's own launcher",
    "image": "the image's own entry point",
}


def summary(
    parts: TrainingParts, machines: Machines, start: Start, processes: Processes
) -> list[tuple[str, str]]:
    """Return pairs of label and text, in reading order."""
    job = parts.job
    request = start.request
    pairs = [
        ("target", f"sagemaker ({parts.account.region})"),
        ("instances", instances(machines)),
        ("processes", _process_count(machines, processes)),
        ("distribution", _distribution_text(distribution_in(job, start))),
        ("launch", f"{_MODES[parts.launch.mode]}: {parts.launch.reason}"),
        ("image", request[ALGORITHM].get("TrainingImage", "")),
        ("script", job.entry_point or job.command or ""),
        ("output", request[OUTPUT]["S3OutputPath"]),
        ("checkpoint", request.get(CHECKPOINT, {}).get("S3Uri", "")),
        ("max runtime", format_duration(max_runtime(request))),
        ("spot", _spot_text(request)),
        ("cost", cost(request, parts.account)),
    ]
    return [(label, text) for label, text in pairs if text]


def _process_count(machines: Machines, processes: Processes) -> str:
    """Return the number of ranks in words; an empty text if it is unknown."""
    ranks = processes.ranks
    if not ranks:
        return ""
    total = ranks.total()
    if machines.count == 1:
        return str(total)
    return f"{total} on {len(ranks)} of {machines.count} instances"


def max_runtime(request: JsonMapping) -> int:
    """Return the time limit in seconds, which is the service's default if the request has none."""
    limit: int = request.get(LIMITS, {}).get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME)
    return limit


def instances(machines: Machines, *, together: bool = True) -> str:
    """Return the instances, a line for each group or preferred type.

    `together`: whether the instances communicate with each other. EFA is named only if they do.
    """
    lines = []
    for group in machines.groups:
        line = f"{group.count} x {group.instance_type}"
        if group.known is not None:
            hardware = group.known.hardware
            if together and group.count > 1 and group.known.interconnect == "rdma":
                hardware += ", EFA"
            line += f" ({hardware})"
        if machines.kind == "groups":
            line = f"{group.name}: {line}"
        lines.append(line)
    return ("\nor " if machines.kind == "preferences" else "\n").join(lines)


def cost(request: JsonMapping, account: SageMakerAccount) -> str:
    """Return the line about the most that the request can spend."""
    spending = Spending.of(uses_in(request, account))
    return spending.text(is_spot=bool(request.get(SPOT)))


def _distribution_text(distribution: Distribution) -> str:
    if not isinstance(distribution, SMP):
        return distribution.type
    text = f"smp version {distribution.version}"
    parameters = []
    for name, value in distribution.parameters.items():
        parameters.append(f"{name} {value}")
    return f"{text}: {', '.join(parameters)}" if parameters else text


def _spot_text(request: JsonMapping) -> str:
    if not request.get(SPOT):
        return ""
    wait = request[LIMITS].get("MaxWaitTimeInSeconds")
    return f"waits at most {format_duration(wait)}, the run included" if wait else "yes"


# Check that the toolkit can read the launch hyperparameters that the user wrote by hand.


def finished_request(parts: TrainingParts, overrides: JsonMapping) -> JsonObject:
    """Return the request with the user's overrides. Launch hyperparameters that the toolkit cannot
    read are refused."""
    written = overridden(request_of(parts), overrides)
    name_run = methodcaller("replace", keys.RUN_NAME, parts.run_name)
    request: JsonObject = map_texts(written, name_run)
    parameters = decode_hyperparameters(request.get(PARAMETERS, {}))
    overridden_parameters = mapping_at(overrides_of(parts.job, "sagemaker"), PARAMETERS)

    problems = []
    for name, (wanted, fits) in _PARAMETER_TYPES.items():
        value = parameters.get(name)
        if not value or fits(value):
            continue
        path: tuple[str, ...] = ("hyperparameters", name)
        if name in overridden_parameters:
            path = (FIELD, PARAMETERS, name)
        message = f"`{name}` must be {wanted}, and is `{value}`"
        hint = f"leave out `{name}`"
        problems.append(Problem(path, message, hint, code="CT031"))
    if problems:
        raise JobError(problems)
    return request


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


_PARAMETER_TYPES: dict[str, tuple[str, Callable[[Any], object]]] = {
    keys.GROUPS: ("a list of instance groups", _are_texts),
    keys.INSTANCE_TYPE: ("text", _is_text),
    keys.PROCESSES: ("a number of processes", count_in),
    keys.RANKS: ("a number of processes", count_in),
    keys.MPI_OPTIONS: ("text", _is_text),
    keys.SMDDP_OPTIONS: ("text", _is_text),
}
"""The type that sagemaker-training expects of each hyperparameter: in words, and as a check."""


def compile_sagemaker(job: TrainingJob, target: SageMaker, context: CompileContext) -> Plan:
    """Return the plan of a job on SageMaker, whose `request` is the body of CreateTrainingJob.

    `context.account` must be a `SageMakerAccount`.

    Raises:
        CompileError: the job has problems; all of them are in the error.
    """
    problems = Problems()
    parts = parts_of(job, target, context, problems)
    problems += place_problems(job)

    plan = None
    if parts is not None:
        plan = problems.collect_from(lambda: _plan(parts, context, problems), None)

    # the error carries the plan too, so that the rules can check the rest of the job
    problems.raise_if_any(plan)
    assert plan is not None
    return plan


def _plan(parts: TrainingParts, context: CompileContext, problems: Problems) -> Plan:
    """Return the plan; problems with the container's processes are added to `problems`."""
    request = finished_request(parts, overrides_of(parts.job, "sagemaker"))
    machines = machines_in(request[MACHINES], parts.account)
    start = Start.of(request, parts.job.environment.framework)

    processes = problems.collect_from(
        lambda: _processes(parts, machines, start, package=context.package), Processes()
    )

    uploads: tuple[Upload, ...] = ()
    if parts.launch.mode != "image":
        bundle = context.bundle
        uploads = (Upload("code", bundle.sha256, parts.code_uri, bundle.size, bundle.file_count),)

    assumed = parts.image.assumed
    return Plan(
        target="sagemaker",
        run_name=context.run_name,
        job_name=parts.job.name,
        request=request,
        uploads=uploads,
        processes=processes,
        summary=tuple(summary(parts, machines, start, processes)),
        notes=() if assumed is None else (f"the image is for {assumed}",),
        place=context.account.place,
        outputs=outputs_of(request, TRAINING),
    )


def parts_of(
    job: TrainingJob, target: SageMaker, context: CompileContext, problems: Problems
) -> TrainingParts | None:
    """Choose the job's machines, its image, and the program that starts it.

    Errors are added to `problems`. If no image or launch mode fits, a placeholder is used. Returns
    None if no machines fit.
    """
    account: SageMakerAccount = context.account
    machines = problems.collect_from(lambda: machines_of(job, account), None)
    image = NO_IMAGE
    if machines is None:
        # of an unknown type, so that the job's other mistakes are found
        unknown = MachineGroup("", job.resources.instance_count, None, DEFAULT_GROUP)
        cluster = Machines((unknown,))
    else:
        cluster = machines
        image = problems.collect_from(lambda: image_of(job, account, cluster), NO_IMAGE)

    launch = problems.collect_from(
        lambda: launch_of(job, target, cluster, image, package=context.package), None
    )
    if machines is None:
        return None
    if image is NO_IMAGE or launch is None:
        launch = LaunchChoice("image", "")
    return TrainingParts(
        job=job,
        target=target,
        account=account,
        run_name=context.run_name,
        code_uri=bundle_uri(target, account, context.bundle.sha256),
        machines=machines,
        image=image,
        launch=launch,
    )


def _processes(
    parts: TrainingParts, machines: Machines, start: Start, *, package: bool
) -> Processes:
    """Return the processes that the container will run, according to the finished request with its
    overrides."""
    if parts.launch.mode == "image":
        return Processes()

    devices = {group.instance_type: group.accelerators for group in machines.groups}
    entries = {group.instance_type: group.known for group in machines.groups}
    return container.view(
        start.request, start.container, devices.__getitem__, package=package, entry_of=entries.get
    )
