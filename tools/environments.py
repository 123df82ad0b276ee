"""Make the virtual environments of this checkout: `.venv`, and others for packages that cannot live with it.

    python tools/environments.py NAME ...      makes those that are missing or out of date
    python tools/environments.py --pythons     the names of those for the oldest supported Python, if it is installed

The packages are installed once per machine, in a folder of $XDG_CACHE_HOME/cloudtrain-environments (~/.cache) that is
named by a hash of what it is made from. A checkout gets a copy whose files are links to those, and the checkout itself
as an editable package. uv installs, where it can be had; pip does otherwise, and pip always installs PyTorch, because
its settings may name a folder with a small build.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cloudtrain-environments"
KEPT_FOR = 14 * 24 * 3600
"""Seconds after which an environment that no checkout has asked for is removed."""

PYTHONS = ("3.11", "3.12", "3.10")
"""Python versions for which all packages have wheels. The first installed one is used."""

PYTORCH = "constraints.txt"
_TESTS = "tests/training_scripts"
USERS = "sagemaker,azureml,mpi,sweeps,uv"
"""The extras that a user installs, but for PyTorch."""
_LLM = "training_scripts/llm_finetune"


@dataclass(frozen=True)
class Environment:
    """What is installed, in this order: PyTorch, requirements files, then the project with its extras."""

    folder: str
    torch: str = ""
    """A requirement, or `constraints.txt`."""
    requirements: tuple[str, ...] = ()
    extras: str = ""
    """The project's extras; without them, it is not installed."""
    more: tuple[str, ...] = ()
    """Arguments of a last `pip install`."""
    python: str = ""
    """The version of Python; the first of PYTHONS unless given."""
    oldest: str = ""
    """Extras that come first, with the oldest packages that pyproject.toml allows. pip cannot choose
    these, and takes the newest where uv cannot be had."""


ENVIRONMENTS = {
    "dev": Environment(".venv", PYTORCH, extras="torch,dev"),
    "demo": Environment(".venv", PYTORCH, extras="torch"),
    "docs": Environment(".venv", extras="docs"),
    "3.10": Environment(".venv-3.10", extras="test", python="3.10", oldest=USERS),
    "3.13": Environment(".venv-3.13", extras="test", python="3.13"),
    "sagemaker-v2": Environment(
        ".venv-sagemaker-v2", requirements=("tests/parity/requirements-v2.txt",), extras="test"
    ),
    "sagemaker-v3": Environment(
        ".venv-sagemaker-v3", requirements=("tests/parity/requirements-v3.txt",), extras="test"
    ),
    "azureml": Environment(
        ".venv-azureml", requirements=("tests/parity/requirements-azureml.txt",), extras="test"
    ),
    # PyTorch first and by its exact pin: DeepSpeed would take any.
    "deepspeed": Environment(".venv-deepspeed", PYTORCH, (f"{_TESTS}/requirements-deepspeed.txt",)),
    "integrations": Environment(
        ".venv-integrations", PYTORCH, (f"{_TESTS}/requirements-integrations.txt",)
    ),
    "llm": Environment(".venv-llm", PYTORCH, (f"{_TESTS}/requirements-llm.txt",)),
    "llm-pinned": Environment(
        ".venv-llm-pinned",
        PYTORCH,
        (
            f"{_LLM}/requirements.txt",
            f"{_LLM}/requirements-prepare.txt",
            f"{_LLM}/requirements-qlora.txt",
        ),
    ),
    "tensorflow": Environment(
        ".venv-tensorflow", requirements=(f"{_TESTS}/requirements-tensorflow.txt",)
    ),
    **{
        f"torch-{version}": Environment(
            f".venv-torch-{version}",
            f"torch=={version}.0",
            (f"{_TESTS}/requirements-torch.txt",),
            more=("--no-deps", "monai==1.6.1"),
        )
        for version in ("2.8", "2.11", "2.13")
    },
}


def make_environment(name: str) -> Path:
    """Return the interpreter of an environment of this checkout, after making it if it is missing or out of date."""
    environment = ENVIRONMENTS[name]
    place = ROOT / environment.folder
    python, stamp = place / "bin" / "python", place / f".installed-{name}"
    base = _base_of(environment)
    key = _key_of(environment, base)
    if not stamp.exists() or stamp.read_text() != key:
        began = time.monotonic()
        if environment.folder == ".venv" and python.exists():  # it may hold what its user has added
            _install(python, environment)
        else:
            _copy(_kept(name, environment, base, key), place)
            if environment.extras:
                _pip(python, "--no-deps", "-e", str(ROOT))
        stamp.write_text(key)
        print(f"{environment.folder}: {time.monotonic() - began:.0f} s", flush=True)
    return python


def interpreter(version: str) -> str | None:
    """Return an interpreter of that version that really starts, or None."""
    shim = shutil.which(f"python{version}")
    roots = [
        os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"),
        *([Path(shim).parent.parent] if shim else []),
    ]
    installed = [
        path
        for root in roots
        for path in sorted(Path(root, "versions").glob(f"{version}.*/bin/python"))
    ]
    for candidate in [*map(str, installed), shim]:
        if (
            candidate
            and subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode
            == 0
        ):
            return candidate
    return None


