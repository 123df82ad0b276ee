"""Compile a job, a target and a context into a plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import ceil
from typing import Any, NamedTuple

from cloudtrain.errors import JobError, Problem
from cloudtrain.job.distribution import SMP, Distribution
from cloudtrain.job.model import format_duration, overrides_of
from cloudtrain.job.training import TrainingJob
from cloudtrain.machines.choose import MachineGroup, Machines
from cloudtrain.plans.plan import CompileContext, Plan, Upload, map_texts
from cloudtrain.plans.processes import Processes
from cloudtrain.rules.engine import mapping_at
from cloudtrain.runtime.sagemaker_launcher import CONTAINER_ENTRYPOINT
from cloudtrain.runtime.sagemaker_launcher.arguments import decode_hyperparameters
from cloudtrain.targets.common.compiling import Problems, resolve_hyperparameters, resolve_text
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
    machines_of,
    overridden,
    resource_config,
)
from cloudtrain.targets.sagemaker.compile.places import (
    CHECKPOINT_VARIABLE,
    INPUT_MODES,
    ISOLATED_BUNDLE,
    bundle_uri,
    channels,
    checkpoint_config,
    code_channel,
    output_config,
    paths_of,
    place_problems,
)
from cloudtrain.targets.sagemaker.launch import processes as container
from cloudtrain.targets.sagemaker.plan import RUN_TAG, TRAINING, outputs_of
from cloudtrain.targets.sagemaker.reading import (
    DEFAULT_GROUP,
    DEFAULT_MAX_RUNTIME,
    Start,
    distribution_in,
    machines_in,
)
from cloudtrain.targets.sagemaker.request import JsonMapping, JsonObject
from cloudtrain.targets.sagemaker.settings import MonitoringRule, SageMaker, SageMakerAccount

# Write the request's monitoring fields: profiler, debugger, their rules, TensorBoard and MLflow.


def monitoring(target: SageMaker, output: str) -> JsonObject:
    """Return the monitoring fields of a request.

    Profiler and debugger are off by default, unlike in the SDK. If they are on, they write to
    `output`, unless the settings name another folder. `DisableProfiler` is written because the
    service profiles by default.
    """
    profiler: JsonObject = {"DisableProfiler": True}
    if target.profiler:
        profiler = {
            "S3OutputPath": target.profiler_output or output,
            "DisableProfiler": False,
            "ProfilingIntervalInMilliseconds": target.profiler_interval,
            "ProfilingParameters": dict(target.profiler_parameters),
        }
    mlflow = {
        "MlflowResourceArn": target.mlflow,
        "MlflowExperimentName": target.mlflow_experiment,
        "MlflowRunName": target.mlflow_run,
    }
    board = (
        {"S3OutputPath": target.tensorboard, "LocalPath": target.tensorboard_path}
        if target.tensorboard
        else {}
    )
    return {
        "ProfilerConfig": _written(profiler),
        "ProfilerRuleConfigurations": [_rule(rule) for rule in target.profiler_rules],
        "DebugHookConfig": _hook(target, output) if target.debugger else None,
        "DebugRuleConfigurations": [_rule(rule) for rule in target.debug_rules],
        "TensorBoardOutputConfig": _written(board),
        "MlflowConfig": _written(mlflow),
    }


def _hook(target: SageMaker, output: str) -> JsonObject:
    hook = {
        "S3OutputPath": target.debugger_output or output,
        "LocalPath": target.debugger_path,
        "HookParameters": dict(target.debugger_parameters),
    }
    collections = [
        _written({"CollectionName": name, "CollectionParameters": dict(parameters)})
        for name, parameters in target.debugger_collections.items()
    ]
    return _written(hook) | {"CollectionConfigurations": collections}


def _rule(rule: MonitoringRule) -> JsonObject:
    fields = {
        "RuleConfigurationName": rule.name,
        "RuleEvaluatorImage": rule.image,
        "InstanceType": rule.instance_type,
        "VolumeSizeInGB": ceil(rule.volume_size / 2**30) if rule.volume_size else None,
        "LocalPath": rule.local_path,
        "S3OutputPath": rule.output,
        "RuleParameters": dict(rule.parameters),
    }
    return _written(fields)


def _written(fields: JsonMapping) -> JsonObject:
    return {name: value for name, value in fields.items() if value not in (None, {})}


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
        return self.launch.mode == "entrypoint" or (
            self.launch.mode == "toolkit" and self.target.network_isolation
        )


def request_of(parts: TrainingParts) -> JsonObject:
    """Return the request, without the user's overrides."""
    job, target = parts.job, parts.target
    request = {
        "TrainingJobName": parts.run_name,
        "RoleArn": parts.account.role,
        "AlgorithmSpecification": _algorithm(parts),
        "HyperParameters": _hyperparameters(parts),
        "InputDataConfig": _inputs(parts),
        "OutputDataConfig": output_config(job, target, parts.account),
        "ResourceConfig": resource_config(job, target, parts.machines),
        "StoppingCondition": _stopping(parts),
        "CheckpointConfig": checkpoint_config(job, target, parts.account, parts.run_name),
        "Environment": _environment(parts),
        "Tags": tags(job.tags, parts.run_name),
        "VpcConfig": network(target),
        "RetryStrategy": {"MaximumRetryAttempts": target.max_retries}
        if target.max_retries
        else None,
        "ExperimentConfig": experiment(target),
        "EnableNetworkIsolation": target.network_isolation or None,
        "EnableInterContainerTrafficEncryption": target.encrypt_inter_container_traffic or None,
        "EnableManagedSpotTraining": True if job.spot else None,
        "RemoteDebugConfig": {"EnableRemoteDebug": True} if target.remote_debug else None,
        "InfraCheckConfig": {"EnableInfraCheck": True} if target.infra_check else None,
        "SessionChainingConfig": {"EnableSessionTagChaining": True}
        if target.session_tags
        else None,
        **monitoring(target, output_config(job, target, parts.account)["S3OutputPath"]),
    }
    return {key: value for key, value in request.items() if value not in (None, {}, [])}


