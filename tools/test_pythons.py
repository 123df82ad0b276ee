"""Run the core tests (no torch) on the oldest and the newest supported Python, where these are installed.

    python tools/test_pythons.py [-n WORKERS] [--first] [VERSION ...]        for example: 3.10 3.13

--first: only the first parameter set of each test, and no slow ones. Interpreters are looked for on the PATH and under
pyenv. Each gets its own virtual environment, `.venv-3.10`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from environments import ROOT, interpreter, make_environment

OLDEST_AND_NEWEST = ("3.10", "3.13")
ELSEWHERE = "torch or mpi or wheel or notebook or parity or awscli or lifecycle or slurm"
FIRST = ("-m", f"not ({ELSEWHERE} or slow)", "--first")
CORE = ("-m", f"not ({ELSEWHERE})")


def run_tests(version: str, arguments: list[str]) -> int:
    """Install cloudtrain with its test dependencies, and run the core tests. Return pytest's exit code."""
    python = str(make_environment(version))
    return subprocess.run(
        [python, "-m", "pytest", "-q", *arguments], cwd=ROOT, check=False
    ).returncode


def main() -> int:
    """Run the suites. Exit code 1 when one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-n", "--workers", type=int, default=2)
    parser.add_argument("--first", action="store_true")
    parser.add_argument("versions", nargs="*", default=OLDEST_AND_NEWEST)
    options = parser.parse_args()
    worst = 0
    for version in options.versions:
        if interpreter(version) is None:
            print(f"Python {version} is not installed here; its core tests are not run", flush=True)
            continue
        print(f"core tests on Python {version}", flush=True)
        worst = max(
            worst,
            run_tests(version, ["-n", str(options.workers), *(FIRST if options.first else CORE)]),
        )
    return min(worst, 1)


if __name__ == "__main__":
    sys.exit(main())
