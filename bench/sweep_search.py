"""Compare bayesian search with as many random trials: on a function, over many seeds, and by training digits_ddp.

    python bench/sweep_search.py [--seeds N] [--trials N] [--digits] [--epochs N]

The function has a logarithmic, a whole and a categorical hyperparameter, and no noise. It is computed here, without
starting any run. With `--digits` two sweeps of `training_scripts/digits_ddp/sweep.yaml` run on this machine, one of
each strategy.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from math import log10
from os import environ
from pathlib import Path
from typing import Any

import cloudtrain as ct
from cloudtrain.lifecycle.sweeps.study import propose
from cloudtrain.plans.progress import Trial

DIGITS = Path(__file__).parents[1] / "training_scripts" / "digits_ddp" / "sweep.yaml"


def loss(values: Any) -> float:
    """Return the loss, which is zero at the best place."""
    return (
        abs(log10(values["lr"]) + 3) + abs(values["width"] - 128) / 64 + (values["opt"] != "adam")
    )


def best_loss(strategy: Any, seed: int, count: int) -> float:
    """Return the least loss of this number of trials, one after the other."""
    search = {
        "lr": {"log": [1e-5, 1.0]},
        "width": {"int": [8, 256], "step": 8},
        "opt": ["adam", "sgd", "lion"],
    }
    job = ct.TrainingJob(name="s", entry_point="t.py")
    fields: dict[str, Any] = {
        "objective": {"minimize": "loss"},
        "strategy": strategy,
        "trials": count,
        "seed": seed,
    }
    sweep, trials = ct.Sweep(name="s", job=job, search=search, **fields), list[Trial]()
    for number in range(1, count + 1):
        values = propose(sweep, number, trials)
        trials.append(Trial(number, values, "run", ct.RunState.SUCCEEDED, loss(values)))
    return min(trial.value or 0.0 for trial in trials)


def best_digits(strategy: str, count: int, epochs: int) -> str:
    """Return the best trial of a real sweep."""
    changes = [f"strategy={strategy}", f"trials={count}", f"job.hyperparameters.epochs={epochs}"]
    run = ct.submit(ct.load_sweep(DIGITS, changes), "local")
    assert isinstance(run, ct.SweepRun)
    run.wait()
    best = run.best
    return (
        "no trial has a value"
        if best is None
        else f"{best.value:.4f}, trial {best.number}: {dict(best.values)}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--digits", action="store_true")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    if options.digits:
        with tempfile.TemporaryDirectory() as folder:
            environ["CLOUDTRAIN_STATE_DIR"] = folder
            for strategy in ("random", "bayesian"):
                found = best_digits(strategy, options.trials, options.epochs)
                print(f"digits_ddp, {options.trials} trials, {strategy}: {found}", flush=True)
        return
    seeds = range(options.seeds)
    found = {
        name: [best_loss(name, seed, options.trials) for seed in seeds]
        for name in ("random", "bayesian")
    }
    for name, losses in found.items():
        print(
            f"{name:<9} median of the least loss {statistics.median(losses):.3f}, worst {max(losses):.3f}"
        )
    as_good = sum(
        one <= other for one, other in zip(found["bayesian"], found["random"], strict=True)
    )
    print(f"bayesian is at least as good for {as_good} of {options.seeds} seeds")


if __name__ == "__main__":
    main()
