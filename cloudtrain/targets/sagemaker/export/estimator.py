"""Turn a CreateTrainingJob request into the estimator of version 2 of the SDK that sends exactly this request.

cloudtrain takes the first of three forms that gives the same request:

1. The framework's class with a `distribution`, as a user would write it by hand.
2. The framework's class with explicit `sagemaker_*` hyperparameters, if the SDK has no `distribution` for them or
   refuses it.
3. The generic `Estimator` with every hyperparameter as text and the code as a channel. This form is for
   requests that start cloudtrain's launcher, and for requests that the framework's class would change.

Facts about the SDK are those of version 2.257.7.
"""

from __future__ import annotations

from typing import Any

from cloudtrain.errors import dotted
from cloudtrain.targets.common.export.calls import Call, Program, Ref
from cloudtrain.targets.common.export.fields import Fields
from cloudtrain.targets.sagemaker.catalogue.shapes import violations
from cloudtrain.targets.sagemaker.export.forms import form_of
from cloudtrain.targets.sagemaker.export.inputs import fit_inputs
from cloudtrain.targets.sagemaker.export.monitoring import PROFILER, monitoring_arguments
from cloudtrain.targets.sagemaker.export.refusal import refuse
from cloudtrain.targets.sagemaker.export.session import NO_CONFIGURATION, NO_WAIT, boto_session

SDK = "version 2 of the SageMaker SDK"

CLASSES = {
    "pytorch": "sagemaker.pytorch.PyTorch",
    "tensorflow": "sagemaker.tensorflow.TensorFlow",
    "huggingface": "sagemaker.huggingface.HuggingFace",
    None: "sagemaker.estimator.Estimator",
}

ARGUMENTS = {
    "RoleArn": "role",
    "ResourceConfig.InstanceCount": "instance_count",
    "ResourceConfig.InstanceType": "instance_type",
    "ResourceConfig.VolumeSizeInGB": "volume_size",
    "ResourceConfig.VolumeKmsKeyId": "volume_kms_key",
    "ResourceConfig.KeepAlivePeriodInSeconds": "keep_alive_period_in_seconds",
    "ResourceConfig.TrainingPlanArn": "training_plan",
    "ResourceConfig.InstancePlacementConfig": "instance_placement_config",
    "StoppingCondition.MaxRuntimeInSeconds": "max_run",
    "StoppingCondition.MaxWaitTimeInSeconds": "max_wait",
    "AlgorithmSpecification.TrainingInputMode": "input_mode",
    "AlgorithmSpecification.MetricDefinitions": "metric_definitions",
    "AlgorithmSpecification.ContainerEntrypoint": "container_entry_point",
    "AlgorithmSpecification.ContainerArguments": "container_arguments",
    "AlgorithmSpecification.TrainingImageConfig.TrainingRepositoryAccessMode": "training_repository_access_mode",
    "AlgorithmSpecification.TrainingImageConfig.TrainingRepositoryAuthConfig."
    "TrainingRepositoryCredentialsProviderArn": "training_repository_credentials_provider_arn",
    "OutputDataConfig.S3OutputPath": "output_path",
    "OutputDataConfig.KmsKeyId": "output_kms_key",
    "CheckpointConfig.S3Uri": "checkpoint_s3_uri",
    "CheckpointConfig.LocalPath": "checkpoint_local_path",
    "VpcConfig.Subnets": "subnets",
    "VpcConfig.SecurityGroupIds": "security_group_ids",
    "Environment": "environment",
    "RetryStrategy.MaximumRetryAttempts": "max_retry_attempts",
    "RemoteDebugConfig.EnableRemoteDebug": "enable_remote_debug",
    "SessionChainingConfig.EnableSessionTagChaining": "enable_session_tag_chaining",
    "InfraCheckConfig.EnableInfraCheck": "enable_infra_check",
    "Tags": "tags",
}
"""Maps fields of the request to the estimator's arguments that take the same values."""

