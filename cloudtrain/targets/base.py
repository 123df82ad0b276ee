"""The interface of a target. `Target` is pure; only `Service` uses SDKs, commands and sockets.

`docs/adding-a-target.md` walks through a complete target. The contract suite in `tests/targets/` tests every service
against the promises below.
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
"""Receives how many bytes of an upload have arrived, and the total."""


class BundleWriter(Protocol):
    """The user's code, ready to be written as an archive when a service needs it."""

    @property
    def sha256(self) -> str:
        """Return the hash of the content, which is also the archive's name."""
        ...

    def write(self, path: Path) -> None:
        """Write the archive atomically: `path` either holds the whole archive or does not exist."""
        ...


class Account(Protocol):
    """What a target needs to know beside its settings, as far as this machine knows it."""

    @property
    def place(self) -> str:
        """Return where runs are. This is the middle part of their references: `eu-west-1` of
        `sagemaker://eu-west-1/name`."""
        ...


class Service(Protocol):
    """Talks to one target. `Target.service` makes it; it does nothing until it is used.

    1. `submit` sends exactly `plan.request`. The target had no run of that name a moment before, unless `again` says
       that an earlier request of this submission may have arrived; then one run is left. If an unrelated run of that
       name exists, `submit` raises `NameTaken`. When `submit` raises, `has` tells whether the run exists, in this
       process or in a later one, and `withdraw` makes sure that it never will.
    2. An unknown run is `RunNotFound`, in every method that takes a reference.
    3. `stop` is idempotent and returns at once; a finished run stays as it is.
    4. `logs` of a finished run yields every line and ends. While following, it ends after the run's last line. Even a
    lost connection neither loses nor repeats a line. Every process's output can be read.
    5. `status` maps every state of the provider to a `RunState`; a failed run has a reason.
    6. Throttling and lost connections are retried with backoff; what cannot be retried is a `TargetError`.
    7. No method prints or asks the user.

    A subclass overrides `check` and `can_check` where the target has an account, and `withdraw` where an interrupted
    submission can still create a run.
    """

    in_flight: float
    """Seconds after which an interrupted request has either arrived or never will. 0 where `submit` leaves no request
    on its way."""

    names_are_unique: bool
    """Whether the target refuses a second run of a name. Then a request may be sent again while the first one may still
    arrive."""

    def check(self, job: TrainingJob, settings: Any, plan: Plan) -> list[Finding]:
        """Return the findings of checks that ask the target: role, quota, workspace, partition. Empty for targets
        without an account.

        Called before a submit and by `cloudtrain check`, never by a plan. What the user may not read becomes a warning.
        A processing job is passed as the part that it shares with a training job.
        """
        return []

    def can_check(self, settings: Any) -> bool:
        """Return whether `check` has what it needs to ask the target, as far as this machine can tell."""
        return True

    def upload(self, plan: Plan, bundle: BundleWriter, *, on_bytes: ByteProgress | None = None) -> bool:
        """Put the bundle in place. Return False when it is already there. `on_bytes` may be called from other
        threads."""
        ...

    def submit(self, plan: Plan, *, again: bool = False) -> RunRef:
        """Send the request. The run exists when this returns."""
        ...

    def has(self, ref: RunRef) -> bool:
        """Return whether the target has this run, submitted by us.

        The answer decides whether an interrupted submission is completed or forgotten.

        Raises:
            NameTaken: the target has a run of that name from another submitter.
            TargetError: the target cannot be asked.
        """
        ...

    def withdraw(self, ref: RunRef) -> bool:
        """Make sure that a submission whose process died creates no run any more. Return False where the run exists.

        Called when no request can be on its way (`in_flight`). Raises the same errors as `has`.
        """
        return not self.has(ref)

    def status(self, ref: RunRef) -> RunStatus:
        """Return the status of the run."""
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
        """Yield the output so far, line by line, of one rank, one instance or all. With `follow`, go on until the run
        ends."""
        ...

    def stop(self, ref: RunRef) -> None:
        """Ask the run to save and exit."""
        ...

    def runs(self, place: str) -> Iterator[ListedRun]:
        """Yield the runs that the target has at a place, whoever submitted them, newest first. They are fetched as they
        are taken."""
        ...

    def code(self, ref: RunRef, upload: Upload, scratch: Path) -> Iterator[Path]:
        """Yield folders that hold the run's code, as far as it still exists, the quickest to reach first.

        Fetched code is put below `scratch`. A file may have been changed since, so the caller compares hashes.

        Raises:
            TargetError: the target cannot be asked.
        """
        return iter(())

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        """Copy what the run wrote under `path` (`model/`, `outputs/NAME`, `checkpoint/`, `logs/`, or `` for all)."""
        ...