def _base_of(environment: Environment) -> str:
    """Return the interpreter that the environment is made with."""
    if environment.folder == ".venv":
        return os.path.realpath(sys.executable) if sys.prefix == sys.base_prefix else _base_python()
    versions = (environment.python,) if environment.python else PYTHONS
    found = next((path for version in versions if (path := interpreter(version))), None)
    if found is None and environment.python:
        raise SystemExit(f"Python {environment.python} is not installed here")
    return found or sys.executable


def _base_python() -> str:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return str(Path(sys.base_prefix) / "bin" / version)


def _key_of(environment: Environment, base: str) -> str:
    digest = hashlib.sha256(repr(environment).encode())
    files = [*environment.requirements, *([PYTORCH] if environment.torch == PYTORCH else [])]
    for file in [*files, *(["pyproject.toml"] if environment.extras else [])]:
        digest.update((ROOT / file).read_bytes())
    version = subprocess.run([base, "-VV"], capture_output=True, text=True, check=True).stdout
    digest.update(f"{os.path.realpath(base)}{version}{sysconfig.get_platform()}".encode())
    return digest.hexdigest()[:16]


def _kept(name: str, environment: Environment, base: str, key: str) -> Path:
    """Return the machine's environment with these packages, after making it if there is none."""
    place = CACHE / f"{name}-{key}"
    with _locked(CACHE / f"{name}.lock"):
        done = place / ".complete"
        if not done.exists():
            _remove_unused(name)
            subprocess.run([base, "-m", "venv", "--clear", str(place)], check=True)
            python = place / "bin" / "python"
            _install(python, environment)
            if environment.extras:
                uninstall = [str(python), "-m", "pip", "uninstall", "-q", "-y", "cloudtrain"]
                subprocess.run(uninstall, check=True)
        done.touch()  # when it was last asked for
    return place


def _remove_unused(name: str) -> None:
    for place in CACHE.glob(f"{name}-*"):
        used = place / ".complete"
        if not used.exists() or time.time() - used.stat().st_mtime > KEPT_FOR:
            shutil.rmtree(place, ignore_errors=True)


def _install(python: Path, environment: Environment) -> None:
    if environment.torch:
        torch = ["-r", str(ROOT / PYTORCH)] if environment.torch == PYTORCH else [environment.torch]
        _pip(python, *torch, uv=False)
    project = ["-e", f"{ROOT}[{environment.extras}]"] if environment.extras else []
    pinned = ["-c", str(ROOT / PYTORCH)] if environment.torch == PYTORCH else []
    files = [argument for file in environment.requirements for argument in ("-r", str(ROOT / file))]
    if environment.oldest and _uv():
        _pip(python, "--resolution", "lowest-direct", f"{ROOT}[{environment.oldest}]")
    _pip(python, *pinned, *files, *project)
    if environment.more:
        _pip(python, *environment.more)
    # many programs import it; elsewhere, pytest compiles what it uses
    if environment.torch or not environment.extras:
        compile_all = [
            str(python),
            "-m",
            "compileall",
            "-qq",
            "-j",
            "0",
            str(python.parents[1] / "lib"),
        ]
        # a package may hold files of other Pythons, which do not compile
        subprocess.run(compile_all, check=False)


def _pip(python: Path, *arguments: str, uv: bool = True) -> None:
    """Install packages with uv, or with pip where uv is not wanted, cannot be had, or fails."""
    program = _uv() if uv else None
    if program is not None:
        command = [program, "pip", "install", "-q", "--python", str(python), *arguments]
        if subprocess.run(command, cwd=ROOT, check=False).returncode == 0:
            return
        print("uv failed; pip installs instead", file=sys.stderr, flush=True)
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--no-compile",
        *arguments,
    ]
    subprocess.run(command, cwd=ROOT, check=True)


@cache
def _uv() -> str | None:
    """Return the program uv: the machine's, or one that pip installs in the folder of environments; None without it."""
    if found := shutil.which("uv"):
        return found
    place = CACHE / "uv"
    with _locked(CACHE / "uv.lock"):
        program = place / "bin" / "uv"
        if not program.exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
            install = [
                str(place / "bin" / "python"),
                "-m",
                "pip",
                "install",
                "-q",
                "--disable-pip-version-check",
                "uv",
            ]
            subprocess.run(install, check=False)
        return str(program) if program.exists() else None


def _copy(source: Path, place: Path) -> None:
    """Copy an environment. Files are links to the same content; programs get this place in their first line."""
    if place.exists():
        shutil.rmtree(place)
    shutil.copytree(
        source,
        place,
        symlinks=True,
        copy_function=_link,
        ignore=shutil.ignore_patterns(".complete"),
    )
    for file in [*(place / "bin").iterdir(), place / "pyvenv.cfg"]:
        if not file.is_symlink() and str(source).encode() in (content := file.read_bytes()):
            mode = file.stat().st_mode
            file.unlink()  # the content belongs to the machine's environment too
            file.write_bytes(content.replace(str(source).encode(), str(place).encode()))
            file.chmod(mode)


def _link(source: str, destination: str) -> None:
    try:
        os.link(source, destination)
    except OSError:  # on another disk
        shutil.copy2(source, destination)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str]) -> int:
    """Make environments, one after the other."""
    if arguments == ["--pythons"]:
        print(*(version for version in ("3.10",) if interpreter(version)))
        return 0
    for name in arguments:
        make_environment(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
