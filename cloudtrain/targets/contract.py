"""The interface of a target. `Target` is pure; only `Service` uses SDKs, commands and sockets.

`docs/development/adding-a-target.md` walks through a complete target. The contract suite in
`tests/targets/` tests every service against the numbered rules of the class `Service`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from cloudtrain.errors import UsageError
from cloudtrain.machines.contents import Contents as Contents  # targets take it from here
from cloudtrain.system.plugins import ability

if TYPE_CHECKING:
    from cloudtrain.code.tree import Tree
    from cloudtrain.job.processing import AnyJob, ProcessingJob
    from cloudtrain.job.sweep import Objective, Sweep
    from cloudtrain.job.training import TrainingJob
    from cloudtrain.plans.plan import CompileContext, Finding, Plan, Upload
    from cloudtrain.plans.progress import (
        ListedRun,
        LogLine,
        OnStatus,
        QueuedRun,
        RunStatus,
        Trial,
    )
    from cloudtrain.plans.states import RunRef
    from cloudtrain.rules.engine import Reading
    from cloudtrain.runtime.hangs.verdict import Look
    from cloudtrain.signals.log import Log, LogBatch
    from cloudtrain.signals.readers import Scalar
    from cloudtrain.targets.adoption import Adopter, BatchSettings, Original
    from cloudtrain.targets.inside import ExecRequest, Session
    from cloudtrain.targets.settings import TargetSettings


ByteProgress = Callable[[int, int], None]
"""Called with the number of uploaded bytes so far, and the total number of bytes."""


class BundleWriter(Protocol):
    """The user's code, which can be written as an archive when a service needs it."""

    @property
    def sha256(self) -> str:
        """Return the hash of the content. Targets store the archive under this hash."""
        ...

    def write(self, path: Path) -> None:
        """Write the archive atomically: `path` either holds the whole archive or does not exist."""


class Account(Protocol):
    """The account that a target uses, such as a region or a workspace, as this machine's files and
    variables set it."""

    @property
    def place(self) -> str:
        """Return the middle part of the references of runs: `eu-west-1` in
        `sagemaker://eu-west-1/name`."""
        ...


class Unasked(NamedTuple):
    """Why a target is not asked about a job, and what to type so that it is."""

    why: str
    hint: str


class OwnMetrics(NamedTuple):
    """What a service itself knows of a run's metrics.

    Attributes:
        values: new values, those of one metric in order.
        mark: up to where they are known, as JSON.
        patterns: the regular expressions of the job's metrics, for a run that was submitted from
            elsewhere.
    """

    values: Sequence[Scalar] = ()
    mark: Any = None
    patterns: Mapping[str, str] = MappingProxyType({})


