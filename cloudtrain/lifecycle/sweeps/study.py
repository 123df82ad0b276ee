"""The journal of a sweep: one line for each event. Each line is on disk before the next event
happens.

    asked      a trial was chosen, with these values
    submitted  the trial was submitted, under this run name
    told       the trial has ended, with a value, or with the reason why it has none
    extended   `continue` added this many trials
    again      `rerun` repeats these failed trials with the same values
    said       a message for the reader of the log

After a crash of the driver, the journal still gives the state of all trials. The last line may be
incomplete; it is removed before the next line is written.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.documents import JsonMapping, JsonObject
from cloudtrain.errors import MissingExtra, TargetError
from cloudtrain.job.model import value_text
from cloudtrain.job.sweep import Objective, Range, Sweep
from cloudtrain.plans.progress import LogLine, Trial, best_of
from cloudtrain.plans.states import RunState
from cloudtrain.system.plugins import pip_line
from cloudtrain.system.private import open_private

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


FILE_NAME = "study.jsonl"

_KEPT_REPORTS = 2000
"""Maximum number of reports that are kept for each trial, for early stopping."""


@dataclass
class Study:
    """The state of a sweep's trials: `trials` maps each number to its trial; `extended` is the
    number of trials that `continue` has added."""

    trials: dict[int, Trial]
    extended: int = 0

    def apply(self, event: JsonObject) -> None:
        """Update the trials from one event of the journal."""
        kind = event["event"]
        number = event.get("trial", 0)
        if kind == "asked":
            self.trials[number] = Trial(number, event["values"])
        elif kind == "submitted":
            self._change(number, run=event["run"], state=RunState.RUNNING, started=event["at"])
        elif kind == "told":
            names = ("value", "reason", "started", "ended", "stopped_early")
            values = {name: event[name] for name in names if event.get(name) is not None}
            reports = tuple(event.get("reports", ()))
            self._change(number, state=RunState(event["state"]), reports=reports, **values)
        elif kind == "again":
            for number in event["trials"]:
                old = self.trials[number]
                earlier = (*old.earlier, old.run) if old.run else old.earlier
                self.trials[number] = Trial(number, old.values, earlier=earlier)
        elif kind == "extended":
            self.extended += event["trials"]

    def _change(self, number: int, **fields: Any) -> None:
        self.trials[number] = replace(self.trials[number], **fields)

    @property
    def ended(self) -> list[Trial]:
        return [trial for trial in self.trials.values() if trial.state.is_final]

    @property
    def open(self) -> list[Trial]:
        """The trials that were chosen and have not ended."""
        return [trial for trial in self.trials.values() if not trial.state.is_final]


class Journal:
    """The journal's file, open for writing. Only one process writes it at a time."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE_NAME
        self.study = read_study(folder)
        self._descriptor = open_private(self._file, os.O_RDWR | os.O_CREAT)
        content = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        self._end = content.rfind(b"\n") + 1
        os.ftruncate(self._descriptor, self._end)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event to the journal. The event is on disk when this method returns. If it
        cannot be written, for example because the disk is full, the journal stays unchanged."""
        entry = {"at": round(time.time(), 3), "event": event, **fields}
        line = (json.dumps(entry) + "\n").encode()
        try:
            size = os.pwrite(self._descriptor, line, self._end)
            if size < len(line):
                raise OSError(28, os.strerror(28))
            os.fsync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, self._end)
            raise
        self._end += len(line)
        self.study.apply(entry)

    def tell(
        self,
        number: int,
        state: RunState,
        *,
        reports: tuple[float, ...] = (),
        stopped_early: bool = False,
        **fields: Any,
    ) -> None:
        """Append the event `told`: a trial has ended."""
        kept = list(reports[-_KEPT_REPORTS:])
        words = {"reports": kept, "stopped_early": stopped_early, **fields}
        self.write("told", trial=number, state=str(state), **words)

    def close(self) -> None:
        os.close(self._descriptor)


def read_events(folder: Path) -> list[JsonObject]:
    """Return the events in a sweep's journal, without an incomplete last line."""
    file = folder / FILE_NAME
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return []
    complete = content[: content.rfind(b"\n") + 1]
    events = []
    for number, line in enumerate(complete.splitlines(), 1):
        try:
            events.append(json.loads(line))
        except ValueError as error:
            message = f"line {number} of the sweep's journal is damaged: {error}"
            raise TargetError(
                message, hint=f"restore or remove the line in `{file}`", code="CT994"
            ) from error
    return events


def read_study(folder: Path) -> Study:
    study = Study({})
    for event in read_events(folder):
        study.apply(event)
    return study


