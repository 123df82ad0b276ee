"""The S3 locations of inputs, outputs and checkpoints, and their paths in the container."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from cloudtrain.errors import Problem
from cloudtrain.job.data import Input
from cloudtrain.job.training import TrainingJob
from cloudtrain.runtime.sagemaker_launcher import CODE_CHANNEL, CODE_INPUT
from cloudtrain.targets.sagemaker.fields import (
    CHANNEL_FIELDS,
    FILE_SYSTEM_FIELDS,
    MODES,
    encode_fields,
    is_file_system,
    values_of,
)
from cloudtrain.targets.sagemaker.request import JsonObject
from cloudtrain.targets.sagemaker.settings import SageMaker, SageMakerAccount

if TYPE_CHECKING:
    from cloudtrain.job.processing import ProcessingInput, ProcessingJob, ProcessingOutput

INPUT_ROOT = "/opt/ml/input/data"
MODEL_DIR = "/opt/ml/model"
OUTPUT_ROOT = "/opt/ml/output/data"
CHECKPOINT_DIR = "/opt/ml/checkpoints"
CHECKPOINT_VARIABLE = "CLOUDTRAIN_CHECKPOINT_DIR"
"""The variable that tells `cloudtrain.runtime` a checkpoint folder other than the default."""

ISOLATED_BUNDLE = f"{INPUT_ROOT}/{CODE_CHANNEL}/sourcedir.tar.gz"
"""The bundle's path in a container without network, which receives the bundle through a channel."""


def paths_of(job: TrainingJob) -> dict[str, str]:
    """Map each reference in a job to its path in the container: `inputs.train` to
    `/opt/ml/input/data/train`."""
    paths = {}
    for name, item in job.inputs.items():
        folder = f"{INPUT_ROOT}/{item.channel or name}"
        paths[f"inputs.{name}"] = _in_folder(folder, item)
    for name in job.outputs:
        paths[f"outputs.{name}"] = f"{OUTPUT_ROOT}/{name}"
    return paths | {"outputs.model": MODEL_DIR, "checkpoint": CHECKPOINT_DIR}


def channels(job: TrainingJob, default_mode: str) -> list[JsonObject]:
    """Return `InputDataConfig` for the job's inputs without problems. `default_mode` is the input
    mode of the whole job."""
    rows = []
    for name, item in job.inputs.items():
        if not any(_input_problems(name, item)):
            rows.append(_channel(item.channel or name, item, default_mode))
    return rows


def place_problems(job: TrainingJob) -> Iterator[Problem]:
    """Yield a problem for each input or output without a location that SageMaker can use.

    SageMaker has one location for all results of a job.
    """
    for name, item in job.inputs.items():
        yield from _input_problems(name, item)
    for name, output in job.outputs.items():
        if output.sagemaker is None or name == "model":
            continue
        message = (
            f"output `{name}` cannot have a separate place on SageMaker, which keeps all "
            "outputs with the model"
        )
        hint = f"remove it; `cloudtrain download NAME outputs/{name}` gets it from there"
        yield Problem(("outputs", name, "sagemaker"), message, hint, code="CT032")


def code_channel(uri: str, groups: tuple[str, ...], default_mode: str) -> JsonObject:
    """Return the channel with the bundle.

    `groups` are the instance groups that get the bundle. If one channel of a job is assigned to
    instance groups, SageMaker requires groups for all channels (SDK 3's `InputData`).
    """
    values = {
        "data_type": "prefix",
        "sagemaker": uri,
        "shard": False,
        "instance_groups": groups,
        "channel": CODE_CHANNEL,
        "mode": None if default_mode == "download" else "download",
    }
    return encode_fields(CHANNEL_FIELDS, values)


def bundle_uri(target: SageMaker, account: SageMakerAccount, sha256: str) -> str:
    """Return the bundle's S3 address. It contains the content's hash, so equal code has the same
    address."""
    return f"{_root(target, account)}/code/{sha256}/sourcedir.tar.gz"


def data_place(
    settings: SageMaker, account: SageMakerAccount, sha256: str, name: str, *, is_file: bool
) -> tuple[str, str]:
    """Return the S3 folder for data of this machine, and the address of the uploaded file `name`.
    The address of a folder is the S3 folder itself."""
    folder = f"{_root(settings, account)}/data/{sha256}"
    if is_file:
        return folder, f"{folder}/{name}"
    return folder, folder