def _algorithm(parts: TrainingParts) -> JsonObject:
    mode = INPUT_MODES[parts.target.input_mode]
    algorithm: JsonObject = {"TrainingInputMode": mode, "TrainingImage": parts.image.uri}
    if parts.job.metrics:
        algorithm["MetricDefinitions"] = [
            {"Name": name, "Regex": regex} for name, regex in parts.job.metrics.items()
        ]
    if parts.image.by_version:
        algorithm["EnableSageMakerMetricsTimeSeries"] = True
    if parts.launch.mode == "entrypoint":
        algorithm["ContainerEntrypoint"] = list(CONTAINER_ENTRYPOINT)
    return algorithm


def _hyperparameters(parts: TrainingParts) -> dict[str, str]:
    """Return the hyperparameters: as JSON for scripts, which the toolkit decodes to the same types,
    and as plain text for an image's own entry point, as the SDK's generic estimator does."""
    own = resolve_hyperparameters(parts.job.hyperparameters, parts.paths)
    if parts.launch.mode == "image":
        return {name: str(value) for name, value in own.items()}
    if parts.launch.mode == "entrypoint":
        more = launch_pairs(parts.job, parts.machines, parts.paths)
    else:
        assert parts.job.entry_point is not None, "toolkit mode runs scripts"
        more = {
            keys.SUBMIT_DIRECTORY: ISOLATED_BUNDLE
            if parts.target.network_isolation
            else parts.code_uri,
            keys.PROGRAM: resolve_text(parts.job.entry_point, parts.paths),
            keys.LOG_LEVEL: keys.INFO,
            keys.JOB_NAME: parts.run_name,
            keys.REGION: parts.account.region,
            **distribution_pairs(parts.job, parts.machines),
        }
    return {name: json.dumps(value) for name, value in (own | more).items()}


def _inputs(parts: TrainingParts) -> list[JsonObject]:
    rows = channels(parts.job, parts.target.input_mode)
    if not parts.needs_code_channel:
        return rows
    assigned = any(item.instance_groups for item in parts.job.inputs.values())
    names = tuple(group.name for group in parts.machines.groups) if assigned else ()
    return [*rows, code_channel(parts.code_uri, names, parts.target.input_mode)]


