"""The locations of a processing job's data, in S3 and in the container."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from cloudtrain.core.processing import ProcessingInput, ProcessingJob, ProcessingOutput
from cloudtrain.errors import Problem
from cloudtrain.runtime.sagemaker_processing import CODE_INPUT
from cloudtrain.targets.sagemaker.account import SageMakerAccount
from cloudtrain.targets.sagemaker.compile.places import output_root
from cloudtrain.targets.sagemaker.settings import SageMaker

INPUT_ROOT = "/opt/ml/processing/input"
OUTPUT_ROOT = "/opt/ml/processing/output"
"""Root folders of inputs and outputs in the container.

Each has a subfolder of its name, except if the job gives a `path`.
"""

_UPLOAD_MODES = {"upload": "EndOfJob", "mount": "Continuous"}


def paths_of(job: ProcessingJob) -> dict[str, str]:
    """Map each reference, such as `inputs.train`, to its path in the container."""
    paths = {f"inputs.{name}": _script_path(name, item) for name, item in job.inputs.items()}
    return paths | {f"outputs.{name}": _output_path(name, item) for name, item in job.outputs.items()}


def inputs(job: ProcessingJob, code_uri: str | None) -> list[dict[str, Any]]:
    """Return `ProcessingInputs`: the job's own inputs, and the bundle unless `code_uri` is None."""
    found = [_input(name, item) for name, item in job.inputs.items() if item.sagemaker is not None]
    if code_uri is not None:
        found.append(_s3_input(CODE_INPUT, code_uri, f"{INPUT_ROOT}/{CODE_INPUT}"))
    return found


def _input(name: str, item: ProcessingInput) -> dict[str, Any]:
    assert item.sagemaker is not None
    return _s3_input(
        name,
        item.sagemaker,
        _input_path(name, item),
        S3DataType="ManifestFile" if item.data_type == "manifest" else "S3Prefix",
        S3InputMode="Pipe" if item.mode == "pipe" else "File",
        S3DataDistributionType="ShardedByS3Key" if item.shard else "FullyReplicated",
        S3CompressionType="Gzip" if item.compression == "gzip" else "None",
    )


def _s3_input(name: str, uri: str, path: str, **reading: str) -> dict[str, Any]:
    plain = {
        "S3DataType": "S3Prefix",
        "S3InputMode": "File",
        "S3DataDistributionType": "FullyReplicated",
        "S3CompressionType": "None",
    }
    return {"InputName": name, "AppManaged": False, "S3Input": {"S3Uri": uri, "LocalPath": path} | plain | reading}


def outputs(job: ProcessingJob, target: SageMaker, account: SageMakerAccount, run_name: str) -> dict[str, Any]:
    """Return `ProcessingOutputConfig`; empty for a job without outputs.

    Outputs without a configured location go to the default output folder, as for training jobs.
    """
    if not job.outputs:
        return {}
    root = f"{output_root(target, account).rstrip('/')}/{run_name}/output"
    config: dict[str, Any] = {"Outputs": [_output(name, item, root) for name, item in job.outputs.items()]}
    if target.output_kms_key is not None:
        config["KmsKeyId"] = target.output_kms_key
    return config


def _output(name: str, item: ProcessingOutput, root: str) -> dict[str, Any]:
    place = {
        "S3Uri": item.sagemaker or f"{root}/{name}",
        "LocalPath": _output_path(name, item),
        "S3UploadMode": _UPLOAD_MODES[item.mode],
    }
    return {"OutputName": name, "AppManaged": False, "S3Output": place}


def input_problems(job: ProcessingJob) -> Iterator[Problem]:
    """Report inputs that SageMaker cannot read."""
    for name, item in job.inputs.items():
        path = ("inputs", name)
        if item.sagemaker is None:
            hint = f"add `sagemaker: s3://BUCKET/PATH` under `inputs.{name}`"
            yield Problem(path, f"input `{name}` has no location on SageMaker", hint, code="CT032")
        elif not item.sagemaker.startswith("s3://"):
            message = f"`{item.sagemaker}` is not a place that a processing job can read"
            yield Problem((*path, "sagemaker"), message, "use `s3://BUCKET/PATH`", code="CT032")
        if item.mode in ("direct", "eval_mount", "eval_download"):
            message = f"input `{name}` has the mode `{item.mode}`, which only Azure ML has"
            yield Problem((*path, "mode"), message, "use `download`", code="CT031")
        if item.compression is not None and item.mode != "pipe":
            message = f"input `{name}` can only be unpacked on the way (`compression: gzip`) in the mode `pipe`"
            yield Problem((*path, "compression"), message, "add `mode: pipe`, or unpack it in the script", code="CT031")
        if name == CODE_INPUT:
            yield Problem(
                path, f"`{CODE_INPUT}` is the input that brings the job's own code", "choose another name", code="CT032"
            )
    yield from _path_problems(job)


def _input_path(name: str, item: ProcessingInput) -> str:
    return (item.path or f"{INPUT_ROOT}/{name}").rstrip("/")


def _path_problems(job: ProcessingJob) -> Iterator[Problem]:
    """Report inputs and outputs with the same folder in the container."""
    taken = {f"{INPUT_ROOT}/{CODE_INPUT}": "the job's code"}
    places = [(("inputs", name), _input_path(name, item)) for name, item in job.inputs.items()]
    places += [(("outputs", name), _output_path(name, item)) for name, item in job.outputs.items()]
    for path, place in places:
        if place in taken:
            message = f"`{'.'.join(path)}` would be in `{place}`, as {taken[place]} is"
            yield Problem((*path, "path"), message, "give it another `path`, or leave it out", code="CT032")
        taken.setdefault(place, f"`{'.'.join(path)}`")


def _script_path(name: str, item: ProcessingInput) -> str:
    """Return an input's path in the container. A single file keeps its name inside the input's folder."""
    path = _input_path(name, item)
    return f"{path}/{PurePosixPath(item.sagemaker).name}" if item.type == "uri_file" and item.sagemaker else path


def _output_path(name: str, item: ProcessingOutput) -> str:
    return (item.path or f"{OUTPUT_ROOT}/{name}").rstrip("/")
