"""Read a job's output from CloudWatch Logs: all streams and pages, merged by time.

Each container writes a stream `JOB/algo-1-EPOCH`. After an interruption, the restarted container
writes another stream. A stream appears with its first line, minutes after the job, and CloudWatch
may delay lines for some seconds. Events are kept until they are returned, so that an error loses no
lines. Each stream continues at its own token, so that no line is returned twice.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import heapify, heappop, heappush

from cloudtrain.machines.overlay import Overlay, type_named
from cloudtrain.plans.progress import LogLine
from cloudtrain.rules.engine import count_in
from cloudtrain.signals.log import Log
from cloudtrain.targets.common.services import NotThere
from cloudtrain.targets.sagemaker.reading import Start
from cloudtrain.targets.sagemaker.request import (
    PROCESSES,
    PROGRAM,
    Host,
    JsonMapping,
    JsonObject,
    hosts,
)
from cloudtrain.targets.sagemaker.service.clients import Clients

# Turn one CloudWatch event into log lines, each with its rank if the launcher marks it.

_MPI = re.compile(
    r"\[(?:\d+|(?P<name>[^\],]+)),(?P<rank>\d+)\]<(?P<stream>stdout|stderr)>:(?(name) ?)"
)
"""Matches the tags of mpirun's `--tag-output`, which contain the rank: `[1,3]<stdout>:text` in Open
MPI 4, and `[prterun-algo-1-7@1,3]<stdout>: text` in Open MPI 5.
"""

_RANK = re.compile(r"\[rank ?(?P<rank>\d+)\]:? ?")
"""Matches PyTorch's prefix of tracebacks (`[rank3]: `) and cloudtrain's prefix (`[rank 3] `)."""

_LOCAL = re.compile(r"\[default(?P<local>\d+)\]: ?")
"""Matches the prefix of torchrun's `--tee`, which contains the local rank."""


def lines_of(
    message: str, time: float, instance: int, ranks: range | None = None
) -> Iterator[LogLine]:
    """Yield the lines of one event of an instance. `ranks` are those of the instance; None if
    unknown.

    If a progress bar overwrote a line, only the last state of the line is kept.
    """
    for line in message.rstrip("\r\n").split("\n"):
        last_state = line.rstrip("\r").rpartition("\r")[2]
        yield _line(last_state, time, instance, ranks)


def _line(text: str, time: float, instance: int, ranks: range | None) -> LogLine:
    """Return one line without its launcher's prefix, from which its rank comes."""
    stream = "stdout"
    rank = None
    if ranks and len(ranks) == 1:
        rank = ranks.start
    match = _MPI.match(text)
    if match:
        stream = match["stream"]
        rank = int(match["rank"])
    elif match := _RANK.match(text):
        rank = int(match["rank"])
    elif ranks and (match := _LOCAL.match(text)):
        rank = ranks.start + int(match["local"])
    if match:
        text = text[match.end() :]
    return LogLine(time, instance, rank, stream, text)


_HOST = re.compile(r"algo-(?P<number>\d+)(?:-\d+)?$")


class Stream:
    """One log stream, read page by page."""

    def __init__(self, clients: Clients, group: str, name: str, token: str | None) -> None:
        self.name = name
        self.token = token
        """Where the events go on that were not read yet."""
        self._clients = clients
        self._where = {"logGroupName": group, "logStreamName": name}
        self._read: deque[JsonObject] = deque()

    @property
    def instance(self) -> int:
        """Return the instance's index: `algo-1` is instance 0."""
        match = _HOST.search(self.name)
        return int(match["number"]) - 1 if match else 0

    def next_time(self) -> int | None:
        """Return the time of the next event in milliseconds since the epoch; None if there is no
        event yet."""
        while not self._read:
            token = {"nextToken": self.token} if self.token else {}
            page = self._clients.call(
                "logs", "get_log_events", **self._where, startFromHead=True, **token
            )
            following = page["nextForwardToken"]
            if following == self.token:  # an unchanged token means that no more events exist yet
                return None
            self._read.extend(page["events"])
            self.token = following
        return int(self._read[0]["timestamp"])

    def take(self) -> JsonObject:
        """Remove and return the event whose time `next_time` has returned."""
        return self._read.popleft()

    def tail(self, count: int) -> list[str]:
        """Return the messages of the stream's last `count` events."""
        page = self._clients.call(
            "logs", "get_log_events", **self._where, startFromHead=False, limit=count
        )
        return [event["message"] for event in page["events"]]


