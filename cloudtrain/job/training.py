"""The training job that the user writes: portable between targets and immutable. This module does
no I/O."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
)

from cloudtrain.errors import Problem, UsageError, ValuePath, dotted
from cloudtrain.job.data import (
    Checkpoint,
    FilledPath,
    Input,
    Output,
    PathText,
    Text,
    reference_problems,
    values_in,
)
from cloudtrain.job.distribution import Distribution, NoDistribution
from cloudtrain.job.model import (
    MAX_COUNT,
    OVERRIDES,
    Count,
    Duration,
    FromFile,
    Model,
    Size,
    TargetValues,
    all_at_once,
    per_target,
)
from cloudtrain.job.nodes import (
    JOB_NAME,
    MAX_JOB_NAME,
    MODULE,
    PLACE_NAME,
    KeyProblem,
    MissingProblem,
)
from cloudtrain.job.problems import RawFields, mapping_or_empty, raw_value
from cloudtrain.system.plugins import target_names

if TYPE_CHECKING:
    from typing_extensions import Self

    from cloudtrain.job.model import DurationInput, Fields, Json, PathInput, SizeInput, Texts


# The instance types and counts of a job.


@per_target(str | None, default=None)
class PerTarget(TargetValues):
    """A value that differs between targets: `{sagemaker: ml.p4d.24xlarge, azureml:
    Standard_ND96asr_v4}`."""

    if TYPE_CHECKING:

        def __init__(self, **values: str | None) -> None: ...

        def __getattr__(self, target: str) -> str | None: ...


def _for_each_target(value: object) -> object:
    """Convert one text to a mapping with this text for each target."""
    return dict.fromkeys(target_names(), value) if isinstance(value, str) else value


Named = Annotated[PerTarget, BeforeValidator(_for_each_target)]
"""One string for every target, or one per target."""

NamedInput = str | Mapping[str, str | None] | PerTarget
"""The types that a field of type `Named` accepts."""


class InstanceGroup(Model):
    """One group of a heterogeneous cluster (SageMaker): its own instance type and count."""

    name: str = Field(min_length=1, max_length=64)
    instance_type: str
    instance_count: Count


class InstancePreference(Model):
    """One of several alternative instance types (SageMaker), with the instance count and the
    training plan for that type."""

    instance_type: str
    instance_count: Count | None = None
    """Default: the job's `instance_count`."""
    training_plan: str | None = None
    """ARN of a training plan for this type, instead of the target's `training_plan`."""

    @model_serializer(mode="wrap")
    def _in_short(self, as_mapping: SerializerFunctionWrapHandler) -> Any:
        """Serialize as the instance type alone if no other field is set."""
        alone = self.instance_count is None and self.training_plan is None
        return self.instance_type if alone else as_mapping(self)


Preferred = Annotated[
    InstancePreference,
    BeforeValidator(lambda value: {"instance_type": value} if isinstance(value, str) else value),
]
"""An instance type as a string, or with its own count and training plan."""


MetricPatterns = Annotated[
    dict[str, str],
    BeforeValidator(lambda value: {} if value == "none" else value),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "object", "additionalProperties": {"type": "string"}},
                {"const": "none"},
            ]
        }
    ),
]
"""Regular expressions by the names of metrics. `none` is an empty mapping that is set."""


