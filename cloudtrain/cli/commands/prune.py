from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from cloudtrain.cli import complete

if TYPE_CHECKING:
    from cloudtrain.core.states import RunState
    from cloudtrain.lifecycle.run import Run


def command(
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="Remove runs that ended longer ago than AGE, such as `30d`."),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state", metavar="STATE", help="Remove runs in this state. Repeatable.", autocompletion=complete.states
        ),
    ] = None,
    job: Annotated[str | None, typer.Option("--job", metavar="NAME", help="Remove runs of this job.")] = None,
    larger_than: Annotated[
        str | None,
        typer.Option("--larger-than", metavar="SIZE", help="Remove runs whose folder exceeds SIZE, such as `1g`."),
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", min=0, metavar="N", help="Always keep the newest N runs of each job.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="METRIC",
            help="With --keep: keep the N runs with the highest value of METRIC, not the newest runs. For the lowest "
            "value, put a minus before the name: `--by=-loss`.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the names without removing the runs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove old, failed or large runs, and keep the best.

    Finds the ended runs that match all options, and removes them as `rm` does. Also removes code archives that
    no submit has used for a day, and environments that no submit has used for two weeks. Prints the names of the
    removed runs.

    \b
    Examples:
      cloudtrain prune --older-than 30d
      cloudtrain prune --state failed --state stopped --yes
      cloudtrain prune --job digits-ddp --keep 3 --by test_accuracy --dry-run
    """
    import cloudtrain as ct
    from cloudtrain.cli import inputs
    from cloudtrain.cli.terminal import print_lines, say
    from cloudtrain.errors import UsageError
    from cloudtrain.lifecycle.cleaning import clean
    from cloudtrain.settings import load_settings

    if by is not None and keep is None:
        raise UsageError(
            "`--by` needs `--keep`, the number of runs to keep", hint=f"write for example `--keep 3 --by {by}`"
        )
    if all(option is None for option in (older_than, state, job, larger_than, keep)):
        raise UsageError(
            "no option selects runs to remove", hint="write for example `cloudtrain prune --older-than 30d`"
        )
    ended = [run for run in ct.runs(limit=None, states=_states(state), job=job) if run.last_status.state.is_final]
    found = ended if keep is None else _beyond(ended, keep, by)
    if older_than is not None:
        before = time.time() - inputs.seconds(older_than)
        found = [run for run in found if (run.last_status.ended or run.created) < before]
    if larger_than is not None:
        least = _size(larger_than)
        found = [run for run in found if (run.size or 0) > least]
    if dry_run:
        print_lines(run.name for run in found)
        if not found:
            say("no run matches; nothing would be removed")
        return
    if found and not (yes or inputs.confirmed(f"remove {_count(found)}?")):
        raise UsageError(
            f"{_count(found)} would be removed; nothing was removed",
            hint="add `--yes` to remove, or `--dry-run` to list",
        )
    for run in found:
        run.remove()
        print_lines([run.name])
    clean(load_settings().state_dir)
    if not found:
        say("no run matches; nothing was removed")


def _count(runs: list[Run]) -> str:
    return f"{len(runs)} run{'' if len(runs) == 1 else 's'}"


def _states(names: Iterable[str] | None) -> list[RunState]:
    from cloudtrain.core.states import RunState
    from cloudtrain.errors import UsageError, did_you_mean

    final = [state for state in RunState if state.is_final]
    for name in names or ():
        if name not in final:
            hint = did_you_mean(name, [state.value for state in final])
            raise UsageError(f"`{name}` is not a final state", hint=hint)
    return [RunState(name) for name in names or ()]


def _beyond(runs: list[Run], keep: int, by: str | None) -> list[Run]:
    """Return the runs that are not kept. Of each job, the `keep` newest runs are kept; with `by`, the `keep` best runs
    by this metric. A run without the metric ranks last.

    Raises:
        UsageError: no run has the metric, so the best runs are unknown.
    """
    from cloudtrain.errors import UsageError, did_you_mean

    found: list[Run] = []
    reported = {name for run in runs for name in run.status().metrics} if by is not None else set()
    if by is not None and runs and by.removeprefix("-") not in reported:
        hint = did_you_mean(by.removeprefix("-"), reported) or "leave out `--by` to keep the newest runs"
        raise UsageError(f"no run has the metric `{by.removeprefix('-')}`; nothing was removed", hint=hint)
    for _, group in groupby(sorted(runs, key=lambda run: run.job_name), key=lambda run: run.job_name):
        of_job = sorted(group, key=lambda run: run.created, reverse=True)
        if by is not None:
            metric, sign = by.removeprefix("-"), -1.0 if by.startswith("-") else 1.0
            values = {run.name: run.status().metrics.get(metric) for run in of_job}
            of_job.sort(key=lambda run: _rank(values[run.name], sign))
        found += of_job[keep:]
    return found


def _rank(value: float | None, sign: float) -> tuple[bool, float]:
    missing = value is None or value != value  # NaN is not equal to itself
    return (missing, 0.0 if missing else -sign * float(value or 0.0))


def _size(text: str) -> int:
    from cloudtrain.core.units import parse_size
    from cloudtrain.errors import UsageError

    try:
        return parse_size(text)
    except ValueError as error:
        raise UsageError(str(error), hint="write a number with a unit: `500m`, `1g`") from None