@runtime_checkable
class KeepsQueue(Protocol):
    """A service with cloudtrain's own queue, for a target without a queue. Its settings have `queue` and `priority`.

    A waiting run is `queued`, and its status tells its position.
    """

    def queue(self) -> list[QueuedRun]:
        """Return the runs that hold a place, then the waiting runs, both in queue order."""
        ...

    def move(self, ref: RunRef, *, before: RunRef | None = None, last: bool = False) -> None:
        """Move a waiting run before another one. Without another one, move it to the front, or to the end.

        Raises:
            UsageError: one of the two runs does not wait.
        """
        ...

    def drop(self, ref: RunRef) -> None:
        """Stop a waiting run. A run that has started is never stopped.

        Raises:
            UsageError: the run does not wait.
        """
        ...


@runtime_checkable
class PinsVersions(Protocol):
    """A service of a target whose jobs name things by labels (`NAME@latest`), which mean another version later."""

    def pin(self, job: AnyJob, settings: Any) -> AnyJob:
        """Return the job with the versions that its labels mean now; the job itself if it has no labels.

        Raises:
            TargetError: the target cannot be asked, or a label means nothing.
            UsageError: a label cannot be asked for.
        """
        ...


class Tuner(Service, Protocol):
    """Talks to a target's own tuner. A run is a sweep; the other methods are those of every service."""

    def trials(self, ref: RunRef) -> list[Trial]:
        """Return the trials that the tuner has started, by number."""
        ...

    def objective(self, ref: RunRef) -> Objective | None:
        """Return what the sweep optimises; None where it runs every combination."""
        ...

    def continued(self, request: Mapping[str, Any], name: str, trials: int, started: int) -> dict[str, Any]:
        """Return the request of a sweep that continues the sweep `name`, which had this request and started that many
        trials. Pure. A tuner without a warm start has none.

        Raises:
            UsageError: the tuner cannot go on with it, with the alternative (`CT064`).
        """
        hint = f"submit a sweep with `driver: cloudtrain`, which goes on; or one with `trials: {started + trials}`"
        raise UsageError(f"the tuner that drives `{name}` does not continue a sweep", hint=hint, code="CT064")


