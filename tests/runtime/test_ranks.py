"""The registration of ranks: who is which rank, that it is alive, and that it can be asked for its stacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.runtime.hangs.stacks import read_stacks
from cloudtrain.runtime.ranks import read_ranks
from tests.deadlines import DEADLINE
from tests.guards import needs_proc

WAIT = "print('ready', flush=True); sys.stdin.read()"


@contextmanager
def rank(folder: Path, script: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A process of a run, from when it has printed a line until the end of the block."""
    environ = os.environ | {"PYTHONPATH": str(Path(cloudtrain.__file__).parents[1])}
    environ |= {"CLOUDTRAIN_RUN_DIR": str(folder)} | variables
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env=environ,
        cwd=folder,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.communicate(timeout=DEADLINE)


@needs_proc
def test_a_process_registers_at_its_first_use_of_the_runtime(tmp_path: Path) -> None:
    """Its file says which process it is, with the launcher's variables and no other one; once the process has ended, it
    is not alive."""
    script = f"import sys; from cloudtrain import runtime; runtime.run_dir(); {WAIT}"
    torchrun = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    with rank(tmp_path, script, GROUP_RANK="1", HF_TOKEN="secret", **torchrun) as process:
        (found,) = read_ranks(tmp_path)
        assert found.is_alive
        assert found.can_dump()
    assert (found.pid, found.rank, found.local_rank, found.attempt) == (process.pid, 3, 1, 0)
    assert found.cwd == str(tmp_path)
    assert found.environ["RANK"] == "3"
    assert "secret" not in (tmp_path / "ranks" / "3.json").read_text()
    assert not found.is_alive


@needs_proc
@pytest.mark.parametrize(
    ("wait", "after_first"),
    [("sys.stdin.read()", 1), ("while not is_over: pass", 0)],
    ids=["in C code", "in Python"],
)
def test_a_signal_writes_the_stack_and_the_process_goes_on(
    tmp_path: Path, wait: str, after_first: int
) -> None:
    """The stack names functions and lines, and no values. A main thread in C code answers the second signal only."""
    script = (
        "import sys, threading; from cloudtrain import runtime\n"
        "is_over = []\n"
        "def load_next_batch(password):\n"
        "    print('ready', flush=True)\n"
        f"    {wait}\n"
        "runtime.run_dir()\n"
        "thread = threading.Thread(target=lambda: is_over.append(sys.stdin.read()))\n"
        f"{'' if after_first else 'thread.start()'}\n"
        "load_next_batch('secret')\n"
    )
    with rank(tmp_path, script) as process:
        (found,) = read_ranks(tmp_path)
        assert found.signal is not None
        assert found.stacks is not None
        os.kill(process.pid, found.signal + after_first)
        deadline = time.monotonic() + DEADLINE
        while "<module>" not in Path(found.stacks).read_text():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        text = Path(found.stacks).read_text()
        assert "in load_next_batch" in text
        assert "secret" not in text
    assert process.returncode == 0


@needs_proc
def test_a_process_registers_no_stack_from_another_thread(tmp_path: Path) -> None:
    """Only the main thread can set Python's handler, without which a stack may be read while it changes."""
    script = (
        "import sys, threading\n"
        "def use():\n    from cloudtrain import runtime; runtime.run_dir()\n"
        f"thread = threading.Thread(target=use); thread.start(); thread.join(); {WAIT}\n"
    )
    with rank(tmp_path, script):
        (found,) = read_ranks(tmp_path)
        assert found.is_alive
        assert not found.can_dump()


@needs_proc
@pytest.mark.slow
def test_a_busy_process_lives_through_a_thousand_looks(tmp_path: Path) -> None:
    """Two threads call and return all the time. One in a hundred looks ended the process, when faulthandler read frames
    that changed. Each answer is whole, however slowly the process writes it."""
    script = (
        "import json, re, sys, threading; from cloudtrain import runtime; runtime.run_dir()\n"
        "is_over = threading.Event()\n"
        "def wait():\n    sys.stdin.read(); is_over.set()\n"
        "def work():\n"
        "    while not is_over.is_set():\n"
        "        sorted(range(50), key=lambda number: -number); re.compile(str(id(object())))\n"
        "for function in (wait, work):\n    threading.Thread(target=function).start()\n"
        "print('ready', flush=True); work()\n"
    )
    with rank(tmp_path, script) as process:
        (found,) = read_ranks(tmp_path)
        for _ in range(1000):
            stack = read_stacks({0: process.pid}, [found])[0]
            assert process.poll() is None
            assert stack is not None
            assert (stack[-1].function, stack[-2].function) == ("<module>", "work")
    assert process.returncode == 0