class Service(Protocol):
    """Talks to one target. `Target.service` returns a service, which makes no request until a
    method is called.

    Every service follows these rules:

    1. `submit` sends exactly `plan.request`. The caller has checked that the target has no run of
       that name. With `again`, an earlier request of this submission may have arrived; even so,
       there must be only one run. If an unrelated run of that name exists, `submit` raises
       `NameTaken`. After an error in `submit`, this process or a later one may call `has`, which
       returns whether the run exists, and `withdraw`, which makes sure that the run never comes
       into existence.
    2. Every method that takes a reference raises `RunNotFound` for an unknown run.
    3. `stop` is idempotent and returns at once; a finished run stays as it is.
    4. `logs` of a finished run yields every line and ends. With `follow`, it ends after the run's
       last line. Even after a lost connection, no line is missing or repeated. Every process's
       output can be read.
    5. `status` maps every state of the provider to a `RunState`; a failed run has a reason.
    6. Throttled requests and lost connections are retried with backoff; other failures raise a
       `TargetError`.
    7. No method prints or asks the user.

    A subclass overrides `check` and `unasked` if the target has an account, and `withdraw` if an
    interrupted submission can still create a run.
    """

    in_flight: float
    """Seconds after which an interrupted request can no longer arrive. 0 if `submit` never leaves a
    request in transit."""

    names_are_unique: bool
    """Whether the target refuses a second run of the same name. If so, a request may be sent again
    while the first request can still arrive."""

    def check(self, job: TrainingJob, settings: Any, plan: Plan) -> list[Finding]:
        """Return the findings of the checks that ask the target, for example about a role, quota or
        partition. For a target without an account, return an empty list.

        Called before a submit and by `cloudtrain check`, but not for a plan. If the user lacks the
        permission for a check, the method returns a warning instead of its result. For a processing
        job, `job` holds the fields that processing jobs share with training jobs.
        """
        return []

    def unasked(self, settings: Any) -> Unasked | None:
        """Return what the settings or this machine lack for `check`, such as credentials; None if
        they lack nothing. Uses no network."""
        return None

    def upload(
        self, plan: Plan, bundle: BundleWriter, *, on_bytes: ByteProgress | None = None
    ) -> bool:
        """Upload the bundle. Return False if the target already has it. `on_bytes` may be called
        from other threads."""
        ...

    def submit(self, plan: Plan, *, again: bool = False) -> RunRef:
        """Send the request. After this call, the run exists. `again`: an earlier request of this
        submission may have arrived."""
        ...

    def has(self, ref: RunRef) -> bool:
        """Return whether the target has this run, submitted by this user.

        The answer decides whether an interrupted submission is completed or forgotten.

        Raises:
            NameTaken: the target has a run of that name from another submitter.
            TargetError: the target does not answer.
        """
        ...

    def withdraw(self, ref: RunRef) -> bool:
        """Make sure that a submission whose process died never creates a run. Return False if the
        run already exists.

        Called only when an earlier request can no longer arrive (see `in_flight`). Raises the same
        errors as `has`.
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
        on_status: OnStatus = None,
    ) -> Iterator[LogLine]:
        """Yield the output lines so far, of one rank, of one instance or of all. With `follow`, go
        on until the run ends."""
        ...

    def journal_folder(self, ref: RunRef) -> str | None:
        """Return the folder with the run's journal (`cloudtrain/signals/journal.py`). None if there
        is none on this machine: then the output is read line by line with `logs`."""
        return None

    def metrics_folder(self, ref: RunRef, cache: Path) -> Path | None:
        """Return the folder with the run's metrics files. If they are on another machine, copy what
        is new into the folder `cache` first. None if the target keeps none: then the metrics are
        read from the log."""
        return None

    def log_after(self, ref: RunRef, mark: Any) -> Log[LogLine] | Log[LogBatch] | None:
        """Return the output of a run after the `mark` at which an earlier reading stopped; None is
        the beginning. Without this method, `logs` is read from the beginning each time."""
        return None

    def own_metrics(self, ref: RunRef, mark: Any) -> OwnMetrics:
        """Return the metrics that the service itself keeps of a run, such as in its own tracking
        server, after the `mark` of an earlier call; None is the beginning."""
        return OwnMetrics()

    def stop(self, ref: RunRef) -> None:
        """Ask the run to save and exit."""

    def stacks(self, ref: RunRef) -> list[Look]:
        """Return where each rank of a running run is in its code, and how much it works. Raises
        `UsageError` if the run is not running, or the target cannot tell."""
        raise UsageError(
            f"the target of `{ref.name}` shows no stacks",
            hint=f"a rank that hangs is named in the log: `cloudtrain logs {ref.name}`",
            code="CT967",
        )

    def enter(self, ref: RunRef, asked: ExecRequest) -> Session:
        """Return the process of this machine that runs a command inside a run that has started, or
        forwards a port of it.

        Raises:
            NotOpen: the run was sent without what is needed; the hint says what to set.
            UsageError: the run has no such rank or instance, or this machine lacks a program.
        """
        message = f"the target of `{ref.name}` runs no commands inside a run"
        raise UsageError(
            message, hint=f"`cloudtrain logs {ref.name}` shows its output", code="CT957"
        )

    def runs(self, place: str) -> Iterator[ListedRun]:
        """Yield the runs of all users at `place`, newest first. Each page of runs is fetched only
        when it is needed."""
        ...

    def code(self, ref: RunRef, upload: Upload, scratch: Path) -> Iterator[Path]:
        """Yield local folders that hold the run's code or parts of it; none if nothing is left.
        Folders that need no download come first.

        Code from `upload`, the uploaded bundle, is copied into a folder below `scratch`. Files in a
        folder may have changed since the run, so the caller compares hashes.

        Raises:
            TargetError: the target does not answer.
        """
        return iter(())

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        """Copy the files that the run wrote to `path`: `model/`, `outputs/NAME`, `checkpoint/`,
        `logs/`, or an empty path for all."""
        ...


@runtime_checkable
class KeepsQueue(Protocol):
    """A service with cloudtrain's own queue, for a target that has no queue. The target's settings
    have the fields `queue` and `priority`.

    A waiting run has the state `queued`, and its status contains its position in the queue.
    """

    def queue(self) -> list[QueuedRun]:
        """Return the started runs of the queue, then the waiting runs, both in queue order."""
        ...

    def move(self, ref: RunRef, *, before: RunRef | None = None, last: bool = False) -> None:
        """Move a waiting run before the run `before`, to the front (`before` is None), or to the
        end (`last`).

        Raises:
            UsageError: one of the two runs is not waiting.
        """

    def drop(self, ref: RunRef) -> None:
        """Stop a waiting run. A run that has started is never stopped.

        Raises:
            UsageError: the run is not waiting.
        """


@runtime_checkable
class PinsVersions(Protocol):
    """A service of a target whose jobs can refer to assets by label, such as `NAME@latest`. A label
    can later mean another version."""

    def pin(self, job: AnyJob, settings: Any) -> AnyJob:
        """Return the job with each label replaced by its current version. Return the job itself if
        it has no labels.

        Raises:
            TargetError: the target does not answer, or has no such label.
            UsageError: the target cannot look up a label of this form.
        """
        ...


class Tuner(Service, Protocol):
    """Talks to a target's own tuner. Each run is a sweep."""

    def trials(self, ref: RunRef) -> list[Trial]:
        """Return the trials that the tuner has started, sorted by number."""
        ...

    def objective(self, ref: RunRef) -> Objective | None:
        """Return the metric that the sweep optimises; None if the sweep runs every combination."""

    def continued(
        self, request: Mapping[str, Any], name: str, trials: int, started: int
    ) -> dict[str, Any]:
        """Return the request for a new sweep that continues the sweep `name` with `trials` more
        trials. Pure.

        Args:
            request: the request of the sweep `name`.
            started: the number of trials that the sweep `name` has started.

        Raises:
            UsageError: the tuner cannot continue a sweep; the hint names an alternative (`CT064`).
        """
        hint = (
            "submit a sweep with `driver: cloudtrain`, which can be continued, or with "
            f"`trials: {started + trials}`"
        )
        raise UsageError(f"the tuner of `{name}` cannot continue a sweep", hint=hint, code="CT064")


