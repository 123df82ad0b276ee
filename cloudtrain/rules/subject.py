"""The object that rules check: a job for one target, with a `RequestView` that reads values from its request.

Each target has its own `RequestView`, because each service has its own request format. The base class in this module
takes all values from the job, which suits targets without overrides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from cloudtrain.bundle.tree import Tree
from cloudtrain.catalogue.machines import MachineGroup, Machines, known_type
from cloudtrain.core.job import TrainingJob
from cloudtrain.core.per_target import OVERRIDES, overrides_of
from cloudtrain.core.plan import Plan
from cloudtrain.rules.data_places import DataPlace, declared_places
from cloudtrain.rules.overridden import KeysOf, Path, is_written

if TYPE_CHECKING:
    from cloudtrain.core.processing import ProcessingJob

IMAGE: Path = ("environment", "image")


class Where(Protocol):
    """The attributes and methods of a target that rules use."""

    name: ClassVar[str]
    title: ClassVar[str]
    is_paid: ClassVar[bool]
    secret_places: ClassVar[Mapping[str, str]]
    rule_prefix: ClassVar[str]
    rule_modules: ClassVar[tuple[str, ...]]
    only_training_rule_modules: ClassVar[tuple[str, ...]]

    def refuse_path(self, path: str) -> str | None:
        """Return why the target does not support `path` for a file in the bundle; None if the target supports it."""
        ...


class RequestView:
    """Reads the values that rules check from one target's requests."""

    distribution_key = "distribution"
    """The key of the overrides that determines how the processes start."""
    overridden_by: Mapping[Path, KeysOf] = {}
    """Maps the beginning of a path in the job to the positions in the overrides that write the same part of the
    request."""

    def __init__(self, target: str) -> None:
        self.target = target

    @property
    def service(self) -> str:
        """The name of the service whose overrides apply: the target itself, or for a local run the emulated service."""
        return self.target

    def overrides(self, subject: Subject) -> Mapping[str, Any]:
        """Return the user's overrides of the request."""
        return overrides_of(subject.job, self.service)

    def change(self, subject: Subject) -> dict[str, Any]:
        """Return the fields of the job that the overrides change, with their values in the finished request.

        Overrides can put anything into a request. Values of a wrong type are left out, because other rules report
        them.
        """
        return {}

    def change_script(self, subject: Subject) -> dict[str, Any]:
        """Return the part of `change` that affects the script on every target: variables and hyperparameters."""
        return {}

    def places(self, subject: Subject) -> Iterator[DataPlace]:
        """Yield the locations that the job reads and writes, as addresses that can be compared."""
        return declared_places(subject.job, self.target)

    def machines(self, subject: Subject) -> Machines:
        """Return the machines in the request. Their hardware comes from the target's table of instance types, with the
        corrections in the account's `overlay`.
        """
        resources = subject.effective.resources
        name = (resources.instance_type.of(self.target) if resources.instance_type is not None else None) or ""
        row = known_type(self.target, name, getattr(subject.account, "overlay", None))
        return Machines((MachineGroup(name, resources.instance_count, row, path=("resources", "instance_type")),))

    def longest_run(self, subject: Subject) -> int | None:
        """Return the maximum duration of a run in seconds, as limited by the job or service; None without a limit."""
        return subject.effective.max_runtime

    def framework(self, subject: Subject) -> str | None:
        """Return the framework of the request's image; None if unknown."""
        return subject.job.environment.framework

    def images(self, subject: Subject) -> Iterator[tuple[str, Path]]:
        """Yield every image that the user names, with its path. Images from the catalogue are left out."""
        given = subject.job.environment.image
        name = given.of(self.target) if given is not None else None
        if name is not None:
            yield name, IMAGE

    def locate(self, subject: Subject, path: Path) -> Path:
        """Return the path at which a value of the request is set: its path in the overrides if they set it, otherwise
        `path`, its path in the job.
        """
        written = self.overrides(subject) if path else {}
        if not written:
            return path
        for start, keys_of in self.overridden_by.items():
            if path[: len(start)] == start:
                for keys in keys_of(path[len(start) :]):
                    if is_written(written, *keys):
                        return (self.service + OVERRIDES, *keys)
        return path


@dataclass(frozen=True)
class Subject:
    """The object that rules check: the job, the target with its account settings, the plan, and the user's files."""

    job: TrainingJob
    where: Where
    target: Any
    """The settings of `where`."""
    view: RequestView
    account: Any
    plan: Plan
    tree: Tree
    processing: ProcessingJob | None = None
    """The original job if it is a processing job; `job` is the part that it shares with a training job."""

    @cached_property
    def effective(self) -> TrainingJob:
        """The job with the user's overrides applied, as the request contains it. Rules check counts, types, variables
        and the distribution of this job. If the job cannot be compiled, there is no request, and the overrides are not
        applied.
        """
        if not self.view.overrides(self) or not self.plan.request:
            return self.job
        return self.job.model_copy(update=self.view.change(self))
