"""What the command line does to its own process: before anything is imported, hidden from its runs, and at its end."""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from typing import NoReturn

_ADDED: set[str] = set()


def without_pydantic_plugins() -> None:
    """Keep pydantic from looking for plugins: they have nothing to do in a command line, and the search through all
    installed packages takes 11 ms of the 70 that `import pydantic, typer` does."""
    if "PYDANTIC_DISABLE_PLUGINS" not in os.environ:
        os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
        _ADDED.add("PYDANTIC_DISABLE_PLUGINS")


def collect_rarely() -> None:
    """Let the garbage collector come by after 200,000 new objects instead of 700: what a command imports at its start
    lives as long as it does."""
    gc.set_threshold(200_000, 20, 100)


def leave_at_once(exit_code: int) -> NoReturn:
    """What an interpreter does at its end, but for taking apart all that was imported: the process gives its memory
    back anyway, and that takes 30 ms."""
    import atexit
    import threading

    try:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads; has no public name
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(exit_code)


def user_environment() -> dict[str, str]:
    """The environment as the user gave it."""
    return {name: value for name, value in os.environ.items() if name not in _ADDED}
