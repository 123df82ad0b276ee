"""Paths that the system will not even look at are mistakes like others: named, with a hint, and without a traceback."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.errors import JobError, UsageError
from cloudtrain.job.file import load_job

LONG = "a" * 300
DEEP = "/".join(["a" * 200] * 30)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").write_text("print(1)\n")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")
    return tmp_path / "src"


def findings(
    source: Path, target: str | None = None, **job: Any
) -> dict[tuple[str | int, ...], tuple[str, str | None]]:
    """What the checks say about each place of the job."""
    fields = {"name": "job", "source_dir": str(source), "entry_point": "train.py"} | job
    plan = ct.plan(ct.TrainingJob(**fields), target=target)
    return {finding.path: (finding.message, finding.hint) for finding in plan.findings}


@pytest.mark.slow
@pytest.mark.parametrize("place", [LONG, DEEP, "../loop/x"])
@pytest.mark.parametrize(
    ("job", "path"),
    [
        (lambda place: {"inputs": {"x": {"local": place}}}, ("inputs", "x", "local")),
        (lambda place: {"outputs": {"x": {"local": place}}}, ("outputs", "x", "local")),
        (lambda place: {"checkpoint": {"local": place}}, ("checkpoint", "local")),
    ],
    ids=["input", "output", "checkpoint"],
)
@pytest.mark.slow_after(3)
def test_a_place_that_cannot_be(
    source: Path, monkeypatch: pytest.MonkeyPatch, place: str, job: Any, path: tuple[str, ...]
) -> None:
    """A name or a path that is too long, and a circle of links: an error of the check, with the flag that helps."""
    monkeypatch.chdir(source)
    message, hint = findings(source, **job(place))[path]
    assert "cannot be read: " in message
    assert f"--set {'.'.join(path)}=PATH" in (hint or "")


@pytest.mark.parametrize("name", [LONG, DEEP, "loop", "file/x", "nowhere"])
def test_a_source_folder_that_cannot_be(source: Path, name: str) -> None:
    """The folder is named, and why."""
    job = ct.TrainingJob(name="job", source_dir=str(source.parent / name), entry_point="train.py")
    with pytest.raises(JobError) as caught:
        ct.plan(job)
    (problem,) = caught.value.problems
    assert problem.path == ("source_dir",)
    assert problem.hint
    assert ("cannot be read: " in problem.message) == (name in (LONG, DEEP, "loop"))


@pytest.mark.parametrize("field", ["conda_file", "requirements", "build"])
def test_files_of_the_environment_that_cannot_be(source: Path, field: str) -> None:
    """They are looked for in the bundle, not on the disk."""
    environment = {"image": "x:1", field: LONG} if field != "build" else {"build": LONG}
    job = ct.TrainingJob(
        name="job", source_dir=str(source), entry_point="train.py", environment=environment
    )
    with suppress(JobError):
        assert [
            finding
            for finding in ct.plan(job, target="azureml").findings
            if "environment" in finding.path
        ]


@pytest.mark.parametrize(
    "name",
    [f"{LONG}.yaml", f"{DEEP}/job.yaml", "loop/job.yaml", "file/job.yaml", "a\0b.yaml", LONG],
)
def test_a_job_file_that_cannot_be(source: Path, name: str) -> None:
    """As for one that is not there."""
    with pytest.raises(UsageError) as caught:
        load_job(source.parent / name)
    assert caught.value.hint
    assert "\0" not in str(caught.value)


def test_an_entry_point_of_300_letters(source: Path) -> None:
    """It is not in the source folder."""
    message, _ = findings(source, entry_point=LONG)["entry_point",]
    assert message == f"there is no file `{LONG}` in the source folder"


def test_a_tree_that_is_too_deep_for_a_path(tmp_path: Path) -> None:
    """Folders below each other whose path no call of the system takes: named, with the line that leaves them out."""
    top = tmp_path / "src"
    top.mkdir()
    descriptor = os.open(top, os.O_RDONLY)
    for _ in range(25):
        os.mkdir("b" * 200, dir_fd=descriptor)
        inner = os.open("b" * 200, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    with pytest.raises(JobError) as caught:
        ct.plan(ct.TrainingJob(name="job", source_dir=str(top), command="true"))
    (problem,) = caught.value.problems
    assert "cannot be read: File name too long" in problem.message
    assert ".cloudtrainignore" in (problem.hint or "")


def test_what_is_typed_after_a_timeout_is_one_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of somebody else's may have a name that a shell would read as several words."""
    from cloudtrain.errors import TargetError
    from cloudtrain.lifecycle.runs import run as handle
    from cloudtrain.plans.progress import ListedRun, RunStatus
    from cloudtrain.plans.states import RunRef, RunState
    from cloudtrain.targets.settings import load_settings

    class Silent:
        def status(self, ref: RunRef) -> RunStatus:
            return RunStatus(RunState.RUNNING)

    monkeypatch.setattr(handle, "service_of", lambda target, settings: Silent())
    ref = RunRef("azureml", "place", "my run; x")
    run = handle.Run.attached(ListedRun(ref, RunStatus(RunState.RUNNING)), load_settings())
    with pytest.raises(TargetError) as caught:
        run.wait(timeout=0)
    assert caught.value.hint == "wait longer, or stop it with `cloudtrain stop 'my run; x'`"
