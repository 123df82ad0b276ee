"""The sweeps that this machine drives, as a `Service`. Each sweep has a folder and a detached
driver."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.documents import JsonMapping, JsonObject
from cloudtrain.errors import RunNotFound, TargetError, UsageError
from cloudtrain.job.data import Checkpoint, Output
from cloudtrain.job.sweep import MAX_TRIALS, Objective, Sweep
from cloudtrain.lifecycle.detached.driven import FOLLOW_EVERY, GLANCE, DrivenFolder, DrivenService
from cloudtrain.lifecycle.sweeps.study import (
    Journal,
    lines_of,
    needs_optuna,
    propose,
    read_events,
    read_study,
    require_optuna,
)
from cloudtrain.plans.plan import Plan, Upload, canonical_json
from cloudtrain.plans.progress import LogLine, OnStatus, RunStatus, Trial, best_of
from cloudtrain.plans.states import TRIAL, RunRef, RunState
from cloudtrain.system.processes import ProcessLock, is_held, last_line
from cloudtrain.targets.common.archives import unpacked
from cloudtrain.targets.common.services import refuse_rank
from cloudtrain.targets.contract import BundleWriter, ByteProgress, Tuner
from cloudtrain.targets.registry import service_of
from cloudtrain.targets.settings import Settings

if TYPE_CHECKING:
    from cloudtrain.lifecycle.preparing.prepare import Ready

# The key of a run in the store is a hash of its submission. Prefixes of keys distinguish sweeps and
# their trials from other runs, so the store needs no column for the kind of run.


def trials_key(sweep: str) -> str:
    """Return the prefix of the keys of a sweep's trials."""
    return f"{TRIAL}{sweep}:"


def trial_key(sweep: str, number: int) -> str:
    return f"{trials_key(sweep)}{number:05d}"


def trial_name(sweep: str, number: int, counter: int = 1) -> str:
    """Return a trial's name, such as `digits-lr-1f3a9c2b-1-t007`. If the target already has another
    run of that name, `counter` is more than 1 and is appended."""
    name = f"{sweep}-t{number:03d}"
    return f"{name}-{counter}" if counter > 1 else name


@dataclass(frozen=True)
class Specification:
    """A sweep under its run name, with everything that the plans of its trials need: the input of
    cloudtrain's driver, written once into the sweep's folder and never changed. So each trial runs
    as the sweep's plan shows, even if the user's files change meanwhile.

    Attributes:
        first: the job of the first trial. The other trials differ from it in their hyperparameters
            and locations.
    """

    name: str
    sweep: Sweep
    first: Ready

    @classmethod
    def from_json(cls, data: JsonMapping, here: Settings) -> Specification:
        """Return the specification from the JSON data that `to_json` has returned, with or without
        `first.beside`."""
        from cloudtrain.lifecycle.preparing.prepare import Ready

        sweep = Sweep(**data["sweep"])
        return cls(data["name"], sweep, Ready.from_json(sweep.job, data, here))

    def to_json(self) -> JsonObject:
        """Return the specification as JSON data, without `first.beside`: the request of the sweep's
        plan."""
        sweep = self.sweep.model_dump(mode="json", exclude_unset=True, exclude={"job"})
        sweep["kind"] = "sweep"
        sweep["job"] = self.sweep.job.model_dump(mode="json", exclude_unset=True)
        return {"name": self.name, "sweep": sweep, **self.first.to_json()}

    def trial(self, number: int, values: JsonMapping, counter: int = 1) -> Ready:
        """Return one trial, with its own storage paths for checkpoints and outputs."""
        name = trial_name(self.name, number, counter)
        job = self.sweep.trial_job(values)
        changes: JsonObject = {"name": self.sweep.name}
        if job.checkpoint is not None:
            changes["checkpoint"] = self._for_trial(job.checkpoint, name)
        if job.outputs:
            changes["outputs"] = {
                key: self._for_trial(item, name) for key, item in job.outputs.items()
            }
        job = job.model_copy(update=changes)
        return replace(self.first, work=job, original=job)

    def trial_plan(self, number: int, values: JsonMapping, counter: int = 1) -> Plan:
        """Return what the target makes of one trial: no notes, no data to upload, no findings."""
        ready = self.trial(number, values, counter)
        context = ready.context._replace(run_name=trial_name(self.name, number, counter))
        return ready.where.target.compile(ready.work, ready.where.settings, context)

    def _for_trial(self, place: Checkpoint | Output, name: str) -> Checkpoint | Output:
        """Return a copy of the checkpoint or output `place`, stored in the subfolder `name` of the
        storage path that the job gives. If the job gives no storage path, return `place` unchanged:
        the path then depends on the run."""
        target = self.first.where.target.name
        path = place.of(target)
        if path is None:
            return place
        return place.model_copy(update={target: f"{path.rstrip('/')}/{name}"})


