"""A tuning job that goes on where earlier ones ended: the request of the last of them, with a warm start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudtrain.errors import UsageError

WARM_START = "IdenticalDataAndAlgorithm"
"""The same code and data, so that the best training job of all is the best; TransferLearning is for others."""

_STRATEGIES = ("Bayesian", "Random")
_MOST_PARENTS, _MOST_TRIALS, _MOST_RANDOM = 5, 750, 10_000
"""Of a tuning job, those of its parents among them."""


def parents_of(request: Mapping[str, Any]) -> list[str]:
    """Return the tuning jobs that a request or a description continues, the oldest first."""
    config = request.get("WarmStartConfig") or {}
    if config.get("WarmStartType") != WARM_START:
        return []
    return [row["HyperParameterTuningJobName"] for row in config["ParentHyperParameterTuningJobs"]]


def continued(request: Mapping[str, Any], name: str, trials: int, started: int) -> dict[str, Any]:
    """Return the request of the tuning job that continues `name` with that many more trials.

    A job learns from its own parents alone, and not from theirs, so it names all of them.

    Args:
        request: that of the tuning job that ended.
        started: how many trials it and its parents had.

    Raises:
        UsageError: SageMaker has no warm start for it (CT064).
    """
    config, parents = request["HyperParameterTuningJobConfig"], [*parents_of(request), name]
    most = _MOST_RANDOM if config["Strategy"] == "Random" else _MOST_TRIALS
    reason = None
    if config["Strategy"] not in _STRATEGIES:
        reason = f"SageMaker continues a bayesian or random search, and this is `{config['Strategy'].lower()}`"
    elif len(parents) > _MOST_PARENTS:
        reason = f"SageMaker continues a sweep {_MOST_PARENTS} times at most"
    elif started + trials > most:
        reason = f"a tuning job has at most {most:,} trials with those that it continues, and this {started + trials:,}"
    if reason is not None:
        hint = "submit another sweep; with `driver: cloudtrain` a sweep goes on without these limits"
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
