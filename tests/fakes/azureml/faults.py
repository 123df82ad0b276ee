"""What goes wrong, on demand: the next N requests of a method and path are refused, slow, or lose their answers.

A method is one of HTTP or `*`; a path is a regular expression, searched in the request's path and in its short form
(`{WS}/jobs/name`).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

from tests.fakes.azureml.messages import Refused, Reply, Request

Kind = Literal["close before", "close after", "cut", "slow", "refuse", "say"]


@dataclass
class Fault:
    """The next `times` requests fail: see the methods of Faults."""

    method: str
    pattern: str
    kind: Kind
    times: int
    amount: float = 0
    """Bytes of the body that still get out before a cut; seconds for a slow answer."""
    refusal: Refused | None = None
    reply: Reply | None = None


class Faults:
    """The faults that are still to come."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []
        self._lock = threading.Lock()

    def close_before(self, method: str, pattern: str, times: int = 1) -> None:
        """The connection closes, and nothing was done."""
        self._add(Fault(method, pattern, "close before", times))

    def close_after(self, method: str, pattern: str, times: int = 1) -> None:
        """The work is done, and its answer is lost."""
        self._add(Fault(method, pattern, "close after", times))

    def cut(self, method: str, pattern: str, after: int, times: int = 1) -> None:
        """The connection closes when so many bytes of the answer's body are out."""
        self._add(Fault(method, pattern, "cut", times, after))

    def slow(self, method: str, pattern: str, seconds: float, times: int = 1) -> None:
        """The answer takes its time."""
        self._add(Fault(method, pattern, "slow", times, seconds))

    def refuse(
        self,
        method: str,
        pattern: str,
        status: int,
        code: str,
        message: str = "",
        *,
        times: int = 1,
        headers: dict[str, str] | None = None,
    ) -> None:
        """The service says no, in the form of whoever would have answered."""
        refusal = Refused(status, code, message or code, headers=headers)
        self._add(Fault(method, pattern, "refuse", times, refusal=refusal))

    def say(
        self,
        method: str,
        pattern: str,
        status: int,
        body: bytes,
        *,
        headers: dict[str, str] | None = None,
    ) -> None:
        """The answer is this one, byte for byte, such as one that was recorded; nothing is done."""
        self._add(Fault(method, pattern, "say", 1, reply=Reply(status, body, headers or {})))

    def throttle(
        self, method: str, pattern: str, times: int = 1, *, retry_after: float | None = 1
    ) -> None:
        """429, with Retry-After unless that is None."""
        headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}
        message = "The request is being throttled as the limit has been reached for operation type."
        self.refuse(method, pattern, 429, "TooManyRequests", message, times=times, headers=headers)

    def unavailable(self, method: str, pattern: str, times: int = 1, *, status: int = 503) -> None:
        """503, or 500, 502, 504."""
        message = "The service is temporarily unavailable. Try again."
        self.refuse(method, pattern, status, "ServiceError", message, times=times)

    def forbid(self, method: str, pattern: str, times: int = 1) -> None:
        """403, as ARM says it of a caller without the role."""
        message = (
            "The client 'ada@example.org' with object id '00000000-0000-0000-0000-00000000000a' does not have "
            "authorization to perform action over scope or the scope is invalid."
        )
        self.refuse(method, pattern, 403, "AuthorizationFailed", message, times=times)

    def expire_token(self, method: str, pattern: str, times: int = 1) -> None:
        """401, as ARM says it of a token whose time is over."""
        self.refuse(
            method, pattern, 401, "ExpiredAuthenticationToken",
            "The access token expiry UTC time is earlier than current UTC time.",
            times=times, headers={"WWW-Authenticate": 'Bearer error="invalid_token"'},
        )  # fmt: skip

    def next_for(self, request: Request) -> Fault | None:
        """The fault that a request meets."""
        with self._lock:
            for fault in self._waiting:
                if fault.times and request.matches(fault.method, fault.pattern):
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