def output_place(job: TrainingJob, target: SageMaker, account: SageMakerAccount) -> str:
    """Return the S3 folder for the results of all runs of a job.

    The service appends the run's name and `output/model.tar.gz` or `output/output.tar.gz`.
    """
    model = job.outputs.get("model")
    if model is not None and model.sagemaker:
        return model.sagemaker
    return output_root(target, account)


def output_root(target: SageMaker, account: SageMakerAccount) -> str:
    """Return the S3 folder for results without a configured location. Each run gets a subfolder
    with its name."""
    return target.output or f"{_root(target, account)}/output"


def checkpoint_values(
    job: TrainingJob, target: SageMaker, account: SageMakerAccount, run_name: str
) -> JsonObject:
    """Return the places of checkpoints, in S3 and in the container; None for a job without
    `checkpoint`.

    If the job sets no S3 location for checkpoints, each run gets a separate folder.
    """
    if job.checkpoint is None:
        return {"checkpoint.sagemaker": None, "settings.checkpoint_path": None}
    own_folder = f"{_root(target, account)}/checkpoints/{run_name}"
    place = job.checkpoint.sagemaker or own_folder
    path = target.checkpoint_path or CHECKPOINT_DIR
    return {"checkpoint.sagemaker": place, "settings.checkpoint_path": path}


def _root(target: SageMaker, account: SageMakerAccount) -> str:
    """Return the S3 folder for everything that cloudtrain writes: the bucket with the prefix."""
    bucket = f"s3://{account.bucket}"
    prefix = target.prefix.strip("/")
    return f"{bucket}/{prefix}" if prefix else bucket


def _in_folder(folder: str, item: Input | ProcessingInput) -> str:
    """Return an input's path in the container. A single file keeps its name inside the input's
    folder."""
    if item.type == "uri_file" and item.sagemaker:
        return f"{folder}/{PurePosixPath(item.sagemaker).name}"
    return folder


def _channel(name: str, item: Input, default_mode: str) -> JsonObject:
    """Return an input as a channel, which names its mode only if it is not the job's default."""
    assert item.sagemaker is not None
    fields = FILE_SYSTEM_FIELDS if is_file_system(item.sagemaker) else CHANNEL_FIELDS
    values = values_of(fields, item)
    values["channel"] = name
    if item.mode == default_mode:
        values["mode"] = None
    return encode_fields(fields, values)


def _input_problems(name: str, item: Input) -> Iterator[Problem]:
    """Yield why SageMaker cannot read an input of a training job: its location or its mode."""
    path = ("inputs", name)
    place = item.sagemaker
    if place is None:
        yield _no_location(name)
    elif item.mode not in MODES.values():
        yield _mode_of_azure(name, item, "use `mount` to read on demand, or `download`")
    elif not place.startswith("s3://") and not is_file_system(place):
        message = f"`{place}` is not a place that SageMaker can read"
        hint = (
            "use `s3://BUCKET/PATH`, `fsx://fs-ID/PATH` or `efs://fs-ID/PATH`; "
            f"`./{place.lstrip('/')}` uploads it from this machine"
        )
        yield Problem((*path, "sagemaker"), message, hint, code="CT032")


def _no_location(name: str) -> Problem:
    hint = f"add `sagemaker: s3://BUCKET/PATH` under `inputs.{name}`"
    return Problem(
        ("inputs", name), f"input `{name}` has no location on SageMaker", hint, code="CT032"
    )


def _mode_of_azure(name: str, item: Input, hint: str) -> Problem:
    message = f"input `{name}` has the mode `{item.mode}`, which only Azure ML has"
    return Problem(("inputs", name, "mode"), message, hint, code="CT031")


# The locations of a processing job's data, in S3 and in the container.

_UPLOAD_MODES = {"upload": "EndOfJob", "mount": "Continuous"}


def processing_paths_of(job: ProcessingJob) -> dict[str, str]:
    """Map each reference, such as `inputs.train`, to its path in the container."""
    paths = {}
    for name, item in job.inputs.items():
        folder = _folder("input", name, item)
        paths[f"inputs.{name}"] = _in_folder(folder, item)
    for name, output in job.outputs.items():
        paths[f"outputs.{name}"] = _folder("output", name, output)
    return paths


_CODE_FOLDER = f"/opt/ml/processing/input/{CODE_INPUT}"


