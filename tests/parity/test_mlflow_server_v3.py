"""A real MLflow server, which the SageMaker SDK brings along, stores what `runtime.report` sends on Azure ML."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import pytest

from cloudtrain.runtime.azureml_metrics import Sender, log_batch_address
from tests.deadlines import DEADLINE
from tests.ports import free_port

pytestmark = pytest.mark.parity

API = "/api/2.0/mlflow"


def ask(url: str, body: object = None) -> Any:
    """GET, or POST with a body: what the REST interface answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an empty server on this machine."""
    folder = tmp_path_factory.mktemp("mlflow")
    port = free_port()
    # a new database takes minutes of a busy disk
    store = folder.as_uri()
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--artifacts-destination", str(folder)]
    with Path(folder, "log").open("w") as log:
        env = {**os.environ, "MLFLOW_ALLOW_FILE_STORE": "true"}
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=env)
    address = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            urllib.request.urlopen(f"{address}/health", timeout=1).close()
            break
        except OSError:
            assert process.poll() is None, Path(folder, "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
    yield address
    process.terminate()
    process.wait(DEADLINE)


@pytest.fixture
def run(server: str) -> str:
    """The id of a new run."""
    experiment = ask(f"{server}{API}/experiments/create", {"name": uuid4().hex})
    body = experiment | {"start_time": int(time.time() * 1000)}
    return str(ask(f"{server}{API}/runs/create", body)["run"]["info"]["run_id"])


def history(server: str, run: str, name: str) -> list[tuple[int, float]]:
    """Steps and values of a metric, as the server has stored them."""
    query = urlencode({"run_id": run, "metric_key": name, "max_results": 25_000})
    rows = ask(f"{server}{API}/metrics/get-history?{query}").get("metrics", [])
    return sorted((int(row.get("step", 0)), float(row["value"])) for row in rows)


def test_every_value_arrives_once(server: str, run: str) -> None:
    """More than one batch, with the steps that were reported."""
    sender = Sender(log_batch_address(server), run, "any-token", pause=0.01)
    for step in range(2500):
        sender.put({"step": float(step), "loss": step / 2})
    sender.put({"step": 2500.0, "val/accuracy": 0.75})
    sender.close()
    assert history(server, run, "loss") == [(step, step / 2) for step in range(2500)]
    assert history(server, run, "val/accuracy") == [(2500, 0.75)]


def test_a_loss_that_is_no_number_is_stored(server: str, run: str) -> None:
    """NaN and infinity, which a database would have as the largest number."""
    sender = Sender(log_batch_address(server), run, "any-token", pause=0.01)
    sender.put({"step": 1.0, "nan": math.nan, "up": math.inf, "down": -math.inf})
    sender.close()
    (nan,) = history(server, run, "nan")
    assert math.isnan(nan[1])
    assert history(server, run, "up")[0][1] >= sys.float_info.max
    assert history(server, run, "down")[0][1] <= -sys.float_info.max


def test_a_run_that_the_server_does_not_know(
    server: str, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script is told and goes on; the values of other runs are untouched."""
    sender = Sender(log_batch_address(server), "0" * 32, "any-token", pause=0.01)
    sender.put({"step": 1.0, "loss": 0.5})
    sender.close()
    assert "1 values were not sent" in capsys.readouterr().err
    assert history(server, run, "loss") == []
