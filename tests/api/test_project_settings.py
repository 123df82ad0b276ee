"""A job file has its project's settings, from the command line and from Python, wherever one stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.cli.app import run_command

JOB = "name: job\nsource_dir: .\nentry_point: train.py\nresources: {instance_count: 4}\n"


@pytest.fixture
def project(clean_environment: Path) -> Path:
    """A project beside the working directory, whose settings say two instances."""
    folder = clean_environment / "project"
    folder.mkdir()
    (folder / "train.py").write_text("")
    (folder / "job.yaml").write_text(JOB)
    (folder / "cloudtrain.toml").write_text("[local]\ninstance_count = 2\n")
    return folder


def test_the_command_and_python_plan_the_same(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The request of `cloudtrain plan project/job.yaml` is that of `ct.plan(ct.load_job(...))`."""
    assert run_command(["plan", "project/job.yaml", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    plan = ct.plan(ct.load_job("project/job.yaml"))
    assert told["request"] == plan.request
    assert dict(plan.summary)["instances"].startswith("2 ")
    assert told["settings"] == list(plan.settings) == [str(project / "cloudtrain.toml")]


def test_the_folder_stays_with_changed_jobs_and_tells_none_apart(project: Path) -> None:
    """`replace` keeps it; a job of the same fields is the same job wherever its file lies."""
    job = ct.load_job("project/job.yaml")
    assert job.folder == job.replace(name="other").folder == project
    fields = {name: getattr(job, name) for name in job.model_fields_set}
    assert job == ct.TrainingJob(**fields)
    assert hash(job.resources) == hash(ct.TrainingJob(**fields).resources)


def test_a_bundled_job_has_the_settings_of_the_working_directory(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies among the installed packages, which are nobody's project."""
    monkeypatch.chdir(project)
    job = ct.bundled_job("digits_ddp")
    assert job.folder is None
    assert dict(ct.plan(job).summary)["instances"].startswith("2 ")