_LEAVING = 30.0
"""Seconds to wait for the driver of a sweep that has ended. After the final status, the driver
records the state in the run store, and then it releases its lock."""

_NEW_SWEEP_HINT = "submit another sweep with more values"


class SweepService(DrivenService, Tuner):
    """The service for the sweeps that this machine drives. Trials are runs on their target, which
    has their files."""

    kind = "sweep"
    driver = "cloudtrain.lifecycle.sweep_driver"
    what = "sweep"

    def __init__(
        self,
        environ: Mapping[str, str],
        state_dir: Path,
        *,
        specification: Specification | None = None,
    ) -> None:
        super().__init__(environ, state_dir)
        self._specification = specification

    def content(self, plan: Plan) -> str:
        """Return the request, and the data beside it, for the driver."""
        assert self._specification is not None, "only a service that submits writes it"
        return canonical_json({**plan.request, **self._specification.first.beside})

    def is_written(self, content: bytes, plan: Plan) -> bool:
        """Return whether the file holds the request. An interrupted command may have written other
        data beside it."""
        data = json.loads(content)
        request = {name: data.get(name) for name in plan.request}
        return canonical_json(request) == plan.request_json

    def upload(
        self, plan: Plan, bundle: BundleWriter, *, on_bytes: ByteProgress | None = None
    ) -> bool:
        """Store the code in the sweep's folder, and upload the code to the target for the
        trials."""
        self.keep_code(plan, bundle)
        assert self._specification is not None, "only a service that submits uploads"
        specification = replace(self._specification, name=plan.run_name)
        first = specification.trial_plan(1, propose(specification.sweep, 1))
        data = [item for item in plan.uploads if item.kind == "data"]
        first = replace(first, uploads=(*first.uploads, *data))
        return service_of(plan.target, self).upload(first, bundle, on_bytes=on_bytes)

    def status(self, ref: RunRef) -> RunStatus:
        """Return the status of the sweep. If its driver has died, the sweep is `lost` until
        `cloudtrain continue`, but its trials keep running."""
        folder = self.folder(ref.name)
        status = self._read_status(ref)
        while not (_has_ended(status) or is_held(folder.turn) or folder.is_driven):
            latest = self._read_status(ref)
            if latest == status:
                reason = (
                    "its driver has died, but trials keep running; restart it with "
                    f"`cloudtrain continue {folder.name}`"
                )
                message = last_line(folder.log)
                if message:
                    reason += f" (its last message: {message})"
                return _run_status({**status, "state": "lost", "reason": reason})
            status = latest  # it may have ended, or been continued, meanwhile
        return _run_status(status)

    def logs(
        self,
        ref: RunRef,
        *,
        follow: bool = False,
        rank: int | None = None,
        instance: int | None = None,
        on_status: OnStatus = None,
    ) -> Iterator[LogLine]:
        """Yield a line for each trial that has started or ended. With `follow`, continue until the
        sweep has ended."""
        refuse_rank(ref, rank, instance)
        folder = self._known(ref)
        objective = self.sweep(ref).objective
        count = 0
        while True:
            status = self.status(ref)  # before the journal, which is whole when the status is final
            if on_status is not None:
                on_status(status)
            lines = lines_of(read_events(folder.path), objective)
            yield from lines[count:]
            count = len(lines)
            if status.state.is_final or not follow:
                return
            time.sleep(FOLLOW_EVERY)

    def stop(self, ref: RunRef) -> None:
        self._known(ref).refuse_copy()
        if not _has_ended(self._read_status(ref)):
            self.ask_to_stop(self.folder(ref.name))

    def resume(self, ref: RunRef, more: int = 0, *, again: bool = False) -> None:
        """Start the driver of a sweep again, with `more` additional trials, or with `again` to
        repeat the trials that failed."""
        folder = self._known(ref)
        folder.refuse_copy()
        # Held until the driver is there, because two commands at once would both add their trials.
        with self._writing():
            turn = _take(folder.turn, ref.name, GLANCE)
            try:
                self._extend(folder, ref, more, again=again)
                self._start(folder)
            finally:
                turn.release(remove=True)

    def _extend(self, folder: DrivenFolder, ref: RunRef, more: int, *, again: bool) -> None:
        """Write into the journal and the status what `resume` adds.

        Raises:
            UsageError: the driver lives, or there is nothing to add.
        """
        sweep = self.sweep(ref)
        patience = _LEAVING if self.status(ref).state.is_final else GLANCE
        lock = _take(folder.lock, ref.name, patience)
        try:
            study = read_study(folder.path)
            before = folder.read_status()
            has_ended = _has_ended(before)
            failed = [trial.number for trial in study.trials.values() if trial.has_failed]
            total = sweep.trial_count + study.extended
            room = _check_room(ref.name, sweep, total, more)

            hint = f"`cloudtrain continue {ref.name} --trials {min(10, room)}` adds trials"
            if room <= 0:
                hint = _NEW_SWEEP_HINT
            started_all = len(study.trials) >= total
            if again and not failed:
                if not started_all:
                    hint = f"`cloudtrain continue {ref.name}` starts the rest"
                raise UsageError(f"no trial of `{ref.name}` has failed", hint=hint, code="CT067")
            is_over = has_ended and started_all and not study.open
            if is_over and not more and not again:
                if failed:
                    hint += f"; `cloudtrain rerun {ref.name}` repeats the failed trials"
                message = f"all {total} trials of `{ref.name}` have ended"
                raise UsageError(message, hint=hint, code="CT993")
            if needs_optuna(sweep, total + more):
                require_optuna()

            folder.stop.unlink(missing_ok=True)
            if more or again:
                journal = Journal(folder.path)
                journal.write("again" if again else "extended", trials=failed if again else more)
                journal.close()

            metrics = {**(before.get("metrics") or {}), "trials": total + more}
            start_time = before.get("started") or time.time()
            since = time.time() if has_ended else before.get("since")
            folder.write_status(
                RunState.PENDING, None, start_time=start_time, since=since, metrics=metrics, pid=0
            )
        finally:
            lock.release()

    def trials(self, ref: RunRef) -> list[Trial]:
        return list(read_study(self._known(ref).path).trials.values())

    def objective(self, ref: RunRef) -> Objective | None:
        return self.sweep(ref).objective

    def sweep(self, ref: RunRef) -> Sweep:
        """Return the sweep as it was submitted. The checks for job files are skipped, because a
        planned job may contain values that are not allowed in a job file, such as the storage path
        of an earlier run's output."""
        folder = self._known(ref)
        try:
            return Sweep(**json.loads(folder.specification.read_bytes())["sweep"])
        except (OSError, ValueError, KeyError) as error:
            message = f"the sweep's specification cannot be read: {error}"
            raise TargetError(
                message,
                hint=f"the remaining files of the sweep are in `{folder.path}`",
                code="CT994",
            ) from error

    def code(self, ref: RunRef, upload: Upload, scratch: Path) -> Iterator[Path]:
        """Unpack the code of the trials below `scratch` and yield the folder. Yield nothing if the
        stored code is missing, damaged, or does not have the hash in `upload`."""
        return unpacked(self._known(ref).archive, upload.sha256, scratch)

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        best = best_of(self.trials(ref), self.sweep(ref).objective)
        if best is None:
            hint = f"name the run of a trial: `cloudtrain trials {ref.name}` lists the runs"
            raise UsageError(f"`{ref.name}` has no best trial yet", hint=hint, code="CT992")
        trial = RunRef(ref.target, ref.place, best.run)
        return service_of(ref.target, self).download(trial, path, destination)

    def _known(self, ref: RunRef) -> DrivenFolder:
        """Return the folder of a sweep. Raises RunNotFound if this machine has no such sweep."""
        self._read_status(ref)
        return self.folder(ref.name)

    def _read_status(self, ref: RunRef) -> JsonObject:
        """Return the status in the sweep's folder. Raises RunNotFound if there is none."""
        status = self.folder(ref.name).read_status()
        if not status:
            raise RunNotFound(
                f"there is no sweep `{ref.name}` on this machine",
                hint="`cloudtrain ps` lists the runs",
            )
        return status


