"""A clock for code that waits: sleeping takes no time, and what is due meanwhile happens."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest


@dataclass
class Clock:
    """Stands for the module `time` in `cloudtrain.targets.common.services`. `slept` counts the seconds."""

    slept: float = 0.0
    _due: list[tuple[float, Callable[[], object]]] = field(default_factory=list)

    @classmethod
    def of_following(cls, monkeypatch: pytest.MonkeyPatch) -> Clock:
        """A clock by which runs are followed until the test is over."""
        clock = cls()
        monkeypatch.setattr("cloudtrain.targets.common.services.time", clock)
        return clock

    def at(self, seconds: float, happen: Callable[[], object]) -> None:
        """`happen` is called once so many seconds were slept."""
        self._due.append((seconds, happen))
        self._due.sort(key=lambda due: due[0])

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        while self._due and self._due[0][0] <= self.slept:
            self._due.pop(0)[1]()

    def monotonic(self) -> float:
        return self.slept

    def time(self) -> float:
        return time.time()
