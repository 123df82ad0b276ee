"""A run: one submission of a plan to any target."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from math import inf
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal, cast

from cloudtrain.documents import JsonMapping
from cloudtrain.errors import (
    CloudtrainError,
    RunNotFound,
    StoreError,
    TargetError,
    TargetUnreachable,
    UsageError,
)
from cloudtrain.job.sweep import Objective
from cloudtrain.lifecycle.detached.driven import ensure_sender
from cloudtrain.lifecycle.store.schema import open_store, read_store
from cloudtrain.lifecycle.store.store import RunRecord
from cloudtrain.lifecycle.submission.once import Submitted, Watch, find_service
from cloudtrain.plans.plan import Plan
from cloudtrain.plans.progress import ListedRun, LogLine, OnStatus, RunStatus
from cloudtrain.plans.states import CAPACITY, TRIAL, RunRef, RunState
from cloudtrain.plans.status import run_document
from cloudtrain.runtime.metrics_file import FOLDER
from cloudtrain.signals.curves import Curve, View, curves_of, plot
from cloudtrain.signals.log import JournalIndex, LogBatch, LogIndex
from cloudtrain.signals.main_metric import with_metrics
from cloudtrain.signals.notices import read_notices
from cloudtrain.signals.rows import (
    MetricFile,
    MetricRows,
    machine_rows,
    newest_machines,
    read_files,
)
from cloudtrain.system.files import FOUND, METRICS, folder_size, remove_folder
from cloudtrain.system.plugins import part
from cloudtrain.targets.common.services import log_batches
from cloudtrain.targets.contract import ByteProgress, RunFolders, Service, WorkingFiles
from cloudtrain.targets.registry import service_of, usable_target
from cloudtrain.targets.settings import Settings, load_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from typing_extensions import Self

    from cloudtrain.lifecycle.detached.waiting import ChainService
    from cloudtrain.lifecycle.past.sent import SentJob
    from cloudtrain.runtime.hangs.verdict import Look
    from cloudtrain.targets.inside import ExecRequest, Session


_FIRST_POLL = 0.05
_SLOWEST_POLL = 2.0
"""Seconds between two polls while waiting for a run. Each interval is 1.5 times the one before."""

_LONGEST_NOTE = 10_000

_PATIENCE = 600.0
"""Seconds for which waiting tolerates an unreachable target, such as while a laptop sleeps."""


class Run:
    """A handle for one run. Methods ask the target; attributes hold data of the run store.

    Attributes:
        name: the run's name, unique on its target.
        ref: the run's reference, `local://host/name`.
        job_name: the name of the job.
        created: when the run was submitted, in seconds since the epoch.
        adopted: True if the submit started no new run, but returned this run of an interrupted
            command, which may not have reported it.
        unreported: names of earlier runs of the same job that cloudtrain may never have shown you.
        elsewhere: the folder that the run was submitted from, if `last` found only a run of another
            folder; empty if the folder is unknown. None for a run of the working directory, or one
            found by name.
    """

    is_sweep = False
    """Whether this is a sweep, a `SweepRun`."""
    waits = False
    """Whether this is a run that waits on this machine for others, a `ChainedRun`."""

    def __init__(
        self,
        row: RunRecord,
        settings: Settings,
        *,
        adopted: bool = False,
        unreported: tuple[str, ...] = (),
        elsewhere: str | None = None,
    ) -> None:
        self.name: str = row.name
        self.ref: RunRef = row.ref
        self.target: str = row.target
        self.job_name: str = row.job_name
        self.created: float = row.created
        self.adopted = adopted
        self.unreported = unreported
        self.elsewhere = elsewhere
        self._settings = settings
        self._row = row
        self._key = row.key
        self._is_stored = True
        self._last = row.status

    @classmethod
    def attached(cls, listed_run: ListedRun, settings: Settings) -> Run:
        """Return a run that the target lists but this machine's store lacks, such as another user's
        run."""
        ref, status = listed_run
        row = RunRecord(
            name=ref.name,
            target=ref.target,
            place=ref.place,
            # names that cloudtrain did not make stay unchanged
            job_name=re.sub(r"-[0-9a-f]{8}-[0-9]+$", "", ref.name),
            stage="reported",
            state=status.state.value,
            reason=status.reason,
            created=status.created or status.started or time.time(),
            started=status.started,
            ended=status.ended,
        )
        run = cls(row, settings)
        run._is_stored = False
        run._last = status
        return run

    @classmethod
    def of_submitted(cls, submitted: Submitted, settings: Settings) -> Self:
        """Return the run that a submit has started or found."""
        names = tuple(record.name for record in submitted.unreported)
        return cls(submitted.record, settings, adopted=submitted.adopted, unreported=names)

    def __repr__(self) -> str:
        return f"<Run {self.ref} {self._last.state}>"

    def _repr_html_(self) -> str:
        from cloudtrain.plans.html import picture, to_html

        page = to_html(run_document(self.name, str(self.ref), self.status()))
        return page + picture(self.plot, f"curves of {self.name}")

    @property
    def state(self) -> RunState:
        """The current state of the run. The target is asked unless the run has ended."""
        if self._last.state.is_final:
            return self._last.state
        return self.status().state

    @property
    def last_status(self) -> RunStatus:
        """The last known status of the run, without asking the target."""
        return self._last

    @property
    def written(self) -> dict[str, str]:
        """The outputs of the run: maps `model`, `checkpoint` and `outputs/NAME` to a path or URI.
        Empty for a run that was submitted from another machine."""
        with read_store(self._settings.state_dir) as store:
            return store.outputs_of(self.name)

    @property
    def directory(self) -> Path | None:
        """The run's folder on this machine; None for runs on other targets."""
        folder_of = part(usable_target(self.target), RunFolders)
        return None if folder_of is None else folder_of(self.name, self._settings.state_dir)

    @property
    def working_files(self) -> dict[str, Path]:
        """Maps names to paths of the new and changed files in the script's working folder, except
        the model and the outputs. `download("work/")` copies them. Empty for runs on other
        targets."""
        files_of = part(usable_target(self.target), WorkingFiles)
        return {} if files_of is None else files_of(self.name, self._settings.state_dir)

    def status(self) -> RunStatus:
        """Ask the target for the status of the run, and record it if the store can be written. The
        summary of the main metric is the last known one; `observe` also reads the metrics."""
        status = self._service.status(self.ref)
        return self._take(replace(status, main=self._last.main))

    def observe(self) -> RunStatus:
        """Ask the target for the status of the run, and read its metrics if they can be read: the
        result also has the newest and best value of the main metric, the progress, and a notice of
        a loss that is NaN, infinite or explodes."""
        status = replace(self._service.status(self.ref), main=self._last.main)
        if status.started is not None:
            with suppress(CloudtrainError, OSError):
                status = self._with_metrics(status, self._metrics_files())
        return self._take(status)

    def glance(self) -> RunStatus:
        """Return the last known status with the metrics that are on this machine already. The
        target is not asked. The metrics of a run that has ended are read once."""
        status = self._last
        if status.state.is_final and status.main is not None:
            return status
        folders = [self._copies, self._copies / FOUND]
        if self.directory is not None:
            folders.append(self.directory / FOLDER)
        files = [file for folder in folders for file in read_files(str(folder))]
        self._last = self._with_metrics(status, files) if files else status
        if status.state.is_final and self._last.main is not None:
            self.remember(self._last)
        return self._last

    def _with_metrics(self, status: RunStatus, files: Sequence[MetricFile]) -> RunStatus:
        copied = read_notices(str(self._copies))
        status = replace(status, notices=(*status.notices, *copied))
        if not status.state.is_final:
            status = replace(status, machines=newest_machines(files, time.time()))
        return with_metrics(status, files, self._job, self.objective)

    @property
    def _copies(self) -> Path:
        """The folder of copies of what the run has reported elsewhere."""
        return self._settings.state_dir / METRICS / self.name

    @property
    def _job(self) -> Mapping[str, Any]:
        """The fields of the run's job; empty if they are not known."""
        with suppress(RunNotFound):
            return self.show().job
        return {}

    def _take(self, status: RunStatus) -> RunStatus:
        """Record a status if it has news, and return it."""
        if _stored_facts(status) != _stored_facts(self._last):
            self.remember(status)
        self._last = status
        return status

    @property
    def objective(self) -> Objective | None:
        """The objective of the sweep that this run is a trial of; None for other runs."""
        if not self._key.startswith(TRIAL):
            return None
        sweep = self._key.removeprefix(TRIAL).rpartition(":")[0]
        with read_store(self._settings.state_dir) as store:
            record = store.kept(sweep)
        with suppress(ValueError, TypeError):  # the record is damaged
            if record is not None and record.job.get("objective"):
                return Objective(**record.job["objective"])
        return None

    @property
    def can_stop(self) -> bool:
        """Whether any process of the run may still be running. The target is asked unless the run
        has ended."""
        return not self.state.is_final

    def remember(self, status: RunStatus) -> None:
        """Record a status that the target returned, if the store can be written."""
        if self._is_stored:
            with suppress(StoreError), open_store(self._settings.state_dir) as store:
                store.record(self.name, status)
                if store.outbox.has_work:
                    ensure_sender(self._settings)

    def logs(
        self,
        *,
        follow: bool = False,
        rank: int | None = None,
        instance: int | None = None,
        on_status: OnStatus = None,
    ) -> Iterator[LogLine]:
        """Yield the existing log lines of one rank, of one instance or of all. With `follow`, also
        yield new lines until the run ends."""
        return self._service.logs(
            self.ref, follow=follow, rank=rank, instance=instance, on_status=on_status
        )

    def log_batches(
        self,
        *,
        follow: bool = False,
        rank: int | None = None,
        instance: int | None = None,
        on_status: OnStatus = None,
        skip: int = 0,
    ) -> Iterator[LogBatch]:
        """Yield the same as `logs` in batches of lines that one process wrote at the same time,
        without the first `skip` lines."""
        return log_batches(
            self._service,
            self.ref,
            follow=follow,
            rank=rank,
            instance=instance,
            on_status=on_status,
            skip=skip,
        )

    def log_index(self, *, rank: int | None = None, instance: int | None = None) -> LogIndex:
        """Return the log lines so far, by their numbers: `len(index)`, `index.window(first, count)`
        and `index.find("Error", first)`. On this machine, only what you take is read, and
        `index.update()` adds the new lines."""
        folder = self._service.journal_folder(self.ref)
        if folder is None:
            return LogIndex(self.logs(rank=rank, instance=instance))
        journal = JournalIndex(folder, rank=rank, instance=instance)
        journal.update()
        return journal

    def metrics(self, *, rank: int | None = None, superseded: bool = False) -> MetricRows:
        """Return all values that the script has reported, in order: `[{"step": 10.0, "loss": 0.25},
        ...]`. `columns()` of the result returns arrays, and `to_pandas()` a table.

        The values come from the script's `runtime.report`, from files of TensorBoard, Lightning and
        W&B on this machine, from metric lines, from lines that a pattern in the job's `metrics`
        matches, and if there is nothing else, from lines in which a metric is recognised.

        Args:
            rank: take the values of this rank only. By default, each metric is that of the lowest
                rank that has it.
            superseded: also take the values that a restarted script has reported again.
        """
        return MetricRows(self._metrics_files(), rank=rank, superseded=superseded)

    def machines(self, *, instance: int | None = None) -> MetricRows:
        """Return what the machines of the run did, every 10 seconds: `[{"cpu": 45.2, "memory":
        6.4e10, "gpu0.utilization": 93.0, ...}, ...]`. If there are several instances, the names
        begin with `instance0/` and so on; with `instance`, they are those of one instance."""
        return machine_rows(self._metrics_files(), instance)

    def _metrics_files(self) -> list[MetricFile]:
        # the recogniser's expressions take 10 ms that other methods need not wait for
        from cloudtrain.lifecycle.runs.metrics import files_of

        patterns = self._job.get("metrics")
        if patterns == "none":
            patterns = {}
        return files_of(
            self._service, self.ref, self._settings.state_dir, patterns, self._new_files
        )

    def parts(self) -> list[Run]:
        """Return the runs that have metrics: this one, or the trials of a sweep."""
        return [self]

    def curves(self) -> list[Curve]:
        """Return the metrics of the run, the main one first, each with its name and its values."""
        return list(curves_of(self.name, self.metrics(), self._job, self.objective))

    def plot(
        self,
        *names: str,
        smooth: float = 0.0,
        scale: Literal["linear", "log"] | None = None,
        over: Literal["step", "time", "epoch"] | None = None,
    ) -> Figure:
        """Plot these metrics; without names, the main metric and a few others. Needs matplotlib.

        Args:
            smooth: the weight of the values before in a moving average, from 0 to less than 1.
            scale: of the values. Default: a logarithmic one where it shows more.
            over: the horizontal axis. Default: steps, or where they are unknown or begin again, the
                values are counted.

        Raises:
            UsageError: the run has no metric, none of such a name, or no such steps or epochs.
        """
        return plot(self.curves(), names, View(smooth, scale, over=over))

    def _new_files(self) -> Iterator[Path]:
        """Yield the files that the run wrote on this machine: those in its outputs and the new ones
        in its working folder."""
        if self.directory is None:
            return
        with suppress(CloudtrainError):  # the folder is damaged
            yield from self.working_files.values()
        for output in self.written.values():
            for folder, _, names in os.walk(output):
                for name in names:
                    file = Path(folder, name)
                    # an output may be a folder that earlier runs wrote into
                    if file.exists() and file.stat().st_mtime >= self.created:
                        yield file

    def wait(self, timeout: float | None = None) -> RunStatus:
        """Wait until the run ends, and return its final status.

        Raises:
            TargetError: the run did not end within `timeout` seconds, or the target did not answer
                for some minutes. The run continues.
        """
        deadline = inf if timeout is None else time.monotonic() + timeout
        answered = time.monotonic()
        pause = _FIRST_POLL
        while True:
            try:
                status = self.status()
                answered = time.monotonic()
            except TargetUnreachable:
                if time.monotonic() - answered > _PATIENCE:
                    raise
                status = self._last
            if status.state.is_final:
                return status

            left = deadline - time.monotonic()
            if left <= 0.0:
                still = f"`{self.name}` is still {status.state} after {timeout:g} s"
                hint = f"wait longer, or stop it with `cloudtrain stop {quote(self.name)}`"
                raise TargetError(f"{still}; the run continues", hint=hint, code="CT938")
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, _SLOWEST_POLL)

    def stop(self) -> None:
        """Ask the run to save and exit. Returns immediately. A run that has ended stays
        unchanged."""
        self._service.stop(self.ref)

    def stacks(self) -> list[Look]:
        """Return where each rank of the run is in its code now, and how much it works. It takes a
        second, and does no harm to the run.

        Raises:
            UsageError: the run is not running, or its target gives no stacks.
        """
        return self._service.stacks(self.ref)

    def enter(self, asked: ExecRequest) -> Session:
        """Return the process of this machine that runs a command inside the run, or forwards a port
        of it. Nothing is started yet.

        Raises:
            UsageError: the run is not running, has no such rank, or was sent without what this
                needs.
        """
        status = self.status()
        if status.state not in (RunState.RUNNING, RunState.STOPPING):
            hint = f"`cloudtrain logs {quote(self.name)}` shows its output"
            message = f"`{self.name}` is not running: it is {status.state}"
            raise UsageError(message, hint=hint, code="CT958")
        return self._service.enter(self.ref, asked)

    def show(self) -> SentJob:
        """Return the job and the plan that were sent for the run, and the git commit of its code,
        without secrets.

        Raises:
            RunNotFound: the store has no record of the submission, as for a run that another
                machine submitted.
        """
        from cloudtrain.lifecycle.past.sent import SentJob

        with read_store(self._settings.state_dir) as store:
            record = store.kept(self.name) if self._is_stored else None
        if record is None:
            raise RunNotFound(
                f"this machine has no record of what was sent for `{self.name}`",
                hint="it was submitted from another machine or by an older cloudtrain, or the "
                "record is damaged",
                code="CT971",
            )
        return SentJob(self.name, self.ref, self.created, record)

    def rerun(
        self,
        overrides: Sequence[str] = (),
        *,
        name: str | None = None,
        ignore: Sequence[str] = (),
        online: bool = True,
        exactly: Plan | JsonMapping | str | None = None,
        on_plan: Callable[[Plan], None] | None = None,
        on_bytes: ByteProgress | None = None,
        on_run: Callable[[Run], None] | None = None,
    ) -> Run:
        """Submit the run again: the same code on the same target, with the same request except for
        the run's name.

        The source folder is not needed. With `overrides` (`["hyperparameters.seed=2"]`) the job is
        compiled and checked again for the same code and the same settings of the target.

        Args:
            overrides: fields of the job that change, as `--set` takes them.
            name: another name for the job.
            ignore: codes of rules to skip.
            online: ask the target about a job with overrides first, as `submit` does.
            exactly, on_plan, on_bytes, on_run: the same as for `submit`.

        Raises:
            RunNotFound: the store has no record of the submission, as for a run that another
                machine submitted.
            UsageError: the run had secrets, which are not kept, and `overrides` do not supply them.
            TargetError: the target refused the request, or the code no longer exists.
        """
        from cloudtrain.lifecycle.submission.submit import (
            make_changed_rerun,
            make_rerun,
            submit,
        )

        here = load_settings()
        record = self.show().kept
        watch = Watch(on_plan, None, on_bytes)
        if on_run is not None:
            watch = watch._replace(on_run=lambda found: on_run(Run.of_submitted(found, here)))
        if not overrides:
            sending = make_rerun(self._row, record, here, name=name, watch=watch)
            return Run.of_submitted(submit(sending, here, exactly), here)

        if name is not None:
            overrides = [*overrides, f"name={name}"]
        with make_changed_rerun(
            self._row, record, overrides, here, ignore=ignore, online=online, watch=watch
        ) as sending:
            return Run.of_submitted(submit(sending, here, exactly), here)

    def save_code(self, destination: str | Path, *, only: Sequence[str] | None = None) -> list[str]:
        """Write the run's code, or only the files at some paths, into a folder, which must be empty
        or not exist, and return the relative paths.

        Raises:
            RunNotFound: the store has no record of the submission, as for a run that another
                machine submitted.
            UsageError: the folder is not empty.
            TargetError: the code no longer exists.
        """
        from cloudtrain.lifecycle.past.sent import code_of, write_code

        with code_of(self.show().kept, self.ref, self._service, only=only) as tree:
            return write_code(tree, Path(destination))

    def _require_stored(self, hint: str) -> None:
        """Raise UsageError for a run that is not in this machine's run store."""
        if not self._is_stored:
            raise UsageError(
                f"`{self.name}` was not submitted from this machine", hint=hint, code="CT939"
            )

    def annotate(
        self,
        note: str | None = None,
        *,
        tags: Mapping[str, str | None] | None = None,
        pinned: bool | None = None,
    ) -> None:
        """Change what people add to the run after its submission: a note, tags (None removes one),
        and whether it is pinned. What is not given stays.

        Raises:
            UsageError: the run is not in this machine's run store, or a text is too long.
        """
        self._require_stored("annotate it on the machine that submitted it")
        tags = tags or {}
        texts = [note, *tags, *tags.values()]
        if any(len(text or "") > _LONGEST_NOTE for text in texts):
            raise UsageError(
                "the note or the tag is too long",
                hint=f"write at most {_LONGEST_NOTE:,} characters",
                code="CT909",
            )
        with open_store(self._settings.state_dir) as store:
            store.annotate(self.name, note, tags, is_pinned=pinned)

    def remove(self) -> None:
        """Remove a run that has ended: its row in the run store, and its folder on this machine.

        Files in other locations are kept, and so is the run's record on a remote target.
        The name is never used again.

        Raises:
            UsageError: the run has not ended, or is not in this machine's run store.
            TargetError: the run's folder cannot be removed.
        """
        self._require_stored("remove it with the tools of its target")
        if not self.state.is_final:
            message = f"`{self.name}` is {self._last.state}, so it cannot be removed"
            hint = f"`cloudtrain stop {quote(self.name)} --wait` ends it"
            raise UsageError(message, hint=hint, code="CT939")

        with open_store(self._settings.state_dir) as store:
            store.remove(self.name)
        with suppress(OSError):  # only a copy
            remove_folder(self._copies)
        if self.directory is not None:
            try:
                remove_folder(self.directory)
            except OSError as error:
                message = (
                    f"the folder `{self.directory}` cannot be removed: {error.strerror or error}"
                )
                hint = "`cloudtrain prune` tries again"
                raise TargetError(message, hint=hint, code="CT936") from error

    @property
    def size(self) -> int | None:
        """Return the size in bytes of the run's folder on this machine; None for runs on other
        targets."""
        return None if self.directory is None else folder_size(self.directory)

    def download(self, path: str = "", destination: str | Path = ".") -> list[Path]:
        """Copy files that the run wrote, and return the paths of the copies. An empty `path` copies
        all files. Otherwise `path` is `model/`, `outputs/`, `outputs/NAME`, `checkpoint/`, `logs/`,
        or a path below one of these. For a run on this machine it can also be `work/`, the
        `working_files`.

        Raises:
            UsageError: the run has no such path; the hint names the existing paths.
            TargetError: the run wrote nothing to this path, or this machine cannot write the copy.
        """
        try:
            return self._service.download(self.ref, path, Path(destination))
        except OSError as error:
            message = f"the copy into `{destination}` failed: {error.strerror or error}"
            if error.filename and str(error.filename) != str(destination):
                message += f": `{error.filename}`"
            raise TargetError(
                message, hint="name another folder with `--to`", code="CT936"
            ) from error

    @cached_property
    def _service(self) -> Service:
        return service_of(self.target, self._settings)


