"""Show an uncaught SetupError as a message without a traceback."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

from .environment import detect_environment
from .errors import OTHER_MODEL_HINT, SetupError

loaded_paths: list[Path] = []
"""The checkpoint that this process has loaded, if any."""


def tell_setup_errors() -> None:
    """Show uncaught SetupErrors as messages from now on, and that a loaded checkpoint is of another
    model. Other errors go to the previous `sys.excepthook`. Repeated calls have no effect."""
    before = sys.excepthook
    if before.__module__ == __name__:
        return

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        # torch's words
        if loaded_paths and str(error).startswith("Error(s) in loading state_dict"):
            message = f"{error}\n(loaded: the checkpoint `{loaded_paths[-1]}`)"
            error = SetupError(message, hint=OTHER_MODEL_HINT)
        if not isinstance(error, SetupError):
            before(kind, error, traceback)
        elif not error.on_every_rank or _speaks():
            error.tell()

    sys.excepthook = hook


def _speaks() -> bool:
    """Return whether this process reports a SetupError that all processes of its instance find.
    Only the first process of each instance does."""
    try:
        return detect_environment().local_rank == 0
    except SetupError:  # perhaps the very one to report
        return True
