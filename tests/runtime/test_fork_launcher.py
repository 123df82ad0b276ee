"""The launcher of forks, without torch: a forked rank is what a started one would be, and its end is told truly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.runtime.fork_launcher import rank_environment
from tests.deadlines import DEADLINE

WITHOUT_TORCH = "from cloudtrain.runtime import fork_launcher; fork_launcher.PRELOADED = {}; fork_launcher.main()"


@dataclass
class Done:
    """What a launch left: its exit code, what the launcher said, and what each rank wrote."""

    code: int
    said: str
    folder: Path

    def written(self, rank: int, stream: str = "stdout", attempt: int = 0) -> str:
        """The output of a rank of instance 0."""
        return (
            self.folder / f"logs/instance_0/fork/attempt_{attempt}/{rank}/{stream}.log"
        ).read_text()


def start(
    folder: Path, script: str, *options: str, preloaded: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    """Two ranks of a script, unless the options say otherwise."""
    (folder / "src").mkdir(exist_ok=True)
    (folder / "src" / "train.py").write_text(script)
    root = str(Path(cloudtrain.__file__).parents[1])
    arguments = ["--processes-per-instance", "2", "--log-dir", str(folder / "logs"), *options]
    return subprocess.Popen(
        [sys.executable, "-u", "-c", WITHOUT_TORCH.format(repr(preloaded)), *arguments, "src/train.py", "--lr", "0.1"],
        cwd=folder, env=os.environ | {"PYTHONPATH": root}, text=True, stderr=subprocess.PIPE,
    )  # fmt: skip


def launch(folder: Path, script: str, *options: str, preloaded: tuple[str, ...] = ()) -> Done:
    """The same, run to the end."""
    process = start(folder, script, *options, preloaded=preloaded)
    _, said = process.communicate(timeout=DEADLINE)
    return Done(process.returncode, said, folder)


def wait_for(file: Path) -> None:
    """Until a rank has written something."""
    deadline = time.monotonic() + DEADLINE
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < deadline, f"{file} stays empty"
        time.sleep(0.01)


LIKE_PYTHON = """\
import __main__, dataclasses, json, os, pickle, sys, typing
import beside

@dataclasses.dataclass
class Config:
    lr: float = 0.1

