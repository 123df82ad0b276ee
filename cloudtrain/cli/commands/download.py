from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cloudtrain.cli import complete, options

_NAMED = 5
"""Maximum number of lines for the ignore file that the notice shows."""


def command(
    name: options.RunName,
    path: Annotated[
        str,
        typer.Argument(
            metavar="[PATH]",
            help="`model/`, `outputs/NAME`, `checkpoint/` or `logs/`; a local run also has `outputs/` (all outputs) "
            "and `work/`. Default: everything.",
            autocompletion=complete.parts,
            show_default=False,
        ),
    ] = "",
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="The folder to copy into. Default: a folder with the run's name."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Copy what a run wrote: model, outputs, checkpoint, logs.

    `work/` holds the files that the script of a local run wrote into its working folder.

    Later bundles of code leave the copies out: a new folder inside your project gets a `.cloudtrainignore`.

    Prints the path of each copied file on stdout. The exit code is 1 when there is nothing to copy.

    \b
    Examples:
      cloudtrain download last model/
      cloudtrain download last work/
      cloudtrain download digits-ddp-3f9a --to results
    """
    from cloudtrain.cli import inputs
    from cloudtrain.cli.terminal import print_json, print_lines, say, typed
    from cloudtrain.lifecycle.copies import bundled, is_new, leave_out, source_of

    run = inputs.run(name)
    folder = to if to is not None else Path(run.name)
    source, new = source_of(run), is_new(folder)
    try:
        files = run.download(path, folder)
    finally:
        if new:
            leave_out(folder, (source, Path()))
    if json:
        print_json([str(file) for file in files])
    else:
        print_lines(map(str, files))
    lines = bundled(files, folder, source) if files and source is not None else []
    if lines:
        more = f" and {len(lines) - _NAMED} more" if len(lines) > _NAMED else ""
        say(
            f"the next submit of `{run.job_name}` bundles these copies as code; if they are data, add to "
            f"`{source}/.cloudtrainignore`: {', '.join(f'`{line}`' for line in lines[:_NAMED])}{more}"
        )
    if not files:
        yet = "" if run.state.is_final else " yet"
        say(f"`{run.name}` wrote no files{f' to `{path}`' if path else ''}{yet}")
        if path and run.working_files:
            say(f"the files in its working folder: {typed('cloudtrain', 'download', run.name, 'work/')}")
        elif path.strip("/") == "model" and not yet:
            say("save the model in `runtime.model_dir()`, the folder that $CLOUDTRAIN_MODEL_DIR names")
        raise typer.Exit(1)
