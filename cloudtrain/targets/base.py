"""What a target promises. `Target` is pure; `Service` talks, and is the only user of SDKs, commands and sockets.

`docs/adding-a-target.md` walks through a whole one. The contract suite in `tests/targets/` holds every service to its
promises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from cloudtrain.core.states import ListedRun, LogLine, QueuedRun, RunRef, RunStatus
from cloudtrain.errors import UsageError

if TYPE_CHECKING:
    from cloudtrain.catalogue.instances import InstanceTable
    from cloudtrain.core.adoption import Adopter, BatchSettings, Draft, Original, StaticCall
    from cloudtrain.core.job import TrainingJob
    from cloudtrain.core.plan import CompileContext, Finding, Plan, Upload
    from cloudtrain.core.processing import AnyJob
    from cloudtrain.core.sweep import Objective, Sweep
    from cloudtrain.core.trial import Trial
    from cloudtrain.rules.subject import RequestView
    from cloudtrain.targets.common.this_machine import LocalPlan
    from cloudtrain.targets.settings import TargetSettings

ByteProgress = Callable[[int, int], None]
"""Told how many bytes of an upload are there, and of how many."""


class BundleWriter(Protocol):
    """The user's code, ready to be written as an archive when a service turns out to need it."""

    @property
    def sha256(self) -> str:
        """Hash of the content; the archive's name."""
        ...

    def write(self, path: Path) -> None:
        """Write the archive. Atomic: `path` either holds the whole archive or does not exist."""
        ...


class Account(Protocol):
    """What a target needs to know beside its settings, as far as this machine knows it."""

    @property
    def place(self) -> str:
        """Where runs are: the middle of their references, `eu-west-1` of `sagemaker://eu-west-1/name`."""
        ...


class Service(Protocol):
    """Talks to one target. Made by `Target.service`; does nothing until it is used.

    1. `submit` sends exactly `plan.request`. The target had no run of that name a moment before, unless `again` says
       that an earlier request of this submission may have arrived; then it leaves one run. A run that exists all the
       same is another one: `NameTaken`. When it raises, `has` tells whether the run exists, in this process or in a
       later one, and `withdraw` sees to it that it never will.
    2. An unknown run is `RunNotFound`, in every method that takes a reference.
    3. `stop` is idempotent and returns at once; a finished run stays as it is.
    4. `logs` of a finished run yields every line and ends. While following it ends when the run does, after the
       last line; it loses and repeats none, a lost connection included. Every process's output can be read.
    5. `status` maps every state of the provider to a `RunState`; a failed run has a reason.
    6. Throttling and lost connections are retried with backoff; what cannot be retried is a `TargetError`.
    7. No method prints, and none asks.

    A service that subclasses it writes `check` and `can_check` where there is an account, and `withdraw` where a run
    that is not there yet can still come to be.
    """

    in_flight: float
    """Seconds after which a request whose sender was interrupted has arrived, or never will; 0 where `submit` leaves
    nothing on its way."""

    names_are_unique: bool
    """Whether the target refuses a second run of a name, so that a request may be sent again while the first one may
    still arrive."""

    def check(self, job: TrainingJob, settings: Any, plan: Plan) -> list[Finding]:
        """Checks that ask the target: role, quota, workspace, partition. Empty for targets without an account.

        Called before a submit and by `cloudtrain check`, never by a plan. What may not be looked at is a warning.
        A processing job comes as what it shares with a training job.
        """
        return []

    def can_check(self, settings: Any) -> bool:
        """Whether `check` has what it needs to ask the target, as far as this machine alone can tell."""
        return True

    def upload(self, plan: Plan, bundle: BundleWriter, *, on_bytes: ByteProgress | None = None) -> bool:
        """Put the bundle in place; False when it was there already. `on_bytes` may be called from other threads."""
        ...

    def submit(self, plan: Plan, *, again: bool = False) -> RunRef:
        """Send the request. The run exists when this returns."""
        ...

    def has(self, ref: RunRef) -> bool:
        """Whether the target has that run of ours: how a broken submission is finished or forgotten.

        Raises:
            NameTaken: it has a run of that name that somebody else made.
            TargetError: it cannot be asked.
        """
        ...

    def withdraw(self, ref: RunRef) -> bool:
        """See to it that a submission whose process died makes no run any more; False where the run exists.

        Called when no request can be on its way (`in_flight`). Raises what `has` does.
        """
        return not self.has(ref)

    def status(self, ref: RunRef) -> RunStatus:
        """Where the run is now."""
        ...

    def logs(
        self,
        ref: RunRef,
        *,
        follow: bool = False,
        rank: int | None = None,
        instance: int | None = None,
        on_status: Callable[[RunStatus], None] | None = None,
    ) -> Iterator[LogLine]:
        """The output so far, line by line, of one rank, one instance or all; with `follow`, until the run ends."""
        ...

    def stop(self, ref: RunRef) -> None:
        """Ask the run to save and leave."""
        ...

    def runs(self, place: str) -> Iterator[ListedRun]:
        """The runs that the target has at a place, whoever made them, newest first; asked for as they are taken."""
        ...

    def code(self, ref: RunRef, upload: Upload, scratch: Path) -> Iterator[Path]:
        """Folders that hold the run's code, as far as it is still there, the quickest to reach first.

        What has to be fetched is put below `scratch`. A file in them may have been changed since: whoever asks compares
        hashes.

        Raises:
            TargetError: the target cannot be asked.
        """
        return iter(())

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        """Copy what the run wrote under `path` (`model/`, `outputs/NAME`, `checkpoint/`, `logs/`, or `` for all)."""
        ...