def _stopping(parts: TrainingParts) -> dict[str, int]:
    job = parts.job
    stopping = {"MaxRuntimeInSeconds": job.max_runtime or DEFAULT_MAX_RUNTIME}
    if job.spot is not None and job.spot.max_wait is not None:
        stopping["MaxWaitTimeInSeconds"] = job.spot.max_wait
    if parts.target.max_pending is not None:
        stopping["MaxPendingTimeInSeconds"] = parts.target.max_pending
    return stopping


def _environment(parts: TrainingParts) -> dict[str, str]:
    variables = {
        name: resolve_text(text, parts.paths)
        for name, text in parts.job.environment.variables.items()
    }
    checkpoint = parts.job.checkpoint
    if checkpoint is not None and "keep" in checkpoint.model_fields_set:
        variables["CLOUDTRAIN_CHECKPOINT_KEEP"] = str(checkpoint.keep)
    if checkpoint is not None and parts.target.checkpoint_path is not None:
        variables.setdefault(CHECKPOINT_VARIABLE, parts.target.checkpoint_path)
    return variables


def tags(own: dict[str, str], run_name: str) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in (own | {RUN_TAG: run_name}).items()]


def network(target: SageMaker) -> JsonObject:
    """Return `VpcConfig`; empty if the target's settings have no VPC."""
    if not target.subnets and not target.security_group_ids:
        return {}
    return {"Subnets": list(target.subnets), "SecurityGroupIds": list(target.security_group_ids)}


def experiment(target: SageMaker) -> dict[str, str]:
    """Return `ExperimentConfig`; empty if the target's settings have no experiment."""
    names = {
        "ExperimentName": target.experiment,
        "TrialName": target.trial,
        "TrialComponentDisplayName": target.trial_component,
        "RunName": target.experiment_run,
    }
    return {key: value for key, value in names.items() if value is not None}


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
    job, account, request, ranks = parts.job, parts.account, start.request, processes.ranks
    where = f" on {len(ranks)} of {machines.count} instances" if machines.count > 1 else ""
    pairs = [
        ("target", f"sagemaker ({account.region})"),
        ("instances", instances(machines)),
        ("processes", f"{ranks.total()}{where}" if ranks else ""),
        ("distribution", _distribution(distribution_in(job, start))),
        ("launch", f"{_MODES[parts.launch.mode]}: {parts.launch.reason}"),
        ("image", request["AlgorithmSpecification"].get("TrainingImage", "")),
        ("script", job.entry_point or job.command or ""),
        ("output", request["OutputDataConfig"]["S3OutputPath"]),
        ("checkpoint", request.get("CheckpointConfig", {}).get("S3Uri", "")),
        ("max runtime", format_duration(max_runtime(request))),
        ("spot", _spot(request)),
        ("cost", cost(machines, request)),
    ]
    return [(label, text) for label, text in pairs if text]


def max_runtime(request: JsonMapping) -> int:
    limit: int = request.get("StoppingCondition", {}).get(
        "MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME
    )
    return limit


def instances(machines: Machines, *, together: bool = True) -> str:
    """Return the instances, a line for each group or preferred type.

    `together`: whether the instances communicate with each other. EFA is named only if they do.
    """
    lines = []
    for group in machines.groups:
        line = f"{group.count} x {group.instance_type}"
        if group.known is not None:
            efa = (
                ", EFA"
                if together and group.known.interconnect == "rdma" and group.count > 1
                else ""
            )
            line += f" ({group.known.hardware}{efa})"
        lines.append(f"{group.name}: {line}" if machines.kind == "groups" else line)
    return ("\nor " if machines.kind == "preferences" else "\n").join(lines)


def cost(machines: Machines, request: JsonMapping) -> str:
    """Return the maximum cost: all instances at list prices for the whole `max_runtime`."""
    price = machines.price
    if price is None or not price.exact:
        return "unknown: the catalogue has no price of this type"
    spot = ", less on spot capacity" if request.get("EnableManagedSpotTraining") else ""
    return f"at most ${price.over(max_runtime(request)):,.2f} at list prices{spot}"


def _distribution(distribution: Distribution) -> str:
    if not isinstance(distribution, SMP):
        return distribution.type
    parameters = ", ".join(f"{name} {value}" for name, value in distribution.parameters.items())
    return f"smp version {distribution.version}" + (f": {parameters}" if parameters else "")


