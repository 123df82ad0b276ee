"""A run and its status as a document."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from cloudtrain.job.model import format_duration
from cloudtrain.plans.document import (
    Block,
    Cell,
    Document,
    Heading,
    Lines,
    Pairs,
    Span,
    Style,
    Table,
)
from cloudtrain.plans.states import RunState, RunStatus, Transition

STATE_STYLE: dict[RunState, Style] = {
    RunState.PENDING: "dim",
    RunState.QUEUED: "dim",
    RunState.PREPARING: "dim",
    RunState.RUNNING: "info",
    RunState.STOPPING: "warn",
    RunState.SUCCEEDED: "good",
    RunState.FAILED: "bad",
    RunState.STOPPED: "warn",
    RunState.LOST: "bad",
}


def state_cell(state: RunState, queue_place: int | None = None) -> Span:
    """Return a coloured cell with the state and the place in the queue, such as `queued 3`."""
    return Span(str(state) if queue_place is None else f"{state} {queue_place}", STATE_STYLE[state])


def run_document(
    name: str, ref: str, status: RunStatus, more: Mapping[str, str] | None = None
) -> Document:
    """Return a page with all known facts about a run. `more` adds label-value pairs after the
    reference."""
    rows: list[tuple[str, Cell]] = [("state", state_cell(status.state))]
    rows += [("reason", status.reason)] if status.reason else []
    rows += [("queue", f"place {status.queue_place}")] if status.queue_place is not None else []
    rows += [("reference", ref), *(more or {}).items()]
    rows += [("page", status.page)] if status.page else []
    rows += [("started", _moment(status.started))] if status.started else []
    rows += [("duration", text)] if (text := duration_of(status)) else []
    rows += [("restarts", str(status.restarts))] if status.restarts else []
    rows += [("cost", cost_text(status))] if status.billable_seconds is not None else []
    rows += [("progress", progress)] if (progress := progress_text(status)) else []
    rows += [("metrics", metrics_text(status.metrics))] if status.metrics else []
    blocks: list[Block] = [Heading(name), Pairs(rows)]
    if status.transitions:
        phases = [_phase(item) for item in status.transitions]
        blocks += [Heading("Phases"), Table(("PHASE", "STARTED", "TOOK", ""), phases)]
    if status.details:
        blocks += [Heading("Last output"), Lines(status.details)]
    return Document(blocks)


def duration_of(status: RunStatus, now: float | None = None) -> str:
    """Return how long the run took or has been running, such as `1h 2m`; empty before it starts,
    and if the target does not tell when it ended."""
    if status.started is None or (status.ended is None and status.state.is_final):
        return ""
    end_time = status.ended if status.ended is not None else (time.time() if now is None else now)
    return format_duration(max(0.0, end_time - status.started))


def cost_text(status: RunStatus) -> str:
    """Return a text such as `1h 2m billed on each instance, $12.34 by list price, 64% saved by spot
    capacity`."""
    parts = [f"{format_duration(status.billable_seconds or 0.0)} billed on each instance"]
    parts += [f"${status.cost:,.2f} by list price"] if status.cost is not None else []
    parts += [f"{status.saved:.0%} saved by spot capacity"] if status.saved is not None else []
    return ", ".join(parts) + ("" if status.state.is_final else " so far")


def _phase(item: Transition) -> tuple[Cell, ...]:
    took = "" if item.ended is None else format_duration(max(0.0, item.ended - item.started))
    message = item.message if item.message != item.phase else None
    return (item.phase, _moment(item.started), took, message or "")


PROGRESS = ("total", "seconds_left")
"""Values that `runtime.report(step=, total=)` adds to the measured values."""


def progress_text(status: RunStatus) -> str:
    """Return a text such as `45%, step 207 of 460, 3m left`; empty if the script reports no total.
    For an ended run, the time left is omitted."""
    step, total = status.metrics.get("step"), status.metrics.get("total")
    if step is None or not total:
        return ""
    parts = [f"{min(1.0, step / total):.0%}", f"step {number(step)} of {number(total)}"]
    left = status.metrics.get("seconds_left")
    if left is not None and not status.state.is_final:
        parts.append(f"{format_duration(left)} left")
    return ", ".join(parts)


_EXIT = re.compile(r"^[^:]*\bexit code \d+: ")


def news_text(status: RunStatus) -> str:
    """Return the newest fact about a run, the important part first: why it failed, was stopped or
    waits, the best trial of a sweep, or the metrics and the step. Empty if nothing is known."""
    metrics = status.metrics
    if (
        status.reason
        and status.state is not RunState.SUCCEEDED
        and status.state is not RunState.RUNNING
    ):
        return _EXIT.sub("", status.reason)
    if {"trials", "ended"} <= metrics.keys():
        return (
            best_words(metrics)
            or f"{number(metrics['ended'])} of {number(metrics['trials'])} ended"
        )
    values = metrics_text(
        {name: value for name, value in metrics.items() if name not in ("epoch", "step")}
    )
    share = "" if status.state.is_final else progress_text(status).partition(",")[0]
    place = "" if share or "step" not in metrics else f"step {number(metrics['step'])}"
    return ", ".join(filter(None, (share, values, place)))


def best_words(metrics: Mapping[str, float]) -> str:
    """Return the best trial of a sweep, such as `loss 0.25, trial 7`; empty if there is none."""
    values = [
        f"{name} {number(value)}" for name, value in metrics.items() if name not in OF_A_SWEEP
    ]
    return (
        ", ".join([*values, f"trial {number(metrics['best_trial'])}"])
        if "best_trial" in metrics
        else ""
    )


OF_A_SWEEP = ("trials", "ended", "running", "best_trial")
"""Values of a sweep's status besides the best value of its objective."""


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Return a text such as `loss 0.25, accuracy 0.98 (step 100)`. The step or epoch of the
    measurement comes last."""
    places = [f"{name} {number(metrics[name])}" for name in ("epoch", "step") if name in metrics]
    values = [
        f"{name} {number(value)}"
        for name, value in metrics.items()
        if name not in ("epoch", "step", *PROGRESS)
    ]
    text = ", ".join(values)
    return f"{text} ({', '.join(places)})" if values and places else text or ", ".join(places)


def number(value: float) -> str:
    """Format a metric's value with four significant digits. Integers keep all digits."""
    return str(int(value)) if abs(value) < 1e15 and value == int(value) else f"{value:.4g}"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(seconds))
