"""The stream of changes: one look at the store serves all pages, and a store that fails ends no stream."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette", reason="the extra `ui` is not installed")

import cloudtrain as ct
from cloudtrain.errors import CloudtrainError, StoreError
from cloudtrain.lifecycle.runs.overview import unsettled
from cloudtrain.lifecycle.store.schema import open_store
from cloudtrain.page import feed as feeds
from cloudtrain.page.feed import Feed
from cloudtrain.page.notebook import _page
from tests.deadlines import DEADLINE
from tests.lifecycle.store.records import record


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times at which the store is read; a few a second, so that a test is quick."""
    times: list[float] = []
    read = unsettled

    def counted(changed_since: int) -> Any:
        times.append(time.monotonic())
        return read(changed_since)

    monkeypatch.setattr(feeds, "unsettled", counted)
    monkeypatch.setattr(feeds, "_EVERY", 0.02)
    return times


def add(state_dir: Path, counter: int) -> None:
    with open_store(state_dir) as store:
        lock = store.reserve(
            record(f"job-{counter}-1", counter, target="sagemaker", state="succeeded")
        )
        assert lock is not None
        lock.release(remove=True)


async def revision(stream: AsyncIterator[str], after: int = -1) -> int:
    """Return the next revision above one that a stream says."""
    while True:
        event = await asyncio.wait_for(anext(stream), DEADLINE)
        found = re.search("event: runs\ndata: ([0-9]+)\n\n", event)
        if found is not None and int(found[1]) > after:
            return int(found[1])


def test_a_change_reaches_all_streams(state_dir: Path, looks: list[float]) -> None:
    """Fifty pages cost as many looks as one."""
    add(state_dir, 1)

    async def follow() -> tuple[list[int], list[int]]:
        feed = Feed()
        streams = [feed.events() for _ in range(50)]
        first = [await revision(stream) for stream in streams]
        # a stream that came after the first look begins with what was seen
        before = [
            seen or await revision(stream, 0) for seen, stream in zip(first, streams, strict=True)
        ]
        looks.clear()
        add(state_dir, 2)
        after = [await revision(stream, before[0]) for stream in streams]
        feed.close()
        return before, after

    before, after = asyncio.run(follow())
    assert len(set(before)) == len(set(after)) == 1
    assert after[0] > before[0]
    gaps = [later - earlier for earlier, later in pairwise(looks)]
    assert all(gap >= 0.02 for gap in gaps)


def test_nobody_is_served_by_no_look(state_dir: Path, looks: list[float]) -> None:
    """The last page that closes ends the reading."""
    add(state_dir, 1)

    async def leave() -> None:
        feed = Feed()
        stream = feed.events()
        await revision(stream)
        await revision(stream, 0)
        await stream.aclose()
        await asyncio.sleep(0.1)
        looks.clear()
        add(state_dir, 2)
        await asyncio.sleep(0.2)
        feed.close()

    asyncio.run(leave())
    assert looks == []


def test_a_store_that_rests_is_not_opened(
    state_dir: Path, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The times of its files tell that it has changed, once they differ from those of a change just
    before."""
    monkeypatch.setattr(feeds, "_SETTLED", 0)
    add(state_dir, 1)

    async def wait() -> int:
        feed = Feed()
        stream = feed.events()
        assert await revision(stream) == 0
        before = await revision(stream, 0)
        while not feed._is_quiet():
            await asyncio.sleep(0.02)
        looks.clear()
        await asyncio.sleep(0.2)
        assert looks == []
        add(state_dir, 2)
        after = await revision(stream, before)
        feed.close()
        return after - before

    assert asyncio.run(wait()) > 0


def test_a_store_that_fails_ends_no_stream(
    state_dir: Path, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that is being moved: the next change is told all the same."""
    add(state_dir, 1)
    read = unsettled
    failures = iter([StoreError("the store is locked")] * 3)

    def failing(changed_since: int) -> Any:
        for error in failures:
            raise error
        return read(changed_since)

    monkeypatch.setattr(feeds, "unsettled", failing)

    async def follow() -> int:
        feed = Feed()
        stream = feed.events()
        assert await revision(stream) == 0
        found = await revision(stream, 0)
        feed.close()
        return found

    assert asyncio.run(follow()) > 0


@pytest.fixture
def shown() -> Iterator[Any]:
    """The link of a page that is served."""
    _page.cache_clear()
    shown = ct.ui(0)
    yield shown
    page = shown._page
    while not page.server.started:
        time.sleep(0.01)
    page.server.should_exit = True
    for thread in threading.enumerate():
        if thread.name == "cloudtrain page":
            thread.join(DEADLINE)
    page.listener.close()
    _page.cache_clear()


def test_a_notebook_gets_a_new_link_of_the_same_page(shown: Any) -> None:
    """It opens the page once. No token of the page is in what the notebook keeps."""
    first, second = shown._repr_html_(), ct.ui(0)._repr_html_()
    assert ct.ui(0).address == shown.address
    assert first != second
    assert shown._page.keys.token not in first + second + repr(shown)

    found = re.search('href="(.*?)"', first)
    assert found is not None
    place = urlsplit(found[1])
    statuses = []
    for _ in range(2):
        connection = HTTPConnection(place.netloc, timeout=DEADLINE)
        connection.request("GET", f"/?{place.query}")
        statuses.append(connection.getresponse().status)
        connection.close()
    assert statuses == [303, 401]


@pytest.mark.parametrize("module", ["starlette", "uvicorn"])
def test_without_the_extra_it_says_what_to_install(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    _page.cache_clear()
    with pytest.raises(CloudtrainError) as caught:
        ct.ui(0)
    assert "[ui]" in str(caught.value.hint)
