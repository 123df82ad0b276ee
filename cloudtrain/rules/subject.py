"""What the rules look at: a job on its way to a target, and what its request can be asked.

Each target has a `RequestView` of its own, because each request has its own words. The one here is for a target whose
requests take no overrides: there the job itself says everything.
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
    """What rules ask of a target."""

    name: ClassVar[str]
    title: ClassVar[str]
    is_paid: ClassVar[bool]
    secret_places: ClassVar[Mapping[str, str]]
    rule_prefix: ClassVar[str]
    rule_modules: ClassVar[tuple[str, ...]]
    only_training_rule_modules: ClassVar[tuple[str, ...]]

    def refuse_path(self, path: str) -> str | None:
        """Why a file of the bundle cannot have this name there."""
        ...


class RequestView:
    """How one target's requests are read."""

    distribution_key = "distribution"
    """The key of the overrides that holds how the processes start."""
    overridden_by: Mapping[Path, KeysOf] = {}
    """The beginning of a path in the job to the places in the overrides that write the same part of the request."""

    def __init__(self, target: str) -> None:
        self.target = target

    @property
    def service(self) -> str:
        """Whose overrides count: the target's own; on this machine those of the service that is emulated."""
        return self.target

    def overrides(self, subject: Subject) -> Mapping[str, Any]:
        """What the user adds to the request by hand."""
        return overrides_of(subject.job, self.service)

    def change(self, subject: Subject) -> dict[str, Any]:
        """The fields of the job that the overrides change, with what the finished request says instead.

        A request with overrides may hold anything: what has the wrong type is left out, and other rules say what is
        wrong with it.
        """
        return {}

    def change_script(self, subject: Subject) -> dict[str, Any]:
        """Those of `change` that reach the script wherever it runs: variables and hyperparameters."""
        return {}

    def places(self, subject: Subject) -> Iterator[DataPlace]:
        """Where the job reads and writes, as addresses that can be compared."""
        return declared_places(subject.job, self.target)

    def machines(self, subject: Subject) -> Machines:
        """The machines that the request asks for; here the job's own word, and the row of the target's table
        with the corrections that the account has as its `overlay`."""
        resources = subject.effective.resources
        name = (resources.instance_type.of(self.target) if resources.instance_type is not None else None) or ""
        row = known_type(self.target, name, getattr(subject.account, "overlay", None))
        return Machines((MachineGroup(name, resources.instance_count, row, path=("resources", "instance_type")),))

    def longest_run(self, subject: Subject) -> int | None:
        """Seconds after which a run is over at the latest, by the job's limit or the service's; None without either."""
        return subject.effective.max_runtime

    def framework(self, subject: Subject) -> str | None:
        """The framework that the request's image is made for; None where nobody knows."""
        return subject.job.environment.framework

    def images(self, subject: Subject) -> Iterator[tuple[str, Path]]:
        """Every image that the user names, and where; not those that the catalogue finds."""
        given = subject.job.environment.image
        name = given.of(self.target) if given is not None else None
        if name is not None:
            yield name, IMAGE

    def locate(self, subject: Subject, path: Path) -> Path:
        """Where a part of the job is written that the request has: its own place, or that in the overrides."""
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
    """What the rules look at: the job, the target with its account settings, the plan, and the user's files."""

    job: TrainingJob
    where: Where
    target: Any
    """The settings of `where`."""
    view: RequestView
    account: Any
    plan: Plan
    tree: Tree
    processing: ProcessingJob | None = None
    """The job as it was written, where it is a processing job; `job` is what it shares with a training job."""

    @cached_property
    def effective(self) -> TrainingJob:
        """The job as its request really has it, with what the user's overrides make of it: counts, types, variables
        and the distribution are looked at here. A job that cannot be compiled has no request to look at."""
        if not self.view.overrides(self) or not self.plan.request:
            return self.job
        return self.job.model_copy(update=self.view.change(self))