@needs_proc
def test_a_program_that_a_rank_starts_does_not_take_its_place(tmp_path: Path) -> None:
    """It has the rank's variables, as every child of a rank."""
    script = (
        "import subprocess, sys; from cloudtrain import runtime; runtime.run_dir()\n"
        "child = 'from cloudtrain import runtime; runtime.run_dir()'\n"
        f"subprocess.run([sys.executable, '-c', child], check=True); {WAIT}\n"
    )
    with rank(tmp_path, script, RANK="0", WORLD_SIZE="1") as process:
        assert [found.pid for found in read_ranks(tmp_path)] == [process.pid]


@needs_proc
def test_ranks_that_a_script_spawns_take_the_place_of_their_parent(tmp_path: Path) -> None:
    """torch.multiprocessing.spawn sets no variables; the function that it calls does. A data loader's workers, which
    are daemons, are no ranks."""
    (tmp_path / "spawning.py").write_text(
        "import multiprocessing, os, sys\n"
        "from cloudtrain import runtime\n"
        "def work(rank, is_rank, ready, end):\n"
        "    if is_rank:\n"
        "        os.environ.update(RANK=str(rank), WORLD_SIZE='2')\n"
        "    runtime.report(step=1)\n"
        "    ready.release()\n"
        "    end.acquire()\n"
        "if __name__ == '__main__':\n"
        "    runtime.report(step=0)\n"
        "    context = multiprocessing.get_context('fork')\n"
        "    ready, end = context.Semaphore(0), context.Semaphore(0)\n"
        "    arguments = (0, True, ready, end), (1, True, ready, end), (2, False, ready, end)\n"
        "    all = [context.Process(target=work, args=a, daemon=not a[1]) for a in arguments]\n"
        "    for process in all: process.start(); ready.acquire()\n"
        "    print(*[process.pid for process in all], flush=True)\n"
        "    print('ready', flush=True); sys.stdin.read()\n"
        "    for process in all: end.release()\n"
        "    for process in all: process.join()\n"
    )
    environ = os.environ | {"PYTHONPATH": str(Path(cloudtrain.__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "spawning.py"],
        env=environ | {"CLOUDTRAIN_RUN_DIR": str(tmp_path)},
        cwd=tmp_path,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    pids: list[int] = []
    for line in process.stdout:
        if line == "ready\n":
            break
        if not line.startswith("[metrics]"):
            pids = [int(word) for word in line.split()]
    found = [(registered.rank, registered.pid) for registered in read_ranks(tmp_path)]
    process.communicate(timeout=DEADLINE)
    assert found == [(0, pids[0]), (1, pids[1])]


@needs_proc
def test_a_process_that_has_replaced_its_program_is_not_signalled(tmp_path: Path) -> None:
    """It has the same id and start, and would die of the signal."""
    script = (
        "import os, sys; from cloudtrain import runtime; runtime.run_dir()\n"
        f"os.execv(sys.executable, [sys.executable, '-c', \"import sys; {WAIT}\"])\n"
    )
    with rank(tmp_path, script.replace("'ready'", "chr(114)+'eady'")):
        (found,) = read_ranks(tmp_path)
        assert found.is_alive
        assert not found.can_dump()


@needs_proc
def test_another_process_with_the_same_id_is_not_the_rank(tmp_path: Path) -> None:
    """The start, or the boot, is another one; a file that nobody of ours wrote is no rank."""
    script = f"import sys; from cloudtrain import runtime; runtime.run_dir(); {WAIT}"
    with rank(tmp_path, script):
        path = tmp_path / "ranks" / "0.json"
        record = json.loads(path.read_text())
        for change in ({"start": "1"}, {"boot": "another"}, {"start": ""}):
            path.write_text(json.dumps(record | change))
            (found,) = read_ranks(tmp_path)
            assert not found.is_alive
            assert not found.can_dump()
    path.write_text("{}")
    (tmp_path / "ranks" / "1.json").write_text("[1")
    assert read_ranks(tmp_path) == []
    assert read_ranks(tmp_path / "gone") == []


@needs_proc
def test_a_run_goes_on_where_its_folder_cannot_be_written(tmp_path: Path) -> None:
    """The file stands where the folder would be."""
    (tmp_path / "ranks").write_text("")
    script = f"import sys; from cloudtrain import runtime; runtime.run_dir(); {WAIT}"
    with rank(tmp_path, script) as process:
        pass
    assert process.returncode == 0
