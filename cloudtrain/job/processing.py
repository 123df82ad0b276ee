"""The processing job: a script that prepares or evaluates data on several instances, each with its
part of the data.

Its fields are those of a training job, except those for training only: distribution, checkpoints
and spot capacity. Every instance runs the script once, independently. Inputs with `shard: true` are
divided among the instances.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field, JsonValue, model_validator

from cloudtrain.errors import Problem
from cloudtrain.job.data import FilledPath, Input, Output, PathText, Text, reference_problems
from cloudtrain.job.model import OVERRIDES, Duration, FromFile, Model, all_at_once, per_target
from cloudtrain.job.nodes import describe_value
from cloudtrain.job.problems import RawFields, raw_value
from cloudtrain.job.training import (
    Environment,
    JobName,
    Name,
    Resources,
    TrainingJob,
    one_thing_to_run,
    same_names,
    unsendable,
)

if TYPE_CHECKING:
    from cloudtrain.job.data import DataType, InputMode, PlainValue
    from cloudtrain.job.model import DurationInput, Fields, Json, PathInput, Texts

ONLY_TRAINING = {
    "channel": None,
    "content_type": None,
    "record_wrapper": None,
    "attribute_names": (),
    "shuffle_seed": None,
    "instance_groups": (),
    "access": "ro",
}
"""Fields of an input that CreateProcessingJob does not support, and their defaults."""


def _input_rules(data: RawFields) -> Iterator[Problem]:
    """Yield a problem for each field that only an input of a training job can have."""
    for name, default in ONLY_TRAINING.items():
        value = data.get(name, default)
        is_empty = default == () and not value
        if value != default and not is_empty:
            message = f"`{name}` applies to inputs of training jobs, and this is a processing job"
            yield Problem((name,), message, f"remove `{name}`", code="CT023")
    if data.get("data_type") == "augmented_manifest":
        message = "a processing job cannot read an augmented manifest"
        yield Problem(("data_type",), message, "use `prefix` or `manifest`", code="CT023")
    yield from _place_rules(data)


def _place_rules(data: RawFields) -> Iterator[Problem]:
    """Yield a problem for a path in the container that SageMaker would refuse."""
    path = data.get("path")
    if isinstance(path, str) and not path.startswith("/opt/ml/processing/"):
        message = (
            f"{describe_value(path)} is not a folder that a processing container shares with S3"
        )
        yield Problem(("path",), message, "it begins with `/opt/ml/processing/`", code="CT032")


class ProcessingInput(Input):
    """Data that the script of a processing job reads."""

    path: str | None = None
    """SageMaker: the path in the container. Default: `/opt/ml/processing/input/NAME`."""

    _processing_rules = all_at_once(_input_rules)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            value: PlainValue | None = None,
            mode: InputMode = "mount",
            type: DataType = "uri_folder",
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
            path: str | None = None,
            **places: PathInput | None,
        ) -> None: ...


class ProcessingOutput(Output):
    """Data that the script writes. All instances write to one location, so their file names must
    differ."""

    mode: Literal["upload", "mount"] = "upload"
    """upload: copied when the script ends (EndOfJob). mount: copied while it runs (Continuous).
    Azure ML mounts the output unless the job says `upload`."""
    path: str | None = None
    """SageMaker: the path in the container that the script writes to. Default:
    `/opt/ml/processing/output/NAME`."""

    _processing_rules = all_at_once(_place_rules)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            mode: Literal["upload", "mount"] = "upload",
            type: DataType = "uri_folder",
            asset_name: str | None = None,
            asset_version: str | None = None,
            path: str | None = None,
            **places: PathInput | None,
        ) -> None: ...


def _job_rules(job: RawFields) -> Iterator[Problem]:
    yield from one_thing_to_run(job)
    yield from reference_problems(job, implicit=())
    for name in ("instance_groups", "distribution_groups"):
        if raw_value(job.get("resources"), name):
            message = f"a processing job runs on equal instances, so it has no `{name}`"
            hint = "use `instance_type` and `instance_count`"
            yield Problem(("resources", name), message, hint, code="CT023")
    yield from same_names(job)
    yield from unsendable(job)


@per_target(dict[str, JsonValue], suffix=OVERRIDES, default_factory=dict)
class ProcessingJob(FromFile):
    """One processing job: the same script on every instance, each with its shard of the data.

    Raises:
        JobError: listing every problem at once, each with a hint.
    """

    kind: Literal["processing"] = "processing"
    """Distinguishes the file of a processing job from that of a training job."""
    name: JobName
    """Letters, digits and hyphens. At most 40 characters, so that a run name with hash and counter
    fits every target."""
    source_dir: PathText = "."
    """The folder with your code, relative to the job file; or `bundled:NAME`."""
    entry_point: FilledPath | None = Field(default=None, json_schema_extra={"pattern": "^[^-]"})
    """The script inside `source_dir`. Without `entry_point` and `command`, the image's entry point
    runs (SageMaker)."""
    command: Text | None = None
    """A shell command line, instead of `entry_point`."""
    hyperparameters: dict[str, JsonValue] = Field(default_factory=dict)
    """Passed to the script as `--key value`, sorted by key, identically on every target."""
    resources: Resources = Field(default_factory=Resources.model_construct)
    environment: Environment = Field(default_factory=Environment.model_construct)
    inputs: dict[Name, ProcessingInput] = Field(default_factory=dict)
    outputs: dict[Name, ProcessingOutput] = Field(default_factory=dict)
    max_runtime: Duration | None = None
    tags: dict[str, str] = Field(default_factory=dict)
    description: str | None = None

    _rules = all_at_once(_job_rules)

    @model_validator(mode="before")
    @classmethod
    def _take_plain_places(cls, data: object) -> object:
        """Accept `Input` and `Output` of a job written in Python, which lack fields of
        processing."""
        if not isinstance(data, Mapping):
            return data
        widened = dict(data)
        for field, plain in (("inputs", Input), ("outputs", Output)):
            places = data.get(field)
            if isinstance(places, Mapping):
                widened[field] = {name: _set_fields(item, plain) for name, item in places.items()}
        return widened

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            name: str,
            kind: Literal["processing"] = "processing",
            source_dir: PathInput = ".",
            entry_point: PathInput | None = None,
            command: str | None = None,
            hyperparameters: Mapping[str, Json] = ...,
            resources: Resources | Fields = ...,
            environment: Environment | Fields = ...,
            inputs: Mapping[str, Input | Fields] = ...,
            outputs: Mapping[str, Output | Fields] = ...,
            max_runtime: DurationInput | None = None,
            tags: Mapping[str, str] = ...,
            description: str | None = None,
            **overrides: Mapping[str, Json],
        ) -> None: ...

    @property
    def view(self) -> TrainingJob:
        """The same script, data and machines as a training job without a distribution. It is not
        validated."""
        given = self.model_fields_set & TrainingJob.model_fields.keys()
        names = given | {"source_dir", "resources", "environment"}
        values = {name: getattr(self, name) for name in names}
        return TrainingJob.model_construct(_fields_set=given, **values)


AnyJob = TrainingJob | ProcessingJob


def _set_fields(item: object, plain: type[Model]) -> object:
    """Return the fields of a `plain` model that were set, and other items unchanged."""
    if isinstance(item, plain):
        return {name: getattr(item, name) for name in item.model_fields_set}
    return item
