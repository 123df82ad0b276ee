"""The prefixes of the keys by which the store tells sweeps and their trials from other runs.

A key is a hash of what makes two submissions the same, so that a word before it costs no column.
"""

from __future__ import annotations

from cloudtrain.store.kinds import SWEEP, TRIAL, TUNER

__all__ = ["SWEEP", "TRIAL", "TUNER", "number_of", "trial_key", "trial_name", "trials_key"]


def trials_key(sweep: str) -> str:
    """Return the prefix of the keys of a sweep's trials."""
    return f"{TRIAL}{sweep}:"


def trial_key(sweep: str, number: int) -> str:
    """Return the key of one trial."""
    return f"{trials_key(sweep)}{number:05d}"


def trial_name(sweep: str, number: int, counter: int = 1) -> str:
    """Return a trial's name, such as `digits-lr-1f3a9c2b-1-t007`. The counter is more than 1 where the target has
    another run of that name."""
    return f"{sweep}-t{number:03d}" + (f"-{counter}" if counter > 1 else "")


def number_of(key: str) -> int:
    """Return the number of the trial with that key."""
    return int(key.rpartition(":")[2])