FLAGS = {
    "EnableManagedSpotTraining": "use_spot_instances",
    "EnableNetworkIsolation": "enable_network_isolation",
    "EnableInterContainerTrafficEncryption": "encrypt_inter_container_traffic",
}
"""Maps fields of the request to the estimator's arguments; the SDK sends these fields only if they are true."""

ALWAYS_SENT = (
    ("ResourceConfig", "VolumeSizeInGB"),
    ("StoppingCondition", "MaxRuntimeInSeconds"),
    ("OutputDataConfig", "S3OutputPath"),
    (PROFILER, "DisableProfiler"),
)
"""Fields that the SDK always sends, because it fills in missing ones."""

METRICS = "AlgorithmSpecification.EnableSageMakerMetricsTimeSeries"


def estimator_program(request: dict[str, Any], region: str, profile: str | None = None) -> Program:
    """Return the SDK calls that send exactly `request` in `region`.

    Raises:
        TargetError: the SDK cannot express a field; the message names it.
    """
    left_out = {".".join(path) for path in ALWAYS_SENT if path[1] not in request.get(path[0], {})}
    left_out |= {dotted(fault.path) for fault in violations(request) if fault.kind == "missing"}
    if left_out:
        raise refuse(SDK, [f"{path} left out" for path in sorted(left_out)])
    fields = Fields(request)
    arguments = _common(fields)
    experiment = fields.take("ExperimentConfig")
    metrics = fields.take(METRICS)
    for path in ("AlgorithmSpecification.TrainingImage", "HyperParameters", "InputDataConfig"):  # see forms.py
        fields.take(path)
    left = fields.remaining_paths() + fit_inputs(request.get("InputDataConfig", []))[1]
    if left:
        raise refuse(SDK, left)
    form = form_of(request, region)
    if metrics != form.metrics:
        arguments["enable_sagemaker_metrics"] = metrics
    estimator = Call(CLASSES[form.framework], form.arguments | arguments | {"sagemaker_session": Ref("session")})
    inputs, _ = fit_inputs(form.channels)
    fit = {"inputs": inputs or None, "job_name": request["TrainingJobName"], "experiment_config": experiment}
    return Program(
        {"session": _session(region, profile)} | _groups(request) | {"estimator": estimator},
        "fit",
        {name: value for name, value in fit.items() if value is not None},
        "sagemaker-sdk",
        form.notes,
        in_code=NO_WAIT,
    )


def _session(region: str, profile: str | None) -> Call:
    """Return an SDK session for the region.

    Its configuration is explicit, so that defaults from configuration files do not change the request.
    """
    arguments = {"boto_session": boto_session(region, profile), "sagemaker_config": NO_CONFIGURATION}
    return Call("sagemaker.session.Session", arguments)


def _common(fields: Fields) -> dict[str, Any]:
    """Return the arguments that all classes share, and remove the matching fields from `fields`."""
    fields.take("TrainingJobName")
    values = {argument: fields.take(path) for path, argument in ARGUMENTS.items()}
    values |= {argument: fields.take_if(path, True) or None for path, argument in FLAGS.items()}
    if fields.take("ResourceConfig.InstanceGroups"):
        values["instance_groups"] = Ref("instance_groups")
    if fields.take_if("OutputDataConfig.CompressionType", "NONE"):
        values["disable_output_compression"] = True
    if values["input_mode"] == "File":
        del values["input_mode"]
    given = {name: value for name, value in values.items() if value is not None}
    return given | monitoring_arguments(fields, str(values["output_path"]))


def _groups(request: dict[str, Any]) -> dict[str, list[Call]]:
    names = {
        "InstanceGroupName": "instance_group_name",
        "InstanceType": "instance_type",
        "InstanceCount": "instance_count",
    }
    groups = [
        Call("sagemaker.instance_group.InstanceGroup", {names[key]: group[key] for key in names})
        for group in request["ResourceConfig"].get("InstanceGroups", ())
    ]
    return {"instance_groups": groups} if groups else {}
