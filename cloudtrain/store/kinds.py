"""Kinds of runs, told apart by the prefix of their keys. No hash starts with one of these prefixes."""

from __future__ import annotations

SWEEP = "sweep:"
"""A sweep that cloudtrain drives on this machine. Its trials can run on any target."""

TUNER = "tuner:"
"""A sweep that the target's own tuner drives."""

TRIAL = "trial:"
"""A run that belongs to one of cloudtrain's sweeps. Lists of runs leave it out."""


AFTER = "after:"
"""A run that waits on this machine for the runs that it reads from, and that its target does not have yet."""


def service_name(key: str, target: str) -> str:
    """Return the name of the service of a run with that key: the target's name, or with a kind before it, such as
    `sweep:NAME`."""
    return next((kind + target for kind in (SWEEP, TUNER, AFTER) if key.startswith(kind)), target)
