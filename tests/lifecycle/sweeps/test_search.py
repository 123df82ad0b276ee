"""What is proposed, and which trials are stopped early. No process is started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.lifecycle.sweeps.study import StopReason, lines_of, propose, reason_to_stop
from cloudtrain.plans.progress import Trial, best_of

DONE = ct.RunState.SUCCEEDED


def sweep_of(**fields: Any) -> ct.Sweep:
    """A sweep that is never started."""
    given = {
        "search": {
            "lr": {"log": [1e-5, 1.0]},
            "width": {"int": [8, 256], "step": 8},
            "opt": ["a", "b", True],
        }
    }
    given |= {"objective": {"minimize": "loss"}, "trials": 40, "seed": 1}
    return ct.Sweep(**{"name": "s", "job": {"entry_point": "t.py"}, **given, **fields})


def simulated(sweep: ct.Sweep, loss: Callable[[Any], float]) -> list[Trial]:
    """Its trials, one after the other."""
    trials: list[Trial] = []
    for number in range(1, sweep.trial_count + 1):
        values = propose(sweep, number, trials)
        trials.append(Trial(number, values, "run", DONE, loss(values)))
    return trials


def distance(values: Any) -> float:
    """From a good place in the space."""
    from math import log10

    return abs(log10(values["lr"]) + 3) + abs(values["width"] - 128) / 64 + (values["opt"] != "b")


@pytest.mark.parametrize("strategy", ["random", "bayesian"])
def test_the_same_trials_lead_to_the_same_proposal(strategy: str) -> None:
    """So that a driver that starts again goes on where the killed one was."""
    pytest.importorskip("optuna")
    sweep = sweep_of(strategy=strategy, trials=16)
    first, second = simulated(sweep, distance), simulated(sweep, distance)
    assert first == second
    assert len({str(trial.values) for trial in first}) == 16
    assert first != simulated(sweep.replace(seed=2), distance)


def test_bayesian_search_learns() -> None:
    """It ends nearer to the best place than as many random trials, and stays in the space."""
    pytest.importorskip("optuna")
    found = {
        strategy: simulated(sweep_of(strategy=strategy), distance)
        for strategy in ("random", "bayesian")
    }
    best = {name: best_of(trials, ct.Objective(minimize="loss")) for name, trials in found.items()}
    assert best["random"] is not None
    assert best["bayesian"] is not None
    assert (best["bayesian"].value or 0) <= (best["random"].value or 0)
    for trial in found["bayesian"]:
        assert 1e-5 <= trial.values["lr"] <= 1.0
        assert trial.values["width"] in range(8, 257, 8)
        assert trial.values["opt"] in ("a", "b", True)


def test_trials_that_failed_or_go_on_are_no_values() -> None:
    """Optuna hears of those that have one, and keeps away from those that run."""
    pytest.importorskip("optuna")
    sweep = sweep_of(strategy="bayesian", trials=20)
    trials = simulated(sweep, distance)[:12]
    trials[3] = Trial(4, trials[3].values, "run", ct.RunState.FAILED)
    trials[4] = Trial(5, trials[4].values, "run", ct.RunState.RUNNING)
    assert propose(sweep, 13, trials).keys() == {"lr", "width", "opt"}


def running(number: int, *reports: float) -> Trial:
    """A trial that goes on."""
    return Trial(number, {}, "run", ct.RunState.RUNNING, reports=reports)


def test_the_median_rule() -> None:
    """Compared at the same report, and not before `after` of them."""
    sweep = sweep_of(objective={"maximize": "acc"}, stop_early={"median": {"after": 2}})
    others = [running(2, 1, 2, 3), running(3, 1, 2, 3, 4)]
    assert reason_to_stop(sweep, running(1, 0.1, 0.1), others) is None
    assert reason_to_stop(sweep, running(1, 0.1, 0.1, 0.1), []) is None
    assert reason_to_stop(sweep, running(1, 0.1, 0.1, 2.5), others) is None
    reason = reason_to_stop(sweep, running(1, 0.1, 0.1, 0.1), others)
    text = "its best acc, 0.1, was worse than the median of the others, 2"
    assert reason == StopReason(text)
    # which is further than they are
    assert reason_to_stop(sweep, running(1, *[0.1] * 9), others) is not None


def test_the_bandit_rule() -> None:
    """The slack is part of the best value."""
    sweep = sweep_of(stop_early={"bandit": {"slack": 0.1}})
    assert reason_to_stop(sweep, running(1, 1.05), [running(2, 1.0)]) is None
    assert reason_to_stop(sweep, running(1, 1.2), [running(2, 1.0)]) == StopReason(
        "its best loss, 1.2, was outside the slack around the best, 1"
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"stop_early": {"median": {"after": 1}}},
        {"stop_early": {"bandit": {"slack": 0.1}}},
        {"strategy": "hyperband", "hyperband": {"min": 1, "max": 9}},
    ],
)
@pytest.mark.parametrize("goal", ["maximize", "minimize"])
def test_a_nan_is_the_worst_value(fields: dict[str, Any], goal: str) -> None:
    """A weak trial is stopped also if it, or a rival, has reported NaN before. NaN alone stops no trial."""
    sweep, sign, nan = (
        sweep_of(objective={goal: "acc"}, **fields),
        1 if goal == "maximize" else -1,
        float("nan"),
    )
    others = [
        running(2, nan, *[5.0 * sign] * 8),
        running(4, *[6.0 * sign] * 9),
        running(6, nan, nan, 7.0 * sign),
    ]
    assert reason_to_stop(sweep, running(8, nan, *[1.0 * sign] * 7), others) is not None
    assert reason_to_stop(sweep, running(8, nan, *[9.0 * sign] * 7), others) is None
    assert reason_to_stop(sweep, running(8, nan, nan, nan), others) is None


def test_hyperband() -> None:
    """Of nine trials two thirds are stopped at the first level, and none goes on beyond the last."""
    sweep = sweep_of(strategy="hyperband", hyperband={"min": 1, "max": 9})
    trials = [running(2 * number, float(number)) for number in range(1, 10)]
    stopped = [
        trial.number // 2
        for trial in trials
        if reason_to_stop(sweep, trial, [other for other in trials if other != trial]) is not None
    ]
    assert stopped == [4, 5, 6, 7, 8, 9]
    assert reason_to_stop(sweep, running(1, *[0.0] * 9), []) == StopReason(
        "ended by hyperband after 9 reports, the maximum of a trial", is_complete=True
    )


def test_the_log_of_a_sweep_names_the_best_so_far() -> None:
    """When a trial becomes it, and not again."""
    events: list[dict[str, Any]] = []
    for number, loss in ((1, 0.5), (2, 0.7), (3, 0.1)):
        events.append({"event": "asked", "at": 0.0, "trial": number, "values": {}})
        events.append(
            {"event": "told", "at": 0.0, "trial": number, "state": "succeeded", "value": loss}
        )
    told = [line.text for line in lines_of(events, sweep_of().objective) if "loss" in line.text]
    assert told == [
        "trial 1 succeeded: loss=0.5, the best so far",
        "trial 2 succeeded: loss=0.7",
        "trial 3 succeeded: loss=0.1, the best so far",
    ]
