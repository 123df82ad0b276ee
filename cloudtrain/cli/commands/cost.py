from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cloudtrain.cli import complete, options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtrain.lifecycle.costs import Sum


def command(
    by: Annotated[
        str,
        typer.Option(
            "--by", metavar="GROUP", help="Group by job, month, target or tag:KEY.", autocompletion=complete.groups
        ),
    ] = "job",
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only runs submitted since a date, or since `30d` ago."),
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
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not ask targets for bills; use the data on this machine.")
    ] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values, with a header.")] = False,
    json: options.Json = False,
) -> None:
    """Sum the costs of runs by job, month, target or tag.

    BILLED is the list price of the time that the target reports as billed. ESTIMATED is the list price of the time from
    start to end, for runs whose target reports no billed time. All amounts are in US dollars. Runs on this machine and
    on your own cluster are free.

    \b
    Examples:
      cloudtrain cost
      cloudtrain cost --by month --since 90d
      cloudtrain cost --by tag:team --csv > costs.csv
      cloudtrain cost --target sagemaker --since 2026-11-01 --json
    """
    from cloudtrain.cli.selection import moment_of
    from cloudtrain.cli.terminal import print_csv, print_json
    from cloudtrain.errors import UsageError, did_you_mean
    from cloudtrain.history import costs
    from cloudtrain.lifecycle.costs import Sum, grouping, sums, together

    group_of = grouping(by)
    if group_of is None:
        hint = "write `--by tag:KEY`" if by in ("tag", "tag:") else did_you_mean(by, ["job", "month", "target"])
        raise UsageError(f"`--by {by}` is not a valid group", hint=hint, code="CT901")
    if csv and json:
        raise UsageError("`--csv` and `--json` cannot be combined", hint="remove one of them", code="CT902")
    moment = None if since is None else moment_of(since)
    runs = list(costs(since=moment, target=target, profile=profile, online=not offline))
    groups = sums(runs, group_of)
    if by == "month":
        groups.sort(key=lambda item: item.group)
    whole = together(groups)
    if json:
        print_json({"by": by, "currency": "USD", "groups": [_data(item) for item in groups], "all": _data(whole)})
    elif csv:
        print_csv([_data(item) for item in groups], _data(Sum("")))
    else:
        _print_table(by, groups, whole)


def _data(item: Sum) -> dict[str, object]:
    amounts = {"billed": round(item.billed, 4), "estimated": round(item.estimated, 4), "total": round(item.total, 4)}
    return asdict(item) | amounts


def _print_table(by: str, groups: Sequence[Sum], whole: Sum) -> None:
    from cloudtrain.cli.terminal import say, show
    from cloudtrain.render.document import Document, Table

    if not groups:
        say("no run was submitted in that time; `cloudtrain ps` lists the newest runs")
        return
    rows = [_row(item) for item in ([*groups, whole] if len(groups) > 1 else groups)]
    headers = (by.upper(), "RUNS", "BILLED", "ESTIMATED", "TOTAL", "NO PRICE")
    show(Document([Table(headers, rows)]), sys.stdout)
    notes = []
    if whole.estimated_runs:
        notes.append(f"{_runs(whole.estimated_runs)} estimated from the list price and the time from start to end")
    if whole.without_price:
        notes.append(f"{_runs(whole.without_price)} without a price and not in the sums")
    if whole.free_runs:
        notes.append(f"{_runs(whole.free_runs)} free, on your own machines")
    if notes:
        say(*notes)


def _row(item: Sum) -> tuple[str, ...]:
    amounts = [f"${amount:,.2f}" for amount in (item.billed, item.estimated, item.total)]
    return (item.group, str(item.runs), *amounts, str(item.without_price or ""))


def _runs(count: int) -> str:
    return "1 run is" if count == 1 else f"{count:,} runs are"
