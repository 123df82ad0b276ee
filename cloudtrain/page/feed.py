"""Tell all open pages when runs change. One poller looks for all of them: with one for each page,
50 pages cost half a core."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from starlette.concurrency import run_in_threadpool

from cloudtrain.errors import CloudtrainError
from cloudtrain.lifecycle.runs.overview import Row, Unsettled, handle_on, store_marks, unsettled
from cloudtrain.lifecycle.runs.run import Run
from cloudtrain.plans.progress import RunStatus

_EVERY = 0.5
"""Seconds between two looks at the store, while a page is open."""

_SETTLED = 1e9
"""Nanoseconds after which a change of the store has its own time: two in one tick of the clock have
the same."""

_ASK_HERE = 1.0
"""Seconds between two looks at the unfinished runs of this machine."""

_ASK_ELSEWHERE = 30.0
"""Seconds between two questions to a service about an unfinished run. After an error, each pause is
twice the one before."""

_SLOWEST = 600.0

_LARGEST_SHARE = 0.05
"""Of the time, for looking at one run."""

_GLANCES = 5
"""Ended runs whose metrics are read at one look."""

_PING = 15.0
"""Seconds after which a quiet stream says that it is alive, so that nothing between closes it."""


def pause_of(run: Run) -> float:
    """Return the seconds between two questions about a run that has not ended."""
    return _ASK_ELSEWHERE if run.directory is None else _ASK_HERE


class Feed:
    """The newest state of all runs, and the pages that wait for changes of it."""

    def __init__(self) -> None:
        self.revision = 0
        self._seen = -1
        """The revision of the last look. The first one looks at the runs of earlier versions too,
        which have the revision 0."""
        self._marks: list[tuple[int, int]] = []
        """Those of the store before the last look."""
        self._records: dict[str, Row] = {}
        self._runs: dict[str, Run] = {}
        """The runs that have not ended."""
        self._statuses: dict[str, RunStatus] = {}
        """What they did when they were last looked at."""
        self._unread: list[Row] = []
        """Ended runs whose metrics the store does not have. The newest comes last."""
        self._waiting: set[asyncio.Event] = set()
        self._due: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self._poller: asyncio.Task[None] | None = None

    async def events(self) -> AsyncGenerator[str, None]:
        """Yield an event for each new revision of the store, in the form of server-sent events."""
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll())
        changed = asyncio.Event()
        self._waiting.add(changed)
        try:
            yield f"retry: 1000\nevent: runs\ndata: {self.revision}\n\n"
            while True:
                try:
                    await asyncio.wait_for(changed.wait(), _PING)
                except asyncio.TimeoutError:
                    yield ": alive\n\n"
                    continue
                changed.clear()
                yield f"event: runs\ndata: {self.revision}\n\n"
        finally:
            self._waiting.discard(changed)

    def live(self) -> dict[str, Any]:
        """Return what the store does not keep of the runs that have not ended: their notices and
        how far they are."""
        answer = {}
        for name, status in list(self._statuses.items()):
            progress = None if status.progress is None else status.progress._asdict()
            notices = [notice._asdict() for notice in status.notices]
            answer[name] = {"notices": notices, "progress": progress}
        return answer

    def status(self, run: Run) -> RunStatus:
        """Return what a run does, as all pages see it: its target is asked after a pause. Raises
        TargetError."""
        name = run.name
        now = time.monotonic()
        known = self._statuses.get(name)
        if known is not None and now < self._due.get(name, 0.0):
            return known
        usual = pause_of(run)
        pause = min(2 * self._pauses.get(name, usual), _SLOWEST)
        self._pauses[name] = pause
        self._due[name] = now + pause
        try:
            status = run.observe()
        except CloudtrainError:
            self._statuses.pop(name, None)  # it would hide the error
            raise
        spent = time.monotonic() - now  # of many metrics, a look takes long
        self._pauses[name] = usual
        self._due[name] = now + max(usual, spent / _LARGEST_SHARE)
        if not status.state.is_final:
            self._statuses[name] = status
        return status

    def ask_again(self, name: str) -> None:
        """Let the next look ask about a run, because somebody has changed it."""
        self._due.pop(name, None)

    def close(self) -> None:
        """Stop looking."""
        if self._poller is not None:
            self._poller.cancel()

    async def _poll(self) -> None:
        """Look for changes while somebody waits for them."""
        while True:
            if self._waiting and not self._is_quiet():
                with suppress(CloudtrainError):  # such as a store that is being moved
                    if await run_in_threadpool(self._look):
                        for changed in self._waiting:
                            changed.set()
            await asyncio.sleep(_EVERY)

    def _is_quiet(self) -> bool:
        """Return whether a look would find nothing: no run is to be asked, and the files of the
        store are as they were at the last look."""
        now = time.monotonic()
        if self._unread or any(self._due.get(name, 0.0) <= now for name in self._runs):
            return False
        newest = max(self._marks, default=(0, 0))[0]
        return time.time_ns() - newest > _SETTLED and store_marks() == self._marks

    def _look(self) -> bool:
        """Ask the targets about unfinished runs that are due. Return whether the store changed."""
        now = time.monotonic()
        for name, run in list(self._runs.items()):
            if self._due.get(name, 0.0) <= now:
                with suppress(CloudtrainError):  # it is asked again later
                    self.status(run)
        for _ in range(min(_GLANCES, len(self._unread))):
            handle_on(self._unread.pop()).glance()
        marks = store_marks()
        seen = unsettled(self._seen)
        self._marks = marks
        if seen is None:
            return False
        self._remember(seen)
        return True

    def _remember(self, seen: Unsettled) -> None:
        """Keep the runs that have not ended, and those whose metrics the page has yet to read."""
        self.revision = seen.revision
        self._seen = seen.revision
        self._unread += reversed(seen.unread)
        before = self._records
        self._records = {record.name: record for record in seen.running}
        for name in before.keys() - self._records.keys():
            self._runs.pop(name, None)
            self._statuses.pop(name, None)
        for name, record in self._records.items():
            if before.get(name) != record:
                self._runs[name] = handle_on(record)
