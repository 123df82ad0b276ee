"""The supervisor of a queued run is killed at each point of its life: one run, one row, and the others have their turn."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.errors import TargetError
from cloudtrain.system.files import STORE_FILE
from tests.deadlines import DEADLINE
from tests.lifecycle.submission.kill_points import kill_points
from tests.targets.local.dying_queue import BOOT
from tests.targets.places import eventually

pytestmark = pytest.mark.lifecycle

POINTS = 26
"""How many there are; `test_all_points` counts them."""

QUEUE = ct.Local(queue=True, slots=1)


@pytest.fixture
def folder(clean_environment: Path) -> Path:
    """Scripts that leave their name in `ran`; the one of `first` waits for a file `go`."""
    (clean_environment / "src").mkdir()
    here = str(clean_environment)
    script = f"""
import os, time
name = os.environ["CLOUDTRAIN_RUN_NAME"].partition("-")[0]
open({here!r} + "/ran", "a").write(name + " ")
while name == "first" and not os.path.exists({here!r} + "/go"):
    time.sleep(0.02)
"""
    (clean_environment / "src/train.py").write_text(script)
    return clean_environment


def job(name: str) -> ct.TrainingJob:
    return ct.TrainingJob(name=name, source_dir="src", entry_point="train.py")


def submit_dying(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    """The run whose supervisor dies. Its submitter may hear of it or not."""
    with monkeypatch.context() as dying, suppress(TargetError):
        dying.setattr("cloudtrain.targets.local.folder._BOOT", BOOT)
        for name, value in variables.items():
            dying.setenv(name, value)
        ct.submit(job("dies"), QUEUE)


def statuses(state_dir: Path, name: str) -> list[str]:
    return [path.parent.name for path in (state_dir / "runs").glob(f"{name}-*/status.json")]


@pytest.mark.slow
def test_all_points(folder: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many there are, of all kinds."""
    first = ct.submit(job("first"), QUEUE)
    submit_dying(monkeypatch, POINTS=str(folder / "points"))
    third = ct.submit(job("third"), QUEUE)
    points_file = folder / "points"
    # it may still be unpacking its code, and would not sleep if its place were free by then
    eventually(
        lambda: points_file.exists() and "before sleep" in points_file.read_text(), "it sleeps"
    )
    (folder / "go").touch()
    assert [str(run.wait().state) for run in (first, third)] == ["succeeded"] * 2
    eventually(lambda: points_file.read_text().endswith("after leave\n"))
    points = points_file.read_text().splitlines()
    assert {point.partition(" ")[2] for point in points} == {
        "write_status", "enter", "leave", "sleep", "wake", "replace_private", "launch", "answer", "start_guard"
    }  # fmt: skip
    # it may be woken once more, or get its place without sleeping
    assert abs(len(points) - POINTS) <= 6
    assert (folder / "ran").read_text().split() == ["first", "dies", "third"]


@pytest.mark.parametrize("point", kill_points(POINTS))
@pytest.mark.slow_after(2)
def test_killed_at(
    point: int, folder: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is there once or not at all, its script ran once at most, and nobody waits for it in vain."""
    first = ct.submit(job("first"), QUEUE)
    submit_dying(monkeypatch, DIES_AT=str(point))
    third = ct.submit(job("third"), QUEUE)
    (folder / "go").touch()
    assert str(first.wait().state) == "succeeded"
    assert str(third.wait().state) == "succeeded"
    ct.recover()
    known = {run.name: str(run.wait(DEADLINE).state) for run in ct.runs()}
    mine = {name: state for name, state in known.items() if name.startswith("dies")}
    assert list(mine) == statuses(state_dir, "dies")
    assert set(mine.values()) <= {"lost", "succeeded"}
    with sqlite3.connect(state_dir / STORE_FILE) as db:
        rows = [name for (name,) in db.execute("SELECT name FROM runs")]
    db.close()
    assert sorted(rows) == sorted(known)
    ran = (folder / "ran").read_text().split()
    assert ran in (["first", "third"], ["first", "dies", "third"])
    again = ct.submit(job("dies"), QUEUE)
    assert str(again.wait().state) in ("succeeded", mine.get(again.name))
