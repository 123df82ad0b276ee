"""Submits one job to the fake Azure ML, again and again, each time in a process that kills itself at a chosen point.

Reads orders from stdin, one JSON object a line: `{"point": 3, "job": {...}, "environ": {...}, "cwd": "/home"}`;
point 0 is never. Answers each with one line: `{"ended": -9}`. Every order is a fork of this process, which has imported
everything already: starting Python forty times would take a minute.

Points are before and after each step of the store and of the backend, and three for every HTTP request: before it
leaves, when the head of its answer has arrived (the service has done its work by then), and when all of it was read.
Of the files of the bundle, those of cloudtrain's own runtime are no points: they are many, and all alike.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import azure.core.pipeline.transport  # noqa: TID253
import azure.identity  # noqa: TID253
import azure.storage.blob  # noqa: TID253
import urllib3.connection

import cloudtrain as ct
from cloudtrain.backends.azureml import online, upload
from cloudtrain.backends.azureml.backend import AzureMLBackend
from cloudtrain.store.store import Store

assert azure.identity
assert azure.storage.blob

passed, deadly = 0, 0
silent = False


def point() -> None:
    """One more moment at which the process may die, as if by a power cut."""
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


def sent(method: Callable[..., Any]) -> Callable[..., Any]:
    """Sending a request, with a point before and after it, unless it carries a file of the runtime."""

    def wrapped(transport: Any, request: Any, **kwargs: Any) -> Any:
        global silent
        silent = "/code/cloudtrain/" in request.url
        try:
            return around(method)(transport, request, **kwargs)
        finally:
            silent = False

    return wrapped


def answered(method: Callable[..., Any]) -> Callable[..., Any]:
    """Reading the head of an answer, with a point when it is there."""

    def wrapped(connection: Any, *args: Any, **kwargs: Any) -> Any:
        response = method(connection, *args, **kwargs)
        point()
        return response

    return wrapped


def submit(order: dict[str, Any], answer: int) -> None:
    """One submission; its name goes to the pipe `answer`, and how many points it passed."""
    global deadly
    os.environ.clear()
    os.environ.update(order["environ"])
    os.chdir(order["cwd"])
    deadly = order["point"]
    run = ct.submit(ct.TrainingJob(**order["job"]), ct.AzureML(**order["target"]))
    os.write(answer, json.dumps({"name": run.name, "points": passed, "adopted": run.adopted}).encode())


def carry_out(order: dict[str, Any]) -> dict[str, Any]:
    """Fork, submit there, and say what became of it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            submit(order, writer)
            code = 0
        except BaseException:  # noqa: BLE001 - a child of fork never returns into the loop of its parent
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    ended = os.waitstatus_to_exitcode(status)
    return {"ended": ended, **(json.loads(said) if said else {})}


for owner, names in (
    (Store, ("reserve", "advance")),
    (AzureMLBackend, ("check", "upload", "submit")),
):
    for name in names:
        setattr(owner, name, around(getattr(owner, name)))
Transport = azure.core.pipeline.transport.RequestsTransport
Transport.send = sent(Transport.send)  # type: ignore[method-assign]
urllib3.connection.HTTPConnection.getresponse = answered(urllib3.connection.HTTPConnection.getresponse)  # type: ignore[method-assign]
online._THREADS = upload._FILES_AT_ONCE = 1  # one after the other, so that a point is the same moment each time

for line in sys.stdin:
    print(json.dumps(carry_out(json.loads(line))), flush=True)
