"""Run the core tests (no torch) on the oldest and the newest supported Python, where these are installed.

    python tools/test_pythons.py [-n WORKERS] [VERSION ...]        for example: 3.10 3.13

Interpreters are looked for on the PATH and under pyenv. Each gets its own virtual environment, `.venv-3.10`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
OLDEST_AND_NEWEST = ("3.10", "3.13")
ELSEWHERE = "torch or mpi or wheel or notebook or parity or awscli or lifecycle or slurm"
CORE = ("-m", f"not ({ELSEWHERE})")


def interpreter(version: str) -> str | None:
    """Return an interpreter of that version that really starts, or None."""
    shim = shutil.which(f"python{version}")
    roots = [os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), *([Path(shim).parent.parent] if shim else [])]
    installed = [path for root in roots for path in sorted(Path(root, "versions").glob(f"{version}.*/bin/python"))]
    for candidate in [*map(str, installed), shim]:
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


def run_tests(version: str, python: str, workers: int) -> int:
    """Install cloudtrain with its test dependencies, and run the core tests. Return pytest's exit code."""
    environment = ROOT / f".venv-{version}"
    own = str(environment / "bin" / "python")
    if not Path(own).exists():
        subprocess.run([python, "-m", "venv", str(environment)], check=True)
    pip = [own, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "-e", f"{ROOT}[test]"], check=True)
    return subprocess.run([own, "-m", "pytest", "-q", "-n", str(workers), *CORE], cwd=ROOT, check=False).returncode


def main() -> int:
    """Run the suites. Exit code 1 when one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-n", "--workers", type=int, default=2)
    parser.add_argument("versions", nargs="*", default=OLDEST_AND_NEWEST)
    options = parser.parse_args()
    worst = 0
    for version in options.versions:
        python = interpreter(version)
        if python is None:
            print(f"Python {version} is not installed here; its core tests are not run", flush=True)
            continue
        print(f"core tests on Python {version}", flush=True)
        worst = max(worst, run_tests(version, python, options.workers))
    return min(worst, 1)


if __name__ == "__main__":
    sys.exit(main())
