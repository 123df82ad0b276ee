"""Runs cases in forked processes: each is cut off after some CPU time, and one that dies takes no other with it."""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

CPU_SECONDS = 2.0
"""A case that computes longer is at fault. Waiting does not count, so that a busy machine changes nothing."""

BLOCKED_SECONDS = 20
"""A case that has not ended by then waits for something that never comes."""

MEMORY = 300 * 2**20
"""Bytes of resident memory of a whole process."""

ADDRESSES = 4 * 2**30
"""Bytes of address space, so that a case that allocates without end harms no other process."""

_BATCH = 100
"""Cases of one process. What they leave in its caches is given back with it."""

_MOST_FAULTS = 5
"""Of one case: the others are like them."""

_TRIES = 3
"""A case over its time is at fault when it is over it each time: what else the machine does costs it time as well."""

_KILLED = {
    signal.SIGPROF: f"more than {CPU_SECONDS:g} s of CPU time",
    signal.SIGALRM: f"has not ended after {BLOCKED_SECONDS} s",
}


class Report(NamedTuple):
    """What was wrong with a case."""

    number: int
    faults: list[str]


@dataclass
class _Child:
    """A process and what it has said. `ended` counts the cases that it came through."""

    pid: int
    pipe: int
    numbers: list[int]
    ended: int = 0
    unread: bytes = b""

    def messages(self) -> list[dict[str, Any]] | None:
        """What it has said since the last time; None when it has left."""
        text = os.read(self.pipe, 65536)
        *lines, self.unread = (self.unread + text).split(b"\n")
        return [json.loads(line) for line in lines] if text else None


def run_cases(seed: int, numbers: Iterable[int], *, processes: int) -> Iterator[Report | int]:
    """Reports of the cases that were at fault, in no order, and between them how many cases have ended so far."""
    from tests.fuzz.mutations import case_of

    waiting = list(numbers)[::-1]
    for number in waiting[-1:]:
        case_of(seed, number)  # reads the right jobs, once for all processes
    children: dict[int, _Child] = {}
    tries: Counter[int] = Counter()
    done = 0
    with selectors.DefaultSelector() as selector:
        while waiting or children:
            while waiting and len(children) < processes:
                batch = [waiting.pop() for _ in range(min(_BATCH, len(waiting)))]
                child = _forked(seed, batch)
                children[child.pid] = child
                selector.register(child.pipe, selectors.EVENT_READ, child)
            for key, _ in selector.select():
                child = key.data
                messages = child.messages()
                for message in messages or ():
                    child.ended = message["ended"]
                    if message["faults"]:
                        yield Report(message["number"], message["faults"])
                if messages is not None:
                    continue
                selector.unregister(child.pipe)
                os.close(child.pipe)
                del children[child.pid]
                _, status = os.waitpid(child.pid, 0)
                if status and child.ended < len(child.numbers):
                    number = child.numbers[child.ended]
                    tries[number] += 1
                    if not _was_out_of_time(status) or tries[number] == _TRIES:
                        yield Report(number, [_death(status)])
                        child.ended += 1
                done += child.ended
                waiting += child.numbers[child.ended :][::-1]
                yield done


def _was_out_of_time(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) in _KILLED


def _death(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return _KILLED.get(signal.Signals(number), f"killed by {signal.Signals(number).name}")
    return f"the process left with code {os.WEXITSTATUS(status)}"


def _forked(seed: int, numbers: list[int]) -> _Child:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _work(seed, numbers, os.fdopen(writing, "w"))
    os.close(writing)
    return _Child(pid, reading, numbers)


def _work(seed: int, numbers: list[int], stream: IO[str]) -> NoReturn:
    """The child: runs its cases and says after each what was wrong with it."""
    code = 1
    try:
        _set_limits()
        with tempfile.TemporaryDirectory(prefix="cloudtrain-fuzz-") as folder:
            _run_all(seed, numbers, stream, Path(folder))
        code = 0
    except BaseException as error:
        print(f"the fuzzer itself: {type(error).__name__}: {error}", file=sys.__stderr__)
        raise
    finally:
        stream.flush()
        os._exit(code)


def _set_limits() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (ADDRESSES, ADDRESSES))
    socket.socket.connect = _no_network  # type: ignore[method-assign]


def _no_network(*_: Any) -> NoReturn:
    raise AssertionError("a dry run opened a connection")


def _run_all(seed: int, numbers: list[int], stream: IO[str], folder: Path) -> None:
    from tests.fuzz.mutations import case_of
    from tests.fuzz.oracle import Sandbox, faults, run

    sandbox = Sandbox(folder)
    before = sandbox.files()
    for index, number in enumerate(numbers):
        case = case_of(seed, number)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, BLOCKED_SECONDS)
        outcome = run(case, sandbox)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        found = list(islice(faults(case, outcome), _MOST_FAULTS))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if peak > MEMORY:
            found.append(f"{peak >> 20} MB of memory")
        if (sandbox.root / "state").exists():
            found.append("a dry run wrote into the state folder")
        stream.write(json.dumps({"number": number, "ended": index + 1, "faults": found}) + "\n")
        stream.flush()
        if peak > MEMORY:
            os._exit(0)
    if sandbox.files() != before:
        found = [f"left files behind: {sorted(sandbox.files() ^ before)[:5]}"]
        stream.write(
            json.dumps({"number": numbers[-1], "ended": len(numbers), "faults": found}) + "\n"
        )
