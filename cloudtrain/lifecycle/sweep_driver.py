"""The driver of a sweep: a detached process that starts trials, reads their metrics, and stops the
weak trials.

Every step is written to the journal before it is taken. A trial is submitted like any other job,
under a name derived from its number. So a driver that is killed and started again can continue: it
watches the trials that are in the run store, and submits the trials that are only in the journal.
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from cloudtrain.errors import CloudtrainError, RunNotFound, StoreError, TargetUnreachable, quoted
from cloudtrain.lifecycle.detached.driven import (
    GLANCE,
    Archive,
    DrivenFolder,
    Step,
    detach,
    in_words,
    sleep_until_woken,
    wake_on_stop,
)
from cloudtrain.lifecycle.runs.metrics import files_of
from cloudtrain.lifecycle.store.schema import open_store
from cloudtrain.lifecycle.store.store import Store
from cloudtrain.lifecycle.submission.once import Watch, find_service, send_once
from cloudtrain.lifecycle.submission.submit import make_trial
from cloudtrain.lifecycle.sweeps.service import Specification, SweepService, trial_key
from cloudtrain.lifecycle.sweeps.study import Journal, StopReason, propose, reason_to_stop
from cloudtrain.plans.progress import RunStatus, Trial, best_of
from cloudtrain.plans.states import RunRef, RunState
from cloudtrain.signals.lines import RECOGNISED
from cloudtrain.signals.rows import MetricRows
from cloudtrain.system.processes import ProcessLock
from cloudtrain.targets.settings import load_settings

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = {True: 10.0, False: 1.0}
"""Longest pause in seconds between two checks of the trials, for a paid target (True) and for a
free one. The pause grows by half each time while nothing happens."""

_SHOWN = 12
"""Maximum number of running trials whose progress is written into the status, whose size is
fixed."""

_ENOUGH_FAILURES = 3
"""If this many trials have failed and none has ended otherwise, no more trials are started."""


def main() -> None:
    """Take over the sweep NAME, report the takeover to the file descriptor DESCRIPTOR, and drive
    the sweep to its end. The arguments of the command line are `STATE_DIR NAME DESCRIPTOR`."""
    drive(*detach(SweepService.kind))


def drive(folder: DrivenFolder, ready: Callable[[], None], moment: Step = lambda _: None) -> None:
    """Drive a sweep to its end. Do nothing if another process already drives it. `ready` is called
    when this process has taken over the sweep. `moment` is called with the name of each step, for
    tests."""
    wake = wake_on_stop()  # before the status tells anyone whom to signal
    lock = ProcessLock.take(folder.lock, patience=GLANCE)
    if lock is None or not folder.specification.exists():
        return
    before = folder.read_status()
    start_time = before.get("started") or time.time()
    since = before.get("since") or start_time
    metrics = before.get("metrics") or {}
    try:
        folder.write_status(
            RunState.RUNNING, None, start_time=start_time, since=since, metrics=metrics
        )
    except OSError as error:
        sys.stderr.write(f"the sweep's folder cannot be written: {error}\n")
        return
    ready()

    try:
        here = load_settings()._replace(state_dir=folder.path.parents[1])
        specification = Specification.from_json(json.loads(folder.specification.read_bytes()), here)
        Driver(folder, specification, start_time, since, moment).drive(wake)
    except (OSError, CloudtrainError) as error:
        if isinstance(error, CloudtrainError):
            why = in_words(error)
        else:
            why = f"the sweep's folder cannot be written: {error.strerror}"
        reason = f"{why}; `cloudtrain continue {folder.name}` continues the sweep"
        metrics = folder.read_status().get("metrics") or {}
        folder.write_status(RunState.FAILED, reason, start_time=start_time, metrics=metrics)
    finally:
        lock.release()


class Driver:
    """Starts, watches and stops the trials of one sweep."""

    def __init__(
        self,
        folder: DrivenFolder,
        specification: Specification,
        start_time: float,
        since: float,
        moment: Step,
    ) -> None:
        self._folder = folder
        self._specification = specification
        self._sweep = specification.sweep
        self._where = specification.first.where
        self._state_dir = self._where.here.state_dir
        self._start_time = start_time
        self._since = since
        self._moment = moment
        self._service = self._where.service
        self._journal = Journal(folder.path)
        self._reports: dict[int, tuple[float, ...]] = {}
        self._objective = self._sweep.objective
        self._reported = set[str]()
        self._last_message = ""
        self._to_stop: dict[int, StopReason] = {}
        self._progress: dict[int, dict[str, float]] = {}
        self._refused_until = 0.0

    def drive(self, wake: int) -> None:
        """Start and watch trials until every trial has ended. A byte from the file descriptor
        `wake` ends a pause between two checks of the trials."""
        pause = _FIRST_PAUSE
        while True:
            happened = self._step()
            if not self._journal.study.open and not self._next_number():
                break
            longest = _LONGEST_PAUSE[self._where.target.facts.is_paid]
            pause = _FIRST_PAUSE if happened else min(pause * 1.5, longest)
            sleep_until_woken(wake, pause)
        self._end()

    def _step(self) -> bool:
        """Check every running trial once, and start a new trial if fewer than `parallel` are
        running. Return whether anything changed. If the sweep's folder was removed, exit: nobody
        could find or stop what this process starts."""
        if not self._folder.specification.exists():
            sys.exit()
        study = self._journal.study
        progress = dict(self._progress)
        happened = False

        for trial in study.open:
            if trial.run:
                happened |= self._watch(trial)

        # chosen but not submitted: the driver was killed, or the target did not answer
        for trial in study.open:
            if trial.run:
                continue
            running = sum(bool(other.run) for other in study.open)
            if running < self._sweep.parallel:
                happened |= self._submit(trial)

        number = self._next_number()
        has_room = len(study.open) < self._sweep.parallel
        if number and has_room and time.monotonic() >= self._refused_until:
            values = propose(self._sweep, number, study.trials.values())
            self._moment("before asked")
            self._journal.write("asked", trial=number, values=values)
            self._moment("asked")
            self._submit(study.trials[number])
            happened = True

        if happened or progress != self._progress:
            self._write_status(RunState.RUNNING, None)
        return happened

    def _next_number(self) -> int:
        """Return the number of the trial to start next; 0 if no trial is left, or no more trials
        should start."""
        number = len(self._journal.study.trials) + 1
        if number > self._total or self._folder.stop.exists():
            return 0
        limit = self._sweep.max_runtime
        if limit is not None and time.time() - self._since > limit:
            return 0
        return number if self._why_hopeless() is None else 0

    @property
    def _total(self) -> int:
        """The number of trials, with those that `continue` has added."""
        return self._sweep.trial_count + self._journal.study.extended

    def _why_hopeless(self) -> str | None:
        """Return the reason why no more trials are started: all trials so far have failed, without
        an objective for the same reason. Return None if the sweep continues."""
        trials = self._journal.study.ended
        have_failed = all(trial.state is RunState.FAILED for trial in trials)
        if len(trials) < _ENOUGH_FAILURES or not have_failed:
            return None
        # reasons that differ in a number, such as the trial's, are the same
        reasons = {re.sub(r"\d+", "", trial.reason or "") for trial in trials}
        # without an objective the trials, such as the jobs of `--each`, are independent
        if self._objective is None and len(reasons) > 1:
            return None
        what = f"the first {len(trials)} trials failed, so no more were started"
        hint = f"`cloudtrain rerun {self._folder.name}` repeats them"
        return f"{what}: {trials[0].reason}; {hint}"

    def _submit(self, trial: Trial) -> bool:
        """Submit a trial exactly once. Return False if the submission must be tried again later.

        If the store already holds the trial's completed submission, only record the run in the
        journal.
        """
        if time.monotonic() < self._refused_until:
            return False

        number = trial.number
        state = RunState.STOPPED
        reason = "the sweep was stopped before it started"
        name = None
        try:
            with open_store(self._state_dir) as store:
                name = self._send(store, trial)
        except (TargetUnreachable, StoreError) as error:  # neither is the trial's fault
            self._refused_until = time.monotonic() + _LONGEST_PAUSE[True]
            self._say(f"trial {number} waits: {error.message}")
            return False
        except CloudtrainError as error:
            state = RunState.FAILED
            reason = error.message
        if name is None:
            self._journal.tell(number, state, reason=reason, ended=time.time())
            return True

        self._moment("submitted")
        self._journal.write("submitted", trial=number, run=name)
        self._moment("noted")
        return True

    def _send(self, store: Store, trial: Trial) -> str | None:
        """Send a trial and return the name of its run. If an interrupted driver has completed the
        submission, return the name of that run; None if the sweep was stopped before."""
        key = trial_key(self._folder.name, trial.number)
        rows = [row for row in store.with_key(key) if row.name not in trial.earlier]
        for row in rows:
            if row.stage == "reported":
                return row.name
        # an interrupted submission is finished even then, because its run may exist
        if self._folder.stop.exists() and not rows:
            return None

        code = Archive(self._folder.archive, self._specification.first.tree.sha256)
        watch = Watch(on_run=lambda _: self._moment("accepted"))
        sending = make_trial(self._specification, trial, key, code, watch=watch)
        here = self._where.here
        return send_once(store, sending, lambda name: find_service(name, here)).record.name

    def _watch(self, trial: Trial) -> bool:
        """Check a running trial, and record its result if it has ended. Return whether the trial
        has ended or was asked to stop."""
        ref = RunRef(self._where.target.name, self._where.account.place, trial.run)
        try:
            status = self._service.status(ref)
            self._note_progress(trial.number, status)
            if not status.state.is_final:
                return self._stop_if_needed(trial, ref, status)
            reports = self._read_reports(ref)
        except TargetUnreachable as error:
            self._say(f"the status of trial {trial.number} cannot be read: {error.message}")
            return False
        except RunNotFound as error:
            status = RunStatus(RunState.LOST, error.message, ended=time.time())
            reports = ()

        self._moment("before told")
        self._tell(trial, status, reports)
        self._moment("told")
        self._remember(trial.run, status)
        return True

    def _note_progress(self, number: int, status: RunStatus) -> None:
        """Keep the step and the objective of a running trial for those who follow the sweep."""
        self._progress.pop(number, None)
        names = ["step", "total"]
        if self._objective is not None:
            names.append(self._objective.metric)
        values = {name: status.metrics[name] for name in names if name in status.metrics}
        if values and not status.state.is_final:
            self._progress[number] = values

    def _stop_if_needed(self, trial: Trial, ref: RunRef, status: RunStatus) -> bool:
        """Ask a trial to stop if there is a reason. Return whether it was asked."""
        if trial.number in self._to_stop or status.state is RunState.STOPPING:
            return False
        reason = None
        stops_early = self._sweep.stop_early is not None or self._sweep.hyperband is not None
        if self._folder.stop.exists():
            reason = StopReason("the sweep was stopped")
        elif status.state is RunState.RUNNING and stops_early:
            self._reports[trial.number] = self._read_reports(ref)
            others = dict(self._journal.study.trials)
            del others[trial.number]
            rivals = [self._with_reports(other) for other in others.values()]
            reason = reason_to_stop(self._sweep, self._with_reports(trial), rivals)
        if reason is None:
            return False
        self._service.stop(ref)
        self._to_stop[trial.number] = reason
        return True

    def _with_reports(self, trial: Trial) -> Trial:
        """Return a trial with the reports of its log, or those of the journal if there are more:
        the trial has ended since the log was read."""
        reports = self._reports.get(trial.number, ())
        return replace(trial, reports=max(reports, trial.reports, key=len))

    def _read_reports(self, ref: RunRef) -> tuple[float, ...]:
        """Return every value of the objective that a trial has reported, including NaN."""
        if self._objective is None:
            return ()
        metric = self._objective.metric
        job = self._sweep.job
        patterns = job.metrics if job.metrics or job.has_no_metrics else None
        files = files_of(self._service, ref, self._state_dir, patterns, needed=metric)
        rows = MetricRows(files)
        self._reported = set(rows.names)
        column = rows.columns(metric).get(metric)
        if column is None:
            column = MetricRows(files, sources=(RECOGNISED,)).columns(metric).get(metric)
        return () if column is None else tuple(column.value)

    def _tell(self, trial: Trial, status: RunStatus, reports: tuple[float, ...]) -> None:
        """Write into the journal that a trial has ended. If the run succeeded, but its last value
        of the objective is missing or not finite, the trial has failed."""
        value = reports[-1] if reports else None
        state = status.state
        reason = status.reason

        early = self._to_stop.get(trial.number)
        stopped_early = early is not None and not self._folder.stop.exists()
        if early is not None and state is not RunState.SUCCEEDED:
            state = RunState.STOPPED
            reason = early.text
            if early.is_complete:  # it needs no more reports, so its value counts
                state = RunState.SUCCEEDED
                stopped_early = False

        is_usable = value is not None and math.isfinite(value)
        if state is RunState.SUCCEEDED and self._objective is not None and not is_usable:
            state = RunState.FAILED
            reason = f"the last `{self._objective.metric}` that the script reported is {value}"
            if value is None:
                reason = f"the script never reported `{self._objective.metric}`"
                if self._reported:
                    reason += f"; it reported {quoted(sorted(self._reported))}"
        self._journal.tell(
            trial.number,
            state,
            value=value if is_usable else None,
            reason=reason,
            reports=tuple(filter(math.isfinite, reports)),
            stopped_early=stopped_early,
            started=status.started,
            ended=status.ended or time.time(),
        )

    def _remember(self, name: str, status: RunStatus) -> None:
        """Record the state of a run in the store, so that lists of runs need not query its
        target."""
        # readers of the state ask the target
        with suppress(CloudtrainError), open_store(self._state_dir) as store:
            store.record(name, status)

    def _say(self, text: str) -> None:
        """Write a message into the sweep's log, unless it is the last one again."""
        if self._last_message != text:
            self._last_message = text
            self._journal.write("said", text=text)

    def _write_status(self, state: RunState, reason: str | None) -> None:
        study = self._journal.study
        metrics: dict[str, float] = {
            "trials": self._total,
            "ended": len(study.ended),
            "running": len(study.open),
        }
        best = best_of(study.trials.values(), self._objective)
        if best is not None and self._objective is not None:
            metrics["best_trial"] = best.number
            metrics[self._objective.metric] = best.value or 0.0
        running = [] if state.is_final else sorted(self._progress.items())
        self._folder.write_status(
            state,
            reason,
            start_time=self._start_time,
            since=self._since,
            metrics=metrics,
            progress=dict(running[:_SHOWN]),
        )

    def _end(self) -> None:
        """Record the result, and the best trial's outputs as those of the sweep, so that
        `run:SWEEP/model` reads them."""
        trials = self._journal.study.ended
        state, reason = self._result(trials)
        self._moment("before end")
        best = best_of(trials, self._objective)
        try:
            with open_store(self._state_dir) as store:
                outputs = {} if best is None else store.outputs_of(best.run)
                store.keep_outputs(self._folder.name, outputs)
        except CloudtrainError as error:
            self._say(f"the best trial's outputs could not be noted: {error.message}")
        self._write_status(state, reason)
        status = RunStatus(state, reason, self._start_time, time.time())
        self._remember(self._folder.name, status)

    def _result(self, trials: list[Trial]) -> tuple[RunState, str | None]:
        if self._folder.stop.exists():
            return RunState.STOPPED, f"stopped after {len(trials)} trials"
        hopeless = self._why_hopeless()
        if hopeless is not None:
            return RunState.FAILED, hopeless

        state = RunState.SUCCEEDED
        reasons = []
        failed = [trial for trial in trials if trial.state in (RunState.FAILED, RunState.LOST)]
        if self._objective is not None and best_of(trials, self._objective) is None:
            state = RunState.FAILED
            why = f": {failed[0].reason}" if failed else ""
            reasons.append(f"no trial has a value of `{self._objective.metric}`{why}")
        elif failed:
            if self._objective is None:
                state = RunState.FAILED
            first = failed[0]
            count = f"{len(failed)} of {len(trials)} trials failed"
            reasons.append(f"{count}; trial {first.number}: {first.reason}")
        rest = self._total - len(self._journal.study.trials)
        if rest:
            late = f"`max_runtime` had passed with {rest} of {self._total} trials not started"
            reasons.append(f"{late}; `cloudtrain continue {self._folder.name}` starts the rest")
        return state, "; ".join(reasons) or None
