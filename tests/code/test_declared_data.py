"""What a job declares as data is not code: local inputs, outputs and the checkpoint stay out of the bundle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from tests.code.test_bundle_ignore import IGNORE, fill

COMMAND = [sys.executable, "-m", "cloudtrain"]
PLACES: dict[str, Any] = {
    "inputs": {"train": {"local": "data/train", "sagemaker": "s3://bucket/train"}},
    "outputs": {"model": {"local": "out/model"}},
    "checkpoint": {"local": "checkpoints"},
}


def code_of(**job: Any) -> str:
    """The content hash of the code that a plan of the folder `src` uploads."""
    return ct.plan(ct.TrainingJob(name="job", source_dir="src", **job), "local").uploads[0].sha256


@pytest.fixture
def source(clean_environment: Path) -> Path:
    """A folder with code, and with data in every place that the job names."""
    src = clean_environment / "src"
    src.mkdir()
    fill(
        src,
        "train.py",
        "data/train/a.bin",
        "data/other.bin",
        "out/model/m.pt",
        "checkpoints/step-1.pt",
    )
    return src


@pytest.mark.parametrize("path", ["data/train/a.bin", "out/model/m.pt", "checkpoints/step-1.pt"])
def test_declared_places_are_no_code(source: Path, path: str) -> None:
    """What lies in a declared place does not count as code, while the same folder without the declaration does."""
    places = {key: {n: p | {"local": f"src/{p['local']}"} for n, p in value.items()} for key, value in PLACES.items()
              if key != "checkpoint"} | {"checkpoint": {"local": "src/checkpoints"}}  # fmt: skip
    declared, bare = code_of(entry_point="train.py", **places), code_of(entry_point="train.py")
    (source / path).write_text("another text")
    assert code_of(entry_point="train.py", **places) == declared
    assert code_of(entry_point="train.py") != bare
    (source / "data" / "other.bin").write_text("another text")
    assert code_of(entry_point="train.py", **places) != declared


@pytest.mark.parametrize("target", ["{outside}", "real", "again"])
def test_declared_links_are_no_code(source: Path, target: str) -> None:
    """A declared place may be a link, or lie below a link, that leads to another disk or to a folder of the code."""
    fill(source.parent / "outside", "train/a.bin")
    fill(source, "real/train/a.bin", "pkg/util.py")
    (source / "again").symlink_to(source.parent / "outside")
    (source / "link").symlink_to(target.format(outside=source.parent / "outside"))
    (source / "code").symlink_to("pkg")
    inputs = {
        "all": {"local": "src/link"},
        "part": {"local": "src/again/train"},
        "code": {"local": "src/code/data"},
    }
    plan = ct.plan(
        ct.TrainingJob(name="job", source_dir="src", entry_point="train.py", inputs=inputs), "local"
    )
    # `src/code/data` does not exist
    assert {finding.code for finding in plan.findings} <= {"LO101"}
    (source / "pkg/util.py").write_text("another text")
    changed = code_of(entry_point="train.py", inputs=inputs)
    assert changed != plan.uploads[0].sha256
    fill(source, "real/train/b.bin")
    assert (code_of(entry_point="train.py", inputs=inputs) == changed) is (target == "real")


@pytest.mark.slow
def test_declared_data_is_of_any_size(source: Path) -> None:
    """A file that no bundle may hold is no finding where the job declares it, and an error elsewhere."""
    with (source / "data/train/huge.bin").open("wb") as file:
        file.truncate(320 << 20)
    job = ct.TrainingJob(name="job", source_dir="src", entry_point="train.py")
    declared = job.replace(inputs={"train": {"local": "src/data/train"}})
    assert not {"CT302", "CT303"} & {
        finding.code for finding in ct.plan(declared, "local").findings
    }
    assert "CT302" in {finding.code for finding in ct.plan(job, "local").findings}


@pytest.mark.parametrize(
    "job",
    [
        {"entry_point": "data/train/a.bin"},
        {"command": "python data/train/a.bin --fast"},
        {"entry_point": "train.py", "environment": {"requirements": "data/train/a.bin"}},
    ],
)
def test_named_code_stays(source: Path, job: dict[str, Any]) -> None:
    """A place that holds a file which the job starts or installs is code."""
    inputs = {"train": {"local": "src/data/train"}}
    (source / "data/train/a.bin").write_text("a_text")  # a package, for a list of requirements
    before = code_of(inputs=inputs, **job)
    (source / "data/train/a.bin").write_text("another_text")
    assert code_of(inputs=inputs, **job) != before


def test_brought_back(source: Path) -> None:
    """A line of the ignore file brings a declared place back, as it brings back any default."""
    (source / IGNORE).write_text("!/data/train/\n")
    inputs = {"train": {"local": "src/data/train"}}
    before = code_of(entry_point="train.py", inputs=inputs)
    (source / "data/train/a.bin").write_text("another text")
    assert code_of(entry_point="train.py", inputs=inputs) != before


def test_folder_that_is_the_source(source: Path) -> None:
    """An input that is the source folder itself, or a folder around it, takes nothing out of the code."""
    for place in ("src", "."):
        before = code_of(entry_point="train.py", inputs={"all": {"local": place}})
        (source / "train.py").write_text(f"print({place!r})")
        assert code_of(entry_point="train.py", inputs={"all": {"local": place}}) != before


@pytest.mark.lifecycle
@pytest.mark.slow
def test_output_into_the_folder(source: Path) -> None:
    """The shell's redirection into the folder with the code is no change of the code."""
    (source / "train.py").write_text("print('trained')\n")
    (source / "job.yaml").write_text("name: job\nsource_dir: .\nentry_point: train.py\n")
    for _ in range(2):
        with (source / "said.txt").open("ab") as said:
            done = subprocess.run(
                [*COMMAND, "submit", "job.yaml"], cwd=source, stdout=said, stderr=said
            )
        assert done.returncode == 0
    assert (source / "said.txt").read_text().count("trained") == 2
