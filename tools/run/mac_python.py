"""An environment whose interpreter lacks what a Mac's lacks: `.venv-mac`, with the packages of `.venv`.

tests/mac.py says what is missing. It becomes a module of the package `encodings` in a copy of the standard library. Every
interpreter imports this package first, and it sees to the import of the module as soon as files can be opened. Options
such as `-I` and `-S`, and an empty environment, change nothing about that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from environments import ROOT, copy_environment, copy_linked

PLACE = ROOT / "build" / "mac"
COMMANDS = PLACE / "commands"
"""A folder with the programs of this machine that a Mac has too."""

_ABSENT = frozenset(
    "timeout setsid nproc flock stdbuf sha1sum sha256sum sha512sum md5sum tac shuf numfmt realpath "
    "chrt taskset ionice prlimit numactl lscpu unshare nsenter setpriv runuser free ss ip getent "
    "ldd ldconfig pidof systemctl systemd-run loginctl journalctl".split()
)
"""Programs of Linux that a Mac does not have."""

_MODULE = "_like_a_mac"
_HOOK = f"""

import sys as _sys


class _Later:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        import builtins

        if hasattr(builtins, "open"):
            _sys.meta_path.remove(cls)
            import encodings.{_MODULE}

            if name in _sys.modules:  # else it would be made a second time, as on Linux
                _sys.modules[name].__spec__ = type(_sys.__spec__)(name, cls)
                return _sys.modules[name].__spec__

    @staticmethod
    def create_module(spec):
        return _sys.modules[spec.name]

    @staticmethod
    def exec_module(module):
        pass


_sys.meta_path.insert(0, _Later)
"""


def make() -> Path:
    """Make the environment anew from the one that runs this, and return its interpreter."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    program = _make_interpreter(version)

    place = ROOT / ".venv-mac"
    copy_environment(Path(sys.prefix), place)
    for link in (place / "bin").glob("python*"):
        link.unlink()
    subprocess.run([str(program), "-m", "venv", "--without-pip", str(place)], check=True)
    _link_commands()
    return place / "bin" / "python"


def _make_interpreter(version: str) -> Path:
    """Copy the interpreter and its standard library, with the hook in it."""
    shutil.rmtree(PLACE, ignore_errors=True)
    library = PLACE / "python" / "lib" / version
    left_out = shutil.ignore_patterns("site-packages", "test", "__pycache__")
    shutil.copytree(
        Path(os.__file__).parent,
        library,
        symlinks=True,
        copy_function=copy_linked,
        ignore=left_out,
    )
    shutil.copy2(ROOT / "tests" / "mac.py", library / "encodings" / f"{_MODULE}.py")
    encodings = library / "encodings" / "__init__.py"
    text = encodings.read_text()
    encodings.unlink()  # the content belongs to the machine's interpreter too
    encodings.write_text(text + _HOOK)

    program = PLACE / "python" / "bin" / version
    program.parent.mkdir()
    shutil.copy2(Path(sys.base_prefix) / "bin" / version, program)
    return program


def _link_commands() -> None:
    """Fill COMMANDS with links. Of two programs with one name, the first on the PATH counts."""
    COMMANDS.mkdir()
    for folder in os.get_exec_path():
        if not os.path.isdir(folder):
            continue
        for program in os.scandir(folder):
            link = COMMANDS / program.name
            if program.name not in _ABSENT and not os.path.lexists(link):
                link.symlink_to(os.path.abspath(program.path))
