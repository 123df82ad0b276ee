"""Runs that fail on this machine: who is blamed, in which words, how quickly, and that nothing is left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil  # noqa: TID253 - tests may start slowly
import pytest

import cloudtrain as ct
from cloudtrain.plans.states import RunState
from tests.targets.places import Place, files_of_at_most

pytestmark = pytest.mark.lifecycle

SLEEPER = "import subprocess, sys\nsubprocess.Popen(['sleep', '3600'], start_new_session=True)\n"


def test_traceback(place: Place) -> None:
    """The reason is the exception; the details are its traceback."""
    status = place.submit("def f():\n    raise ValueError('bad thing')\nf()\n").wait()
    assert (status.state, status.failed_rank, status.exit_code) == (RunState.FAILED, 0, 1)
    assert status.reason == "rank 0 failed with exit code 1: ValueError: bad thing"
    assert status.details[0] == "Traceback (most recent call last):"
    assert status.details[-1] == "ValueError: bad thing"


TELLING = """\
import os, time
from cloudtrain import runtime
from cloudtrain.runtime.uncaught import tell_setup_errors
tell_setup_errors()
try:
    os.mkdir(os.environ['WHO'])
except FileExistsError:
    open(os.environ['LOST'], 'w').close()
    raise RuntimeError('Connection closed by peer [127.0.0.1]:1') from None
while not os.path.exists(os.environ['LOST']):
    time.sleep(0.01)
time.sleep(0.5)
raise runtime.SetupError('the file `x.pt` is broken', hint='remove it', on_every_rank=False)
"""


def test_an_error_that_one_rank_tells(place: Place) -> None:
    """Its sentence is the reason, and not its hint, nor the traceback of a rank that lost it and ended half a second
    before it."""
    environment = ct.Environment(
        variables={"WHO": str(place.root / "who"), "LOST": str(place.root / "lost")}
    )
    status = place.submit(
        TELLING, environment=environment, target=ct.Local(instance_count=2)
    ).wait()
    rank = status.failed_rank
    assert (
        status.reason
        == f"rank {rank} (instance {rank}) failed with exit code 1: the file `x.pt` is broken"
    )
    assert status.details == ("error: the file `x.pt` is broken", "hint: remove it")


def test_exit_code(place: Place) -> None:
    """Without a traceback the reason is the exit code and the last line of stderr."""
    status = place.submit(command="echo 'no such data' >&2; exit 7").wait()
    assert status.reason == "rank 0 failed with exit code 7: no such data"
    assert status.exit_code == 7


def test_signal(place: Place) -> None:
    """A rank that was killed says by which signal, and what SIGKILL often means."""
    status = place.submit("import os\nos.kill(os.getpid(), 9)").wait()
    assert status.reason is not None
    assert status.reason.startswith("rank 0 was killed by SIGKILL (exit code -9)")
    assert "out of memory" in status.reason
    assert status.exit_code == -signal.SIGKILL


@pytest.mark.slow
def test_one_of_several_brings_all_down(place: Place) -> None:
    """When one process fails, the others, which would run for ever, are ended; it is the one named."""
    script = (
        "import os, time\nif '1' == os.environ['OMP_NUM_THREADS'] and os.path.exists(os.environ['WHO']): time.sleep(3600)\n"
        "open(os.environ['WHO'], 'w').close()\ntime.sleep(0.3)\nraise KeyError('mine')"
    )
    environment = ct.Environment(variables={"WHO": str(place.root / "who"), "OMP_NUM_THREADS": "1"})
    run = place.submit(script, environment=environment, target=ct.Local(instance_count=2))
    status = run.wait()
    assert status.state is RunState.FAILED
    assert (
        status.reason
        == f"rank {status.failed_rank} (instance {status.failed_rank}) failed with exit code 1: KeyError: 'mine'"
    )
    assert run.nothing_is_left()


@pytest.mark.slow
def test_process_that_ignores_sigterm(place: Place) -> None:
    """A sibling that ignores SIGTERM does not keep a failed run alive."""
    script = (
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "try: os.mkdir(os.environ['WHO'])\nexcept FileExistsError: time.sleep(0.3); raise SystemExit(3)\ntime.sleep(3600)"
    )
    environment = ct.Environment(variables={"WHO": str(place.root / "who")})
    run = place.submit(script, environment=environment, target=ct.Local(instance_count=2))
    status = run.wait()
    assert (status.state, status.exit_code) == (RunState.FAILED, 3)
    assert run.nothing_is_left()


@pytest.mark.slow
def test_leftovers_are_killed(place: Place) -> None:
    """Processes that the script left behind end with the run, whether it succeeds or fails."""
    good = place.submit(SLEEPER, name="good")
    bad = place.submit(SLEEPER + "raise SystemExit(1)", name="bad")
    assert (good.wait().state, bad.wait().state) == (RunState.SUCCEEDED, RunState.FAILED)
    assert good.nothing_is_left()
    assert bad.nothing_is_left()


def test_leftover_without_marker(place: Place) -> None:
    """A process with another environment is still found, as long as it stays in the session."""
    run = place.submit("import subprocess\nsubprocess.Popen(['sleep', '304.25'], env={})\n")
    run.wait()
    sleepers = [
        process
        for process in psutil.process_iter(["cmdline"])
        if "304.25" in (process.info["cmdline"] or ())
    ]
    assert sleepers == []


def test_missing_interpreter(place: Place) -> None:
    """An interpreter that does not exist is named."""
    status = place.submit("", target=ct.Local(python="/nowhere/python")).wait()
    assert status.state is RunState.FAILED
    assert status.reason == "could not start `/nowhere/python`: No such file or directory"


def test_interpreter_without_torch(place: Place) -> None:
    """An interpreter without PyTorch is named, with what to type."""
    bare = place.root / "python"
    bare.write_text("#!/bin/sh\necho \"$0: No module named 'torch'\" >&2\nexit 1\n")
    bare.chmod(0o755)
    status = place.submit(
        "", distribution=ct.Torch(), target=ct.Local(python=str(bare), instance_count=1)
    ).wait()
    assert status.reason is not None
    assert status.reason.startswith(f"`{bare}` has no PyTorch")
    assert "pip install torch" in status.reason


def test_missing_script(place: Place) -> None:
    """A script that does not exist is the interpreter's own message."""
    status = place.submit({"other.py": ""}, entry_point="train.py").wait()
    assert status.reason is not None
    assert "can't open file" in status.reason