def _resource_rules(resources: RawFields) -> Iterator[Problem]:
    """Yield a problem for each field that names the machines again, or too many of them."""
    machines = ("instance_type", "gpu", "instance_preferences")
    names = [name for name in machines if resources.get(name)]
    for name in names[1:]:
        message = f"`{names[0]}` and `{name}` both name the machine"
        yield Problem((name,), message, "remove one of them", code="CT018")

    if not resources.get("instance_groups"):
        if resources.get("distribution_groups"):
            message = "`distribution_groups` needs `instance_groups`"
            hint = "add `instance_groups`, or remove it"
            yield Problem(("distribution_groups",), message, hint, code="CT018")
        return

    for name in ("instance_count", *names):
        if name in resources:
            message = (
                f"`instance_groups` holds its own types and counts, so `{name}` contradicts it"
            )
            yield Problem((name,), message, f"remove `{name}` or `instance_groups`", code="CT018")
    groups = resources["instance_groups"]
    total = 0
    for group in groups if isinstance(groups, list | tuple) else ():
        count = raw_value(group, "instance_count")
        if isinstance(count, int):  # validation reports others
            total += count
    if total > MAX_COUNT:
        message = (
            f"`instance_groups` have {total:,} instances together, and a job has at most "
            f"{MAX_COUNT:,}"
        )
        yield Problem(("instance_groups",), message, "lower their `instance_count`", code="CT014")


class Resources(Model):
    """The number and type of instances. Name a type for each target, or describe its GPUs and let
    cloudtrain choose from the catalogue."""

    instance_count: Count = 1
    """Instances (machines, nodes) of the job."""
    instance_type: Named | None = None
    gpu: str | None = None
    """GPU model and memory: `A100-40GB`, `H100`, `T4`."""
    gpus_per_instance: int | None = Field(default=None, ge=0, strict=True)
    interconnect: Literal["rdma", "ethernet"] | None = None
    """`rdma`: EFA on SageMaker, InfiniBand with SR-IOV on Azure ML."""
    instance_groups: tuple[InstanceGroup, ...] = ()
    """SageMaker only: a heterogeneous cluster, instead of `instance_type` and `instance_count`."""
    distribution_groups: tuple[str, ...] = ()
    """SageMaker only: the groups that the distribution spans. Default: all groups."""
    instance_preferences: tuple[Preferred, ...] = ()
    """SageMaker only: up to five instance types, the best first, instead of `instance_type`. The
    service uses the first type that is available. A type may have its own count and training plan:
    `{instance_type: ml.p5.48xlarge, instance_count: 2}`."""
    volume_size: Size | None = None
    """Disk size of each instance, for instance types without a fixed disk."""
    shm_size: Size | None = None
    """Shared memory of the container (`/dev/shm`), for data loader workers."""

    _rules = all_at_once(_resource_rules)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            instance_count: int = 1,
            instance_type: NamedInput | None = None,
            gpu: str | None = None,
            gpus_per_instance: int | None = None,
            interconnect: Literal["rdma", "ethernet"] | None = None,
            instance_groups: Sequence[InstanceGroup | Fields] = (),
            distribution_groups: Texts = (),
            instance_preferences: Texts
            | list[str | InstancePreference | Fields]
            | tuple[str | InstancePreference | Fields, ...] = (),
            volume_size: SizeInput | None = None,
            shm_size: SizeInput | None = None,
        ) -> None: ...


BUNDLED = "bundled:"
"""Prefix of a bundled training script: `source_dir: bundled:digits_ddp` names a script that ships
with cloudtrain."""

JobName = Annotated[str, Field(pattern=JOB_NAME, max_length=MAX_JOB_NAME)]

Name = Annotated[str, Field(pattern=PLACE_NAME, max_length=64)]
"""The name of an input or output, valid for both SageMaker's channels and Azure ML's keys."""

AssetWord = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,254}$")]
"""The name or version of an asset of Azure ML."""

_REFERENCE = r"[a-z]+:\S.*"


def _environment_rules(environment: RawFields) -> Iterator[Problem]:
    """Yield a problem for each secret whose value is not a location. No message repeats the value,
    which may be the secret itself."""
    variables = mapping_or_empty(environment.get("variables"))
    for name, value in mapping_or_empty(environment.get("secrets")).items():
        path: ValuePath = ("secrets", name)
        if not re.fullmatch(r"[A-Za-z_]\w*", str(name)):
            message = f"`{name}` cannot be a variable's name"
            yield KeyProblem(path, message, "write for example `HF_TOKEN`", code="CT070")
        if name in variables:
            message = f"`{name}` names both a secret and a variable"
            yield Problem(path, message, f"remove `variables.{name}`", code="CT071")
        places = {path: value}
        if isinstance(value, Mapping):
            places = {(*path, target): text for target, text in value.items()}
        for place, text in places.items():
            if isinstance(text, str) and not re.fullmatch(_REFERENCE, text):
                message = f"the secret `{name}` must be the location of its value"
                hint = f"write for example `env:{name}` or `file:~/.secrets/{name}`"
                yield Problem(place, message, hint, code="CT070")


