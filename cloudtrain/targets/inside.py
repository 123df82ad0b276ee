"""What `cloudtrain exec` asks of a target, and what it gets: a process of this machine that works
inside a run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cloudtrain.errors import UsageError

RANK_PID = "CLOUDTRAIN_RANK_PID"
"""The variable in which a command finds the id of the rank's process."""


class ExecRequest(NamedTuple):
    """What a user wants inside a run.

    Attributes:
        command: the program and its arguments; empty for a shell.
        rank: the rank whose environment and folder the command gets. Default: the lowest one.
        instance: the number of the instance. Default: that of the rank.
        port: the port to forward; then there is no command.
        local_port: the port of this machine for it.
        is_for_ssh: whether the user asks for the host of an ssh configuration; then there is no
            command.
        has_terminal: whether the command gets the user's terminal.
        may_open: whether the user agreed that the target changes the run, so that it can be
            entered.
    """

    command: tuple[str, ...] = ()
    rank: int | None = None
    instance: int | None = None
    port: int | None = None
    local_port: int | None = None
    is_for_ssh: bool = False
    has_terminal: bool = False
    may_open: bool = False


class Session(NamedTuple):
    """A process of this machine that does what an `ExecRequest` asks for.

    Attributes:
        argv: its program and arguments.
        environ: its variables.
        cwd: its working folder. Default: that of cloudtrain.
        ready: what the process prints when it listens on the local port, if it does.
        is_marked: whether the command's output and exit code stand between marks
            (`cloudtrain/targets/common/remote.py`), because something may print before, or the
            process does not return the code.
        has_stdin: whether the command gets stdin. Otherwise the process needs one that never ends.
        ssh: options of ssh that lead to the instance.
    """

    argv: tuple[str, ...] = ()
    environ: Mapping[str, str] = {}
    cwd: str | None = None
    ready: bytes = b""
    is_marked: bool = False
    has_stdin: bool = True
    ssh: Mapping[str, str] = {}


class NotOpen(UsageError):
    """The run was sent without what `exec` needs. `question` is what to ask the user if the target
    can change that while the run goes on: then `ExecRequest.may_open` is the answer."""

    code = "CT957"

    def __init__(self, message: str, *, hint: str, question: str = "") -> None:
        super().__init__(message, hint=hint)
        self.question = question


def not_running(name: str, asked: ExecRequest, hint: str) -> UsageError:
    """Return the error for a rank or instance that the run `name` has not."""
    wanted = {"rank": asked.rank, "instance": asked.instance}
    words = [f"{key} {value}" for key, value in wanted.items() if value is not None]
    what = " on ".join(words) or "rank"
    return UsageError(f"`{name}` has no {what} that is running", hint=hint, code="CT958")


def find_program(name: str, environ: Mapping[str, str], hint: str) -> str:
    """Return the path of a program. Raises `UsageError` with the hint without one."""
    path = shutil.which(name, path=environ.get("PATH"))
    if path is None:
        raise UsageError(f"`{name}` is not installed on this machine", hint=hint, code="CT959")
    return path


_READY = "cloudtrain relay is ready"
_RELAY = Path(__file__).parents[1] / "system" / "relay.py"


def relayed(argv: Sequence[str], environ: Mapping[str, str], asked: ExecRequest) -> Session:
    """Return the session for a port whose connections a process carries through its stdin and
    stdout to the far end of a relay (`cloudtrain/system/relay.py`)."""
    near = (sys.executable, "-I", "-S", str(_RELAY), str(asked.local_port), _READY)
    return Session((*near, *argv), environ, ready=_READY.encode())


def relay_argv(port: int) -> list[str]:
    """Return the words after the name of a Python interpreter that make it the far end of a relay,
    which leads to a port of its machine."""
    return ["-I", "-S", "-c", _RELAY.read_text("utf-8"), str(port)]


def relay_command(port: int) -> tuple[str, ...]:
    """Return the command of another machine that is the far end of a relay."""
    python = 'exec "$(type -P python3 || echo python)" "$@"'
    return ("bash", "-c", python, "python3", *relay_argv(port))
