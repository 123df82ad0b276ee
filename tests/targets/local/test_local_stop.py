"""Stopping a run on this machine: by hand, by its limit, from outside, and when part of it has finished."""

from __future__ import annotations

import os
import signal
import time

import pytest

import cloudtrain as ct
from cloudtrain.plans.states import RunState
from tests.targets.places import Place, eventually

pytestmark = pytest.mark.lifecycle

SAVES = """\
import signal, sys, time
def leave(*_):
    time.sleep(0.5)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
time.sleep(3600)
"""

IGNORES = "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(3600)"

PREEMPTED = """\
import os, time
from cloudtrain import runtime
runtime.watch_for_stop()
print("up", flush=True)
while not runtime.should_stop():
    time.sleep(0.01)
runtime.exit_preempted(step=13)
"""


def test_script_may_save(place: Place) -> None:
    """SIGTERM comes first, and the script has time to save."""
    run = place.submit(SAVES)
    run.wait_for_line("up")
    run.service.stop(run.ref)
    status = run.wait()
    assert (status.state, status.reason) == (RunState.STOPPED, "stopped on request")
    assert run.texts() == ["up", "saved"]
    assert run.nothing_is_left()


def test_state_while_stopping(place: Place) -> None:
    """Between the request and the end the run is `stopping`."""
    run = place.submit(
        IGNORES.replace("time.sleep(3600)", "while not os.path.exists('go'): time.sleep(0.02)")
    )
    run.wait_for_line("up")
    run.service.stop(run.ref)
    eventually(lambda: run.status.state is RunState.STOPPING, "stopping")
    (run.folder / "code/go").touch()
    assert run.wait().state is RunState.STOPPED


@pytest.mark.slow
def test_sigkill_after_the_grace_period(place: Place) -> None:
    """Who ignores SIGTERM is killed when the grace period is over, and the reason says so."""
    run = place.submit(IGNORES, target=ct.Local(grace_period=1))
    run.wait_for_line("up")
    asked = time.monotonic()
    run.service.stop(run.ref)
    status = run.wait()
    assert time.monotonic() - asked >= 1
    assert status.state is RunState.STOPPED
    assert (
        status.reason
        == "stopped on request; processes that did not exit within the grace period were killed"
    )
    assert run.nothing_is_left()


@pytest.mark.slow
def test_shell_passes_nothing_on(place: Place) -> None:
    """A shell script's children get SIGTERM too, and may save although the shell is gone at once."""
    run = place.submit(
        {"run.sh": f"{_quoted_python(SAVES)}; echo after", "train.py": ""}, entry_point="run.sh"
    )
    run.wait_for_line("up")
    run.service.stop(run.ref)
    assert run.wait().state is RunState.STOPPED
    assert run.texts() == ["up", "saved"]


def _quoted_python(script: str) -> str:
    import shlex
    import sys

    return f"{shlex.quote(sys.executable)} -c {shlex.quote(script)}"


@pytest.mark.slow
def test_max_runtime(place: Place) -> None:
    """A run that reaches its limit is stopped like any other, and says why."""
    status = place.submit("import time\ntime.sleep(3600)", max_runtime=1).wait()
    assert (status.state, status.reason) == (
        RunState.STOPPED,
        "stopped after its max_runtime of 1 s",
    )


def test_stop_at_once(place: Place) -> None:
    """A run can be stopped before its processes are up."""
    run = place.submit(IGNORES, target=ct.Local(grace_period=1))
    run.service.stop(run.ref)
    assert run.wait().state is RunState.STOPPED
    assert run.nothing_is_left()


def test_stopped_by_hand_with_checkpoint(place: Place) -> None:
    """A script that saved through the runtime says at which step."""
    run = place.submit(PREEMPTED)
    run.wait_for_line("up")
    run.service.stop(run.ref)
    assert run.wait().reason == "stopped on request; the script saved and left at step 13"


def test_sigterm_from_outside(place: Place) -> None:
    """SIGTERM from somebody else, after which the script saves and leaves, is a stop and no success."""
    run = place.submit(PREEMPTED)
    run.wait_for_line("up")
    child = run.process_with("CLOUDTRAIN_RUN_NAME", run.ref.name)
    os.kill(child.pid, signal.SIGTERM)
    status = run.wait()
    assert status.state is RunState.STOPPED
    assert status.reason == "stopped by a signal from outside; the script saved and left at step 13"


@pytest.mark.parametrize("ignored", [signal.SIGINT, signal.SIGHUP])
def test_terminal_signals_do_not_reach_the_run(place: Place, ignored: signal.Signals) -> None:
    """What a terminal sends when it closes changes nothing, and the script still has the default handlers."""
    run = place.submit(
        f"import signal\nprint(signal.getsignal({ignored.value}) != signal.SIG_IGN)\n" + SAVES
    )
    run.wait_for_line("up")
    run.ours("supervisor").send_signal(ignored)
    time.sleep(0.2)
    assert run.status.state is RunState.RUNNING
    assert run.texts()[0] == "True"


SERVERS = """\
import json, os, time
from pathlib import Path
config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]["type"]
print(task, config["task"]["index"], *(len(nodes) for _, nodes in sorted(config["cluster"].items())), flush=True)
ports = [node.rpartition(":")[2] for nodes in config["cluster"].values() for node in nodes]
assert len(set(ports)) == len(ports) and all(int(port) > 0 for port in ports)
marks = Path(os.environ["CLOUDTRAIN_RUN_DIR"])
(marks / f"{task}-is-up").touch()
while task == "chief" and not all((marks / f"{name}-is-up").exists() for name in ("worker", "ps")):
    time.sleep(0.02)
time.sleep(3600 if task == "ps" else 0)
"""


def test_parameter_servers_end_with_the_chief(place: Place) -> None:
    """Servers run for ever; when the chief has succeeded, they are ended, and the run has succeeded."""
    run = place.submit(SERVERS, distribution=ct.TensorFlow(strategy="parameter_server"))
    status = run.wait()
    assert status.state is RunState.SUCCEEDED, status
    texts = {text for rank in range(3) for text in run.texts(rank)}
    assert texts == {"chief 0 1 1 1", "worker 0 1 1 1", "ps 0 1 1 1"}
    assert run.nothing_is_left()
