"""SIGTERM: the script finishes its step, saves, leaves a marker, and ends with exit code 0."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain import runtime
from tests.deadlines import DEADLINE

SCRIPT = """
import sys, time
from cloudtrain import runtime
runtime.watch_for_stop()
checkpoints = runtime.Checkpoints()
first = (checkpoints.load() or (None, 0))[1]
for step in range(first + 1, 10_000):
    print(step, flush=True)
    sys.stdin.readline()
    if runtime.should_stop():
        print("saving", flush=True)
        sys.stdin.readline()
        checkpoints.save({"step": step}, step)
        runtime.exit_preempted(step)
"""


class Script:
    """The script above, driven line by line, so that nothing depends on time."""

    def __init__(self, folder: Path, **variables: str) -> None:
        env = os.environ | {"PYTHONPATH": str(Path(cloudtrain.__file__).parents[1])} | variables
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            cwd=folder, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def says(self) -> str:
        """The next line of output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        """Let it take the next step."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ends(self) -> tuple[int, str]:
        """Exit code and stderr."""
        _, errors = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, errors


def test_sigterm_saves_marks_and_exits_with_0(tmp_path: Path) -> None:
    """Without a run folder the marker lies beside the checkpoints; the next run removes it and resumes."""
    script = Script(tmp_path)
    assert script.says() == "1"
    script.process.send_signal(signal.SIGTERM)
    script.go_on()
    assert script.says() == "saving"
    script.go_on()
    assert script.ends() == (0, "cloudtrain: SIGTERM received; stopping after this step\n")
    marker = json.loads((tmp_path / "checkpoint" / "preempted").read_text())
    assert (marker["step"], marker["signal"]) == (1, "SIGTERM")

    again = Script(tmp_path)
    assert again.says() == "2"
    assert not (tmp_path / "checkpoint" / "preempted").exists()
    again.process.kill()
    again.ends()


def test_a_second_sigterm_does_not_break_the_save(tmp_path: Path) -> None:
    """Impatience, or a launcher that signals agent and ranks, changes nothing."""
    script = Script(tmp_path)
    assert script.says() == "1"
    script.process.send_signal(signal.SIGTERM)
    script.go_on()
    assert script.says() == "saving"
    script.process.send_signal(signal.SIGTERM)
    script.go_on()
    code, errors = script.ends()
    assert code == 0
    assert errors.count("SIGTERM") == 1
    assert (tmp_path / "checkpoint" / "000001-step-1" / "checkpoint.json").exists()


def test_the_marker_goes_to_the_run_folder_where_there_is_one(tmp_path: Path) -> None:
    """The local launcher looks for it there."""
    (tmp_path / "run").mkdir()
    script = Script(tmp_path, CLOUDTRAIN_RUN_DIR=str(tmp_path / "run"))
    assert script.says() == "1"
    script.process.send_signal(signal.SIGTERM)
    script.go_on()
    assert script.says() == "saving"
    script.go_on()
    assert script.ends()[0] == 0
    assert (tmp_path / "run" / "preempted").exists()
    assert not (tmp_path / "checkpoint" / "preempted").exists()


def test_a_script_that_does_not_watch_is_stopped_by_sigterm() -> None:
    """The runtime installs no handler at import, so nothing makes a script deaf to signals."""
    code = "from cloudtrain import runtime; runtime.report(step=1); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(cloudtrain.__file__).parents[1], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "[metrics] step=1\n"
    process.terminate()
    process.communicate(timeout=DEADLINE)
    assert process.returncode == -signal.SIGTERM


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 3, None])
def test_the_marker_holds_any_whole_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Any
) -> None:
    """What has an index is a step, such as numpy's integers, which JSON does not know."""
    monkeypatch.setenv("CLOUDTRAIN_RUN_DIR", str(tmp_path))

    class Counter:
        def __index__(self) -> int:
            return int(step)

    with pytest.raises(SystemExit) as left:
        runtime.exit_preempted(None if step is None else Counter())
    assert left.value.code == 0
    assert json.loads((tmp_path / "preempted").read_text())["step"] == (
        None if step is None else int(step)
    )


@pytest.mark.parametrize("step", [1.5, -1])
def test_what_is_no_step_leaves_no_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Any
) -> None:
    """A wrong step is told before anything is written."""
    monkeypatch.setenv("CLOUDTRAIN_RUN_DIR", str(tmp_path))
    with pytest.raises(runtime.SetupError, match="is not a whole number of at least 0"):
        runtime.exit_preempted(step)
    assert not (tmp_path / "preempted").exists()


def test_a_process_that_works_for_another_leaves_stops_to_it(tmp_path: Path) -> None:
    """SIGTERM, which a launcher sends to all, does not end it."""
    code = (
        "import os, signal\n"
        "from cloudtrain import runtime\n"
        "runtime.leave_stops_to_the_parent(0)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('still here')\n"
    )
    env = os.environ | {"PYTHONPATH": str(Path(cloudtrain.__file__).parents[1])}
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert (found.returncode, found.stdout) == (0, "still here\n")
