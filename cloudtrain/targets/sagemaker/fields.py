"""What SageMaker does with each field of a job and each setting of the target.

A table per operation says where a field stands in the request, how its value is coded, and what the
estimator of version 2 of the SDK calls it. Version 3 has the request's own names in snake case. The
rows have the order of the request. Some values are decisions of the compiler, such as the image: it
gives them to `encode_fields` under the path of their row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING, Any

from cloudtrain.documents import JsonMapping as JsonMapping
from cloudtrain.documents import JsonObject as JsonObject
from cloudtrain.job.model import parse_size
from cloudtrain.rules.engine import Fault, value_at
from cloudtrain.targets.common.fields import (
    ADDED_PROPERTY,
    SAME,
    Codec,
    Field,
    Inexpressible,
    Needless,
    NoEffect,
    Refused,
    notices,
    words,
)

if TYPE_CHECKING:
    from cloudtrain.rules.engine import Subject, ValuePath

SETTING = "settings."
"""The beginning of the paths of settings."""

# The parts of CreateTrainingJob that other modules read or replace whole.

NAME = "TrainingJobName"
ROLE = "RoleArn"
ALGORITHM = "AlgorithmSpecification"
PARAMETERS = "HyperParameters"
CHANNELS = "InputDataConfig"
OUTPUT = "OutputDataConfig"
MACHINES = "ResourceConfig"
LIMITS = "StoppingCondition"
CHECKPOINT = "CheckpointConfig"
VARIABLES = "Environment"
TAGS = "Tags"
NETWORK = "VpcConfig"
EXPERIMENT = "ExperimentConfig"
ISOLATION = "EnableNetworkIsolation"
ENCRYPTION = "EnableInterContainerTrafficEncryption"
SPOT = "EnableManagedSpotTraining"
PROFILER = "ProfilerConfig"
PROFILER_RULES = "ProfilerRuleConfigurations"
DEBUGGER = "DebugHookConfig"
DEBUG_RULES = "DebugRuleConfigurations"
TENSORBOARD = "TensorBoardOutputConfig"

CLUSTER = ("ProcessingResources", "ClusterConfig")
"""The path of the machines in CreateProcessingJob."""

METRICS = "AlgorithmSpecification.MetricDefinitions"
IMAGE = "AlgorithmSpecification.TrainingImage"
ENTRYPOINT = "AlgorithmSpecification.ContainerEntrypoint"
SERVICE_METRICS = "AlgorithmSpecification.EnableSageMakerMetricsTimeSeries"


def encode_fields(fields: Sequence[Field], values: JsonMapping) -> JsonObject:
    """Return the part of a request that holds the values. A value stands under the path of its
    field in the job, or in the request if no job has the field; None is not sent."""
    request: JsonObject = {}
    for field in fields:
        value = values.get(field.job or field.request)
        if value is not None and field.codec not in (None, SAME):
            value = field.codec.encode(value)
        if value is not None:
            put(request, field.request, value)
    return request


def decode_fields(fields: Sequence[Field], request: JsonMapping) -> JsonObject:
    """Return the values that a request gives to fields, in the form that `encode_fields` takes.
    Values that no job can express are left out, and so are the decisions of the compiler."""
    values: JsonObject = {}
    for field in fields:
        value = value_at(request, *field.request.split("."))
        if value is None or field.codec is None:
            continue
        with suppress(Inexpressible):
            decoded = field.codec.decode(value)
            if decoded is not None:
                values[field.job or field.request] = decoded
    return values


def values_of(fields: Sequence[Field], job: object, settings: object = None) -> JsonObject:
    """Return the values that a job and the target's settings have for fields."""
    values: JsonObject = {}
    for field in fields:
        if field.job.startswith(SETTING):
            values[field.job] = _look_up(settings, field.job.removeprefix(SETTING))
        elif field.job:
            values[field.job] = _look_up(job, field.job)
    return values


def _look_up(holder: object, path: str) -> Any:
    """Return the value at a path of models or mappings; None if one of them lacks it."""
    for name in path.split("."):
        if isinstance(holder, Mapping):
            holder = holder.get(name)
        else:
            holder = getattr(holder, name, None)
    return holder


