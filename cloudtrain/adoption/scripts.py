"""Runs a script of another tool, and captures the jobs that it creates.

The script runs in a copy of its folder, without the network, with invalid credentials, and for a
limited time. The script is the user's own: these limits protect from accidents, but not from
hostile scripts (docs/guides/adopting.md lists what a script can still do).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cloudtrain.adoption.launches import cannot_adopt
from cloudtrain.adoption.proof import UPLOADED
from cloudtrain.adoption.sources import cells_of, not_run
from cloudtrain.documents.archives import archive_of, files_of
from cloudtrain.documents.document import read_bytes, read_text
from cloudtrain.errors import UsageError
from cloudtrain.system.plugins import all_parts
from cloudtrain.targets.adoption import Original
from cloudtrain.targets.common.tracebacks import error_in
from cloudtrain.targets.contract import AdopterMaker
from cloudtrain.targets.settings import load_settings

_MARK = "CLOUDTRAIN_ADOPT_ID"
"""The environment variable that identifies processes that the script has left behind."""

_OUTSIDE = re.compile(
    r"""["'](\.\./(?:\.\./)?[A-Za-z0-9_-][\w-]*)"""
    r"""|(?:\.parent\.parent|parents\[1\]|["']\.\.["'])[\s/,)]+["']([\w-]+)"""
)
"""A path in a script's text to a folder outside of the script's: `"../data"`, or `data` after
`Path(__file__).parent.parent`."""

_MOST_FILES = 20_000
"""The most files of a folder that is copied."""

_MOST_BYTES = 1 << 30
"""The most bytes of a folder that is copied."""

_MOST_CAPTURED = 64 << 20
"""The most bytes of a captured job."""

LEFT_OUT = ("node_modules", "__pycache__", "site-packages")
"""Folders that are not copied."""

_KEPT = (
    "PATH LANG LC_ALL LD_LIBRARY_PATH AWS_REGION AWS_PROFILE AWS_DEFAULT_PROFILE "
    "VIRTUAL_ENV CONDA_PREFIX"
).split()
"""The user's variables that the script gets."""


@dataclass(frozen=True)
class ScriptRun:
    """What a script has done."""

    creations: Sequence[Mapping[str, Any]]
    """What the driver has captured of each job: the `target`, the hook's `record`, and the `place`
    in the script: `line 7`."""
    uploads: Mapping[str, bytes] = field(default_factory=dict)
    """Maps the storage path of each upload to the content, which is empty where it is too large to
    keep."""
    gaps: tuple[str, ...] = ()
    """The notebook cells in which a statement failed, or a script's failure; and the cells that
    were not run, or not wholly: `not run: cell 2, cell 5`."""
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The user's settings that the script found, in words, by the target that reads them."""


def run_script(
    script: Path, arguments: Sequence[str], *, python: str | None, time_limit: float
) -> ScriptRun:
    """Run a script or a notebook to its end."""
    with tempfile.TemporaryDirectory(
        prefix="cloudtrain-adopt-", ignore_cleanup_errors=True
    ) as name:
        place = Path(name)
        for path in ("hooks", "hooks/jobs", "hooks/uploads", "home", "tmp"):
            (place / path).mkdir()

        folder = script.absolute().parent
        # Azure's SDK names the experiment after this folder
        title = folder.name or "work"
        # two folders down, because the script's text may name folders two levels up
        work = _copy_of(folder, place / "above/above" / title)
        for outside in outside_folders(script):
            if outside.is_dir():
                _copy_of(outside, work / os.path.relpath(outside, folder))

        _write_plan(place / "hooks", script, arguments)
        interpreter = python or sys.executable
        if python and os.sep in python:
            interpreter = os.path.abspath(python)
        command = [*_without_network(), interpreter, str(place / "hooks" / "driver.py")]

        environ = load_settings().environ
        notes: dict[str, list[str]] = {}
        for target, make_adopter in all_parts(AdopterMaker).items():
            for path, text, note in make_adopter().home(environ):
                file = place / "home" / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
                notes.setdefault(target, []).append(note)

        code = _run(command, work, _environment(place, environ), place, time_limit)
        return replace(_finished_run(place, work, script, code, time_limit), notes=notes)


def outside_folders(script: Path) -> list[Path]:
    """Return the folders that the script's text names by a path with one or two `..`, such as
    `"../shared-scripts"`, or beside its own, such as `Path(__file__).parent.parent /
    "environment"`."""
    if not script.is_file():
        return []
    text = script.read_text(encoding="utf-8", errors="replace")
    names = sorted({path or f"../{name}" for path, name in _OUTSIDE.findall(text)})
    folder = script.absolute().parent
    return [folder / name for name in names if not (folder / name).is_symlink()]


