from __future__ import annotations

import sys
from typing import Annotated

import typer

from cloudtrain.cli import options


def command(
    name: options.RunName,
    best: Annotated[
        int | None, typer.Option("--best", min=1, metavar="N", help="Show only the N best trials, the best first.")
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values, with a header.")] = False,
    json: options.Json = False,
) -> None:
    """List the trials of a sweep.

    Shows the number, state and hyperparameters of each trial, and its last value of the objective. A star marks the
    best trial.

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
        raise UsageError("`--csv` and `--json` cannot be combined", hint="remove one of them", code="CT902")
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
