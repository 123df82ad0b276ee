"""Start the processes of one host, read their stderr, and stop them, so that no process remains."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from shlex import quote
from typing import Any, NamedTuple

from cloudtrain.runtime.errors import SetupError, tell

from .failure import fitting
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


class _Process(NamedTuple):
    state: str
    parent: int
    group: int


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
        self._on_failing = on_failing
        self.pid: int = popen.pid
        self.exit_code: int | None = None
        self._popen = popen
        self._group_was_told = False
        self._said = bytearray()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def wait(self) -> int:
        """Return the exit code once the process has ended. If SIGTERM went to the whole process
        group, also wait for the group's end, because a shell ends at once on SIGTERM while its
        script is still saving."""
        exit_code = self._popen.wait()
        while self._group_was_told and _has_members(self.pid):
            time.sleep(POLL)
        self.exit_code = exit_code
        return exit_code

    def read_stderr_end(self) -> str:
        """Return the last part of the process's stderr. Wait only briefly for the end of the
        stream, because descendants may keep the pipe open."""
        self._listener.join(timeout=2)
        return bytes(self._said).decode("utf-8", "replace")

    def terminate(self) -> None:
        """Send SIGTERM to the process itself, its process group or its ranks, as the program's
        field `signal` says."""
        if self.program.signal == "group":
            self._group_was_told = True
            _signal(os.killpg, self.pid, signal.SIGTERM)
            return
        pids = [self.pid]
        if self.program.signal == "ranks":
            pids = self._ranks() or pids
        for pid in pids:
            _signal(os.kill, pid, signal.SIGTERM)

    def kill_ranks(self) -> None:
        """Send SIGKILL to the ranks, but not to their launcher, which then reports the failure."""
        for pid in self._ranks():
            _signal(os.kill, pid, signal.SIGKILL)

    def kill(self) -> None:
        """Send SIGKILL to the whole session."""
        _signal(os.killpg, self.pid, signal.SIGKILL)

    def _ranks(self) -> list[int]:
        mark = _RANK_MARKS.get(self.program.role)
        return ranks_below(self.pid, mark) if mark else []

    def _listen(self) -> None:
        assert self._popen.stderr is not None
        descriptor = self._popen.stderr.fileno()
        has_reported = self.program.role != "torchrun"
        while True:
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                return
            _write_all(2, chunk)
            self._said += chunk
            del self._said[:-REMEMBERED]
            newest = self._said[-2 * len(chunk) - 80 :]
            if not has_reported and _ENDING_RANKS in newest:
                has_reported = True
                self._on_failing(self)


class Result(NamedTuple):
    """How a host's processes ended."""

    exit_code: int
    failed: Child | None


class Children:
    """All processes of the host. One queue collects the events: a process ended, a signal arrived,
    the chief ended."""

    def __init__(self) -> None:
        self.events: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self.children: list[Child] = []
        self.asked_to_stop = False

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
            hint = "use an image that has it"
            if program.role == "mpirun":
                hint = "install Open MPI in the image"
            words = getattr(error, "strerror", None) or str(error)
            raise SetupError(f"could not start `{program.argv[0]}`: {words}", hint=hint) from None
        child = Child(program, popen, lambda child: self.events.put(("failing", child)))
        self.children.append(child)
        threading.Thread(target=self._report_end, args=(child,), daemon=True).start()

    def _report_end(self, child: Child) -> None:
        self.events.put(("ended", (child, child.wait())))

    def ask_to_stop(self) -> None:
        """Record a request to stop. A signal handler calls it."""
        self.asked_to_stop = True
        self.events.put(("stop", None))

    def chief_ended(self, exit_code: int | None) -> None:
        """Record that the chief on another host has ended. `exit_code` is None if that host was
        lost."""
        self.events.put(("chief", exit_code))

    def finish(self, finishes: tuple[str, ...]) -> Result:
        """Wait until the host's processes have ended. Return the host's exit code, and the failed
        process, or None if none failed.

        The other processes are stopped after the first failure, or when a process whose role is in
        `finishes` succeeds. They are killed if they have not ended after a short time. If the job
        is stopped, they are not killed, so that they can save.
        """
        result: Result | None = None
        kill_at: float | None = None
        running = len(self.children)  # whose end was not heard of here yet
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
        if result is not None:
            return result
        codes = [child.exit_code or 0 for child in self.children]
        return Result(max(codes, key=abs, default=0), None)

    def sweep(self) -> None:
        """Kill all processes that still run in the children's sessions."""
        for child in self.children:
            child.kill()

    def _next(self, kill_at: float | None) -> tuple[str, Any]:
        timeout = None if kill_at is None else max(0.0, kill_at - time.monotonic())
        try:
            return self.events.get(timeout=timeout)
        except Empty:
            return "late", None

    def _result_of(self, kind: str, value: Any, finishes: tuple[str, ...]) -> Result | None:
        """Return the host's exit code and the failed process if an end decides them: that of the
        chief, or that of a process, unless the job is being stopped."""
        if kind == "chief":
            return Result(1 if value is None else value, None)
        child, exit_code = value
        if self.asked_to_stop:
            return None
        if exit_code:
            return Result(exit_code, child)
        return Result(0, None) if child.program.role in finishes else None

    def _each_alive(self, act: str) -> None:
        for child in self.children:
            if child.exit_code is None:
                getattr(child, act)()


def _has_members(group: int) -> bool:
    """Return whether a process of the group still runs. Zombies do not count, because their parent
    may never collect them."""
    members = [process for process in _processes().values() if process.group == group]
    return any(process.state not in "ZX" for process in members)


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
    for pid, process in _processes().items():
        parents[pid] = process.parent
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


def _processes() -> dict[int, _Process]:
    """Return the processes of this machine by their ids, from /proc; an empty dict where /proc does
    not exist."""
    processes = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = folder.joinpath("stat").read_text("ascii", "replace")
        except OSError:
            continue
        state, parent, group, *_ = stat.rpartition(")")[2].split()
        process = _Process(state, int(parent), int(group))
        processes[int(folder.name)] = process
    return processes


def _signal(send: Callable[[int, int], None], pid: int, number: int) -> None:
    """Send a signal with `os.kill` or `os.killpg`, unless the process has ended."""
    with suppress(ProcessLookupError, PermissionError):
        send(pid, number)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except OSError:  # nobody listens any more; the process itself must not wait for it
            return


def exit_code_of(code: int) -> int:
    """Return a process's exit code as a shell has it: 128 plus the number of the signal that killed
    the process, which is negative in `code`."""
    return 128 - code if code < 0 else code


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
