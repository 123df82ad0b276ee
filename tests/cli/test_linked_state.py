"""A state folder that was copied as hard links (`cp -al`): the copy's commands change nothing of the original's runs."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.deadlines import DEADLINE

WAITS = """\
import os, time
open('PLACE/up', 'w').close()
while not os.path.exists('PLACE/go'): time.sleep(0.02)
"""


@pytest.fixture
def run(cli: Cli, clean_environment: Path) -> str:
    """The name of a run that lasts until there is a file `go`."""
    script = WAITS.replace("PLACE", str(clean_environment))
    (clean_environment / "train.py").write_text(script)
    (clean_environment / "job.yaml").write_text("name: j\nentry_point: train.py\n")
    name = cli("submit", "job.yaml", "--detach").out.strip()
    deadline = time.monotonic() + DEADLINE
    while not (clean_environment / "up").exists():  # its code is unpacked then
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return name


def states(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What `ps` says with a state folder."""
    monkeypatch.setenv("CLOUDTRAIN_STATE_DIR", str(folder))
    return {row["name"]: row["state"] for row in json.loads(cli("ps", "--all", "--json").out)}


def test_a_run_goes_on_beside_its_copy(
    cli: Cli, run: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is running in the original, and over in the copy, which may remove it and stop it."""
    copy = state_dir.with_name("copy")
    shutil.copytree(state_dir, copy, copy_function=os.link)
    assert states(cli, copy, monkeypatch) == {run: "lost"}
    assert states(cli, state_dir, monkeypatch)[run] in ("preparing", "running")
    monkeypatch.setenv("CLOUDTRAIN_STATE_DIR", str(copy))
    cli("stop", run)
    assert cli("rm", run).code == 0
    assert states(cli, state_dir, monkeypatch)[run] in ("preparing", "running")
    state_dir.with_name("go").touch()
    assert cli("wait", run).code == 0
    assert states(cli, state_dir, monkeypatch) == {run: "succeeded"}
    assert states(cli, copy, monkeypatch) == {}


def test_a_run_that_has_ended(
    cli: Cli, run: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It succeeded in both, and each has the runs of its own commands."""
    state_dir.with_name("go").touch()
    assert cli("wait", run).code == 0
    copy = state_dir.with_name("copy")
    shutil.copytree(state_dir, copy, copy_function=os.link)
    monkeypatch.setenv("CLOUDTRAIN_STATE_DIR", str(copy))
    other = cli("submit", "job.yaml", "--detach").out.strip()
    assert cli("wait", other).code == 0
    assert other != run
    assert states(cli, copy, monkeypatch) == {run: "succeeded", other: "succeeded"}
    assert states(cli, state_dir, monkeypatch) == {run: "succeeded"}
