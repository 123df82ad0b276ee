"""Send the metrics of a trial to the Azure ML workspace, the only place from which a sweep's tuner
reads them.

The service gives every job an MLflow endpoint and a token. Each report is one POST from a separate
thread, so that training does not wait. A failure is reported once. Scripts need no extra package.
"""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from queue import Queue
    from typing import Any

WANTED = "CLOUDTRAIN_SEND_METRICS"
"""The variable that is `azureml` in the trials of a sweep."""

_PATIENCE = 30.0
"""Seconds for one request, and for the remaining requests when the script ends."""


def log_batch_address(tracking_uri: str) -> str:
    """Return the address that receives metrics: the REST interface behind an `azureml://` tracking
    URI."""
    path = tracking_uri.partition("?")[0].rstrip("/")
    address = path.replace("azureml://", "https://", 1)
    return address.replace("/mlflow/v1.0/", "/mlflow/v2.0/", 1) + "/api/2.0/mlflow/runs/log-batch"


class Sender:
    """Sends metrics in the order in which they were reported."""

    def __init__(self, address: str, run_id: str, token: str) -> None:
        from queue import Queue
        from threading import Thread

        self._address = address
        self._run_id = run_id
        self._token = token
        self._complained = False
        self._waiting: Queue[list[dict[str, Any]] | None] = Queue()
        self._thread = Thread(target=self._send_all, name="cloudtrain-metrics", daemon=True)
        self._thread.start()

    def put(self, values: dict[str, float]) -> None:
        """Queue `values` for sending. The value named `step` is the step of all the others."""
        now = int(time.time() * 1000)
        step = int(values.get("step", values.get("epoch", 0)))
        rows = []
        for name, value in values.items():
            if name != "step":
                rows.append({"key": name, "value": value, "timestamp": now, "step": step})
        if rows:
            self._waiting.put(rows)

    def close(self) -> None:
        """Wait until all queued metrics are sent, but only for a limited time."""
        self._waiting.put(None)
        self._thread.join(_PATIENCE)

    def _send_all(self) -> None:
        while True:
            rows = self._waiting.get()
            if rows is None:
                return
            body = {"run_id": self._run_id, "metrics": rows, "params": [], "tags": []}
            try:
                self._post(body)
            except OSError as error:  # URLError and HTTPError are
                if not self._complained:
                    self._complained = True
                    sys.stderr.write(f"cloudtrain: metrics cannot be sent to Azure ML: {error}\n")

    def _post(self, body: dict[str, Any]) -> None:
        from urllib.request import Request, urlopen

        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        request = Request(self._address, json.dumps(body).encode(), headers, method="POST")
        with urlopen(request, timeout=_PATIENCE) as answer:
            answer.read()


_sender: Sender | None = None


def send(values: dict[str, float]) -> None:
    """Send reported metrics if the job runs on Azure ML; do nothing elsewhere."""
    global _sender
    if _sender is None:
        uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        run_id = os.environ.get("MLFLOW_RUN_ID")
        token = os.environ.get("MLFLOW_TRACKING_TOKEN")
        if not uri.startswith("azureml://") or not run_id or not token:
            return
        import atexit

        _sender = Sender(log_batch_address(uri), run_id, token)
        atexit.register(_sender.close)
    _sender.put(values)