# The parts of targets: abilities that a target has or not. Each is a function or a class, which is
# called as its type says.


@ability("data")
class DataPlaces(Protocol):
    """Chooses where the target's storage keeps data of this machine."""

    def __call__(
        self, settings: Any, account: Any, sha256: str, name: str, /, *, is_file: bool
    ) -> tuple[str, str]:
        """Return the storage folder to upload the data `name` to, whose hash is `sha256`, and the
        path that the input then gets: the folder, or with `is_file` the file in it."""
        ...


@ability("settle")
class SettingsChooser(Protocol):
    """Chooses settings that depend on the job's files."""

    def __call__(self, job: AnyJob, tree: Tree, settings: Any, /) -> TargetSettings:
        """Return the settings for this job: `settings` itself if there is nothing to choose."""
        ...


@ability("absolute")
class PathResolver(Protocol):
    """Makes settings independent of the working directory."""

    def __call__(self, settings: Any, environ: Mapping[str, str], cwd: Path, /) -> TargetSettings:
        """Return the settings with absolute paths in place of relative ones and of names such as
        `conda:NAME`. Makes no network request."""
        ...


@ability("emulate")
class Emulator(Protocol):
    """Compiles a job to a local run that emulates the target."""

    def __call__(self, job: TrainingJob, settings: Any, context: CompileContext, /) -> Plan:
        """Return the plan of the local run. `settings` are those of the local target.

        Raises:
            JobError: the run cannot be emulated; the hint names an alternative.
        """
        ...


