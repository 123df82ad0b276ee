"""A workspace of Azure ML for a notebook: the fake service on loopback, whose jobs really run, on this machine."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from tests.fakes.azureml import FakeAzure
from tests.fakes.azureml.runner import Runner


def pretended_workspace() -> FakeAzure:
    """Starts the service and leads this process to it; runs are kept apart from one's own.

    It lives as long as the process.
    """
    fake = FakeAzure().__enter__()
    root = Path(tempfile.mkdtemp(prefix="cloudtrain-notebook-"))
    runner = Runner(fake, root / "machines")
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    atexit.register(fake.__exit__)
    atexit.register(runner.clean_up)
    os.environ |= fake.environ | {"CLOUDTRAIN_STATE_DIR": str(root / "state")}
    return fake
