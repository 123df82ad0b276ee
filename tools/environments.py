"""Make the virtual environments of this checkout: `.venv`, and others for packages that cannot live with it.

    python tools/environments.py NAME ...      makes those that are missing or out of date

The packages are installed once per machine, in a folder of $XDG_CACHE_HOME/cloudtrain-environments (~/.cache) that is
named by a hash of what it is made from. A checkout gets a copy whose files are links to those, and the checkout itself
as an editable package. uv installs, where it can be had; pip does otherwise, and pip always installs PyTorch, because
its settings may name a folder with a small build. Several of these programs may run at once, in one checkout or in many.
"""

from __future__ import annotations

import argparse
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

from debian_python import unpack

ROOT = Path(__file__).parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cloudtrain-environments"
KEPT_FOR = 14 * 24 * 3600
"""Seconds after which an environment that no checkout has asked for is removed."""

PYTHONS = ("3.11", "3.12", "3.10")
"""Python versions for which all packages have wheels. The first installed one is used."""

PYTORCH = "constraints.txt"
NEWEST = {
    "newest": "3.12",
    "newest-sagemaker-v2": "",
    "newest-sagemaker-v3": "",
    "newest-azureml": "",
    "newest-torch": "",
}
"""The environments of the newest packages, and their Python. tools/versions.py asks the registry for what is in them."""
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
    "3.12": Environment(".venv-3.12", extras="test", python="3.12"),
    "3.13": Environment(".venv-3.13", extras="test", python="3.13"),
    "3.14": Environment(".venv-3.14", extras="test", python="3.14"),
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
        for version in ("2.8", "2.11", "2.13", "2.15")
    },
}


def newest_list(name: str) -> str:
    """Return the file, relative to the checkout, that lists the packages of an environment of NEWEST."""
    return f"build/{name}.txt"


for _name, _python in NEWEST.items():
    ENVIRONMENTS[_name] = Environment(
        f".venv-{_name}",
        requirements=(newest_list(_name),),
        extras="" if _name == "newest-torch" else "test",
        more=("--no-deps", "monai==1.6.1") if _name == "newest-torch" else (),
        python=_python,
    )


def make_environment(name: str) -> Path:
    """Return the interpreter of an environment of this checkout, after making it if it is missing or out of date."""
    environment = ENVIRONMENTS[name]
    place = ROOT / environment.folder
    if place.is_symlink():
        raise SystemExit(
            f"{place} is a link to {place.readlink()}, whose packages this would change; "
            f"`rm {place}` removes the link"
        )
    with _locked(ROOT / "build" / f"{environment.folder}.lock", str(place)):
        return _up_to_date(name, environment, place)


def _up_to_date(name: str, environment: Environment, place: Path) -> Path:
    """Do the work of `make_environment`, while no other process works on this environment of this checkout."""
    python, stamp = place / "bin" / "python", place / f".installed-{name}"
    base = _base_of(environment)
    key = _key_of(environment, base)
    if stamp.exists() and stamp.read_text() == key:
        return python

    began = time.monotonic()
    if environment.folder == ".venv" and python.exists():  # it may hold what its user has added
        _install(python, environment)
    else:
        copy_environment(_kept(name, environment, base, key), place)
        # pyvenv.cfg, and the scripts that activate it, with this place in the quotes of their shell
        subprocess.run([base, "-m", "venv", "--without-pip", str(place)], check=True)
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


def debian_python(version: str) -> str | None:
    """Return an interpreter of that version from Debian's packages, for this machine; None where it cannot be had."""
    with _locked(CACHE / f"python-{version}.lock", f"Python {version}"):
        return unpack(version, CACHE / f"python-{version}", find_uv())


def _base_of(environment: Environment) -> str:
    """Return the interpreter that the environment is made with."""
    if environment.folder == ".venv":
        return os.path.realpath(sys.executable) if sys.prefix == sys.base_prefix else _base_python()
    versions = (environment.python,) if environment.python else PYTHONS
    found = next((path for version in versions if (path := interpreter(version))), None)
    if found is None and environment.python:
        found = debian_python(environment.python)
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
    with _locked(CACHE / f"{name}.lock", name):
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
    """Remove old environments of this name, and what was not finished: whoever holds the lock of the name makes it
    anew. The environment `llm-pinned` is not one of `llm`."""
    for place in CACHE.glob(f"{name}-{'[0-9a-f]' * 16}"):
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
    if environment.oldest and not _install_oldest(python, environment.oldest):
        print("without uv this environment has the newest packages", file=sys.stderr, flush=True)
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


