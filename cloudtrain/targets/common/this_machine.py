"""This machine, where jobs run for themselves and as other targets would run them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from cloudtrain.core.plan import Bundle, CompileContext, Machine, Plan, Upload
from cloudtrain.core.processes import Process
from cloudtrain.core.targets import DEFAULT_TARGET
from cloudtrain.launch.specification import LaunchSpecification


class LocalAccount(NamedTuple):
    """The local target's account settings: where its runs live, and what it runs them with. Absolute paths."""

    state_dir: str
    python: str
    machine: Machine
    host: str = "localhost"
    mpirun: str | None = None
    loopback: str = "lo"
    """The name of the network interface that only this machine reaches."""
    interpreter: tuple[str, str] = ("", "")
    """The interpreter of the settings, and the file that it leads to; empty where no environment is built on it."""
    emulated: Any = None
    """The settings of the target that is emulated; None where there are none."""

    @property
    def place(self) -> str:
        """Where runs are: the middle of their references."""
        return self.host

    def run_dir(self, run_name: str) -> str:
        """The folder of a run."""
        return f"{self.state_dir}/runs/{run_name}"

    def archive(self, bundle: Bundle) -> str:
        """Where the user's code lies."""
        return f"{self.state_dir}/bundles/{bundle.sha256}/sourcedir.tar.gz"


class LocalSettings(Protocol):
    """What an emulation asks of the local target's settings."""

    @property
    def python(self) -> str | None:
        """The interpreter that runs the script."""
        ...

    @property
    def instance_count(self) -> int | None:
        """Simulated instances, instead of the job's count scaled down to this machine."""
        ...

    @property
    def processes_per_instance(self) -> int | None:
        """Processes per simulated instance, instead of the job's count scaled down to this machine."""
        ...

    @property
    def grace_period(self) -> int:
        """Seconds between SIGTERM and SIGKILL."""
        ...

    @property
    def emulate(self) -> str | None:
        """The target as which the job runs."""
        ...


class LocalPlan(Plan):
    """A job compiled for this machine. `request` is the launch specification."""

    @classmethod
    def of(
        cls,
        specification: LaunchSpecification,
        job_name: str,
        context: CompileContext,
        *,
        processes: Sequence[Process],
        summary: Iterable[tuple[str, str]],
        notes: Iterable[str] = (),
    ) -> LocalPlan:
        """The plan that sends this specification. `context.account` is a `LocalAccount`."""
        bundle, archive = context.bundle, specification.code.archive
        return cls(
            target=DEFAULT_TARGET,
            run_name=specification.name,
            job_name=job_name,
            request=specification.to_json(),
            uploads=(Upload("code", bundle.sha256, archive, bundle.size, bundle.file_count),),
            processes=processes,
            summary=tuple(summary),
            notes=tuple(notes),
            place=context.account.place,
        )

    @cached_property
    def specification(self) -> LaunchSpecification:
        """The request, typed."""
        return LaunchSpecification.from_json(self.request)

    @property
    def outputs(self) -> dict[str, str]:
        """The folders that the run will write. Of several that are one together, that of the first instance."""
        return {name: str(folders[0]) for name, folders in self.specification.downloads().items() if name != "logs"}