@per_target(str | None, default=None)
class Environment(TargetValues):
    """The environment of the script: a framework and version for all targets, or an image for each
    target.

    The field named after a target holds the name of an environment that is registered on that
    target.
    """

    framework: Literal["pytorch", "tensorflow", "huggingface"] | None = None
    version: str | None = None
    """Version of the framework, as text: `"2.10"`."""
    base: str | None = None
    """Hugging Face: the underlying framework, such as `pytorch2.8.0`. Default: the newest that the
    version has."""
    python: str | None = None
    """Version of Python, as text: `"3.12"`."""
    image: Named | None = None
    """A container image, instead of a framework and version."""
    conda_file: PathText | None = None
    """Azure ML: a conda file to install on top of the image. The path is relative to `source_dir`,
    and may lead outside."""
    build: PathText | None = None
    """Azure ML: a folder with a `Dockerfile` to build the environment from. `../environment` is a
    folder beside `source_dir`."""
    dockerfile: PathText | None = None
    """Azure ML: the path of the Dockerfile inside `build`, if its name is not `Dockerfile`."""
    asset_name: AssetWord | None = None
    """Azure ML: the name to register the environment of an image or a `build` folder under.
    Default: an environment without a name of its own."""
    asset_version: AssetWord | None = None
    """Azure ML: the version of `asset_name`. Default: a hash of the environment's definition."""
    description: str | None = None
    """Azure ML: a description of the environment of an image or a `build` folder."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Azure ML: tags of that environment."""
    requirements: PathText | None = None
    """The packages that the script needs: a requirements file of pip, a `uv.lock`, a
    `pyproject.toml` with its lock, a script with a PEP 723 block, or a `pylock.toml`. The path is
    relative to `source_dir`. Default: the script's block, `uv.lock` or `requirements.txt` in
    `source_dir` or beside the script, if the job names no image or environment of its own; `none`
    installs nothing. The clouds install them before the script starts. On this machine they are
    installed into an environment of their own if the interpreter lacks some."""
    groups: tuple[str, ...] = ()
    """The dependency groups of `pyproject.toml` to install as well. Without them, no group is
    installed."""
    extras: tuple[str, ...] = ()
    """The extras of `pyproject.toml` to install as well."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment variables. Put secrets into `secrets`: variables are sent, stored and shown."""
    secrets: dict[str, Named] = Field(default_factory=dict)
    """Environment variables whose values the job looks up. Name the place of the value for each
    target, or one place for all: `secretsmanager:NAME`, `keyvault:VAULT/NAME`, `file:PATH` or
    `env:NAME`. Only the place is sent and stored."""

    _rules = all_at_once(_environment_rules)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            framework: Literal["pytorch", "tensorflow", "huggingface"] | None = None,
            version: str | None = None,
            base: str | None = None,
            python: str | None = None,
            image: NamedInput | None = None,
            conda_file: PathInput | None = None,
            build: PathInput | None = None,
            dockerfile: PathInput | None = None,
            asset_name: str | None = None,
            asset_version: str | None = None,
            description: str | None = None,
            tags: Mapping[str, str] = ...,
            requirements: PathInput | None = None,
            groups: Texts = (),
            extras: Texts = (),
            variables: Mapping[str, str] = ...,
            secrets: Mapping[str, NamedInput] = ...,
            **environments: str | None,
        ) -> None: ...


