from __future__ import annotations

import sys
from typing import Annotated

import typer

from cloudtrain.cli import options


def command(
    name: options.RunName,
    best: Annotated[
        int | None, typer.Option("--best", min=1, metavar="N", help="Only the N best, the best first.")
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values, with a header.")] = False,
    json: options.Json = False,
) -> None:
    """List the trials of a sweep.

    Each has its number, its state, the values that it ran with, and the last value of the objective. The best one has
    a star.

    \b
    Examples:
      cloudtrain trials last
      cloudtrain trials digits-lr-3f9a --best 5
      cloudtrain trials last --csv > trials.csv
      cloudtrain trials last --json | jq ".[0].reason"
    """
    from cloudtrain.cli import inputs
    from cloudtrain.cli.terminal import print_csv, print_json, say, show
    from cloudtrain.errors import UsageError
    from cloudtrain.render.document import Document
    from cloudtrain.render.sweeps import ranked, trials_table
    from cloudtrain.sweeps.sweep_run import sweep_of

    if csv and json:
        raise UsageError("`--csv` and `--json` contradict each other", hint="leave one of them out", code="CT902")
    sweep = sweep_of(inputs.run(name))
    trials, objective = sweep.trials(), sweep.objective
    if best is not None:
        trials = ranked(trials, objective)[:best]
    if json:
        print_json([trial.row() for trial in trials])
    elif csv:
        rows = [trial.row() for trial in trials]
        print_csv(rows, dict.fromkeys(key for row in rows for key in row))
    elif trials:
        show(Document([trials_table(trials, objective)]), sys.stdout)
    else:
        say(f"`{sweep.name}` has started no trial yet")
