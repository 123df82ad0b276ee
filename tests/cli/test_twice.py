"""A value that one command line sets in two places is refused: which of them would win is not said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli

SCRIPT = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--a", type=int)
parser.add_argument("--b", type=int)
parser.parse_args()
"""
EACH = ("--each", "hyperparameters.a=1,2")

TWICE = {
    "a value and values": ("job.yaml", "--set", "hyperparameters.a=1", *EACH),
    "all values and values": ("job.yaml", "--set", 'hyperparameters={"a": 1}', *EACH),
    "arguments and values": ("job.yaml", "--set", 'arguments=["--a", "7"]', *EACH),
    "an argument in one word": ("job.yaml", "--set", "arguments=[--a=7]", *EACH),
    "a script's argument and values": (*EACH, "train.py", "--a", "3"),
    "instances": ("job.yaml", "--instances", "2", "--set", "resources.instance_count=3"),
    "processes": ("job.yaml", "--nproc", "2", "--set", "distribution.processes_per_instance=3"),
    "a GPU": ("--gpu", "H100", "--set", "resources.gpu=A100", "train.py"),
}
ONCE = {
    "the file's value": ("job.yaml", *EACH),
    "another value": ("job.yaml", "--set", "hyperparameters.b=1", *EACH),
    "other values": ("job.yaml", "--set", 'hyperparameters={"b": 1}', *EACH),
    "another argument": (*EACH, "train.py", "--b", "3"),
    "a count of the other kind": ("job.yaml", "--instances", "1", "--set", "max_runtime=1h"),
}


@pytest.fixture(autouse=True)
def project(clean_environment: Path) -> None:
    (clean_environment / "train.py").write_text(SCRIPT)
    job = "name: j\nentry_point: train.py\nhyperparameters: {a: 5}\n"
    (clean_environment / "job.yaml").write_text(job)


@pytest.mark.parametrize("case", TWICE)
def test_twice(cli: Cli, case: str) -> None:
    result = cli("plan", *TWICE[case])
    assert result.code == 2
    assert "[CT069]" in result.err


@pytest.mark.parametrize("case", ONCE)
def test_once(cli: Cli, case: str) -> None:
    assert cli("plan", *ONCE[case]).code == 0