def lines_of(events: list[JsonObject], objective: Objective | None) -> list[LogLine]:
    """Return the events as log lines for users. Events that tell users nothing new are left out."""
    study = Study({})
    lines = []
    best: Trial | None = None
    for event in events:
        study.apply(event)
        text = _text(event, study, objective)
        before = best
        best = best_of(study.trials.values(), objective)
        if best is not None and best != before and best.number == event.get("trial"):
            text = f"{text}, the best so far"
        if text is not None:
            lines.append(LogLine(event["at"], 0, None, "stdout", text))
    return lines


def _text(event: JsonObject, study: Study, objective: Objective | None) -> str | None:
    """Return an event in words; None if it tells users nothing new. `study` is the state after the
    event."""
    kind = event["event"]
    number = event.get("trial", 0)
    if kind == "said":
        return str(event["text"])
    if kind == "extended":
        return f"{event['trials']} more trials"
    if kind == "again":
        return f"these trials run again: {', '.join(map(str, event['trials']))}"
    if kind == "submitted":
        return f"trial {number} started: {shown_values(study.trials[number].values)}"
    if kind != "told":
        return None

    trial = study.trials[number]
    what = "was stopped early" if trial.stopped_early else trial.state
    words = f"trial {number} {what}"
    if trial.value is not None and objective is not None:
        words += f": {objective.metric}={trial.value:.4g}"
    elif trial.reason:
        words += f": {trial.reason}"
    return words


def shown_values(values: JsonMapping) -> str:
    """Return the values of a trial for users: `learning_rate=0.01 width=64`."""
    return " ".join(f"{name}={value_text(value)}" for name, value in values.items())


# Proposes the values of the next trial. They depend only on the sweep, the trial's number and the
# earlier trials, so a driver that is killed and started again proposes the same values.
#
# Grid and random search need no library. Bayesian search draws its first trials at random, and asks
# Optuna for the others.

DRAWN_FIRST = 10
"""Number of trials at the start of a bayesian search that are drawn at random."""

_LEAST = 4
"""Minimum number of trials with a value that Optuna needs."""


def propose(sweep: Sweep, number: int, trials: Iterable[Trial] = ()) -> JsonObject:
    """Return the values of trial `number`, counted from 1. `trials` are the earlier trials."""
    if sweep.strategy == "grid":
        return sweep.space.grid_point(number - 1)
    if sweep.strategy == "bayesian" and number > DRAWN_FIRST:
        history = list(trials)
        if sum(trial.counts for trial in history) >= _LEAST:
            return _ask_optuna(sweep, number, history)
    return sweep.space.draw(Random(f"{sweep.seed or 0}:{number}"))


def needs_optuna(sweep: Sweep, trials: int = 0) -> bool:
    """Return whether Optuna proposes any trial of the sweep. `trials` is the total number of trials
    if `continue` has added some; default: the number in the sweep."""
    return sweep.strategy == "bayesian" and max(trials, sweep.trial_count) > DRAWN_FIRST


def require_optuna(
    what: str = "`strategy: bayesian` needs", instead: str = ", or use `strategy: random`"
) -> None:
    """Raise `MissingExtra` if Optuna is missing. `what` begins the error's message, and `instead`
    ends its hint."""
    from importlib.util import find_spec

    if find_spec("optuna") is None:
        hint = pip_line("sweeps") + instead
        raise MissingExtra(f"{what} Optuna, which is not installed", hint=hint, code="CT063")


def _ask_optuna(sweep: Sweep, number: int, trials: Sequence[Trial]) -> JsonObject:
    """Return the values that Optuna's TPE sampler proposes for trial `number` after these trials.
    The Optuna study is rebuilt from the trials each time, so it needs no storage."""
    require_optuna()
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    ranges = sweep.space.ranges
    spaces = {name: _distribution(item) for name, item in ranges.items()}
    digest = hashlib.sha256(f"{sweep.seed or 0}:{number}".encode()).digest()
    seed = int.from_bytes(digest[:4], "big") >> 1
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_LEAST)

    assert sweep.objective is not None, "the rules have asked for it"
    study = optuna.create_study(direction=sweep.objective.goal, sampler=sampler)
    for trial in trials:
        frozen = _frozen(trial, ranges, spaces)
        if frozen is not None:
            study.add_trial(frozen)

    params = study.ask(spaces).params
    values = {}
    for name, item in ranges.items():
        value = params[name]
        values[name] = value if item.choice is None else item.choice[value]
    return values


def _frozen(
    trial: Trial, ranges: Mapping[str, Range], spaces: Mapping[str, BaseDistribution]
) -> FrozenTrial | None:
    """Convert a trial to Optuna's form; None if it ended without a usable value. Running trials are
    included, so that Optuna does not propose values close to theirs."""
    from optuna.trial import TrialState, create_trial

    state = TrialState.RUNNING
    if trial.counts or (trial.stopped_early and trial.value is not None):
        state = TrialState.COMPLETE
    elif trial.state.is_final:
        return None
    params = {name: _param(ranges[name], value) for name, value in trial.values.items()}
    value = trial.value if trial.state.is_final else None
    return create_trial(params=params, distributions=dict(spaces), value=value, state=state)


