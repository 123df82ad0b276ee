"""The process table of this machine, read from /proc, or with psutil on systems without /proc.

Every function returns None or an empty result for a process that has ended or belongs to another user.
"""

# Paths are strings here, because this module must start and poll quickly.
# ruff: noqa: PTH110, PTH123, PTH208
from __future__ import annotations

import os

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from types import ModuleType

HAS_PROC = os.path.exists("/proc/self/environ")


class Stat:
    """The entry of one process in the process table. `wait_status` is the status that `wait` would return, for a zombie
    on Linux; otherwise None."""

    __slots__ = ("is_zombie", "parent", "session", "wait_status")

    def __init__(self, parent: int, session: int, is_zombie: bool, wait_status: int | None = None) -> None:
        self.parent = parent
        self.session = session
        self.is_zombie = is_zombie
        self.wait_status = wait_status


def processes() -> list[int]:
    """Return the ids of all processes."""
    if HAS_PROC:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return list(_psutil().pids())


def stat_of(pid: int) -> Stat | None:
    """Return the process's entry: its parent, its session, and whether it is a zombie."""
    if not HAS_PROC:
        return _psutil_stat(pid)
    content = _read(f"/proc/{pid}/stat")
    if content is None:
        return None
    fields = content[content.rindex(b")") + 2 :].split()  # the name before it may hold anything
    is_zombie = fields[0] in (b"Z", b"X")
    return Stat(int(fields[1]), int(fields[3]), is_zombie, int(fields[49]) if is_zombie else None)


def environment_of(pid: int) -> dict[str, str] | None:
    """Return the environment variables with which the process was started."""
    if not HAS_PROC:
        return _psutil_environment(pid)
    content = _read(f"/proc/{pid}/environ")
    if content is None:
        return None
    pairs = (item.partition("=") for item in os.fsdecode(content).split("\0") if item)
    return {name: value for name, _, value in pairs}


def carries(pid: int, variable: str) -> bool:
    """Return whether the process was started with `variable`, written as `NAME=value`, in its environment."""
    if not HAS_PROC:
        name, _, value = variable.partition("=")
        return (_psutil_environment(pid) or {}).get(name) == value
    content = _read(f"/proc/{pid}/environ")
    return content is not None and b"\0" + os.fsencode(variable) + b"\0" in b"\0" + content + b"\0"


def children_of(pid: int) -> list[int]:
    """Return the ids of the process's direct children."""
    if not HAS_PROC:
        table = _psutil()
        try:
            return [child.pid for child in table.Process(pid).children()]
        except table.Error:
            return []
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    for thread in threads:
        content = _read(f"/proc/{pid}/task/{thread}/children")
        if content is None:  # a kernel without CONFIG_PROC_CHILDREN
            return [child for child in processes() if (stat := stat_of(child)) and stat.parent == pid]
        found += map(int, content.split())
    return found


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return None


def _psutil() -> ModuleType:
    import sys

    if "site" not in sys.modules:  # the supervisor runs without site-packages
        import site

        site.main()
    import psutil

    return psutil


def _psutil_stat(pid: int) -> Stat | None:
    table = _psutil()
    try:
        process = table.Process(pid)
        return Stat(process.ppid(), os.getsid(pid), process.status() == table.STATUS_ZOMBIE)
    except (table.Error, OSError):
        return None


def _psutil_environment(pid: int) -> dict[str, str] | None:
    table = _psutil()
    try:
        environment: dict[str, str] = table.Process(pid).environ()
    except (table.Error, OSError):
        return None
    return environment
