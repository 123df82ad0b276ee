"""Notices: what a person should see at once about a run, such as a rank that hangs.

    metrics/notices.PLACE.PROCESS.jsonl   {"kind": "alert", "text": "the loss doubled",
                                           "time": 1763712000.1, "rank": 0, "ended": null}

Each process has a file of its own, and writes each line at once. Where the run has no folder, as on
the clouds, the line is printed behind `[notice]`. A state that is over, such as a stall, is written
again with the time at which it `ended`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from glob import escape, glob
from itertools import count
from typing import NamedTuple

from .environment import detect_environment
from .errors import SetupError
from .metrics_file import make_folder, metrics_folder
from .secret_values import forms_of, masked, references

PREFIX = "[notice]"

SOURCE = "notices"
"""The beginning of the names of the files."""

_LONGEST = 500
"""Characters of a text."""

_MOST = 1000
"""Notices that a process writes. Further ones are dropped: nobody would read them."""

_numbers = count(1)


def alert(text: str) -> None:
    """Show a text with the run, in `cloudtrain status`, `cloudtrain ps` and the live view, and send
    it where you get notifications. Control characters become spaces, values of the job's secrets
    stars, and a text of more than 500 characters is cut."""
    rank = None
    with suppress(SetupError):  # an alert must not end a training
        environment = detect_environment()
        if environment.world_size > 1:
            rank = environment.rank
    write_notice("alert", text, rank=rank)


def write_notice(
    kind: str,
    text: str,
    *,
    rank: int | None = None,
    ended: float | None = None,
    folder: str | None = None,
) -> None:
    """Write a notice into the `folder` for metrics, by default that of this process's run. `rank`
    is the rank that the notice is about."""
    if next(_numbers) > _MOST:
        return
    names = references(os.environ)
    secrets = {name: os.environ[name] for name in names if name in os.environ}
    shown = one_line(masked(str(text), forms_of(secrets)))
    line = json.dumps(_Written(kind, shown, time.time(), rank, ended)._asdict())
    place = folder or metrics_folder()
    if place is not None:
        with suppress(OSError):  # such as a full disk
            _append(place, line)
            return
    # one write, so that lines of other processes stay outside
    sys.stdout.write(f"{PREFIX} {line}\n")
    sys.stdout.flush()


def end_left(
    folder: str, kinds: Collection[str], ranks: Collection[int | None] | None = None
) -> None:
    """Write that the states of these kinds are over which earlier processes have left, as before
    the job was started again: those of some ranks, or of all."""
    notices: list[_Written] = []
    for path in glob(f"{escape(folder)}/{SOURCE}.*.jsonl"):
        notices += _read(path)
    notices.sort(key=lambda notice: notice.time)
    newest = {(notice.kind, notice.rank): notice for notice in notices}
    for kind, text, _, rank, ended in newest.values():
        if ended is None and kind in kinds and (ranks is None or rank in ranks):
            write_notice(kind, text, rank=rank, ended=time.time(), folder=folder)


class _Written(NamedTuple):
    """A line of a file, with its fields in their order."""

    kind: str
    text: str
    time: float
    rank: int | None
    ended: float | None


def _read(path: str) -> Iterator[_Written]:
    with suppress(OSError), open(path, "rb") as lines:
        for line in lines:
            with suppress(ValueError, TypeError):  # the disk was full, or somebody else's line
                notice = _Written(**json.loads(line))
                yield notice._replace(time=float(notice.time))


def one_line(text: str) -> str:
    """Return a text on one line, without control characters and cut."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    line = " ".join(plain.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _append(folder: str, line: str) -> None:
    """Raises `OSError`."""
    make_folder(folder)
    path = f"{folder}/{SOURCE}.{_place()}.{os.getpid()}.jsonl"
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        # a full disk may have cut off the line before
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        data = (f"\n{line}\n" if is_torn else f"{line}\n").encode("ascii")
        if os.write(descriptor, data) < len(data):
            raise OSError
    finally:
        os.close(descriptor)


def _place() -> str:
    """Return a name that differs between instances, whose processes may have the same ids."""
    try:
        environment = detect_environment()
    except SetupError:
        return "rank0"
    if environment.world_size > 1:
        return f"rank{environment.rank}"
    return f"instance{environment.node_rank}"
