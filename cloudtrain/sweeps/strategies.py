"""Proposes the values of the next trial. They depend only on the sweep, the trial's number and the earlier trials, so a
driver that is killed and started again proposes the same values.

Grid and random search need no library. Bayesian search draws its first trials at random, and asks Optuna for the
others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from cloudtrain.core.search import Range
from cloudtrain.core.sweep import Sweep
from cloudtrain.core.trial import Trial
from cloudtrain.errors import MissingExtra

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

DRAWN_FIRST = 10
"""Number of trials at the start of a bayesian search that are drawn at random."""

_LEAST = 4
"""Minimum number of trials with a value that Optuna needs."""


def propose(sweep: Sweep, number: int, trials: Iterable[Trial] = ()) -> dict[str, Any]:
    """Return the values of trial `number`, counted from 1. `trials` are the earlier trials.

    Raises:
        MissingExtra: Optuna is not installed.
    """
    if sweep.strategy == "grid":
        return sweep.space.grid_point(number - 1)
    source = Random(f"{sweep.seed or 0}:{number}")
    if sweep.strategy != "bayesian" or number <= DRAWN_FIRST:
        return sweep.space.draw(source)
    known = list(trials)
    if sum(trial.counts for trial in known) < _LEAST:
        return sweep.space.draw(source)
    return _learnt(sweep, number, known)


def needs_optuna(sweep: Sweep, trials: int = 0) -> bool:
    """Return whether Optuna proposes any trial of the sweep. `trials` is the total number of trials if `continue` has
    added some; default: the number in the sweep."""
    return sweep.strategy == "bayesian" and max(trials, sweep.trial_count) > DRAWN_FIRST


def require_optuna(what: str = "`strategy: bayesian` needs", instead: str = ", or use `strategy: random`") -> None:
    """Check that Optuna is installed. `what` begins the error's message, and `instead` ends its hint.

    Raises:
        MissingExtra: Optuna is not installed.
    """
    from importlib.util import find_spec

    if find_spec("optuna") is None:
        hint = f"pip install 'cloudtrain[sweeps]'{instead}"
        raise MissingExtra(f"{what} Optuna, which is not installed", hint=hint, code="CT063")


def _learnt(sweep: Sweep, number: int, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the values that Optuna's TPE sampler proposes for trial `number` after these trials. The Optuna study is
    rebuilt from the trials each time, so it needs no storage."""
    require_optuna()
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    ranges = sweep.space.ranges
    spaces = {name: _distribution(item) for name, item in ranges.items()}
    digest = hashlib.sha256(f"{sweep.seed or 0}:{number}".encode()).digest()
    sampler = optuna.samplers.TPESampler(seed=int.from_bytes(digest[:4], "big") >> 1, n_startup_trials=_LEAST)
    assert sweep.objective is not None, "the rules have asked for it"
    study = optuna.create_study(direction=sweep.objective.goal, sampler=sampler)
    for trial in trials:
        frozen = _frozen(trial, ranges, spaces)
        if frozen is not None:
            study.add_trial(frozen)
    asked = study.ask(spaces)
    return {name: _value(ranges[name], asked.params[name]) for name in ranges}


def _frozen(trial: Trial, ranges: Mapping[str, Range], spaces: Mapping[str, BaseDistribution]) -> FrozenTrial | None:
    """Convert a trial to Optuna's form; None if it ended without a usable value.

    Running trials are included, so that Optuna does not propose values close to theirs.
    """
    from optuna.trial import TrialState, create_trial

    params = {name: _param(ranges[name], value) for name, value in trial.values.items()}
    if trial.counts or (trial.stopped_early and trial.value is not None):
        return create_trial(params=params, distributions=dict(spaces), value=trial.value, state=TrialState.COMPLETE)
    if not trial.state.is_final:
        return create_trial(params=params, distributions=dict(spaces), state=TrialState.RUNNING)
    return None


def _distribution(item: Range) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if item.int is not None:
        values = item.values
        assert values is not None, "whole numbers can be listed"
        return IntDistribution(item.int[0], int(str(values[-1])), step=item.step or 1)
    if item.choice is not None:
        return CategoricalDistribution(range(len(item.choice)))  # by index: Optuna takes no lists
    low, high = item.bounds
    return FloatDistribution(low, high, log=item.log is not None)


def _param(item: Range, value: Any) -> Any:
    if item.choice is None:
        return value
    return next(index for index, known in enumerate(item.choice) if known == value and type(known) is type(value))


def _value(item: Range, param: Any) -> Any:
    return param if item.choice is None else item.choice[param]
