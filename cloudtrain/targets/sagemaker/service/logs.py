"""Read a job's output from CloudWatch Logs: all streams and pages, merged by time.

Each container writes a stream `JOB/algo-1-EPOCH`. After an interruption, the restarted container writes another stream.
A stream appears with its first line, minutes after the job, and CloudWatch may delay lines for some seconds. Events are
kept until they are returned, so that an error loses no lines. Each stream continues at its own token, so that no line
is returned twice.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Any

from cloudtrain.core.states import LogLine
from cloudtrain.targets.common.provider_errors import NotThere
from cloudtrain.targets.sagemaker.service.clients import Clients
from cloudtrain.targets.sagemaker.service.lines import Writer, lines_of

_HOST = re.compile(r"algo-(?P<number>\d+)(?:-\d+)?$")


class Stream:
    """One log stream, read page by page."""

    def __init__(self, clients: Clients, group: str, name: str) -> None:
        self.name = name
        self._clients = clients
        self._where = {"logGroupName": group, "logStreamName": name}
        self._token: str | None = None
        self._read: deque[dict[str, Any]] = deque()

    @property
    def instance(self) -> int:
        """Return the instance's index: `algo-1` is instance 0."""
        match = _HOST.search(self.name)
        return int(match["number"]) - 1 if match else 0

    def next_time(self) -> int | None:
        """Return the time of the next event in milliseconds since the epoch; None if there is no event yet."""
        while not self._read:
            token = {"nextToken": self._token} if self._token else {}
            page = self._clients.call("logs", "get_log_events", **self._where, startFromHead=True, **token)
            following = page["nextForwardToken"]
            if following == self._token:  # an unchanged token means that no more events exist yet
                return None
            self._read.extend(page["events"])
            self._token = following
        return int(self._read[0]["timestamp"])

    def take(self) -> dict[str, Any]:
        """Return the next event and advance. Call this only after `next_time` has returned a time."""
        return self._read.popleft()

    def tail(self, count: int) -> list[str]:
        """Return the messages of the stream's last `count` events."""
        page = self._clients.call("logs", "get_log_events", **self._where, startFromHead=False, limit=count)
        return [event["message"] for event in page["events"]]


class JobLog:
    """All streams of one job. `new_lines` yields the lines that arrived since its last call."""

    def __init__(
        self, clients: Clients, group: str, job: str, *, ranks: Mapping[int, range], instance: int | None = None
    ) -> None:
        self._clients = clients
        self._group = group
        self._job = job
        self._ranks = ranks
        self._instance = instance
        self._streams: dict[str, Stream] = {}

    @property
    def streams(self) -> list[Stream]:
        """Return the streams that `discover` has found so far."""
        return list(self._streams.values())

    def tail(self, stream: Stream, count: int) -> list[LogLine]:
        """Return the lines of a stream's last `count` events."""
        return [line for text in stream.tail(count) for line in lines_of(text, 0, self._writer(stream))]

    def discover(self) -> None:
        """Add new streams of the job to `streams`. Finds none if the account does not have the log group yet."""
        pages = self._clients.pages(
            "logs",
            "describe_log_streams",
            token="nextToken",
            logGroupName=self._group,
            logStreamNamePrefix=f"{self._job}/",
        )
        try:
            for page in pages:
                for found in page["logStreams"]:
                    self._add(found["logStreamName"])
        except NotThere:
            return

    def new_lines(self) -> Iterator[LogLine]:
        """Yield the lines since the last call, ordered by time."""
        self.discover()
        streams = self.streams
        heap = [(time, number) for number, item in enumerate(streams) if (time := item.next_time()) is not None]
        heapify(heap)
        while heap:
            time, number = heappop(heap)
            stream = streams[number]
            yield from lines_of(stream.take()["message"], time / 1000, self._writer(stream))
            following = stream.next_time()
            if following is not None:
                heappush(heap, (following, number))

    def _writer(self, stream: Stream) -> Writer:
        return Writer(stream.instance, self._ranks.get(stream.instance))

    def _add(self, name: str) -> None:
        if name not in self._streams:
            stream = Stream(self._clients, self._group, name)
            if self._instance in (None, stream.instance):
                self._streams[name] = stream
