from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cloudtrain.cli import complete, options
from cloudtrain.cli.help import CONTEXT, Command

command = typer.Typer(
    add_completion=False, rich_markup_mode=None, context_settings=CONTEXT, pretty_exceptions_enable=False
)

ScriptName = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="The name of a bundled script.", autocompletion=complete.scripts, show_default=False
    ),
]


@command.callback()
def scripts() -> None:
    """List, show and copy the bundled training scripts.

    \b
    Examples:
      cloudtrain scripts list
      cloudtrain scripts show digits_ddp
      cloudtrain scripts copy digits_ddp my-training
      cloudtrain submit bundled:digits_ddp
    """


@command.command("list", cls=Command)
def list_(json: options.Json = False) -> None:
    """List the bundled scripts."""
    from cloudtrain.cli.terminal import print_json, show
    from cloudtrain.render.document import Document, Table
    from cloudtrain.scripts import list_scripts

    found = list_scripts()
    if json:
        print_json([{"name": item.name, "path": str(item.path), "summary": item.summary} for item in found])
    else:
        show(Document([Table(("NAME", "SUMMARY"), [(item.name, item.summary) for item in found])]), sys.stdout)


@command.command(cls=Command)
def show(
    name: ScriptName,
    file: Annotated[
        str,
        typer.Option("--file", metavar="FILE", help="The file to print. Default: train.py.", show_default=False),
    ] = "train.py",
) -> None:
    """Print a file of a bundled script.

    \b
    Examples:
      cloudtrain scripts show digits_ddp
      cloudtrain scripts show digits_ddp --file job.yaml
    """
    from cloudtrain.errors import UsageError, did_you_mean
    from cloudtrain.scripts import script_files, script_path

    files = script_files(name)
    if file not in files:
        owner = script_path(name).name
        raise UsageError(f"`{owner}` has no file `{file}`", hint=did_you_mean(file, files), code="CT903")
    sys.stdout.write(files[file].read_text(encoding="utf-8"))


@command.command(cls=Command)
def copy(
    name: ScriptName,
    destination: Annotated[
        Path | None, typer.Argument(metavar="[DEST]", help="A new or empty folder. Default: NAME.")
    ] = None,
) -> None:
    """Copy a bundled script as a start for your own.

    \b
    Example:
      cloudtrain scripts copy digits_ddp my-training
    """
    from cloudtrain.cli.terminal import print_lines, say, typed
    from cloudtrain.scripts import copy_script, script_path

    folder = copy_script(name, destination if destination is not None else Path(script_path(name).name))
    print_lines([str(folder)])
    say(f"edit the files in `{folder}`, then run {typed('cloudtrain', 'submit', f'{folder}/job.yaml')}")
