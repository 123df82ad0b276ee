"""Pause the script at a chosen step, so that a rehearsal's SIGTERM arrives at this step and not
hundreds of quick steps later.

`cloudtrain rehearse` sets CLOUDTRAIN_HOLD_AT_STEP. Rank 0 reports that step and waits in `report`
for the signal; the other ranks wait for rank 0 in their next collective. The script's own handler
handles the signal as usual. A script that ignores SIGTERM waits until it is killed.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "CLOUDTRAIN_HOLD_AT_STEP"

_PATIENCE = 600.0
"""Seconds after which the signal is no longer expected."""


@contextmanager
def hold_at(step: float) -> Iterator[None]:
    """Run the body, which prints the metric line of `step`. Then wait for SIGTERM if `step` is at
    least the step in CLOUDTRAIN_HOLD_AT_STEP. A process waits only once.

    A SIGTERM that arrives while the body runs counts, because the rehearsal sends it as soon as it
    reads the line.
    """
    text = os.environ.get(VARIABLE, "")
    is_due = text.isdecimal() and step >= int(text)
    handles_signals = threading.current_thread() is threading.main_thread()
    if not is_due or not handles_signals:
        yield
        return
    del os.environ[VARIABLE]
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    try:
        yield
        deadline = time.monotonic() + _PATIENCE
        while (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([reader], [], [], left)
            if ready and signal.SIGTERM in os.read(reader, 64):
                break
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)
