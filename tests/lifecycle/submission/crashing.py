"""Submits one job through the public API, and kills itself at a chosen point on the way.

    python crashing.py POINT SOURCE_DIR [NAME]     POINT 0: never; otherwise the number of the point. NAME: of the job

Prints the run's name when it is told of it, and how many points it passed, on standard error, when it gets that far.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import cloudtrain as ct
from cloudtrain.lifecycle.store import Store
from cloudtrain.system import plugins as targets
from tests.fakes.file_target import FileService, FileTarget

targets.LOADED["local"] = FileTarget()

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


@dying
def tell(run: ct.Run) -> None:
    """What the command line does: the name on stdout."""
    print(run.name, "adopted" if run.adopted else "new", flush=True)


for owner, names in ((Store, ("reserve", "advance")), (FileService, ("upload", "has", "submit", "created"))):
    for name in names:
        setattr(owner, name, dying(getattr(owner, name)))

job_name = sys.argv[3] if len(sys.argv) > 3 else "job"
ct.submit(ct.TrainingJob(name=job_name, source_dir=sys.argv[2], entry_point="train.py"), "local", on_run=tell)
print(passed, file=sys.stderr)
