"""What an SDK has no word for."""

from __future__ import annotations

from collections.abc import Iterable

from cloudtrain.errors import TargetError


def refuse(sdk: str, paths: Iterable[str]) -> TargetError:
    """The error that names what an SDK has no word for, and what sends it all the same."""
    names = ", ".join(f"`{path}`" for path in paths)
    return TargetError(
        f"{sdk} cannot express {names}",
        hint="send the request itself: `boto3.client('sagemaker').create_training_job(**plan.request)`, "
        "or `cloudtrain submit`",
        code="CT904",
    )