@ability("sweep")
class SweepCompiler(Protocol):
    """Compiles a sweep for the target's own tuner. A target with this part has a `TunerMaker`, and
    the other way round."""

    def __call__(self, sweep: Sweep, settings: Any, context: CompileContext, /) -> Plan:
        """Return the plan with the request to the tuner. `sweep.job` is the job of the first trial.
        Pure, like `Target.compile`.

        Raises:
            JobError: the tuner cannot run the sweep (CT061).
        """
        ...


@ability("tuner")
class TunerMaker(Protocol):
    """Makes the service for the target's own tuner."""

    def __call__(self, environ: Mapping[str, str], /) -> Tuner:
        """Return the service, which makes no request until a method is called."""
        ...


@ability("adopt")
class AdopterMaker(Protocol):
    """Makes the object with which `cloudtrain adopt` converts the service's own requests to
    jobs."""

    def __call__(self) -> Adopter:
        """Return the adopter."""
        ...


@ability("sent_files")
class CodeLister(Protocol):
    """Lists the files of a code folder that the service's own tools send. Without this part, they
    are all files in the folder."""

    def __call__(self, original: Original, folder: Path, /) -> Iterator[str]:
        """Yield the paths below `folder`, the original's code. The path of an empty folder that is
        sent ends with a slash.

        Raises:
            CloudtrainError, OSError: a file cannot be sent, such as a link to nothing.
        """
        ...


@ability("fetch")
class OriginalFetcher(Protocol):
    """Reads a job of the service for `cloudtrain adopt`."""

    def __call__(
        self, place: str, name: str, settings: Any, environ: Mapping[str, str], /
    ) -> Original:
        """Return the job `name` of the service, with its code if it can be read. `place` is the
        middle part of the job's reference; `settings` supply what it lacks."""
        ...


@ability("batch")
class BatchReader(Protocol):
    """Reads the options of a batch script."""

    def __call__(self, options: Mapping[str, str], setup: Sequence[str], /) -> BatchSettings | None:
        """Return the settings of a batch script, from its options by long name and the lines before
        the launch; None for scripts of other tools."""


@ability("container")
class ContainerReader(Protocol):
    """Reads the options of the command which starts a batch job's processes."""

    def __call__(self, options: Mapping[str, str], /) -> BatchSettings | None:
        """Return the settings with the image that the command names; None if it names none."""


@ability("folder")
class RunFolders(Protocol):
    """Knows the folders of runs on this machine."""

    def __call__(self, run_name: str, state_dir: Path, /) -> Path:
        """Return the run's folder."""
        ...


@ability("files")
class WorkingFiles(Protocol):
    """Knows the working folders of scripts on this machine."""

    def __call__(self, run_name: str, state_dir: Path, /) -> dict[str, Path]:
        """Return the files that the script wrote into its working folder, by relative path."""
        ...


@ability("examine")
class AccountExaminer(Protocol):
    """Describes the account for `cloudtrain doctor`."""

    def __call__(self, settings: Any, account: Any, /) -> str | None:
        """Return the line about the account, or None."""


class TargetFacts(NamedTuple):
    """What job files, the JSON Schema, checks and reports need to know of a target. All have a
    default."""

    is_paid: bool = True
    """Whether a provider rents out the job's machines by the hour."""
    place_example: str = ""
    """An example of a data path on this target, such as `s3://bucket/train`."""
    place_help: str = ""
    """A description of data paths on this target. The JSON Schema shows this text."""
    place_prefixes: tuple[str, ...] = ()
    """Prefixes that data paths have only on this target, such as `s3://`."""
    place_aliases: tuple[str, ...] = ()
    """Names that other tools use for the field with a data path on this target, such as
    `s3_uri`."""
    emulated_places: str = ""
    """The prefix of made-up data paths in an emulation, for data that is only on this machine:
    `s3://emulated`."""
    environment_help: str = ""
    """A description of `environment.NAME`; empty if the target has no named environments."""
    overrides_help: str = "Merged last into the request."
    """A description of `NAME_overrides`."""
    secrets: Mapping[str, str] = MappingProxyType(
        {"env": "env:NAME", "file": "file:~/.secrets/NAME"}
    )
    """The schemes of `environment.secrets` that a job on this target can read, each with an example
    that contains `NAME`. Hints show the first example."""
    has_secrets_here: bool = False
    """Whether the job reads its secrets on this machine, so that cloudtrain can report a missing
    secret before the start."""
    keeps_literals: bool = False
    """Whether an input with a plain `value` stays an input in the request. Otherwise references to
    it are replaced by the value."""
    waits_for_runs: bool = False
    """Whether a run itself can wait for the runs in `CompileContext.after`, whose outputs it
    reads."""
    locating_settings: tuple[str, ...] = ()
    """The settings without which the target's runs cannot be listed, such as `region`."""
    saved_folders: tuple[str, ...] = ()
    """The folders in the script's working folder that the service saves after the run."""
    asked: str = ""
    """What `Service.check` asks the target about, such as `the role and the quota`; empty if there
    is nothing to ask."""
    plan_formats: tuple[str, ...] = ()
    """Formats of a plan for the target's own tools: the names in `Plan.forms`, which the part
    `export` makes."""
    mlflow_plugin: tuple[str, str] | None = None
    """The scheme of tracking URIs of the service, and the package that MLflow needs for them."""
    extras: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """Extras of the package, each with the packages that it installs: `{"EXTRA": ("its-sdk",)}`."""


