"""A sweep as a run: like every run, but with trials, one of which is the best; and its page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from cloudtrain.documents import JsonMapping
from cloudtrain.errors import CloudtrainError, PersonNeeded, RunNotFound, UsageError
from cloudtrain.job.model import format_duration, value_text
from cloudtrain.job.sweep import Objective
from cloudtrain.lifecycle.runs.costs import cost_of, is_free
from cloudtrain.lifecycle.runs.run import Run
from cloudtrain.lifecycle.store.records import JobRecord, Outlay
from cloudtrain.lifecycle.store.schema import open_store, read_store
from cloudtrain.lifecycle.store.store import SENT
from cloudtrain.lifecycle.submission.approval import paid_gate
from cloudtrain.lifecycle.submission.once import Watch, find_service
from cloudtrain.lifecycle.sweeps.pictures import (
    history,
    importance,
    parallel_coordinates,
    slices,
)
from cloudtrain.lifecycle.sweeps.service import SweepService, trials_key
from cloudtrain.machines.spending import Spending, exceeds
from cloudtrain.machines.table import over
from cloudtrain.plans.document import Block, Cell, Document, Heading, Table
from cloudtrain.plans.html import picture, to_html
from cloudtrain.plans.plan import Plan
from cloudtrain.plans.progress import ListedRun, RunStatus, Trial, best_of
from cloudtrain.plans.states import SWEEP, RunRef, RunState, service_name
from cloudtrain.plans.status import run_document, state_cell
from cloudtrain.signals.curves import Curve
from cloudtrain.targets.contract import ByteProgress, Tuner
from cloudtrain.targets.settings import load_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class SweepRun(Run):
    """A handle on one sweep."""

    is_sweep = True

    @property
    def is_driven(self) -> bool:
        """Whether cloudtrain's driver on this machine runs the sweep, instead of the target's own
        tuner."""
        return self._key.startswith(SWEEP)

    @property
    def objective(self) -> Objective | None:
        """The sweep's objective; None for a sweep without one, and for a tuner's sweep that was
        submitted from another machine."""
        return self._service.objective(self.ref)

    @property
    def can_stop(self) -> bool:
        """Whether the sweep or any of its trials may still be running. Trials may run on after the
        driver of their sweep has died."""
        return super().can_stop or (self.is_driven and self.state is RunState.LOST)

    @property
    def continues(self) -> str | None:
        """For a sweep of a service's tuner, the name of the earlier run that it continues, if any;
        otherwise None."""
        return self._kept().rerun_of

    def trials(self, *, running: bool = False) -> list[Trial]:
        """Return every trial that was started, by number, with its values and its result. With
        `running`, the newest value of the objective stands for the result of a running trial, as
        far as the sweep's status knows it."""
        trials = self._service.trials(self.ref)
        objective = self.objective
        if not running or objective is None:
            return trials
        newest = self.status().trials
        for place, trial in enumerate(trials):
            if trial.value is None and not trial.state.is_final:
                value = newest.get(trial.number, {}).get(objective.metric)
                trials[place] = replace(trial, value=value)
        return trials

    def rows(self) -> list[dict[str, Any]]:
        """Return the trials as flat rows, for a table: `pandas.DataFrame(sweep.rows())`."""
        return [trial.row() for trial in self.trials()]

    @property
    def hourly(self) -> float | None:
        """The list price of a trial's instances in US dollars an hour; None if it is unknown, 0 on
        your own machines."""
        return self._kept().trial[0]

    @property
    def best(self) -> Trial | None:
        """The trial with the best value; None if no trial has a value yet."""
        return best_of(self.trials(), self.objective)

    def cost(
        self, status: RunStatus | None = None, trials: Sequence[Trial] | None = None
    ) -> SweepCost | None:
        """Return the sweep's cost so far and its maximum further cost, at list prices; None if the
        target is free or a price is not known. If `status` or `trials` are not given, they are read
        from the target."""
        status = status or self.status()
        return self._cost(status, self.trials() if trials is None else trials)

    def trial(self, number: int) -> Run:
        """Return the run of one trial.

        Raises:
            RunNotFound: the trial does not exist, or has not been submitted yet.
        """
        for trial in self.trials():
            if trial.number == number and trial.run:
                return self._run_of(trial)
        hint = f"`cloudtrain trials {self.name}` lists the trials"
        raise RunNotFound(f"`{self.name}` has no trial {number}", hint=hint, code="CT992")

    def parts(self) -> list[Run]:
        return [self._run_of(trial) for trial in self.trials() if trial.run]

    def _run_of(self, trial: Trial) -> Run:
        with read_store(self._settings.state_dir) as store:
            row = store.get(trial.run)
        if row is not None:
            return Run(row, self._settings)
        ref = RunRef(self.target, self.ref.place, trial.run)
        status = RunStatus(trial.state, trial.reason, trial.started, trial.ended)
        return Run.attached(ListedRun(ref, status), self._settings)

    def resume(
        self, trials: int = 0, *, on_run: Callable[[SweepRun], None] | None = None
    ) -> SweepRun:
        """Continue a sweep that has ended, or whose driver has died, with `trials` additional
        trials.

        cloudtrain's driver continues under the same name. A tuner that can learn from an earlier
        sweep starts a new sweep, and the returned run has the trials of both. `on_run` is called
        with the run as soon as it is submitted.

        Raises:
            UsageError: the sweep is still running, cannot have more trials, or could cost more than
                `max_cost`.
            TargetError: the target refused or could not be reached.
        """
        self._check_budget(trials, "add fewer trials, or submit another sweep")
        if isinstance(self._service, SweepService):
            with self._outlay_for(trials):
                self._service.resume(self.ref, trials)
            self.status()
            if on_run is not None:
                on_run(self)
            return self

        if not self.status().state.is_final:
            hint = f"wait for it: `cloudtrain wait {self.name}`"
            raise UsageError(f"`{self.name}` is still running", hint=hint, code="CT993")
        if not trials:
            hint = f"`cloudtrain continue {self.name} --trials 10` adds ten trials"
            raise UsageError(f"all trials of `{self.name}` have ended", hint=hint, code="CT993")

        from cloudtrain.lifecycle.submission.submit import make_continuation, submit

        here = self._settings
        watch = Watch()
        if on_run is not None:
            watch = Watch(on_run=lambda found: on_run(SweepRun.of_submitted(found, here)))
        sending = make_continuation(
            self._row, self.show().kept, self._service, trials, here, watch=watch
        )
        return SweepRun.of_submitted(submit(sending, here), here)

    @contextmanager
    def _outlay_for(self, more: int) -> Iterator[None]:
        """Take the outlay of `more` trials from the caps, and of a sweep that has ended also that
        of the trials that it has not sent; give it back if the block fails.

        Raises:
            UsageError: a cap does not allow it (CT073), or the person has not approved it (CT925).
        """
        has_ended = self.status().state.is_final
        if not (more or has_ended) or is_free(self.target):
            yield
            return
        from cloudtrain.lifecycle.submission.submit import outlay_of

        settings = load_settings().target(self.target)
        with open_store(self._settings.state_dir) as store:
            most = store.outlay_of(self.name)
            total = int(self.status().metrics.get("trials", 0))
            added = (most or 0.0) / max(1, total) * more
            if most is not None:
                most = added + (store.set_aside(self.name) if has_ended else 0.0)
            outlay = outlay_of(Spending((), most, 0.0), settings)
            cost = "unknown" if most is None else f"at most ${most:,.2f} at list prices"
            rest = f"{more} more, and those that the sweep has not started"
            summary = (("sweep", f"{self.name} goes on"), ("trials", rest), ("cost", cost))
            times = store.plans.number_of(self.name)
            request = {"sweep": self.name, "more": more, "times": times}
            plan = Plan(self.target, self.name, self.job_name, request, summary=summary)
            parallel = int(self._kept().job.get("parallel", 1)) if has_ended else 0
            gate = paid_gate(store, plan.sha256, parallel)
            try:
                store.extend_outlay(self.name, self.target, added, outlay, gate)
            except PersonNeeded:
                store.plans.ask(plan.sha256, plan.to_dict(), store.now())
                raise
            try:
                yield
            except BaseException:
                store.extend_outlay(self.name, self.target, -added, Outlay())
                raise

    def _check_budget(self, more: int, hint: str) -> None:
        """Raise UsageError with `hint` if the sweep, with `more` trials, can cost more than
        `max_cost`. Do nothing if a price is not known."""
        record = self._kept()
        budget = record.job.get("max_cost")
        if budget is None or not more or None in record.trial:
            return
        cost = self._cost(self.status(), self.trials(), more)
        if cost is None or cost.left is None:
            return
        most = cost.spent + cost.left
        if exceeds(most, budget):
            what = f"with {more} more trials the sweep can cost ${most:,.2f}"
            message = f"{what}, and `max_cost` is ${budget:,.2f}"
            raise UsageError(message, hint=hint, code="CT062")

    def rerun(
        self,
        overrides: Sequence[str] = (),
        *,
        name: str | None = None,
        ignore: Sequence[str] = (),  # noqa: ARG002 - the promise's
        online: bool = True,  # noqa: ARG002
        exactly: Plan | JsonMapping | str | None = None,
        on_plan: Callable[[Plan], None] | None = None,  # noqa: ARG002
        on_bytes: ByteProgress | None = None,  # noqa: ARG002
        on_run: Callable[[Run], None] | None = None,
    ) -> SweepRun:
        """Repeat the trials that failed or were cut off, with the same values.

        Raises:
            UsageError: no trial has failed, the sweep is still running, a service's tuner runs it,
                it could cost more than `max_cost`, or `overrides` or `name` is given.
        """
        hint = f"rerun one trial by the name of its run: `cloudtrain trials {self.name}` lists them"
        if overrides or name is not None or exactly is not None:
            message = "`rerun` repeats the trials of a sweep unchanged"
            hint = f"submit the sweep's file with `--set`, or {hint}"
            raise UsageError(message, hint=hint, code="CT067")
        if not isinstance(self._service, SweepService):
            raise UsageError("a service's tuner cannot repeat trials", hint=hint, code="CT067")

        failed = [trial for trial in self.trials() if trial.run and trial.has_failed]
        self._check_budget(len(failed), hint)
        with self._outlay_for(len(failed)):
            self._service.resume(self.ref, again=True)
        self.status()
        if on_run is not None:
            on_run(self)
        return self

    def curves(self) -> list[Curve]:
        """Return the metrics of all trials."""
        curves: list[Curve] = []
        for run in self.parts():
            curves += run.curves()
        return curves

    def history(self) -> Figure:
        """Plot the objective's value of each trial by trial number, and the best value so far.
        Needs matplotlib."""
        return history(self.trials(), self.objective)

    def importance(self) -> Figure:
        """Plot how much each hyperparameter matters for good values. Needs matplotlib and
        Optuna."""
        return importance(self.trials(), self.objective)

    def slices(self) -> Figure:
        """Plot the objective's value of each trial against each hyperparameter. Needs
        matplotlib."""
        return slices(self.trials(), self.objective)

    def parallel_coordinates(self) -> Figure:
        """Plot one line for each trial through all its hyperparameters. Needs matplotlib."""
        return parallel_coordinates(self.trials(), self.objective)

    def _repr_html_(self) -> str:
        status = self.status()
        trials = self.trials()
        page = to_html(sweep_document(self, status, trials))
        return page + picture(
            partial(history, trials, self.objective), "the objective of each trial"
        )

    @property
    def directory(self) -> Path | None:
        """The sweep's folder on this machine; None for a tuner's sweep."""
        if isinstance(self._service, SweepService):
            return self._service.folder(self.name).path
        return None

    @property
    def working_files(self) -> dict[str, Path]:
        """An empty mapping, because only the trials have working files."""
        return {}

    def remove(self) -> None:
        """Remove a sweep that has ended, and its trials, from the run store. Also remove their
        folders on this machine. Raises the same errors as `Run.remove`."""
        if not self.state.is_final:
            super().remove()  # which refuses

        with read_store(self._settings.state_dir) as store:
            trials = [Run(row, self._settings) for row in store.of_sweep(trials_key(self.name))]
        if any(not trial.state.is_final for trial in trials):  # its driver is dead, and they run on
            message = f"trials of `{self.name}` are running, so it cannot be removed"
            raise UsageError(
                message, hint=f"`cloudtrain stop {self.name} --wait` ends them", code="CT939"
            )
        for trial in trials:
            trial.remove()
        super().remove()

    def download(self, path: str = "", destination: str | Path = ".") -> list[Path]:
        """Download the files of the best trial."""
        best = self.best
        if best is None:
            hint = f"name the run of a trial: `cloudtrain trials {self.name}` lists the runs"
            raise UsageError(f"`{self.name}` has no best trial", hint=hint, code="CT992")
        return self.trial(best.number).download(path, destination)

    @cached_property
    def _service(self) -> Tuner:
        return cast("Tuner", find_service(service_name(self._key, self.target), self._settings))

    def _kept(self) -> JobRecord:
        """Return the record of the sweep; an empty one without a record."""
        with read_store(self._settings.state_dir) as store:
            return store.kept(self.name) or JobRecord("", {}, {}, "")

    def _cost(self, status: RunStatus, trials: Sequence[Trial], more: int = 0) -> SweepCost | None:
        """Return the cost of the sweep, including `more` additional trials; None if the target is
        free or a price is not known."""
        if is_free(self.target):
            return None
        hourly, longest = self._kept().trial
        parts = [(cost_of_trial(trial, hourly), trial.state.is_final) for trial in trials]
        if self.is_driven:
            parts = list(self._driven_costs())
        known = [cost for cost, _ in parts if cost is not None]
        if hourly is None or len(known) < len(parts):
            return None

        spent = sum(known)
        has_ended = status.state.is_final
        # Without a time limit nobody asks about additional trials: `_check_budget` returns early.
        if longest is None:
            are_over = all(is_over for _, is_over in parts)
            return SweepCost(spent, 0.0 if has_ended and are_over else None)

        most_per_trial = over(hourly, longest)
        # A driver that continues takes up the trials that it had not started. A tuner's sweep that
        # has ended starts only the additional ones, in a new sweep.
        to_start = more
        if not has_ended or (more and self.is_driven):
            total = int(status.metrics.get("trials", len(trials)))
            run_count = sum(bool(trial.run) for trial in trials)
            to_start += max(0, total - run_count)

        left = to_start * most_per_trial
        for cost, is_over in parts:
            if not is_over:
                left += max(0.0, most_per_trial - (cost or 0.0))
        return SweepCost(spent, left)

    def _driven_costs(self) -> Iterator[tuple[float | None, bool]]:
        """Yield the cost of every run that cloudtrain's driver started, including runs that `rerun`
        has replaced, None if unknown; and whether it has ended. The target is asked for the billed
        cost of running trials."""
        with read_store(self._settings.state_dir) as store:
            rows = store.of_sweep(trials_key(self.name))
            money = store.money()
        for row in rows:
            if row.stage not in SENT:
                continue

            trial = Run(row, self._settings)
            status = trial.last_status
            if not status.state.is_final:
                with suppress(CloudtrainError):  # use the last known status
                    status = trial.status()
            cost = cost_of(trial, status, money.get(trial.name), None, time.time())
            amount = cost.estimated if cost.billed is None else cost.billed
            yield amount, status.state.is_final