class Tracking(Model):
    """Where the script's experiment tracking writes. Each field sets the environment variables that
    a library reads; the script imports the library and logs with it, as it does elsewhere."""

    mlflow: Named | None = None
    """MLflow: the tracking URI, or the ARN of SageMaker's tracking server or MLflow app. The
    experiment is named after the job, and the MLflow run after the run."""
    wandb: Literal["offline", "online"] | None = None
    """Weights & Biases: `offline` writes files that `wandb sync` uploads later; `online` needs the
    secret `WANDB_API_KEY`. The project is named after the job."""
    tensorboard: bool = Field(default=False, strict=True)
    """TensorBoard: `TENSORBOARD_LOGGING_DIR` is a folder that outlives the run. Trainers of Hugging
    Face write there; pass it to `SummaryWriter` elsewhere."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            mlflow: NamedInput | None = None,
            wandb: Literal["offline", "online"] | None = None,
            tensorboard: bool = False,
        ) -> None: ...


class Spot(Model):
    """Use spare capacity. It is cheaper but can be reclaimed at any time, so the script should save
    checkpoints."""

    max_wait: Duration | None = None
    """How long to wait for capacity, including the run itself."""

    if TYPE_CHECKING:

        def __init__(self, *, max_wait: DurationInput | None = None) -> None: ...


class Alternative(Model):
    """One more way to run the job, if there is no capacity for those before it: what differs."""

    set: tuple[str, ...] = ()
    """Changes of the job, each as `--set` takes it: `resources.instance_type=ml.g5.12xlarge`,
    `spot=null`."""
    target: str | None = None
    """Another target."""
    profile: str | None = None
    """A profile of `cloudtrain.toml`, such as one of another region or workspace."""
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of the target that differ, as in its table of `cloudtrain.toml`."""
    wait: Duration | None = None
    """How long to wait for capacity before the next alternative. Default: 15 minutes, 30 for spot
    capacity; on a target that costs nothing, no limit."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            set: Texts = (),
            target: str | None = None,
            profile: str | None = None,
            settings: Mapping[str, Json] = ...,
            wait: DurationInput | None = None,
        ) -> None: ...


class Capacity(Model):
    """What to do if there is no capacity for the job. The job as it is comes first, then the
    alternatives in order. Exactly one of them runs."""

    alternatives: tuple[Alternative, ...] = Field(min_length=1)
    wait: Duration | None = None
    """How long the job as it is waits for capacity."""
    give_up_after: Duration | None = None
    """How long to begin again with the first after the last. Default: each is tried once."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            alternatives: Sequence[Alternative | Fields],
            wait: DurationInput | None = None,
            give_up_after: DurationInput | None = None,
        ) -> None: ...


def _job_rules(job: RawFields) -> Iterator[Problem]:
    yield from one_thing_to_run(job, modules=True)
    yield from reference_problems(job)
    yield from same_names(job, outputs=("model",))
    yield from unsendable(job)


def one_thing_to_run(job: RawFields, *, modules: bool = False) -> Iterator[Problem]:
    """Yield the problems of a job that names no program to run (script, command or image), or both
    a script and a command, or a script that Python, bash or torchrun would read as an option."""
    script = job.get("entry_point")
    command = job.get("command")
    image = raw_value(job.get("environment"), "image")  # an image has a program of its own
    path = ("entry_point",)

    if script is None and command is None and image is None:
        message = "a job needs something to run: `entry_point` or `command`"
        hint = "add for example `entry_point: train.py`"
        yield MissingProblem(path, message, hint, alternatives=("command",), code="CT011")
    if script is not None and job.get("source_dir", ".") is None:
        hint = "write the script's folder: `source_dir: .`"
        yield Problem(path, "a job without code has no script to run", hint, code="CT018")

    name = os.fspath(script) if isinstance(script, str | os.PathLike) else ""
    is_module = modules and re.fullmatch(MODULE, name)
    if name.startswith("-") and not is_module:
        message = f"Python and the launchers would read the script's name `{script}` as an option"
        hint = "rename the file, so that its name does not begin with a dash"
        if modules:
            hint += "; for a module, write for example `-m package.train`"
        yield Problem(path, message, hint, code="CT016")

    if script is not None and command is not None:
        message = "a job runs either an `entry_point` or a `command`, not both"
        yield Problem(("command",), message, "remove one of them", code="CT018")
    # an image without a command gets hyperparameters
    for field, is_lost in (("hyperparameters", command is not None), ("arguments", True)):
        if script is None and is_lost and job.get(field):
            hint = "write them into a `command`, or use `entry_point: train.py` instead of one"
            yield Problem((field,), f"only an `entry_point` gets `{field}`", hint, code="CT018")


