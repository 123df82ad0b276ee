"""What a job reads, writes and resumes from. Places differ by target; names and meaning do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from cloudtrain._model import Model, all_at_once
from cloudtrain.errors import Problem
from cloudtrain.problems.collect import KeyProblem

Text = Annotated[str, Field(min_length=1)]
"""Text that is not empty: an empty place would be the folder of the job file itself."""


class _Places(Model):
    sagemaker: Text | None = None
    """An `s3://` URI; for inputs also `fsx://FILE_SYSTEM_ID/PATH` or `efs://FILE_SYSTEM_ID/PATH`."""
    azureml: Text | None = None
    """`azureml:name:version`, an `azureml://` datastore path, or an `https://` blob address."""
    local: Text | None = None
    """A path on this machine, relative to the job file."""

    def of(self, target: str) -> str | None:
        """The place on one target, or None."""
        value = getattr(self, target, None)
        assert value is None or isinstance(value, str)
        return value


_TARGETS = ("sagemaker", "azureml", "local")


def _input_rules(data: Mapping[str, Any]) -> Iterator[Problem]:
    if data.get("value") is not None:
        for name in _TARGETS:
            if data.get(name) is not None:
                message = f"an input is either a `value` or a place, and this one has `{name}` too"
                yield Problem((name,), message, "remove one of them")
    elif all(data.get(target) is None for target in _TARGETS):
        message = "an input needs a place on at least one target"
        yield KeyProblem((), message, "add for example `local: data/train` or `sagemaker: s3://bucket/train`")


class Input(_Places):
    """Data that the script reads. `${{inputs.NAME}}` becomes its path."""

    value: str | bool | int | float | None = None
    """A plain value instead of a place, which `${{inputs.NAME}}` becomes: Azure ML's literal input."""

    mode: Literal["mount", "download", "pipe", "direct", "eval_mount", "eval_download"] = "mount"
    """mount: read on demand (FastFile; ro_mount). download: copied before the start (File). pipe: SageMaker's FIFO.
    direct: Azure ML passes the URI as it is. eval_mount, eval_download: Azure ML evaluates an `mltable` first."""
    type: Literal["uri_folder", "uri_file", "mltable", "mlflow_model", "custom_model", "triton_model"] = "uri_folder"
    """Azure ML's kind of data."""
    shard: bool = Field(default=False, strict=True)
    """SageMaker: each instance gets its own part (ShardedByS3Key) instead of all of it."""
    content_type: str | None = None
    compression: Literal["gzip"] | None = None
    record_wrapper: Literal["recordio"] | None = None
    """SageMaker: wrap each record for an algorithm that reads RecordIO."""
    data_type: Literal["prefix", "manifest", "augmented_manifest"] = "prefix"
    """SageMaker: what the `s3://` URI names: everything that starts with it, or a file that lists the data."""
    attribute_names: tuple[str, ...] = ()
    """SageMaker: with `augmented_manifest`, the attributes to read from each line, in this order."""
    shuffle_seed: int | None = Field(default=None, ge=0, strict=True)
    """SageMaker: shuffle the keys anew at each epoch, from this seed."""
    instance_groups: tuple[str, ...] = ()
    """SageMaker: the groups of a heterogeneous cluster that get this input; all unless given."""
    access: Literal["ro", "rw"] = "ro"
    """How an FSx or EFS file system (SageMaker) or a datastore (Azure ML) is mounted."""

    _rules = all_at_once(_input_rules)


class Output(_Places):
    """Data that the script writes. `${{outputs.NAME}}` becomes its path; the target keeps it after the run."""

    mode: Literal["upload", "mount", "direct"] = "mount"
    """upload: copied when the script ends. mount: written through while it runs. direct: Azure ML passes the URI."""
    type: Literal["uri_folder", "uri_file", "mltable", "mlflow_model", "custom_model"] = "uri_folder"
    """Azure ML's kind of data."""
    asset_name: str | None = None
    """Azure ML: register the output as a data asset or model of this name when the job has ended."""
    asset_version: str | None = None
    """Azure ML: its version; the next number unless given."""


class Checkpoint(_Places):
    """Where checkpoints live. A run that finds whole checkpoints there resumes; `${{checkpoint}}` becomes its path."""

    keep: int = Field(default=3, ge=1, strict=True)
    """How many checkpoints the runtime keeps."""
