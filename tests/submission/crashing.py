"""Submits one job through the public API, and kills itself at a chosen point on the way.

    python crashing.py POINT [SOURCE_DIR]       POINT 0: never; otherwise the number of the point

Prints the run's name when it got that far, and always how many points it passed, on standard error.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import cloudtrain as ct
from cloudtrain import backends
from cloudtrain.store.store import Store
from tests.fakes.file_backend import FileBackend

backends.BUILT_IN["local"] = "tests.fakes.file_backend:FileBackend"

passed = 0


def point() -> None:
    """One more moment at which the process may die, as if by a power cut."""
    global passed
    passed += 1
    if passed == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)


def dying(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, with a point before and after it."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        point()
        result = method(*args, **kwargs)
        point()
        return result

    return wrapped


for owner, names in ((Store, ("reserve", "advance")), (FileBackend, ("upload", "submit", "created"))):
    for name in names:
        setattr(owner, name, dying(getattr(owner, name)))

run = ct.submit(ct.TrainingJob(name="job", source_dir=sys.argv[2], entry_point="train.py"), "local")
print(run.name, "adopted" if run.adopted else "new")
print(passed, file=sys.stderr)
