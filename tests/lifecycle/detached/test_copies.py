"""Copies of the folder of a sweep or of a waiting run: one driver sends, and it is that of the original."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cloudtrain.errors import UsageError
from cloudtrain.lifecycle.detached.driven import DrivenFolder, DrivenService
from cloudtrain.lifecycle.detached.waiting import ChainService
from cloudtrain.lifecycle.sweeps.service import SweepService
from cloudtrain.plans.states import RunRef, RunState

pytestmark = pytest.mark.lifecycle

REF = RunRef("local", "", "x-1")
SERVICES = {"chain": ChainService, "sweep": SweepService}


@pytest.fixture(params=SERVICES)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """What is driven, by this process, in the state folder `S`."""
    folder = DrivenFolder(tmp_path / "S", request.param, REF.name)
    folder.write_status(RunState.RUNNING, "waits", start_time=1.0)
    folder.specification.write_text("{}")
    return str(request.param)


def service_in(kind: str, state_dir: Path) -> DrivenService:
    return SERVICES[kind](dict(os.environ), state_dir)


def leave(state_dir: Path, kind: str) -> None:
    """The driver has died, without a word."""
    process = subprocess.Popen(["true"])
    process.wait()
    file = DrivenFolder(state_dir, kind, REF.name).status
    status = json.loads(file.read_bytes())
    status["owner"][:2] = [process.pid, "1"]
    file.write_text(json.dumps(status))


def refused(kind: str, state_dir: Path) -> bool:
    """Whether there is no driver to be had in a state folder, and nothing is written there by trying."""
    service = service_in(kind, state_dir)
    before = sorted(state_dir.rglob("*"))
    try:
        service.folder(REF.name).refuse_copy()
    except UsageError:
        assert service.status(REF).state is RunState.LOST
        for command in (service.stop, service.resume):  # type: ignore[attr-defined]
            with pytest.raises(UsageError) as caught:
                command(REF)
            assert caught.value.code == "CT997"
        assert sorted(state_dir.rglob("*")) == before
        return True
    return False


def test_a_copy_beside_the_original(kind: str, tmp_path: Path) -> None:
    """It says where the original is, also when its driver has died: that can be continued, and only once."""
    for driver in ("lives", "died"):
        if driver == "died":
            leave(tmp_path / "S", kind)
        shutil.copytree(tmp_path / "S", tmp_path / driver)
        assert refused(kind, tmp_path / driver)
        reason = service_in(kind, tmp_path / driver).status(REF).reason
        assert f"{tmp_path}/S/{kind}s/{REF.name}" in str(reason)
        assert not refused(kind, tmp_path / "S")


def test_moved(kind: str, tmp_path: Path) -> None:
    """Renamed, or to another disk, it is the original. Where a copy was made before, that waits for the driver's end."""
    shutil.copytree(tmp_path / "S", tmp_path / "copy")
    (tmp_path / "S").rename(tmp_path / "moved")
    assert not refused(kind, tmp_path / "moved")
    assert refused(kind, tmp_path / "copy")
    leave(tmp_path / "copy", kind)
    assert not refused(kind, tmp_path / "copy")


def test_put_back(kind: str, tmp_path: Path) -> None:
    """A backup in the place of the original goes on when the driver is gone."""
    shutil.copytree(tmp_path / "S", tmp_path / "backup")
    (tmp_path / "S").rename(tmp_path / "old")
    shutil.copytree(tmp_path / "backup", tmp_path / "S")
    assert refused(kind, tmp_path / "S")
    leave(tmp_path / "S", kind)
    assert not refused(kind, tmp_path / "S")


def test_a_status_of_an_earlier_version(kind: str, tmp_path: Path) -> None:
    """It does not say who drives; what worked then works now."""
    file = DrivenFolder(tmp_path / "S", kind, REF.name).status
    status = json.loads(file.read_bytes())
    del status["owner"]
    file.write_text(json.dumps(status))
    shutil.copytree(tmp_path / "S", tmp_path / "copy")
    assert not refused(kind, tmp_path / "copy")
