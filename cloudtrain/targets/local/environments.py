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
from cloudtrain.runtime.uv_program import find_uv
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


_PAUSE = 5.0
"""Least number of seconds between two lines of progress. An installer prints hundreds in a minute; the log has all."""


_ASIDES = ("[notice]", "WARNING:", "warning:", "hint:")
"""The beginnings of output lines that do not explain a failure."""


def provide(environment: BuiltEnvironment, code: CodePlace, environ: Mapping[str, str]) -> None:
    """Build `environment` from the requirements file in `code`, unless it exists. Raises `TargetError` if it cannot be
    built; the message is the installer's last output."""
    link = Path(environment.folder)
    if _is_whole(link):
        return
    make_private_folder(link.parent)
    lock = _take_lock(link)
    try:
        if not _is_whole(link):
            _build(environment, link, code, {name: value for name, value in environ.items() if name not in _NOT_PASSED})
    finally:
        lock.release()


def _is_whole(link: Path) -> bool:
    """Return whether the environment is complete. If so, update its time of last use."""
    if not (link / "bin" / "python").exists():
        return False
    os.utime(link.resolve().parent)
    return True


def _take_lock(link: Path) -> ProcessLock:
    path = link.with_name(f"{link.name}.lock")
    lock = ProcessLock.take(path)
    if lock is None:
        tell("waiting: another command builds the environment of this job")
    while lock is None:
        time.sleep(_LOOK_EVERY)
        lock = ProcessLock.take(path)
    return lock


def _build(environment: BuiltEnvironment, link: Path, code: CodePlace, environ: Mapping[str, str]) -> None:
    began = time.monotonic()
    file, base = environment.requirements, environment.python
    uv = find_uv(os.pathsep.join((environ.get("PATH", ""), str(Path(base).parent))))
    tool = "uv" if uv else "pip"
    tell(f"building an environment from `{file}` with {tool}, once for all runs with these requirements")
    home = Path(tempfile.mkdtemp(prefix=f"{link.name}-", dir=link.parent))
    log = link.with_name(f"{link.name}.log")
    try:
        with os.fdopen(open_private(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w", encoding="utf-8") as output:
            source, place = home / "source", home / "env"
            unpack(Path(code.archive), source, code.sha256)
            python = f"{place}/bin/python"
            if uv:
                create = [uv, "venv", "--python", base, str(place)]
                install = [uv, "pip", "install", "--python", python, "-r", file]
            else:
                create = [base, "-m", "venv", str(place)]
                install = [python, "-m", "pip", "install", "--disable-pip-version-check", "-r", file]
            _run(create, source, environ, output, environment)
            _layer(base, place, source, environ)
            _run(install, source, environ, output, environment)
        if not _leads_to(source, place):
            shutil.rmtree(source)
        temporary = home / "link"
        temporary.symlink_to(place)
        temporary.replace(link)  # in one atomic step
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    tell(f"built in {time.monotonic() - began:.0f} s")


def _leads_to(source: Path, place: Path) -> bool:
    """Return whether a package in the environment `place` points into the unpacked code in `source`, as it does after
    `pip install -e .`."""
    files = [*place.glob("lib/python*/site-packages/*.pth"), *place.glob("lib/python*/site-packages/__editable__*")]
    return any(str(source) in file.read_text("utf-8", "replace") for file in files if file.is_file())


def _layer(python: str, place: Path, folder: Path, environ: Mapping[str, str]) -> None:
    """Make the packages of the interpreter `python`, which runs in `folder`, importable in the environment `place`."""
    answer = subprocess.run(
        [python, "-c", _BASE], cwd=folder, env=dict(environ), capture_output=True, text=True, check=False
    )
    if answer.returncode:
        cause = (answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"])[-1]
        raise TargetError(f"`{python}` failed: {cause}", hint="name another interpreter: `--python PATH`", code="CT953")
    lines = [f"import site; site.addsitedir({path!r})\n" for path in json.loads(answer.stdout)]
    for packages in place.glob("lib/python*/site-packages"):
        (packages / "cloudtrain_base.pth").write_text("".join(lines), encoding="utf-8")


def _run(
    argv: Sequence[str], folder: Path, environ: Mapping[str, str], log: TextIO, environment: BuiltEnvironment
) -> None:
    last, told = "", time.monotonic()
    with subprocess.Popen(
        argv, cwd=folder, env=dict(environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        encoding="utf-8", errors="replace",
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            for line in process.stdout:
                log.write(line)
                text = line.strip()
                if text.startswith(_NEWS) and time.monotonic() - told > _PAUSE:
                    told = time.monotonic()
                    tell(text)
                if text and not text.startswith(_ASIDES):
                    last = text.removeprefix("ERROR: ").removeprefix("error: ")
        except BaseException:
            process.terminate()
            raise
    code = process.returncode
    if code:
        log_name = f"{environment.folder}.log"
        raise TargetError(
            f"the environment of `{environment.requirements}` cannot be built: {last or f'exit code {code}'}",
            hint=f"correct the file, or run without `build_environment`; the full output is in `{log_name}`",
            code="CT953",
        )
