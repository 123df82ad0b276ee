"""What every compiler shares: hyperparameters as argv, the run name, the paths behind references."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from cloudtrain.job import TrainingJob
from cloudtrain.references import replace_references
from cloudtrain.runtime.sagemaker_launcher.arguments import argv_of, text_of

HASH_LENGTH = 8
"""Hex digits of the plan's hash in a run name: with the counter, collisions need 2**16 different plans of one job."""


hyperparameter_argv = argv_of
"""`--key value` for each hyperparameter, keys sorted: the convention of the SageMaker containers, on every target. The
launcher in the containers follows it too, so it lives in the runtime."""

hyperparameter_text = text_of
"""One value as the script receives it."""


def resolve_hyperparameters(job: TrainingJob, paths: Mapping[str, str]) -> dict[str, Any]:
    """The hyperparameters with `${{...}}` replaced by the paths of the target."""
    return {key: _resolve(value, paths) for key, value in job.hyperparameters.items()}


def resolve_text(text: str, paths: Mapping[str, str]) -> str:
    """`text` with `${{...}}` replaced by the paths of the target."""
    return replace_references(text, paths.__getitem__)


def _resolve(value: Any, paths: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return resolve_text(value, paths)
    if isinstance(value, Mapping):
        return {key: _resolve(inner, paths) for key, inner in value.items()}
    if isinstance(value, Sequence):
        return [_resolve(inner, paths) for inner in value]
    return value


def run_name(job_name: str, plan_sha256: str, submitter: str, counter: int) -> str:
    """`job-1f3a9c2b-1`: the job's name, a hash of the plan and of who submits it, and the number of the run.

    Deterministic, so that a dry run prints the very name that a submit would use, and a submit after a crash finds
    its own run. `submitter` is `user@host`; `plan_sha256` is the hash of the plan compiled without a run name;
    `counter` is one more than the earlier runs of the same plan.
    """
    digest = hashlib.sha256(f"{plan_sha256}\n{submitter}".encode()).hexdigest()[:HASH_LENGTH]
    return f"{job_name}-{digest}-{counter}"
