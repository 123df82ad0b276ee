"""`STATE_DIR NAME TARGET POINT`: a watcher that dies at a point of its way; at none where POINT is 0.

Points are its own steps, and before and after each step of the store and of the service.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from cloudtrain.lifecycle.detached.driven import DrivenFolder
from cloudtrain.lifecycle.store.store import Store
from cloudtrain.lifecycle.watcher import watch
from cloudtrain.targets.registry import target_of

POINTS = 22

_STEPS: list[str] = []


def point(name: str) -> None:
    """One point."""
    _STEPS.append(name)
    if len(_STEPS) == int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)


def around(method: Callable[..., Any]) -> Callable[..., Any]:
    """With a point before and after it."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        point(f"before {method.__name__}")
        result = method(*args, **kwargs)
        point(f"after {method.__name__}")
        return result

    return wrapped


if __name__ == "__main__":
    state_dir, name = Path(sys.argv[1]), sys.argv[2]
    service: Any = type(target_of(sys.argv[3]).service(environ=os.environ, state_dir=state_dir))
    owners: tuple[tuple[Any, tuple[str, ...]], ...] = (
        (Store, ("reserve", "advance", "mark_sent")),
        (service, ("upload", "submit")),
    )
    for owner, names in owners:
        for method in names:
            setattr(owner, method, around(getattr(owner, method)))
    watch(DrivenFolder(state_dir, "chain", name), lambda: None, point)
    print(len(_STEPS))
