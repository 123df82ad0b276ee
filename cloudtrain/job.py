"""The training job: what the user writes. Portable between targets, immutable, and without any I/O."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from cloudtrain._model import Model
from cloudtrain.data import Checkpoint, Input, Output
from cloudtrain.distribution import Distribution, NoDistribution
from cloudtrain.problems import ProblemsFound
from cloudtrain.references import reference_problems
from cloudtrain.resources import Named, Resources
from cloudtrain.units import Duration

BUNDLED = "bundled:"
"""`source_dir: bundled:digits_ddp` names a training script that ships with cloudtrain."""

Name = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$", max_length=64)]
"""A name of an input or output: what SageMaker's channels and Azure ML's keys both accept."""


class Environment(Model):
    """What the script runs in: a framework and version that each target knows, or an image per target."""

    framework: Literal["pytorch", "tensorflow", "huggingface"] | None = None
    version: str | None = None
    """Version of the framework, as text: `"2.8"`."""
    python: str | None = None
    """Version of Python, as text: `"3.12"`."""
    image: Named | None = None
    """A container image, instead of framework and version."""
    azureml: str | None = None
    """A registered Azure ML environment: `azureml:name:version` or an `azureml://registries/...` id."""
    conda_file: str | None = None
    """Azure ML: a conda file inside `source_dir` on top of the image."""
    requirements: str | None = None
    """A pip requirements file inside `source_dir`, installed before the script starts on the clouds."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment variables. Never put secrets here: they would be sent, stored and shown."""


class Spot(Model):
    """Use spare capacity: cheaper, and it may be taken away at any time, so the script should checkpoint."""

    max_wait: Duration | None = None
    """How long to wait for capacity, the run itself included."""


class TrainingJob(Model):
    """One distributed training job. The same job runs on this machine, on SageMaker and on Azure ML.

    Raises:
        JobError: listing every problem at once, each with a hint.
    """

    name: str = Field(pattern=r"^[a-zA-Z0-9](-*[a-zA-Z0-9])*$", max_length=40)
    """Letters, digits and hyphens; at most 40, so that a run name with hash and counter fits every target."""
    source_dir: str = "."
    """The folder with the user's code, relative to the job file; or `bundled:NAME`."""
    entry_point: str | None = None
    """The script inside `source_dir`."""
    command: str | None = None
    """A shell command line, instead of `entry_point`."""
    hyperparameters: dict[str, JsonValue] = Field(default_factory=dict)
    """Reach the script as `--key value`, keys sorted, the same on every target."""
    distribution: Distribution = Field(default_factory=NoDistribution)
    resources: Resources = Field(default_factory=Resources)
    environment: Environment = Field(default_factory=Environment)
    inputs: dict[Name, Input] = Field(default_factory=dict)
    outputs: dict[Name, Output] = Field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    spot: Spot | None = None
    max_runtime: Duration | None = None
    metrics: dict[str, str] = Field(default_factory=dict)
    """Name to a regular expression with one group, for services that read metrics from the log."""
    tags: dict[str, str] = Field(default_factory=dict)
    description: str | None = None
    sagemaker_overrides: dict[str, JsonValue] = Field(default_factory=dict)
    """Merged last into the CreateTrainingJob request."""
    azureml_overrides: dict[str, JsonValue] = Field(default_factory=dict)
    """Merged last into the Azure ML job body."""

    @model_validator(mode="after")
    def _one_thing_to_run(self) -> TrainingJob:
        if (self.entry_point is None) == (self.command is None):
            raise ValueError("a job runs either an `entry_point` or a `command`; give one of them")
        if self.command is not None and self.hyperparameters:
            raise ValueError("`hyperparameters` go to an `entry_point`; with `command`, write them into the command")
        return self

    @model_validator(mode="after")
    def _references_name_something(self) -> TrainingJob:
        problems = reference_problems(self.model_dump(mode="json", exclude_none=True))
        if problems:
            raise ProblemsFound(problems)
        return self
