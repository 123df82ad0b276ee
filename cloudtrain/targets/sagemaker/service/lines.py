"""Turn one CloudWatch event into log lines, each with its rank if the launcher marks it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from cloudtrain.core.states import LogLine

_MPI = re.compile(r"\[(?:\d+|(?P<name>[^\],]+)),(?P<rank>\d+)\]<(?P<stream>stdout|stderr)>:(?(name) ?)")
"""Matches the tags of mpirun's `--tag-output`, which contain the rank: `[1,3]<stdout>:text` in Open MPI 4, and
`[prterun-algo-1-7@1,3]<stdout>: text` in Open MPI 5.
"""

_RANK = re.compile(r"\[rank ?(?P<rank>\d+)\]:? ?")
"""Matches PyTorch's prefix of tracebacks (`[rank3]: `) and cloudtrain's prefix (`[rank 3] `)."""

_LOCAL = re.compile(r"\[default(?P<local>\d+)\]: ?")
"""Matches the prefix of torchrun's `--tee`, which contains the local rank."""


class Writer(NamedTuple):
    """The instance that writes a log stream, and the ranks on this instance; None if unknown."""

    instance: int
    ranks: range | None = None


def lines_of(message: str, time: float, writer: Writer) -> Iterator[LogLine]:
    """Yield the lines of one event. If a progress bar overwrote a line, only the last state of the line is kept."""
    for line in message.rstrip("\r\n").split("\n"):
        yield _line(line.rstrip("\r").rpartition("\r")[2], time, writer)


def _line(text: str, time: float, writer: Writer) -> LogLine:
    instance = writer.instance
    if match := _MPI.match(text):
        return LogLine(time, instance, int(match["rank"]), match["stream"], text[match.end() :])
    if match := _RANK.match(text):
        return LogLine(time, instance, int(match["rank"]), "stdout", text[match.end() :])
    ranks = writer.ranks
    if ranks and (match := _LOCAL.match(text)):
        return LogLine(time, instance, ranks.start + int(match["local"]), "stdout", text[match.end() :])
    return LogLine(time, instance, ranks.start if ranks and len(ranks) == 1 else None, "stdout", text)
