"""Virtual environments beside `.venv`, for packages that cannot live with the others or that few tests need."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from test_pythons import interpreter

ROOT = Path(__file__).parent.parent

PYTHONS = ("3.11", "3.12", "3.10")
"""Python versions for which all packages have wheels. The first installed one is used."""


def environment(folder: str, made_from: Sequence[Path], *installs: Sequence[str]) -> Path:
    """Return the interpreter of an environment in the repository's folder `folder`. The environment is made again when
    one of the files that it is `made_from` has changed. `installs` are pip's arguments, one call after the other.
    """
    place = ROOT / folder
    python, stamp = place / "bin" / "python", place / ".installed"
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in made_from)).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        base = next((found for version in PYTHONS if (found := interpreter(version))), sys.executable)
        subprocess.run([base, "-m", "venv", "--clear", str(place)], check=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile"]
        for arguments in installs:
            subprocess.run([*pip, *arguments], cwd=ROOT, check=True)
        compile_all = [str(python), "-m", "compileall", "-qq", "-j", "0", str(place / "lib")]  # pip uses one core
        subprocess.run(compile_all, check=False)  # a package may hold files of other Pythons, which do not compile
        stamp.write_text(wanted)
    return python
