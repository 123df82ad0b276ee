"""Helpers that apply overrides to parts of a job, shared by the request views of several targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudtrain.core.data import Checkpoint
from cloudtrain.core.job import Environment, TrainingJob
from cloudtrain.core.merging import merged


def changed_variables(job: TrainingJob, written: Any) -> Environment:
    """Return the job's environment with its variables changed by `written`, the overrides of the variables. A null in
    `written` removes a variable.
    """
    variables = merged(job.environment.variables, written if isinstance(written, Mapping) else {})
    texts = {
        name: value if isinstance(value, str) else str(value) for name, value in variables.items() if value is not None
    }
    return job.environment.model_copy(update={"variables": texts})


def checkpoint_at(target: str, place: Any) -> Checkpoint | None:
    """Return a checkpoint whose location on `target` is `place`, a value from a request. None if `place` is not
    text.
    """
    return Checkpoint.model_construct().model_copy(update={target: place}) if isinstance(place, str) else None
