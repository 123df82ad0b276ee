"""The watch of a run's ranks: what it says about real processes, when, and when it is over."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import cloudtrain
from cloudtrain.runtime.hangs import watch as watching
from cloudtrain.runtime.hangs.stacks import Frame, find_py_spy, usage_of
from cloudtrain.runtime.hangs.verdict import judge
from cloudtrain.runtime.hangs.watch import HangWatch
from cloudtrain.runtime.notices import write_notice
from cloudtrain.runtime.pace import PaceFile, StepPace
from cloudtrain.runtime.ranks import read_ranks
from cloudtrain.signals.notices import read_notices
from tests.deadlines import DEADLINE
from tests.guards import needs_proc, skip_guard
from tests.programs import write_program

pytestmark = needs_proc

COLLECTIVE = "import sys\ndef all_reduce():\n    sys.stdin.read()\n"
SCRIPT = """\
import sys
from cloudtrain import runtime
from torch.distributed.distributed_c10d import all_reduce
def load_next_batch():
    sys.stdin.read()
runtime.run_dir()
print("ready", flush=True)
load_next_batch() if sys.argv[1] == "load" else all_reduce()
"""


class Said(NamedTuple):
    kind: str
    text: str
    rank: int | None
    is_over: bool


class Ranks:
    """A rank for each word: one in a collective, or one that loads its next batch."""

    def __init__(self, folder: Path, *doing: str) -> None:
        site = folder / "site-packages" / "torch" / "distributed"
        site.mkdir(parents=True)
        for package in (site.parent, site):
            (package / "__init__.py").write_text("")
        (site / "distributed_c10d.py").write_text(COLLECTIVE)
        self.site = site
        self.run = folder / "run"
        self.run.mkdir()
        (self.run / "train.py").write_text(SCRIPT)
        self.said: list[Said] = []
        self.processes: list[subprocess.Popen[str]] = []
        root = Path(cloudtrain.__file__).parents[1]
        for rank, word in enumerate(doing):
            variables = {
                "PYTHONPATH": f"{folder}/site-packages:{root}",
                "CLOUDTRAIN_RUN_DIR": str(self.run),
                "CLOUDTRAIN_RUN_TOKEN": "supervised",
                "RANK": str(rank),
                "WORLD_SIZE": str(len(doing)),
            }
            process = subprocess.Popen(
                [sys.executable, "train.py", word],
                env=os.environ | variables,
                cwd=self.run,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self.processes.append(process)
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            while usage_of(process.pid).state != "S":  # it reads now
                time.sleep(0.01)

    def tell(
        self, kind: str, text: str, *, rank: int | None = None, ended: float | None = None
    ) -> None:
        self.said.append(Said(kind, text, rank, ended is not None))

    def note_step(self, *, ago: float, timeout: float = 1800.0) -> None:
        """Every rank has reported every second, and the last time so many seconds ago."""
        pace = StepPace(timeout=timeout)
        for second in range(10, -1, -1):
            pace.note(time.time() - ago - second)
        for rank in range(len(self.processes)):
            PaceFile(f"{self.run}/ranks/{rank}.pace").write(pace)

    def watch(self, **options: Any) -> HangWatch:
        return HangWatch(str(self.run), self.tell, **options)

    def end(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.communicate(timeout=DEADLINE)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses between looks."""
    for name in ("_BETWEEN", "_OTHERS"):
        monkeypatch.setattr(watching, name, 0.01)
    monkeypatch.setattr(watching, "_AGAIN", 0.0)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Ranks]:
    ranks = Ranks(tmp_path, "wait", "load")
    yield ranks
    ranks.end()


