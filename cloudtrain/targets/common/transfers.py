"""Run several transfers at the same time. The first failure or Ctrl-C ends all of them. A plain pool of threads would
first finish all transfers in progress, which takes hours for large files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Event
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

Check = Callable[[], None]
"""Raises an error if the work must end. Work that makes several requests calls it before each request."""


class Ended(Exception):
    """Another transfer failed, so this one was cancelled. The caller gets the first failure instead of this error."""


def run_concurrently(
    count: int, work: Callable[[Item, Check], Result], items: Iterable[Item], check: Check = lambda: None
) -> list[Result]:
    """Call `work(item, check)` for each item, up to `count` calls at the same time. Return the results in order.

    Args:
        check: a function that raises an error if an enclosing operation was cancelled. Each call of `work` gets
            a function that raises this error too, and also an error if another call has failed.
    """
    ended = Event()

    def goes_on() -> None:
        check()
        if ended.is_set():
            raise Ended

    with ThreadPoolExecutor(count) as pool:
        try:
            begun = [pool.submit(work, item, goes_on) for item in items]
            for done in as_completed(begun):
                done.result()
        except BaseException:
            ended.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [item.result() for item in begun]
