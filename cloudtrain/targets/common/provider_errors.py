"""Errors of a service in a common form for all providers."""

from __future__ import annotations

from cloudtrain.errors import TargetError


class NotThere(TargetError):
    """The job, log, asset or file does not exist."""

    code = "CT947"


class Denied(TargetError):
    """The credentials are valid but lack the permission."""

    code = "CT943"


class Expired(TargetError):
    """The credentials have expired."""

    code = "CT944"
