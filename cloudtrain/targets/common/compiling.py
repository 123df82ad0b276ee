"""Functions that all compilers share: hyperparameters as arguments, references, and the run name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from shlex import split
from typing import TYPE_CHECKING, Any

from cloudtrain.core.job import TrainingJob
from cloudtrain.core.references import replace_references
from cloudtrain.errors import Problem
from cloudtrain.runtime.sagemaker_launcher.arguments import argv_of, text_of

if TYPE_CHECKING:
    from cloudtrain.core.plan import Plan
    from cloudtrain.core.processing import AnyJob

HASH_LENGTH = 8
"""Number of hex digits of the plan's hash in a run name. A collision becomes likely only with 2**16 different plans of
one job."""


hyperparameter_argv = argv_of
"""Return `--key value` for each hyperparameter, sorted by key, as the SageMaker containers do. All targets follow this
convention. The function is in the runtime, because the launcher in the containers needs it too."""

hyperparameter_text = text_of
"""Return the text of one hyperparameter value as the script receives it."""


def without_literals(job: AnyJob) -> AnyJob:
    """Return the job without its inputs that have a plain `value`. References to such an input are replaced by its
    value. Of all targets, only Azure ML accepts such inputs unchanged."""
    literals = {name: item.value for name, item in job.inputs.items() if item.value is not None}
    if not literals:
        return job
    values = {f"inputs.{name}": text_of(value) for name, value in literals.items()}

    def fill(text: str) -> str:
        return replace_references(text, lambda inner: values.get(inner, f"${{{{{inner}}}}}"))

    variables = {name: fill(text) for name, text in job.environment.variables.items()}
    update: dict[str, Any] = {
        "inputs": {name: item for name, item in job.inputs.items() if name not in literals},
        "hyperparameters": {name: _fill_texts(value, fill) for name, value in job.hyperparameters.items()},
        "environment": job.environment.model_copy(update={"variables": variables}),
    }
    update |= {name: fill(text) for name in ("command", "entry_point") if (text := getattr(job, name)) is not None}
    return job.model_copy(update=update)


def resolve_hyperparameters(job: TrainingJob, paths: Mapping[str, str]) -> dict[str, Any]:
    """Return the hyperparameters with `${{...}}` replaced by the target's paths."""
    return {
        key: _fill_texts(value, lambda text: resolve_text(text, paths)) for key, value in job.hyperparameters.items()
    }


def has_bare_flags(job: TrainingJob) -> bool:
    """Return whether the script gets a flag without a value, such as `--verbose`."""
    return job.bare_flags and any(isinstance(value, bool) for value in job.hyperparameters.values())


def arguments_of(job: TrainingJob, paths: Mapping[str, str]) -> list[str]:
    """Return the script's command-line arguments, made from the job's hyperparameters."""
    return argv_of(resolve_hyperparameters(job, paths), bare_flags=job.bare_flags)


def resolve_text(text: str, paths: Mapping[str, str]) -> str:
    """Return `text` with `${{...}}` replaced by the target's paths."""
    return replace_references(text, paths.__getitem__)


def _fill_texts(value: Any, fill: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return fill(value)
    if isinstance(value, Mapping):
        return {key: _fill_texts(inner, fill) for key, inner in value.items()}
    if isinstance(value, Sequence):
        return [_fill_texts(inner, fill) for inner in value]
    return value


def option_problems(job: TrainingJob) -> list[Problem]:
    """Return a problem if the job's mpirun options cannot be parsed, because of an unclosed quote."""
    for field in ("options", "mpi_options"):
        try:
            split(getattr(job.distribution, field, ""))
        except ValueError as error:
            message = f"`{field}` is not valid shell syntax: {str(error).lower()}"
            return [Problem(("distribution", field), message, "close the quotes", code="CT018")]
    return []


def submission_key(plan: Plan) -> str:
    """Return a hash of target, place, job name and plan. Submissions with the same hash count as the same submission.

    `plan` must be compiled with a placeholder for the run name, so that the number of the run does not change the hash.
    """
    return hashlib.sha256("\n".join((plan.target, plan.place, plan.job_name, plan.sha256)).encode()).hexdigest()


def run_name(job_name: str, key: str, submitter: str, salt: str, counter: int) -> str:
    """Return the run's name, such as `job-1f3a9c2b-1`: job name, hash of plan and submitter, and number of the run.

    The name is deterministic, so that a dry run prints the same name that a submit would use, and a submit after a
    crash finds its own run.

    Args:
        key: the plan's `submission_key`.
        submitter: `user@host`.
        salt: a text that differs between run stores, so that two stores of the same user give different names.
        counter: the number of earlier runs with the same key, plus one.
    """
    digest = hashlib.sha256(f"{key}\n{submitter}\n{salt}".encode()).hexdigest()[:HASH_LENGTH]
    return f"{job_name}-{digest}-{counter}"
