"""Turn the channels of a request into the argument `inputs` of `fit`, a method of SDK version 2's estimators."""

from __future__ import annotations

from typing import Any

from cloudtrain.runtime.sagemaker_launcher import CODE_CHANNEL
from cloudtrain.targets.common.export.calls import Call
from cloudtrain.targets.common.export.fields import Fields

CHANNEL = {
    "DataSource.S3DataSource.S3Uri": "s3_data",
    "DataSource.S3DataSource.S3DataDistributionType": "distribution",
    "CompressionType": "compression",
    "ContentType": "content_type",
    "RecordWrapperType": "record_wrapping",
    "DataSource.S3DataSource.S3DataType": "s3_data_type",
    "DataSource.S3DataSource.InstanceGroupNames": "instance_groups",
    "InputMode": "input_mode",
    "DataSource.S3DataSource.AttributeNames": "attribute_names",
    "DataSource.S3DataSource.HubAccessConfig": "hub_access_config",
    "DataSource.S3DataSource.ModelAccessConfig": "model_access_config",
}
"""Maps fields of a channel to arguments of `TrainingInput`."""

FILE_SYSTEM = {
    "DataSource.FileSystemDataSource.FileSystemId": "file_system_id",
    "DataSource.FileSystemDataSource.FileSystemType": "file_system_type",
    "DataSource.FileSystemDataSource.DirectoryPath": "directory_path",
    "DataSource.FileSystemDataSource.FileSystemAccessMode": "file_system_access_mode",
    "ContentType": "content_type",
}
"""Maps fields of a channel to arguments of `FileSystemInput`."""

_DEFAULTS = {"distribution": "FullyReplicated", "s3_data_type": "S3Prefix"}


def isolated_code(uri: str) -> dict[str, Any]:
    """Return the channel that the SDK itself adds for the code of a network-isolated job."""
    source = {"S3DataType": "S3Prefix", "S3Uri": uri, "S3DataDistributionType": "FullyReplicated"}
    return {"ChannelName": CODE_CHANNEL, "DataSource": {"S3DataSource": source}}


def fit_inputs(channels: list[dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Return the argument `inputs` of `fit`, by channel name, and the paths of fields that `fit` cannot express."""
    inputs: dict[str, Any] = {}
    left: list[str] = []
    for number, channel in enumerate(channels):
        fields = Fields(channel)
        name = fields.take("ChannelName")
        inputs[name] = _file_system(fields) if "FileSystemDataSource" in channel["DataSource"] else _s3(fields)
        left += [f"InputDataConfig[{number}].{path}" for path in fields.remaining_paths()]
    return inputs, left


def _file_system(fields: Fields) -> Call:
    return Call("sagemaker.inputs.FileSystemInput", _take(fields, FILE_SYSTEM))


def _s3(fields: Fields) -> Call | str:
    arguments = _take(fields, CHANNEL)
    seed = fields.take("ShuffleConfig.Seed")
    if seed is not None:
        arguments["shuffle_config"] = Call("sagemaker.inputs.ShuffleConfig", {"seed": seed})
    if arguments.get("distribution") is not None:  # the SDK would add a missing one: `left` reports it
        arguments = {name: value for name, value in arguments.items() if value != _DEFAULTS.get(name)}
    plain = set(arguments) == {"s3_data"}
    return str(arguments["s3_data"]) if plain else Call("sagemaker.inputs.TrainingInput", arguments)


def _take(fields: Fields, table: dict[str, str]) -> dict[str, Any]:
    values = {argument: fields.take(path) for path, argument in table.items()}
    return {argument: value for argument, value in values.items() if value is not None}
