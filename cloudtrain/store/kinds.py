"""Kinds of runs, told apart by the prefix of their keys. No hash starts with one of these prefixes."""

from __future__ import annotations

SWEEP = "sweep:"
"""A sweep that cloudtrain drives on this machine. Its trials can run on any target."""

TUNER = "tuner:"
"""A sweep that the target's own tuner drives."""

TRIAL = "trial:"
"""A run that belongs to one of cloudtrain's sweeps. Lists of runs leave it out."""


def service_name(key: str, target: str) -> str:
    """Return the name of the service of a run with that key: the target's name, or `sweep:NAME` or `tuner:NAME`."""
    return next((kind + target for kind in (SWEEP, TUNER) if key.startswith(kind)), target)
