"""Runs a script of another tool until it creates its first job.

The script runs in a copy of its folder, without the network, with invalid credentials, and for a
limited time. The script is the user's own: these limits protect from accidents, but not from
hostile scripts (docs/adopting.md lists what a script can still do).
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
from typing import TYPE_CHECKING, Any

from cloudtrain.adoption.proof import UPLOADED
from cloudtrain.adoption.sources import cells_of
from cloudtrain.documents.archives import archive_of, files_of
from cloudtrain.documents.document import read_bytes, read_text
from cloudtrain.errors import UsageError
from cloudtrain.system.plugins import all_parts
from cloudtrain.targets.adoption import Original
from cloudtrain.targets.common.tracebacks import error_in
from cloudtrain.targets.contract import AdopterMaker
from cloudtrain.targets.settings import load_settings

if TYPE_CHECKING:
    import psutil

_MARK = "CLOUDTRAIN_ADOPT_ID"
"""The environment variable that identifies processes that the script has left behind."""

_OUTSIDE = re.compile(
    r"""["'](\.\./(?:\.\./)?[A-Za-z0-9_-][\w-]*)"""
    r"""|(?:\.parent\.parent|parents\[1\]|["']\.\.["'])[\s/,)]+["']([\w-]+)"""
)

_MOST_FILES, _MOST_BYTES = 20_000, 1 << 30
_MOST_CAPTURED = 64 << 20
LEFT_OUT = ("node_modules", "__pycache__", "site-packages")
_KEPT = (
    "PATH LANG LC_ALL LD_LIBRARY_PATH AWS_REGION AWS_PROFILE AWS_DEFAULT_PROFILE "
    "VIRTUAL_ENV CONDA_PREFIX"
).split()


@dataclass(frozen=True)
class Captured:
    """The job that a script was about to create."""

    target: str
    record: Mapping[str, Any]
    uploads: Mapping[str, bytes] = field(default_factory=dict)
    """Maps the storage path of each earlier upload to the content, which is empty where it is too
    large to keep."""
    failed: tuple[str, ...] = ()
    """The notebook cells in which a statement failed before."""
    notes: tuple[str, ...] = ()
    """The user's settings that the script found, in words."""


def run_script(
    script: Path, arguments: Sequence[str], *, python: str | None, time_limit: float
) -> Captured:
    """Run a script or a notebook until it creates a job."""
    with tempfile.TemporaryDirectory(
        prefix="cloudtrain-adopt-", ignore_cleanup_errors=True
    ) as name:
        place = Path(name)
        for folder in ("hooks", "hooks/uploads", "home", "tmp"):
            (place / folder).mkdir()
        # Azure's SDK names the experiment after this folder
        title = script.absolute().parent.name or "work"
        work = _copy_of(script.absolute().parent, place / "above" / "above" / title)
        for outside in outside_folders(script):
            if outside.is_dir():
                _copy_of(outside, work / os.path.relpath(outside, script.absolute().parent))
        _write_plan(place / "hooks", script, arguments)
        mark = secrets.token_hex(16)
        interpreter = (
            os.path.abspath(python) if python and os.sep in python else python or sys.executable
        )
        command = [*_without_network(), interpreter, str(place / "hooks" / "driver.py")]
        environ, notes = load_settings().environ, dict[str, list[str]]()
        for target, make_adopter in all_parts(AdopterMaker).items():
            for path, text, note in make_adopter().home(environ):
                (place / "home" / path).parent.mkdir(parents=True, exist_ok=True)
                (place / "home" / path).write_text(text, encoding="utf-8")
                notes.setdefault(target, []).append(note)
        code = _run(
            command,
            work,
            _environment(place, mark, environ),
            place / "output.txt",
            mark,
            time_limit,
        )
        captured = _captured(place, work, script, code, time_limit)
        return replace(captured, notes=tuple(notes.get(captured.target, ())))


def outside_folders(script: Path) -> list[Path]:
    """Return the folders that the script's text names by a path with one or two `..`, such as
    `"../shared-scripts"`, or beside its own, such as `Path(__file__).parent.parent /
    "environment"`."""
    text = script.read_text(encoding="utf-8", errors="replace") if script.is_file() else ""
    names = sorted({path or f"../{name}" for path, name in _OUTSIDE.findall(text)})
    return [
        script.absolute().parent / name for name in names if not (script.parent / name).is_symlink()
    ]


def _copy_of(folder: Path, copy: Path) -> Path:
    files = size = 0
    hint = "put the script, with the files that it needs, into a folder of its own"

    def left_out(place: str, names: list[str]) -> set[str]:
        nonlocal files, size
        skipped = {name for name in names if name.startswith(".") or name in LEFT_OUT}
        skipped |= {
            name for name in names if os.path.exists(os.path.join(place, name, "pyvenv.cfg"))
        }
        for name in set(names) - skipped:
            path = os.path.join(place, name)
            # A pipe, a socket.
            if not (os.path.isdir(path) or os.path.isfile(path)):
                skipped.add(name)
                continue
            files, size = files + 1, size + os.path.getsize(path)
        if files > _MOST_FILES or size > _MOST_BYTES:
            message = f"the folder of the script, `{folder}`, is too large to be copied"
            raise UsageError(message, hint=hint, code="CT984")
        return skipped

    try:
        shutil.copytree(folder, copy, ignore=left_out, symlinks=True)
    except (OSError, shutil.Error) as error:
        raise UsageError(
            f"the folder of the script cannot be copied: {error}", hint=hint, code="CT984"
        ) from None
    return copy


