"""A SetupError that nobody catches ends a script with its words; the traceback would say nothing to a user."""

from __future__ import annotations

import sys

from .environment import detect_environment
from .errors import SetupError

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from types import TracebackType


def tell_setup_errors() -> None:
    """From now on; once is enough. Other errors go to whoever was told of them before."""
    before = sys.excepthook
    if before.__module__ == __name__:
        return

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not isinstance(error, SetupError):
            before(kind, error, traceback)
        elif _speaks():
            error.tell()

    sys.excepthook = hook


def _speaks() -> bool:
    """The processes of an instance find the same, so its first one says it; another instance may find other things."""
    try:
        return detect_environment().local_rank == 0
    except SetupError:  # perhaps the very one that is to be told
        return True
