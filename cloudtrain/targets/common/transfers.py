"""Several transfers at once. The first that fails ends all, and so does Ctrl-C: a pool of threads by itself goes on
until whatever it has begun is done, which for large files is hours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Event
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

Check = Callable[[], None]
"""Raises where the work is to end. Whoever works longer than one request takes calls it before each."""


class Ended(Exception):
    """The work is not wanted any more. Nobody sees it: what ended the work is raised."""


def run_concurrently(
    count: int, work: Callable[[Item, Check], Result], items: Iterable[Item], check: Check = lambda: None
) -> list[Result]:
    """`work(item, check)` for each item, `count` of them at the same time; what they return, in order.

    Args:
        check: of the work that this is a part of.
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