def same_names(job: RawFields, *, outputs: Sequence[str] = ()) -> Iterator[Problem]:
    """Yield a problem for inputs or outputs whose names differ only in case, because an environment
    variable such as `CLOUDTRAIN_INPUT_TRAIN` would be ambiguous.

    `outputs` holds the names of further outputs that are not in the job's field `outputs`, such as
    `model`.
    """
    for field, implicit in (("inputs", ()), ("outputs", outputs)):
        names = {name.upper(): name for name in implicit}
        for name in mapping_or_empty(job.get(field)):
            first = names.setdefault(str(name).upper(), name)
            if first != name:
                variable = f"CLOUDTRAIN_{field[:-1]}_{name}".upper()
                message = (
                    f"`{name}` and `{first}` differ only in case, and `{variable}` would mean both"
                )
                hint = f"write for example `{name}_2`"
                yield KeyProblem((field, name), message, hint, code="CT019")


def unsendable(value: object, path: ValuePath = ()) -> Iterator[Problem]:
    """Yield a problem for each value that no target accepts: NaN and infinity, which JSON cannot
    express, and malformed text."""
    for place, item in values_in(value, path):
        name = place[-1] if place else ""
        if isinstance(name, str):
            for what, hint in _text_faults(name):
                yield KeyProblem(place, f"a name holds {what}", hint, code="CT017")
        if isinstance(item, str):
            for what, hint in _text_faults(item):
                yield Problem(place, f"`{name}` holds {what}", hint, code="CT017")
        elif isinstance(item, float) and not isfinite(item):
            shown = dotted(place[-2:] if isinstance(name, int) else place[-1:])
            message = f"`{shown}` cannot be `{item}`: no service accepts it"
            yield Problem(place, message, f'write `"{item}"`, as text', code="CT017")


def _text_faults(text: str) -> Iterator[tuple[str, str]]:
    """Yield a message and a hint for each fault of a text: a NUL character, or a character that
    UTF-8 cannot encode."""
    if "\0" in text:
        yield "a NUL character, which ends every argument", "remove it"
    if not text.isascii() and re.search(_SURROGATE, text):  # compiled if a text needs it
        yield "half of a character (a lone surrogate)", "write the character itself"


_SURROGATE = "[\ud800-\udfff]"


