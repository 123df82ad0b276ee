from __future__ import annotations

import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import cloudtrain as ct
from cloudtrain.cli import options
from cloudtrain.cli.app import refuse_flags
from cloudtrain.cli.options import argument, flag, option
from cloudtrain.cli.runs import moment_of, run_named
from cloudtrain.cli.terminal import (
    print_csv,
    print_json,
    print_lines,
    print_text,
    say,
    show,
    show_table,
)
from cloudtrain.errors import UsageError, counted, did_you_mean
from cloudtrain.plans.document import Document

if TYPE_CHECKING:
    from cloudtrain.lifecycle.runs.costs import Sum


def show_command(
    name: options.RunName,
    job: Annotated[
        bool, flag("--job", "Print a job file that you can submit again from any folder.")
    ] = False,
    shortened: options.Short = False,
    json: options.Json = False,
) -> None:
    """Show what was sent: the job, the request and the source.

    The source shows the git commit of the code, whether the code had uncommitted changes, and the
    hash of the bundle. Secrets are not stored; they appear as `***`.

    \b
    Examples:
      cloudtrain show last
      cloudtrain show digits-ddp-3f9a --job > again.yaml
      cloudtrain show last --json | jq .git.commit
    """
    sent_job = run_named(name).show()
    if job:
        print_text(sent_job.to_job_file())
    elif json:
        print_json(sent_job.to_dict(), short=shortened)
    else:
        show(sent_job.document(), sys.stdout)


_HELP = "A run, a job file, or a plan's JSON file."


def diff_command(
    before: Annotated[str, argument("A", _HELP, autocompletion=options.runs_and_jobs)],
    after: Annotated[str, argument("B", _HELP, autocompletion=options.runs_and_jobs)],
    target: options.TargetName = None,
    profile: options.Profile = None,
    json: options.Json = False,
) -> None:
    """Compare two runs, jobs or plans: fields, request and code.

    A job is compiled for the target of the run or plan that it is compared with, unless you name a
    `--target`. The exit code is 0 when nothing differs and 1 otherwise. The names of runs are not
    compared. Of two runs, the results that differ are shown, too; they do not change the exit code.

    \b
    Examples:
      cloudtrain diff digits-ddp-3f9a6c1e-1 digits-ddp-77ab02d4-1
      cloudtrain diff last job.yaml
      cloudtrain diff old.yaml new.yaml --target sagemaker
      cloudtrain plan job.yaml --json > plan.json; cloudtrain diff plan.json last
    """
    difference = ct.diff(before, after, target, profile=profile)
    if json:
        print_json(difference.to_dict())
    elif not difference.equal or difference.results:
        show(difference.document(), sys.stdout)
    if not difference.equal:
        raise typer.Exit(1)


def cost_command(
    by: Annotated[
        str,
        option(
            "--by",
            "GROUP",
            "Group by job, month, target or tag:KEY.",
            autocompletion=options.groups,
            show_default=True,
        ),
    ] = "job",
    since: Annotated[
        str | None,
        option("--since", "TIME", "Only runs submitted since a date, or since `30d` ago."),
    ] = None,
    target: options.TargetOfRuns = None,
    profile: options.Profile = None,
    offline: Annotated[
        bool, flag("--offline", "Do not ask targets for bills; use the data on this machine.")
    ] = False,
    csv: options.Csv = False,
    json: options.Json = False,
) -> None:
    """Sum the costs of runs by job, month, target or tag.

    BILLED is the list price of the time that the target reports as billed. ESTIMATED is the list
    price of the time from start to end, for runs whose target reports no billed time. All amounts
    are in US dollars. Runs on this machine and on your own cluster are free.

    \b
    Examples:
      cloudtrain cost
      cloudtrain cost --by month --since 90d
      cloudtrain cost --by tag:team --csv > costs.csv
      cloudtrain cost --target sagemaker --since 2026-11-01 --json
    """
    from cloudtrain.api import costs
    from cloudtrain.lifecycle.runs.costs import Sum, grouping, sums

    group_of = grouping(by)
    if group_of is None:
        hint: str | None = did_you_mean(by, ["job", "month", "target", "tag:KEY"])
        if by in ("tag", "tag:"):
            hint = "write `--by tag:KEY`"
        raise UsageError(f"`--by {by}` is not a valid group", hint=hint, code="CT909")
    if csv:
        refuse_flags("--csv", {"--json": json})

    found = costs(since=moment_of(since), target=target, profile=profile, online=not offline)
    runs = list(found)
    groups = sums(runs, group_of)
    if by == "month":  # others have the most expensive group first
        groups.sort(key=lambda item: item.group)
    whole = Sum.of("all", runs)

    if json:
        data = list(map(_data, groups))
        print_json({"by": by, "currency": "USD", "groups": data, "all": _data(whole)})
    elif csv:
        print_csv(list(map(_data, groups)), _data(whole))
    elif not groups:
        say("no run was submitted in that time; `cloudtrain ps` lists the newest runs")
    else:
        rows = list(map(_row, groups))
        if len(groups) > 1:
            rows.append(_row(whole))
        show_table((by.upper(), "RUNS", "BILLED", "ESTIMATED", "TOTAL", "NO PRICE"), rows)
        notes = {
            "estimated from the list price and the time from start to end": whole.estimated_runs,
            "without a price, and not in the sums": whole.without_price,
            "free, on your own machines": whole.free_runs,
        }
        for words, count in notes.items():
            if count:
                verb = "is" if count == 1 else "are"
                say(f"{counted(count, 'run')} {verb} {words}")


