"""What `check` cannot know, it says: in text and in JSON, with what was not asked and why."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from cloudtrain.rules.engine import rule_named
from tests.cli.conftest import Cli
from tests.ports import free_port

pytestmark = pytest.mark.lifecycle

JOB = """\
name: digits
entry_point: train.py
environment: {framework: pytorch, version: '2.10'}
resources: {instance_type: {sagemaker: ml.m5.xlarge, azureml: Standard_D2s_v3}}
max_runtime: 1h
"""
SWEEP = """\
kind: sweep
name: sizes
strategy: grid
job:
  entry_point: train.py
  environment: {framework: pytorch, version: '2.10'}
  resources: {instance_type: {sagemaker: ml.m5.xlarge}}
  max_runtime: 1h
search: {width: [1, 2]}
"""
ACCOUNTS = """\
[sagemaker]
role = "arn:aws:iam::123456789012:role/SageMakerRole"
region = "eu-west-1"
[azureml]
subscription_id = "11111111-1111-1111-1111-111111111111"
resource_group = "rg"
workspace = "ws"
[slurm]
shared_dir = "/shared"
"""
SAGEMAKER = "the role, the buckets, the inputs, the secrets and the quota"
AZURE = "the credentials, the compute, the environment, the data and the quota"
SLURM = "the partition, the limits, the start time and the interpreter"


@pytest.fixture
def project(clean_environment: Path) -> Path:
    """A job that is right as far as anybody can tell here, and a sweep of it."""
    files = {
        "train.py": "print(1)\n", "job.yaml": JOB, "sweep.yaml": SWEEP, "cloudtrain.toml": ACCOUNTS
    }  # fmt: skip
    for name, text in files.items():
        (clean_environment / name).write_text(text)
    return clean_environment


CASES = {
    "no SDK of AWS": ("sagemaker", [], SAGEMAKER, "`boto3` is not installed", "pip install"),
    "no credentials for AWS": ("sagemaker", [], SAGEMAKER, "no credentials", "aws configure"),
    "AWS offline": ("sagemaker", ["--offline"], SAGEMAKER, "`--offline`", "`--offline`"),
    "errors": ("sagemaker", ["--set", "entry_point=no.py"], SAGEMAKER, "has errors", "correct"),
    "no SDK of Azure": ("azureml", [], AZURE, "`azure-identity` is not installed", "pip install"),
    "no credentials for Azure": ("azureml", [], AZURE, "no credentials", "az login"),
    "Azure offline": ("azureml", ["--offline"], AZURE, "`--offline`", "`--offline`"),
    "Slurm offline": ("slurm", ["--offline"], SLURM, "`--offline`", "`--offline`"),
    "a sweep": ("sagemaker", ["--offline"], SAGEMAKER, "`--offline`", "`--offline`"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_check_says_what_it_did_not_ask(
    cli: Cli, project: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notice at the end, which names what was not asked, why, and what to type."""
    target, options, about, why, hint = CASES[case]
    for module in ("boto3", "azure.identity"):
        known = None if case.startswith("no SDK") else ModuleType(module)
        monkeypatch.setitem(sys.modules, module, known)
    file = "sweep.yaml" if case == "a sweep" else "job.yaml"
    command = ["check", file, "--target", target, *options]

    result = cli(*command, "--json")
    last = json.loads(result.out)[-1]
    assert (last["code"], last["level"]) == ("CT541", "notice")
    assert about in last["message"]
    assert why in last["message"]
    assert hint in last["hint"]

    text = cli(*command)
    assert (text.code, result.code) == ((2, 2) if case == "errors" else (0, 0))
    said = " ".join((text.out + text.err).split())
    assert about in said
    assert "no problems found" not in said


