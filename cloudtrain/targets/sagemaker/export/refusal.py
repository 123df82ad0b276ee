"""The error for requests that an SDK cannot express."""

from __future__ import annotations

from collections.abc import Iterable

from cloudtrain.errors import TargetError


def refuse(sdk: str, paths: Iterable[str]) -> TargetError:
    """Return an error that names the fields that an SDK cannot express, and a way to send them anyway."""
    names = ", ".join(f"`{path}`" for path in paths)
    return TargetError(
        f"{sdk} cannot express {names}",
        hint="send the request itself: `boto3.client('sagemaker').create_training_job(**plan.request)`, "
        "or `cloudtrain submit`",
        code="CT904",
    )
