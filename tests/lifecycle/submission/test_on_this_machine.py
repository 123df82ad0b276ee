"""Submissions to this machine: a lost store, and submitters that die around the start of their supervisor."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil  # noqa: TID253 - tests may start slowly
import pytest

import cloudtrain as ct
from cloudtrain.system.files import STORE_FILE
from cloudtrain.targets.local import service
from cloudtrain.targets.local.folder import RunFolder
from cloudtrain.targets.local.service import withdraw
from tests.lifecycle.submission.later import a_minute_later
from tests.targets.places import eventually, process_with

pytestmark = pytest.mark.lifecycle


@pytest.fixture
def job(clean_environment: Path) -> ct.TrainingJob:
    """A job that leaves a line in `ran` each time that it runs."""
    (clean_environment / "src").mkdir()
    script = f"open({str(clean_environment / 'ran')!r}, 'a').write('once\\n')\n"
    (clean_environment / "src/train.py").write_text(script)
    return ct.TrainingJob(name="job", source_dir="src", entry_point="train.py")


@pytest.mark.parametrize(
    "lose",
    [
        lambda folder: (folder / STORE_FILE).unlink(),
        lambda folder: (folder / STORE_FILE).write_bytes(b""),
    ],
)
def test_with_the_store_lost_the_script_runs_again(
    lose: Callable[[Path], object], job: ct.TrainingJob, state_dir: Path
) -> None:
    """The folder of the earlier run is there still, and it is not taken for the new one."""
    earlier = ct.submit(job, "local")
    earlier.wait()
    lose(state_dir)
    run = ct.submit(job, "local")
    assert str(run.wait().state) == "succeeded"
    assert run.name != earlier.name
    assert Path("ran").read_text() == "once\nonce\n"


@pytest.mark.slow
def test_with_the_state_folder_removed_a_run_has_nothing_of_the_one_before(
    job: ct.TrainingJob, state_dir: Path, clean_environment: Path
) -> None:
    """As long as a process of the first run lives, the next one has another name, and its own end."""
    script = clean_environment / "src/train.py"
    waits = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
    script.write_text(f"{script.read_text()}{waits}")
    planned = ct.plan(job, "local").run_name
    earlier = ct.submit(job, "local")
    assert earlier.name == planned, "a dry run knows the name of the first submit"
    eventually(Path("ran").exists)
    folder = str(earlier.directory)
    supervisor = process_with(lambda: list(psutil.process_iter()), "CLOUDTRAIN_RUN_DIR", folder)
    rank = process_with(supervisor.children, "CLOUDTRAIN_RUN_NAME", earlier.name)
    supervisor.suspend()  # or it would end its run at once
    shutil.rmtree(state_dir)
    try:
        run = ct.submit(job, "local")
    finally:
        supervisor.resume()
    eventually(lambda: Path("ran").read_text() == "once\nonce\n")
    (run.directory or Path()).joinpath("code/go").touch()
    eventually(lambda: not (supervisor.is_running() or rank.is_running()))
    assert run.name != earlier.name
    assert str(run.wait().state) == "succeeded"


def test_a_supervisor_that_comes_too_late_starts_nothing(
    job: ct.TrainingJob, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its submitter died, and the submission was forgotten before it had the run."""
    folders = list[RunFolder]()

    def die(folder: RunFolder, environ: object) -> None:
        folders.append(folder)
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(service, "_start_supervisor", die)
        with pytest.raises(KeyboardInterrupt):
            ct.submit(job, "local")
    assert ct.runs() == ct.recover() == []
    (folder,) = folders
    reader, writer = os.pipe()
    start = (
        f"from cloudtrain.targets.local.supervisor import main; main([{folder.path!r}, '{writer}'])"
    )
    subprocess.run([sys.executable, "-c", start], pass_fds=(writer,), check=True)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b""  # it ended, and has nothing
    assert not Path(folder.status).exists()
    assert not Path("ran").exists()
    a_minute_later(state_dir)
    assert str(ct.submit(job, "local").wait().state) == "succeeded"


def test_a_supervisor_that_is_just_starting_is_waited_for(tmp_path: Path) -> None:
    """It has the lock, and its status is not there yet: whether there is a run is known a moment later."""
    folder = RunFolder(str(tmp_path))
    Path(folder.launch).write_text("{}")
    starting = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from pathlib import Path
from cloudtrain.system.processes import ProcessLock
lock = ProcessLock.take(Path({folder.lock!r}))
print("held", flush=True)
time.sleep(0.3)
Path({folder.status!r}).write_text("{{}}")
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", starting], stdin=-1, stdout=-1, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert withdraw(folder) is False
        assert process.stdin is not None
        process.stdin.close()
    assert Path(folder.launch).exists()
    shutil.rmtree(tmp_path)
    assert withdraw(folder) is True