print(json.dumps({
    "name": __name__, "file": __file__, "argv": sys.argv, "first": sys.path[0], "beside": beside.__file__,
    "main": __main__.Config is Config, "pickled": pickle.loads(pickle.dumps(Config(2.0))).lr,
    "hints": typing.get_type_hints(Config)["lr"].__name__, "annotation": repr(Config.__annotations__["lr"]),
    "spec": __spec__ is None, "signal": str(__import__("signal").getsignal(15)),
}))
"""


def test_a_rank_is_what_python_makes_of_a_script(tmp_path: Path) -> None:
    """The module, its name and file, argv, the path of imports, pickling, annotations and signal handlers: all as
    `python` has it."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "beside.py").write_text("")
    done = launch(tmp_path, LIKE_PYTHON)
    assert (done.code, done.said) == (0, "")
    bare = subprocess.run(
        [sys.executable, "src/train.py", "--lr", "0.1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.written(0)) == json.loads(done.written(1)) == json.loads(bare.stdout)


def test_a_rank_finds_its_variables(tmp_path: Path) -> None:
    """Two instances with two ranks each: every rank has its own variables, and its output lies by instance."""
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    done = launch(
        tmp_path, script, "--instances", "2", "--master-port", "4321", "--max-restarts", "3"
    )
    assert done.code == 0
    for rank in range(4):
        folder = tmp_path / f"logs/instance_{rank // 2}/fork/attempt_0/{rank % 2}"
        found = json.loads((folder / "stdout.log").read_text())
        expected = rank_environment(
            rank,
            instances=2,
            processes_per_instance=2,
            master_port="4321",
            max_restarts=3,
            attempt=0,
        )
        assert {name: found[name] for name in expected} == expected
        assert (found["RANK"], found["GROUP_RANK"], found["LOCAL_RANK"]) == (
            str(rank),
            str(rank // 2),
            str(rank % 2),
        )
        assert json.loads((folder / "rank.json").read_text())["environment"] == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "code", "stderr"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no data')", 1, "no data\n"),
        ("os._exit(5)", 5, ""),
        ("os.kill(os.getpid(), 9)", -9, ""),
    ],
)
def test_each_way_to_end_is_told_as_it_was(
    tmp_path: Path, ending: str, code: int, stderr: str
) -> None:
    """The exit code of the rank is the script's own; the launcher's is 0 or 1."""
    script = f"import os, sys, time\nif os.environ['RANK'] == '1':\n    {ending}\n"
    done = launch(tmp_path, script)
    assert done.code == (1 if code else 0)
    summary = [f"cloudtrain: rank 1 ended with exit code {code}"] if code else []
    # rank 0 may not have been quick enough to end before it was asked to
    assert done.said.splitlines()[-1:] == summary
    assert done.written(1, "stderr") == stderr


def test_a_traceback_begins_in_the_script(tmp_path: Path) -> None:
    """It is what `python` prints, without frames of the launcher, through the script's own `sys.excepthook`."""
    script = "def bad():\n    raise ValueError('bad thing')\n\nbad()\n"
    done = launch(tmp_path, script, "--processes-per-instance", "1")
    bare = subprocess.run(
        [sys.executable, "src/train.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.written(0, "stderr") == bare.stderr
    script = "import sys\nsys.excepthook = lambda *_: print('hooked')\n1 / 0\n"
    # a second rank would end this one
    hooked = launch(tmp_path, script, "--processes-per-instance", "1")
    assert (hooked.code, hooked.written(0)) == (1, "hooked\n")
    wrong = launch(tmp_path, "print(1\n", "--processes-per-instance", "1")
    assert "SyntaxError: '(' was never closed" in wrong.written(0, "stderr")


def test_exit_handlers_run_and_threads_are_waited_for(tmp_path: Path) -> None:
    """What an interpreter does before it goes: threads end, handlers run, buffers are written."""
    script = (
        "import atexit, sys, threading, time\n"
        "atexit.register(print, 'handler')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
        "sys.stdout.reconfigure(write_through=False)\n"
        "print('script')\n"
    )
    assert launch(tmp_path, script).written(0) == "script\nthread\nhandler\n"


def test_one_failure_ends_all_and_comes_last_in_the_summary(tmp_path: Path) -> None:
    """The others are asked to leave; of several bad ends the first one is the last line, as torchrun has it."""
    script = (
        "import os, sys, time\nif os.environ['RANK'] == '1':\n    sys.exit(7)\ntime.sleep(3600)\n"
    )
    done = launch(tmp_path, script, "--processes-per-instance", "3")
    first, second, last = done.said.splitlines()
    assert {first, second} == {
        f"cloudtrain: rank {rank} ended with exit code -15" for rank in (0, 2)
    }
    assert last == "cloudtrain: rank 1 ended with exit code 7"


DEAF = """\
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
while os.environ["RANK"] == "0" or not os.path.exists("go"):
    time.sleep(0.01)
sys.exit(7)
"""


@pytest.mark.slow
def test_who_does_not_leave_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    """SIGKILL follows SIGTERM, not at once and not never."""
    process = start(tmp_path, DEAF, "--grace-period", "0.5")
    wait_for(tmp_path / "logs/instance_0/fork/attempt_0/0/stdout.log")
    started = time.monotonic()
    (tmp_path / "go").touch()
    _, said = process.communicate(timeout=DEADLINE)
    assert time.monotonic() - started >= 0.5
    assert "rank 0 ended with exit code -9" in said


def test_sigterm_is_passed_on(tmp_path: Path) -> None:
    """Ranks may save and leave with 0, and then so does the launcher; no rank is started again."""
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('saved')))\n"
        "print('up', flush=True)\n"
        "time.sleep(3600)\n"
    )
    process = start(tmp_path, script, "--max-restarts", "2")
    for rank in (0, 1):
        wait_for(tmp_path / f"logs/instance_0/fork/attempt_0/{rank}/stdout.log")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=DEADLINE)
    done = Done(process.returncode, said, tmp_path)
    assert (done.code, done.said) == (0, "")
    assert [done.written(rank) for rank in (0, 1)] == ["up\nsaved\n"] * 2
    assert not (tmp_path / "logs/instance_0/fork/attempt_1").exists()


@pytest.mark.slow
def test_all_ranks_start_again_as_often_as_allowed(tmp_path: Path) -> None:
    """Each attempt knows its number and has its own output; the last failure is final."""
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "attempt = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "print('attempt', attempt, 'of', os.environ['TORCHELASTIC_MAX_RESTARTS'])\n"
        "Path(f'up-{attempt}-' + os.environ['RANK']).touch()\n"
        "while not Path(f'up-{attempt}-0').exists(): time.sleep(0.01)\n"
        "if os.environ['RANK'] == '1' and attempt < 2: sys.exit(4)\n"
        "time.sleep(3600 * (attempt < 2))\n"
    )
    done = launch(tmp_path, script, "--max-restarts", "2")
    assert done.code == 0
    for attempt in range(3):
        assert [done.written(rank, attempt=attempt) for rank in (0, 1)] == [
            f"attempt {attempt} of 2\n"
        ] * 2
    assert [line.partition("; ")[2] for line in done.said.splitlines()] == [
        "starting all ranks again (1 of 2)",
        "starting all ranks again (2 of 2)",
    ]
    final = launch(tmp_path, script, "--max-restarts", "1")
    assert final.code == 1
    assert final.said.splitlines()[-1] == "cloudtrain: rank 1 ended with exit code 4"


def test_random_numbers_of_ranks_differ(tmp_path: Path) -> None:
    """Python's and numpy's global generators, imported before the fork, do not give all ranks the same numbers."""
    pytest.importorskip("numpy")
    script = "import random, sys\nprint(random.random(), sys.modules['numpy.random'].random())\n"
    done = launch(tmp_path, script, preloaded=("numpy.random", "random"))
    assert done.code == 0, done.written(0, "stderr")
    pairs = [done.written(rank).split() for rank in (0, 1)]
    assert pairs[0][0] != pairs[1][0]
    assert pairs[0][1] != pairs[1][1]
