"""Optional questions with a deadline. A question without an answer in time counts as not asked."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Generic, TypeVar

T = TypeVar("T")


def check_timeout() -> float:
    """Return how many seconds all optional questions of one check have together.

    `CLOUDTRAIN_CHECK_TIMEOUT` sets the time, for slow connections. The default is 3, because a submit waits for the
    answers. Any value other than a positive number means the default.
    """
    try:
        seconds = float(os.environ.get("CLOUDTRAIN_CHECK_TIMEOUT", ""))
    except ValueError:
        return 3.0
    return seconds if 0 < seconds <= threading.TIMEOUT_MAX else 3.0


class Deadline(Generic[T]):
    """One deadline for all questions that are asked with it.

    The threads are daemons. Where an endpoint drops packets, a request hangs for minutes, and the process can end
    without waiting for it.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def answers(self, questions: Sequence[Callable[[], T]]) -> list[T]:
        """Return the answers that came in time, in the order of the questions. An error of a question is raised."""
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
