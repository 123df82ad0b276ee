"""The error for requests that an SDK cannot express."""

from __future__ import annotations

from collections.abc import Iterable

from cloudtrain.errors import TargetError


def refuse(sdk: str, paths: Iterable[str]) -> TargetError:
    """Return an error with all fields that an SDK cannot express. Its hint says how to send them without the SDK."""
    names = ", ".join(f"`{path}`" for path in paths)
    return TargetError(
        f"{sdk} cannot express {names}",
        hint="send the request itself: `boto3.client('sagemaker').create_training_job(**plan.request)`, "
        "or `cloudtrain submit`",
        code="CT904",
    )
