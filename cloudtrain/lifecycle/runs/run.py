"""A run: one submission of a plan to any target."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, cast

from cloudtrain.errors import (
    JobError,
    RunNotFound,
    StoreError,
    TargetError,
    TargetUnreachable,
    UsageError,
)
from cloudtrain.lifecycle.store.schema import open_store, read_store
from cloudtrain.lifecycle.store.store import RunRecord
from cloudtrain.lifecycle.submission.once import Watch, find_service
from cloudtrain.plans.states import (
    ListedRun,
    LogLine,
    Metrics,
    OnStatus,
    RunRef,
    RunState,
    RunStatus,
)
from cloudtrain.plans.status import run_document
from cloudtrain.system.files import folder_size, remove_folder
from cloudtrain.system.plugins import part
from cloudtrain.targets.contract import ByteProgress, RunFolders, Service, WorkingFiles
from cloudtrain.targets.registry import service_of, usable_target
from cloudtrain.targets.settings import Settings

if TYPE_CHECKING:
    from typing_extensions import Self

    from cloudtrain.lifecycle.detached.waiting import ChainService
    from cloudtrain.lifecycle.past.sent import SentJob
    from cloudtrain.lifecycle.submission.once import Submitted
    from cloudtrain.plans.plan import Plan


_FIRST_POLL = 0.05
_SLOWEST_POLL = 2.0
"""Seconds between two polls while waiting for a run. Each interval is 1.5 times the one before."""

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
        self.name = row.name
        self.ref: RunRef = row.ref
        self.target = row.target
        self.job_name = row.job_name
        self.created = row.created
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
        created = status.created if status.created is not None else status.started
        row = RunRecord(
            name=ref.name,
            target=ref.target,
            place=ref.place,
            # names that cloudtrain did not make stay unchanged
            job_name=re.sub(r"-[0-9a-f]{8}-[0-9]+$", "", ref.name),
            stage="reported",
            state=status.state.value,
            reason=status.reason,
            created=time.time() if created is None else created,
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
        from cloudtrain.plans.html import to_html

        return to_html(run_document(self.name, str(self.ref), self.status()))

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
        """Ask the target for the status of the run, and record it if the store can be written."""
        status = self._service.status(self.ref)
        if _stored_facts(status) != _stored_facts(self._last):
            self.remember(status)
        self._last = status
        return status

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

    def metrics(self) -> list[dict[str, float]]:
        """Return all values that the script has reported, in order: `[{"step": 10.0, "loss": 0.25},
        ...]`.

        The values come from metric lines, and for local runs also from lines that a pattern in the
        job's `metrics` matches.
        """
        return Metrics().every(self.logs())

    def wait(self, timeout: float | None = None) -> RunStatus:
        """Wait until the run ends, and return its final status.

        Raises:
            TargetError: the run did not end within `timeout` seconds, or the target did not answer
                for some minutes. The run continues.
        """
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
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

            if time.monotonic() >= deadline:
                still = f"`{self.name}` is still {status.state} after {timeout:g} s"
                hint = f"wait longer, or stop it with `cloudtrain stop {quote(self.name)}`"
                raise TargetError(f"{still}; the run continues", hint=hint, code="CT938")

            left = max(0.0, deadline - time.monotonic())
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, _SLOWEST_POLL)

    def stop(self) -> None:
        """Ask the run to save and exit. Returns immediately. A run that has ended stays
        unchanged."""
        self._service.stop(self.ref)

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
            message = f"this machine has no record of what was sent for `{self.name}`"
            hint = (
                "it was submitted from another machine or by an older cloudtrain, or the "
                "record is damaged"
            )
            raise RunNotFound(message, hint=hint, code="CT971")
        return SentJob(self.name, self.ref, self.created, record)

    def rerun(
        self,
        overrides: Sequence[str] = (),
        *,
        name: str | None = None,
        ignore: Sequence[str] = (),
        online: bool = True,
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
            on_plan, on_bytes, on_run: the same as for `submit`.

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

        here = self._settings
        record = self.show().kept
        watch = Watch(on_plan, None, on_bytes)
        if on_run is not None:
            watch = watch._replace(on_run=lambda found: on_run(Run.of_submitted(found, here)))
        if not overrides:
            sending = make_rerun(self._row, record, here, name=name, watch=watch)
            return Run.of_submitted(submit(sending, here), here)

        if name is not None:
            overrides = [*overrides, f"name={name}"]
        with make_changed_rerun(
            self._row, record, overrides, here, ignore=ignore, online=online, watch=watch
        ) as sending:
            return Run.of_submitted(submit(sending, here), here)

    def save_code(self, destination: str | Path) -> list[str]:
        """Write the run's code into a folder, which must be empty or not exist, and return the
        relative paths.

        Raises:
            RunNotFound: the store has no record of the submission, as for a run that another
                machine submitted.
            UsageError: the folder is not empty.
            TargetError: the code no longer exists.
        """
        from cloudtrain.lifecycle.past.sent import code_of, write_code

        with code_of(self.show().kept, self.ref, self._service) as tree:
            return write_code(tree, Path(destination))

    def remove(self) -> None:
        """Remove a run that has ended: its row in the run store, and its folder on this machine.

        Files in other locations are kept, and so is the run's record on a remote target.
        The name is never used again.

        Raises:
            UsageError: the run has not ended, or is not in this machine's run store.
            TargetError: the run's folder cannot be removed.
        """
        if not self._is_stored:
            message = f"`{self.name}` was not submitted from this machine"
            hint = "remove it with the tools of its target"
            raise UsageError(message, hint=hint, code="CT939")
        if not self.state.is_final:
            message = f"`{self.name}` is {self._last.state}, so it cannot be removed"
            hint = f"`cloudtrain stop {quote(self.name)} --wait` ends it"
            raise UsageError(message, hint=hint, code="CT939")

        with open_store(self._settings.state_dir) as store:
            store.remove(self.name)
        if self.directory is not None:
            try:
                remove_folder(self.directory)
            except OSError as error:
                why = error.strerror or error
                message = f"the folder `{self.directory}` cannot be removed: {why}"
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
            hint = "name another folder with `--to`"
            raise TargetError(message, hint=hint, code="CT936") from error

    @cached_property
    def _service(self) -> Service:
        return service_of(self.target, self._settings)


def _stored_facts(status: RunStatus) -> tuple[object, ...]:
    """Return what the store records of a status each time that it changes."""
    return status.state, status.reason, status.started, status.ended


class ChainedRun(Run):
    """A handle on a waiting run. Once the run is sent, the methods ask its target."""

    @property
    def waits(self) -> bool:  # type: ignore[override]  # may change over time
        """Whether the run is waiting, or was waiting when its watcher died."""
        if self._last.reason is None:
            return False
        return self._last.state in (RunState.QUEUED, RunState.LOST)

    def resume(self) -> None:
        """Start the run's watcher again."""
        self._service.resume(self.ref)
        self.status()

    def rerun(self, *_: Any, **__: Any) -> Run:
        """Raise UsageError, because a run that was not sent cannot be repeated."""
        hint = "submit the job again, or repeat this command after the run is sent"
        raise UsageError(f"`{self.name}` has not been sent yet", hint=hint, code="CT996")

    def remove(self) -> None:
        super().remove()
        remove_folder(self._service.folder(self.name).path)

    @cached_property
    def _service(self) -> ChainService:
        return cast("ChainService", find_service(self._key, self._settings))


