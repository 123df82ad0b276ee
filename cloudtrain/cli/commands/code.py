from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cloudtrain.cli import options


def command(
    name: options.RunName,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.", show_default=False)],
    json: options.Json = False,
) -> None:
    """Write the code of a run into a folder.

    Writes the files that were sent, even if the source folder has changed since. Leaves out cloudtrain's own runtime,
    which is added to every bundle. Prints the path of each file on stdout.

    \b
    Examples:
      cloudtrain code last old-code
      cloudtrain code digits-ddp-3f9a /tmp/code
    """
    from cloudtrain.cli import inputs
    from cloudtrain.cli.terminal import print_json, print_lines

    paths = [str(folder / path) for path in inputs.run(name).save_code(folder)]
    if json:
        print_json(paths)
    else:
        print_lines(paths)
