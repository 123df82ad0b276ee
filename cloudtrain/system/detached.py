"""Processes that outlive the command that starts them, such as the supervisor of a run and the driver of a sweep."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cloudtrain.system.private import open_private


def start_detached(
    command: Callable[[int], Sequence[str]],
    log: str | os.PathLike[str],
    *,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str] | None = None,
    empty_log: bool = False,
) -> bool:
    """Start a process that forks and leaves its work to the child. Return when the child has written a byte into a pipe
    or has closed the pipe. The result is whether it wrote the byte.

    Args:
        command: returns the command line. Its argument is the descriptor of the pipe's write end.
        log: the private file that gets stdout and stderr.
        env: the variables of the process.
        cwd: the working directory of the process. Default: the working directory of this process.
        empty_log: remove what earlier processes have written to the log.

    Raises:
        OSError: the log cannot be opened, or the process cannot be started.
    """
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as ready:
        try:
            flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if empty_log else os.O_APPEND)
            with os.fdopen(open_private(log, flags), "ab") as output:
                child = subprocess.Popen(
                    command(writer),
                    cwd=cwd,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(writer,),
                    start_new_session=True,
                )
        finally:
            os.close(writer)
        has_answered = bool(ready.read(1))
        child.wait()
    return has_answered


def last_line(log: str | os.PathLike[str]) -> str:
    """Return the last line of a log; empty if the log is empty or cannot be read."""
    try:
        lines = Path(log).read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""
