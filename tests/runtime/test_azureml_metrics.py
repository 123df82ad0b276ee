"""What a trial of Azure ML's sweep sends to its workspace, without any package."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from cloudtrain.runtime.azureml_metrics import Sender, log_batch_address


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
    """One that sends there."""
    return Sender(
        f"http://127.0.0.1:{endpoint.server_address[1]}/log-batch", "trial-1", "the-token"
    )


def test_the_address() -> None:
    """Version 2 of the REST interface, behind the URI that the service sets."""
    uri = "azureml://westeurope.api.azureml.ms/mlflow/v1.0/subscriptions/s/resourceGroups/g/workspaces/w?x=1"
    assert log_batch_address(uri) == (
        "https://westeurope.api.azureml.ms/mlflow/v2.0/subscriptions/s/resourceGroups/g/workspaces/w"
        "/api/2.0/mlflow/runs/log-batch"
    )


def test_what_is_sent(endpoint: Endpoint) -> None:
    """Each report is one batch, in order, under the run of the trial."""
    one = sender(endpoint)
    one.put({"step": 1.0, "loss": 0.5, "accuracy": 0.75})
    one.put({"step": 2.0, "loss": 0.25})
    one.close()
    assert [authorization for _, authorization, _ in endpoint.received] == ["Bearer the-token"] * 2
    bodies = [body for _, _, body in endpoint.received]
    assert [
        [(row["key"], row["value"], row["step"]) for row in body["metrics"]] for body in bodies
    ] == [
        [("loss", 0.5, 1), ("accuracy", 0.75, 1)],
        [("loss", 0.25, 2)],
    ]
    assert {body["run_id"] for body in bodies} == {"trial-1"}


def test_what_cannot_be_sent_is_said_once(
    endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training goes on."""
    endpoint.status = 403
    one = sender(endpoint)
    one.put({"loss": 0.5})
    one.put({"loss": 0.25})
    one.close()
    assert len(endpoint.received) == 2
    assert capsys.readouterr().err.count("cloudtrain: metrics cannot be sent to Azure ML") == 1
