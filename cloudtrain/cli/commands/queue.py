from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloudtrain.cli import complete, options
from cloudtrain.cli.help import CONTEXT, Command

if TYPE_CHECKING:
    from cloudtrain.core.states import QueuedRun
    from cloudtrain.lifecycle.run import Run
    from cloudtrain.targets.base import KeepsQueue

command = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)


@command.callback()
def queue(
    ctx: typer.Context,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            metavar="TARGET",
            help="The target. Default: `target` in cloudtrain.toml.",
            autocompletion=complete.targets,
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """List, move and drop the runs in a queue.

    `cloudtrain submit --queue` adds a run to the queue of this machine. The list shows the started runs first, then the
    waiting runs in the order in which they will start.

    \b
    Examples:
      cloudtrain queue
      cloudtrain queue --json | jq -r '.[].name'
      cloudtrain queue move digits-ddp-3f9a --first
      cloudtrain queue move digits-ddp-3f9a --before digits-ddp-7c21
      cloudtrain queue drop digits-ddp-3f9a
    """
    from cloudtrain.errors import UsageError

    if ctx.invoked_subcommand is not None:
        if target is not None or json:
            flag, name = "--json" if json else "--target", ctx.invoked_subcommand
            raise UsageError(f"`{flag}` has no effect with `{name}`", hint=f"remove `{flag}`", code="CT902")
        return
    from cloudtrain.cli.terminal import print_json, say, show
    from cloudtrain.lifecycle.queue import queue_of
    from cloudtrain.render.document import Document, Table
    from cloudtrain.settings import load_settings

    settings = load_settings()
    found = queue_of(target or settings.default_target, settings).queue()
    now = time.time()
    if json:
        print_json([_as_json(item) for item in found])
    elif found:
        columns = ("PLACE", "NAME", "NEEDS", "HAS", "PRIORITY", "SINCE")
        show(Document([Table(columns, [_row(item, now) for item in found])]), sys.stdout)
    else:
        say("the queue is empty; `cloudtrain submit job.yaml --queue` adds a run")


@command.command(cls=Command)
def move(
    name: options.RunName,
    first: Annotated[bool, typer.Option("--first", help="Move it before all other runs.")] = False,
    last: Annotated[bool, typer.Option("--last", help="Move it behind all other runs.")] = False,
    before: Annotated[
        str | None,
        typer.Option("--before", metavar="OTHER", help="Move it before this run.", autocompletion=complete.runs),
    ] = None,
) -> None:
    """Change the place of a waiting run in the queue.

    If the runs at the new place have another priority, the priority of the moved run changes too.

    \b
    Examples:
      cloudtrain queue move digits-ddp-3f9a --first
      cloudtrain queue move digits-ddp-3f9a --before digits-ddp-7c21
    """
    from cloudtrain.cli import inputs
    from cloudtrain.cli.terminal import say
    from cloudtrain.errors import UsageError

    if first + last + (before is not None) != 1:
        raise UsageError(
            "the new position is missing", hint="add `--first`, `--last` or `--before OTHER`", code="CT902"
        )
    run = inputs.run(name)
    other = None if before is None else inputs.run(before)
    if other is not None and other.target != run.target:
        message = f"`{run.name}` and `{other.name}` are in the queues of different targets"
        raise UsageError(message, hint="name a run of the same target; `cloudtrain queue` lists the runs", code="CT902")
    _queue_of(run).move(run.ref, before=None if other is None else other.ref, last=last)
    place = run.status().queue_place
    say(f"`{run.name}` has started" if place is None else f"`{run.name}` has place {place}")


@command.command(cls=Command)
def drop(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="Waiting runs: names, beginnings of names, references, or `last`.",
            autocompletion=complete.runs,
            show_default=False,
        ),
    ],
) -> None:
    """Stop waiting runs. A run that has started is never stopped.

    \b
    Example:
      cloudtrain queue drop digits-ddp-3f9a
    """
    from cloudtrain.cli import inputs
    from cloudtrain.cli.terminal import say

    runs = [inputs.run(name) for name in names]
    for run in runs:
        inputs.may("queue drop", run)
    for run in runs:
        _queue_of(run).drop(run.ref)
        say(f"`{run.name}` was dropped before it started")


def _queue_of(run: Run) -> KeepsQueue:
    from cloudtrain.errors import UsageError
    from cloudtrain.lifecycle.queue import queue_of
    from cloudtrain.settings import load_settings

    if run.is_sweep:
        hint = f"`cloudtrain queue` lists them by name, and `cloudtrain stop {run.name}` ends the sweep"
        raise UsageError(f"`{run.name}` is a sweep, and only its trials wait in the queue", hint=hint, code="CT940")
    return queue_of(run.target, load_settings())


def _row(item: QueuedRun, now: float) -> tuple[Any, ...]:
    from cloudtrain.core.units import format_duration

    place = "" if item.place is None else str(item.place)
    since = format_duration(int(max(0, now - item.since)))
    return (place, item.ref.name, item.needs, item.has, str(item.priority), since)


def _as_json(item: QueuedRun) -> dict[str, Any]:
    return {"name": item.ref.name, "ref": str(item.ref)} | {
        key: value for key, value in item._asdict().items() if key != "ref"
    }
