"""The folder of a run that a detached process drives. For a sweep, it is `sweeps/NAME` in the state folder.

sweep.json     the specification, exactly as planned
code.tar.gz    the code, for trials whose target has lost it
driver.lock    locked by the driver as long as it lives
continue.lock  locked by `continue` and `rerun` until the driver has taken over
driver.log     the driver's own output; empty unless something is wrong
status.json    the state of the sweep. The file never grows, so the last state can be written even if the disk is full
study.jsonl    the journal: see `study.py`
stop           written by `cloudtrain stop`, so that the driver stops every trial and ends
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, ClassVar

from cloudtrain.core.states import RunState
from cloudtrain.system.lock import is_held
from cloudtrain.system.private import make_private_folder, open_private

_SIZE = 4096
"""Fixed size of `status.json` in bytes. The file is rewritten in place, in one block."""

GLANCE = 0.5
"""Seconds for which a process that needs a lock of this folder tries again. A process that reads the status of a run
holds each lock for some microseconds."""


class DrivenFolder:
    """The folder of one run that a detached process drives: its paths, and methods to read and write its status."""

    kind: ClassVar[str]

    def __init__(self, state_dir: Path, name: str) -> None:
        self.name = name
        self.path = state_dir / f"{self.kind}s" / name
        self.specification = self.path / f"{self.kind}.json"
        self.archive = self.path / "code.tar.gz"
        self.lock = self.path / "driver.lock"
        self.turn = self.path / "continue.lock"
        self.log = self.path / "driver.log"
        self.status = self.path / "status.json"
        self.stop = self.path / "stop"

    @property
    def is_driven(self) -> bool:
        """Whether a driver process is alive."""
        return is_held(self.lock)

    @property
    def is_continuing(self) -> bool:
        """Whether a command is starting the driver again."""
        return is_held(self.turn)

    def write_status(self, state: RunState, reason: str | None, *, started: float, **more: Any) -> None:
        """Replace the status. `reason` explains the state, `started` is the run's start in seconds since the epoch, and
        `more` are additional fields.

        Raises:
            OSError: the status cannot be written.
        """
        make_private_folder(self.path)
        ended = time.time() if state.is_final else None
        content = {
            "state": str(state),
            "reason": reason,
            "started": started,
            "ended": ended,
            "pid": os.getpid(),
            **more,
        }
        text = json.dumps(content)
        if len(text) > _SIZE:
            text = json.dumps({**content, "reason": (reason or "")[:500], "metrics": {}})
        descriptor = open_private(self.status, os.O_WRONLY | os.O_CREAT)
        try:
            os.pwrite(descriptor, text.encode().ljust(_SIZE), 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read_status(self) -> dict[str, Any] | None:
        """Return the status; None if no driver has ever taken over the run."""
        for _ in range(3):
            try:
                found: dict[str, Any] = json.loads(self.status.read_bytes())
            except FileNotFoundError:
                return None
            except ValueError:  # being written
                time.sleep(0.01)
            else:
                return found
        return {"state": "lost", "reason": "its status cannot be read", "started": None, "ended": None, "pid": 0}


class SweepFolder(DrivenFolder):
    """The folder of one sweep: `sweeps/NAME` in the state folder."""

    kind = "sweep"
