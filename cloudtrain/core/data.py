"""The data that a job reads, writes and resumes from. Only the locations differ between targets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from cloudtrain.core.model import Model, all_at_once
from cloudtrain.core.per_target import per_target, value_for
from cloudtrain.core.targets import all_targets, target_names
from cloudtrain.errors import Problem
from cloudtrain.problems.collect import KeyProblem

if TYPE_CHECKING:
    from cloudtrain.core.arguments import PathInput, Texts


def _path_text(value: Any) -> Any:
    """Convert a `pathlib.Path` to text, and return other values unchanged. A `Path` that was made from a URI has lost a
    slash (`s3:/bucket`). It is returned unchanged, so that validation refuses it.
    """
    if not isinstance(value, os.PathLike):
        return value
    text = os.fspath(value)
    return value if isinstance(text, bytes) or re.match("[A-Za-z][A-Za-z0-9+.-]+:/", text) else text


Text = Annotated[str, Field(min_length=1)]
"""Non-empty text. An empty path would mean the folder of the job file."""

PathText = Annotated[str, BeforeValidator(_path_text)]
"""A path or a URI, stored as text. In Python it can be a `pathlib.Path`."""

FilledPath = Annotated[Text, BeforeValidator(_path_text)]
"""A path that is not empty."""

Channel = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
"""The name of a channel."""


@per_target(FilledPath | None, default=None)
class _Places(Model):
    """One location per target, in a field with the target's name."""

    def of(self, target: str) -> str | None:
        """Return the location on one target, or None if that location is not set."""
        return value_for(self, target)

    if TYPE_CHECKING:

        def __init__(self, **places: PathInput | None) -> None: ...

        def __getattr__(self, target: str) -> str | None: ...


def _input_rules(data: Mapping[str, Any]) -> Iterator[Problem]:
    if data.get("value") is not None:
        for name in target_names():
            if data.get(name) is not None:
                message = f"an input has either a `value` or locations, but this one has `{name}` too"
                yield Problem((name,), message, "remove one of them", code="CT018")
    elif all(data.get(target) is None for target in target_names()):
        message = "an input needs a location on at least one target"
        yield KeyProblem((), message, f"add for example {_examples()}", code="CT011")


def _examples() -> str:
    """Return example locations for two targets, as text for a hint."""
    found = [f"`{target.name}: {target.place_example}`" for target in all_targets() if target.place_example]
    return " or ".join(found[:2])


class Input(_Places):
    """Data that the script reads. `${{inputs.NAME}}` becomes the path of the data."""

    value: str | bool | int | float | None = None
    """A plain value instead of a location (Azure ML's literal input). `${{inputs.NAME}}` becomes this value."""

    mode: Literal["mount", "download", "pipe", "direct", "eval_mount", "eval_download"] = "mount"
    """mount: read on demand (FastFile; ro_mount). download: copied before the start (File). pipe: SageMaker's FIFO.
    direct: Azure ML passes the URI unchanged. eval_mount, eval_download: Azure ML evaluates an `mltable` first."""
    type: Literal["uri_folder", "uri_file", "mltable", "mlflow_model", "custom_model", "triton_model"] = "uri_folder"
    """Azure ML's kind of data."""
    channel: Channel | None = None
    """SageMaker: the name of the channel, such as `train-1.x`. Default: the input's name."""
    shard: bool = Field(default=False, strict=True)
    """SageMaker: each instance gets its own part (ShardedByS3Key) instead of all of it."""
    content_type: str | None = None
    compression: Literal["gzip"] | None = None
    record_wrapper: Literal["recordio"] | None = None
    """SageMaker: wrap each record for an algorithm that reads RecordIO."""
    data_type: Literal["prefix", "manifest", "augmented_manifest"] = "prefix"
    """SageMaker: how to read the `s3://` URI: as a prefix of object keys, or as a file that lists the data."""
    attribute_names: tuple[str, ...] = ()
    """SageMaker: with `augmented_manifest`, the attributes to read from each line, in this order."""
    shuffle_seed: int | None = Field(default=None, ge=0, strict=True)
    """SageMaker: shuffle the keys anew at each epoch, from this seed."""
    instance_groups: tuple[str, ...] = ()
    """SageMaker: the groups of a heterogeneous cluster that get this input. Default: all groups."""
    access: Literal["ro", "rw"] = "ro"
    """How an FSx or EFS file system (SageMaker) or a datastore (Azure ML) is mounted."""

    _rules = all_at_once(_input_rules)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            value: str | bool | int | float | None = None,
            mode: Literal["mount", "download", "pipe", "direct", "eval_mount", "eval_download"] = "mount",
            type: Literal[
                "uri_folder", "uri_file", "mltable", "mlflow_model", "custom_model", "triton_model"
            ] = "uri_folder",
            channel: str | None = None,
            shard: bool = False,
            content_type: str | None = None,
            compression: Literal["gzip"] | None = None,
            record_wrapper: Literal["recordio"] | None = None,
            data_type: Literal["prefix", "manifest", "augmented_manifest"] = "prefix",
            attribute_names: Texts = (),
            shuffle_seed: int | None = None,
            instance_groups: Texts = (),
            access: Literal["ro", "rw"] = "ro",
            **places: PathInput | None,
        ) -> None: ...


class Output(_Places):
    """Data that the script writes and the target keeps after the run. `${{outputs.NAME}}` becomes its path."""

    mode: Literal["upload", "mount", "direct"] = "mount"
    """upload: copied when the script ends. mount: written through while the script runs. direct: Azure ML passes the
    URI."""
    type: Literal["uri_folder", "uri_file", "mltable", "mlflow_model", "custom_model", "triton_model"] = "uri_folder"
    """Azure ML's kind of data."""
    asset_name: str | None = None
    """Azure ML: the name of the data asset or model to register the output as when the job has ended."""
    asset_version: str | None = None
    """Azure ML: the version of the asset. Default: the next number."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            mode: Literal["upload", "mount", "direct"] = "mount",
            type: Literal[
                "uri_folder", "uri_file", "mltable", "mlflow_model", "custom_model", "triton_model"
            ] = "uri_folder",
            asset_name: str | None = None,
            asset_version: str | None = None,
            **places: PathInput | None,
        ) -> None: ...


class Checkpoint(_Places):
    """The location of checkpoints. A run resumes if the location contains a complete checkpoint. `${{checkpoint}}`
    becomes the path of the location.
    """

    keep: int = Field(default=3, ge=1, strict=True)
    """How many checkpoints the runtime keeps."""

    if TYPE_CHECKING:

        def __init__(self, *, keep: int = 3, **places: PathInput | None) -> None: ...
