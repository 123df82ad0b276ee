"""A fake workspace, a service that talks to it, and a plan to send there."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.code.tree import Tree, scan
from cloudtrain.plans.plan import Plan, Upload
from cloudtrain.plans.states import RunRef
from cloudtrain.targets.azureml.service import blobs
from cloudtrain.targets.azureml.service import client as client_module
from cloudtrain.targets.azureml.service.client import Client
from cloudtrain.targets.azureml.service.service import AzureMLService
from cloudtrain.targets.azureml.settings import AzureMLAccount
from cloudtrain.targets.common.services import Pace
from tests.deadlines import DEADLINE
from tests.fakes.azureml import FakeAzure
from tests.fakes.azureml.job import Job

SUBSCRIPTION = "00000000-0000-0000-0000-000000000000"
WORKSPACE = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/rg/providers/Microsoft.MachineLearningServices/workspaces/ws"
CODE = f"{WORKSPACE}/codes/cloudtrain-{'ab' * 20}/versions/1"
ENVIRONMENT = f"{WORKSPACE}/environments/cloudtrain/versions/{'cd' * 16}"
NAME = "digits-3f9a1c22-1"
PLACE = f"{SUBSCRIPTION}:rg:ws"
REF = RunRef("azureml", PLACE, NAME)
QUICK = Pace(every=0.02, per_stream=0.0, settle=0.3, patience=DEADLINE, slowest=0.1)

REQUEST: dict[str, Any] = {
    "jobType": "Command",
    "command": "python train.py --name 'größer als 1'",
    "environmentId": "azureml://registries/azureml/environments/acpt-pytorch-2.8-cuda12.6/labels/latest",
    "experimentName": "digits",
    "displayName": NAME,
    "resources": {"instanceCount": 2, "instanceType": "Standard_NC24ads_A100_v4"},
    "limits": {"jobLimitsType": "Command", "timeout": "PT1H"},
    "tags": {"team": "vision"},
    "properties": {"cloudtrain.run": NAME},
}
CONTENT = json.dumps(
    {"properties": {"image": "mcr.microsoft.com/azureml/base:1", "isAnonymous": True}}
)


def plan_of(
    *, name: str = NAME, uploads: tuple[Upload, ...] = (), place: str = PLACE, **changes: Any
) -> Plan:
    """A plan whose body is `REQUEST` with changes; a None takes a field out."""
    mark = {"properties": {"cloudtrain.run": name}}
    body = {
        key: value for key, value in {**REQUEST, **mark, **changes}.items() if value is not None
    }
    return Plan("azureml", name, "digits", {"properties": body}, uploads=uploads, place=place)


def code_plan(tree: Any, code_id: str = CODE) -> Plan:
    """A plan that needs a bundle."""
    upload = Upload("code", tree.sha256, code_id, 4, 1)
    return plan_of(uploads=(upload,), codeId=code_id)


def environment_plan() -> Plan:
    """A plan that needs an environment of its own."""
    upload = Upload("environment", "cd" * 32, ENVIRONMENT, len(CONTENT), 1, CONTENT)
    return plan_of(uploads=(upload,), environmentId=ENVIRONMENT)


def hold_back(fake: FakeAzure, method: str, pattern: str, *, interrupt: bool = False) -> None:
    """Such requests, from the second on, wait for the main thread to leave its pool of threads: for an error, or for
    Ctrl-C, which is pressed at the second."""
    main, numbers = threading.main_thread().ident, count(1)
    assert main is not None, "it runs"

    def hold(_: object) -> None:
        number = next(numbers)
        if interrupt and number == 2:
            signal.pthread_kill(main, signal.SIGINT)
        until = time.monotonic() + DEADLINE
        while number >= 2 and not _is_in(main, "shutdown") and time.monotonic() < until:
            time.sleep(0.01)

    fake.before(method, pattern, hold)


def _is_in(thread: int, function: str) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


@dataclass
class Source:
    """The user's code, and how often its bundle was written."""

    tree: Tree
    written: int = field(default=0)

    @property
    def sha256(self) -> str:
        return self.tree.sha256

    def write(self, path: Path) -> None:
        self.written += 1
        self.tree.write(path)


@pytest.fixture
def source(tmp_path: Path) -> Callable[[dict[str, bytes]], Source]:
    """A bundle of these files; cloudtrain's runtime comes with them."""

    def make(files: dict[str, bytes]) -> Source:
        (tmp_path / "src").mkdir(exist_ok=True)
        for name, data in files.items():
            place = tmp_path / "src" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        return Source(scan(tmp_path / "src"))

    return make


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAzure]:
    """The workspace, to which this process is led; pauses between tries are short."""
    monkeypatch.setattr(client_module, "BACKOFF", 0.01)
    with FakeAzure() as service:
        for name, value in service.environ.items():
            monkeypatch.setenv(name, value)
        for name in ("initial_backoff", "increment_base", "random_jitter_range"):
            monkeypatch.setitem(blobs.RETRIES, name, 0.005)
        yield service


@pytest.fixture
def client(fake: FakeAzure) -> Client:
    """Requests to the workspace."""
    return Client(AzureMLAccount.parse(PLACE), fake.environ)


@pytest.fixture
def service(fake: FakeAzure, tmp_path: Path) -> AzureMLService:
    """A service as a new process has it, in a hurry."""
    return AzureMLService(fake.environ, QUICK)


@pytest.fixture
def job(fake: FakeAzure, service: AzureMLService) -> Job:
    """A job that was submitted and waits."""
    service.submit(plan_of())
    return fake.jobs[NAME]
