"""Requests for tuning jobs that continue earlier tuning jobs through SageMaker's warm start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudtrain.errors import UsageError

WARM_START = "IdenticalDataAndAlgorithm"
"""Continues with the same code and data, so that the objectives of all trials can be compared."""

_STRATEGIES = ("Bayesian", "Random")
_MOST_PARENTS, _MOST_TRIALS, _MOST_RANDOM = 5, 750, 10_000
"""Limits of a tuning job, including its parents: parent jobs, trials, and trials of a random search."""


def parents_of(request: Mapping[str, Any]) -> list[str]:
    """Return the names of the tuning jobs that a request or job description continues, oldest first."""
    config = request.get("WarmStartConfig") or {}
    if config.get("WarmStartType") != WARM_START:
        return []
    return [row["HyperParameterTuningJobName"] for row in config["ParentHyperParameterTuningJobs"]]


def continued(request: Mapping[str, Any], name: str, trials: int, started: int) -> dict[str, Any]:
    """Return the request of the tuning job that continues `name` with `trials` more trials.

    A tuning job learns only from the parents that its request names, so the request also names the parents of `name`.

    Args:
        request: the request of the tuning job `name`.
        started: the number of trials that `name` and its parents started.

    Raises:
        UsageError: SageMaker cannot continue this tuning job (CT064).
    """
    config, parents = request["HyperParameterTuningJobConfig"], [*parents_of(request), name]
    most = _MOST_RANDOM if config["Strategy"] == "Random" else _MOST_TRIALS
    reason = None
    if config["Strategy"] not in _STRATEGIES:
        reason = f"SageMaker can continue only a bayesian or random search, not `{config['Strategy'].lower()}`"
    elif len(parents) > _MOST_PARENTS:
        reason = f"SageMaker can continue a sweep at most {_MOST_PARENTS} times"
    elif started + trials > most:
        reason = f"a tuning job has at most {most:,} trials with those that it continues, and this {started + trials:,}"
    if reason is not None:
        hint = "submit another sweep; with `driver: cloudtrain`, sweeps continue without these limits"
        raise UsageError(reason, hint=hint, code="CT064")
    limits = {**config["ResourceLimits"], "MaxNumberOfTrainingJobs": trials}
    limits["MaxParallelTrainingJobs"] = min(limits["MaxParallelTrainingJobs"], trials)
    # the same seed would draw the same values once more
    seed = {"RandomSeed": (config["RandomSeed"] + started) % 2**31} if "RandomSeed" in config else {}
    jobs = [{"HyperParameterTuningJobName": parent} for parent in parents]
    return {
        **request,
        "HyperParameterTuningJobConfig": {**config, "ResourceLimits": limits, **seed},
        "WarmStartConfig": {"ParentHyperParameterTuningJobs": jobs, "WarmStartType": WARM_START},
    }
