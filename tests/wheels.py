"""Small wheels, and a program that stands for uv."""

from __future__ import annotations

import hashlib
import os
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

from tests.programs import write_program

_UV = """\
import json, os, subprocess, sys, time
arguments = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(arguments[0] + "\\n")
with open({log!r} + ".json", "a") as log:
    log.write(json.dumps(arguments) + "\\n")
if os.path.exists({hold!r}):
    time.sleep(600)
base = {python!r}
if arguments[0] == "venv":
    assert arguments[1] == "--python", arguments
    sys.exit(subprocess.call([arguments[2], "-m", "venv", "--without-pip", arguments[3]]))
assert arguments[:3] == ["pip", "install", "--python"], arguments
words = [word for word in arguments[4:] if word != "--compile-bytecode"]
sys.exit(subprocess.call([base, "-m", "pip", "--python", arguments[3], "install", *words]))
"""
"""As uv does, with venv and pip. It notes what it is asked for, and hangs while a file says so."""


def write_wheel(
    folder: Path, name: str, version: str, needs: Iterable[str] = (), code: str | None = None
) -> str:
    """Write a wheel with one module, and return its SHA-256."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    required = "".join(f"Requires-Dist: {item}\n" for item in needs)
    files = {
        f"{module}.py": f"__version__ = {version!r}\n" if code is None else code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(
            f"{info}/RECORD", "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
        )
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def write_uv(folder: Path) -> dict[str, str]:
    """Write a `uv` into the folder. It writes `log` and `log.json`, and `hold` makes it hang. Return the variables with
    which a program finds it, and may use it although pip has settings on the machine of the tests."""
    folder.mkdir()
    log = str(folder / "log")
    hold = str(folder / "hold")
    write_program(folder / "uv", _UV.format(python=sys.executable, log=log, hold=hold))
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "UV_OFFLINE": "1"}
