"""Our own Python processes beside a run: the supervisor and its guard."""

# Paths are strings here: this has to start, and to poll, in no time.
# ruff: noqa: PTH100, PTH120
from __future__ import annotations

import os
import sys

_BOOT = (
    "import sys; sys.path.append(sys.argv.pop(1)); from importlib import import_module; "
    "import_module(sys.argv.pop(1)).main(sys.argv[1:])"
)


def command(module: str, *arguments: str) -> list[str]:
    """Return the argv that runs `main(arguments)` of a module of this package.

    The process is isolated, so that neither the working directory nor PYTHONPATH can put a user's `json.py` before
    ours. It starts without `site`, which is half of the start-up time. Our own folder comes last on the path, after the
    standard library.
    """
    root = os.path.abspath(__file__)
    for _ in __name__.split("."):
        root = os.path.dirname(root)
    return [sys.executable, "-I", "-S", "-c", _BOOT, root, f"{__package__}.{module}", *arguments]