def put(holder: JsonObject, path: str, value: object) -> None:
    """Set the value at a dotted path of nested mappings."""
    *parents, name = path.split(".")
    for parent in parents:
        holder = holder.setdefault(parent, {})
    holder[name] = value


def place_of(path: str) -> tuple[str, ...]:
    """Return the path in CreateTrainingJob of a field of the job."""
    request = next(field.request for field in TRAINING_FIELDS if field.job == path)
    return tuple(request.split("."))


# The codecs of values that the request writes in another way than a job.


def _or_none(value: Any) -> Any:
    return value or None


FILLED = Codec(_or_none, _or_none)
"""False and empty values are not sent."""

UNLESS_EMPTY = Codec(_or_none, SAME.encode)
"""An empty text in a request means the same as no text."""

_MAPPING = Codec(lambda items: dict(items) or None, lambda items: dict(items) or None)

OPPOSITE = Codec(lambda value: value is False, lambda value: not value)
"""A switch of the request that turns off what the job turns on."""

LIST = Codec(SAME.decode, list)
FILLED_LIST = Codec(_or_none, lambda items: list(items) or None)

GIBIBYTES = Codec(
    lambda count: f"{count}g" if count else None, lambda size: ceil(parse_size(size) / 2**30)
)

MODES = {"File": "download", "FastFile": "mount", "Pipe": "pipe"}
"""Maps the service's names of input modes to the job's."""

MODE = words(MODES)

_COMPRESSED = Codec(
    lambda word: False if word == "NONE" else None, lambda value: None if value else "NONE"
)

_SPOT = Codec(lambda enabled: {} if enabled else None, lambda _: True)


def _pairs(name: str, value: str) -> Codec:
    """Return the codec of a mapping that a request has as a list of rows with two fields: `name`
    for the key, and `value`."""

    def decode(rows: object) -> JsonObject:
        if not isinstance(rows, list):
            raise Inexpressible("")
        return {row[name]: row[value] for row in rows if {name, value} <= row.keys()}

    def encode(mapping: JsonMapping) -> list[JsonObject] | None:
        return [{name: key, value: item} for key, item in mapping.items()] or None

    return Codec(decode, encode)


def records(fields: Sequence[Field]) -> Codec:
    """Return the codec of a list of objects, each with these fields."""

    def decode(rows: Sequence[JsonMapping]) -> list[JsonObject] | None:
        return [decode_fields(fields, row) for row in rows] or None

    def encode(items: Sequence[object]) -> list[JsonObject] | None:
        return [encode_fields(fields, values_of(fields, item)) for item in items] or None

    return Codec(decode, encode)


def _decode_collections(rows: Sequence[JsonMapping]) -> JsonObject:
    collections: JsonObject = {}
    for row in rows:
        if "CollectionName" in row:
            collections[row["CollectionName"]] = row.get("CollectionParameters") or {}
    return collections


def _encode_collections(collections: Mapping[str, JsonMapping]) -> list[JsonObject]:
    rows: list[JsonObject] = []
    for name, parameters in collections.items():
        row: JsonObject = {"CollectionName": name}
        if parameters:
            row["CollectionParameters"] = dict(parameters)
        rows.append(row)
    return rows


_FILE_SYSTEM_PLACE = r"(?P<type>fsx|efs)://(?P<id>fs-[0-9a-f]+)(?P<path>/.*)"
_FILE_SYSTEM_TYPES = {"fsx": "FSxLustre", "efs": "EFS"}


def is_file_system(place: str) -> bool:
    """Return whether a place is a folder of a file system, such as `fsx://fs-0123/data`."""
    return re.fullmatch(_FILE_SYSTEM_PLACE, place) is not None


def _decode_file_system(source: JsonMapping) -> str:
    scheme = "efs" if source.get("FileSystemType") == "EFS" else "fsx"
    return f"{scheme}://{source.get('FileSystemId', '')}{source.get('DirectoryPath', '')}"


def _encode_file_system(place: str) -> JsonObject:
    match = re.fullmatch(_FILE_SYSTEM_PLACE, place)
    assert match is not None, "`channels` leaves out other places"
    return {
        "FileSystemId": match["id"],
        "FileSystemType": _FILE_SYSTEM_TYPES[match["type"]],
        "DirectoryPath": match["path"],
    }


