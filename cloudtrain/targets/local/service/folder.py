"""A run's folder: its files, and the status that the supervisor keeps there.

    launch.json         the launch specification, exactly as planned
    supervisor.lock     held for life by the supervisor (afterwards by the process that finishes a lost run)
    waiting             wakes the supervisor of a run that waits in the queue; see `queue.py`
    supervisor.log      the supervisor's own messages; empty unless something is wrong
    status.json         the state of the run; written whole, never in place
    unpacked            empty; made right after unpacking, so newer files are the script's
    output.jsonl        the journal: every line of output, and how far each file was read
    logs/rank_<r>.log   the output of one rank, all attempts, stdout and stderr as they came
    logs/instance_<i>/  the files that the processes write to themselves code/ model/ outputs/ checkpoint/
    steps/<r>           the newest step of each rank, written by the script's runtime
    preempted           written by the script's runtime when it saved and left early

A reader of the status may find the supervisor gone: the lock is free, and the state is not final. See `lost.py`.
"""

# Paths are strings here: this has to start, and to poll, in no time.
# ruff: noqa: PTH105, PTH108, PTH116, PTH123
from __future__ import annotations

import json
import os
from _thread import get_native_id  # threading's, without importing threading

from cloudtrain.system.private import open_private

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from typing import Any

    from cloudtrain.launch.specification import LaunchSpecification

FINAL = ("succeeded", "failed", "stopped", "lost")
"""The states that never change again. `RunState` has them too, but would cost the supervisor its imports."""

FORCED = "what did not leave within the grace period was killed"
"""Part of the reason of a run that was asked to stop and had to be killed."""

_SHORT = 3500
"""Bytes of a status that fit into the first block of a file. That block is on the disk already when the disk is
full."""


class RunFolder:
    """The paths of one run, with functions to read and write its status."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.launch = f"{path}/launch.json"
        self.lock = f"{path}/supervisor.lock"
        self.log = f"{path}/supervisor.log"
        self.status = f"{path}/status.json"
        self.journal = f"{path}/output.jsonl"
        self.logs = f"{path}/logs"
        self.steps = f"{path}/steps"
        self.preempted = f"{path}/preempted"
        self.unpacked = f"{path}/unpacked"

    def read_launch(self) -> LaunchSpecification:
        """Return the launch specification.

        Raises:
            TargetError: the file cannot be read, or is damaged.
        """
        from cloudtrain.launch.specification import LaunchSpecification  # 9 ms that no submitter need wait for

        try:
            with open(self.launch, "rb") as file:
                return LaunchSpecification.from_json(json.load(file))
        except (OSError, ValueError) as error:
            from cloudtrain.errors import TargetError

            hint = f"look into `{self.path}` for the run's files, and submit the job again"
            raise TargetError(f"the launch specification cannot be read: {error}", hint=hint, code="CT952") from error

    def read_status(self) -> dict[str, Any] | None:
        """Return the status, or None where no supervisor ever took the run over. A status that a power cut has broken
        is final."""
        try:
            with open(self.status, "rb") as file:
                status: dict[str, Any] = json.load(file)
        except FileNotFoundError:
            return None
        except ValueError as error:
            written = os.stat(self.status).st_mtime
            reason = f"its status cannot be read: {error}"
            return {**new_status(0, written), "state": "lost", "ended": written, "reason": reason}
        return status

    def write_status(self, status: dict[str, Any]) -> None:
        """Replace the status, whole. On a full disk, write a short form over the old status, which needs no space.

        Raises:
            OSError: not even that was possible.
        """
        temporary = f"{self.status}.{os.getpid()}.{get_native_id()}"
        try:
            with os.fdopen(open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
                file.write(json.dumps(status).encode())
                if status["state"] in FINAL:
                    file.flush()
                    os.fsync(file.fileno())  # nobody would write it again after a power cut
            os.replace(temporary, self.status)
        except OSError:
            _remove(temporary)
            self._write_short(status)

    def _write_short(self, status: dict[str, Any]) -> None:
        short = dict(status, details=[], metrics={}, reason=(status["reason"] or "")[:1000] or None)
        content = json.dumps(short).encode()
        assert len(content) < _SHORT, "everything long was left out"
        descriptor = os.open(self.status, os.O_WRONLY)
        try:
            os.pwrite(descriptor, content.ljust(os.fstat(descriptor).st_size), 0)  # whole JSON for every reader
        finally:
            os.close(descriptor)

    def read_preempted(self) -> dict[str, Any] | None:
        """Return the marker that the script's runtime left when it saved and left early: `step` and `signal`, if
        known."""
        try:
            with open(self.preempted, "rb") as file:
                marker = json.load(file)
        except OSError:
            return None
        except ValueError:  # written by a script of its own
            return {}
        return marker if isinstance(marker, dict) else {}


def new_status(pid: int, now: float, *, is_queued: bool = False) -> dict[str, Any]:
    """Return the status of a run that its supervisor just took over. The keys are those of `RunStatus`, and `pid`."""
    return {
        "state": "queued" if is_queued else "preparing",
        "reason": None,
        "started": None if is_queued else now,
        "ended": None,
        "details": [],
        "failed_rank": None,
        "exit_code": None,
        "restarts": 0,
        "metrics": {},
        "pid": pid,
    }


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
