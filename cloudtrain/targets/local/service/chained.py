"""Wait for the end of another run on this machine without polling.

The other run's supervisor holds a lock as long as it lives. This module requests a shared lock on the same file, which
the kernel grants when the supervisor ends for any reason.
"""

# Paths are strings here, because this module must start and poll quickly.
# ruff: noqa: PTH110
from __future__ import annotations

import fcntl
import os
import signal

from cloudtrain.targets.local.service.folder import FINAL, RunFolder
from cloudtrain.targets.local.service.lost import finish

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


class _Woken(BaseException):
    """Raised by the signal handler if the run is asked to stop while it waits for another run."""


def wait_for_end(run_dir: str, is_asked_to_stop: Callable[[], bool]) -> str | None:
    """Return the final state of the run in `run_dir`, or `gone` if its folder was deleted. Return None when the waiting
    run is asked to stop."""
    passed_on = signal.getsignal(signal.SIGTERM)

    def wake(number: int, frame: FrameType | None) -> None:
        assert callable(passed_on)
        signal.signal(signal.SIGTERM, passed_on)
        passed_on(number, frame)
        raise _Woken

    try:
        signal.signal(signal.SIGTERM, wake)  # if the handler returned, Python would continue to wait
        try:
            return None if is_asked_to_stop() else _end_of(RunFolder(run_dir))
        finally:
            signal.signal(signal.SIGTERM, passed_on)
    except _Woken:
        return None


def _end_of(folder: RunFolder) -> str:
    while True:
        if not os.path.exists(folder.lock):
            return "gone"
        descriptor = os.open(folder.lock, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)
        status = folder.read_status()
        if status is None:
            return "gone"
        if status["state"] in FINAL:
            return str(status["state"])
        finish(folder.path)  # its supervisor was killed