def _write_plan(place: Path, script: Path, arguments: Sequence[str]) -> None:
    cells = None
    if script.suffix == ".ipynb":
        cells = cells_of(script)
    hooks: dict[str, str] = {}
    for name, make_adopter in all_parts(AdopterMaker).items():
        text = make_adopter().hook()
        if text:
            hooks[name] = text
    for name, text in hooks.items():
        (place / f"hook_{name}.py").write_text(text, encoding="utf-8")
    source = Path(__file__).with_name("driver.py").read_text(encoding="utf-8")
    (place / "driver.py").write_text(source, encoding="utf-8")
    plan = {"hooks": [*hooks], "script": script.name, "arguments": [*arguments], "cells": cells}
    (place / "plan.json").write_text(json.dumps(plan), encoding="utf-8")


def _environment(place: Path, mark: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the script: the variables that programs need to start, home and
    temporary folders in `place`, invalid credentials, and `mark`."""
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    return {name: environ[name] for name in _KEPT if name in environ} | {
        "HOME": str(place / "home"),
        "TMPDIR": str(place / "tmp"),
        "MPLBACKEND": "Agg",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        _MARK: mark,
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_EC2_METADATA_DISABLED": "true",
        **({"AWS_DEFAULT_REGION": region} if region else {}),
    }


def _without_network() -> list[str]:
    """Return a command prefix that cuts off the network, and ends all child processes when the
    command ends; empty if this machine lacks Linux namespaces."""
    program = shutil.which("unshare")
    if program is None:
        return []
    words = [program, "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        attempt = subprocess.run([*words, "true"], capture_output=True, timeout=30, check=False)
        return words if attempt.returncode == 0 else []
    return []


def _run(
    command: Sequence[str],
    work: Path,
    environment: Mapping[str, str],
    output: Path,
    mark: str,
    time_limit: float,
) -> int | None:
    """Run the command and return its exit code; None if it exceeds the time limit. In both cases,
    kill all processes that the command has started and that still run."""
    try:
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        hint = "name an interpreter that has the script's packages with `--python`"
        raise UsageError(
            f"`{command[-2]}` cannot be started: {error.strerror}", hint=hint, code="CT984"
        ) from None
    try:
        return process.wait(time_limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        _kill_what_is_left(mark)


def _kill_what_is_left(mark: str) -> None:
    """Kill the script's processes that have left its process group, such as daemons. They are
    recognized by `mark` in their environment, which is empty for a moment while a process becomes
    another program."""
    import psutil

    for _ in range(10):
        environments = {process: _variables(process) for process in psutil.process_iter()}
        marked = [
            process for process, names in environments.items() if names and names.get(_MARK) == mark
        ]
        for process in marked:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(marked, timeout=5)
        if not marked and {} not in environments.values():
            return
        time.sleep(0.01)


def _variables(process: psutil.Process) -> dict[str, str] | None:
    """Return the variables of a process; None for a dead one, one of the kernel, and perhaps
    another user's."""
    import psutil

    try:
        # the kernel's and dead ones have no memory
        return process.environ() if process.memory_info().vms else None
    except (psutil.Error, OSError):
        return None


def _captured(
    place: Path, work: Path, script: Path, code: int | None, time_limit: float
) -> Captured:
    try:
        text = read_bytes(place / "hooks" / "captured.json", _MOST_CAPTURED).decode()
        # the script's own folder, and those beside it
        for place_of, path in ((work, "."), (work.parent, "..")):
            for copy in (
                json.dumps(one)[1:-1] for one in {str(place_of), os.path.realpath(place_of)}
            ):
                text = text.replace(f"{copy}/", f"{path}/").replace(copy, path)
        data = json.loads(text)
        return Captured(
            str(data["target"]),
            data["record"],
            dict(_uploads(place / "hooks")),
            _failed(place / "hooks"),
        )
    except (OSError, ValueError, KeyError, TypeError):
        pass
    last = _last_lines(place / "output.txt")
    if code is None:
        message = f"`{script}` has created no job within {time_limit:g} s"
        hint = (
            "give it more time with `--time-limit`, or adopt the job's request: "
            "docs/adopting.md shows how to get it"
        )
    elif code:
        message = f"`{script}` failed before it created a job{last}"
        hint = (
            "name an interpreter with the script's packages: `--python`; it runs without "
            "network and credentials"
        )
        if "ProfileNotFound" in last:
            hint = "add the profile to `~/.aws/config`, or correct its name in the script"
    else:
        message = f"`{script}` ended without creating a training job{last}"
        hint = "pass the arguments with which the script creates a job: `--args TEXT`"
    raise UsageError(message, hint=hint, code="CT984")


def _last_lines(output: Path) -> str:
    with contextlib.suppress(OSError, UnicodeError):
        with output.open("rb") as file:
            file.seek(max(0, output.stat().st_size - 4000))
            lines = file.read().decode(errors="replace").strip().splitlines()
            file.seek(0)
            first = file.read(1 << 20).decode(errors="replace").splitlines()
        failure = next((line for line in first if re.match(r"cell \d+: ", line)), None)
        with contextlib.suppress(OSError):
            failure = read_text(output.parent / "hooks" / "cause.txt")
        if lines:
            return f": {(failure or error_in(lines) or lines[-1])[:300]}"
    return ""


def _failed(folder: Path) -> tuple[str, ...]:
    with contextlib.suppress(OSError):
        return tuple(dict.fromkeys(read_text(folder / "failed.txt").splitlines()))
    return ()


def _uploads(folder: Path) -> Iterator[tuple[str, bytes]]:
    with contextlib.suppress(OSError):
        places = read_text(folder / "uploads.txt").splitlines()
        for number, place in enumerate(places):
            yield place, read_bytes(folder / "uploads" / f"{number}", 1 << 30)


# The jobs that a script creates with an SDK, and the local folder of their code.

_DEEP = 3
"""Maximum depth below the script's folder in which the job's code is searched."""

_MOST_FOLDERS = 2000


def originals_of_script(
    script: Path, arguments: Sequence[str], *, python: str | None, time_limit: float
) -> list[Original]:
    """Run a script until its first call that creates jobs, and return these jobs."""
    captured = run_script(script, arguments, python=python, time_limit=time_limit)
    adopter = all_parts(AdopterMaker)[captured.target]()
    originals, archive = adopter.captured(captured.record, captured.uploads)
    if not originals:
        hint = "cloudtrain adopts training jobs"
        raise UsageError(
            f"the first job that `{script}` creates is not a training job", hint=hint, code="CT981"
        )
    folder = script.absolute().parent
    kind = f"the request that {script.name} sends"
    kind += f"; failed: {', '.join(captured.failed)}" if captured.failed else ""
    kind += f"; with {' and '.join(captured.notes)}" if captured.notes else ""
    places = [*_folders(folder), *outside_folders(script)]
    try:
        source = (
            _source_in(folder, places, dict(files_of(archive))) if archive is not None else None
        )
    except (tarfile.TarError, OSError, EOFError, ValueError):
        source = None
    return [
        replace(
            _with_data(original, folder, places),
            kind=kind
            + "".join(f"; it also uploads {place}" for place in original.other_uploads[:3]),
            folder=str(folder),
            source=original.source if _is_there(original, folder) else source,
            code=None if source is not None or _is_there(original, folder) else archive,
        )
        for original in originals
    ]


def _is_there(original: Original, folder: Path) -> bool:
    """Return whether the request names the folder of its code, and the script has not made that
    folder itself."""
    return original.source is not None and (folder / original.source).is_dir()


def _with_data(original: Original, folder: Path, places: Sequence[Path]) -> Original:
    """Return the job with the paths of the data that the script uploads. Data that the script has
    made itself is to be written beside the job file."""
    data, made = dict[str, str](), dict[str, bytes]()
    for number, (address, files) in enumerate(original.uploads.items(), 1):
        path = _source_in(folder, places, files)
        if path is None:
            path = f"{UPLOADED}/{number}"
            made |= {f"{path}/{name}": content for name, content in files.items()}
            data[address] = f"{path}/"
        else:
            data[address] = path + "/" * (folder / path).is_dir()
    return replace(original, data=data, made_data=archive_of(made) if made else None)


def _source_in(folder: Path, places: Sequence[Path], files: Mapping[str, bytes]) -> str | None:
    """Return the path, relative to `folder`, from which `files` were packed: the first folder in
    `places` that has exactly these files. If there is one file and the folder has more, return the
    path of that file in the folder. Return None if no folder has the files."""
    if not files:
        return None
    for place in places:
        if all(_is_file(place / name, content) for name, content in files.items()):
            if set(_names_below(place)) <= files.keys():
                return os.path.relpath(place, folder)
            if len(files) == 1:
                return os.path.relpath(place / next(iter(files)), folder)
    return None


def _folders(folder: Path) -> Iterator[Path]:
    """Yield the folder and its subfolders, the nearest first."""
    waiting = [(folder, 0)]
    for place, depth in waiting:
        yield place
        if depth < _DEEP and len(waiting) < _MOST_FOLDERS:
            with os.scandir(place) as entries:
                names = sorted(
                    e.name for e in entries if e.is_dir(follow_symlinks=False) and e.name[0] != "."
                )
            waiting += [(place / name, depth + 1) for name in names]


def _is_file(path: Path, content: bytes) -> bool:
    try:
        return (
            path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content
        )
    except OSError:
        return False


def _names_below(folder: Path) -> Iterator[str]:
    """Yield the paths of the files below a folder, relative to it. Files that are not copied for
    the script's run, such as hidden files, are left out."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in LEFT_OUT]
        for name in names:
            if name.startswith(".") or name.endswith(".pyc"):
                continue
            yield os.path.normpath(os.path.relpath(os.path.join(place, name), folder))
