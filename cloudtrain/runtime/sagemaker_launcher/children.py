"""Start the processes of one host, read their stderr, and stop them, so that no process remains."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from shlex import quote
from typing import Any

from cloudtrain.runtime.errors import SetupError, tell

from .failure import failure_text, fitting
from .plan import HostProgram

REMEMBERED = 1 << 18
"""Bytes of a process's stderr that are kept to explain a failure."""

FAILURE_GRACE = 5.0
"""Seconds that the other processes get to leave once one has failed."""

POLL = 0.05
"""Seconds between two looks at a leaving group."""

_ENDING_RANKS = b"closing signal SIGTERM"
"""What torchrun prints (1.9 to 2.13) when it begins to end its ranks: a rank has failed, unless
torchrun was asked to stop."""

_RANK_MARKS = {"torchrun": b"LOCAL_RANK=", "mpirun": b"OMPI_COMM_WORLD_RANK="}
"""The variable that identifies a rank of each launcher."""


class Child:
    """A started process. It leads its own session, so that signals can reach a shell's children,
    too."""

    def __init__(
        self,
        program: HostProgram,
        popen: subprocess.Popen[bytes],
        on_failing: Callable[[Child], None],
    ) -> None:
        self.program = program
        self.exit_code: int | None = None
        self._on_failing = on_failing
        self._pid: int = popen.pid
        self._popen = popen
        self._group_was_told = False
        self._said = bytearray()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def wait(self) -> None:
        """Wait for the end of the process. If SIGTERM went to the whole process group, also wait
        for the group's end, because a shell ends at once on SIGTERM while its script is still
        saving."""
        exit_code = self._popen.wait()
        while self._group_was_told and _has_members(self._pid):
            time.sleep(POLL)
        self.exit_code = exit_code

    def explain_failure(self, place: str = "", files: Iterable[Path] = ()) -> str:
        """Return the text of the failure file for a process that has ended. `place` follows its
        name; `files` are those of `failure_text`. Wait only briefly for the end of its stderr,
        because descendants may keep the pipe open."""
        assert self.exit_code is not None
        self._listener.join(timeout=2)
        stderr = self._said.decode("utf-8", "replace")
        return failure_text(f"{self.program.role}{place}", self.exit_code, stderr, files)

    def terminate(self) -> None:
        """Send SIGTERM to the process itself, its process group or its ranks, as the program's
        field `signal` says."""
        send = os.kill
        pids = [self._pid]
        if self.program.signal == "group":
            self._group_was_told = True
            send = os.killpg
        elif self.program.signal == "ranks":
            pids = self._ranks() or pids
        _signal(send, pids, signal.SIGTERM)

    def kill_ranks(self) -> None:
        """Send SIGKILL to the ranks, but not to their launcher, which then reports the failure."""
        _signal(os.kill, self._ranks(), signal.SIGKILL)

    def kill(self) -> None:
        """Send SIGKILL to the whole session."""
        _signal(os.killpg, [self._pid], signal.SIGKILL)

    def _ranks(self) -> list[int]:
        mark = _RANK_MARKS.get(self.program.role)
        return ranks_below(self._pid, mark) if mark else []

    def _listen(self) -> None:
        assert self._popen.stderr is not None
        descriptor = self._popen.stderr.fileno()
        has_reported = self.program.role != "torchrun"
        while True:
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                return
            with suppress(OSError):  # nobody listens any more; the process must not wait for it
                rest = memoryview(chunk)
                while rest:
                    rest = rest[os.write(2, rest) :]
            self._said += chunk
            del self._said[:-REMEMBERED]
            newest = self._said[-2 * len(chunk) - 80 :]
            if not has_reported and _ENDING_RANKS in newest:
                has_reported = True
                self._on_failing(self)


