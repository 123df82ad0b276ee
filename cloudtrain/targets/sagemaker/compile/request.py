"""Write the body of CreateTrainingJob, field by field."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from cloudtrain.catalogue.machines import Machines
from cloudtrain.core.job import TrainingJob
from cloudtrain.runtime.sagemaker_launcher import CONTAINER_ENTRYPOINT
from cloudtrain.targets.common.compiling import resolve_hyperparameters, resolve_text
from cloudtrain.targets.sagemaker.account import SageMakerAccount
from cloudtrain.targets.sagemaker.compile.entrypoint import launch_pairs
from cloudtrain.targets.sagemaker.compile.images import ChosenImage
from cloudtrain.targets.sagemaker.compile.machines import resource_config
from cloudtrain.targets.sagemaker.compile.modes import Launch
from cloudtrain.targets.sagemaker.compile.monitoring import monitoring
from cloudtrain.targets.sagemaker.compile.places import (
    CHECKPOINT_VARIABLE,
    INPUT_MODES,
    ISOLATED_BUNDLE,
    channels,
    checkpoint_config,
    code_channel,
    output_config,
    paths_of,
)
from cloudtrain.targets.sagemaker.compile.toolkit import distribution_pairs, encode_values, script_pairs
from cloudtrain.targets.sagemaker.settings import SageMaker
from cloudtrain.targets.sagemaker.tags import RUN_TAG

DEFAULT_MAX_RUNTIME = 86_400
"""Default limit of a job's run in seconds: one day, the default of the SDK and of the service."""


class Parts(NamedTuple):
    """The values from which a training job's request is written."""

    job: TrainingJob
    target: SageMaker
    account: SageMakerAccount
    run_name: str
    code_uri: str
    machines: Machines
    image: ChosenImage
    launch: Launch

    @property
    def paths(self) -> dict[str, str]:
        """Map each reference, such as `inputs.train`, to its path in the container."""
        own = self.target.checkpoint_path
        return paths_of(self.job) | ({"checkpoint": own} if own else {})

    @property
    def needs_code_channel(self) -> bool:
        """Return whether the bundle needs an input channel, because the container does not download it itself."""
        return self.launch.mode == "entrypoint" or (self.launch.mode == "toolkit" and self.target.network_isolation)


def request_of(parts: Parts) -> dict[str, Any]:
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
        "RetryStrategy": {"MaximumRetryAttempts": target.max_retries} if target.max_retries else None,
        "ExperimentConfig": experiment(target),
        **_switches(parts),
        **monitoring(target, output_config(job, target, parts.account)["S3OutputPath"]),
    }
    return {key: value for key, value in request.items() if value not in (None, {}, [])}


def _algorithm(parts: Parts) -> dict[str, Any]:
    mode = INPUT_MODES[parts.target.input_mode]
    algorithm: dict[str, Any] = {"TrainingInputMode": mode, "TrainingImage": parts.image.uri}
    if parts.job.metrics:
        algorithm["MetricDefinitions"] = [{"Name": name, "Regex": regex} for name, regex in parts.job.metrics.items()]
    if parts.image.by_version:
        algorithm["EnableSageMakerMetricsTimeSeries"] = True
    if parts.launch.mode == "entrypoint":
        algorithm["ContainerEntrypoint"] = list(CONTAINER_ENTRYPOINT)
    return algorithm


def _hyperparameters(parts: Parts) -> dict[str, str]:
    """Return the hyperparameters: as JSON for scripts, and as plain text for an image's own entry point.

    The SDK's generic estimator writes plain text, too.
    """
    own = resolve_hyperparameters(parts.job, parts.paths)
    if parts.launch.mode == "image":
        return {name: str(value) for name, value in own.items()}
    if parts.launch.mode == "entrypoint":
        launch = launch_pairs(parts.job, parts.machines, parts.paths)
        return {name: json.dumps(value) for name, value in (own | launch).items()}
    assert parts.job.entry_point is not None, "toolkit mode runs scripts"
    script = script_pairs(
        program=resolve_text(parts.job.entry_point, parts.paths),
        submit_directory=ISOLATED_BUNDLE if parts.target.network_isolation else parts.code_uri,
        run_name=parts.run_name,
        region=parts.account.region,
    )
    return encode_values(own | script | distribution_pairs(parts.job, parts.machines))


def _inputs(parts: Parts) -> list[dict[str, Any]]:
    found = channels(parts.job, parts.target.input_mode)
    if not parts.needs_code_channel:
        return found
    assigned = any(item.instance_groups for item in parts.job.inputs.values())
    names = tuple(group.name for group in parts.machines.groups) if assigned else ()
    return [*found, code_channel(parts.code_uri, names, parts.target.input_mode)]


def _stopping(parts: Parts) -> dict[str, int]:
    job = parts.job
    stopping = {"MaxRuntimeInSeconds": job.max_runtime or DEFAULT_MAX_RUNTIME}
    if job.spot is not None and job.spot.max_wait is not None:
        stopping["MaxWaitTimeInSeconds"] = job.spot.max_wait
    if parts.target.max_pending is not None:
        stopping["MaxPendingTimeInSeconds"] = parts.target.max_pending
    return stopping


def _environment(parts: Parts) -> dict[str, str]:
    variables = {name: resolve_text(text, parts.paths) for name, text in parts.job.environment.variables.items()}
    checkpoint = parts.job.checkpoint
    if checkpoint is not None and "keep" in checkpoint.model_fields_set:
        variables["CLOUDTRAIN_CHECKPOINT_KEEP"] = str(checkpoint.keep)
    if checkpoint is not None and parts.target.checkpoint_path is not None:
        variables.setdefault(CHECKPOINT_VARIABLE, parts.target.checkpoint_path)
    return variables


def tags(given: dict[str, str], run_name: str) -> list[dict[str, str]]:
    """Return `Tags`: the job's tags, `given`, and the tag that identifies the run."""
    return [{"Key": key, "Value": value} for key, value in (given | {RUN_TAG: run_name}).items()]


def network(target: SageMaker) -> dict[str, Any]:
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


def _switches(parts: Parts) -> dict[str, Any]:
    """Return the fields that switch on optional features; None for features that are off."""
    target = parts.target
    return {
        "EnableNetworkIsolation": target.network_isolation or None,
        "EnableInterContainerTrafficEncryption": target.encrypt_inter_container_traffic or None,
        "EnableManagedSpotTraining": True if parts.job.spot else None,
        "RemoteDebugConfig": {"EnableRemoteDebug": True} if target.remote_debug else None,
        "InfraCheckConfig": {"EnableInfraCheck": True} if target.infra_check else None,
        "SessionChainingConfig": {"EnableSessionTagChaining": True} if target.session_tags else None,
    }