def sweep_of(run: Run) -> SweepRun:
    """Return `run` as a `SweepRun`.

    Raises:
        UsageError: the run is not a sweep.
    """
    if not isinstance(run, SweepRun):
        raise UsageError(
            f"`{run.name}` is not a sweep",
            hint="`cloudtrain ps` lists the runs; a sweep's file says `kind: sweep`",
            code="CT991",
        )
    return run


# A sweep and its trials as documents, for the command line and for notebooks.

_SHOWN = 5
"""Number of the best trials that a status shows."""


class SweepCost(NamedTuple):
    """The cost of a sweep in US dollars, at list prices.

    Attributes:
        spent: the cost of all trials so far, including running trials.
        left: the maximum further cost of running and future trials; None if a trial has no time
            limit.
    """

    spent: float
    left: float | None


def sweep_document(
    sweep: SweepRun,
    status: RunStatus,
    trials: Sequence[Trial],
    more: Mapping[str, str] = MappingProxyType({}),
) -> Document:
    """Return a page about a sweep: its progress, its cost, and its best trials. Without an
    objective, the page shows the newest trials instead of the best. `more` adds label-value
    pairs."""
    objective = sweep.objective
    cost = sweep.cost(status, trials)
    total = int(status.metrics.get("trials", len(trials)))
    best = best_of(trials, objective)
    rows = {**more, "trials": _progress(trials, total)}
    title = "Newest trials"
    shown = list(trials)[-_SHOWN:]
    if objective is not None:
        title = "Best trials"
        shown = ranked(trials, objective)[:_SHOWN]
        if best is not None:
            rows["best"] = f"trial {best.number}: {objective.metric}={best.value:.4g}"
    left = _time_left(trials, total, status)
    if left:
        rows["left"] = left
    if cost is not None:
        text = f"${cost.spent:,.2f}"
        if cost.left or not status.state.is_final:
            text += " so far"
        if cost.left is None:
            text += ", no limit for the rest,"
        elif cost.left:
            text += f", up to ${cost.left:,.2f} more,"
        rows["cost"] = f"{text} at list prices"

    page = run_document(sweep.name, str(sweep.ref), replace(status, metrics={}), rows)
    blocks: list[Block] = list(page.blocks)
    if shown:
        blocks += [Heading(title), trials_table(shown, objective, best=best)]
    return Document(blocks)


