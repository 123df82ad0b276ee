from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloudtrain.cli import options
from cloudtrain.cli.options import argument, option
from cloudtrain.cli.runs import run_named
from cloudtrain.cli.terminal import print_json, print_lines, say, typed
from cloudtrain.code.ignore import IGNORE_FILE, ignore_line
from cloudtrain.code.walk import Moved, read_until_settled, walk
from cloudtrain.errors import JobError, NothingWritten, RunNotFound, join_names
from cloudtrain.system.processes import listening

if TYPE_CHECKING:
    from cloudtrain.lifecycle.runs.run import Run

_NAMED = 5
"""Maximum number of lines for the ignore file that the notice shows."""


def download_command(
    name: options.RunName,
    path: Annotated[
        str,
        argument(
            "[PATH]",
            "`model/`, `outputs/NAME`, `checkpoint/` or `logs/`; a local run also has `outputs/` "
            "(all outputs) and `work/`. Default: everything.",
            autocompletion=options.parts,
        ),
    ] = "",
    to: Annotated[
        Path | None,
        option("--to", "DIR", "The folder to copy into. Default: a folder with the run's name."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Copy what a run wrote: model, outputs, checkpoint, logs.

    `work/` holds the files that the script of a local run wrote into its working folder.

    Later bundles of code leave the copies out: a new folder inside your project gets a
    `.cloudtrainignore`.

    Prints the path of each copied file on stdout. The exit code is 1 when there is nothing to copy.

    \b
    Examples:
      cloudtrain download last model/
      cloudtrain download last work/
      cloudtrain download digits-ddp-3f9a --to results
    """
    run = run_named(name)
    folder = to or Path(run.name)
    source = _source_of(run)
    is_new_folder = _is_new(folder)
    try:
        with listening(say):
            files = run.download(path, folder)
    except NothingWritten:
        files = []
    finally:
        # also after an error, which may leave some files there
        if is_new_folder:
            _leave_out(folder, (source, Path()))
    if json:
        print_json(list(map(str, files)))
    else:
        print_lines(map(str, files))

    if not files:
        _say_nothing_written(run, path)
        raise typer.Exit(1)
    if path and to is None and Path(path).exists():  # which looks like where to copy
        say(f"the copies are in `{folder}`; to copy into `{path}`, write `--to {path}`")
    lines = [] if source is None else _bundled(files, folder, source)
    if lines:
        named = join_names(lines, _NAMED)
        say(
            f"the next submit of `{run.job_name}` bundles these copies as code; if they are "
            f"data, add to `{source}/.cloudtrainignore`: {named}"
        )


def _say_nothing_written(run: Run, path: str) -> None:
    """Say that there is nothing to download, and where the files may be instead."""
    words = f"`{run.name}` wrote no files"
    if path:
        words += f" to `{path}`"
    yet = "" if run.state.is_final else " yet"
    say(words + yet)

    if path and run.working_files:
        command = typed("cloudtrain", "download", run.name, "work/")
        say(f"the files in its working folder: {command}")
    elif path.strip("/") == "model" and not yet:
        say("save the model in `runtime.model_dir()`, the folder that $CLOUDTRAIN_MODEL_DIR names")


# The next bundle of code must not contain the copies.

_MARK = (
    "# `cloudtrain download` made this folder: its files are not code, so no bundle contains "
    "them.\n"
    "# Without this file, a bundle of a folder above contains them.\n"
    "*\n"
)


def _source_of(run: Run) -> Path | None:
    """Return the source folder that the run was submitted from; None if it is unknown or no longer
    exists."""
    try:
        job = run.show().job
    except RunNotFound:
        return None
    # the record of a sweep has the job of its trials in the field `job`
    folder = Path(job.get("job", job).get("source_dir") or "")
    return folder if folder.is_absolute() and folder.is_dir() else None


def _is_new(folder: Path) -> bool:
    """Return whether a folder does not exist or is empty, so that all of its later content is
    copies."""
    try:
        return not any(folder.iterdir())
    except OSError:
        return not os.path.lexists(folder)


def _leave_out(folder: Path, sources: Iterable[Path | None]) -> None:
    """Write an ignore file into a folder of copies, so that bundles leave the copies out.

    The folder stays unchanged if it is empty, or is not inside one of `sources`.
    """
    place = os.path.realpath(folder)
    roots = [os.path.realpath(source) for source in sources if source is not None]
    starts = tuple(os.path.join(root, "") for root in roots)  # each ends with one `/`
    if place.startswith(starts) and not _is_new(folder):
        with suppress(OSError):  # `_bundled` then finds the copies
            (folder / IGNORE_FILE).write_text(_MARK, encoding="utf-8")


def _bundled(files: Sequence[Path], folder: Path, source: Path) -> list[str]:
    """Return the lines for the ignore file of `source` that leave the copies in `folder` out of its
    bundles; empty if the bundles do not contain them."""
    root = os.path.realpath(source)
    try:
        code = {file.path for file in read_until_settled(lambda: walk(root)).files}
    except (JobError, Moved):  # the next submit reports it, and sends nothing
        return []

    places = {os.path.relpath(os.path.realpath(file), root) for file in files}
    copies = places & code
    others = code - copies
    start = os.path.relpath(os.path.realpath(folder), root)

    # one line for a whole folder of copies, if it has no other file of the code
    lines = []
    for copy in sorted(copies):
        first = os.path.relpath(copy, start).split("/", 1)[0]
        top = os.path.normpath(os.path.join(start, first))
        is_mixed = any(other.startswith(f"{top}/") for other in others)
        lines.append(ignore_line(copy if is_mixed else top))
    return list(dict.fromkeys(lines))