def _stored_facts(status: RunStatus) -> tuple[object, ...]:
    """Return what the store records of a status each time that it changes."""
    return status.state, status.reason, status.started, status.ended, status.main


class ChainedRun(Run):
    """A handle on a waiting run. Once the run is sent, the methods ask its target."""

    @property
    def waits(self) -> bool:  # type: ignore[override]  # may change over time
        """Whether the run is waiting, or was waiting when its watcher died."""
        is_unsent = self._last.state in (RunState.QUEUED, RunState.LOST)
        return is_unsent and self._last.reason is not None

    def resume(self) -> None:
        """Start the run's watcher again."""
        self._service.resume(self.ref)
        self.status()

    def rerun(self, *_: Any, **__: Any) -> Run:
        """Raise UsageError, because a run that was not sent cannot be repeated."""
        message = f"`{self.name}` has not been sent yet"
        hint = "submit the job again, or repeat this command after the run is sent"
        if self._key.startswith(CAPACITY):
            message = f"`{self.name}` is a list of alternatives"
            hint = f"repeat the run of a try: `cloudtrain rerun {self.name}-t001`"
        raise UsageError(message, hint=hint, code="CT996")

    def show(self) -> SentJob:
        return replace(super().show(), tries=self._service.tries(self.ref))

    def remove(self) -> None:
        super().remove()
        remove_folder(self._service.folder(self.name).path)
        with open_store(self._settings.state_dir) as store:
            for row in store.of_sweep(f"{TRIAL}{self.name}:"):
                store.remove(row.name)

    @cached_property
    def _service(self) -> ChainService:
        return cast("ChainService", find_service(self._key, self._settings))