def test_damaged_archive(place: Place) -> None:
    """An archive that is damaged fails the run before anything starts, and says what to do."""
    plan, bundle = place.plan("print('never')")
    place.service.upload(plan, bundle)
    archive = Path(plan.uploads[0].destination)
    archive.write_bytes(archive.read_bytes()[:-20])
    run = place.send(plan)
    status = run.wait()
    assert status.state is RunState.FAILED
    assert status.reason is not None
    assert status.reason.startswith(f"could not prepare the run: the bundle `{archive}` is damaged")
    assert run.lines() == []


def test_missing_archive(place: Place) -> None:
    """An archive that is gone is named."""
    run = place.send(place.plan("")[0])
    assert "No such file" in str(run.wait().reason)


def test_full_disk(place: Place) -> None:
    """When the journal cannot be written, the run fails and says so, instead of hanging; nothing is left."""
    plan, bundle = place.plan(
        "import sys, time\n"
        "for file in (sys.stdout, sys.stderr):\n"
        "    for n in range(15000): print('line', n, file=file, flush=True)\n"
        "time.sleep(3600)"
    )
    place.service.upload(plan, bundle)
    with files_of_at_most(200_000):
        run = place.send(plan)
    status = run.wait()
    assert status.state is RunState.FAILED
    assert status.reason is not None
    assert "File too large" in status.reason
    assert run.nothing_is_left()


@pytest.mark.parametrize("then", ["time.sleep(3600)", ""])
def test_full_disk_that_takes_no_message_either(place: Place, then: str) -> None:
    """Where not even supervisor.log can be written, the status still says `failed` and why; ended or not, it is no
    death of the supervisor.
    """
    plan, bundle = place.plan(
        "import sys, time\n"
        "for file in (sys.stdout, sys.stderr):\n"
        "    file.write('line of output\\n' * 9000); file.flush()\n"
        f"{then}"
    )
    place.service.upload(plan, bundle)
    folder = Path(plan.request["run_dir"])
    folder.mkdir(parents=True)
    (folder / "supervisor.log").write_bytes(b"x" * 200_000)
    with files_of_at_most(200_000):
        run = place.send(plan)
    status = run.wait()
    assert status.state is RunState.FAILED
    assert "File too large" in str(status.reason)
    assert run.nothing_is_left()
    texts = run.texts()
    assert len(texts) > 9000
    assert set(texts) == {"line of output"}


def test_failure_is_not_forgotten(place: Place) -> None:
    """Stopping a run that has failed changes nothing."""
    run = place.submit("raise SystemExit(1)")
    failed = run.wait()
    run.service.stop(run.ref)
    assert run.status == failed


@pytest.mark.parametrize("launch", ["{", '{"version": 1}', ""])
def test_unreadable_specification(place: Place, launch: str) -> None:
    """A specification that is broken on disk fails the run; status and logs still work."""
    plan, bundle = place.plan("")
    place.service.upload(plan, bundle)
    folder = Path(plan.request["run_dir"])
    folder.mkdir(parents=True)
    from cloudtrain.targets.local.folder import RunFolder
    from cloudtrain.targets.local.service import _start_supervisor

    (folder / "launch.json").write_text(launch)
    _start_supervisor(RunFolder(str(folder)), os.environ)
    assert place.service.has(plan.ref)
    while not (status := place.service.status(plan.ref)).state.is_final:
        time.sleep(0.02)
    assert status.state is RunState.FAILED
    assert str(status.reason).startswith("could not prepare the run")
