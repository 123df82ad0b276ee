from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cloudtrain.cli import complete, options


def command(
    name: options.RunName,
    path: Annotated[
        str,
        typer.Argument(
            metavar="[PATH]",
            help="`model/`, `outputs/NAME`, `checkpoint/` or `logs/`; everything unless given.",
            autocompletion=complete.parts,
            show_default=False,
        ),
    ] = "",
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="The folder to copy into; one with the run's name unless given."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Copy what a run wrote: model, outputs, checkpoint, logs.

    Prints the path of each copied file on stdout.

    \b
    Examples:
      cloudtrain download last model/
      cloudtrain download digits-ddp-3f9a --to results
    """
    import cloudtrain as ct
    from cloudtrain.cli.terminal import print_json, say

    run = ct.run(name)
    folder = to if to is not None else Path(run.name)
    files = run.download(path, folder)
    if json:
        print_json([str(file) for file in files])
        return
    sys.stdout.writelines(f"{file}\n" for file in files)
    if not files:
        say(f"`{run.name}` has written nothing{f' under `{path}`' if path else ''} yet")