def _copy_of(folder: Path, copy: Path) -> Path:
    """Copy a folder to `copy`, and return this. Hidden files, environments and `LEFT_OUT` are left
    out. Raises UsageError if the rest is too large."""
    files = size = 0
    hint = "put the script, with the files that it needs, into a folder of its own"

    def left_out(place: str, names: list[str]) -> set[str]:
        nonlocal files, size
        skipped = set()
        for name in names:
            path = os.path.join(place, name)
            is_special = not (os.path.isdir(path) or os.path.isfile(path))  # a pipe, a socket
            is_environment = os.path.exists(os.path.join(path, "pyvenv.cfg"))
            if name.startswith(".") or name in LEFT_OUT or is_environment or is_special:
                skipped.add(name)
            else:
                files += 1
                size += os.path.getsize(path)
        if files > _MOST_FILES or size > _MOST_BYTES:
            raise UsageError(
                f"the folder of the script, `{folder}`, is too large to be copied",
                hint=hint,
                code="CT984",
            )
        return skipped

    try:
        shutil.copytree(folder, copy, ignore=left_out, symlinks=True)
    except (OSError, shutil.Error) as error:
        message = f"the folder of the script cannot be copied: {error}"
        raise UsageError(message, hint=hint, code="CT984") from None
    return copy


def _write_plan(place: Path, script: Path, arguments: Sequence[str]) -> None:
    """Write the driver, its hooks and its `plan.json` into the folder `place`."""
    hooks = []
    for name, make_adopter in all_parts(AdopterMaker).items():
        text = make_adopter().hook()
        if text:
            hooks.append(name)
            (place / f"hook_{name}.py").write_text(text, encoding="utf-8")

    shutil.copyfile(Path(__file__).with_name("driver.py"), place / "driver.py")
    cells = cells_of(script) if script.suffix == ".ipynb" else None
    plan = {"hooks": hooks, "script": script.name, "arguments": [*arguments], "cells": cells}
    (place / "plan.json").write_text(json.dumps(plan), encoding="utf-8")


