"""The progress of an upload as one line on a terminal. Without a terminal, nothing is printed."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

from cloudtrain.core.units import format_size

_PAUSE = 0.1
"""Seconds between two drawings of the line."""


def upload_progress() -> Callable[[int, int], None] | None:
    """Return a function that takes the bytes sent and the total, and draws the progress; None if stderr is not a
    terminal."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return None
    lock, drawn = threading.Lock(), 0.0

    def show(sent: int, total: int) -> None:
        nonlocal drawn
        with lock:  # parts of a large upload report from several threads
            now = time.monotonic()
            if sent < total and now - drawn < _PAUSE:
                return
            drawn = now
            share = sent / total if total else 1.0
            end = "\n" if sent >= total else ""
            sys.stderr.write(f"\r\033[Kuploading: {share:4.0%} of {format_size(total)}{end}")
            sys.stderr.flush()

    return show
