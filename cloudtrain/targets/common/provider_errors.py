"""What a provider says when it says no, whichever it is."""

from __future__ import annotations

from cloudtrain.errors import TargetError


class NotThere(TargetError):
    """What was asked for does not exist: a job, a log, an asset, a file."""

    code = "CT947"


class Denied(TargetError):
    """The credentials are good, and may not do this."""

    code = "CT943"


class Expired(TargetError):
    """The credentials were good once."""

    code = "CT944"
