"""Real runs whose end is told without a command."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudtrain.cli.app import run_command
from cloudtrain.lifecycle.detached.driven import sender_folder
from cloudtrain.lifecycle.store.schema import read_store
from tests.lifecycle.notifications.sinks import Web
from tests.targets.places import eventually

pytestmark = [pytest.mark.slow, pytest.mark.lifecycle]

SCRIPT = """
import sys, time
from cloudtrain import runtime
runtime.alert("look at <!channel>")
while not __import__("os").path.exists(sys.argv[1]):
    time.sleep(0.05)
sys.exit(3)
"""


def _sender(state_dir: Path) -> int:
    """The process id of the one that sends."""
    psutil = pytest.importorskip("psutil")
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if str(state_dir) in words and any("lifecycle.sender" in word for word in words):
            return int(process.pid)
    raise AssertionError("there is no sender")


def test_a_run_here_tells_how_it_ends(
    web: Web,
    settings: Callable[[str], Path],
    state_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also if the sender was killed meanwhile, and somebody has looked at the runs since."""
    monkeypatch.setenv("CLOUDTRAIN_WATCH_INTERVAL", "2")
    monkeypatch.setenv("HOOK", web.address)
    settings('[notify]\nwebhook = "env:HOOK"\nevents = ["started", "failed", "alert"]\n')
    Path("train.py").write_text(SCRIPT)
    assert run_command(["submit", "--detach", "--json", "train.py", str(tmp_path / "go")]) == 0
    name = json.loads(capsys.readouterr().out)["name"]
    eventually(lambda: {f"{name}/started/1", f"{name}/alert/1"} <= set(web.ids))
    assert "<!" in next(item.data["reason"] for item in web.got if "alert" in item.id)

    os.kill(_sender(state_dir), signal.SIGKILL)
    eventually(lambda: not sender_folder(state_dir).is_driven)
    assert run_command(["ps"]) == 0
    (tmp_path / "go").touch()
    eventually(lambda: f"{name}/failed/1" in web.ids)
    assert len(set(web.ids)) == 3
    with read_store(state_dir) as store:
        record = store.get(name)
        assert record is not None
        assert record.state == "failed"
    eventually(lambda: not sender_folder(state_dir).is_driven)  # it has nothing to do any more

    for file in (state_dir / "runs.db", state_dir / "notifications/sender/driver.log"):
        assert web.address.encode() not in file.read_bytes()


def test_a_submit_that_dies_is_watched(
    web: Web,
    settings: Callable[[str], Path],
    state_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The sender is there before the run is."""
    import cloudtrain as ct

    monkeypatch.setenv("CLOUDTRAIN_WATCH_INTERVAL", "2")
    settings(f'[notify]\nwebhook = "{web.address}"\n')
    Path("train.py").write_text("print(1)\n")
    child = os.fork()
    if child == 0:
        job = ct.TrainingJob.from_script("train.py")
        ct.submit(job, on_run=lambda _: os.kill(os.getpid(), signal.SIGKILL))
        os._exit(0)
    os.waitpid(child, 0)
    eventually(lambda: [identity.split("/")[1] for identity in web.ids] == ["succeeded"])
