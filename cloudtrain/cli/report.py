"""The result of a run as text, as JSON and as an exit code."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.cli.terminal import say, show, typed
from cloudtrain.core.states import RunState
from cloudtrain.errors import CloudtrainError

if TYPE_CHECKING:
    from cloudtrain.core.states import RunStatus
    from cloudtrain.lifecycle.run import Run


def exit_code(status: RunStatus) -> int:
    """Return 0 if the run succeeded, else 1."""
    return 0 if status.state is RunState.SUCCEEDED else 1


def report_end(run: Run, status: RunStatus, metrics: Mapping[str, float] | None = None) -> None:
    """Print on stderr how the run ended and what to type next."""
    if status.state in (RunState.FAILED, RunState.LOST):
        _report_failure(run, status)
        return
    if status.state is RunState.STOPPED and status.started is None and status.reason and not run.is_sweep:
        say(f"`{run.name}` was stopped: {status.reason}")
        return  # no process has started, so there is nothing to read or download
    from cloudtrain.render.status import metrics_text

    values = _of_sweep(status) if run.is_sweep else metrics_text(metrics or status.metrics)
    word = "was stopped" if status.state is RunState.STOPPED else str(status.state)
    if status.state is RunState.STOPPED and status.started is None and status.reason:
        values = status.reason  # such as the run that it waited for
    say(f"`{run.name}` {word}{_after(status)}" + (f": {values}" if values else ""))
    work = _working_files(run)
    fetched = _downloads_of(run, status, has_work=bool(work))
    fetch = typed("cloudtrain", "download", run.name, fetched) if fetched else ""
    if work:
        them = "it" if len(work) == 1 else "them"
        copy = "" if fetched == "work/" else f"; {typed('cloudtrain', 'download', run.name, 'work/')} copies {them}"
        say(_words_of(work) + copy)
    if run.is_sweep:
        fetch = f", {typed('cloudtrain', 'download', run.name, 'model/')}" if "best_trial" in status.metrics else ""
        say(f"next: {typed('cloudtrain', 'trials', run.name)}{fetch}")
    else:
        say(f"next: {typed('cloudtrain', 'logs', run.name)}{fetch and f', {fetch}'}")


def _of_sweep(status: RunStatus) -> str:
    """Return the summary of a sweep: `trial 7 is the best, accuracy 0.97; 2 of 40 trials failed`."""
    from cloudtrain.render.status import number

    progress = ("trials", "ended", "running", "best_trial")
    values = [f"{name} {number(value)}" for name, value in status.metrics.items() if name not in progress]
    best = status.metrics.get("best_trial")
    words = [f"trial {int(best)} is the best, {values[0]}"] if best is not None and values else []
    return "; ".join([*words, *([status.reason] if status.reason else [])])


def goes_on(run: Run) -> None:
    """Print that the run continues, and the commands that stop and follow it."""
    say(
        "",
        f"`{run.name}` continues",
        f"stop it with: {typed('cloudtrain', 'stop', run.name)}",
        f"follow it with: {typed('cloudtrain', 'logs', run.name, '-f')}",
    )


def status_json(run: Run, status: RunStatus) -> dict[str, Any]:
    """Return a run and its status as JSON data."""
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
        "transitions": [item._asdict() for item in status.transitions],
        "billable_seconds": status.billable_seconds,
        "cost": status.cost,
        "saved": status.saved,
        "page": status.page,
        "queue_place": status.queue_place,
        "directory": None if run.directory is None else str(run.directory),
    }


def _report_failure(run: Run, status: RunStatus) -> None:
    from cloudtrain.render.document import Document, Notice

    word = "was lost" if status.state is RunState.LOST else "failed"
    rank = ["--rank", str(status.failed_rank)] if status.failed_rank is not None else []
    reason = f": {status.reason}" if status.reason else ""
    hint = f"{typed('cloudtrain', 'logs', run.name, *rank)} prints its whole output"
    if run.is_sweep and f"continue {run.name}" in reason:  # its driver failed, not its trials
        hint = f"{typed('cloudtrain', 'trials', run.name)} lists its trials"
    elif run.is_sweep:
        hint = f"{typed('cloudtrain', 'logs', run.name, '--trial', '1')} prints the whole output of its first trial"
    message = f"`{run.name}` {word}{_after(status)}{reason}"
    show(Document([Notice("error", message, details=status.details, hint=hint)]), sys.stderr)


def _after(status: RunStatus) -> str:
    from cloudtrain.render.status import duration_of

    return f" after {duration_of(status)}" if status.started is not None and status.ended is not None else ""


def _working_files(run: Run) -> dict[str, Path]:
    """Return the files that the script wrote into its working folder. If they cannot be read, return an empty
    mapping, because the run has succeeded anyway."""
    try:
        return run.working_files
    except (OSError, CloudtrainError):
        return {}


def _words_of(work: Mapping[str, Path]) -> str:
    """Return a line with the number of working files and the name of the largest one, which may be the model."""
    from cloudtrain.core.units import format_size

    sizes = {name: file.stat().st_size for name, file in work.items() if file.exists()}
    largest = max(sizes, key=sizes.__getitem__, default="")
    count = "1 file" if len(sizes) == 1 else f"{len(sizes)} files"
    named = f"{'' if len(sizes) == 1 else 'the largest is '}`{largest}`, {format_size(sizes.get(largest, 0))}"
    return f"the script wrote {count} into its working folder: {named}"


def _downloads_of(run: Run, status: RunStatus, *, has_work: bool) -> str:
    """Return the folder to suggest for download: the checkpoint, the model, an output, or the working files; empty
    where a run of this machine wrote no file."""
    written = run.written
    stopped = status.state is RunState.STOPPED
    wanted = "checkpoint" if stopped else "model" if not written or "model" in written else next(iter(written))
    if has_work and not _has_files(written.get(wanted, "")):
        return "work/"
    if Path(folder := written.get(wanted, "")).is_dir() and not _has_files(folder):
        wanted = next((name for name, place in written.items() if _has_files(place)), "")
    return f"{wanted}/" if wanted in ("checkpoint", "model") else wanted


def _has_files(folder: str) -> bool:
    return Path(folder).is_dir() and any(Path(folder).iterdir()) if folder else False