def _distribution(item: Range) -> BaseDistribution:
    """Return a range of values in Optuna's form."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if item.int is not None:
        values = item.values
        assert values is not None, "whole numbers can be listed"
        highest = int(str(values[-1]))
        return IntDistribution(item.int[0], highest, step=item.step or 1)
    if item.choice is not None:
        return CategoricalDistribution(range(len(item.choice)))  # by index: Optuna takes no lists
    low, high = item.bounds
    return FloatDistribution(low, high, log=item.log is not None)


def _param(item: Range, value: Any) -> Any:
    """Return a trial's value as Optuna has it: the number itself, or the index of a choice."""
    if item.choice is None:
        return value
    for index, option in enumerate(item.choice):
        if option == value and type(option) is type(value):
            return index
    raise AssertionError(f"{value!r} is none of the choices")


# Decides whether a trial should be stopped early because other trials were clearly better after the
# same number of reports. Pure functions.
#
# `median` and `bandit` are the rules of these names in Azure ML and Google's Vizier. `hyperband` is
# asynchronous successive halving (ASHA), with brackets that begin to halve after different numbers
# of reports.

_KEPT = 3
"""At each step, hyperband keeps one of three trials, and lets it make three times as many
reports."""


class StopReason(NamedTuple):
    """Why a trial is stopped. If `is_complete`, it has made all reports that hyperband allows, and
    counts as succeeded."""

    text: str
    is_complete: bool = False


def reason_to_stop(sweep: Sweep, trial: Trial, others: Sequence[Trial]) -> StopReason | None:
    """Return why the trial should stop now; None if it should continue. A trial that has reported
    only NaN and infinite values so far continues."""
    objective = sweep.objective
    step = len(trial.reports)
    if objective is None or step == 0:
        return None
    if sweep.hyperband is not None:
        return _halved(sweep, trial, others)
    if sweep.stop_early is None:
        return None

    # compare only what others have reported
    step = min(step, max((len(other.reports) for other in others), default=0))
    if step == 0 or step <= sweep.stop_early.after:
        return None
    rivals = _first_reports(others, step)
    if sweep.stop_early.bandit is None:  # the median of the others' averages
        averages = [sum(reports) / step for reports in rivals]
        finite = [average for average in averages if isfinite(average)]
        if not finite:
            return None
        shown = allowed = median(finite)
        what = "worse than the median of the others"
    else:  # the best of the others, and a fraction of it
        shown = _best(objective, [_best(objective, reports) for reports in rivals])
        width = abs(shown) * sweep.stop_early.bandit.slack
        allowed = shown - width if objective.goal == "maximize" else shown + width
        what = "outside the slack around the best"

    own = _best(objective, trial.reports[:step])
    if not (isfinite(own) and objective.better(allowed, own)):
        return None
    return StopReason(f"its best {objective.metric}, {own:.4g}, was {what}, {shown:.4g}")


def _halved(sweep: Sweep, trial: Trial, others: Sequence[Trial]) -> StopReason | None:
    """Return why hyperband stops the trial: it has made the most reports, or is not among the best
    third at a rung."""
    assert sweep.hyperband is not None, "whoever calls has looked"
    assert sweep.objective is not None, "the rules have asked for it"
    objective = sweep.objective
    step = len(trial.reports)
    if step >= sweep.hyperband.max:
        return StopReason(
            f"ended by hyperband after {step} reports, the maximum of a trial", is_complete=True
        )
    # After so many reports, trials of the first bracket are compared: 1, 3, 9 and 27 of at most 50.
    # The second bracket leaves out the first number, the third the first two, and so on.
    rungs = [sweep.hyperband.min]
    while rungs[-1] * _KEPT < sweep.hyperband.max:
        rungs.append(rungs[-1] * _KEPT)
    bracket = trial.number % len(rungs)
    for rung in rungs[bracket:]:
        if rung > step:
            break
        own = _best(objective, trial.reports[:rung])
        rivals = [_best(objective, reports) for reports in _first_reports(others, rung)]
        better = sum(objective.better(rival, own) for rival in rivals)
        kept = (len(rivals) + 1) // _KEPT
        if isfinite(own) and kept >= 1 and better >= kept:
            return StopReason(f"not among the best third at report {rung}")
    return None


def _first_reports(trials: Sequence[Trial], count: int) -> Iterator[tuple[float, ...]]:
    """Yield the first `count` reports of each trial that has so many."""
    for trial in trials:
        if len(trial.reports) >= count:
            yield trial.reports[:count]


def _best(objective: Objective, values: Sequence[float]) -> float:
    """Return the best of the values. NaN and infinite values count as the worst."""
    finite = filter(isfinite, values)
    if objective.goal == "maximize":
        return max(finite, default=-inf)
    return min(finite, default=inf)