@runtime_checkable
class KeepsQueue(Protocol):
    """A service with a queue of cloudtrain's own, for a target without one. Its settings have `queue` and `priority`.

    A run that waits there is `queued`, and its status says its place.
    """

    def queue(self) -> list[QueuedRun]:
        """The runs that have what others wait for, then those that wait, in their order."""
        ...

    def move(self, ref: RunRef, *, before: RunRef | None = None, last: bool = False) -> None:
        """Put a run that waits before another one; without one first, or last.

        Raises:
            UsageError: one of the two does not wait.
        """
        ...

    def drop(self, ref: RunRef) -> None:
        """Stop a run that waits, and never one that has started.

        Raises:
            UsageError: it does not wait.
        """
        ...


@runtime_checkable
class PinsVersions(Protocol):
    """A service of a target whose jobs name things by labels (`NAME@latest`), which mean another version later."""

    def pin(self, job: AnyJob, settings: Any) -> AnyJob:
        """The job with the versions that its labels mean now; the job itself where it has none.

        Raises:
            TargetError: the target cannot be asked, or a label means nothing.
            UsageError: a label cannot be asked for.
        """
        ...


class Tuner(Service, Protocol):
    """Talks to a target's own tuner. A run is a sweep; its methods are those of every service."""

    def trials(self, ref: RunRef) -> list[Trial]:
        """The trials that the tuner has started, by number."""
        ...

    def objective(self, ref: RunRef) -> Objective | None:
        """What the sweep is after; None where it runs every combination."""
        ...

    def continued(self, request: Mapping[str, Any], name: str, trials: int, started: int) -> dict[str, Any]:
        """The request of the sweep that goes on after that of `name`, which had this request and started so many
        trials, with so many more. Pure. A tuner without a warm start has none.

        Raises:
            UsageError: the tuner cannot go on with it, with the alternative (`CT064`).
        """
        hint = f"submit a sweep with `driver: cloudtrain`, which goes on; or one with `trials: {started + trials}`"
        raise UsageError(f"the tuner that drives `{name}` does not continue a sweep", hint=hint, code="CT064")


