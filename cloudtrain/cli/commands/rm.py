from __future__ import annotations

from typing import Annotated

import typer

from cloudtrain.cli import complete


def command(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="Runs: names, beginnings of names, references, or `last`.",
            autocompletion=complete.runs,
            show_default=False,
        ),
    ],
) -> None:
    """Remove ended runs from this machine.

    Removes each run from the run store and deletes its folder with code, logs and outputs. Files that the run wrote
    elsewhere and its data in a cloud stay. Prints the names of the removed runs.

    \b
    Examples:
      cloudtrain rm digits-ddp-3f9a
      cloudtrain rm last
    """
    from cloudtrain.cli import inputs
    from cloudtrain.cli.terminal import print_lines

    runs = {run.name: run for run in map(inputs.run, names)}
    for run in runs.values():
        inputs.may("rm", run)
    for run in runs.values():
        run.remove()
        print_lines([run.name])