def _install_oldest(python: Path, extras: str) -> bool:
    """Install the lowest versions that the project declares; say whether uv, which alone knows how, did it."""
    return _install_with_uv(python, "--resolution", "lowest-direct", f"{ROOT}[{extras}]")


def _install_with_uv(python: Path, *arguments: str) -> bool:
    program = find_uv()
    if program is None:
        return False
    command = [program, "pip", "install", "-q", "--python", str(python), *arguments]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def _pip(python: Path, *arguments: str, uv: bool = True) -> None:
    """Install packages with uv, or with pip where uv is not wanted, cannot be had, or fails. pip's settings may allow
    no version as new as PyTorch's newest; then uv, which has other ones, is asked in spite of `uv`."""
    if uv and _install_with_uv(python, *arguments):
        return
    if uv:
        print("uv cannot install them; pip does", file=sys.stderr, flush=True)
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
    if subprocess.run(command, cwd=ROOT, check=False).returncode == 0:
        return
    if uv or not _install_with_uv(python, *arguments):
        raise SystemExit(f"cannot be installed: {' '.join(arguments)}")


@cache
def find_uv() -> str | None:
    """Return the program uv: the machine's, or one that pip installs in the folder of environments; None without it."""
    if found := shutil.which("uv"):
        return found
    place = CACHE / "uv"
    with _locked(CACHE / "uv.lock", "uv"):
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


def copy_environment(source: Path, place: Path) -> None:
    """Copy an environment. Files are links to the same content; programs get this place in their first line. A copy
    that was interrupted is not taken for an environment, because it has another name."""
    unfinished = place.with_name(f"{place.name}-unfinished")
    for old in (unfinished, place):
        if old.exists():
            shutil.rmtree(old)
    shutil.copytree(
        source,
        unfinished,
        symlinks=True,
        copy_function=copy_linked,
        ignore=shutil.ignore_patterns(".complete", "pyvenv.cfg"),
    )
    for file in (unfinished / "bin").iterdir():
        if not file.is_symlink() and str(source).encode() in (content := file.read_bytes()):
            mode = file.stat().st_mode
            file.unlink()  # the content belongs to the machine's environment too
            file.write_bytes(_moved(content, str(source), str(place)))
            file.chmod(mode)
    unfinished.rename(place)


def _moved(program: bytes, source: str, place: str) -> bytes:
    """Return a program of an environment for another place. The kernel reads an interpreter with a space, or with more
    than 127 letters, in no first line: there the shell reads it, in what is an empty text for Python."""
    first, _, rest = program.partition(b"\n")
    program = program.replace(source.encode(), place.encode())
    first = first.replace(source.encode(), place.encode())
    if not first.startswith(b"#!") or (b" " not in first and len(first) <= 127):
        return program
    interpreter = first.removeprefix(b"#!").strip()
    trampoline = b"#!/bin/sh\n'''exec' \"%s\" \"$0\" \"$@\"\n' '''\n" % interpreter
    return trampoline + rest.replace(source.encode(), place.encode())


def copy_linked(source: str, destination: str) -> None:
    """Copy a file as a link to the same content. Whoever changes it must unlink it first."""
    try:
        os.link(source, destination)
    except OSError:  # on another disk
        shutil.copy2(source, destination)


@contextmanager
def _locked(file: Path, what: str) -> Iterator[None]:
    """Hold an exclusive lock, which ends with this process. Say so when another process holds it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process works on {what}; waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str]) -> int:
    """Make environments, one after the other."""
    description = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description[0],
        epilog=description[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names",
        nargs="+",
        choices=ENVIRONMENTS,
        metavar="NAME",
        help=f"one of {', '.join(ENVIRONMENTS)}",
    )
    for name in parser.parse_args(arguments).names:
        make_environment(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
