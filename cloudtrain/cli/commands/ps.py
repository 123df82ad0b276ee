from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from cloudtrain.cli import complete, options


def command(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Runs that have ended too.")] = False,
    count: Annotated[
        int,
        typer.Option("-n", "--limit", min=1, metavar="N", help="At most N runs; 20 unless given.", show_default=False),
    ] = 20,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="STATE", help="Only runs in this state.", autocompletion=complete.states),
    ] = None,
    job: Annotated[str | None, typer.Option("--job", metavar="NAME", help="Only runs of this job.")] = None,
    json: options.Json = False,
) -> None:
    """List runs.

    Newest first; without `--all` only those that have not ended.

    \b
    Examples:
      cloudtrain ps
      cloudtrain ps --all -n 100
      cloudtrain ps --state failed
      cloudtrain ps --all --json | jq -r '.[].name'
    """
    import cloudtrain as ct
    from cloudtrain.cli.terminal import print_json, say, show
    from cloudtrain.render.document import Document, Table

    runs = ct.runs(limit=count, states=_wanted(everything, state), job=job)
    if json:
        print_json([_run_json(run) for run in runs])
    elif runs:
        now = time.time()
        table = Table(("NAME", "STATE", "TARGET", "AGE", "DURATION"), [_row(run, now) for run in runs])
        show(Document([table]), sys.stdout)
    elif everything:
        say("there is no run yet; start one with `cloudtrain submit bundled:digits_ddp`")
    else:
        say(f"no run {_what(state)}; `cloudtrain ps --all` lists those that have ended")


def _wanted(everything: bool, state: str | None) -> list[Any]:
    from cloudtrain.errors import UsageError, did_you_mean
    from cloudtrain.states import RunState

    if state is not None:
        try:
            return [RunState(state)]
        except ValueError:
            hint = did_you_mean(state, [known.value for known in RunState])
            raise UsageError(f"there is no state `{state}`", hint=hint) from None
    return [] if everything else [known for known in RunState if not known.is_final]


def _what(state: str | None) -> str:
    return "is going on" if state is None else f"is {state}"


def _row(run: Any, now: float) -> tuple[Any, ...]:
    from cloudtrain.render.status import duration_of, state_cell
    from cloudtrain.units import format_duration

    status = run.last_status
    age = format_duration(int(max(0, now - run.created)))
    return (run.name, state_cell(status.state), run.target, age, duration_of(status, now))


def _run_json(run: Any) -> dict[str, Any]:
    status = run.last_status
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
    }
