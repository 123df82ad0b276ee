"""What a test needs of its machine: a system, or packages of exact versions."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest
from packaging.version import Version

from cloudtrain.system.processes import HAS_PROC
from cloudtrain.targets.sagemaker.catalogue import shapes

needs_proc = pytest.mark.skipif(not HAS_PROC, reason="needs /proc")
"""As cloudtrain sees it, which the imitation of a Mac hides it from."""

PINNED = "CLOUDTRAIN_TEST_PINNED" in os.environ
"""Read before the fixtures that remove cloudtrain's variables."""


def skip_guard(reason: str) -> NoReturn:
    """Skip a comparison for which another version is installed. Where CLOUDTRAIN_TEST_PINNED is set, as in CI, the
    exact versions must be there, and the test fails: a guard that skips guards nothing."""
    if PINNED:
        pytest.fail(reason)
    pytest.skip(reason)


def skip_older_botocore() -> None:
    """Skip a comparison with what botocore knows of the service, where it is older than our copy."""
    botocore = pytest.importorskip("botocore")
    ours = shapes._model()["botocore"]
    if Version(botocore.__version__) < Version(ours):
        skip_guard(f"made with botocore {ours}, here is {botocore.__version__}")
