"""Paths of a job can be `pathlib.Path`s: they are stored as text."""

from __future__ import annotations

from pathlib import Path

import pytest

import cloudtrain as ct


def test_a_path_is_stored_as_text() -> None:
    """A job made of paths equals the same job made of text, and so does its file."""

    def job(make: type) -> ct.TrainingJob:
        return ct.TrainingJob(
            name="a",
            source_dir=make("src"),
            entry_point=make("train.py"),
            environment=ct.Environment(requirements=make("requirements.txt")),
            inputs={
                "train": ct.Input(local=make("data/train")),
                "test": {"local": make("data/test")},
            },
            outputs={"plots": ct.Output(local=make("plots"))},
            checkpoint=ct.Checkpoint(local=make("checkpoints")),
        )

    paths = job(Path)
    assert paths == job(str)
    assert paths.model_dump_json() == job(str).model_dump_json()
    assert paths.source_dir == "src"
    assert paths.replace(source_dir=Path("other")).source_dir == "other"
    assert (
        ct.ProcessingJob(name="a", source_dir=Path("src"), entry_point=Path("p.py")).entry_point
        == "p.py"
    )


def test_a_job_of_paths_is_planned(tmp_path: Path) -> None:
    """The code is found where the path leads."""
    (tmp_path / "train.py").write_text("print(1)\n")
    plan = ct.plan(ct.TrainingJob(name="a", source_dir=tmp_path, entry_point=Path("train.py")))
    assert plan.processes[0].argv[-1].endswith("train.py")


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        (
            {"command": Path("train.sh")},
            "write `str(path)`; write a URI as text, because a path drops one of its slashes",
        ),
        (
            {"inputs": {"a": {"sagemaker": Path("s3://bucket/a")}}},
            "write a URI as text, because a path drops one of its",
        ),
    ],
    ids=["command", "uri"],
)
def test_a_path_where_text_belongs(fields: dict[str, object], hint: str) -> None:
    """The hint says what to write; of a URI a path has lost a slash, so it is not taken."""
    with pytest.raises(ct.JobError) as caught:
        ct.TrainingJob(**{"name": "a", "command": "x", **fields})  # type: ignore[arg-type]
    (problem,) = caught.value.problems
    assert "must be text, not `PosixPath`" in problem.message
    assert hint in str(problem.hint)
