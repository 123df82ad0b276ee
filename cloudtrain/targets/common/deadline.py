"""Optional queries to a service, with a deadline. A query that is not answered in time is ignored."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Generic, TypeVar

T = TypeVar("T")


def check_timeout() -> float:
    """Return the time limit in seconds for all optional queries of one check together.

    The environment variable `CLOUDTRAIN_CHECK_TIMEOUT` sets it. If its value is missing or is not a positive number,
    the limit is 3 seconds.
    """
    try:
        seconds = float(os.environ.get("CLOUDTRAIN_CHECK_TIMEOUT", ""))
    except ValueError:
        return 3.0
    return seconds if 0 < seconds <= threading.TIMEOUT_MAX else 3.0


class Deadline(Generic[T]):
    """One deadline for several queries.

    The queries run in daemon threads, so that the process can exit although a query still waits for its answer.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def answers(self, questions: Sequence[Callable[[], T]]) -> list[T]:
        """Call all `questions` at the same time. Return the results that arrive before the deadline, in the order of
        the questions. If one of the calls raises an error, raise it."""
        found: dict[int, T] = {}
        failed: list[BaseException] = []

        def ask(number: int) -> None:
            try:
                found[number] = questions[number]()
            except BaseException as error:  # noqa: BLE001 - raised again where somebody waits
                failed.append(error)

        threads = [Thread(target=ask, args=(number,), daemon=True) for number in range(len(questions))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, self._end - time.monotonic()))
        if failed:
            raise failed[0]
        answered = dict(found)
        return [answered[number] for number in sorted(answered)]
