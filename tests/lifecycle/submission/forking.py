"""A process that submits again and again, each time in a fork of itself that dies at a chosen point or moment.

It reads orders from stdin, one JSON object a line, and answers each with one line. Starting Python and an SDK for each
submission would take minutes. An order has what `submit` needs, and

    environ, cwd     of the submission
    point            the number of the point at which it kills itself, as if by a power cut; 0 is never
    killed_after     seconds after which it is killed from outside; null is never

and an answer `ended` (the exit code, negative for a signal), `told` (what it printed until then), `points` (how many it
passed) and `seconds`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

passed, deadly = 0, 0
silent = False


def point() -> None:
    """One more moment at which the process may die."""
    global passed
    if silent:
        return
    passed += 1
    if passed == deadly:
        os.kill(os.getpid(), signal.SIGKILL)


def around(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, with a point before and after it."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        point()
        result = method(*args, **kwargs)
        point()
        return result

    return wrapped


def put_points(*places: tuple[Any, tuple[str, ...]]) -> None:
    """Put a point before and after each of these methods."""
    for owner, names in places:
        for name in names:
            setattr(owner, name, around(getattr(owner, name)))


def serve(submit: Callable[[dict[str, Any]], None]) -> None:
    """Carry out orders until stdin ends. `submit` prints what it tells its user."""
    for line in sys.stdin:
        print(json.dumps(_carry_out(json.loads(line), submit)), flush=True)


def _carry_out(order: dict[str, Any], submit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    (told, says), (counted, counts) = os.pipe(), os.pipe()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _submit_in_child(order, submit, says, counts)
    os.close(says)
    os.close(counts)
    if order.get("killed_after") is not None:
        time.sleep(order["killed_after"])
        os.kill(child, signal.SIGKILL)
    with os.fdopen(told, "rb") as pipe, os.fdopen(counted, "rb") as points:
        # What a detached supervisor inherits may stay open; the end of the child is what counts.
        _, status = os.waitpid(child, 0)
        return {
            "ended": os.waitstatus_to_exitcode(status),
            "told": _read_what_is_there(pipe.fileno()),
            "points": int(_read_what_is_there(points.fileno()) or 0),
            "seconds": time.monotonic() - began,
        }


def _read_what_is_there(descriptor: int) -> str:
    content = b""
    while select.select([descriptor], [], [], 0)[0] and (part := os.read(descriptor, 65536)):
        content += part
    return content.decode()


def _submit_in_child(
    order: dict[str, Any], submit: Callable[[dict[str, Any]], None], says: int, counts: int
) -> None:
    global deadly
    code = 1
    try:
        os.dup2(says, 1)
        os.close(says)
        os.set_inheritable(counts, False)
        os.environ.clear()
        os.environ.update(order["environ"])
        os.chdir(order["cwd"])
        deadly = order.get("point", 0)
        submit(order)
        os.write(counts, str(passed).encode())
        code = 0
    # a child of fork never returns into the loop of its parent
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        os._exit(code)


class Submitter:
    """Such a process, from outside."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def submit(self, **order: Any) -> dict[str, Any]:
        """Carry out one order, with this process's environment and working directory."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(
            json.dumps({"environ": dict(os.environ), "cwd": os.getcwd(), **order}) + "\n"
        )
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


@contextmanager
def start_submitter(program: Path) -> Iterator[Submitter]:
    """Start a program that calls `serve`, and end it afterwards."""
    with subprocess.Popen(
        [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Submitter(process)
        assert process.stdin is not None
        process.stdin.close()


def submit_by_command(order: dict[str, Any]) -> None:
    """`cloudtrain submit JOB --detach`, with what the order adds; or the command in its `words`."""
    from cloudtrain.cli.app import run_command
    from cloudtrain.cli.terminal import mend_streams

    sys.stdout = kept = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    mend_streams()
    words = order.get("words") or ["submit", order["job"], "--detach", *order.get("options", ())]
    code = run_command(words)
    sys.stdout.flush()
    assert (code, kept.closed) == (0, False)
