"""Run several transfers at once. The first failure ends all of them, and so does Ctrl-C. A plain pool of threads would
first finish the transfers it has begun, which takes hours for large files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Event
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

Check = Callable[[], None]
"""Raises an error where the work is to end. Work that takes longer than one request calls it before each request."""


class Ended(Exception):
    """The work was cancelled. The caller never sees this error: it gets the error that ended the work."""


def run_concurrently(
    count: int, work: Callable[[Item, Check], Result], items: Iterable[Item], check: Check = lambda: None
) -> list[Result]:
    """Call `work(item, check)` for each item, `count` of them at the same time. Return the results in order.

    Args:
        check: the check of the enclosing work.
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