def _progress(trials: Sequence[Trial], total: int) -> str:
    """Return how many trials have ended, run and have failed: `3 of 10 ended, 2 running`."""
    ended_count = sum(trial.state.is_final for trial in trials)
    words = f"{ended_count} of {total} ended"
    if len(trials) > ended_count:
        words += f", {len(trials) - ended_count} running"
    failures = sum(trial.state in (RunState.FAILED, RunState.LOST) for trial in trials)
    if failures:
        words += f", {failures} failed"
    return words


def ranked(trials: Sequence[Trial], objective: Objective | None) -> list[Trial]:
    """Return the trials that have a value of the objective, the best first. Without an objective,
    return all trials in the given order."""
    if objective is None:
        return list(trials)
    with_value = [trial for trial in trials if trial.value is not None]
    sign = -1.0 if objective.goal == "maximize" else 1.0
    return sorted(with_value, key=lambda trial: (not trial.counts, sign * (trial.value or 0.0)))


def best_report(trial: Trial, objective: Objective | None) -> float | None:
    """Return the best value that a trial has reported, which may be an earlier one than its last;
    None without a value."""
    if objective is None:
        return None
    choose = max if objective.goal == "maximize" else min
    return choose(trial.reports, default=trial.value)


def cost_of_trial(trial: Trial, hourly: float | None) -> float | None:
    """Return the list price of a trial so far in US dollars, from what its instances cost an hour;
    None if it is unknown."""
    if hourly is None:
        return None
    end_time = time.time() if trial.ended is None else trial.ended
    return over(hourly, 0.0 if trial.started is None else max(0.0, end_time - trial.started))


