"""Withdraw a run whose submitter died before a supervisor took over, so that it can never begin."""

from __future__ import annotations

import time
from pathlib import Path

from cloudtrain.errors import TargetUnreachable
from cloudtrain.system.lock import ProcessLock
from cloudtrain.targets.local.service.folder import RunFolder

_PATIENCE = 60.0
"""Seconds in which a supervisor that holds the lock must have written its status, which is one file."""


def withdraw(folder: RunFolder) -> bool:
    """Remove the launch specification that a supervisor would start from. Return False where a supervisor has taken
    over.

    A supervisor may just be starting. This function holds the lock under which the supervisor reads the specification.

    Raises:
        TargetUnreachable: a supervisor holds the lock and writes no status.
    """
    deadline = time.monotonic() + _PATIENCE
    if not Path(folder.path).is_dir():
        return True
    while (lock := ProcessLock.take(Path(folder.lock))) is None:
        if Path(folder.status).exists():
            return False
        if time.monotonic() > deadline:
            hint = f"look at its processes, and at `{folder.log}`"
            raise TargetUnreachable(f"the supervisor of `{Path(folder.path).name}` hangs at its start", hint=hint)
        time.sleep(0.01)
    try:
        if Path(folder.status).exists():
            return False
        Path(folder.launch).unlink(missing_ok=True)
        return True
    finally:
        lock.release()
