"""The reference, state and kinds of runs, in the same terms for every target."""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from cloudtrain.errors import UsageError

REHEARSAL = "-rehearsal"
"""Suffix of the job name under which the runs of a rehearsal are listed."""


class RunState(str, Enum):
    """The state of a run. Each target maps its provider's states to these values."""

    PENDING = "pending"
    QUEUED = "queued"
    PREPARING = "preparing"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"

    @property
    def is_final(self) -> bool:
        """Whether the state is final, which means that the run will never change again."""
        return self in FINAL

    def __str__(self) -> str:
        return self.value


FINAL = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED, RunState.LOST})

_REFERENCE = r"(?P<target>[a-z][a-z0-9_]*)://(?P<place>[^/]+)/(?P<name>[^/]+)"


class RunRef(NamedTuple):
    """The reference of a run, `target://place/name`, such as
    `sagemaker://eu-west-1/cifar10-3f9a1c22-1`.

    `place` is the region, the workspace, or for local runs the host.
    """

    target: str
    place: str
    name: str

    def __str__(self) -> str:
        return f"{self.target}://{self.place}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> RunRef:
        """Parse a reference of the form `target://place/name`.

        Raises:
            UsageError: the text is not a run reference.
        """
        match = re.fullmatch(_REFERENCE, text)
        if match is None:
            hint = "a reference looks like `local://host/name`"
            raise UsageError(f"`{text}` is not a run reference", hint=hint, code="CT933")
        return cls(**match.groupdict())


# Kinds of runs, distinguished by prefixes of their keys. An ordinary key is a hash, which never
# starts with such a prefix.

SWEEP = "sweep:"
"""A sweep that cloudtrain drives on this machine. Its trials can run on any target."""

TUNER = "tuner:"
"""A sweep that the target's own tuner drives."""

TRIAL = "trial:"
"""A run that belongs to one of cloudtrain's sweeps. Lists of runs leave it out."""


AFTER = "after:"
"""A run that waits on this machine for the runs that it reads from, and that its target does not
have yet."""

CAPACITY = "capacity:"
"""A list of alternatives, of which cloudtrain tries one after the other until one has capacity. Its
tries have the key of a trial."""


def service_name(key: str, target: str) -> str:
    """Return the name of the service for a run with the given key: the target's name, with a prefix
    such as `sweep:` for some kinds."""
    for kind in (SWEEP, TUNER, AFTER, CAPACITY):
        if key.startswith(kind):
            return kind + target
    return target
