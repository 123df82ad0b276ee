"""Check that the toolkit can read the launch hyperparameters that the user wrote by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cloudtrain.core.job import TrainingJob
from cloudtrain.core.per_target import overrides_of
from cloudtrain.errors import JobError, Problem
from cloudtrain.runtime.sagemaker_launcher.arguments import decode_hyperparameters
from cloudtrain.targets.sagemaker.compile.overrides import FIELD
from cloudtrain.targets.sagemaker.launch import keys


def refuse_unreadable(request: Mapping[str, Any], job: TrainingJob) -> None:
    """Refuse a request with launch hyperparameters that the toolkit cannot read. Empty values are allowed.

    Raises:
        JobError: a value would stop the toolkit or break the plan.
    """
    given = decode_hyperparameters(request.get("HyperParameters", {}))
    problems = [
        Problem(
            _path(job, name), f"`{name}` must be {kind}, and is `{given[name]}`", f"leave out `{name}`", code="CT031"
        )
        for name, (kind, fits) in _KINDS.items()
        if given.get(name) and not fits(given[name])
    ]
    if problems:
        raise JobError(problems)


def _path(job: TrainingJob, name: str) -> tuple[str, ...]:
    written = overrides_of(job, "sagemaker").get("HyperParameters")
    by_hand = isinstance(written, Mapping) and name in written
    return (FIELD, "HyperParameters", name) if by_hand else ("hyperparameters", name)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    """Return whether a value is a number of processes, such as 8 or the text `8`."""
    return value.isdecimal() if isinstance(value, str) else isinstance(value, int) and value >= 0


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    keys.GROUPS: ("a list of instance groups", _is_list_of_texts),
    keys.INSTANCE_TYPE: ("text", _is_text),
    keys.PROCESSES: ("a number of processes", _is_count),
    keys.RANKS: ("a number of processes", _is_count),
    keys.MPI_OPTIONS: ("text", _is_text),
    keys.SMDDP_OPTIONS: ("text", _is_text),
}
"""The type that sagemaker-training expects of each hyperparameter."""
