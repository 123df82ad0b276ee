"""The runs that a command names, and values such as times and durations that a user types."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import typer

import cloudtrain as ct
from cloudtrain.cli.terminal import say, typed
from cloudtrain.documents import JsonObject
from cloudtrain.errors import PersonNeeded, UsageError
from cloudtrain.lifecycle.submission.approval import approve, asked_plan
from cloudtrain.targets.settings import read_environment

if TYPE_CHECKING:
    from cloudtrain.lifecycle.runs.run import Run
    from cloudtrain.plans.progress import RunStatus


def run_named(name: str) -> Run:
    """Return the run called `name`. If `last` is a run from another folder, name the run on
    stderr."""
    run = ct.run(name)
    if run.elsewhere is not None:
        place = f"from `{run.elsewhere}`" if run.elsewhere else "from a folder that is not known"
        say(f"no run was submitted from this folder; `{name}` is `{run.name}`, {place}")
    return run


def require_consent(what: str, run: Run) -> None:
    """If the user wrote `last`, and `last` means a run from another folder, ask whether the command
    `what` may change this run."""
    if run.elsewhere is None or confirm(f"{what} `{run.name}`?"):
        return
    hint = f"to do it, name the run: {typed('cloudtrain', *what.split(), run.name)}"
    raise PersonNeeded(
        f"`{run.name}` was submitted from another folder, so nothing was done", hint=hint
    )


def approved(send: Callable[[], Run], *, may_ask: bool) -> Run:
    """Return the run of `send`. If the user has to approve its plan, ask at the terminal, and send
    it again after a yes. With `may_ask=False`, as with `--json`, raise PersonNeeded instead."""
    try:
        return send()
    except PersonNeeded as error:
        if not error.plan or not may_ask or not sys.stdin.isatty():
            raise
        here = read_environment()
        plan = asked_plan(error.plan, here)
        summary = plan.shown["summary"]
        cost = summary.get("cost", "at an unknown cost")
        if not confirm(f"send {plan.shown['run_name']} to {plan.shown['target']}, {cost}?"):
            raise
        approve(plan, here)
    return send()


def confirm(question: str) -> bool:
    """Ask a yes-or-no question and return whether the answer is yes. Without a terminal on stdin,
    return False."""
    return sys.stdin.isatty() and typer.confirm(question, err=True)


def tag_of(text: str) -> tuple[str, str]:
    """Split a tag such as `team=vision` into key and value."""
    key, equals, value = text.partition("=")
    if not equals:
        hint = f"write name and value: `--tag {text}=VALUE`"
        raise UsageError(f"`{text}` is not a tag", hint=hint, code="CT909")
    return key, value


def moment_of(text: str | None) -> float | None:
    """Convert a time that the user typed to seconds since the epoch: `10m` (ago), or
    `2026-11-22T10:00` (local time, unless the text contains a time zone)."""
    if text is None:
        return None
    from cloudtrain.job.model import parse_duration

    try:
        return time.time() - parse_duration(text)
    except ValueError:  # then it is a time
        pass
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return moment.astimezone(timezone.utc).timestamp()
    except (ValueError, OverflowError, OSError):
        hint = "write how long ago, for example `10m`, or a time, for example `2026-11-22T10:00`"
        raise UsageError(f"`{text}` is not a time", hint=hint, code="CT909") from None


_OF_A_STATUS = (
    "started", "ended", "failed_rank", "exit_code", "restarts", "metrics", "details", "transitions",
    "billable_seconds", "cost", "saved", "page", "queue_place", "machines",
)  # fmt: skip
"""The fields of `RunStatus` that `--json` prints as they are, in this order."""


def status_json(run: Run, status: RunStatus) -> JsonObject:
    facts: JsonObject = {
        "name": run.name,
        "ref": str(run.ref),
        "target": run.target,
        "job": run.job_name,
        "state": str(status.state),
        "reason": status.reason,
        "created": run.created,
    }
    facts |= {name: getattr(status, name) for name in _OF_A_STATUS}
    facts["transitions"] = [item._asdict() for item in status.transitions]
    facts["notices"] = [item._asdict() for item in status.notices]
    facts["progress"] = None if status.progress is None else status.progress._asdict()
    facts["main_metric"] = None if status.main is None else status.main._asdict()
    facts["directory"] = None if run.directory is None else str(run.directory)
    return facts


@contextmanager
def outlived_by(run: Run, *ends: type[BaseException]) -> Iterator[None]:
    """If one of the exceptions `ends` ends the command, say that the run continues, and how to stop
    and follow it."""
    try:
        yield
    except ends:
        stop = f"stop it with: {typed('cloudtrain', 'stop', run.name)}"
        logs = f"follow it with: {typed('cloudtrain', 'logs', run.name, '-f')}"
        say("", f"`{run.name}` continues", stop, logs)
        raise