# The tables of objects inside a request. Their paths begin at the object.

GROUP_FIELDS = (
    Field("name", "InstanceGroupName", "instance_group_name"),
    Field("instance_type", "InstanceType", "instance_type"),
    Field("instance_count", "InstanceCount", "instance_count"),
)
PREFERENCE_FIELDS = (
    Field("instance_type", "InstanceType"),
    Field("instance_count", "InstanceCount"),
    Field(
        "training_plan",
        "TrainingPlanArns",
        codec=Codec(lambda plans: plans[0] if plans else None, lambda plan: [plan]),
    ),
)
RULE_FIELDS = (
    Field("name", "RuleConfigurationName", "name", UNLESS_EMPTY),
    Field("image", "RuleEvaluatorImage", "image_uri", UNLESS_EMPTY),
    Field("instance_type", "InstanceType", "instance_type", UNLESS_EMPTY),
    Field("volume_size", "VolumeSizeInGB", "volume_size_in_gb", GIBIBYTES),
    Field("local_path", "LocalPath", "container_local_output_path", UNLESS_EMPTY),
    Field("output", "S3OutputPath", "s3_output_path", UNLESS_EMPTY),
    Field("parameters", "RuleParameters", codec=_MAPPING),
)
CHANNEL_FIELDS = (
    Field(
        "data_type",
        "DataSource.S3DataSource.S3DataType",
        "s3_data_type",
        words(
            {
                "S3Prefix": "prefix",
                "ManifestFile": "manifest",
                "AugmentedManifestFile": "augmented_manifest",
            }
        ),
    ),
    Field("sagemaker", "DataSource.S3DataSource.S3Uri", "s3_data"),
    Field(
        "shard",
        "DataSource.S3DataSource.S3DataDistributionType",
        "distribution",
        words({"ShardedByS3Key": True, "FullyReplicated": False}),
    ),
    Field(
        "attribute_names", "DataSource.S3DataSource.AttributeNames", "attribute_names", FILLED_LIST
    ),
    Field(
        "instance_groups",
        "DataSource.S3DataSource.InstanceGroupNames",
        "instance_groups",
        FILLED_LIST,
    ),
    Field("", "DataSource.S3DataSource.HubAccessConfig", "hub_access_config"),
    Field("", "DataSource.S3DataSource.ModelAccessConfig", "model_access_config"),
    Field("channel", "ChannelName"),
    Field("content_type", "ContentType", "content_type"),
    Field("compression", "CompressionType", "compression", words({"Gzip": "gzip"})),
    Field(
        "record_wrapper", "RecordWrapperType", "record_wrapping", words({"RecordIO": "recordio"})
    ),
    Field("mode", "InputMode", "input_mode", MODE),
    Field("shuffle_seed", "ShuffleConfig.Seed"),
)
_ACCESS = Field(
    "access",
    "DataSource.FileSystemDataSource.FileSystemAccessMode",
    effect=NoEffect("only file systems are mounted with access rights"),
)
FILE_SYSTEM_FIELDS = (
    Field(
        "sagemaker",
        "DataSource.FileSystemDataSource",
        codec=Codec(_decode_file_system, _encode_file_system),
    ),
    _ACCESS,
    Field("channel", "ChannelName"),
)


def _machine_fields(section: str) -> tuple[Field, ...]:
    """Return the fields of machines. `section` is their dotted path in the request."""
    return (
        Field("resources.volume_size", f"{section}.VolumeSizeInGB", "volume_size", GIBIBYTES),
        Field("resources.instance_groups", f"{section}.InstanceGroups", "", records(GROUP_FIELDS)),
        Field(
            "resources.instance_preferences",
            f"{section}.InstancePreferences",
            "",
            records(PREFERENCE_FIELDS),
        ),
        Field("resources.instance_type", f"{section}.InstanceType", "instance_type"),
        Field("resources.instance_count", f"{section}.InstanceCount", "instance_count"),
        Field(
            "settings.volume_kms_key", f"{section}.VolumeKmsKeyId", "volume_kms_key", UNLESS_EMPTY
        ),
    )