class Children:
    """All processes of the host. One queue collects the events: a process ended, a signal arrived,
    the chief ended."""

    def __init__(self) -> None:
        self.asked_to_stop = False
        self._events: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._children: list[Child] = []

    def start(self, program: HostProgram, environment: Mapping[str, str], directory: str) -> None:
        """Tell which program starts, and start it."""
        tell("starting " + " ".join(map(quote, program.argv)))
        try:
            popen = subprocess.Popen(
                program.argv,
                env={**environment, **program.env},
                cwd=directory,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            words = getattr(error, "strerror", None) or str(error)
            message = f"could not start `{program.argv[0]}`: {words}"
            raise SetupError(message, hint="use an image that has it") from None
        child = Child(program, popen, lambda child: self._events.put(("failing", child)))
        self._children.append(child)
        threading.Thread(target=self._report_end, args=(child,), daemon=True).start()

    def _report_end(self, child: Child) -> None:
        child.wait()
        self._events.put(("ended", child))

    def ask_to_stop(self) -> None:
        """Record a request to stop. A signal handler calls it."""
        self.asked_to_stop = True
        self._events.put(("stop", None))

    def chief_ended(self, exit_code: int | None) -> None:
        """Record that the chief on another host has ended. `exit_code` is None if that host was
        lost."""
        self._events.put(("chief", exit_code))

    def finish(self, finishes: tuple[str, ...]) -> tuple[int, Child | None]:
        """Wait until the host's processes have ended. Return the host's exit code, as a shell has
        it (128 plus the number of a signal that killed), and the failed process, or None if none
        failed.

        The other processes are stopped after the first failure, or when a process whose role is in
        `finishes` succeeds. They are killed if they have not ended after a short time. If the job
        is stopped, they are not killed, so that they can save.
        """
        result: tuple[int, Child | None] | None = None
        kill_at: float | None = None
        running = len(self._children)  # whose end was not heard of here yet
        while running:
            kind, value = self._next(kill_at)
            if kind == "ended":
                running -= 1
            if kind == "late":
                self._each_alive("kill" if result else "kill_ranks")
                kill_at = None
            elif kind == "failing":
                kill_at = None if self.asked_to_stop else time.monotonic() + FAILURE_GRACE
            elif kind == "stop":
                self._each_alive("terminate")
            elif result is None:
                result = self._result_of(kind, value, finishes)
                if result is not None:
                    self._each_alive("terminate")
                    kill_at = time.monotonic() + FAILURE_GRACE
        if result is None:
            codes = [child.exit_code or 0 for child in self._children]
            result = (max(codes, key=abs, default=0), None)
        code, failed = result
        return 128 - code if code < 0 else code, failed

    def sweep(self) -> None:
        """Kill all processes that still run in the children's sessions."""
        for child in self._children:
            child.kill()

    def _next(self, kill_at: float | None) -> tuple[str, Any]:
        timeout = None if kill_at is None else max(0.0, kill_at - time.monotonic())
        try:
            return self._events.get(timeout=timeout)
        except Empty:
            return "late", None

    def _result_of(
        self, kind: str, value: Any, finishes: tuple[str, ...]
    ) -> tuple[int, Child | None] | None:
        """Return the host's exit code and the failed process if an end decides them: that of the
        chief, or that of a process, unless the job is being stopped."""
        if kind == "chief":
            return 1 if value is None else value, None
        if self.asked_to_stop:
            return None
        if value.exit_code:
            return value.exit_code, value
        return (0, None) if value.program.role in finishes else None

    def _each_alive(self, act: str) -> None:
        for child in self._children:
            if child.exit_code is None:
                getattr(child, act)()


def _has_members(group: int) -> bool:
    """Return whether a process of the group still runs. Zombies do not count, because their parent
    may never collect them."""
    for state, _, leader, *_ in _stats().values():
        if leader == str(group) and state not in "ZX":
            return True
    return False


def ranks_below(launcher: int, mark: bytes) -> list[int]:
    """Return the process ids of the ranks that the process `launcher` has started: those of its
    descendants that have a rank variable in their environment while their parents have none. `mark`
    is the name of this variable with `=`, for example `OMPI_COMM_WORLD_RANK=`.

    When mpirun receives SIGTERM, it kills its ranks after one second, which is too short for
    saving. If instead the ranks themselves are signalled, they have the whole grace period, and
    mpirun ends after them.
    """
    parents = {}
    marked = set()
    for pid, fields in _stats().items():
        parents[pid] = int(fields[1])
        with suppress(OSError):
            variables = Path(f"/proc/{pid}/environ").read_bytes()
            if b"\0" + mark in b"\0" + variables:
                marked.add(pid)

    def is_below(pid: int) -> bool:
        while pid in parents:
            pid = parents[pid]
            if pid == launcher:
                return True
        return False

    return [pid for pid in marked if parents[pid] not in marked and is_below(pid)]


def _stats() -> dict[int, list[str]]:
    """Return the state, the parent, the group and the further fields of each process of this
    machine, from /proc; an empty dict where /proc does not exist."""
    stats = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            stat = folder.joinpath("stat").read_text("ascii", "replace")
            stats[int(folder.name)] = stat.rpartition(")")[2].split()
    return stats


def _signal(send: Callable[[int, int], None], pids: Iterable[int], number: int) -> None:
    """Send a signal with `os.kill` or `os.killpg` to those processes that have not ended."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            send(pid, number)


def run_guarded(run: Callable[[Children], int], write_reason: Callable[[str], None]) -> int:
    """Call `run` with the children of this container, and return its exit code. SIGTERM stops the
    children. If `run` raises a SetupError, tell it, pass it to `write_reason` and return 1. No
    child outlives this call."""
    children = Children()
    signal.signal(signal.SIGTERM, lambda *_: children.ask_to_stop())
    try:
        return run(children)
    except SetupError as error:
        error.tell()
        write_reason(fitting(str(error), []))
        return 1
    finally:
        children.sweep()