WORDS = "rank 1: in load_next_batch (train.py:5), standing still; rank 0: waits in all_reduce, called by <module> (train.py:8)"


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_rank_that_stands_still_is_waited_for_and_then_stalled(
    two: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing within three pauses, then `waiting` once, then `stalled`, and a step ends it."""
    watch = two.watch()
    two.note_step(ago=5)
    watch.tick()
    assert two.said == []

    two.note_step(ago=40)
    watch.tick()
    watch.tick()
    assert [(said.kind, said.rank, said.is_over) for said in two.said] == [("waiting", 1, False)]
    assert re.fullmatch(rf"no step for \d+ s: {re.escape(WORDS)}", two.said[0].text)

    monkeypatch.setattr(watching, "FLOOR", 0.0)
    watch.tick()
    assert [said[0::3] for said in two.said[1:]] == [("waiting", True), ("stalled", False)]
    assert watch.hang is not None
    assert watch.hang.stalled is not None

    two.note_step(ago=0)
    watch.tick()
    assert two.said[-1][0::3] == ("stalled", True)
    assert watch.hang is None
    assert watch.last is None


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_half_of_the_timeout_is_enough(two: Ranks) -> None:
    """It is looked at half of it at the latest, and then it is stalled at once."""
    watch = two.watch()
    two.note_step(ago=11, timeout=20)
    watch.tick()
    assert [said.kind for said in two.said] == ["waiting", "waiting", "stalled"]


@pytest.mark.usefixtures("quick")
def test_another_machine_tells_of_its_own_ranks_alone(two: Ranks) -> None:
    """Its file may hold ranks that it had in an earlier attempt."""
    two.note_step(ago=40)
    path = two.run / "ranks" / "1.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"host": "n2"}))
    looks = [[1, None, 0.0, "S", "n2", "", ""], [7, None, 0.0, "", "n2", "", ""]]
    seen = two.run / "ranks" / "seen.n2.json"
    seen.write_text(json.dumps({"time": time.time(), "looks": looks}))
    two.watch(host=record["host"]).tick()
    assert "s: rank 1: its stack cannot be read, standing still; rank 0: waits" in two.said[0].text


@pytest.mark.usefixtures("quick")
def test_what_an_earlier_watch_has_left_is_over_at_the_first_step(two: Ranks) -> None:
    """Such as one that ended with its node. While the run stands, it is not over; an alert of the script never is."""
    metrics = str(two.run / "metrics")
    for kind, rank in (("stalled", 1), ("alert", None)):
        write_notice(kind, "no answer from its machine", rank=rank, folder=metrics)
    Path(metrics, "notices.rank1.9.jsonl").write_text('{"kind": "stalled"}\n{"ki')
    watch = two.watch(host="n3")
    watch.pace.joined = time.time() - 400
    watch.tick()
    assert [notice.ended for notice in read_notices(metrics)] == [None, None]
    watch.pace.note(time.time())
    watch.tick()
    ended = {notice.kind: notice.ended is not None for notice in read_notices(metrics)}
    assert ended == {"stalled": True, "alert": False}


@pytest.mark.usefixtures("quick")
def test_who_held_the_run_up_is_known_when_its_ranks_have_ended(two: Ranks) -> None:
    """The notice is over, and the reason is kept for the end of the run."""
    watch = two.watch()
    two.note_step(ago=40)
    watch.tick()
    two.end()
    watch.tick()
    assert two.said[-1].is_over
    assert watch.hang is None
    assert watch.last is not None
    assert watch.last.rank == 1


@pytest.mark.usefixtures("quick")
def test_a_rank_that_a_signal_has_stopped_is_named(
    two: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers no signal, and so has no stack; it lives on when it is continued."""
    monkeypatch.setattr("cloudtrain.runtime.hangs.stacks._ANSWER", 0.2)
    monkeypatch.setattr("cloudtrain.runtime.hangs.stacks.find_py_spy", lambda: None)
    two.processes[1].send_signal(signal.SIGSTOP)
    while usage_of(two.processes[1].pid).state != "T":  # a signal takes its time
        time.sleep(0.01)
    two.note_step(ago=40)
    two.watch().tick()
    assert "rank 1: its stack cannot be read, stopped by a signal" in two.said[0].text
    two.processes[1].send_signal(signal.SIGCONT)
    assert read_ranks(two.run)[1].is_alive


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_machine_that_does_not_answer_is_named_by_the_others(two: Ranks) -> None:
    """Each machine looks at its own ranks; the one with the lowest rank speaks. Rank 1 is on another machine here."""
    two.note_step(ago=40)
    path = two.run / "ranks" / "1.json"
    record = json.loads(path.read_text())
    host = record["host"]
    path.write_text(json.dumps(record | {"host": "n2"}))

    two.watch(host=host).tick()
    assert "rank 1: no answer from its machine `n2`" in two.said.pop().text
    two.watch(host="n2").tick()
    assert two.said == []
    two.watch(host=host).tick()
    assert two.said[0].text.endswith(WORDS)


@pytest.mark.usefixtures("quick")
def test_a_process_without_the_runtime_is_read_by_py_spy(
    two: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where py-spy is installed. The caller knows the process; a program stands in for py-spy."""
    shutil.rmtree(two.run / "ranks")
    pids = {rank: process.pid for rank, process in enumerate(two.processes)}
    py_spy = tmp_path / "py-spy"
    frames = {
        pids[0]: [
            {
                "name": "all_reduce",
                "filename": "/x/site-packages/torch/distributed/distributed_c10d.py",
                "line": 3,
            }
        ],
        pids[1]: [{"name": "load", "filename": "/code/train.py", "line": 9}],
    }
    write_program(
        py_spy,
        f"import json, sys\nframes = {frames!r}[int(sys.argv[-1])]\n"
        "print(json.dumps([{'thread_name': 'MainThread', 'frames': frames}]))\n",
    )
    monkeypatch.setattr("cloudtrain.runtime.hangs.stacks.find_py_spy", lambda: str(py_spy))
    watch = two.watch(pids=lambda: pids)
    watch.pace.joined = time.time() - 400
    monkeypatch.setattr(watch, "_began", 0.0)
    watch.tick()
    assert (
        "rank 1: in load (/code/train.py:9), standing still; rank 0: waits in all_reduce"
        in two.said[0].text
    )


@pytest.mark.usefixtures("quick")
def test_the_guilty_line_comes_from_py_spys_dump(two: Ranks) -> None:
    """The real one, on ranks without the runtime, and on one that a signal has stopped, which cannot answer itself."""
    program = find_py_spy()
    if program is None:
        skip_guard("py-spy is not installed")
    shutil.rmtree(two.run / "ranks")
    pids = {rank: process.pid for rank, process in enumerate(two.processes)}
    dump = [program, "dump", "--nonblocking", "--pid", str(pids[1])]
    answer = subprocess.run(dump, capture_output=True, text=True, check=False)
    if "ermission" in answer.stderr:
        pytest.skip("this system lets py-spy read no process")

    two.processes[1].send_signal(signal.SIGSTOP)
    waiting, guilty = two.watch(pids=lambda: pids).look(0.01)
    assert waiting.collective == Frame("all_reduce", f"{two.site}/distributed_c10d.py", 3)
    assert guilty.own == Frame("load_next_batch", f"{two.run}/train.py", 5)
    verdict = judge([waiting, guilty])
    assert verdict is not None
    assert verdict.ranks == (1,)
    assert "rank 1: in load_next_batch" in verdict.text


ON_A_CLOUD = """\
import os, sys
from cloudtrain.runtime import taking_part
from cloudtrain.runtime.hangs import watch
watch.EVERY = watch._BETWEEN = watch._AGAIN = 0.1
from torch.distributed.distributed_c10d import all_reduce
def load_next_batch():
    sys.stdin.read()
taking_part.take_part(timeout=1.0)
load_next_batch() if os.environ["RANK"] == "1" else all_reduce()
"""


class OnACloud(Ranks):
    """Two ranks that nobody watches from outside, as on an instance of a cloud."""

    def start(self, folder: Path, script: str = ON_A_CLOUD, **more: str) -> None:
        (folder / "tmp").mkdir()
        (self.run / "train.py").write_text(script)
        root = Path(cloudtrain.__file__).parents[1]
        for rank in ("0", "1"):
            variables = {
                "PYTHONPATH": f"{folder}/site-packages:{root}",
                "AZUREML_RUN_ID": "job",
                "TMPDIR": str(folder / "tmp"),
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": "2",
            }
            process = subprocess.Popen(
                [sys.executable, "train.py"],
                env=os.environ | variables | more,
                cwd=self.run,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self.processes.append(process)

    @property
    def folder(self) -> Path:
        (ranks,) = (self.run.parent / "tmp").glob("cloudtrain-*/ranks")
        return ranks

    def watcher(self) -> int:
        """The rank whose process watches."""
        deadline = time.monotonic() + DEADLINE
        pids = [str(process.pid) for process in self.processes]
        while time.monotonic() < deadline:
            for file in (self.run.parent / "tmp").glob("cloudtrain-*/ranks/watch.*"):
                holder = file.read_text()
                if holder in pids:
                    return pids.index(holder)
            time.sleep(0.02)
        raise AssertionError("nobody watches")


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[OnACloud]:
    ranks = OnACloud(tmp_path)
    yield ranks
    ranks.end()


def notices_of(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("[notice] "):
            yield json.loads(line.removeprefix("[notice] "))


def test_on_a_cloud_a_rank_prints_who_holds_the_others_up(cloud: OnACloud, tmp_path: Path) -> None:
    """One of the ranks watches, and its output is the job's log."""
    cloud.start(tmp_path)
    notices = notices_of(cloud.processes[cloud.watcher()])
    for kind in ("waiting", "waiting", "stalled"):
        notice = next(notices)
        assert (notice["kind"], notice["rank"]) == (kind, 1)
        assert "rank 1: in load_next_batch (train.py:7), " in notice["text"]


def test_another_rank_watches_when_the_first_one_is_stopped(
    cloud: OnACloud, tmp_path: Path
) -> None:
    """A rank that a signal has stopped cannot say so."""
    cloud.start(tmp_path)
    first = cloud.watcher()
    cloud.processes[first].send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + DEADLINE
    while cloud.watcher() == first:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_on_a_cloud_a_stalled_run_ends_if_the_job_asks_for_it(
    cloud: OnACloud, tmp_path: Path
) -> None:
    """All ranks of the instance end; their launcher ends the job."""
    script = ON_A_CLOUD.replace("watch.EVERY", "taking_part._GRACE = watch.EVERY")
    cloud.start(tmp_path, script, CLOUDTRAIN_STOP_WHEN_STALLED="0")
    for process in cloud.processes:
        process.wait(timeout=DEADLINE)
        assert process.returncode in (-signal.SIGTERM, -signal.SIGKILL)
