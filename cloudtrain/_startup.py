"""What the command line does to its own process before anything is imported, and hides from the runs that it starts."""

from __future__ import annotations

import gc
import os

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


def leave_at_once() -> None:
    """No garbage collection at the end: the process gives all its memory back anyway, and a last look through all
    that was imported takes 15 ms."""
    gc.disable()


def user_environment() -> dict[str, str]:
    """The environment as the user gave it."""
    return {name: value for name, value in os.environ.items() if name not in _ADDED}