@per_target(dict[str, JsonValue], suffix=OVERRIDES, default_factory=dict)
class TrainingJob(FromFile):
    """One distributed training job. The same job runs on every target: this machine, SageMaker,
    Azure ML or Slurm.

    Raises:
        JobError: listing every problem at once, each with a hint.
    """

    name: JobName
    """Letters, digits and hyphens. At most 40 characters, so that a run name with hash and counter
    fits every target."""
    source_dir: PathText | None = "."
    """The folder with the user's code, or a single file, relative to the job file; or
    `bundled:NAME`. Null: no code."""
    entry_point: FilledPath | None = Field(
        default=None, json_schema_extra={"pattern": f"^[^-]|^{MODULE}$"}
    )
    """The script inside `source_dir`, or `-m package.module`. Without `entry_point` and `command`,
    the image's entry point runs (SageMaker)."""
    command: Text | None = None
    """A shell command line, instead of `entry_point`."""
    hyperparameters: dict[str, JsonValue] = Field(default_factory=dict)
    """Passed to the script as `--key value`, sorted by key, identically on every target."""
    arguments: tuple[str, ...] = ()
    """Passed to the script word for word, before the hyperparameters, on every target."""
    bare_flags: bool = Field(default=False, strict=True)
    """Pass a hyperparameter that is `true` as `--key` alone, and leave out one that is `false`."""
    distribution: Distribution = Field(default_factory=NoDistribution.model_construct)
    resources: Resources = Field(default_factory=Resources.model_construct)
    environment: Environment = Field(default_factory=Environment.model_construct)
    inputs: dict[Name, Input] = Field(default_factory=dict)
    outputs: dict[Name, Output] = Field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    spot: Spot | None = None
    capacity: Capacity | None = None
    max_runtime: Duration | None = None
    stop_when_idle: Duration | None = None
    """Stop the run when all its GPUs have been idle (under 10% of utilization) for this time, on
    this machine and on Slurm."""
    stop_when_stalled: Duration | None = None
    """Stop the run when a rank has held the others up for this time. Without this field, a notice
    names the rank, and the run continues."""
    metrics: MetricPatterns = Field(default_factory=dict)
    """Maps the name of a metric to a regular expression with one group, which is applied to the
    output. Without this field, metrics are recognised in the output of a script that reports none;
    `none` switches that off."""
    tracking: Tracking | None = None
    tags: dict[str, str] = Field(default_factory=dict)
    description: str | None = None

    _rules = all_at_once(_job_rules)

    @property
    def has_no_metrics(self) -> bool:
        """Whether the job says `metrics: none`."""
        return "metrics" in self.model_fields_set and not self.metrics

    @classmethod
    def from_script(
        cls, script: str | Path, arguments: Sequence[str] = (), **fields: object
    ) -> Self:
        """Return the job that runs a script: `TrainingJob.from_script("train.py", ["--epochs",
        "3"])`.

        Args:
            script: a Python file. The code is the working directory if the script is inside it,
                otherwise the script's folder. The script's imports decide how its processes are
                started.
            arguments: the script's arguments. If they are `--name value`, sorted by name, they
                become hyperparameters.
            fields: fields of the job, which replace those that the script and its arguments
                determine.

        Raises:
            UsageError: the script does not exist or is not a Python file, or the arguments are one
                text.
            JobError: a field is wrong.
        """
        from cloudtrain.job.script import fields_of_script

        if isinstance(arguments, str):
            raise UsageError(
                "the arguments of a script are a list of texts, not one text",
                hint=f"write `{arguments.split()!r}`",
                code="CT909",
            )
        words = [str(word) for word in arguments]
        values = fields_of_script(Path(script), words, Path.cwd())
        values.update(fields)
        return cls(**values)

    @property
    def view(self) -> TrainingJob:
        """The fields that training jobs share with processing jobs, for checks and compilers: the
        job itself."""
        return self

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            name: str,
            source_dir: PathInput | None = ".",
            entry_point: PathInput | None = None,
            command: str | None = None,
            hyperparameters: Mapping[str, Json] = ...,
            arguments: Texts = (),
            bare_flags: bool = False,
            distribution: Distribution | Fields = ...,
            resources: Resources | Fields = ...,
            environment: Environment | Fields = ...,
            inputs: Mapping[str, Input | Fields] = ...,
            outputs: Mapping[str, Output | Fields] = ...,
            checkpoint: Checkpoint | Fields | None = None,
            spot: Spot | Fields | None = None,
            capacity: Capacity | Fields | None = None,
            max_runtime: DurationInput | None = None,
            stop_when_idle: DurationInput | None = None,
            stop_when_stalled: DurationInput | None = None,
            metrics: Mapping[str, str] | Literal["none"] = ...,
            tracking: Tracking | Fields | None = None,
            tags: Mapping[str, str] = ...,
            description: str | None = None,
            **overrides: Mapping[str, Json],
        ) -> None: ...
