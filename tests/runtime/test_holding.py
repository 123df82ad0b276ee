"""Holding still at a step until SIGTERM: what makes a rehearsed interruption come where it was asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import cloudtrain
from tests.deadlines import DEADLINE

SCRIPT = """
import signal, sys, threading
from cloudtrain import runtime
{before}
def train():
    for step in (1, 5, 10):
        runtime.report(step=step)
    print("done", flush=True)
{run}
"""

HANDLER = "signal.signal(signal.SIGTERM, lambda *_: print('handled', flush=True))"


def start(before: str = "", run: str = "train()", at: str = "4") -> subprocess.Popen[str]:
    """The script above, asked to hold at a step."""
    env = os.environ | {
        "PYTHONPATH": str(Path(cloudtrain.__file__).parents[1]),
        "CLOUDTRAIN_HOLD_AT_STEP": at,
    }
    script = SCRIPT.format(before=before, run=run)
    return subprocess.Popen(
        [sys.executable, "-c", script], env=env, text=True, stdout=subprocess.PIPE
    )


def says(process: subprocess.Popen[str], count: int) -> list[str]:
    """The next lines of output."""
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(count)]


def ends(process: subprocess.Popen[str]) -> int:
    """Its exit code; everything that it still says is dropped."""
    process.communicate(timeout=DEADLINE)
    return process.returncode


def is_still(process: subprocess.Popen[str], seconds: float = 0.3) -> bool:
    """Whether it is there after some time, in which it could have ended many times."""
    time.sleep(seconds)
    return process.poll() is None


def test_it_waits_at_the_first_reported_step_and_only_there() -> None:
    """Step 4 is asked for and 5 is reported; after the signal and its handler nothing holds any more."""
    process = start(HANDLER)
    assert says(process, 2) == ["[metrics] step=1", "[metrics] step=5"]
    assert is_still(process)
    process.terminate()
    assert says(process, 3) == ["handled", "[metrics] step=10", "done"]
    assert ends(process) == 0


AT_THE_LINE = """
import io, os
from cloudtrain.runtime import holding
holding._PATIENCE = 1e6
class Told(io.TextIOWrapper):
    def flush(self):
        super().flush()
        if self.last.startswith("[metrics] step=5"):
            os.kill(os.getpid(), signal.SIGTERM)
    def write(self, text):
        self.last = text
        return super().write(text)
sys.stdout = Told(sys.stdout.detach())
"""


def test_a_signal_that_comes_with_the_line_is_not_missed() -> None:
    """A rehearsal sends it as soon as it reads the line, which can be before the script waits."""
    process = start(HANDLER + AT_THE_LINE)
    assert process.communicate(timeout=DEADLINE)[0].split("\n")[2:4] == [
        "handled",
        "[metrics] step=10",
    ]
    assert process.returncode == 0


def test_another_signal_does_not_end_it() -> None:
    """Only SIGTERM is what it waits for."""
    process = start(
        HANDLER + "\nsignal.signal(signal.SIGUSR1, lambda *_: print('other', flush=True))"
    )
    says(process, 2)
    assert is_still(process)
    process.send_signal(signal.SIGUSR1)
    assert says(process, 1) == ["other"]
    assert is_still(process)
    process.terminate()
    assert says(process, 1) == ["handled"]
    assert ends(process) == 0


def test_sigterm_does_what_it_does_without_it() -> None:
    """A script without a handler ends; a deaf one stands still until it is killed."""
    bare = start()
    says(bare, 2)
    bare.terminate()
    assert ends(bare) == -signal.SIGTERM
    deaf = start("signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    says(deaf, 2)
    deaf.terminate()
    assert is_still(deaf)
    deaf.kill()
    assert ends(deaf) == -signal.SIGKILL


def test_who_cannot_wait_goes_on() -> None:
    """Reports from another thread, where no signal is handled, and steps that do not come."""
    for process in (
        start(run="threading.Thread(target=train).start()"),
        start(at="11"),
        start(at="soon"),
    ):
        assert process.communicate(timeout=DEADLINE)[0].endswith("done\n")
        assert process.returncode == 0
