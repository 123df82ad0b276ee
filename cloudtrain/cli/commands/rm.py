from __future__ import annotations

from typing import Annotated

import typer

from cloudtrain.cli import complete


def command(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="Runs: their names, the beginnings of names, references, or `last`.",
            autocompletion=complete.runs,
            show_default=False,
        ),
    ],
) -> None:
    """Remove runs that have ended from this machine.

    Removes the run from the run store and deletes its folder: code, logs, and what it wrote there. Files that it
    wrote elsewhere stay, and so does what a cloud keeps of it. Prints the names of the removed runs.

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