class Target(ABC):
    """One place where jobs run. Importing it costs nothing: SDKs are its service's.

    A subclass is named in the entry-point group `cloudtrain.targets`; its name then works in job files
    (`inputs.train.NAME`, `NAME_overrides`), in `cloudtrain.toml`, in the JSON Schema, and in every command.
    """

    name: ClassVar[str]
    """The entry point's name: lower-case letters, digits and underscores."""
    title: ClassVar[str]
    """What people call it: `SageMaker`."""
    settings_model: ClassVar[type[TargetSettings]]
    """The table `[NAME]` of `cloudtrain.toml`."""
    rule_prefix: ClassVar[str]
    """Two capital letters with which the codes of its rules begin."""
    rule_modules: ClassVar[tuple[str, ...]] = ()
    """Modules that register rules when they are imported; imported with the first job for the target."""
    online_rule_modules: ClassVar[tuple[str, ...]] = ()
    """Modules with the rules that `Service.check` finds broken."""
    only_training_rule_modules: ClassVar[tuple[str, ...]] = ()
    """Those of `rule_modules` whose own checks look at requests of training jobs alone."""
    extras: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Extra of the package to the distributions that it brings: `{"EXTRA": ("its-sdk",)}`."""

    order: ClassVar[int] = 100
    """Where people see it among the targets; equal ones by name."""
    plan_formats: ClassVar[tuple[str, ...]] = ()
    """What a plan can be printed as for the target's own tools: the names of `Plan.forms`."""
    is_paid: ClassVar[bool] = True
    """Whether a job's machines and image are rented from a provider, by the hour."""
    place_example: ClassVar[str] = ""
    """How a place of data looks here: `s3://bucket/train`."""
    place_help: ClassVar[str] = ""
    """What a place of data can be; the JSON Schema shows it."""
    place_prefixes: ClassVar[tuple[str, ...]] = ()
    """With which a place of data begins that is certainly this target's."""
    place_aliases: ClassVar[tuple[str, ...]] = ()
    """What other tools call the field with a place on this target: `s3_uri`."""
    environment_help: ClassVar[str] = ""
    """What `environment.NAME` can be; empty where the target keeps no environments by name."""
    overrides_help: ClassVar[str] = "Merged last into the request."
    secret_places: ClassVar[Mapping[str, str]] = {"env": "env:NAME", "file": "file:~/.secrets/NAME"}
    """Where `environment.secrets` can find values inside a job: the schemes that `cloudtrain.runtime` reads there, the
    one for a hint first, each with an example that has `NAME` in it."""
    has_secrets_here: ClassVar[bool] = False
    """Whether the job finds its secrets on this machine, so that a missing one is seen before."""
    keeps_literals: ClassVar[bool] = False
    """Whether an input with a plain `value` stays an input of the request; it is put into the arguments otherwise."""
    uploads_data: ClassVar[bool] = False
    """Whether an input's place may be a path of this machine (`./data`), for which `data_place` is written."""
    waits_for_runs: ClassVar[bool] = False
    """Whether a run waits by itself for the runs that it reads from: `CompileContext.after`."""
    can_emulate: ClassVar[bool] = False
    """Whether `emulate` makes a plan for this machine."""
    emulated_places: ClassVar[str] = ""
    """`s3://emulated`: what stands there for the place of data that is only on this machine."""

    has_tuner: ClassVar[bool] = False
    """Whether the target has a tuner of its own, for which `compile_sweep` and `tuner` are written. A sweep is driven
    from this machine otherwise."""

    exports: ClassVar[tuple[str, ...]] = ()
    """The methods of `core.exports` that its plans define."""

    @abstractmethod
    def account(self, settings: Any, *, environ: Mapping[str, str], state_dir: Path, cwd: Path) -> Account:
        """What compile needs to know beside the settings.

        Looks at this machine only; what only the network knows is left to `Service.check`.

        Raises:
            SettingsError: a file that it reads is wrong, or can have been written by somebody else.
        """

    @abstractmethod
    def compile(self, job: AnyJob, settings: Any, context: CompileContext) -> Plan:
        """The plan with its `place` and its `outputs`, without findings.

        Pure: the same job, settings and context give the same request, byte for byte.

        Raises:
            JobError: the job asks for what the target lacks; the hint names the alternative.
            TargetUnavailable: the target cannot be used from here.
        """

    def compile_sweep(self, sweep: Sweep, settings: Any, context: CompileContext) -> Plan:
        """The plan of a sweep as the request of the target's own tuner. Only where `has_tuner`.

        Pure, as `compile`. `sweep.job` is the job of the first trial.

        Raises:
            JobError: the tuner cannot do it (`CT061`, each with the alternative), or no trial can run there.
        """
        raise AssertionError(f"{self.name} has no tuner")

    def tuner(self, *, environ: Mapping[str, str], state_dir: Path) -> Tuner:
        """What talks to the target's own tuner. Only where `has_tuner`."""
        raise AssertionError(f"{self.name} has no tuner")

    @abstractmethod
    def service(self, *, environ: Mapping[str, str], state_dir: Path) -> Service:
        """What talks to the target. Imports its SDKs when it is first used, and not before."""

    def data_place(self, settings: Any, account: Any, sha256: str, name: str, *, is_file: bool) -> tuple[str, str]:
        """The folder that data of this machine is uploaded to, and what its input reads. Only where `uploads_data`.

        Args:
            sha256: hash of the content.
            name: of the folder or the file.
        """
        raise AssertionError(f"{self.name} uploads no data")

    @property
    def instance_table(self) -> InstanceTable | None:
        """Its instance types; None where there is no table, as on this machine."""
        return None

    def request_view(self, settings: Any) -> RequestView:
        """What rules for all targets can read out of its requests."""
        from cloudtrain.rules.subject import RequestView

        return RequestView(self.name)

    def refuse_path(self, path: str) -> str | None:
        """Why a file of the bundle cannot have this name here: `whose path is too long`; None where it can."""
        from cloudtrain.bundle.findings import refuse_archive_path

        return refuse_archive_path(path)

    def emulate(self, job: TrainingJob, settings: Any, context: CompileContext) -> LocalPlan:
        """The plan of a job that runs on this machine as the target would run it. `settings` are the local target's.

        Raises:
            JobError: the job cannot run here in that way, with the alternative.
        """
        raise AssertionError(f"{self.name} does not emulate")

    def run_folder(self, run_name: str, state_dir: Path) -> Path | None:
        """The folder on this machine that holds everything of a run; None where the run is elsewhere."""
        return None

    def working_files(self, run_name: str, state_dir: Path) -> dict[str, Path]:
        """Files on this machine that the script wrote into its working folder, by their names there.

        Raises:
            TargetError: the run's folder is gone or damaged.
        """
        return {}

    def adopter(self) -> Adopter | None:
        """What reads requests of the target's own service for `cloudtrain adopt`; None where it cannot."""
        return None

    def fetch_original(self, place: str, name: str, settings: Any, environ: Mapping[str, str]) -> Original:
        """A job that the target has, for `cloudtrain adopt`, with its code as far as it can be read. `settings` are
        the target's, for what the place leaves open.

        Raises:
            UsageError: the target has no such job, or none of its jobs can be adopted like this.
            TargetError: it cannot be asked.
        """
        hint = "adopt its description from a file: docs/adopting.md lists what can be adopted"
        raise UsageError(f"jobs of `{self.name}` cannot be fetched", hint=hint, code="CT975")

    def batch_settings(self, options: Mapping[str, str], setup: Sequence[str]) -> BatchSettings | None:
        """What a batch script for the target's own scheduler says beside the job, for `cloudtrain adopt`; None where
        it takes none.

        Args:
            options: of the script's directives, by their long names.
            setup: lines that come before the launch line and prepare it: modules, a virtual environment.
        """
        return None

    def draft_of_calls(self, calls: Sequence[StaticCall]) -> tuple[Draft, dict[str, str]] | None:
        """The draft of the first job among the calls of a script, and what its text does not say: place to
        expression. None where no call makes a job of this target."""
        return None

    def examine(self, settings: Any, account: Any) -> str | None:
        """What `cloudtrain doctor` says about the account: `workspace prod, from config.json`; None for nothing.

        Raises:
            CloudtrainError: something is wrong with it.
        """
        return None