class JobLog(Log[LogLine]):
    """All streams of one job. `new_lines` yields the lines that arrived since its last call."""

    def __init__(
        self,
        clients: Clients,
        group: str,
        job: str,
        *,
        ranks: Mapping[int, range],
        instance: int | None = None,
        mark: Mapping[str, str] | None = None,
    ) -> None:
        self._clients = clients
        self._group = group
        self._job = job
        self._ranks = ranks
        self._instance = instance
        self._tokens = mark or {}
        self._streams: dict[str, Stream] = {}

    @property
    def streams(self) -> list[Stream]:
        return list(self._streams.values())

    @property
    def mark(self) -> dict[str, str]:
        """The token of each stream. CloudWatch knows a token for 24 hours."""
        return {name: stream.token for name, stream in self._streams.items() if stream.token}

    def tail(self, stream: Stream, count: int) -> list[LogLine]:
        """Return the lines of a stream's last `count` events."""
        lines: list[LogLine] = []
        for message in stream.tail(count):
            lines += self._lines(stream, message, 0)
        return lines

    def discover(self) -> None:
        """Add new streams of the job to `streams`. Finds none if the account does not have the log
        group yet."""
        pages = self._clients.pages(
            "logs",
            "describe_log_streams",
            token="nextToken",
            logGroupName=self._group,
            logStreamNamePrefix=f"{self._job}/",
        )
        with suppress(NotThere):
            for page in pages:
                for row in page["logStreams"]:
                    name = row["logStreamName"]
                    stream = Stream(self._clients, self._group, name, self._tokens.get(name))
                    if self._instance in (None, stream.instance):
                        self._streams.setdefault(name, stream)

    def new_lines(self) -> Iterator[LogLine]:
        """Yield the lines since the last call, ordered by time."""
        self.discover()
        streams = self.streams
        heap: list[tuple[int, int]] = []
        for number, stream in enumerate(streams):
            time = stream.next_time()
            if time is not None:
                heap.append((time, number))
        heapify(heap)

        while heap:
            time, number = heappop(heap)
            stream = streams[number]
            message = stream.take()["message"]
            yield from self._lines(stream, message, time / 1000)
            following = stream.next_time()
            if following is not None:
                heappush(heap, (following, number))

    def _lines(self, stream: Stream, message: str, time: float) -> Iterator[LogLine]:
        return lines_of(message, time, stream.instance, self._ranks.get(stream.instance))


# Find the ranks of each instance of a job from the service's job description.


def ranks_of(description: JsonMapping, overlay: Overlay) -> dict[int, range]:
    """Map each instance to its ranks. Launchers number the hosts by name, so `algo-10` comes before
    `algo-2`.

    The result is empty for processing jobs, and for jobs that run an image's own entry point. An
    instance is left out if its number of ranks is unknown. `overlay`: the user's own instance
    types.
    """
    start = Start.of(description)
    has_ranks = start.launch or PROGRAM in start.values
    if not has_ranks or "ResourceConfig" not in description:
        return {}
    ranks: dict[int, range] = {}
    for world in _worlds(start, hosts(description)):
        first = 0
        for host in world:
            count = _count(start, host, overlay)
            if count is None:  # then the ranks of the hosts behind it are unknown, too
                break
            ranks[host.index] = range(first, first + count)
            first += count
    return ranks


def _is_alone(start: Start) -> bool:
    """Return whether each host runs the script without a launcher."""
    if start.launch:
        return start.launch.get("launcher") == "single"
    return start.asked is None


def _count(start: Start, host: Host, overlay: Overlay) -> int | None:
    """Return the number of ranks on a host; None if unknown."""
    if _is_alone(start):
        return 1
    asked = start.settings.get(PROCESSES)
    if start.launch:
        asked = start.launch.get("processes_per_instance")
    if asked:
        return count_in(asked)
    entry = type_named("sagemaker", host.instance_type, overlay)
    return entry.devices if entry is not None else None


def _worlds(start: Start, in_order: Sequence[Host]) -> list[list[Host]]:
    """Return the sets of hosts whose ranks are numbered together, each in the order of ranks.

    If the distribution names no instance groups, the toolkit numbers the ranks of each instance
    group separately, and cloudtrain's launcher numbers the ranks of all groups together.
    """
    if _is_alone(start):
        return [list(in_order)]
    groups: dict[str, list[Host]] = {}
    for host in sorted(in_order, key=lambda host: host.index):
        groups[host.group] = []
    for host in in_order:
        groups[host.group].append(host)

    if start.launch:
        names = list(start.groups or groups)
    elif start.groups:
        names = [name for name in groups if name in start.groups]
    else:
        return list(groups.values())

    world: list[Host] = []
    for name in names:
        world += groups.get(name, ())
    return [world]
