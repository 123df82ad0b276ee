"""What a trial of Azure ML's sweep sends to its workspace, without any package."""

from __future__ import annotations

import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from cloudtrain.runtime.azureml_metrics import Sender, log_batch_address
from tests.deadlines import DEADLINE


class Endpoint(HTTPServer):
    """Keeps what it is sent."""

    received: list[tuple[str, str | None, dict[str, Any]]]
    status = 200


class Handler(BaseHTTPRequestHandler):
    """Answers with the endpoint's status."""

    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.received.append((self.path, self.headers["Authorization"], body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing: the requests are kept."""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """A server on this machine."""
    server = Endpoint(("127.0.0.1", 0), Handler)
    server.received = []
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def sender(endpoint: Endpoint) -> Sender:
    """One that sends there, without pauses that a test would wait for."""
    address = f"http://127.0.0.1:{endpoint.server_address[1]}/log-batch"
    return Sender(address, "trial-1", "the-token", pause=0.01)


def values_of(endpoint: Endpoint) -> list[tuple[str, Any, int]]:
    """Name, value and step of all rows that the endpoint took."""
    rows = [row for _, _, body in endpoint.received for row in body["metrics"]]
    return [(row["key"], row["value"], row["step"]) for row in rows]


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + DEADLINE
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_the_address() -> None:
    """Version 2 of the REST interface, behind the URI that the service sets."""
    uri = "azureml://westeurope.api.azureml.ms/mlflow/v1.0/subscriptions/s/resourceGroups/g/workspaces/w?x=1"
    assert log_batch_address(uri) == (
        "https://westeurope.api.azureml.ms/mlflow/v2.0/subscriptions/s/resourceGroups/g/workspaces/w"
        "/api/2.0/mlflow/runs/log-batch"
    )


def test_what_is_sent(endpoint: Endpoint) -> None:
    """All reports, in order, under the run of the trial."""
    one = sender(endpoint)
    one.put({"step": 1.0, "loss": 0.5, "accuracy": 0.75})
    one.put({"step": 2.0, "loss": 0.25})
    one.close()
    assert values_of(endpoint) == [("loss", 0.5, 1), ("accuracy", 0.75, 1), ("loss", 0.25, 2)]
    assert {authorization for _, authorization, _ in endpoint.received} == {"Bearer the-token"}
    assert {body["run_id"] for _, _, body in endpoint.received} == {"trial-1"}


def test_reports_that_come_fast_are_sent_together(endpoint: Endpoint) -> None:
    """At most 1,000 values in a request, which is MLflow's limit, and none is lost."""
    one = sender(endpoint)
    for step in range(5000):
        one.put({"step": float(step), "loss": 0.5})
    one.close()
    assert [step for _, _, step in values_of(endpoint)] == list(range(5000))
    sizes = [len(body["metrics"]) for _, _, body in endpoint.received]
    assert max(sizes) <= 1000


def test_numbers_that_json_has_not_are_text(endpoint: Endpoint) -> None:
    """MLflow takes them as its protocol's JSON has them."""
    one = sender(endpoint)
    one.put({"a": math.nan, "b": math.inf, "c": -math.inf})
    one.close()
    assert [value for _, value, _ in values_of(endpoint)] == ["NaN", "Infinity", "-Infinity"]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_a_busy_service_refuses_is_sent_again(endpoint: Endpoint, status: int) -> None:
    """The same values once more, before the later ones."""
    endpoint.status = status
    one = sender(endpoint)
    one.put({"step": 1.0, "loss": 0.5})
    wait_until(lambda: len(endpoint.received) >= 2)
    endpoint.status = 200
    one.put({"step": 2.0, "loss": 0.25})
    count = len(endpoint.received)
    wait_until(lambda: len(endpoint.received) > count + 1)
    one.close()
    rows = [body["metrics"] for _, _, body in endpoint.received]
    assert all(row[0]["step"] == 1 for row in rows[:count])
    assert values_of(endpoint)[-1] == ("loss", 0.25, 2)


def test_what_cannot_be_sent_is_said_once(
    endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training goes on, and the end says how many values are missing."""
    endpoint.status = 403
    one = sender(endpoint)
    one.put({"loss": 0.5})
    wait_until(lambda: bool(endpoint.received))
    one.put({"loss": 0.25})
    one.close()
    told = capsys.readouterr().err
    assert told.count("cloudtrain: metrics cannot be sent to Azure ML") == 1
    assert "2 values were not sent" in told


def test_a_workspace_that_does_not_answer_delays_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Reports take no time while a request hangs, and at most 100,000 values wait."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        one = Sender(f"http://127.0.0.1:{silent.getsockname()[1]}/", "run", "token", pause=0.01)
        one.put({"loss": 0.5})
        connection, _ = silent.accept()
        with connection:
            for _ in range(100_500):
                one.put({"loss": 0.5})
            assert len(one._waiting) == 100_000
    one.close()
    assert "values were not sent" in capsys.readouterr().err