def _spot(request: JsonMapping) -> str:
    if not request.get("EnableManagedSpotTraining"):
        return ""
    wait = request["StoppingCondition"].get("MaxWaitTimeInSeconds")
    return f"waits at most {format_duration(wait)}, the run included" if wait else "yes"


# Check that the toolkit can read the launch hyperparameters that the user wrote by hand.


def finished_request(parts: TrainingParts, overrides: JsonMapping) -> JsonObject:
    """Return the request with the user's overrides. Launch hyperparameters that the toolkit cannot
    read are refused."""
    written = overridden(request_of(parts), overrides)
    request: JsonObject = map_texts(
        written, lambda text: text.replace(keys.RUN_NAME, parts.run_name)
    )
    parameters = decode_hyperparameters(request.get("HyperParameters", {}))
    by_hand = mapping_at(overrides_of(parts.job, "sagemaker"), "HyperParameters")
    problems = []
    for name, (kind, fits) in _KINDS.items():
        if parameters.get(name) and not fits(parameters[name]):
            message = f"`{name}` must be {kind}, and is `{parameters[name]}`"
            path = (
                (FIELD, "HyperParameters", name) if name in by_hand else ("hyperparameters", name)
            )
            problems.append(Problem(path, message, f"leave out `{name}`", code="CT031"))
    if problems:
        raise JobError(problems)
    return request


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    """Return whether a value is a number of processes, such as 8 or the text `8`."""
    return value.isdecimal() if isinstance(value, str) else isinstance(value, int) and value >= 0


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    keys.GROUPS: (
        "a list of instance groups",
        lambda value: isinstance(value, list) and all(map(_is_text, value)),
    ),
    keys.INSTANCE_TYPE: ("text", _is_text),
    keys.PROCESSES: ("a number of processes", _is_count),
    keys.RANKS: ("a number of processes", _is_count),
    keys.MPI_OPTIONS: ("text", _is_text),
    keys.SMDDP_OPTIONS: ("text", _is_text),
}
"""The type that sagemaker-training expects of each hyperparameter."""


def compile_sagemaker(job: TrainingJob, target: SageMaker, context: CompileContext) -> Plan:
    """Return the plan of a job on SageMaker, whose `request` is the body of CreateTrainingJob.

    `context.account` must be a `SageMakerAccount`.
    """
    problems = Problems()
    parts = parts_of(job, target, context, problems)
    problems += place_problems(job)
    plan = (
        problems.value(lambda: _plan(parts, context, problems), None) if parts is not None else None
    )
    problems.refuse(plan)
    assert plan is not None
    return plan


def _plan(parts: TrainingParts, context: CompileContext, problems: Problems) -> Plan:
    """Return the plan; problems with the container's processes are added to `problems`."""
    job = parts.job
    request = finished_request(parts, overrides_of(job, "sagemaker"))
    machines = machines_in(request["ResourceConfig"], parts.account)
    start = Start.of(request, job.environment.framework)
    processes = problems.value(
        lambda: _processes(parts, machines, start, package=context.package), Processes()
    )
    bundle = context.bundle
    uploads = (Upload("code", bundle.sha256, parts.code_uri, bundle.size, bundle.file_count),)
    return Plan(
        target="sagemaker",
        run_name=context.run_name,
        job_name=job.name,
        request=request,
        uploads=() if parts.launch.mode == "image" else uploads,
        processes=processes,
        summary=tuple(summary(parts, machines, start, processes)),
        notes=() if parts.image.assumed is None else (f"the image is for {parts.image.assumed}",),
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
    machines = problems.value(lambda: machines_of(job, account), None)
    # of an unknown type, so that the job's other mistakes are found
    cluster = machines or Machines(
        (MachineGroup("", job.resources.instance_count, None, DEFAULT_GROUP),)
    )
    image = (
        problems.value(lambda: image_of(job, account, cluster), NO_IMAGE)
        if machines is not None
        else NO_IMAGE
    )
    launch = problems.value(
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
    rows = {group.instance_type: group.known for group in machines.groups}
    return container.view(
        start.request, start.container, devices.__getitem__, package=package, entry_of=rows.get
    )