class Target(ABC):
    """One place where jobs run. Importing it costs nothing, because only its service imports SDKs.

    Each subclass is listed in the entry-point group `cloudtrain.targets`. Its name then works in job files
    (`inputs.train.NAME`, `NAME_overrides`), in `cloudtrain.toml`, in the JSON Schema, and in every command.
    """

    name: ClassVar[str]
    """The entry point's name: lower-case letters, digits and underscores."""
    title: ClassVar[str]
    """The name shown to people: `SageMaker`."""
    settings_model: ClassVar[type[TargetSettings]]
    """The table `[NAME]` of `cloudtrain.toml`."""
    rule_prefix: ClassVar[str]
    """Two capital letters that begin the codes of the target's rules."""
    rule_modules: ClassVar[tuple[str, ...]] = ()
    """Modules that register rules when they are imported. They are imported with the first job for the target."""
    online_rule_modules: ClassVar[tuple[str, ...]] = ()
    """Modules with the rules that `Service.check` reports."""
    only_training_rule_modules: ClassVar[tuple[str, ...]] = ()
    """The part of `rule_modules` that checks only requests of training jobs."""
    extras: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Extras of the package, each with the distributions that it installs: `{"EXTRA": ("its-sdk",)}`."""

    order: ClassVar[int] = 100
    """Position among the targets in lists. Targets with equal numbers are sorted by name."""
    plan_formats: ClassVar[tuple[str, ...]] = ()
    """Forms in which a plan can be printed for the target's own tools: the names of `Plan.forms`."""
    is_paid: ClassVar[bool] = True
    """Whether a provider rents out the job's machines by the hour."""
    place_example: ClassVar[str] = ""
    """An example of a place of data on this target: `s3://bucket/train`."""
    place_help: ClassVar[str] = ""
    """What a place of data can be. The JSON Schema shows this text."""
    place_prefixes: ClassVar[tuple[str, ...]] = ()
    """Prefixes of places of data that certainly belong to this target."""
    place_aliases: ClassVar[tuple[str, ...]] = ()
    """Other tools' names of the field for a place on this target: `s3_uri`."""
    environment_help: ClassVar[str] = ""
    """What `environment.NAME` can be; empty where the target keeps no named environments."""
    overrides_help: ClassVar[str] = "Merged last into the request."
    secret_places: ClassVar[Mapping[str, str]] = {"env": "env:NAME", "file": "file:~/.secrets/NAME"}
    """Where `environment.secrets` can find values inside a job: the schemes that `cloudtrain.runtime` reads there, each
    with an example that contains `NAME`. Hints show the first one."""
    has_secrets_here: ClassVar[bool] = False
    """Whether the job finds its secrets on this machine, so that a missing one is noticed before the start."""
    keeps_literals: ClassVar[bool] = False
    """Whether an input with a plain `value` stays an input of the request. Otherwise its value goes into the
    arguments."""
    uploads_data: ClassVar[bool] = False
    """Whether an input's place may be a path of this machine (`./data`). Such a target implements `data_place`."""
    waits_for_runs: ClassVar[bool] = False
    """Whether a run itself waits for the runs that it reads from: `CompileContext.after`."""
    can_emulate: ClassVar[bool] = False
    """Whether `emulate` makes a plan for this machine."""
    emulated_places: ClassVar[str] = ""
    """Stands for the place of data that is only on this machine: `s3://emulated`."""

    has_tuner: ClassVar[bool] = False
    """Whether the target has its own tuner, through `compile_sweep` and `tuner`. Otherwise this machine drives a
    sweep."""

    exports: ClassVar[tuple[str, ...]] = ()
    """The methods of `core.exports` that its plans define."""

    def settings_here(self, settings: Any, *, environ: Mapping[str, str], cwd: Path) -> Any:
        """Return the settings after replacing names and relative paths that have a meaning only on this machine.

        Makes no network request.
        """
        return settings

    @abstractmethod
    def account(self, settings: Any, *, environ: Mapping[str, str], state_dir: Path, cwd: Path) -> Account:
        """Return what compile needs to know beside the settings.

        It reads this machine only; `Service.check` asks the network.

        Raises:
            SettingsError: a file that it reads is wrong, or may have been written by another user.
        """

    @abstractmethod
    def compile(self, job: AnyJob, settings: Any, context: CompileContext) -> Plan:
        """Return the plan with its `place` and its `outputs`, without findings.

        Pure: the same job, settings and context give the same request, byte for byte.

        Raises:
            JobError: the job asks for what the target lacks; the hint names the alternative.
            TargetUnavailable: the target cannot be used from here.
        """

    def compile_sweep(self, sweep: Sweep, settings: Any, context: CompileContext) -> Plan:
        """Return the plan of a sweep as the request of the target's own tuner. Only where `has_tuner`.

        Pure, as `compile`. `sweep.job` is the job of the first trial.

        Raises:
            JobError: the tuner cannot run the sweep (`CT061`, each with the alternative), or the target cannot run its
            trials.
        """
        raise AssertionError(f"{self.name} has no tuner")

    def tuner(self, *, environ: Mapping[str, str], state_dir: Path) -> Tuner:
        """Return the service for the target's own tuner. Only where `has_tuner`."""
        raise AssertionError(f"{self.name} has no tuner")

    @abstractmethod
    def service(self, *, environ: Mapping[str, str], state_dir: Path) -> Service:
        """Return the service. It imports its SDKs on first use."""

    def data_place(self, settings: Any, account: Any, sha256: str, name: str, *, is_file: bool) -> tuple[str, str]:
        """Return the folder that data of this machine is uploaded to, and the place that its input reads. Only where
        `uploads_data`.

        Args:
            sha256: hash of the content.
            name: name of the folder or the file.
        """
        raise AssertionError(f"{self.name} uploads no data")

    @property
    def instance_table(self) -> InstanceTable | None:
        """Return the target's instance types; None where the target has no table, as on this machine."""
        return None

    def request_view(self, settings: Any) -> RequestView:
        """Return what the rules for all targets can read from a request."""
        from cloudtrain.rules.subject import RequestView

        return RequestView(self.name)

    def refuse_path(self, path: str) -> str | None:
        """Return why this target cannot have a file of this name in the bundle: `whose path is too long`; None where it
        can."""
        from cloudtrain.bundle.findings import refuse_archive_path

        return refuse_archive_path(path)

    def emulate(self, job: TrainingJob, settings: Any, context: CompileContext) -> LocalPlan:
        """Return the plan of a job that runs on this machine as the target would run it. `settings` are the local
        target's.

        Raises:
            JobError: the job cannot run here in that way, with the alternative.
        """
        raise AssertionError(f"{self.name} does not emulate")

    def run_folder(self, run_name: str, state_dir: Path) -> Path | None:
        """Return the folder on this machine that holds all files of a run; None where the run is elsewhere."""
        return None

    def working_files(self, run_name: str, state_dir: Path) -> dict[str, Path]:
        """Return the files on this machine that the script wrote into its working folder, by their names there.

        Raises:
            TargetError: the run's folder is gone or damaged.
        """
        return {}

    def adopter(self) -> Adopter | None:
        """Return the reader of the service's own requests for `cloudtrain adopt`; None where the target has no such
        reader."""
        return None

    def fetch_original(self, place: str, name: str, settings: Any, environ: Mapping[str, str]) -> Original:
        """Return a job that the target has, for `cloudtrain adopt`, with its code as far as it can be read. `settings`
        are the target's, for what the place leaves open.

        Raises:
            UsageError: the target has no such job, or its jobs cannot be adopted this way.
            TargetError: the target cannot be asked.
        """
        hint = "adopt its description from a file: docs/adopting.md lists what can be adopted"
        raise UsageError(f"jobs of `{self.name}` cannot be fetched", hint=hint, code="CT975")

    def batch_settings(self, options: Mapping[str, str], setup: Sequence[str]) -> BatchSettings | None:
        """Return what a batch script for the target's own scheduler adds to the job, for `cloudtrain adopt`; None if
        the target has no such scripts.

        Args:
            options: of the script's directives, by their long names.
            setup: lines that come before the launch line and prepare it: modules, a virtual environment.
        """
        return None

    def draft_of_calls(self, calls: Sequence[StaticCall]) -> tuple[Draft, dict[str, str]] | None:
        """Return the draft of the first job that a script's calls create, and a map from each field whose value cannot
        be read from the text to its expression. Return None if no call creates a job of this target."""
        return None

    def examine(self, settings: Any, account: Any) -> str | None:
        """Return what `cloudtrain doctor` shows about the account: `workspace prod, from config.json`; None for
        nothing.

        Raises:
            CloudtrainError: the account has a problem.
        """
        return None
