"""The files of a run's folder, such as the status that the supervisor writes.

    launch.json         the launch specification, exactly as planned
    supervisor.lock     locked by the supervisor as long as it lives (later by the process that
                        finishes a lost run)
    waiting             a FIFO that wakes the supervisor of a run in the queue; see `queueing.py`
    supervisor.log      the supervisor's own messages; empty unless something is wrong
    status.json         the status of the run; replaced in one atomic step
    unpacked            an empty file created after unpacking the code; all newer files are the
                        script's
    output.index        the journal of the output, with `output.sources` and the files
                        `logs/rank_<r>.log` and `logs/instance_<i>.log`
                        (`cloudtrain/signals/journal.py`)
    logs/instance_<i>/  the files that receive the output of the processes, until they end
    code/ model/ outputs/ checkpoint/
    metrics/            what the script reports and prints (`cloudtrain/runtime/metrics_file.py`)
    preempted           written by the script's runtime when it saved and exited early

If the lock is free and the state is not final, the supervisor has died. See `verdict.py`.
"""

# Paths are strings here, because this module must start and poll quickly.
from __future__ import annotations

import json
import os
import sys
from shlex import quote

from cloudtrain.system.private import replace_private

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from cloudtrain.system.processes import Owner
    from cloudtrain.targets.common.specification import LaunchSpecification


FINAL = ("succeeded", "failed", "stopped", "lost")
"""The states that never change again. `RunState` has them too, but importing it would slow down the
supervisor."""

QUEUED = "queued"
"""The supervisor's command-line argument for a run that waits in the queue or for other runs."""

FORCED = "processes that did not exit within the grace period were killed"
"""The part of a stopped run's reason that follows if its processes had to be killed."""

_SHORT = 3500
"""Maximum size in bytes of a short status. It fits into the file's first disk block, which exists
even when the disk is full."""


def run_folder(run_name: str, state_dir: Path) -> Path:
    return state_dir / "runs" / run_name


class RunFolder:
    """The paths of the files in a run's folder, with methods to read and write its status."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.launch: str = f"{path}/launch.json"
        self.lock: str = f"{path}/supervisor.lock"
        self.log: str = f"{path}/supervisor.log"
        self.status: str = f"{path}/status.json"
        self.old_journal: str = f"{path}/output.jsonl"
        """The journal of a run that an earlier version started: one JSON object for each line."""
        self.logs: str = f"{path}/logs"
        self.metrics: str = f"{path}/metrics"
        self.preempted: str = f"{path}/preempted"
        self.unpacked: str = f"{path}/unpacked"

    def read_launch(self) -> LaunchSpecification:
        """Read the launch specification. Raises `TargetError` if the file cannot be read, or is
        damaged."""
        # 9 ms that no submitter need wait for
        from cloudtrain.targets.common.specification import LaunchSpecification

        try:
            with open(self.launch, "rb") as file:
                return LaunchSpecification.from_json(json.load(file))
        except (OSError, ValueError) as error:
            from cloudtrain.errors import TargetError

            hint = f"save the files that you need from `{self.path}`, and submit the job again"
            raise TargetError(
                f"the launch specification cannot be read: {error}", hint=hint, code="CT952"
            ) from error

    def read_status(self) -> dict[str, Any] | None:
        """Read the status; None if no supervisor ever took over the run. If a power failure damaged
        the file, return a final status with the state `lost`. The same if this folder is a copy
        made while the run was going on: its supervisor is at work elsewhere, so nobody may end the
        run because of the copy."""
        try:
            with open(self.status, "rb") as file:
                status: dict[str, Any] = json.load(file)
            owner = status.setdefault("owner", None)  # of an earlier version
            if owner is not None and status["state"] not in FINAL:
                from cloudtrain.system.processes import Owner  # a final status does not need it

                supervisor = Owner(*owner)
                if not supervisor.owns(self.path):
                    copied_at = os.stat(self.status).st_mtime
                    reason = _why_copied(supervisor.path, os.path.realpath(self.path))
                    status |= {"state": "lost", "ended": copied_at, "reason": reason}
        except FileNotFoundError:
            return None
        except ValueError as error:
            end_time = os.stat(self.status).st_mtime
            reason = f"its status cannot be read: {error}"
            lost = {"state": "lost", "ended": end_time, "reason": reason}
            return new_status(None, end_time) | lost
        return status

    def write_status(self, status: dict[str, Any]) -> None:
        """Replace the status file in one atomic step. On a full disk, overwrite the old file with a
        short status, which needs no additional space. Raises `OSError` if even that cannot be
        written."""
        is_final = status["state"] in FINAL  # after a power failure, nobody would write it again
        try:
            replace_private(self.status, json.dumps(status).encode(), sync=is_final)
        except OSError:
            reason = (status["reason"] or "")[:500] or None
            short = dict(status, details=[], metrics={}, reason=reason)
            content = json.dumps(short).encode()
            assert len(content) < _SHORT, "everything long was left out"
            descriptor = os.open(self.status, os.O_WRONLY)
            try:
                size = os.fstat(descriptor).st_size
                # filled up, so that every reader finds complete JSON
                os.pwrite(descriptor, content.ljust(size), 0)
            finally:
                os.close(descriptor)

    def read_preempted(self) -> dict[str, Any] | None:
        """Read the marker that the script's runtime wrote when it saved and exited early: `step`
        and `signal`, if known. Return None without a marker."""
        try:
            with open(self.preempted, "rb") as file:
                marker = json.load(file)
        except OSError:
            return None
        except ValueError:  # the script wrote the file itself
            return {}
        return marker if isinstance(marker, dict) else {}


def _why_copied(path: str, here: str) -> str:
    """Return the reason of a run in the folder `here`, which is a copy of the folder `path`."""
    if here == path:
        return "its folder was replaced by a copy, made while the run was going on"
    state_dir, _, name = path.rpartition("/runs/")
    return (
        f"this is a copy of the run's folder, made while the run was going on in `{path}`; "
        f"`CLOUDTRAIN_STATE_DIR={quote(state_dir)} cloudtrain status {name}` asks the run itself"
    )


def new_status(
    owner: Owner | None, now: float, *, token: str = "", is_queued: bool = False
) -> dict[str, Any]:
    """Return the first status of a run. The keys are `pid` and `owner`, which identify the
    supervisor, `token`, which the run's processes have in their environment, and fields of
    `RunStatus`."""
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
        "pid": owner.pid if owner else 0,
        "owner": owner,
        "token": token,
    }


# The Python processes that cloudtrain starts for a run: the supervisor and its guard.

_BOOT = (
    "import sys; sys.path.append(sys.argv.pop(1)); from importlib import import_module; "
    "import_module(sys.argv.pop(1)).main(sys.argv[1:])"
)


def command(module: str, *arguments: str) -> list[str]:
    """Return the argv of a Python process that runs `main(arguments)` of `module`, a module of this
    package. The process is isolated, so it never imports a user's `json.py` in place of the
    standard library's. It skips `site`, which would double its start-up time. cloudtrain's own
    folder comes last in `sys.path`."""
    root = os.path.abspath(__file__)
    # up to the folder that holds the package
    for _ in __name__.split("."):
        root = os.path.dirname(root)
    return [sys.executable, "-I", "-S", "-c", _BOOT, root, f"{__package__}.{module}", *arguments]
