"""A budget holds: whoever submits a job cannot ignore it, and cannot raise the one in the person's own settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

JOB = """\
name: digits
entry_point: train.py
max_runtime: 2h
environment: {framework: pytorch, version: "2.8"}
resources: {instance_type: ml.p4d.24xlarge}
"""
ROLE = 'role = "arn:aws:iam::111122223333:role/train"\nregion = "eu-west-1"\n'


@pytest.fixture
def project(clean_environment: Path) -> Path:
    """A job that can cost some 60 dollars."""
    (clean_environment / "train.py").write_text("")
    (clean_environment / "job.yaml").write_text(JOB)
    return clean_environment


def settings(folder: Path, text: str) -> Path:
    """Write a settings file into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cloudtrain.toml").write_text(text)
    return folder / "cloudtrain.toml"


@pytest.mark.parametrize("command", ["check", "plan", "submit"])
@pytest.mark.parametrize("code", ["SM412", "sm412", "SM413", "AZ412", "AZ413"])
def test_a_budget_cannot_be_ignored(cli: Cli, project: Path, command: str, code: str) -> None:
    """The command ends before anything is sent, also where the job is cheap enough."""
    for budget in (10, 10_000):
        settings(project, f"[sagemaker]\nmax_cost = {budget}\n{ROLE}")
        result = cli(command, "job.yaml", "--target", "sagemaker", "--ignore", code)
        assert result.code == 2
        assert f"`{code.upper()}` keeps your budget, so it cannot be ignored [CT930]" in " ".join(
            result.err.split()
        )


def test_a_refused_submit_does_not_offer_it(cli: Cli, project: Path) -> None:
    """What is typed then would be refused again; an error that can be accepted says how."""
    settings(project, f"[sagemaker]\nmax_cost = 10\n{ROLE}")
    said = cli("submit", "job.yaml", "--target", "sagemaker", "--offline").err
    assert "`cloudtrain explain SM412`" in said
    assert "--ignore SM412" not in said


def test_explain_does_not_offer_it(cli: Cli) -> None:
    """The page of a rule about the budget names no way to accept it; that of another rule does."""
    assert "--ignore" not in cli("explain", "SM412").out
    assert "--ignore SM411" in cli("explain", "SM411").out


@pytest.mark.parametrize(
    ("own", "projects", "profile", "holds"),
    [
        ("[sagemaker]\nmax_cost = 10", "[sagemaker]\nmax_cost = 10000", None, "own"),
        ("[sagemaker]\nmax_cost = 10", '[sagemaker]\nmax_cost = "10000"', None, "own"),
        ("[sagemaker]\nmax_cost = 10", "[profiles.big.sagemaker]\nmax_cost = 10000", "big", "own"),
        ("[sagemaker]\nmax_cost = 10", "", None, "own"),
        ("", "[sagemaker]\nmax_cost = 10", None, "project's"),
        ("[sagemaker]\nmax_cost = 10000", "[sagemaker]\nmax_cost = 10", None, "project's"),
        ("[profiles.big.sagemaker]\nmax_cost = 10000", "[sagemaker]\nmax_cost = 10", "big", None),
        ("[sagemaker]\nmax_cost = 10\n[profiles.big.sagemaker]\nmax_cost = 10000", "", "big", None),
        ("[sagemaker]\nmax_cost = 10000", "[sagemaker]\nmax_cost = 20000", None, None),
    ],
)
def test_the_lower_budget_holds(
    cli: Cli, project: Path, own: str, projects: str, profile: str | None, holds: str | None
) -> None:
    """Of your own settings and the project's, whatever the profile; the error names the file."""
    files = {
        "own": settings(project / ".config/cloudtrain", own + "\n"),
        "project's": project / "cloudtrain.toml",
    }
    head, _, rest = projects.partition("[sagemaker]\n")
    settings(project, f"{head}\n[sagemaker]\n{ROLE}{rest}\n")
    result = cli(
        "check", "job.yaml", "--target", "sagemaker", *(("--profile", profile) if profile else ())
    )
    said = " ".join((result.out + result.err).split())
    assert ("SM412" in said) is (holds is not None), said
    assert result.code == (2 if holds else 0), said
    if holds:
        assert f"and your cap is $10.00 (`max_cost` in `{files[holds]}:" in said


@pytest.mark.parametrize("place", ["own", "project"])
def test_the_project_cannot_lower_a_price(cli: Cli, project: Path, place: str) -> None:
    """A price in a file that whoever submits may edit does not count for the budget; one in your own file does."""
    own = project / ".config/cloudtrain"
    settings(own, "[sagemaker]\nmax_cost = 10\n")
    settings(project, f"[sagemaker]\n{ROLE}")
    folder = own if place == "own" else project
    (folder / "instances.toml").write_text('[sagemaker."ml.p4d.24xlarge"]\nprice = 0.01\n')
    result = cli("check", "job.yaml", "--target", "sagemaker")
    said = " ".join((result.out + result.err).split())
    assert result.code == (0 if place == "own" else 2), said
    if place == "project":
        assert "[SM412]" in said
        assert "a price in the project's `instances.toml` cannot lower the cost" in said
        (project / "instances.toml").write_text('[sagemaker."ml.p4d.24xlarge"]\nprice = 1000\n')
        assert "can spend up to $2,000.00" in cli("check", "job.yaml", "--target", "sagemaker").out


def test_what_another_tool_would_send_is_not_uploaded(cli: Cli, project: Path) -> None:
    """`--upload-only` prepares a job for other tools, so it asks the cap as well."""
    settings(project, f"[sagemaker]\nmax_cost = 10\n{ROLE}")
    result = cli("submit", "job.yaml", "--target", "sagemaker", "--upload-only")
    assert (result.code, "[SM412]" in result.err) == (2, True)
    assert "uploaded" not in result.err


def test_an_emulated_run_costs_nothing(cli: Cli, project: Path) -> None:
    """It runs here, whatever the machines of the cloud would cost; without the option the job is refused."""
    settings(project, f"[sagemaker]\nmax_cost = 10\n{ROLE}")
    emulated = cli("plan", "job.yaml", "--emulate", "sagemaker", "--json")
    assert (emulated.code, "SM412" in emulated.out) == (0, False)
    assert cli("plan", "job.yaml", "--target", "sagemaker").code == 2


@pytest.mark.parametrize("change", ["", "StoppingCondition", "KeepAlivePeriodInSeconds"])
def test_an_adopted_job_is_capped(cli: Cli, project: Path, change: str) -> None:
    """As any other: its settings are a project's. A day counts where the request has no limit, and a warm pool too."""
    settings(project, f"[sagemaker]\n{ROLE}")
    request = json.loads(
        cli("plan", "job.yaml", "--target", "sagemaker", "--format", "request").out
    )
    if change == "StoppingCondition":
        del request[change]
    elif change:
        request["ResourceConfig"][change] = 3600
    (project / "request.json").write_text(json.dumps(request))
    cli("adopt", "request.json", "--write", "mine")
    (project / "mine/train.py").write_text("")
    own = settings(project / ".config/cloudtrain", "[sagemaker]\nmax_cost = 10\n")
    result = cli("submit", "mine/job.yaml", "--target", "sagemaker", "--offline")
    said = " ".join(result.err.split())
    assert result.code == 2
    amount = {"": "50.50", "StoppingCondition": "606.03", "KeepAlivePeriodInSeconds": "75.75"}[
        change
    ]
    assert f"this can spend up to ${amount} " in said
    assert f"(`max_cost` in `{own}:" in said