# The tables of the operations.

_EXPERIMENT_FIELDS = (
    Field("settings.experiment", "ExperimentConfig.ExperimentName"),
    Field("settings.trial", "ExperimentConfig.TrialName"),
    Field("settings.trial_component", "ExperimentConfig.TrialComponentDisplayName"),
    Field("settings.experiment_run", "ExperimentConfig.RunName"),
)
TRAINING_FIELDS = (
    Field("name", NAME, codec=None),
    Field("settings.role", ROLE, "role"),
    Field("settings.input_mode", "AlgorithmSpecification.TrainingInputMode", "input_mode", MODE),
    Field("environment.image", IMAGE, codec=None),
    Field("metrics", METRICS, "metric_definitions", _pairs("Name", "Regex")),
    Field("", SERVICE_METRICS, codec=None),
    Field("", ENTRYPOINT, "container_entry_point", codec=None),
    Field("", "AlgorithmSpecification.ContainerArguments", "container_arguments", codec=None),
    Field(
        "",
        "AlgorithmSpecification.TrainingImageConfig.TrainingRepositoryAccessMode",
        "training_repository_access_mode",
        codec=None,
    ),
    Field(
        "",
        "AlgorithmSpecification.TrainingImageConfig.TrainingRepositoryAuthConfig"
        ".TrainingRepositoryCredentialsProviderArn",
        "training_repository_credentials_provider_arn",
        codec=None,
    ),
    Field("hyperparameters", PARAMETERS, codec=None),
    Field("", CHANNELS, codec=None),
    Field("settings.output", "OutputDataConfig.S3OutputPath", "output_path"),
    Field("settings.output_kms_key", "OutputDataConfig.KmsKeyId", "output_kms_key", UNLESS_EMPTY),
    Field("settings.compress_output", "OutputDataConfig.CompressionType", "", _COMPRESSED),
    *_machine_fields(MACHINES),
    Field(
        "settings.keep_alive",
        "ResourceConfig.KeepAlivePeriodInSeconds",
        "keep_alive_period_in_seconds",
    ),
    Field("settings.training_plan", "ResourceConfig.TrainingPlanArn", "training_plan"),
    Field("", "ResourceConfig.InstancePlacementConfig", "instance_placement_config", codec=None),
    Field("max_runtime", "StoppingCondition.MaxRuntimeInSeconds", "max_run"),
    Field("spot.max_wait", "StoppingCondition.MaxWaitTimeInSeconds", "max_wait"),
    Field("settings.max_pending", "StoppingCondition.MaxPendingTimeInSeconds"),
    Field("checkpoint.sagemaker", "CheckpointConfig.S3Uri", "checkpoint_s3_uri"),
    Field("settings.checkpoint_path", "CheckpointConfig.LocalPath", "checkpoint_local_path"),
    Field("environment.variables", VARIABLES, "environment", _MAPPING),
    Field("tags", TAGS, "tags", _pairs("Key", "Value")),
    Field("settings.subnets", "VpcConfig.Subnets", "subnets", LIST),
    Field("settings.security_group_ids", "VpcConfig.SecurityGroupIds", "security_group_ids", LIST),
    Field("settings.max_retries", "RetryStrategy.MaximumRetryAttempts", "max_retry_attempts"),
    *_EXPERIMENT_FIELDS,
    Field("settings.network_isolation", ISOLATION, "enable_network_isolation", FILLED),
    Field(
        "settings.encrypt_inter_container_traffic",
        ENCRYPTION,
        "encrypt_inter_container_traffic",
        FILLED,
    ),
    Field("capacity.alternatives"),
    Field("capacity.wait"),
    Field("capacity.give_up_after"),
    Field("spot", SPOT, "use_spot_instances", _SPOT),
    Field(
        "settings.remote_debug",
        "RemoteDebugConfig.EnableRemoteDebug",
        "enable_remote_debug",
        FILLED,
    ),
    Field(
        "settings.infra_check", "InfraCheckConfig.EnableInfraCheck", "enable_infra_check", FILLED
    ),
    Field(
        "settings.session_tags",
        "SessionChainingConfig.EnableSessionTagChaining",
        "enable_session_tag_chaining",
        FILLED,
    ),
    Field("settings.profiler_output", "ProfilerConfig.S3OutputPath"),
    Field("settings.profiler", "ProfilerConfig.DisableProfiler", "", OPPOSITE),
    Field("settings.profiler_interval", "ProfilerConfig.ProfilingIntervalInMilliseconds"),
    Field("settings.profiler_parameters", "ProfilerConfig.ProfilingParameters", "", _MAPPING),
    Field("settings.profiler_rules", PROFILER_RULES, "", records(RULE_FIELDS)),
    Field("settings.debugger_output", "DebugHookConfig.S3OutputPath"),
    Field("settings.debugger_path", "DebugHookConfig.LocalPath"),
    Field("settings.debugger_parameters", "DebugHookConfig.HookParameters", "", _MAPPING),
    Field(
        "settings.debugger_collections",
        "DebugHookConfig.CollectionConfigurations",
        "",
        Codec(_decode_collections, _encode_collections),
    ),
    Field("settings.debug_rules", DEBUG_RULES, "", records(RULE_FIELDS)),
    Field("settings.tensorboard", "TensorBoardOutputConfig.S3OutputPath"),
    Field("settings.tensorboard_path", "TensorBoardOutputConfig.LocalPath"),
    Field("settings.mlflow", "MlflowConfig.MlflowResourceArn"),
    Field("settings.mlflow_experiment", "MlflowConfig.MlflowExperimentName"),
    Field("settings.mlflow_run", "MlflowConfig.MlflowRunName"),
)
"""The fields of CreateTrainingJob."""

