"""Compare cloudtrain's requests with those of the real SDKs, in an environment for each, made on the first run.

    python tools/run/parity.py [2|3|azureml ...] [pytest argument ...]        all unless given
    python tools/run/parity.py [2|3|azureml ...] --first                      the first parameter set of each test
    python tools/run/parity.py [2|3|azureml ...] --newest                     with the newest SDKs of these major versions

Versions 2 and 3 of the SageMaker SDK are different packages of the same name, and neither may be installed beside
PyTorch's own pins. Azure ML's brings 63 packages, and pins of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import versions
from environments import ROOT, make_environment


class Sdk(NamedTuple):
    """An SDK: its environment, the suffix of its files in tests/parity, and a module that only it has."""

    environment: str
    ending: str
    module: str


SDKS = {
    "2": Sdk("sagemaker-v2", "v2", "sagemaker.estimator"),
    "3": Sdk("sagemaker-v3", "v3", "sagemaker.train.model_trainer"),
    "azureml": Sdk("azureml", "azureml", "azure.ai.ml"),
}


def interpreter_of(sdk: Sdk, newest: bool) -> Path:
    """Return the interpreter of the SDK's environment. An SDK that does not import is an error."""
    environment = sdk.environment
    if newest:
        environment = f"newest-{environment}"
        versions.write(environment)
    python = make_environment(environment)
    subprocess.run([str(python), "-c", f"import {sdk.module}"], check=True, capture_output=True)
    return python


def run_tests(sdk: Sdk, arguments: list[str], newest: bool) -> int:
    """Run the tests that compare with that SDK. Return pytest's exit code."""
    python = interpreter_of(sdk, newest)
    files = sorted(
        str(file) for file in (ROOT / "tests" / "parity").glob(f"test_*_{sdk.ending}.py")
    )
    command = [
        str(python),
        "-m",
        "pytest",
        "-q",
        "-n",
        os.environ.get("WORKERS", "2"),
        "--show-capture=no",
        *files,
        *arguments,
    ]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def main() -> int:
    """Run the suites. Return their worst exit code."""
    names = [argument for argument in sys.argv[1:] if argument in SDKS] or list(SDKS)
    newest = "--newest" in sys.argv
    others = [argument for argument in sys.argv[1:] if argument not in (*SDKS, "--newest")]
    worst = 0
    for name in names:
        print(f"parity with {SDKS[name].module}", flush=True)
        worst = max(worst, run_tests(SDKS[name], others, newest))
    return worst


if __name__ == "__main__":
    sys.exit(main())
