"""The Python processes that cloudtrain starts for a run: the supervisor and its guard."""

# Paths are strings here, because this module must start and poll quickly.
# ruff: noqa: PTH100, PTH120
from __future__ import annotations

import os
import sys

_BOOT = (
    "import sys; sys.path.append(sys.argv.pop(1)); from importlib import import_module; "
    "import_module(sys.argv.pop(1)).main(sys.argv[1:])"
)


def command(module: str, *arguments: str) -> list[str]:
    """Return the argv of a Python process that runs `main(arguments)` of `module`, a module of this package.

    The process is isolated, so it never imports a user's `json.py` from the working directory or PYTHONPATH in place of
    the standard library's. It skips `site`, which would double its start-up time. cloudtrain's own folder comes last in
    `sys.path`.
    """
    root = os.path.abspath(__file__)
    for _ in __name__.split("."):
        root = os.path.dirname(root)
    return [sys.executable, "-I", "-S", "-c", _BOOT, root, f"{__package__}.{module}", *arguments]
