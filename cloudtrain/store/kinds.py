"""Kinds of runs, distinguished by prefixes of their keys. An ordinary key is a hash, which never starts with such a
prefix.
"""

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
    """Return the name of the service for a run with the given key: the target's name, with a prefix such as `sweep:`
    for some kinds.
    """
    return next((kind + target for kind in (SWEEP, TUNER, AFTER) if key.startswith(kind)), target)
