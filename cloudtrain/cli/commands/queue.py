from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

import cloudtrain as ct
from cloudtrain.cli import options
from cloudtrain.cli.app import Command, new_group, refuse_flags
from cloudtrain.cli.options import flag, measured, option, require_word
from cloudtrain.cli.runs import confirm, require_consent, run_named
from cloudtrain.cli.terminal import print_json, print_lines, say, show_table
from cloudtrain.errors import PersonNeeded, UsageError, counted, did_you_mean
from cloudtrain.job.model import format_duration, parse_duration, parse_size
from cloudtrain.plans.states import FINAL, RunState
from cloudtrain.targets.settings import load_settings, read_environment

if TYPE_CHECKING:
    from cloudtrain.lifecycle.runs.run import Run
    from cloudtrain.targets.contract import KeepsQueue


queue_command = new_group()


@queue_command.callback()
def queue(
    ctx: typer.Context,
    target: Annotated[
        str | None,
        option(
            "--target -t",
            "TARGET",
            "The target. Default: `target` in cloudtrain.toml.",
            autocompletion=options.targets,
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """List, move and drop the runs in a queue.

    `cloudtrain submit --queue` adds a run to the queue of this machine. The list shows the started
    runs first, then the waiting runs in the order in which they will start.

    \b
    Examples:
      cloudtrain queue
      cloudtrain queue --json | jq -r '.[].name'
      cloudtrain queue move digits-ddp-3f9a --first
      cloudtrain queue move digits-ddp-3f9a --before digits-ddp-7c21
      cloudtrain queue drop digits-ddp-3f9a
    """
    if ctx.invoked_subcommand is not None:
        refuse_flags(ctx.invoked_subcommand, {"--json": json, "--target": target})
        return
    from cloudtrain.lifecycle.runs.find import queue_of

    runs = queue_of(target or load_settings().default_target).queue()
    if json:
        print_json([run.row() for run in runs])
    elif runs:
        now = time.time()
        cells = []
        for run in runs:
            place = "" if run.place is None else str(run.place)
            since = format_duration(int(max(0, now - run.since)))
            priority = str(run.priority)
            cells.append((place, run.ref.name, run.needs, run.has, priority, since))
        show_table(("PLACE", "NAME", "NEEDS", "HAS", "PRIORITY", "SINCE"), cells)
    else:
        say("the queue is empty; `cloudtrain submit job.yaml --queue` adds a run")


@queue_command.command(cls=Command)
def move(
    name: options.RunName,
    first: Annotated[bool, flag("--first", "Move it before all other runs.")] = False,
    last: Annotated[bool, flag("--last", "Move it behind all other runs.")] = False,
    before: Annotated[
        str | None,
        option("--before", "OTHER", "Move it before this run.", autocompletion=options.runs),
    ] = None,
    json: options.Json = False,
) -> None:
    """Change the place of a waiting run in the queue.

    If the runs at the new place have another priority, the priority of the moved run changes too.

    \b
    Examples:
      cloudtrain queue move digits-ddp-3f9a --first
      cloudtrain queue move digits-ddp-3f9a --before digits-ddp-7c21
    """
    if first + last + (before is not None) != 1:
        hint = "add `--first`, `--last` or `--before OTHER`"
        raise UsageError("the new position is missing", hint=hint, code="CT902")

    run = run_named(name)
    other = None if before is None else run_named(before)
    if other is not None and other.target != run.target:
        message = f"`{run.name}` and `{other.name}` are in the queues of different targets"
        hint = "name a run of the same target; `cloudtrain queue` lists the runs"
        raise UsageError(message, hint=hint, code="CT902")

    next_ref = None if other is None else other.ref
    _queue_of(run).move(run.ref, before=next_ref, last=last)
    place = run.status().queue_place
    if json:
        print_json({"name": run.name, "place": place})
    elif place is None:
        say(f"`{run.name}` has started")
    else:
        say(f"`{run.name}` has place {place}")


@queue_command.command(cls=Command)
def drop(
    names: Annotated[list[str], options.run_names("Waiting runs")],
    json: options.Json = False,
) -> None:
    """Stop waiting runs. A run that has started is never stopped.

    \b
    Example:
      cloudtrain queue drop digits-ddp-3f9a
    """
    runs = list(map(run_named, names))
    # before any is dropped, so that a refusal leaves all of them
    for run in runs:
        require_consent("queue drop", run)
    for run in runs:
        _queue_of(run).drop(run.ref)
        say(f"`{run.name}` was dropped before it started")
    if json:
        print_json({"dropped": [run.name for run in runs]})


def _queue_of(run: Run) -> KeepsQueue:
    """Return the queue in which the run waits. Raises UsageError for a sweep."""
    from cloudtrain.lifecycle.runs.find import queue_of

    if run.is_sweep:
        hint = (
            f"`cloudtrain queue` lists them by name, and `cloudtrain stop {run.name}` ends "
            "the sweep"
        )
        message = f"`{run.name}` is a sweep, and only its trials wait in the queue"
        raise UsageError(message, hint=hint, code="CT940")
    return queue_of(run.target)


@options.silent
def _metrics(_: str) -> list[str]:
    """Return the metrics of ended runs on this machine, also with the minus for the lowest. No
    service is asked."""
    names = set[str]()
    for run in ct.runs(limit=50):
        if run.last_status.state.is_final and run.directory is not None:
            names.update(run.status().metrics)
    highest = sorted(names)
    return highest + [f"-{name}" for name in highest]


def prune_command(
    older_than: Annotated[
        str | None,
        option("--older-than", "AGE", "Remove runs that ended longer ago than AGE, such as `30d`."),
    ] = None,
    state: Annotated[
        list[str] | None,
        option(
            "--state",
            "STATE",
            "Remove runs in this state. Repeatable.",
            autocompletion=options.states,
        ),
    ] = None,
    job: Annotated[str | None, option("--job", "NAME", "Remove runs of this job.")] = None,
    larger_than: Annotated[
        str | None,
        option("--larger-than", "SIZE", "Remove runs whose folder exceeds SIZE, such as `1g`."),
    ] = None,
    keep: Annotated[
        int | None, option("--keep", "N", "Always keep the newest N runs of each job.", min=0)
    ] = None,
    by: Annotated[
        str | None,
        option(
            "--by",
            "METRIC",
            "With --keep: keep the N runs with the highest value of METRIC, not the newest runs. "
            "For the lowest value, put a minus before the name: `--by=-loss`.",
            autocompletion=_metrics,
        ),
    ] = None,
    dry_run: Annotated[
        bool, flag("--dry-run", "Print the names without removing the runs.")
    ] = False,
    yes: Annotated[bool, flag("--yes -y", "Do not ask for confirmation.")] = False,
    json: options.Json = False,
) -> None:
    """Remove old, failed or large runs, and keep the best.

    Finds the ended runs that match all options, and removes them as `rm` does. Also removes code
    archives that no submit has used for a day, and environments that no submit has used for two
    weeks. Prints the names of the removed runs.

    \b
    Examples:
      cloudtrain prune --older-than 30d
      cloudtrain prune --state failed --state stopped --yes
      cloudtrain prune --job digits-ddp --keep 3 --by test_accuracy --dry-run
    """
    from cloudtrain.lifecycle.runs.cleaning import clean

    if by is not None and keep is None:
        raise UsageError(
            "`--by` needs `--keep`, the number of runs to keep",
            hint=f"write for example `--keep 3 --by {by}`",
            code="CT902",
        )
    filters = (older_than, state, job, larger_than, keep)
    if all(option is None for option in filters):
        hint = "write for example `cloudtrain prune --older-than 30d`"
        raise UsageError("no option selects runs to remove", hint=hint)

    states = state or []
    for name in states:
        require_word("final state", name, list(map(str, FINAL)))
    runs = ct.runs(limit=None, states=list(map(RunState, states)), job=job)
    matches = [run for run in runs if run.last_status.state.is_final]
    if keep is not None:
        matches = _beyond(matches, keep, by)
    if older_than is not None:
        before = time.time() - measured(parse_duration, older_than, "30d")
        matches = [run for run in matches if (run.last_status.ended or run.created) < before]
    if larger_than is not None:
        least = measured(parse_size, larger_than, "1g")
        matches = [run for run in matches if (run.size or 0) > least]

    if dry_run:
        names = [run.name for run in matches]
        if json:
            print_json({"would_remove": names})
            return
        print_lines(names)
        if not matches:
            say("no run matches; nothing would be removed")
        return

    count = counted(len(matches), "run")
    question = f"remove {count}?"
    if matches and not yes and (json or not confirm(question)):
        hint = "add `--yes` to remove, or `--dry-run` to list"
        raise PersonNeeded(f"{count} would be removed; nothing was removed", hint=hint)

    _remove(matches, as_json=json)
    clean(read_environment().state_dir)
    if not matches:
        say("no run matches; nothing was removed")


def _beyond(runs: list[Run], keep: int, by: str | None) -> list[Run]:
    """Return the runs that are not kept. Of each job, the `keep` newest runs are kept; with `by`,
    the `keep` best runs by this metric. A run without the metric ranks last."""
    metrics = {}
    if by is not None:
        metrics = {run.name: run.status().metrics for run in runs}
    metric = (by or "").removeprefix("-")
    # without runs, no name can be wrong
    names = set[str]().union(*metrics.values())
    if metrics and metric not in names:
        hint = did_you_mean(metric, names) or "leave out `--by` to keep the newest runs"
        raise UsageError(
            f"no run has the metric `{metric}`; nothing was removed", hint=hint, code="CT929"
        )

    def rank(run: Run) -> tuple[bool, float]:
        value = metrics[run.name].get(metric)
        if value is None or value != value:  # NaN is not equal to itself
            return True, 0.0
        return False, value if metric != by else -value

    runs_of: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.created, reverse=True):
        runs_of[run.job_name].append(run)

    beyond: list[Run] = []
    for job in sorted(runs_of):
        if metrics:
            runs_of[job].sort(key=rank)
        beyond += runs_of[job][keep:]
    return beyond


def rm_command(
    names: Annotated[list[str], options.run_names("Runs")],
    json: options.Json = False,
) -> None:
    """Remove ended runs from this machine.

    Removes each run from the run store and deletes its folder with code, logs and outputs. Files
    that the run wrote elsewhere and its data in a cloud stay. Prints the names of the removed runs.

    \b
    Examples:
      cloudtrain rm digits-ddp-3f9a
      cloudtrain rm last
    """
    runs = {run.name: run for run in map(run_named, names)}
    # before any is removed, so that a refusal leaves all of them
    for run in runs.values():
        require_consent("rm", run)
    _remove(list(runs.values()), as_json=json)


def _remove(runs: Sequence[Run], *, as_json: bool) -> None:
    """Remove runs, and print their names: each as soon as it is removed, or all as JSON."""
    for run in runs:
        run.remove()
        if not as_json:
            print_lines([run.name])
    if as_json:
        print_json({"removed": [run.name for run in runs]})
