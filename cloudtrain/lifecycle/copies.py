"""Copies of what a run wrote, in the folder of a project: data that the next bundle of code must not contain."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.bundle.ignore import IGNORE_FILE, ignore_line
from cloudtrain.errors import JobError, RunNotFound

if TYPE_CHECKING:
    from cloudtrain.lifecycle.run import Run

_MARK = (
    "# `cloudtrain download` made this folder: its files are not code, so no bundle contains them.\n"
    "# Without this file, a bundle of a folder above contains them.\n"
    "*\n"
)


def source_of(run: Run) -> Path | None:
    """Return the source folder that the run was submitted from; None if it is unknown or no longer exists."""
    try:
        job = run.show().job
    except RunNotFound:
        return None
    folder = Path(job.get("job", job).get("source_dir") or "")
    return folder if folder.is_absolute() and folder.is_dir() else None


def is_new(folder: Path) -> bool:
    """Return whether a folder does not exist or is empty, so that all of its later content is copies."""
    try:
        return not any(folder.iterdir())
    except OSError:
        return not os.path.lexists(folder)


def leave_out(folder: Path, sources: Iterable[Path | None]) -> None:
    """Write an ignore file into a folder of copies, so that bundles leave the copies out.

    The folder stays unchanged if it is empty, or is not inside one of `sources`.
    """
    place = os.path.realpath(folder)
    roots = {os.path.realpath(source) for source in sources if source is not None} - {place}
    if any(os.path.commonpath([root, place]) == root for root in roots) and not is_new(folder):
        with suppress(OSError):  # `bundled` then finds the copies
            (folder / IGNORE_FILE).write_text(_MARK, encoding="utf-8")


def bundled(files: Sequence[Path], folder: Path, source: Path) -> list[str]:
    """Return the lines for the ignore file of `source` that leave the copies in `folder` out of its bundles; empty if
    the bundles do not contain them.
    """
    from cloudtrain.bundle.walk import Moved, read_until_settled, walk

    root = os.path.realpath(source)
    try:
        code = {file.path for file in read_until_settled(lambda: walk(root)).files}
    except (JobError, Moved):  # the next submit reports it, and sends nothing
        return []
    copies = {os.path.relpath(os.path.realpath(file), root) for file in files} & code
    others = code - copies
    start = os.path.relpath(os.path.realpath(folder), root)
    lines = []
    for copy in sorted(copies):
        top = os.path.normpath(os.path.join(start, os.path.relpath(copy, start).split("/", 1)[0]))  # noqa: PTH118
        mixed = any(other.startswith(f"{top}/") for other in others)
        lines.append(ignore_line(copy if mixed else top))
    return list(dict.fromkeys(lines))