def _check_room(name: str, sweep: Sweep, total: int, more: int) -> int:
    """Return how many additional trials a sweep of `total` trials can have. Raise UsageError if
    they are fewer than `more`."""
    message = f"a sweep has at most {MAX_TRIALS:,} trials, and `{name}` has {total:,}"
    most = MAX_TRIALS
    if sweep.strategy == "grid" and sweep.space.grid_size < most:
        message = f"the grid has only {sweep.space.grid_words} combinations"
        most = sweep.space.grid_size
    room = most - total
    if more and more > room:
        hint = f"write `--trials {room}`" if room > 0 else _NEW_SWEEP_HINT
        raise UsageError(message, hint=hint, code="CT993")
    return room


def _has_ended(status: JsonMapping) -> bool:
    return RunState(status["state"]).is_final


def _run_status(status: JsonMapping) -> RunStatus:
    """Return the status of a sweep, from the data in its folder."""
    metrics = status.get("metrics") or {}
    progress = status.get("progress") or {}
    return RunStatus(
        RunState(status["state"]),
        status["reason"],
        started=status["started"],
        ended=status["ended"],
        created=status["started"],
        metrics={name: float(value) for name, value in metrics.items()},
        trials={int(number): values for number, values in progress.items()},
    )


def _take(path: Path, name: str, patience: float) -> ProcessLock:
    """Take the lock file `path` of the sweep `name`. If another process holds it for longer than
    `patience` seconds, the sweep is still running."""
    lock = ProcessLock.take(path, patience=patience)
    if lock is None:
        hint = f"wait for it: `cloudtrain wait {name}`"
        raise UsageError(f"`{name}` is still running", hint=hint, code="CT993")
    return lock
