"""What the command line does to its own process before anything is imported, and hides from the runs that it starts."""

from __future__ import annotations

import os

_ADDED: set[str] = set()


def without_pydantic_plugins() -> None:
    """Keep pydantic from looking for plugins: they have nothing to do in a command line, and the search through all
    installed packages takes 11 ms of the 70 that `import pydantic, typer` does."""
    if "PYDANTIC_DISABLE_PLUGINS" not in os.environ:
        os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
        _ADDED.add("PYDANTIC_DISABLE_PLUGINS")


def user_environment() -> dict[str, str]:
    """The environment as the user gave it."""
    return {name: value for name, value in os.environ.items() if name not in _ADDED}
