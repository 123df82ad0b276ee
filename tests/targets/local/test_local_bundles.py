"""Bundles that lie ready on this machine are never trusted: what runs is what was planned, or nothing."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.errors import TargetError
from cloudtrain.plans.plan import Plan
from cloudtrain.plans.states import RunState
from cloudtrain.targets.contract import BundleWriter
from tests.targets.places import Place, files_of_at_most

SCRIPT = "print('the script ran')\n"
OWN_IMAGE = {"image": "123456789012.dkr.ecr.us-west-2.amazonaws.com/mine:1"}


class Counting:
    """A bundle that counts how often it is written."""

    def __init__(self, tree: BundleWriter) -> None:
        self._tree = tree
        self.written = 0

    @property
    def sha256(self) -> str:
        return self._tree.sha256

    def write(self, path: Path) -> None:
        self.written += 1
        self._tree.write(path)


def archive_of(plan: Plan) -> Path:
    """Where the plan's bundle lies."""
    return Path(plan.uploads[0].destination)


def truncate(archive: Path) -> None:
    """As a full disk or a power cut would leave it."""
    os.truncate(archive, archive.stat().st_size // 2)


def overwrite(archive: Path) -> None:
    """The same size, other bytes."""
    archive.write_bytes(os.urandom(archive.stat().st_size))


def replace(archive: Path) -> None:
    """A whole archive of something else."""
    evil = archive.with_name("train.py")
    evil.write_text("print('something else ran')\n")
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(evil, "train.py")
    evil.unlink()


def empty(archive: Path) -> None:
    """Nothing in it."""
    archive.write_bytes(b"")


DAMAGES = [truncate, overwrite, replace, empty, Path.unlink]


def test_an_unchanged_bundle_is_written_once(place: Place) -> None:
    """The second submit neither writes nor reads it; nothing but the archive and its note is left."""
    plan, tree = place.plan(SCRIPT)
    bundle = Counting(tree)
    assert [place.service.upload(plan, bundle) for _ in range(3)] == [True, False, False]
    assert bundle.written == 1
    archive_of(plan).chmod(0)  # a submit could not read it now
    assert place.service.upload(plan, bundle) is False
    names = sorted(path.name for path in archive_of(plan).parent.iterdir())
    assert names == ["sourcedir.tar.gz", "sourcedir.tar.gz.whole"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_bundle_is_written_anew_by_the_next_submit(
    place: Place, damage: Callable[[Path], object]
) -> None:
    """And its run works."""
    plan, tree = place.plan(SCRIPT)
    place.service.upload(plan, tree)
    damage(archive_of(plan))
    assert place.service.upload(plan, tree) is True
    run = place.send(plan)
    assert run.wait().state is RunState.SUCCEEDED
    assert run.texts() == ["the script ran"]


@pytest.mark.parametrize("damage", [truncate, overwrite, replace, empty])
@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.slow_after(3)
def test_a_bundle_that_is_damaged_behind_the_submits_back_is_never_run(
    place: Place, damage: Callable[[Path], object], emulated: bool
) -> None:
    """The run fails before its processes start, says why, and removes the archive; the next submit works. So it is where
    the launcher of an emulated host unpacks the archive itself."""
    options: dict[str, Any] = {}
    if emulated:
        options = {
            "target": ct.Local(emulate="sagemaker", instance_count=1, grace_period=10),
            "resources": {"instance_type": {"sagemaker": "ml.m5.xlarge"}},
            "environment": OWN_IMAGE,
        }
    plan, tree = place.plan(SCRIPT, **options)
    assert (plan.request["code"]["directory"] is None) == emulated
    place.service.upload(plan, tree)
    damage(archive_of(plan))
    run = place.send(plan)
    status = run.wait()
    assert status.state is RunState.FAILED
    assert "is damaged" in (status.reason or "")
    assert "submit the job again" in (status.reason or "")
    assert run.texts() == []
    assert not archive_of(plan).exists()
    again = place.submit(SCRIPT, name="run-2", **options)
    assert again.wait().state is RunState.SUCCEEDED, again.texts()


def test_an_archive_of_an_earlier_version_is_written_anew(place: Place) -> None:
    """One without a note: nobody knows whether it is whole."""
    plan, tree = place.plan(SCRIPT)
    tree.write(archive_of(plan))
    assert place.service.upload(plan, tree) is True
    assert place.service.upload(plan, tree) is False


def test_a_bundle_for_which_there_is_no_room(place: Place) -> None:
    """The error says how to make room, and no part of an archive is left."""
    plan, tree = place.plan({"train.py": SCRIPT, "noise.bin": os.urandom(1 << 16).hex()})
    with (
        files_of_at_most(1 << 12),
        pytest.raises(TargetError, match="the bundle cannot be written") as caught,
    ):
        place.service.upload(plan, tree)
    assert "CLOUDTRAIN_STATE_DIR" in (caught.value.hint or "")
    assert list(archive_of(plan).parent.iterdir()) == []
    assert place.service.upload(plan, tree) is True