@pytest.mark.slow  # the SDKs are imported
@pytest.mark.parametrize(
    ("target", "code", "about", "hint"),
    [
        ("sagemaker", "SM902", SAGEMAKER, "check the network"),
        ("azureml", "AZ902", AZURE, "HTTPS_PROXY"),
        ("slurm", "SL902", SLURM, "`ssh login sinfo` must work"),
    ],
)
def test_a_network_that_is_down_is_one_warning(
    cli: Cli,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    code: str,
    about: str,
    hint: str,
) -> None:
    """Credentials are there, and nobody answers. Nothing tells the user to log in."""
    nobody = f"http://127.0.0.1:{free_port()}"
    ssh = project / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text("#!/bin/sh\necho 'ssh: Could not resolve hostname login' >&2\nexit 255\n")
    ssh.chmod(0o755)
    variables = {
        "PATH": f"{ssh.parent}:{os.environ['PATH']}", "AWS_MAX_ATTEMPTS": "1",
        "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ENDPOINT_URL": nobody,
        "AZURE_TENANT_ID": "11111111-1111-1111-1111-111111111111", "AZURE_CLIENT_ID": "a",
        "AZURE_CLIENT_SECRET": "b", "HTTPS_PROXY": nobody,
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (project / "cloudtrain.toml").write_text(f'{ACCOUNTS}host = "login"\n')

    command = ["check", "job.yaml", "--target", target]
    result = cli(*command, "--json")
    (warning,) = [item for item in json.loads(result.out) if item["code"] == code]
    assert (result.code, warning["level"]) == (0, "warning")
    assert about in warning["message"]
    assert hint in warning["hint"]
    text = cli(*command)
    assert about in " ".join((text.out + text.err).split())
    assert "no problems found" not in text.out + text.err


def test_what_is_not_asked_may_be_accepted(cli: Cli, project: Path) -> None:
    """A workflow that never has an account can leave the notice out."""
    command = ["check", "job.yaml", "-t", "sagemaker", "--offline", "--json"]
    found = json.loads(cli(*command, "--ignore", "ct541").out)
    assert "CT541" not in {item["code"] for item in found}


def test_there_is_nothing_to_ask_this_machine(cli: Cli, project: Path) -> None:
    """A local run has no account, so nothing is left out."""
    result = cli("check", "job.yaml", "--offline", "--json", "--python", sys.executable)
    assert "CT541" not in {finding["code"] for finding in json.loads(result.out)}


def test_a_cluster_without_commands_is_one_warning(
    cli: Cli, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning names what was not asked."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "env"):
        (tools / name).symlink_to(Path("/bin", name))
    monkeypatch.setenv("PATH", str(tools))
    result = cli("check", "job.yaml", "--target", "slurm", "--json")
    (warning,) = [item for item in json.loads(result.out) if item["code"] == "SL902"]
    assert SLURM in warning["message"]
    assert "`host`" in warning["hint"]


# Whether `--ignore` may help is a property of the rule.

FACTS = {
    "no role": ("sagemaker", "SM101", "role = ", "#"),
    "no workspace": ("azureml", "AZ101", "workspace = ", "#"),
    "no shared folder": ("slurm", "SL101", "shared_dir = ", "#"),
    "no region": ("sagemaker", "SM101", "region = ", "#"),
}


@pytest.mark.parametrize("case", FACTS)
def test_a_missing_fact_cannot_be_ignored(cli: Cli, project: Path, case: str) -> None:
    """Neither does a refused submit offer it."""
    target, code, line, mark = FACTS[case]
    settings = ACCOUNTS.replace(line, mark if mark == "#" else f"#{line}")
    (project / "cloudtrain.toml").write_text(settings)

    refused = cli("submit", "job.yaml", "--target", target, "--offline")
    assert refused.code == 2
    assert f"[{code}]" in refused.err
    assert "--ignore" not in refused.err
    result = cli("plan", "job.yaml", "--target", target, "--ignore", code.lower())
    assert result.code == 2
    assert f"`{code}` cannot be ignored" in " ".join(result.err.split())


@pytest.mark.parametrize(
    "code", ["LO101", "LO102", "LO103", "CT101", "CT102", "SM901", "SM903", "SM905", "AZ901",
             "AZ903", "AZ912", "SM102", "SM701", "AZ711", "SL906"],
)  # fmt: skip
def test_explain_says_which_rules_are_judgements(cli: Cli, code: str) -> None:
    """What is missing cannot be accepted; that a job is dear, or a name odd, can."""
    assert not rule_named(code).can_be_ignored
    assert f"--ignore {code}" not in cli("explain", code).out
