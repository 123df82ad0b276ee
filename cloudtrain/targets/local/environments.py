"""Build the environment of a job's requirements, once for all runs with the same requirements.

    environments/KEY               a link to the environment, created once the build is complete
    environments/KEY-RANDOM/env/   the environment itself; an interrupted build leaves a folder without a link
    environments/KEY.log           output of the installer's last attempt

The environment is layered over the base interpreter, as in a cloud image: it can import the interpreter's packages, but
the job's requirements take precedence. uv builds it if uv is installed; otherwise venv and pip do.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from cloudtrain.code.unpack import unpack
from cloudtrain.errors import TargetError
from cloudtrain.system.private import make_private_folder, open_private
from cloudtrain.system.processes import ProcessLock, tell
from cloudtrain.targets.common.specification import BuiltEnvironment, CodePlace

_LOOK_EVERY = 0.2
"""Seconds between two checks whether another process has finished the environment."""

_BASE = (
    "import json, sys; "
    "print(json.dumps([p for p in sys.path if p.rstrip('/').endswith(('site-packages', 'dist-packages'))]))"
)

_NOT_PASSED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "__PYVENV_LAUNCHER__")
"""Variables of the shell that would lead an installer to another environment."""

_NEWS = ("Collecting ", "Downloading ", "Building ", "Installing collected", "Resolved ", "Prepared ", "Installed ")
"""Beginnings of the lines in which pip and uv report progress."""


_ASIDES = ("[notice]", "WARNING:", "warning:", "hint:")
"""The beginnings of output lines that do not explain a failure."""


def provide(wanted: BuiltEnvironment, code: CodePlace, environ: Mapping[str, str]) -> None:
    """Make sure that the environment `wanted` exists. If it is missing, build it from the requirements file in `code`.

    Raises:
        TargetError: the environment cannot be built; the message is the installer's last output.
        OSError: the environment cannot be written.
    """
    link = Path(wanted.folder)
    if _is_whole(link):
        return
    make_private_folder(link.parent)
    lock = _take_lock(link)
    try:
        if not _is_whole(link):
            _build(wanted, link, code, {name: value for name, value in environ.items() if name not in _NOT_PASSED})
    finally:
        lock.release()


def _is_whole(link: Path) -> bool:
    """Return whether the environment is complete. If so, update its time of last use."""
    if not (link / "bin" / "python").exists():
        return False
    os.utime(link.resolve().parent)
    return True


def _take_lock(link: Path) -> ProcessLock:
    told = False
    while (lock := ProcessLock.take(link.with_name(f"{link.name}.lock"))) is None:
        if not told:
            tell("waiting: another command builds the environment of this job")
            told = True
        time.sleep(_LOOK_EVERY)
    return lock


def _build(wanted: BuiltEnvironment, link: Path, code: CodePlace, environ: Mapping[str, str]) -> None:
    began = time.monotonic()
    uv = _find_uv(wanted.python, environ)
    tool = "uv" if uv else "pip"
    tell(f"building an environment from `{wanted.requirements}` with {tool}, once for all runs with these requirements")
    home = Path(tempfile.mkdtemp(prefix=f"{link.name}-", dir=link.parent))
    log = link.with_name(f"{link.name}.log")
    try:
        with os.fdopen(open_private(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w", encoding="utf-8") as said:
            source, place = home / "source", home / "env"
            unpack(Path(code.archive), source, code.sha256)
            python = f"{place}/bin/python"
            if uv:
                steps = [[uv, "venv", "--python", wanted.python, str(place)]]
                install = [uv, "pip", "install", "--python", python, "-r", wanted.requirements]
            else:
                steps = [[wanted.python, "-m", "venv", str(place)]]
                install = [python, "-m", "pip", "install", "--disable-pip-version-check", "-r", wanted.requirements]
            for step in steps:
                _run(step, source, environ, said, wanted)
            _layer(wanted.python, place, source, environ)
            _run(install, source, environ, said, wanted)
        if not _leads_to(source, place):
            shutil.rmtree(source)
        _publish(place, link)
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    tell(f"built in {time.monotonic() - began:.0f} s")


def _leads_to(source: Path, place: Path) -> bool:
    """Return whether a package in the environment `place` points into the unpacked code in `source`, as it does after
    `pip install -e .`."""
    linked = [*place.glob("lib/python*/site-packages/*.pth"), *place.glob("lib/python*/site-packages/__editable__*")]
    return any(str(source) in file.read_text("utf-8", "replace") for file in linked if file.is_file())


def _publish(place: Path, link: Path) -> None:
    """Point the link `link` to the finished environment, in one atomic step."""
    temporary = place.parent / "link"
    temporary.symlink_to(place)
    temporary.replace(link)


def _find_uv(python: str, environ: Mapping[str, str]) -> str | None:
    """Return the path of uv on the PATH or in the interpreter's folder; None if uv is not installed."""
    return shutil.which("uv", path=os.pathsep.join((environ.get("PATH", ""), str(Path(python).parent))))


def _layer(python: str, place: Path, folder: Path, environ: Mapping[str, str]) -> None:
    """Make the packages of the base interpreter `python` importable in the environment `place`. `folder`: the
    directory in which `python` runs.

    Raises:
        TargetError: the interpreter cannot list its paths.
    """
    found = subprocess.run(
        [python, "-c", _BASE], cwd=folder, env=dict(environ), capture_output=True, text=True, check=False
    )
    if found.returncode:
        said = (found.stderr.strip().splitlines() or [f"exit code {found.returncode}"])[-1]
        raise TargetError(f"`{python}` failed: {said}", hint="name another interpreter: `--python PATH`", code="CT953")
    lines = [f"import site; site.addsitedir({path!r})\n" for path in json.loads(found.stdout)]
    for packages in place.glob("lib/python*/site-packages"):
        (packages / "cloudtrain_base.pth").write_text("".join(lines), encoding="utf-8")


def _run(argv: Sequence[str], folder: Path, environ: Mapping[str, str], log: TextIO, wanted: BuiltEnvironment) -> None:
    """Run one command of the build in `folder`. Write its output to `log`, and show its progress lines to the user.

    Raises:
        TargetError: the command failed.
    """
    last = ""
    with subprocess.Popen(
        argv, cwd=folder, env=dict(environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        encoding="utf-8", errors="replace",
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            for line in process.stdout:
                log.write(line)
                text = line.strip()
                if text.startswith(_NEWS):
                    tell(text)
                if text and not text.startswith(_ASIDES):
                    last = text.removeprefix("ERROR: ").removeprefix("error: ")
        except BaseException:
            process.terminate()
            raise
    code = process.returncode
    if code:
        log_name = f"{wanted.folder}.log"
        raise TargetError(
            f"the environment of `{wanted.requirements}` cannot be built: {last or f'exit code {code}'}",
            hint=f"correct the file, or run without `build_environment`; the full output is in `{log_name}`",
            code="CT953",
        )
