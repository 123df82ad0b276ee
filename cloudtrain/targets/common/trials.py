"""Functions that the services' tuners share: the log of a sweep, and hyperparameters as the script gets them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from cloudtrain.core.states import LogLine, RunRef, RunStatus
from cloudtrain.core.sweep import Objective
from cloudtrain.core.trial import Trial, best_of
from cloudtrain.core.value_text import value_text
from cloudtrain.errors import UsageError
from cloudtrain.targets.base import Tuner


def trial_lines(
    tuner: Tuner, ref: RunRef, *, every: float, follow: bool, on_status: Callable[[RunStatus], None] | None
) -> Iterator[LogLine]:
    """Yield a line for each trial that has started or ended. With `follow`, go on until the sweep has ended.

    Args:
        every: seconds between two requests for the trials.
    """
    told, objective = set[tuple[str, int]](), tuner.objective(ref)
    while True:
        status = tuner.status(ref)
        if on_status is not None:
            on_status(status)
        trials = tuner.trials(ref)
        best = best_of(trials, objective)
        for trial in trials:
            for which, text in enumerate(_texts(trial, objective, best)):
                if (trial.run, which) not in told:  # the text of an old line changes when another trial is the best
                    told.add((trial.run, which))
                    yield LogLine(trial.ended or trial.started or time.time(), 0, None, "stdout", text)
        if status.state.is_final or not follow:
            return
        time.sleep(every)


def refuse_rank(ref: RunRef, rank: int | None, instance: int | None) -> None:
    """Raise an error if a rank or an instance is given, because a sweep has only one log.

    Raises:
        UsageError: `rank` or `instance` is not None.
    """
    if rank is not None or instance is not None:
        hint = f"name the trial: `cloudtrain logs {ref.name} --trial 1`"
        raise UsageError("a sweep has no ranks or instances; only its trials do", hint=hint, code="CT937")


def own_value(text: Any) -> Any:
    """Convert a hyperparameter from the service's JSON text to the value that the script gets.

    Anything that is not JSON text is returned unchanged.
    """
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


def _texts(trial: Trial, objective: Objective | None, best: Trial | None) -> Iterator[str]:
    values = " ".join(f"{name}={value_text(value)}" for name, value in trial.values.items())
    yield f"trial {trial.number} started as {trial.run}: {values}"
    if trial.state.is_final:
        value = f": {objective.metric}={trial.value:.4g}" if objective and trial.value is not None else ""
        end = f"{value}{', the best' if best is not None and best.number == trial.number else ''}"
        yield f"trial {trial.number} {trial.state}{end or f': {trial.reason}'}"