def _environment(place: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the script: the variables that programs need to start, home and
    temporary folders in `place`, invalid credentials, and a mark of its own."""
    variables = {name: environ[name] for name in _KEPT if name in environ}
    variables |= {
        "HOME": str(place / "home"),
        "TMPDIR": str(place / "tmp"),
        "MPLBACKEND": "Agg",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        _MARK: secrets.token_hex(16),
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    if region:
        variables["AWS_DEFAULT_REGION"] = region
    return variables


def _without_network() -> list[str]:
    """Return a command prefix that cuts off the network, and ends all child processes when the
    command ends; empty if this machine lacks Linux namespaces."""
    program = shutil.which("unshare")
    if program is None:
        return []
    words = [program, "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        attempt = subprocess.run([*words, "true"], capture_output=True, timeout=30, check=False)
        if attempt.returncode == 0:
            return words
    return []


def _run(
    command: Sequence[str],
    work: Path,
    environment: Mapping[str, str],
    place: Path,
    time_limit: float,
) -> int | None:
    """Run the command and return its exit code; None if it exceeds the time limit. In both cases,
    kill all processes that the command has started and that still run."""
    try:
        with (place / "output.txt").open("wb") as file:
            process = subprocess.Popen(
                command, cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        message = f"`{command[-2]}` cannot be started: {error.strerror}"
        hint = "name an interpreter that has the script's packages with `--python`"
        raise UsageError(message, hint=hint, code="CT984") from None
    try:
        return process.wait(time_limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        _kill_what_is_left(environment[_MARK])


def _kill_what_is_left(mark: str) -> None:
    """Kill the script's processes that have left its process group, such as daemons. They are
    recognized by `mark` in their environment, which is empty for a moment while a process becomes
    another program."""
    import psutil

    for _ in range(10):
        marked = []
        has_empty = False
        for process in psutil.process_iter():
            # one of the kernel and a dead one have no memory, and would seem to have no variables;
            # another user's may not be asked
            with contextlib.suppress(psutil.Error, OSError):
                if process.memory_info().vms:
                    variables = process.environ()
                    has_empty |= not variables
                    if variables.get(_MARK) == mark:
                        marked.append(process)

        for process in marked:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(marked, timeout=5)
        if not marked and not has_empty:
            return
        time.sleep(0.01)


def _finished_run(
    place: Path, work: Path, script: Path, code: int | None, time_limit: float
) -> ScriptRun:
    """Return what a script has done that has ended with exit code `code`, or was ended (None).
    Raises UsageError with what the script's output says if it has created no job."""
    hooks = place / "hooks"
    failed = list[str]()
    with contextlib.suppress(OSError):
        failed += dict.fromkeys(read_text(hooks / "failed.txt").splitlines())
    creations = _creations(hooks, work)
    is_notebook = script.suffix == ".ipynb"
    skipped = not_run(script) if is_notebook else ()
    gaps = []
    if code is None:
        failed.append("it did not end by itself")
    if failed:
        gaps.append(f"failed: {', '.join(failed)}")
    if skipped:
        gaps.append(f"not run: {', '.join(skipped)}")
    if creations:
        uploads = {}
        with contextlib.suppress(OSError):
            for number, address in enumerate(read_text(hooks / "uploads.txt").splitlines()):
                uploads[address] = read_bytes(hooks / f"uploads/{number}", 1 << 30)
        return ScriptRun(creations, uploads, tuple(gaps))

    reason = _reason_in(place / "output.txt")
    if skipped:
        reason += f"; {gaps[-1]}"
    if code is None:
        message = f"`{script}` has created no job within {time_limit:g} s"
        hint = (
            "give it more time with `--time-limit`, or adopt the job's request: "
            "docs/guides/adopting.md shows how to get it"
        )
    elif code or (is_notebook and failed):
        message = f"`{script}` failed before it created a job{reason}"
        hint = (
            "name an interpreter with the script's packages: `--python`; it runs without "
            "network and credentials"
        )
        if "ProfileNotFound" in reason:
            hint = "add the profile to `~/.aws/config`, or correct its name in the script"
    else:
        message = f"`{script}` ended without creating a training job{reason}"
        hint = (
            "`--args TEXT` passes the arguments with which a script creates a job; or adopt the "
            "job's request: docs/guides/adopting.md shows how to get it"
        )
    raise UsageError(message, hint=hint, code="CT984")


def _creations(hooks: Path, work: Path) -> list[Mapping[str, Any]]:
    """Read the captured jobs. Paths in the copied folders become relative to the script's
    folder."""
    creations = []
    for file in sorted((hooks / "jobs").glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            text = read_bytes(file, _MOST_CAPTURED).decode()
            # the script's own folder, and those beside it
            for folder, path in ((work, "."), (work.parent, "..")):
                for name in {str(folder), os.path.realpath(folder)}:
                    copy = json.dumps(name)[1:-1]  # as the text has it, without the quotes
                    text = text.replace(f"{copy}/", f"{path}/").replace(copy, path)
            creations.append(json.loads(text))
    return creations


def _reason_in(output: Path) -> str:
    """Return a colon and why the script failed, as its output says it; empty without output."""
    with contextlib.suppress(OSError, UnicodeError):
        with output.open("rb") as file:
            file.seek(max(0, output.stat().st_size - 4000))
            last_lines = file.read().decode(errors="replace").strip().splitlines()

        # the driver keeps the failures of cells, and knows the one for which there is no job
        failure = None
        for name in ("messages.txt", "cause.txt"):
            with contextlib.suppress(OSError):
                failure = read_text(output.parent / "hooks" / name).partition("\n")[0]
        if last_lines:
            reason = failure or error_in(last_lines) or last_lines[-1]
            return f": {reason[:300]}"
    return ""


# The jobs that a script creates with an SDK, and the local folder of their code.

_DEEP = 3
"""Maximum depth below the script's folder in which the job's code is searched."""

_MOST_FOLDERS = 2000


def originals_of_script(
    script: Path, arguments: Sequence[str], *, python: str | None, time_limit: float
) -> list[Original | UsageError]:
    """Run a script, and return the jobs that it creates, in their order; the error for a job that
    cannot be adopted."""
    run = run_script(script, arguments, python=python, time_limit=time_limit)
    places = [*_folders(script.absolute().parent), *outside_folders(script)]
    adopters = all_parts(AdopterMaker)
    jobs: list[Original | UsageError] = []
    earlier: dict[str, str] = {}
    for creation in run.creations:
        adopter = adopters[creation["target"]]()
        record = creation["record"]
        place = creation["place"]
        try:
            originals, archive = adopter.captured(record, run.uploads)
            if not originals:
                raise cannot_adopt(
                    "it has no training job, only steps of other kinds",
                    "adopt the job file or the request of one of its steps",
                )
        except UsageError as error:
            message = f"`{script.name}`, {place}: {error.message}"
            jobs.append(UsageError(message, hint=error.hint, code=error.code))
            continue

        for original in originals:
            original = _with_dependencies(original, record, earlier)
            original = located(original, script.absolute().parent, places, archive)
            kind = f"the request that {script.name} sends"
            if len(run.creations) > 1:
                kind += f" in {place}"  # and the uploads may be those of the others
            else:
                for address in original.other_uploads[:3]:
                    kind += f"; it also uploads {address}"
            kind = "; ".join([kind, *run.gaps])
            notes = run.notes.get(creation["target"])
            if notes:
                kind += f"; with {' and '.join(notes)}"
            jobs.append(replace(original, kind=kind, gaps=run.gaps))
        earlier[str(record["name"])] = place
    return jobs


def _with_dependencies(
    original: Original, record: Mapping[str, Any], earlier: Mapping[str, str]
) -> Original:
    """Return the job of a hook's `record` with what it takes from other jobs as lost: `earlier`
    jobs of its script, which exist only because the script ran, by name with the places of their
    creation; and what the script has read of jobs' descriptions."""
    text = json.dumps(original.request, default=str)
    lost = dict(original.lost)
    for name, place in earlier.items():
        pattern = rf'"((?:[^"\\\s]*[/:])?{re.escape(name)}(?:/output[^"\\]*)?)[\\"]'
        found = re.search(pattern, text)
        if found is not None and name != str(record["name"]):
            lost[found[1]] = (
                f"the script creates the job that writes it before, in {place}: submit that job, "
                "and write its own address there"
            )
    for name, part in record.get("reads", []):
        lost[f"{name}{part}"] = (
            f"the script reads this of the job `{name}` before, which has not run, so what it "
            "makes of it is not known: check the values of this job"
        )
    return replace(original, lost=lost)


def located(
    original: Original, folder: Path, places: Sequence[Path], archive: bytes | None
) -> Original:
    """Return the job with the folders of its code and of its data, relative to `folder`. `archive`
    holds its code, and `places` are the folders that may have it."""
    source = original.source
    files = {}
    if archive is not None:
        with contextlib.suppress(tarfile.TarError, OSError, EOFError, ValueError):
            files = dict(files_of(archive))
    if files:
        # a script may have made or changed the folder of its code itself, in the copy
        named = [folder / source] if source is not None else []
        source = _source_in(folder, [*named, *places], files)
    elif source is not None and not (folder / source).is_dir():
        source = None

    # data that the script has made itself is written beside the job file
    data = dict[str, str]()
    made = dict[str, bytes]()
    for number, (address, uploads) in enumerate(original.uploads.items(), 1):
        path = _source_in(folder, places, uploads)
        is_folder = path is None or (folder / path).is_dir()
        if path is None:
            path = f"{UPLOADED}/{number}"
            for name, content in uploads.items():
                made[f"{path}/{name}"] = content
        data[address] = f"{path}/" if is_folder else path
    return replace(
        original,
        folder=str(folder),
        source=source,
        code=archive if source is None else None,
        data=data,
        made_data=archive_of(made) if made else None,
    )


def _source_in(folder: Path, places: Sequence[Path], files: Mapping[str, bytes]) -> str | None:
    """Return the path, relative to `folder`, from which `files` were packed: the first folder in
    `places` that has exactly these files. If there is one file and the folder has more, return the
    path of that file in the folder. Return None if no folder has the files."""
    if not files:
        return None
    for place in places:
        if not all(_has_content(place / name, content) for name, content in files.items()):
            continue
        if set(_names_below(place)) <= files.keys():
            return os.path.relpath(place, folder)
        if len(files) == 1:
            return os.path.relpath(place / next(iter(files)), folder)
    return None


def _folders(folder: Path) -> Iterator[Path]:
    """Yield the folder and its subfolders, the nearest first."""
    waiting = [(folder, 0)]
    for place, depth in waiting:  # which grows meanwhile
        yield place
        if depth < _DEEP and len(waiting) < _MOST_FOLDERS:
            with os.scandir(place) as entries:
                below = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            for name in sorted(below):
                if not name.startswith("."):
                    waiting.append((place / name, depth + 1))


def _has_content(path: Path, content: bytes) -> bool:
    """Return whether `path` is a file with this content."""
    try:
        if not path.is_file() or path.stat().st_size != len(content):
            return False
        return path.read_bytes() == content
    except OSError:
        return False


def _names_below(folder: Path) -> Iterator[str]:
    """Yield the paths of the files below a folder, relative to it. Files that are not copied for
    the script's run, such as hidden files, and links, which no archive is compared by, are left
    out."""
    for place, folders, names in os.walk(folder):
        # what this list loses, `os.walk` does not enter
        folders[:] = [name for name in folders if not name.startswith(".") and name not in LEFT_OUT]
        for name in names:
            path = os.path.join(place, name)
            if not name.startswith(".") and not name.endswith(".pyc") and not os.path.islink(path):
                yield os.path.relpath(path, folder)