# Copies of what a run wrote, in the folder of a project: data that the next bundle of code must not
# contain.

_MARK = (
    "# `cloudtrain download` made this folder: its files are not code, so no bundle contains "
    "them.\n"
    "# Without this file, a bundle of a folder above contains them.\n"
    "*\n"
)


def source_of(run: Run) -> Path | None:
    """Return the source folder that the run was submitted from; None if it is unknown or no longer
    exists."""
    try:
        job = run.show().job
    except RunNotFound:
        return None
    # the record of a sweep has the job of its trials in the field `job`
    folder = Path(job.get("job", job).get("source_dir") or "")
    return folder if folder.is_absolute() and folder.is_dir() else None


def is_new(folder: Path) -> bool:
    """Return whether a folder does not exist or is empty, so that all of its later content is
    copies."""
    try:
        return not any(folder.iterdir())
    except OSError:
        return not os.path.lexists(folder)


def leave_out(folder: Path, sources: Iterable[Path | None]) -> None:
    """Write an ignore file into a folder of copies, so that bundles leave the copies out.

    The folder stays unchanged if it is empty, or is not inside one of `sources`.
    """
    from cloudtrain.code.ignore import IGNORE_FILE

    place = os.path.realpath(folder)
    roots = [os.path.realpath(source) for source in sources if source is not None]
    starts = tuple(os.path.join(root, "") for root in roots)  # each ends with one `/`
    if place.startswith(starts) and not is_new(folder):
        with suppress(OSError):  # `bundled` then finds the copies
            (folder / IGNORE_FILE).write_text(_MARK, encoding="utf-8")


def bundled(files: Sequence[Path], folder: Path, source: Path) -> list[str]:
    """Return the lines for the ignore file of `source` that leave the copies in `folder` out of its
    bundles; empty if the bundles do not contain them."""
    from cloudtrain.code.ignore import ignore_line
    from cloudtrain.code.walk import Moved, read_until_settled, walk

    root = os.path.realpath(source)
    try:
        code = {file.path for file in read_until_settled(lambda: walk(root)).files}
    except (JobError, Moved):  # the next submit reports it, and sends nothing
        return []

    places = {os.path.relpath(os.path.realpath(file), root) for file in files}
    copies = places & code
    others = code - copies
    start = os.path.relpath(os.path.realpath(folder), root)

    # one line for a whole folder of copies, if it has no other file of the code
    lines = []
    for copy in sorted(copies):
        first = os.path.relpath(copy, start).split("/", 1)[0]
        top = os.path.normpath(os.path.join(start, first))
        is_mixed = any(other.startswith(f"{top}/") for other in others)
        lines.append(ignore_line(copy if is_mixed else top))
    return list(dict.fromkeys(lines))
