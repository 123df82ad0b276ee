"""What Linux shows of the processes of this machine in /proc. Another system shows nothing."""

from __future__ import annotations

import os
from functools import cache


def read_proc(path: str) -> bytes | None:
    """Return the content of a file in /proc; None if its process has ended or is another user's."""
    try:
        with open(f"/proc/{path}", "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return None


@cache
def boot_id() -> str:
    """Return the id of this boot, or "" if the system has none."""
    content = read_proc("sys/kernel/random/boot_id")
    return "" if content is None else content.decode("ascii").strip()


def stat_fields(pid: int) -> list[bytes]:
    """Return what `/proc/PID/stat` says of a process, from its state on; nothing for a process that
    has ended."""
    content = read_proc(f"{pid}/stat")
    if content is None:
        return []
    # the program's name, in parentheses, may hold anything
    return content[content.rindex(b")") + 2 :].split()


def state_of(fields: list[bytes]) -> str:
    """Return the letter of a state, such as `S` for a process that sleeps and `T` for one that a
    signal has stopped; "" for one that has ended, also if nobody has collected it."""
    if not fields or fields[0] in (b"Z", b"X"):
        return ""
    return fields[0].decode("ascii")


def start_of(pid: int) -> str:
    """Return when a process started, in ticks since the boot; "" if it has ended."""
    fields = stat_fields(pid)
    return fields[19].decode("ascii") if state_of(fields) else ""


def child_pids(pid: int) -> list[int] | None:
    """Return the processes that a process, or any thread of it, has started; None where that is not
    shown, as by a kernel without CONFIG_PROC_CHILDREN."""
    children: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    for thread in threads:
        content = read_proc(f"{pid}/task/{thread}/children")
        if content is not None:
            children += map(int, content.split())
        elif os.path.exists(f"/proc/{pid}/task/{thread}"):
            return None
    return children
