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
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from cloudtrain.errors import CloudtrainError, RunNotFound, StoreError, TargetUnreachable
from cloudtrain.lifecycle.detached.driven import (
    GLANCE,
    Archive,
    DrivenFolder,
    Step,
    detach,
    sleep_until_woken,
    woken_by,
)
from cloudtrain.lifecycle.store.schema import open_store
from cloudtrain.lifecycle.submission.once import Watch, find_service, send_once
from cloudtrain.lifecycle.submission.submit import trial as sending_of_trial
from cloudtrain.lifecycle.sweeps.service import Specification, SweepService, trial_key
from cloudtrain.lifecycle.sweeps.study import Journal, propose, reason_to_stop, told
from cloudtrain.plans.states import LogLine, Metrics, RunRef, RunState, RunStatus, Trial, best_of
from cloudtrain.system.patterns import MetricPatterns
from cloudtrain.system.processes import ProcessLock
from cloudtrain.targets.settings import load_settings

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = {True: 10.0, False: 1.0}
"""Longest pause in seconds between two checks of the trials, for a paid target (True) and for a
free one. The pause grows by half each time while nothing happens."""

_SHOWN = 12
"""Maximum number of running trials whose progress is written into the status, whose size is
fixed."""

_HOPELESS = 3
"""If this many trials have failed and none has ended otherwise, no more trials are started."""


def main(arguments: list[str] | None = None) -> None:
    """Take over the sweep NAME, report the takeover to the file descriptor DESCRIPTOR, and drive
    the sweep to its end. `arguments` are `STATE_DIR NAME DESCRIPTOR`; default: the arguments of the
    command line."""
    state_dir, name, ready = detach(arguments)
    drive(DrivenFolder(state_dir, SweepService.kind, name), ready)


