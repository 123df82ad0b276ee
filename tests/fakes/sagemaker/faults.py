"""What goes wrong, on demand: the next N requests of an operation are refused, or their answers are lost."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["close before", "close after", "refuse", "say"]


class Refused(Exception):
    """The service says no: its error code, message and HTTP status."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


@dataclass
class Fault:
    """`operation` fails `times` times: the connection closes before or after the work, it is refused, or it gets an
    answer that was written down."""

    operation: str
    kind: Kind
    times: int
    refusal: Refused | None = None
    answer: Mapping[str, Any] | None = None


class Faults:
    """The faults that are still to come."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []
        self._lock = threading.Lock()

    def close_before(self, operation: str, times: int = 1) -> None:
        """The connection closes, and nothing was done."""
        self._add(Fault(operation, "close before", times))

    def close_after(self, operation: str, times: int = 1) -> None:
        """The work is done, and its answer is lost."""
        self._add(Fault(operation, "close after", times))

    def refuse(
        self, operation: str, code: str, message: str = "", *, status: int = 400, times: int = 1
    ) -> None:
        """The service says no."""
        self._add(Fault(operation, "refuse", times, Refused(code, message or code, status)))

    def say(self, operation: str, answer: Mapping[str, Any], times: int = 1) -> None:
        """The service answers so, whatever it holds."""
        self._add(Fault(operation, "say", times, answer=answer))

    def throttle(self, operation: str, times: int = 1) -> None:
        """As SageMaker does it."""
        self.refuse(operation, "ThrottlingException", "Rate exceeded", times=times)

    def next_for(self, operation: str) -> Fault | None:
        """The fault that the next request of an operation meets."""
        with self._lock:
            for fault in self._waiting:
                if fault.operation in (operation, "*") and fault.times:
                    fault.times -= 1
                    return fault
        return None

    def clear(self) -> None:
        """Everything works again."""
        with self._lock:
            self._waiting.clear()

    def _add(self, fault: Fault) -> None:
        with self._lock:
            self._waiting.append(fault)
