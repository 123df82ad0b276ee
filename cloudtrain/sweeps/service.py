"""The sweeps that this machine drives, as a `Service`. Each sweep has a folder and a detached driver."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloudtrain.core.plan import Plan, Upload
from cloudtrain.core.states import ListedRun, LogLine, RunRef, RunState, RunStatus
from cloudtrain.core.sweep import MAX_TRIALS, Objective, Sweep
from cloudtrain.core.trial import Trial, best_of
from cloudtrain.errors import RunNotFound, TargetError, UsageError
from cloudtrain.store import KEPT
from cloudtrain.sweeps.driven import DrivenService
from cloudtrain.sweeps.folder import GLANCE, SweepFolder
from cloudtrain.sweeps.specification import Specification
from cloudtrain.sweeps.study import Journal, lines_of, read_events, read_study
from cloudtrain.system.detached import last_line
from cloudtrain.system.lock import ProcessLock
from cloudtrain.system.private import make_private_folder, make_state_folder
from cloudtrain.targets.base import BundleWriter, ByteProgress, Tuner
from cloudtrain.targets.common.archives import unpacked
from cloudtrain.targets.common.trials import refuse_rank
from cloudtrain.targets.registry import service_of

_FOLLOW_EVERY = 0.2
"""Seconds between two checks of a sweep that is followed."""

_LEAVING = 30.0
"""Seconds to wait for the driver of a sweep that has ended. After the final status, the driver records the state in the
run store, and then it releases its lock."""

_MORE = "submit another sweep with more values"


class SweepService(DrivenService, Tuner):
    """The service for the sweeps that this machine drives. Trials are runs on their target, and their files are
    downloaded from the target."""

    driver = "cloudtrain.sweeps.driver"
    what = "sweep"

    def upload(self, plan: Plan, bundle: BundleWriter, *, on_bytes: ByteProgress | None = None) -> bool:
        """Store the code in the sweep's folder, and upload the code to the target for the trials. Return False if the
        target already has the code.

        Raises:
            TargetError: the folder cannot be written, or the target cannot be reached.
        """
        folder = self.folder(plan.run_name)
        try:
            make_state_folder(self.state_dir, ours=KEPT)
            make_private_folder(folder.path)
            if not folder.archive.exists():
                bundle.write(folder.archive)
        except OSError as error:
            raise self._unwritable(error) from error
        specification = Specification.from_json(plan.request)
        account = specification.account(self.environ, self.state_dir)
        from cloudtrain.sweeps.strategies import propose

        first = specification.trial_plan(account, 1, propose(specification.sweep, 1))
        data = tuple(item for item in plan.uploads if item.kind == "data")
        first = replace(first, uploads=(*first.uploads, *data))
        return service_of(plan.target, self).upload(first, bundle, on_bytes=on_bytes)

    def status(self, ref: RunRef) -> RunStatus:
        """Return the status of the sweep. If its driver has died, the sweep is `lost` until `cloudtrain continue`, but
        its trials keep running."""
        folder, found, is_lost = self.folder(ref.name), self._read_status(ref), False
        while not (is_lost or RunState(found["state"]).is_final or folder.is_continuing or folder.is_driven):
            before, found = found, self._read_status(ref)  # it may have ended, or been continued, meanwhile
            is_lost = found == before
        state, reason = RunState(found["state"]), found["reason"]
        if is_lost:
            state = RunState.LOST
            reason = f"its driver has died, but trials keep running; restart it with `cloudtrain continue {ref.name}`"
            said = last_line(folder.log)
            reason += f" (its last message: {said})" if said else ""
        metrics = {name: float(value) for name, value in (found.get("metrics") or {}).items()}
        return RunStatus(state, reason, found["started"], found["ended"], metrics=metrics, created=found["started"])

    def logs(
        self,
        ref: RunRef,
        *,
        follow: bool = False,
        rank: int | None = None,
        instance: int | None = None,
        on_status: Callable[[RunStatus], None] | None = None,
    ) -> Iterator[LogLine]:
        """Yield a line for each trial that has started or ended. With `follow`, continue until the sweep has ended."""
        refuse_rank(ref, rank, instance)
        folder, shown = self._known(ref), 0
        objective = self.sweep(ref).objective
        while True:
            status = self.status(ref)  # before the journal, which is whole when the status is final
            if on_status is not None:
                on_status(status)
            lines = lines_of(read_events(folder.path), objective)
            yield from lines[shown:]
            shown = len(lines)
            if status.state.is_final or not follow:
                return
            time.sleep(_FOLLOW_EVERY)

    def stop(self, ref: RunRef) -> None:
        """Ask the driver to stop every trial and to end. If the driver has died, start it again to do this."""
        folder = self._known(ref)
        found = folder.read_status() or {}
        if not RunState(found["state"]).is_final:
            self.ask_to_stop(folder)

    def resume(self, ref: RunRef, more: int = 0, *, again: bool = False) -> None:
        """Start the driver of a sweep again, with `more` additional trials, or with `again` to repeat the trials that
        failed.

        Raises:
            UsageError: the sweep is still running, or has no trials left to run.
            MissingExtra: Optuna is not installed, and one of the trials needs it.
            TargetError: the folder cannot be written, or the driver cannot start.
        """
        folder = self._known(ref)
        # Held until the driver is there, because two commands at once would both add their trials.
        try:
            turn = _taken(folder.turn, ref.name, patience=GLANCE)
            try:
                self._extend(folder, ref, more, again=again)
                self._start(folder)
            finally:
                turn.release(remove=True)
        except OSError as error:
            raise self._unwritable(error) from error

    def _extend(self, folder: SweepFolder, ref: RunRef, more: int, *, again: bool) -> None:
        from cloudtrain.sweeps.strategies import needs_optuna, require_optuna

        sweep, has_ended = self.sweep(ref), self.status(ref).state.is_final
        lock = _taken(folder.lock, ref.name, patience=_LEAVING if has_ended else GLANCE)
        try:
            study = read_study(folder.path)
            total = sweep.trial_count + study.extended
            left = sweep.space.grid_size - total if sweep.strategy == "grid" else 10
            adds = f"`cloudtrain continue {ref.name} --trials {min(10, left)}` adds trials" if left > 0 else _MORE
            if sweep.strategy == "grid" and more > left:
                hint = f"write `--trials {left}`" if left > 0 else _MORE
                raise UsageError(f"the grid has only {sweep.space.grid_words} combinations", hint=hint, code="CT993")
            if more and total + more > MAX_TRIALS:
                message = f"a sweep has at most {MAX_TRIALS:,} trials, and `{ref.name}` has {total:,}"
                raise UsageError(message, hint="add fewer trials, or submit another sweep", code="CT993")
            before = folder.read_status() or {}
            failed = [trial.number for trial in study.trials.values() if trial.has_failed]
            is_over = RunState(before["state"]).is_final and not study.open
            if again and not failed:
                more_words = adds if len(study.trials) >= total else f"`cloudtrain continue {ref.name}` starts the rest"
                raise UsageError(f"no trial of `{ref.name}` has failed", hint=more_words, code="CT067")
            if not more and not again and is_over and len(study.trials) >= total:
                hint = adds + (f"; `cloudtrain rerun {ref.name}` repeats the failed trials" if failed else "")
                raise UsageError(f"all {total} trials of `{ref.name}` have ended", hint=hint, code="CT993")
            if needs_optuna(sweep, total + more):
                require_optuna(instead="")
            folder.stop.unlink(missing_ok=True)
            if more or again:
                journal = Journal(folder.path)
                journal.write("again" if again else "extended", trials=failed if again else more)
                journal.close()
            metrics = {**(before.get("metrics") or {}), "trials": total + more}
            started = before.get("started") or time.time()
            since = time.time() if RunState(before["state"]).is_final else before.get("since")
            folder.write_status(RunState.PENDING, None, started=started, since=since, metrics=metrics, pid=0)
        finally:
            lock.release()

    def trials(self, ref: RunRef) -> list[Trial]:
        """Return the trials that the driver has chosen so far, sorted by number."""
        return list(read_study(self._known(ref).path).trials.values())

    def objective(self, ref: RunRef) -> Objective | None:
        """Return the objective of the sweep."""
        return self.sweep(ref).objective

    def sweep(self, ref: RunRef) -> Sweep:
        """Return the sweep as it was submitted.

        Raises:
            TargetError: the sweep's specification cannot be read.
        """
        folder = self._known(ref)
        try:
            return Specification.from_json(json.loads(folder.specification.read_bytes())).sweep
        except (OSError, ValueError, KeyError) as error:
            hint = f"the remaining files of the sweep are in `{folder.path}`"
            raise TargetError(f"the sweep's specification cannot be read: {error}", hint=hint, code="CT994") from error

    def runs(self, place: str) -> Iterator[ListedRun]:  # noqa: ARG002 - the promise's
        """Yield nothing. The trials are runs of the target, whose own service lists them."""
        return iter(())

    def code(self, ref: RunRef, upload: Upload, scratch: Path) -> Iterator[Path]:
        """Unpack the code of the trials below `scratch` and yield the folder. Yield nothing if the stored code is
        missing, damaged, or does not have the hash in `upload`."""
        return unpacked(self._known(ref).archive, upload.sha256, scratch)

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        """Download the files of the best trial.

        Raises:
            UsageError: no trial has a value yet.
        """
        best = best_of(self.trials(ref), self.sweep(ref).objective)
        if best is None:
            hint = f"name the run of a trial: `cloudtrain trials {ref.name}` lists the runs"
            raise UsageError(f"`{ref.name}` has no best trial yet", hint=hint, code="CT992")
        return service_of(ref.target, self).download(RunRef(ref.target, ref.place, best.run), path, destination)

    def folder(self, name: str) -> SweepFolder:
        """Return the folder of a sweep, whether it exists or not."""
        return SweepFolder(self.state_dir, name)

    def _known(self, ref: RunRef) -> SweepFolder:
        self._read_status(ref)
        return self.folder(ref.name)

    def _read_status(self, ref: RunRef) -> dict[str, Any]:
        """Return the status in the sweep's folder.

        Raises:
            RunNotFound: the sweep does not exist.
        """
        found = self.folder(ref.name).read_status()
        if found is None:
            raise RunNotFound(f"there is no sweep `{ref.name}` on this machine", hint="`cloudtrain ps` lists the runs")
        return found


def _taken(path: Path, name: str, *, patience: float = 0.0) -> ProcessLock:
    """Take the lock file `path` of the sweep `name`.

    Raises:
        UsageError: another process holds the lock for longer than `patience` seconds, so the sweep is still running.
    """
    lock = ProcessLock.take(path, patience=patience)
    if lock is None:
        raise UsageError(f"`{name}` is still running", hint=f"wait for it: `cloudtrain wait {name}`", code="CT993")
    return lock