def _data(item: Sum) -> dict[str, object]:
    """Return a sum as data for JSON and CSV, to a hundredth of a cent."""
    data = item._asdict()
    for name in ("billed", "estimated", "total"):
        data[name] = round(getattr(item, name), 4)
    return data


def _row(item: Sum) -> tuple[str, ...]:
    amounts = (item.billed, item.estimated, item.total)
    dollars = map("${:,.2f}".format, amounts)
    return (item.group, str(item.runs), *dollars, str(item.without_price or ""))


def code_command(
    name: options.RunName,
    folder: Annotated[Path, argument("DIR", "A new or empty folder.")],
    json: options.Json = False,
) -> None:
    """Write the code of a run into a folder.

    Writes the files that were sent, even if the source folder has changed since. Leaves out
    cloudtrain's own runtime, which is added to every bundle. Prints the path of each file on
    stdout.

    \b
    Examples:
      cloudtrain code last old-code
      cloudtrain code digits-ddp-3f9a /tmp/code
    """
    run = run_named(name)
    paths = [str(folder / path) for path in run.save_code(folder)]
    if json:
        print_json(paths)
    else:
        print_lines(paths)


def trials_command(
    name: options.SweepName,
    best: Annotated[
        int | None, option("--best", "N", "Show only the N best trials, the best first.", min=1)
    ] = None,
    csv: options.Csv = False,
    shortened: options.Short = False,
    json: options.Json = False,
) -> None:
    """List the trials of a sweep.

    Shows the number, state and hyperparameters of each trial, its last and its best value of the
    objective (of a running trial, the newest), how long it took, and its cost at list prices. A
    star marks the best trial.

    \b
    Examples:
      cloudtrain trials last
      cloudtrain trials digits-lr-3f9a --best 5
      cloudtrain trials last --csv > trials.csv
      cloudtrain trials last --json | jq ".[0].reason"
    """
    from cloudtrain.lifecycle.runs.sweep import (
        best_report,
        cost_of_trial,
        ranked,
        sweep_of,
        trials_table,
    )

    if csv:
        refuse_flags("--csv", {"--json": json})
    sweep = sweep_of(run_named(name))
    trials = sweep.trials(running=True)
    objective = sweep.objective
    if best is not None:
        trials = ranked(trials, objective)[:best]

    hourly = sweep.hourly
    rows = []
    for trial in trials:
        results = {"best": best_report(trial, objective), "cost": cost_of_trial(trial, hourly)}
        rows.append(trial.row() | results)
    if json:
        print_json(rows, short=shortened)
    elif csv:
        # trials may have different hyperparameters
        columns = dict[str, object]()
        for row in rows:
            row["started"] = _time(row["started"])
            row["ended"] = _time(row["ended"])
            columns |= row
        print_csv(rows, columns)
    elif trials:
        show(Document([trials_table(trials, objective, hourly=hourly)]), sys.stdout)
    else:
        say(f"`{sweep.name}` has started no trial yet")


def _time(moment: float | None) -> str | None:
    """Return a time as spreadsheets and pandas read it, such as `2026-11-22T10:00:00Z`; None if
    there is none, or if a damaged journal has an impossible one."""
    if moment is None:
        return None
    try:
        return f"{datetime.fromtimestamp(moment, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return None
