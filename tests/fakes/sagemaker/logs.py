"""CloudWatch Logs: groups, streams that appear with their first event, pages and tokens.

A forward token stays the same when there is nothing new. With `sparse` every other page is empty under a new token,
as the real service answers now and then.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.sagemaker.faults import Refused


@dataclass
class LogStream:
    """Events in the order of their times: milliseconds and message."""

    name: str
    events: list[tuple[int, str]] = field(default_factory=list)


class Logs:
    """The service. `write` makes groups and streams as needed."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[str, LogStream]] = {}
        self.events_per_page = 1000
        self.streams_per_page = 50
        self.sparse = False
        self._lock = threading.RLock()

    def write(
        self, stream: str, *messages: str, at: float | None = None, group: str = "TrainingJobs"
    ) -> None:
        """Append events, all at one time (seconds since the epoch), now unless given."""
        with self._lock:
            streams = self.groups.setdefault(f"/aws/sagemaker/{group}", {})
            found = streams.setdefault(stream, LogStream(stream))
            moment = int((time.time() if at is None else at) * 1000)
            found.events += [(moment, message) for message in messages]
            found.events.sort(key=lambda event: event[0])

    def handle(self, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to an operation."""
        known = {
            "DescribeLogStreams": self._streams,
            "GetLogEvents": self._events,
            "FilterLogEvents": self._filter,
        }
        if operation not in known:
            raise Refused("UnknownOperationException", f"the fake knows no {operation}", 404)
        with self._lock:
            if body["logGroupName"] not in self.groups:
                raise Refused(
                    "ResourceNotFoundException", "The specified log group does not exist."
                )
            return known[operation](self.groups[body["logGroupName"]], body)

    def _streams(self, streams: dict[str, LogStream], body: dict[str, Any]) -> dict[str, Any]:
        names = sorted(
            name for name in streams if name.startswith(body.get("logStreamNamePrefix", ""))
        )
        start = int(body.get("nextToken", 0))
        end = start + min(body.get("limit", 50), self.streams_per_page)
        more = {"nextToken": str(end)} if end < len(names) else {}
        return {"logStreams": [{"logStreamName": name} for name in names[start:end]]} | more

    def _events(self, streams: dict[str, LogStream], body: dict[str, Any]) -> dict[str, Any]:
        if body["logStreamName"] not in streams:
            raise Refused("ResourceNotFoundException", "The specified log stream does not exist.")
        events = streams[body["logStreamName"]].events
        limit = min(body.get("limit", 10_000), self.events_per_page)
        token = body.get("nextToken", "")
        if not token and not body.get("startFromHead"):
            return self._page(events, max(0, len(events) - limit), limit, "f/tail")
        start, empty = (int(token.split("/")[1]), token.endswith("/empty")) if token else (0, False)
        if self.sparse and start < len(events) and not empty:
            return {
                "events": [],
                "nextForwardToken": f"f/{start}/empty",
                "nextBackwardToken": "b/0",
            }
        end = min(start + limit, len(events))
        return self._page(events, start, limit, f"f/{end}" if end > start or not token else token)

    def _page(
        self, events: list[tuple[int, str]], start: int, limit: int, token: str
    ) -> dict[str, Any]:
        page = [
            {"timestamp": moment, "message": message, "ingestionTime": moment}
            for moment, message in events[start : start + limit]
        ]
        return {"events": page, "nextForwardToken": token, "nextBackwardToken": f"b/{start}"}

    def _filter(self, streams: dict[str, LogStream], body: dict[str, Any]) -> dict[str, Any]:
        prefix = body.get("logStreamNamePrefix", "")
        found = [
            {
                "logStreamName": name,
                "timestamp": moment,
                "message": message,
                "eventId": f"{name}-{number}",
            }
            for name, stream in streams.items()
            if name.startswith(prefix)
            for number, (moment, message) in enumerate(stream.events)
        ]
        return {"events": sorted(found, key=lambda event: event["timestamp"])}
