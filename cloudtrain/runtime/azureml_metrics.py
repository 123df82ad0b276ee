"""Send reported metrics to the Azure ML workspace, which draws them, and from which a sweep's tuner
reads them.

The service gives every job an MLflow endpoint and a token. A separate thread sends what has been
reported, at most once a second and at most 1,000 values at once (MLflow's limit), so that training
neither waits nor fails. Scripts need no extra package.
"""

from __future__ import annotations

import json
import math
import os
import time
from typing import Any

from .errors import tell

_PATIENCE = 30.0
"""Seconds for one request, and for the remaining requests when the script ends."""

_PAUSE = 1.0
"""Seconds from one request to the next."""

_LONGEST_PAUSE = 60.0
"""Seconds until a request is tried again, at most."""

_BATCH = 1000
_MOST_WAITING = 100_000
"""Values that wait for a workspace that does not answer. Later ones are not sent."""


def log_batch_address(tracking_uri: str) -> str:
    """Return the address that receives metrics: the REST interface behind an `azureml://` tracking
    URI."""
    path = tracking_uri.partition("?")[0].rstrip("/")
    address = path.replace("azureml://", "https://", 1)
    return address.replace("/mlflow/v1.0/", "/mlflow/v2.0/", 1) + "/api/2.0/mlflow/runs/log-batch"


class Sender:
    """Sends metrics in the order in which they were reported."""

    def __init__(self, address: str, run_id: str, token: str, *, pause: float = _PAUSE) -> None:
        from collections import deque
        from threading import Event, Thread

        self._address = address
        self._run_id = run_id
        self._token = token
        self._pause = pause
        self._waiting: deque[dict[str, Any]] = deque()
        self._has_rows = Event()
        self._is_closing = Event()
        self._is_told = False
        self._unsent = 0
        self._thread = Thread(target=self._send_all, name="cloudtrain-metrics", daemon=True)
        self._thread.start()

    def put(self, values: dict[str, float]) -> None:
        """Queue `values` for sending. The value named `step` is the step of all the others."""
        now = int(time.time() * 1000)
        step = int(values.get("step", values.get("epoch", 0)))
        for name, value in values.items():
            if name == "step":
                continue
            if len(self._waiting) >= _MOST_WAITING:
                self._unsent += 1
                continue
            row = {"key": name, "value": _number(value), "timestamp": now, "step": step}
            self._waiting.append(row)
        self._has_rows.set()

    def close(self) -> None:
        """Wait until all queued metrics are sent, but only for a limited time."""
        self._is_closing.set()
        self._has_rows.set()
        self._thread.join(_PATIENCE)
        self._unsent += len(self._waiting)
        if self._unsent:
            tell(f"{self._unsent} values were not sent to Azure ML")

    def _send_all(self) -> None:
        rows: list[dict[str, Any]] = []
        pause = self._pause
        while True:
            if not rows:
                while self._waiting and len(rows) < _BATCH:
                    rows.append(self._waiting.popleft())
            if not rows and self._is_closing.is_set():
                return
            if not rows:
                self._has_rows.wait()
                self._has_rows.clear()
                continue
            try:
                self._post(rows)
            except OSError as error:  # URLError and HTTPError are
                if not self._is_told:
                    self._is_told = True
                    tell(f"metrics cannot be sent to Azure ML: {error}")
                if not _may_pass(error) or self._is_closing.is_set():
                    self._unsent += len(rows)
                    rows = []
                pause = min(pause * 2, _LONGEST_PAUSE)
            else:
                rows = []
                pause = self._pause
            self._is_closing.wait(pause)

    def _post(self, rows: list[dict[str, Any]]) -> None:
        from urllib.request import Request, urlopen

        body = {"run_id": self._run_id, "metrics": rows, "params": [], "tags": []}
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        request = Request(self._address, json.dumps(body).encode(), headers, method="POST")
        with urlopen(request, timeout=_PATIENCE) as answer:
            answer.read()


def _may_pass(error: Any) -> bool:
    """Return whether the same request may succeed later: the network fails, or the service is
    busy."""
    code = getattr(error, "code", None)
    if code is None:  # no answer came
        return True
    error.close()
    return bool(code == 429 or code >= 500)


def _number(value: float) -> float | str:
    """Return a number as JSON has it; MLflow takes the others as text."""
    return value if math.isfinite(value) else json.dumps(value)


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
