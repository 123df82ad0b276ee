"""What the page changes. It approves nothing that costs money: for that it shows the command."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from cloudtrain.errors import UsageError
from cloudtrain.lifecycle.runs.costs import is_free
from cloudtrain.lifecycle.runs.find import run as find_run
from cloudtrain.lifecycle.runs.overview import move_in_queue
from cloudtrain.lifecycle.runs.run import ChainedRun, Run
from cloudtrain.lifecycle.runs.sweep import sweep_of

Body = Mapping[str, Any]

_MOST_TRIALS = 10_000


def _stop(run: Run, _: Body) -> dict[str, Any]:
    run.stop()
    return {"said": f"`{run.name}` was asked to stop"}


def _rerun(run: Run, _: Body) -> dict[str, Any]:
    if not is_free(run.target):
        return _typed("rerun", run.name)
    again = run.rerun()
    return {"said": f"`{again.name}` was submitted", "run": again.name}


def _continue(run: Run, body: Body) -> dict[str, Any]:
    """Continue a sweep, with `trials` more of them, or the wait for other runs."""
    trials = body.get("trials", 0)
    if type(trials) is not int or not 0 <= trials <= _MOST_TRIALS:
        raise _wrong(body)
    if not is_free(run.target):
        more = ("--trials", str(trials)) if trials else ()
        return _typed("continue", run.name, *more)
    if isinstance(run, ChainedRun):
        run.resume()
        return {"said": f"`{run.name}` waits again", "run": run.name}
    again = sweep_of(run).resume(trials)
    return {"said": f"`{again.name}` continues", "run": again.name}


def _typed(*words: str) -> dict[str, Any]:
    """Return a command for the person to type, because the run costs money."""
    return {"command": shlex.join(("cloudtrain", *words))}


def _annotate(run: Run, body: Body) -> dict[str, Any]:
    note = body.get("note")
    pinned = body.get("pinned")
    tags = body.get("tags") or {}
    if not isinstance(note, str | None) or not isinstance(pinned, bool | None):
        raise _wrong(body)
    if not isinstance(tags, dict) or not all(tags):
        raise _wrong(body)
    if not all(isinstance(tag, str | None) for tag in tags.values()):
        raise _wrong(body)
    run.annotate(note, tags=tags, pinned=pinned)
    return {"said": f"`{run.name}` was changed"}


def _move(run: Run, body: Body) -> dict[str, Any]:
    before = body.get("before")
    other = None if before is None else find_run(str(before))
    move_in_queue(run, before=other, last=body.get("last") is True)
    return {"said": f"`{run.name}` was moved"}


def _wrong(body: Body) -> UsageError:
    hint = "docs/guides/page.md describes what the page takes"
    return UsageError(f"the request is not understood: {dict(body)}", hint=hint, code="CT909")


ACTIONS: Mapping[str, Callable[[Run, Body], dict[str, Any]]] = {
    "stop": _stop,
    "rerun": _rerun,
    "continue": _continue,
    "annotate": _annotate,
    "move": _move,
}
"""What can be done to a run, by the last part of the address."""
