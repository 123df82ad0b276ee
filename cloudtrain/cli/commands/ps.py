from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from cloudtrain.cli import complete, options


def command(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Show all runs, not only the newest.")] = False,
    count: Annotated[
        int,
        typer.Option(
            "-n", "--limit", min=1, metavar="N", help="Show the newest N runs. Default: 20.", show_default=False
        ),
    ] = 20,
    active: Annotated[bool, typer.Option("--active", help="Only runs that have not ended.")] = False,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="STATE", help="Only runs in this state.", autocompletion=complete.states),
    ] = None,
    job: Annotated[str | None, typer.Option("--job", metavar="NAME", help="Only runs of this job.")] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="NAME=VALUE", help="Only runs with this tag. Repeatable."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="COMPARISON",
            help="Only runs whose hyperparameters match: `learning_rate<0.01`. Repeatable.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            metavar="TARGET",
            help="All runs on this target, by any user.",
            autocompletion=complete.targets,
        ),
    ] = None,
    profile: options.Profile = None,
    rehearsals: Annotated[
        bool, typer.Option("--rehearsals", help="Also show ended rehearsals (included in --all).")
    ] = False,
    trials: Annotated[bool, typer.Option("--trials", help="Also show the trials of sweeps.")] = False,
    size: Annotated[bool, typer.Option("--size", help="Show the size of each run's folder on this machine.")] = False,
    json: options.Json = False,
) -> None:
    """List runs, the newest first.

    Ended rehearsals are left out.

    \b
    Examples:
      cloudtrain ps
      cloudtrain ps --active
      cloudtrain ps --all --state failed
      cloudtrain ps --trials --where "learning_rate<0.01"
      cloudtrain ps --tag team=vision --where "learning_rate<0.01"
      cloudtrain ps --target sagemaker --state running
      cloudtrain ps -n 100 --json | jq -r '.[].name'
    """
    import cloudtrain as ct
    from cloudtrain.cli.report import status_json
    from cloudtrain.cli.terminal import print_json, say, show
    from cloudtrain.render.document import Document, Table

    limit = None if everything else count
    runs = ct.runs(
        limit=limit,
        states=_states_of(active, state),
        job=job,
        target=target,
        profile=profile,
        tags=dict(map(_tag, tag or ())),
        where=where or (),
        rehearsals=rehearsals or everything or job is not None,
        trials=trials,
    )
    if json:
        print_json([status_json(run, run.last_status) | ({"size": run.size} if size else {}) for run in runs])
    elif runs:
        now = time.time()
        columns = ("NAME", "STATE", "TARGET", "AGE", "DURATION", *(["SIZE"] if size else []))
        table = Table(columns, [(*_row(run, now), *([_size(run)] if size else [])) for run in runs])
        show(Document([table]), sys.stdout)
        for run in runs:
            if run.waits:
                say(f"`{run.name}`: {run.last_status.reason}")
        if len(runs) == count and not everything:
            there = f" --target {target}" if target else ""
            say(f"the newest {count}; `cloudtrain ps --all{there}` lists all runs")
    elif not (rehearsals or everything or job or active or state or tag or where or target) and ct.runs(limit=1):
        say("only rehearsals have run; `cloudtrain ps --rehearsals` lists them")
    else:
        say(_nothing(active, state, job, labelled=bool(tag or where)))


def _states_of(active: bool, state: str | None) -> list[Any]:
    from cloudtrain.core.states import RunState
    from cloudtrain.errors import UsageError, did_you_mean

    if state is None:
        return [known for known in RunState if active and not known.is_final]
    try:
        return [RunState(state)]
    except ValueError:
        hint = did_you_mean(state, [known.value for known in RunState])
        raise UsageError(f"there is no state `{state}`", hint=hint) from None


def _tag(text: str) -> tuple[str, str]:
    """Split a tag such as `team=vision` into key and value.

    Raises:
        UsageError: the text has no `=`.
    """
    from cloudtrain.errors import UsageError

    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"`{text}` is not a tag", hint=f"write name and value: `--tag {text}=VALUE`", code="CT901")
    return key, value


def _nothing(active: bool, state: str | None, job: str | None, *, labelled: bool) -> str:
    what = f" of job `{job}`" if job else ""
    if labelled:
        return f"no run{what} has these tags or hyperparameters; `cloudtrain ps` lists the newest"
    if active or state:
        return f"no run{what} is {state or 'active'}; `cloudtrain ps` lists the newest"
    return f"there is no run{what} yet; start one with `cloudtrain submit bundled:digits_ddp`"


def _row(run: Any, now: float) -> tuple[Any, ...]:
    from cloudtrain.core.units import format_duration
    from cloudtrain.render.status import duration_of, state_cell

    status = run.last_status
    age = format_duration(int(max(0, now - run.created)))
    return (run.name, state_cell(status.state, status.queue_place), run.target, age, duration_of(status, now))


def _size(run: Any) -> str:
    from cloudtrain.core.units import format_size

    return "" if run.size is None else format_size(run.size)