class Target(ABC):
    """A service or machine that runs jobs: data, and the functions `account`, `compile` and
    `service`. Importing a target is fast, because only its service imports SDKs.

    Each subclass is listed in the entry-point group `cloudtrain.targets`. Its name then works in
    job files (`inputs.train.NAME`, `NAME_overrides`), in `cloudtrain.toml`, in the JSON Schema, and
    in every command.

    `parts` maps an ability to `module:name`, or for rules to modules; they are imported on first
    use. A target without an ability leaves it out. Each ability but the rules has a type, which
    says what the part is called with. `cloudtrain.system.plugins.part` returns the part of a type.

        rules           modules, separated by spaces, that register rules on import
        training_rules  the same, for rules that apply only to training jobs
        online          the same, for the rules that `Service.check` reports
        table           the `InstanceTable` of the target's instance types
                        (`cloudtrain/machines/table.py`)
        contents        `ContentsReader` (`cloudtrain/machines/contents.py`)
        forms, export   `PlanForms` and `PlanExports` (`cloudtrain/plans/plan.py`)
        path            `PathCheck` (`cloudtrain/rules/values.py`)

    The types of the other abilities stand above in this module: `data`, `settle`, `absolute`,
    `emulate`, `sweep`, `tuner`, `adopt`, `fetch`, `batch`, `container`, `folder`, `files`
    and `examine`.
    """

    name: ClassVar[str]
    """The entry point's name: lower-case letters, digits and underscores."""
    title: ClassVar[str]
    """The name shown to users, such as `SageMaker`."""
    prefix: ClassVar[str]
    """The two capital letters at the beginning of the codes of the target's rules."""
    settings: ClassVar[type[TargetSettings]]
    """The model of the table `[NAME]` in `cloudtrain.toml`."""
    order: ClassVar[int] = 100
    """Position among the targets in lists. Targets with equal numbers are sorted by name."""
    facts: ClassVar[TargetFacts] = TargetFacts()
    parts: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def account(
        self, settings: Any, *, environ: Mapping[str, str], state_dir: Path, cwd: Path
    ) -> Account:
        """Return the account that `compile` needs in addition to the settings.

        This method reads only files and variables of this machine. `Service.check` makes network
        requests.

        Raises:
            SettingsError: a settings file is wrong, or another user may have written it.
        """

    @abstractmethod
    def compile(self, job: AnyJob, settings: Any, context: CompileContext) -> Plan:
        """Return the plan with its `place` and its `outputs`, without findings.

        Pure: the same job, settings and context give the same request, byte for byte.

        Raises:
            JobError: the job asks for something that the target lacks; the hint names an
                alternative.
            TargetUnavailable: this machine cannot use the target.
        """

    @abstractmethod
    def service(self, *, environ: Mapping[str, str], state_dir: Path) -> Service:
        """Return the service. It imports its SDKs on first use."""

    def read(
        self,
        job: TrainingJob,
        settings: Any,
        account: Any,
        plan: Plan,
        processing: ProcessingJob | None = None,
    ) -> Reading:
        """Return what the finished request of `plan` says, for rules. The default reads everything
        from the job."""
        from cloudtrain.rules.engine import Reading

        return Reading(self.name, job, account, plan, processing)
