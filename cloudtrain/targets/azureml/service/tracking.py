"""Read what jobs have logged from the workspace's MLflow interface: `runtime.report`, MLflow and
its autologging all write there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cloudtrain.documents import JsonMapping, JsonObject
from cloudtrain.rules.engine import value_at
from cloudtrain.signals.readers import Scalar
from cloudtrain.targets.azureml.service.client import Client
from cloudtrain.targets.contract import OwnMetrics

_MLFLOW = "mlflow/v2.0"
_PAGE = 1000
"""Runs on a page."""

_NOTHING: tuple[str, list[int], str] = ("", [0, -1], "")
"""What is known of a metric at first."""

_VALUES = 25_000
"""Values of a metric on a page."""


def last_values(client: Client, parent: str, experiments: set[str]) -> dict[str, dict[str, float]]:
    """Map the runs below a run to the last values of their metrics."""
    address = client.gateway(_MLFLOW, "api/2.0/mlflow/runs/search")
    query: JsonObject = {
        "experiment_ids": sorted(experiments),
        "filter": f"tags.mlflow.parentRunId = '{parent}'",
        "max_results": _PAGE,
    }
    metrics: dict[str, dict[str, float]] = {}
    while experiments:  # a sweep that has not started yet has none
        page = client.post(address, query)
        for run in page.get("runs") or ():
            rows = value_at(run, "data", "metrics") or ()
            metrics[run["info"]["run_id"]] = {row["key"]: float(row["value"]) for row in rows}
        if not page.get("next_page_token"):
            break
        query["page_token"] = page["next_page_token"]
    return metrics


def new_values(client: Client, run: str, mark: Mapping[str, Any] | None) -> OwnMetrics:
    """Return the values of a run's metrics after `mark`. For each metric, it has what the run said
    of it, the time and the step of the newest value, and the token of the last page."""
    address = client.gateway(_MLFLOW, "api/2.0/mlflow/runs/get")
    answer = client.get(address, query={"run_id": run})
    known = mark or {}
    marks: JsonObject = {}
    values: list[Scalar] = []
    for row in value_at(answer, "run", "data", "metrics") or ():
        name = row["key"]
        said = " ".join(map(str, row.values()))
        before, seen, page = known.get(name) or _NOTHING
        if before != said:
            rows, page = _history(client, run, name, page)
            new = [item for item in rows if _place(item) > seen]
            new.sort(key=_place)
            values += _scalars(name, new, seen)
            seen = _place(new[-1]) if new else seen
        marks[name] = [said, seen, page]
    return OwnMetrics(values, marks)


def _history(client: Client, run: str, name: str, page: str) -> tuple[list[JsonMapping], str]:
    """Return the values of a metric from a page on, and the token of the last page."""
    address = client.gateway(_MLFLOW, "api/2.0/mlflow/metrics/get-history")
    query = {"run_id": run, "metric_key": name, "max_results": str(_VALUES)}
    rows: list[JsonMapping] = []
    while True:
        if page:
            query["page_token"] = page
        answer = client.get(address, query=query)
        rows += answer.get("metrics") or ()
        following = answer.get("next_page_token")
        if not following or following == page:
            return rows, page
        page = following


def _place(row: JsonMapping) -> list[int]:
    """Return the time of a value in milliseconds, and its step."""
    return [int(row["timestamp"]), int(row.get("step") or 0)]


def _scalars(name: str, rows: list[JsonMapping], seen: list[int]) -> Iterator[Scalar]:
    """Yield the values in rows that follow the place `seen`."""
    before = seen[1]
    for row in rows:
        time, step = _place(row)
        # who names no step gets 0 for all values
        is_known = step or before
        yield Scalar(
            name, float(step) if is_known else None, time / 1000, float(row.get("value", 0))
        )
        before = step
