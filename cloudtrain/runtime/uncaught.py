"""Show an uncaught SetupError as a message without a traceback."""

from __future__ import annotations

import sys
from contextlib import suppress
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
            return
        local_rank = 0
        with suppress(SetupError):  # perhaps the very one to report
            local_rank = detect_environment().local_rank
        # what all processes of an instance find, the first one reports
        if local_rank == 0 or not error.on_every_rank:
            error.tell()

    sys.excepthook = hook
