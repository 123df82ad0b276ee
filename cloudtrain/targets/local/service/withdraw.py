"""Withdraw a run whose submitter died before a supervisor took over, so that the run can never start."""

from __future__ import annotations

import time
from pathlib import Path

from cloudtrain.errors import TargetUnreachable
from cloudtrain.system.lock import ProcessLock
from cloudtrain.targets.local.service.folder import RunFolder

_PATIENCE = 60.0
"""Seconds to wait until a supervisor that holds the lock has written the status file."""


def withdraw(folder: RunFolder) -> bool:
    """Remove the launch specification, which a supervisor needs to start. Return False if a supervisor has already
    taken over.

    A supervisor may be starting at the same time, so this function holds the lock that a supervisor needs to read
    the specification.

    Raises:
        TargetUnreachable: a supervisor holds the lock but writes no status.
    """
    deadline = time.monotonic() + _PATIENCE
    if not Path(folder.path).is_dir():
        return True
    while (lock := ProcessLock.take(Path(folder.lock))) is None:
        if Path(folder.status).exists():
            return False
        if time.monotonic() > deadline:
            hint = f"look at its process, and at `{folder.log}`"
            raise TargetUnreachable(
                f"the supervisor of `{Path(folder.path).name}` does not respond at its start", hint=hint
            )
        time.sleep(0.01)
    try:
        if Path(folder.status).exists():
            return False
        Path(folder.launch).unlink(missing_ok=True)
        return True
    finally:
        lock.release()
