"""The session of an SDK: region and credentials, without defaults from configuration files."""

from __future__ import annotations

from cloudtrain.targets.common.export.calls import Call

NO_CONFIGURATION = {"SchemaVersion": "1.0", "SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}}}
"""An explicit session configuration without defaults for jobs, which keeps the SDK from reading configuration files."""

NO_WAIT = {"wait": False}
"""The argument that makes printed code continue as soon as the job has started."""


def boto_session(region: str, profile: str | None) -> Call:
    """Return a boto3 session with the profile's credentials, or with boto3's default credentials."""
    return Call("boto3.Session", {"region_name": region} | ({"profile_name": profile} if profile else {}))
