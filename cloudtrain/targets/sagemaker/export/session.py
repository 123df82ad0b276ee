"""The session of an SDK: the region, the credentials, and no defaults from files."""

from __future__ import annotations

from cloudtrain.targets.common.export.calls import Call

NO_CONFIGURATION = {"SchemaVersion": "1.0", "SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}}}
"""A session's configuration that sets no defaults for jobs. Given, it keeps the SDK from looking for files."""

NO_WAIT = {"wait": False}
"""What printed code says, so that it goes on when the job has started."""


def boto_session(region: str, profile: str | None) -> Call:
    """A session of boto3, with the credentials of the profile or of the surroundings."""
    return Call("boto3.Session", {"region_name": region} | ({"profile_name": profile} if profile else {}))
