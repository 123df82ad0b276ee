"""The main metric of a run, and what is wrong with its losses."""

from __future__ import annotations

from array import array
from math import inf, nan

import pytest

from cloudtrain.job.sweep import Objective
from cloudtrain.signals.main_metric import (
    WINDOW,
    explodes,
    faults,
    is_low,
    main_metric,
    summary_of,
)
from cloudtrain.signals.rows import Column


def column(*values: float, start: float = 0.0) -> Column:
    """A metric of each step, a value each second from the time `start` on."""
    steps = array("d", map(float, range(len(values))))
    times = array("d", [start + step for step in steps])
    return Column(steps, times, array("d", values), "runtime", 0)


@pytest.mark.parametrize(
    ("names", "choice", "main"),
    [
        (["loss", "acc"], {"objective": Objective(maximize="acc")}, ("acc", False)),
        (["loss", "acc"], {"objective": Objective(minimize="acc")}, ("acc", True)),
        (["loss", "acc"], {"objective": Objective(minimize="absent")}, ("loss", True)),
        (["loss", "acc"], {"patterns": {"top1": "", "acc": ""}}, ("acc", False)),
        (["epoch", "lr", "aux_loss", "train/loss", "acc"], {}, ("train/loss", True)),
        (["lr", "kl_loss"], {}, ("kl_loss", True)),
        (["lr", "train-rmse"], {}, ("train-rmse", True)),
        (["step", "total", "seconds_left", "reward"], {}, ("reward", False)),
        (["step", "epoch", "total"], {}, None),
        ([], {"objective": Objective(minimize="loss")}, None),
    ],
)
def test_the_main_metric_is_chosen_in_order(
    names: list[str], choice: dict[str, object], main: object
) -> None:
    """The sweep's objective, then the job's patterns, then a loss by name, then what there is."""
    assert main_metric(names, **choice) == main  # type: ignore[arg-type]


def test_a_summary_has_the_newest_the_best_and_a_trend() -> None:
    """Values that are not finite are never the best, and not in the trend."""
    goal = main_metric(["loss"])
    assert goal is not None
    found = summary_of(goal, column(nan, 3.0, 1.0, 2.0, inf))
    assert (found.number, found.last, found.step) == (5, inf, 4.0)
    assert (found.best, found.best_step, found.trend) == (1.0, 2.0, (3.0, 1.0, 2.0))
    assert summary_of(goal, column(nan)).best is None

    long = summary_of(goal, column(*map(float, range(10_000))))
    assert (long.trend[0], long.trend[-1], len(long.trend)) == (0.0, 9999.0, 32)


@pytest.mark.parametrize("name", ["loss", "val/loss", "train-rmse", "WER", "eval.ppl", "top1_err"])
def test_losses_and_errors_are_made_small(name: str) -> None:
    assert is_low(name)


@pytest.mark.parametrize("name", ["acc", "flossy_score", "reward", "lossless", "f1"])
def test_other_metrics_are_made_large(name: str) -> None:
    assert not is_low(name)


FALLING = [10.0 / step for step in range(1, 40)]


@pytest.mark.parametrize(
    ("values", "exploding"),
    [
        ([*FALLING, 30.0, 60.0, 200.0], True),
        ([*FALLING, *(2.0**power for power in range(12))], True),
        ([-50.0, -60.0, *[-70.0] * 20, 900.0, 9000.0, 9e9], True),
        # one spike, a jump below the start, too few values, small ones of a policy's loss
        ([*FALLING, 200.0], False),
        ([*FALLING, 5.0, 6.0, 7.0], False),
        ([1.0, 1.0, 50.0, 60.0, 70.0], False),
        ([0.0] * 20 + [0.1, 0.2, 0.3], False),
        # an accuracy that rises, and a loss that is lost altogether
        ([step / 10 for step in range(40)], False),
        ([*FALLING, 30.0, 60.0, nan], False),
    ],
)
def test_a_loss_explodes_when_nothing_that_was_learned_is_left(
    values: list[float], exploding: bool
) -> None:
    assert explodes(values[-WINDOW:], values[0]) is exploding


def test_faults_of_losses_are_notices() -> None:
    """With the time at which each began, and the end of the one that is over."""
    columns = {
        "loss": column(1.0, nan, nan),
        "aux_loss": column(1.0, 2.0, inf),
        "acc": column(0.5, nan, nan),
    }
    (lost,) = faults(columns)
    assert (lost.kind, lost.time, lost.ended) == ("not_finite", 1.0, None)
    assert lost.text == "`loss` is NaN at step 1"

    (over,) = faults({"loss": column(1.0, inf, 1.0, 0.5)})
    assert (over.kind, over.time, over.ended) == ("not_finite", 1.0, 2.0)

    (high,) = faults({"loss": column(*FALLING, 30.0, 60.0, 200.0, start=100.0)})
    assert (high.kind, high.time) == ("exploding", 139.0)
    assert faults({"loss": column(*FALLING)}) == []
