"""How a run ended, in words, in JSON, and as an exit code."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cloudtrain.cli.terminal import say, show
from cloudtrain.states import RunState

if TYPE_CHECKING:
    from cloudtrain.handle import Run
    from cloudtrain.states import RunStatus


def exit_code(status: RunStatus) -> int:
    """0 when the run succeeded, 1 otherwise."""
    return 0 if status.state is RunState.SUCCEEDED else 1


def report_end(run: Run, status: RunStatus, metrics: Mapping[str, float] | None = None) -> None:
    """Say on stderr how the run ended and what to type next."""
    if status.state in (RunState.FAILED, RunState.LOST):
        _report_failure(run, status)
        return
    from cloudtrain.render.status import metrics_text

    values = metrics_text(metrics or status.metrics)
    word = "was stopped" if status.state is RunState.STOPPED else str(status.state)
    say(f"`{run.name}` {word}{_after(status)}" + (f": {values}" if values else ""))
    say(f"next: `cloudtrain logs {run.name}`, `cloudtrain download {run.name} {_written(run, status)}`")


def goes_on(run: Run) -> None:
    """Say after Ctrl-C that the run was left alone."""
    say(
        "",
        f"`{run.name}` goes on",
        f"stop it with: `cloudtrain stop {run.name}`",
        f"follow it with: `cloudtrain logs {run.name} -f`",
    )


def status_json(run: Run, status: RunStatus) -> dict[str, Any]:
    """A run and its status as JSON data."""
    return {
        "name": run.name,
        "ref": str(run.ref),
        "target": run.target,
        "job": run.job_name,
        "state": str(status.state),
        "reason": status.reason,
        "created": run.created,
        "started": status.started,
        "ended": status.ended,
        "failed_rank": status.failed_rank,
        "exit_code": status.exit_code,
        "restarts": status.restarts,
        "metrics": status.metrics,
        "details": list(status.details),
        "transitions": [asdict(item) for item in status.transitions],
        "billable_seconds": status.billable_seconds,
        "cost": status.cost,
        "saved": status.saved,
        "page": status.page,
        "directory": None if run.directory is None else str(run.directory),
    }


def _report_failure(run: Run, status: RunStatus) -> None:
    from cloudtrain.render.document import Document, Notice

    word = "was lost" if status.state is RunState.LOST else "failed"
    rank = f" --rank {status.failed_rank}" if status.failed_rank is not None else ""
    reason = f": {status.reason}" if status.reason else ""
    hint = f"`cloudtrain logs {run.name}{rank}` prints all that it wrote"
    message = f"`{run.name}` {word}{_after(status)}{reason}"
    show(Document([Notice("error", message, details=status.details, hint=hint)]), sys.stderr)


def _after(status: RunStatus) -> str:
    from cloudtrain.render.status import duration_of

    return f" after {duration_of(status)}" if status.started is not None and status.ended is not None else ""


def _written(run: Run, status: RunStatus) -> str:
    """What there is to download: a processing run has no model."""
    if status.state is RunState.STOPPED:
        return "checkpoint/"
    written = run.written
    return "model/" if not written or "model" in written else next(iter(written))
