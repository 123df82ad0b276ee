"""Submits jobs to the fake Azure ML in forks that die; see `forking.py`.

Points are before and after each step of the store and of the service, before and after the user is told, and three for
every HTTP request: before it leaves, when the head of its answer has arrived (the service has done its work by then),
and when all of it was read. Of the files of the bundle, those of cloudtrain's own runtime are no points: they are many,
and all alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import azure.core.pipeline.transport  # noqa: TID253
import azure.identity  # noqa: TID253
import azure.storage.blob  # noqa: TID253
import urllib3.connection

import cloudtrain as ct
from cloudtrain.lifecycle.store.store import Store
from cloudtrain.targets.azureml.service import online
from cloudtrain.targets.azureml.service import transfer as upload
from cloudtrain.targets.azureml.service.service import AzureMLService
from cloudtrain.targets.common import transfers as data
from tests.lifecycle.submission import forking
from tests.lifecycle.submission.forking import around, point, put_points, serve, submit_by_command

assert azure.identity
assert azure.storage.blob


def sent(method: Callable[..., Any]) -> Callable[..., Any]:
    """Sending a request, with a point before and after it, unless it carries a file of the runtime."""

    def wrapped(transport: Any, request: Any, **kwargs: Any) -> Any:
        forking.silent = "/code/cloudtrain/" in request.url
        try:
            return around(method)(transport, request, **kwargs)
        finally:
            forking.silent = False

    return wrapped


def answered(method: Callable[..., Any]) -> Callable[..., Any]:
    """Reading the head of an answer, with a point when it is there."""

    def wrapped(connection: Any, *args: Any, **kwargs: Any) -> Any:
        response = method(connection, *args, **kwargs)
        point()
        return response

    return wrapped


@around
def tell(run: ct.Run) -> None:
    """What the command line does: the name on stdout."""
    print(run.name, flush=True)


def submit(order: dict[str, Any]) -> None:
    """One submission, by the command line or by the API."""
    if isinstance(order["job"], str):
        submit_by_command(order)
    else:
        ct.submit(ct.TrainingJob(**order["job"]), ct.AzureML(**order["target"]), on_run=tell)


put_points((Store, ("reserve", "advance")), (AzureMLService, ("check", "upload", "submit")))
Transport = azure.core.pipeline.transport.RequestsTransport
Transport.send = sent(Transport.send)  # type: ignore[method-assign]
urllib3.connection.HTTPConnection.getresponse = answered(
    urllib3.connection.HTTPConnection.getresponse
)  # type: ignore[method-assign]
online._THREADS = upload._FILES_AT_ONCE = data._AT_ONCE = (
    1  # one after the other, so that a point is the same moment each time
)
serve(submit)