PROCESSING_FIELDS = (
    Field("name", "ProcessingJobName", codec=None),
    *_machine_fields(".".join(CLUSTER)),
    Field("environment.image", "AppSpecification.ImageUri", codec=None),
    Field("hyperparameters", "AppSpecification.ContainerArguments", codec=None),
    Field("entry_point", "AppSpecification.ContainerEntrypoint", codec=None),
    Field("settings.role", ROLE),
    Field("inputs", "ProcessingInputs", codec=None),
    Field("outputs", "ProcessingOutputConfig", codec=None),
    Field("environment.variables", VARIABLES, codec=_MAPPING),
    Field(
        "settings.encrypt_inter_container_traffic",
        "NetworkConfig.EnableInterContainerTrafficEncryption",
        codec=FILLED,
    ),
    Field("settings.subnets", "NetworkConfig.VpcConfig.Subnets", codec=LIST),
    Field("settings.security_group_ids", "NetworkConfig.VpcConfig.SecurityGroupIds", codec=LIST),
    Field("settings.network_isolation", "NetworkConfig.EnableNetworkIsolation"),
    Field("max_runtime", "StoppingCondition.MaxRuntimeInSeconds"),
    *_EXPERIMENT_FIELDS,
    Field("tags", TAGS, codec=_pairs("Key", "Value")),
)
"""The fields of CreateProcessingJob."""

# Fields that stand nowhere in the request.

_REGISTERS_NO_ENVIRONMENT = NoEffect("SageMaker registers no environments")
_BUILDS_NO_IMAGE = NoEffect(
    "SageMaker builds no images",
    "build the image, push it to Amazon ECR, and write its address as `image`",
)
_REGISTERS_NO_OUTPUT = NoEffect(
    "SageMaker registers no outputs when a job has ended",
    "register the model of the finished run in SageMaker's Model Registry",
)

