"""Kinds of runs, by the beginning of their keys: a word that no hash begins with."""

from __future__ import annotations

SWEEP = "sweep:"
"""A sweep that cloudtrain drives on this machine, whatever the target of its trials is."""

TUNER = "tuner:"
"""A sweep that the target's own tuner drives."""

TRIAL = "trial:"
"""A run that belongs to a sweep of ours; lists of runs leave it out."""


def service_name(key: str, target: str) -> str:
    """Which service a run of that key is at: the target's own name, or `sweep:NAME` and `tuner:NAME`."""
    return next((kind + target for kind in (SWEEP, TUNER) if key.startswith(kind)), target)
