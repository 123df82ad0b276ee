"""Submits of code that changes between its plan and its upload."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.code.tree import SourceChanged
from cloudtrain.plans.plan import Plan
from cloudtrain.system.processes import listening

JOB = ct.TrainingJob(name="job", source_dir="src", command="true", distribution=ct.NoDistribution())


@pytest.fixture
def source(clean_environment: Path) -> Path:
    """A folder with two files."""
    (clean_environment / "src").mkdir()
    (clean_environment / "src/train.py").write_text("print(0)\n")
    (clean_environment / "src/swap.tmp").write_text("")
    return clean_environment / "src"


def write(file: Path) -> None:
    """Add a line to the file."""
    with file.open("a") as writing:
        writing.write("print(1)\n")


@pytest.mark.parametrize(("name", "change"), [("swap.tmp", Path.unlink), ("train.py", write)])
def test_the_code_as_it_is_now_is_planned_and_sent(
    source: Path, state_dir: Path, name: str, change: Callable[[Path], object]
) -> None:
    """One run exists, of the last plan that was shown, and its code is the folder's."""
    plans, words = list[Plan](), list[str]()

    def see(plan: Plan) -> None:
        if not plans:
            change(source / name)
        plans.append(plan)

    with listening(words.append):
        run = ct.submit(JOB, "local", on_plan=see)
    assert str(run.wait().state) == "succeeded"
    assert [found.name for found in ct.runs()] == [run.name]
    first, last = plans
    assert first.run_name != last.run_name == run.name
    assert words == [f"`{name}` changed while the job was being planned; planning it again"]
    [archive] = (state_dir / "bundles").rglob("*.tar.gz")
    with tarfile.open(archive) as packed:
        sent = {
            item.name: packed.extractfile(item)
            for item in packed
            if not item.name.startswith("cloudtrain/")
        }
        content = {path: file.read() for path, file in sent.items() if file is not None}
    assert content == {file.name: file.read_bytes() for file in source.iterdir()}


def test_code_that_keeps_changing_is_an_error_and_no_run(source: Path, state_dir: Path) -> None:
    """The error names the file; neither a run nor an archive is left."""
    plans = list[Plan]()

    def see(plan: Plan) -> None:
        plans.append(plan)
        write(source / "train.py")

    with pytest.raises(SourceChanged) as caught:
        ct.submit(JOB, "local", on_plan=see)
    assert (
        caught.value.message
        == "`train.py` changed while its bundle was being made; nothing was written"
    )
    assert "`/train.py`" in caught.value.hint
    assert len(plans) == 3
    assert ct.runs() == []
    assert list((state_dir / "bundles").rglob("*.tar.gz")) == []
