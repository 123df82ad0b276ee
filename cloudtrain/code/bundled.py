"""The training scripts that ship with cloudtrain: list, describe (without importing) and copy
them."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

from cloudtrain.code.walk import walk
from cloudtrain.errors import JobError, UsageError, did_you_mean
from cloudtrain.job.training import BUNDLED

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = (_PACKAGE / "_training_scripts", _PACKAGE.parent / "training_scripts")
"""The folder in an installed wheel, and the folder in a checkout."""

_ENTRY_POINT = "train.py"


def script_summaries() -> dict[Path, str]:
    """Return the folder of every bundled script, sorted by name, with one line about what it trains
    and how: the first line of the docstring of `train.py`."""
    summaries = {}
    for folder in _script_folders():
        script = (folder / _ENTRY_POINT).read_text(encoding="utf-8")
        docstring = ast.get_docstring(ast.parse(script)) or ""
        summaries[folder] = docstring.partition("\n")[0]
    return summaries


def script_names() -> list[str]:
    return [folder.name for folder in _script_folders()]


def script_path(name: str) -> Path:
    """Return the folder of a bundled script. `name` may start with `bundled:`, as in a job's
    `source_dir`.

    Raises:
        UsageError: no bundled script has that name.
    """
    name = name.removeprefix(BUNDLED)
    folders = {folder.name: folder for folder in _script_folders()}
    if name not in folders:
        hint = did_you_mean(name, folders) or "see `cloudtrain scripts list`"
        raise UsageError(f"there is no bundled script `{name}`", hint=hint, code="CT908")
    return folders[name]


def script_files(name: str) -> dict[str, Path]:
    """Return the files of a bundled script. The keys are their paths in a copy of the script, the
    values their paths on disk.

    In a checkout of cloudtrain, some of the files are in the folder of another script, as
    `.cloudtraininclude` says.

    Raises:
        UsageError: no bundled script has that name.
        JobError: the installation is incomplete.
    """
    result = walk(str(script_path(name)))
    if result.problems:
        raise JobError(result.problems)
    return {file.path: Path(file.place) for file in result.files}


def copy_script(name: str, destination: Path) -> Path:
    """Copy a script's folder to `destination`, which must be empty or not exist, and return
    `destination`.

    Raises:
        UsageError: no bundled script has that name, or the destination is not empty or cannot be
            written.
    """
    source = script_path(name)
    is_used = destination.is_dir() and any(destination.iterdir())
    if is_used or destination.is_file():
        hint = f"name another folder: `cloudtrain scripts copy {source.name} my-{source.name}`"
        raise UsageError(f"`{destination}` already exists", hint=hint, code="CT903")

    try:
        destination.mkdir(parents=True, exist_ok=True)
        for path, place in script_files(name).items():
            copy = destination / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(place, copy)
    except OSError as error:
        message = f"cannot write to `{destination}`: {error.strerror}"
        raise UsageError(
            message, hint="name a folder that you may write to", code="CT903"
        ) from None
    return destination


def _script_folders() -> list[Path]:
    """Return the folders of all bundled scripts, sorted by name; none if the installation is
    incomplete."""
    for place in _FOLDERS:
        if place.is_dir():
            return sorted(entry_point.parent for entry_point in place.glob(f"*/{_ENTRY_POINT}"))
    return []
