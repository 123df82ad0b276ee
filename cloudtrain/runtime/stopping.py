"""Graceful stop: on SIGTERM (a spot interruption or a user's stop) the script can save and exit
with code 0.

    runtime.watch_for_stop()
    for step in ...:
        ...
        if runtime.should_stop():
            checkpoints.save(state, step)
            runtime.exit_preempted(step)

The marker file `preempted` tells the launcher that the run was stopped before it finished. The exit
code does not show this, because torchrun exits with code 1 after SIGTERM even if all its processes
exit with code 0.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn, SupportsIndex

from .atomic import whole_step, write_file
from .directories import checkpoint_dir, run_dir
from .environment import detect_environment
from .process_group import any_rank, destroy_process_group

MARKER = "preempted"

# signal numbers, in order; a list, because a handler may interrupt anything
_received: list[int] = []


def watch_for_stop(*signals: signal.Signals) -> None:
    """Make SIGTERM (or `signals`) only set a flag. Call it in the main thread, before training.

    A second signal has no effect, so it cannot interrupt a save. A file `preempted` of an earlier
    run is removed.
    """
    _received.clear()
    for number in signals or (signal.SIGTERM,):
        signal.signal(number, _remember)
    if detect_environment().is_main:
        _marker().unlink(missing_ok=True)


def should_stop() -> bool:
    """Return whether any rank has received the stop signal. The answer is the same on all ranks, so
    every rank must call this function, at the same step."""
    return any_rank(bool(_received))


def leave_stops_to_the_parent(_worker: int = 0) -> None:
    """Ignore SIGTERM in a helper process, such as a `DataLoader`'s worker. Pass this function as
    `worker_init_fn`. Launchers also send SIGTERM to the workers, but a worker must not end before
    its parent has saved a checkpoint. The worker ends when its parent ends."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def exit_preempted(step: SupportsIndex | None = None) -> NoReturn:
    """Write the marker file `preempted`, wait for all ranks, and exit with code 0. `step` is stored
    in the file. Save a checkpoint before this call."""
    if step is not None:
        step = whole_step(step)
    if detect_environment().is_main:
        name = signal.Signals(_received[0]).name if _received else None
        marker = {"step": step, "signal": name, "time": round(time.time(), 3)}
        write_file(_marker(), json.dumps(marker).encode() + b"\n")
    destroy_process_group()
    raise SystemExit(0)


def _marker() -> Path:
    return (run_dir() or checkpoint_dir()) / MARKER


def _remember(number: int, _frame: FrameType | None) -> None:
    if not _received and sys.stderr is not None:
        # os.write, because the signal may have interrupted a print
        name = signal.Signals(number).name
        os.write(2, f"cloudtrain: {name} received; stopping after this step\n".encode())
    _received.append(number)
