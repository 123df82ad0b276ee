"""The prefixes of keys in the store that distinguish sweeps and their trials from other runs.

The key of a run is a hash of its submission. With a prefix on the key, the store needs no column for the kind of run.
"""

from __future__ import annotations

from cloudtrain.store.kinds import SWEEP, TRIAL, TUNER

__all__ = ["SWEEP", "TRIAL", "TUNER", "number_of", "trial_key", "trial_name", "trials_key"]


def trials_key(sweep: str) -> str:
    """Return the prefix of the keys of a sweep's trials."""
    return f"{TRIAL}{sweep}:"


def trial_key(sweep: str, number: int) -> str:
    """Return the key of one trial of a sweep."""
    return f"{trials_key(sweep)}{number:05d}"


def trial_name(sweep: str, number: int, counter: int = 1) -> str:
    """Return a trial's name, such as `digits-lr-1f3a9c2b-1-t007`. If the target already has another run of that name,
    `counter` is more than 1 and is appended."""
    return f"{sweep}-t{number:03d}" + (f"-{counter}" if counter > 1 else "")


def number_of(key: str) -> int:
    """Return the trial's number, which is part of its key."""
    return int(key.rpartition(":")[2])