def _folder(kind: str, name: str, item: ProcessingInput | ProcessingOutput) -> str:
    """Return the folder of an input or output in the container: the one that the job gives, or one
    of its name."""
    return (item.path or f"/opt/ml/processing/{kind}/{name}").rstrip("/")


def inputs(job: ProcessingJob, code_uri: str | None) -> list[JsonObject]:
    """Return `ProcessingInputs`: the job's own inputs, and the bundle unless `code_uri` is None."""
    rows = []
    for name, item in job.inputs.items():
        if item.sagemaker is not None:
            rows.append(_input(name, item.sagemaker, item))
    if code_uri is not None:
        from cloudtrain.job.processing import (
            ProcessingInput,
        )  # training jobs do not need its models

        rows.append(_input(CODE_INPUT, code_uri, ProcessingInput.model_construct()))
    return rows


def _input(name: str, uri: str, item: ProcessingInput) -> JsonObject:
    place = {
        "S3Uri": uri,
        "LocalPath": _folder("input", name, item),
        "S3DataType": "S3Prefix",
        "S3InputMode": "File",
        "S3DataDistributionType": "FullyReplicated",
        "S3CompressionType": "None",
    }
    if item.data_type == "manifest":
        place["S3DataType"] = "ManifestFile"
    if item.mode == "pipe":
        place["S3InputMode"] = "Pipe"
    if item.shard:
        place["S3DataDistributionType"] = "ShardedByS3Key"
    if item.compression == "gzip":
        place["S3CompressionType"] = "Gzip"
    return {"InputName": name, "AppManaged": False, "S3Input": place}


def outputs(
    job: ProcessingJob, target: SageMaker, account: SageMakerAccount, run_name: str
) -> JsonObject:
    """Return `ProcessingOutputConfig`. Outputs without a location go to the same folder as those of
    training jobs."""
    if not job.outputs:
        return {}
    folder = output_root(target, account).rstrip("/")
    root = f"{folder}/{run_name}/output"
    config: JsonObject = {"Outputs": []}
    for name, item in job.outputs.items():
        config["Outputs"].append(_output(name, item, root))
    if target.output_kms_key is not None:
        config["KmsKeyId"] = target.output_kms_key
    return config


def _output(name: str, item: ProcessingOutput, root: str) -> JsonObject:
    """Return a row of `ProcessingOutputConfig`. `root` is the folder of the run's results."""
    place = {
        "S3Uri": item.sagemaker or f"{root}/{name}",
        "LocalPath": _folder("output", name, item),
        "S3UploadMode": _UPLOAD_MODES[item.mode],
    }
    return {"OutputName": name, "AppManaged": False, "S3Output": place}


def input_problems(job: ProcessingJob) -> Iterator[Problem]:
    """Yield why SageMaker cannot read the inputs of a processing job, and places that collide."""
    for name, item in job.inputs.items():
        path = ("inputs", name)
        if item.sagemaker is None:
            yield _no_location(name)
        elif not item.sagemaker.startswith("s3://"):
            message = f"`{item.sagemaker}` is not a place that a processing job can read"
            yield Problem((*path, "sagemaker"), message, "use `s3://BUCKET/PATH`", code="CT032")
        if item.mode not in MODES.values():
            yield _mode_of_azure(name, item, "use `download`")
        if item.compression is not None and item.mode != "pipe":
            message = (
                f"input `{name}` can only be unpacked on the way (`compression: gzip`) in "
                "the mode `pipe`"
            )
            yield Problem(
                (*path, "compression"),
                message,
                "add `mode: pipe`, or unpack it in the script",
                code="CT031",
            )
        if name == CODE_INPUT:
            message = f"`{CODE_INPUT}` is the input that brings the job's own code"
            yield Problem(path, message, "choose another name", code="CT032")
    yield from _path_problems(job)


def _path_problems(job: ProcessingJob) -> Iterator[Problem]:
    """Report inputs and outputs with the same folder in the container."""
    places: dict[tuple[str, str], str] = {}
    for name, item in job.inputs.items():
        places["inputs", name] = _folder("input", name, item)
    for name, output in job.outputs.items():
        places["outputs", name] = _folder("output", name, output)

    owners = {_CODE_FOLDER: "the job's code"}
    for path, place in places.items():
        owner = f"`{'.'.join(path)}`"
        if place in owners:
            message = f"{owner} would be in `{place}`, as {owners[place]} is"
            yield Problem(
                (*path, "path"), message, "give it another `path`, or leave it out", code="CT032"
            )
        else:
            owners[place] = owner