_UNSENT = (
    Field(
        "resources.shm_size",
        effect=NoEffect(
            "SageMaker decides the size of `/dev/shm`",
            "use fewer or smaller data loader workers if it is too small",
        ),
    ),
    Field(
        "environment.conda_file",
        effect=NoEffect(
            "SageMaker installs no conda files",
            "list the packages in `requirements`, or build them into an image of your own",
        ),
    ),
    Field("environment.build", effect=_BUILDS_NO_IMAGE),
    Field("environment.dockerfile", effect=_BUILDS_NO_IMAGE),
    Field("environment.asset_name", effect=_REGISTERS_NO_ENVIRONMENT),
    Field("environment.asset_version", effect=_REGISTERS_NO_ENVIRONMENT),
    Field("environment.description", effect=_REGISTERS_NO_ENVIRONMENT),
    Field("environment.tags", effect=_REGISTERS_NO_ENVIRONMENT),
    Field(
        "environment.sagemaker",
        effect=NoEffect("SageMaker has no registered environments", "write `image` instead"),
    ),
    Field(
        "stop_when_idle",
        effect=NoEffect("SageMaker does not look at the GPUs of a job", "set `max_runtime`"),
    ),
    Field("inputs.*.type", effect=NoEffect("SageMaker reads an input as a folder or a file")),
    Field(
        "outputs.*.mode",
        effect=NoEffect(
            "SageMaker uploads outputs when the script has ended",
            "write what must be kept during the run to the folder of `checkpoint`",
        ),
    ),
    Field("outputs.*.type", effect=NoEffect("SageMaker keeps outputs as files")),
    Field("outputs.*.asset_name", effect=_REGISTERS_NO_OUTPUT),
    Field("outputs.*.asset_version", effect=_REGISTERS_NO_OUTPUT),
)
"""Fields that SageMaker does not get."""

_BY_CODE = (
    Field("source_dir"),
    Field("entry_point", PARAMETERS),
    Field("command", PARAMETERS),
    Field("arguments", PARAMETERS),
    Field("bare_flags", PARAMETERS),
    Field("distribution", PARAMETERS),
    Field("distribution.added_property", effect=ADDED_PROPERTY),
    Field("resources.gpu", "ResourceConfig.InstanceType"),
    Field("resources.gpus_per_instance", "ResourceConfig.InstanceType"),
    Field("resources.interconnect", "ResourceConfig.InstanceType"),
    Field("resources.distribution_groups", PARAMETERS),
    Field("environment.framework", IMAGE),
    Field("environment.version", IMAGE),
    Field("environment.base", IMAGE),
    Field("environment.python", IMAGE),
    Field("environment.requirements"),
    Field("environment.groups"),
    Field("environment.extras"),
    Field("environment.secrets", VARIABLES),
    Field("inputs.*.value", PARAMETERS),
    Field(
        "outputs.*.sagemaker",
        "OutputDataConfig.S3OutputPath",
        "output_path",
        effect=Refused("CT032"),
    ),
    Field("checkpoint", CHECKPOINT),
    Field("checkpoint.keep", VARIABLES),
    Field("stop_when_stalled", VARIABLES),
    Field("tracking.mlflow", VARIABLES),
    Field("tracking.wandb", VARIABLES),
    Field("tracking.tensorboard", VARIABLES),
    Field("description", effect=Needless("the job file and the store keep it")),
    Field("sagemaker_overrides"),
)
"""Fields from which the compiler decides a value, or that change the bundle, the checks or what the
store keeps."""


_OF_INPUTS = tuple(
    field._replace(job=f"inputs.*.{field.job}", request=f"InputDataConfig.*.{field.request}")
    for field in (*CHANNEL_FIELDS, _ACCESS)
    if field.job
)

FIELDS = (
    *(field for field in TRAINING_FIELDS if field.job),
    *_OF_INPUTS,
    *_BY_CODE,
    *_UNSENT,
)
"""What SageMaker does with each field of a training job, and with the settings."""


def without_effect(subject: Subject) -> Iterator[Fault]:
    """Yield a fault for each field that the job sets and that has no effect on SageMaker."""
    for fault in notices(subject, FIELDS):
        if not _has_effect_here(subject, fault.path):
            yield fault
    for name, item in subject.job.inputs.items():
        if item.mode != "mount" and is_file_system(item.sagemaker or ""):
            hint = "remove it, or copy the data to an `s3://` place"
            message = "SageMaker mounts file systems, so `mode` is not sent"
            yield Fault(message, hint, ("inputs", name, "mode"))


def _has_effect_here(subject: Subject, path: ValuePath) -> bool:
    """Return whether a field has an effect in this place, though it has none in others."""
    field = path[-1]
    if path[0] == "outputs":
        return field == "mode" and subject.processing is not None
    if path[0] == "inputs":
        item = subject.job.inputs[str(path[1])]
        if field == "type":
            return item.type == "uri_file"
        return is_file_system(item.sagemaker or "")
    return False
