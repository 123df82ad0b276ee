"""A supervisor that kills itself at one of the points at which it has to do with the queue. Standard library alone.

`DIES_AT` says at which point, counted from 1; with `POINTS` in the environment, that file gets a line for each point.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

BOOT = (
    "import sys; sys.path.append(sys.argv.pop(1)); from importlib import import_module; "
    "import_module('tests.targets.local.dying_queue').install(); import_module(sys.argv.pop(1)).main(sys.argv[1:])"
)

_passed = 0


def _point(name: str) -> None:
    global _passed
    _passed += 1
    if file := os.environ.get("POINTS"):
        with open(file, "a") as stream:
            stream.write(f"{name}\n")
    if str(_passed) == os.environ.get("DIES_AT"):
        os.kill(os.getpid(), signal.SIGKILL)


def _dying(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        _point(f"before {name}")
        result = function(*args, **kwargs)
        _point(f"after {name}")
        return result

    return wrapped


def install() -> None:
    """Put points around what a queued run does, from its first status to the place that it gives back."""
    from cloudtrain.targets.local import processes as launched
    from cloudtrain.targets.local import queueing, supervisor
    from cloudtrain.targets.local.folder import RunFolder
    from cloudtrain.targets.local.queueing import Queue
    from cloudtrain.targets.local.waiting import QueuePlace

    points: list[tuple[Any, str]] = [
        (RunFolder, "write_status"),
        (QueuePlace, "enter"),
        (QueuePlace, "leave"),
        (QueuePlace, "_sleep"),
        (Queue, "_wake"),
        (queueing, "replace_private"),
        (launched, "launch"),
        (supervisor, "_answer"),
        (supervisor, "_start_guard"),
    ]
    for owner, name in points:
        setattr(owner, name, _dying(name.strip("_"), getattr(owner, name)))