def drive(folder: DrivenFolder, ready: Callable[[], None], moment: Step = lambda _: None) -> None:
    """Drive a sweep to its end. Do nothing if another process already drives it. `ready` is called
    when this process has taken over the sweep. `moment` is called with the name of each step, for
    tests."""
    wake = woken_by(signal.SIGTERM)  # before the status tells anyone whom to signal
    lock = ProcessLock.take(folder.lock, patience=GLANCE)
    if lock is None or not folder.specification.exists():
        return
    before = folder.read_status() or {}
    start_time = before.get("started") or time.time()
    since = before.get("since") or start_time
    try:
        folder.write_status(
            RunState.RUNNING,
            None,
            start_time=start_time,
            since=since,
            metrics=before.get("metrics") or {},
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
        if isinstance(error, OSError):
            reason = (
                f"the sweep's folder cannot be written: {error.strerror}; run `cloudtrain "
                f"continue {folder.name}`"
            )
        else:
            then = f"; {error.hint}" if error.hint else ""
            reason = (
                f"{error.message}{then}; `cloudtrain continue {folder.name}` continues the sweep"
            )
        metrics = (folder.read_status() or {}).get("metrics") or {}
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
        metric = "" if self._sweep.objective is None else self._sweep.objective.metric
        pattern = self._sweep.job.metrics.get(metric)
        self._patterns = None if pattern is None else MetricPatterns({metric: pattern})
        self._names = ""
        self._last_message = ""
        self._to_stop: dict[int, str] = {}
        self._progress: dict[int, dict[str, float]] = {}
        self._refused_until = 0.0

    def drive(self, wake: int) -> None:
        """Start and watch trials until every trial has ended. A byte from the file descriptor
        `wake` ends a pause between two checks of the trials."""
        pause = _FIRST_PAUSE
        while True:
            happened = self._step()
            study = self._journal.study
            if not study.open and not self._next_number():
                break
            pause = (
                _FIRST_PAUSE
                if happened
                else min(pause * 1.5, _LONGEST_PAUSE[self._where.target.facts.is_paid])
            )
            sleep_until_woken(wake, pause)
        self._end()

    def _step(self) -> bool:
        """Check every running trial once, and start a new trial if fewer than `parallel` are
        running. Return whether anything changed."""
        study, happened, progress = self._journal.study, False, dict(self._progress)
        for trial in [trial for trial in study.open if trial.run]:
            happened |= self._watch(trial)
        for trial in [trial for trial in study.open if not trial.run]:
            if sum(bool(other.run) for other in study.open) < self._sweep.parallel:
                happened |= self._submit(trial)
        number = self._next_number()
        if (
            number
            and len(study.open) < self._sweep.parallel
            and time.monotonic() >= self._refused_until
        ):
            values = propose(self._sweep, number, self._known())
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
        study = self._journal.study
        number = len(study.trials) + 1
        if number > self._sweep.trial_count + study.extended or self._folder.stop.exists():
            return 0
        limit = self._sweep.max_runtime
        if limit is not None and time.time() - self._since > limit:
            return 0
        return 0 if self._hopeless() is not None else number

    def _hopeless(self) -> str | None:
        """Return the reason why no more trials are started: all trials so far have failed, without
        an objective for the same reason. Return None if the sweep continues."""
        trials = self._journal.study.ended
        first = [trial for trial in trials if trial.state is RunState.FAILED]
        if len(first) < _HOPELESS or len(first) < len(trials):
            return None
        reasons = {re.sub(r"\d+", "", trial.reason or "") for trial in first}
        # the jobs of `--each` are independent of each other
        if self._sweep.objective is None and len(reasons) > 1:
            return None
        again = f"`cloudtrain rerun {self._folder.name}` repeats them"
        return (
            f"the first {len(first)} trials failed, so no more were started: "
            f"{first[0].reason}; {again}"
        )

    def _known(self) -> list[Trial]:
        return list(self._journal.study.trials.values())

    def _submit(self, trial: Trial) -> bool:
        """Submit a trial exactly once. Return False if the submission must be tried again later.

        If the store already holds the trial's completed submission, only record the run in the
        journal.
        """
        if time.monotonic() < self._refused_until:
            return False
        number, key = trial.number, trial_key(self._folder.name, trial.number)
        try:
            with open_store(self._state_dir) as store:
                rows = [row for row in store.with_key(key) if row.name not in trial.earlier]
                reported_rows = [row for row in rows if row.stage == "reported"]
                if reported_rows:
                    name = reported_rows[0].name
                elif self._folder.stop.exists() and not rows:
                    reason = "the sweep was stopped before it started"
                    self._journal.write(
                        "told", **told(number, RunState.STOPPED, reason=reason, ended=time.time())
                    )
                    return True
                else:
                    code = Archive(self._folder.archive, self._specification.first.tree.sha256)
                    watch = Watch(on_run=lambda _: self._moment("accepted"))
                    sending = sending_of_trial(self._specification, trial, key, code, watch=watch)
                    name = send_once(
                        store, sending, lambda name: find_service(name, self._where.here)
                    ).record.name
        except (TargetUnreachable, StoreError) as error:  # neither is the trial's fault
            self._refused_until = time.monotonic() + _LONGEST_PAUSE[True]
            self._say(f"trial {number} waits: {error.message}")
            return False
        except CloudtrainError as error:
            self._journal.write(
                "told", **told(number, RunState.FAILED, reason=error.message, ended=time.time())
            )
            return True
        self._moment("submitted")
        self._journal.write("submitted", trial=number, run=name)
        self._moment("noted")
        return True

    def _watch(self, trial: Trial) -> bool:
        """Check a running trial, and record its result if it has ended. Return whether the trial
        has ended or was asked to stop."""
        ref = RunRef(self._where.target.name, self._where.account.place, trial.run)
        try:
            status = self._service.status(ref)
            self._note_progress(trial.number, status)
            if not status.state.is_final:
                return self._stop_if_needed(trial, ref, status)
            reports = self._values(ref)
        except TargetUnreachable as error:
            self._say(f"the status of trial {trial.number} cannot be read: {error.message}")
            return False
        except RunNotFound as error:
            status, reports = RunStatus(RunState.LOST, error.message, ended=time.time()), ()
        self._moment("before told")
        self._journal.write("told", **self._outcome(trial, status, reports))
        self._moment("told")
        self._remember(trial.run, status)
        return True

    def _note_progress(self, number: int, status: RunStatus) -> None:
        """Keep the step and the objective of a running trial for those who follow the sweep."""
        self._progress.pop(number, None)
        objective = self._sweep.objective
        names = ("step", "total", *([objective.metric] if objective is not None else []))
        values = {name: status.metrics[name] for name in names if name in status.metrics}
        if values and not status.state.is_final:
            self._progress[number] = values

    def _stop_if_needed(self, trial: Trial, ref: RunRef, status: RunStatus) -> bool:
        if trial.number in self._to_stop or status.state is RunState.STOPPING:
            return False
        reason = "the sweep was stopped" if self._folder.stop.exists() else None
        early = self._sweep.stop_early is not None or self._sweep.hyperband is not None
        if reason is None and early and status.state is RunState.RUNNING:
            self._reports[trial.number] = self._values(ref)
            others = [
                self._with_reports(other) for other in self._known() if other.number != trial.number
            ]
            reason = reason_to_stop(self._sweep, self._with_reports(trial), others)
        if reason is None:
            return False
        self._service.stop(ref)
        self._to_stop[trial.number] = reason
        return True

    def _with_reports(self, trial: Trial) -> Trial:
        # the journal has more for a trial that has ended since
        reports = self._reports.get(trial.number, ())
        return replace(trial, reports=max(reports, trial.reports, key=len))

    def _values(self, ref: RunRef) -> tuple[float, ...]:
        """Return every value of the objective that a trial has reported, including NaN."""
        if self._sweep.objective is None:
            return ()
        metric = self._sweep.objective.metric
        reports = Metrics().every(map(self._searched, self._service.logs(ref)))
        self._names = ", ".join(sorted({f"`{name}`" for values in reports for name in values}))
        return tuple(values[metric] for values in reports if metric in values)

    def _searched(self, line: LogLine) -> LogLine:
        """Return the log line with the values that the job's `metrics` patterns find in its text.
        Many targets do not search log lines for metrics."""
        if self._patterns is None or line.values is not None or line.is_metrics:
            return line
        return replace(line, values=self._patterns.read(line.text))

    def _outcome(
        self, trial: Trial, status: RunStatus, reports: tuple[float, ...]
    ) -> dict[str, Any]:
        """Return the journal's fields for a trial that has ended. If the run succeeded, but its
        last value of the objective is missing or not finite, the trial has failed."""
        objective, state, reason = self._sweep.objective, status.state, status.reason
        value = reports[-1] if reports else None
        numbers = tuple(report for report in reports if math.isfinite(report))
        early = self._to_stop.get(trial.number)
        stopped_early = early is not None and not self._folder.stop.exists()
        if early is not None and state is not RunState.SUCCEEDED:
            state, reason = RunState.STOPPED, early
        if (
            state is RunState.STOPPED
            and self._sweep.hyperband
            and (early or "").startswith("ended by hyperband")
        ):
            state, stopped_early = RunState.SUCCEEDED, False
        if objective is not None and state is RunState.SUCCEEDED:
            if value is None:
                others = f"; it reported {self._names}" if self._names else ""
                state, reason = (
                    RunState.FAILED,
                    f"the script never reported `{objective.metric}`{others}",
                )
            elif not math.isfinite(value):
                state, reason = (
                    RunState.FAILED,
                    f"the last `{objective.metric}` that the script reported is {value}",
                )
        times = {"started": status.started, "ended": status.ended or time.time()}
        value = value if value is not None and math.isfinite(value) else None
        return told(
            trial.number,
            state,
            value=value,
            reason=reason,
            reports=numbers,
            stopped_early=stopped_early,
            **times,
        )

    def _remember(self, name: str, status: RunStatus) -> None:
        """Record the state of a run in the store, so that lists of runs need not query its
        target."""
        # readers of the state ask the target
        with suppress(CloudtrainError), open_store(self._state_dir) as store:
            store.record(name, status)

    def _say(self, text: str) -> None:
        if self._last_message != text:
            self._last_message = text
            self._journal.write("said", text=text)

    def _write_status(self, state: RunState, reason: str | None) -> None:
        study = self._journal.study
        best = best_of(study.trials.values(), self._sweep.objective)
        metrics: dict[str, float] = {
            "trials": self._sweep.trial_count + study.extended,
            "ended": len(study.ended),
            "running": len(study.open),
        }
        if best is not None and self._sweep.objective is not None:
            metrics |= {"best_trial": best.number, self._sweep.objective.metric: best.value or 0.0}
        progress = {} if state.is_final else dict(sorted(self._progress.items())[:_SHOWN])
        times = {"start_time": self._start_time, "since": self._since}
        self._folder.write_status(state, reason, **times, metrics=metrics, progress=progress)

    def _end(self) -> None:
        trials = self._journal.study.ended
        failed = [trial for trial in trials if trial.state in (RunState.FAILED, RunState.LOST)]
        state, reason = RunState.SUCCEEDED, None
        hopeless = self._hopeless()
        if self._folder.stop.exists():
            state, reason = RunState.STOPPED, f"stopped after {len(trials)} trials"
        elif hopeless is not None:
            state, reason = RunState.FAILED, hopeless
        elif self._sweep.objective is not None and best_of(trials, self._sweep.objective) is None:
            why = f": {failed[0].reason}" if failed else ""
            state, reason = (
                RunState.FAILED,
                f"no trial has a value of `{self._sweep.objective.metric}`{why}",
            )
        elif failed:
            state = RunState.FAILED if self._sweep.objective is None else RunState.SUCCEEDED
            reason = (
                f"{len(failed)} of {len(trials)} trials failed; trial {failed[0].number}: "
                f"{failed[0].reason}"
            )
        if (
            state is not RunState.STOPPED
            and hopeless is None
            and (late := self._late()) is not None
        ):
            reason = late if reason is None else f"{reason}; {late}"
        self._moment("before end")
        self._keep_best(trials)
        self._write_status(state, reason)
        self._remember(self._folder.name, RunStatus(state, reason, self._start_time, time.time()))

    def _late(self) -> str | None:
        """Return a sentence about the trials that were not started because of `max_runtime`; None
        if there are none."""
        study = self._journal.study
        rest = self._sweep.trial_count + study.extended - len(study.trials)
        if not rest:
            return None
        were, them = ("s were", "them") if rest > 1 else (" was", "it")
        again = f"`cloudtrain continue {self._folder.name}` starts {them}"
        return f"{rest} trial{were} not started, because `max_runtime` had passed; {again}"

    def _keep_best(self, trials: list[Trial]) -> None:
        """Record the best trial's outputs as the outputs of the sweep, so that `run:SWEEP/model`
        reads them."""
        best = best_of(trials, self._sweep.objective)
        try:
            with open_store(self._state_dir) as store:
                store.keep_outputs(
                    self._folder.name, {} if best is None else store.outputs_of(best.run)
                )
        except CloudtrainError as error:
            self._say(f"the best trial's outputs could not be noted: {error.message}")
