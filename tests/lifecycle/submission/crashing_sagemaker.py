"""Submits jobs to the fake SageMaker in forks that die; see `forking.py`.

Points are before and after each step of the store and of the service, before and after the user is told, and three for
every HTTP request: before it leaves, when its answer has arrived and was not read, and after that.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import botocore.httpsession  # noqa: TID253
import urllib3.connection

import cloudtrain as ct
from cloudtrain.lifecycle.store.store import Store
from cloudtrain.targets.common import transfers as data
from cloudtrain.targets.sagemaker.service import online
from cloudtrain.targets.sagemaker.service.service import SageMakerService
from tests.lifecycle.submission.forking import around, point, put_points, serve, submit_by_command


def answered(method: Callable[..., Any]) -> Callable[..., Any]:
    """Reading an answer, with a point when it has arrived: the service has done its work by then."""

    def wrapped(connection: Any, *args: Any, **kwargs: Any) -> Any:
        select.select([connection.sock], [], [], 30)
        point()
        return method(connection, *args, **kwargs)

    return wrapped


@around
def tell(run: ct.Run) -> None:
    """What the command line does: the name on stdout."""
    print(run.name, flush=True)


def submit(order: dict[str, Any]) -> None:
    """One submission, by the command line or by the API; or another command."""
    if isinstance(order.get("job", ""), str):
        submit_by_command(order)
    else:
        job, target = ct.TrainingJob(**order["job"]), ct.SageMaker(**order["target"])
        ct.submit(job, target, ignore=order["ignore"], on_run=tell)


put_points(
    (Store, ("reserve", "advance")),
    (SageMakerService, ("check", "upload", "submit")),
    (botocore.httpsession.URLLib3Session, ("send",)),
)
urllib3.connection.HTTPConnection.getresponse = answered(
    urllib3.connection.HTTPConnection.getresponse
)  # type: ignore[method-assign]
# one after the other, so that a point is the same moment each time
online._THREADS = data._AT_ONCE = 1
serve(submit)