def trials_table(
    trials: Sequence[Trial],
    objective: Objective | None,
    *,
    best: Trial | None = None,
    hourly: float | None = None,
) -> Table:
    """Return a table with one row per trial. A star marks the best trial. `hourly` is the price of
    a trial's instances."""
    best = best or best_of(trials, objective)
    bests = [best_report(trial, objective) for trial in trials]
    has_bests = bests != [trial.value for trial in trials]
    names = dict.fromkeys(chain.from_iterable(trial.values for trial in trials))
    has_reasons = any(trial.reason for trial in trials)
    headers = ["TRIAL", "STATE"]
    if objective is not None:
        headers.append(objective.metric.upper())
    if has_bests:
        headers.append("BEST")
    headers += [name.upper() for name in names]
    headers.append("TOOK")
    if hourly:
        headers.append("COST")
    if has_reasons:
        headers.append("REASON")

    rows = []
    for trial, best_value in zip(trials, bests, strict=True):
        is_best = best is not None and trial.number == best.number
        number = f"{trial.number}*" if is_best else str(trial.number)
        state = "stopped early" if trial.stopped_early else state_cell(trial.state)
        row: list[Cell] = [number, state]
        if objective is not None:
            row.append(_value_text(trial.value))
        if has_bests:
            row.append(_value_text(best_value))
        row += [value_text(trial.values.get(name)) for name in names]
        took = ""
        if trial.started is not None and trial.ended is not None:
            took = format_duration(max(0.0, trial.ended - trial.started))
        row.append(took)
        if hourly:
            row.append(f"${cost_of_trial(trial, hourly):,.2f}")
        if has_reasons:
            row.append(trial.reason or "")
        rows.append(tuple(row))
    return Table(tuple(headers), rows)


def _value_text(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _time_left(trials: Sequence[Trial], total: int, status: RunStatus) -> str:
    """Return the estimated time of the remaining trials, such as `about 5m`; empty if it cannot be
    estimated. The estimate assumes that trials continue to end at the sweep's average rate. If the
    sweep continues an earlier one, the rate ignores the trials of the earlier sweep."""
    start_time = status.started
    if status.state.is_final or start_time is None:
        return ""

    ends = [trial.ended or 0.0 for trial in trials if trial.state.is_final]
    left = total - len(ends)
    ends = [end for end in ends if end > start_time]
    if left <= 0 or not ends:
        return ""

    pace = (max(ends) - start_time) / len(ends)
    seconds = max(1, int(pace * left))
    return f"about {format_duration(seconds)}"
