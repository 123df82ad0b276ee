"""Run the training scripts that need more than torch, each with an environment of its own, made on the first run.

    python tools/run/training_scripts.py [deepspeed|tensorflow ...] [pytest argument ...]        all unless given

pytest runs here; the scripts are started with the other environment's interpreter, which a variable names. TensorFlow
alone is 1.6 GB.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from environments import ROOT, make_environment

TESTS = ROOT / "tests" / "training_scripts"


class Suite(NamedTuple):
    """A script's tests: their files, the module that must import in the environment of the suite's name, and what the
    variable for its interpreter is named after, if not after the suite."""

    tests: str
    module: str
    word: str = ""


_LLM = "test_llm_finetune.py test_gpt_transformers.py"
_COMMANDS = "test_command_runs.py::test_a_command_of"
_USERS = "../estimate/test_users.py"

SUITES = {
    "deepspeed": Suite(f"test_cifar_deepspeed.py {_COMMANDS}_deepspeed_runs", "deepspeed"),
    "tensorflow": Suite(f"test_mnist_tensorflow.py {_COMMANDS}_tensorflow_runs", "tensorflow"),
    "integrations": Suite(f"test_integrations.py test_trainer_examples.py {_USERS}", "lightning"),
    "llm": Suite(f"{_LLM} test_trainer_examples.py {_COMMANDS}_llm_finetune_runs {_USERS}", "trl"),
    "llm-pinned": Suite(f"{_LLM} test_trainer_examples.py", "trl", "llm"),
}


def interpreter_of(name: str) -> Path:
    """Return the interpreter of the suite's environment. A package that does not import is an error, because the tests
    would be skipped."""
    python = make_environment(name)
    subprocess.run(
        [str(python), "-c", f"import {SUITES[name].module}"], check=True, capture_output=True
    )
    return python


def run_tests(name: str, arguments: list[str]) -> int:
    """Run a suite. Return pytest's exit code."""
    python = interpreter_of(name)
    # what DeepSpeed compiles at its first start stays there
    extensions = python.parents[1] / "extensions"
    variables = {
        f"CLOUDTRAIN_{(SUITES[name].word or name).upper()}_PYTHON": str(python),
        "TORCH_EXTENSIONS_DIR": str(extensions),
    }
    files = [str(TESTS / file) for file in SUITES[name].tests.split()]
    command = [sys.executable, "-m", "pytest", "-q", *files, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, check=False
    ).returncode


def main() -> int:
    """Run the suites. Return their worst exit code."""
    names = [argument for argument in sys.argv[1:] if argument in SUITES] or list(SUITES)
    others = [argument for argument in sys.argv[1:] if argument not in SUITES]
    worst = 0
    for name in names:
        print(f"training scripts with {name}", flush=True)
        worst = max(worst, run_tests(name, others))
    return worst


if __name__ == "__main__":
    sys.exit(main())
