"""Compare cloudtrain's requests with those of the real SageMaker SDKs, in an environment for each.

    python tools/test_parity.py [2|3 ...] [pytest argument ...]        both unless given

Versions 2 and 3 of the SDK are different packages of the same name, and neither may be installed beside PyTorch's own
pins; so each has `.venv-sagemaker-v2` or `.venv-sagemaker-v3`, made on the first run.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from test_pythons import interpreter

ROOT = Path(__file__).parent.parent
MODULES = {"2": "sagemaker.estimator", "3": "sagemaker.train.model_trainer"}
"""Version to a module that only it has."""

PYTHONS = ("3.11", "3.12", "3.10")
"""Both SDKs run on these; the first that is installed is taken."""


def environment(sdk: str) -> Path:
    """The interpreter of the SDK's environment, which is made anew when its requirements have changed."""
    folder = ROOT / f".venv-sagemaker-v{sdk}"
    requirements = ROOT / "tests" / "parity" / f"requirements-v{sdk}.txt"
    python, stamp = folder / "bin" / "python", folder / ".installed"
    wanted = hashlib.sha256(requirements.read_bytes() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        base = next((found for version in PYTHONS if (found := interpreter(version))), sys.executable)
        subprocess.run([base, "-m", "venv", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", str(requirements), "-e", f"{ROOT}[test]"], check=True)
        stamp.write_text(wanted)
    return python


def run_tests(sdk: str, arguments: list[str]) -> int:
    """Run what compares with that version; the exit code of pytest. An SDK that does not import is an error."""
    python = environment(sdk)
    subprocess.run([str(python), "-c", f"import {MODULES[sdk]}"], check=True, capture_output=True)
    files = sorted(str(file) for file in (ROOT / "tests" / "parity").glob(f"test_*_v{sdk}.py"))
    command = [str(python), "-m", "pytest", "-q", "--show-capture=no", *files, *arguments]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def main() -> int:
    """The worst exit code of the two suites."""
    versions = [argument for argument in sys.argv[1:] if argument in MODULES] or list(MODULES)
    others = [argument for argument in sys.argv[1:] if argument not in MODULES]
    worst = 0
    for sdk in versions:
        print(f"parity with version {sdk} of the SageMaker SDK", flush=True)
        worst = max(worst, run_tests(sdk, others))
    return worst


if __name__ == "__main__":
    sys.exit(main())
