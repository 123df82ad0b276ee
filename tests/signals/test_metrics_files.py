"""The metrics files of a run: what `report` writes, and what is read back whatever has happened to the writer."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.runtime import report
from cloudtrain.runtime.metrics_file import FOLDER, MetricWriter
from cloudtrain.signals.rows import MetricRows, NewRows, newest_steps, read_files
from tests.deadlines import DEADLINE

HERE = {**os.environ, "PYTHONPATH": str(Path(cloudtrain.__file__).parents[1])}
KILLS = int(os.environ.get("CLOUDTRAIN_TEST_METRIC_KILLS", "4"))


def script(folder: Path, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script whose run has this folder."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env=HERE | {"CLOUDTRAIN_RUN_DIR": str(folder), **env},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    )


def rank(number: int, world_size: int = 2) -> dict[str, str]:
    return {"RANK": str(number), "WORLD_SIZE": str(world_size)}


def rows_in(folder: Path, **choice: object) -> MetricRows:
    return MetricRows(read_files(str(folder / FOLDER)), **choice)  # type: ignore[arg-type]


def write(folder: Path, source: str, place: str, *calls: dict[str, float]) -> None:
    """Write one attempt of a writer, a call each second."""
    writer = MetricWriter(str(folder / FOLDER), source, place)
    for moment, values in enumerate(calls):
        writer.add(values, 1000.0 + moment)
    writer.flush()
    writer.close()


REPORT = "from cloudtrain.runtime import report\n"


def test_the_format_is_what_the_documentation_says(tmp_path: Path) -> None:
    """32 bytes a row, little-endian, for readers in any language; the names beside them."""
    script(tmp_path, REPORT + "report(step=3, loss=0.5, epoch=1)\nreport(accuracy=0.25)")
    data = (tmp_path / "metrics" / "runtime.rank0.0.rows").read_bytes()
    rows = list(struct.iter_unpack("<IIddd", data))
    assert [(name, call, value) for name, call, _, _, value in rows] == [
        (0, 0, 0.5),
        (1, 0, 1.0),
        (2, 1, 0.25),
    ]
    assert [step for _, _, step, _, _ in rows[:2]] == [3.0, 3.0]
    assert math.isnan(rows[2][2])
    assert all(abs(moment - time.time()) < DEADLINE for _, _, _, moment, _ in rows)
    names = (tmp_path / "metrics" / "runtime.rank0.0.names").read_text().splitlines()
    assert [json.loads(line)["name"] for line in names] == ["loss", "epoch", "accuracy"]


def test_numpy_maps_the_rows_as_the_documentation_shows(tmp_path: Path) -> None:
    """The dtype of docs/guides/metrics.md."""
    numpy = pytest.importorskip("numpy")
    write(tmp_path, "runtime", "rank0", {"step": 1.0, "loss": 0.5}, {"step": 2.0, "loss": 0.25})
    dtype = [("name", "<u4"), ("call", "<u4"), ("step", "<f8"), ("time", "<f8"), ("value", "<f8")]
    rows = numpy.fromfile(tmp_path / "metrics" / "runtime.rank0.0.rows", dtype)
    assert rows["value"].tolist() == [0.5, 0.25]
    assert rows["step"].tolist() == [1.0, 2.0]


def test_rows_and_columns_say_the_same(tmp_path: Path) -> None:
    """Sparse metrics have their own steps, and each column says where it came from."""
    calls = [{"step": 1.0, "loss": 0.5}, {"step": 1.0, "val": 0.75}, {"loss": 0.25}]
    write(tmp_path, "runtime", "rank0", *calls)
    rows = rows_in(tmp_path)
    assert rows == calls
    columns = rows.columns()
    assert list(columns["loss"].value) == [0.5, 0.25]
    assert math.isnan(columns["loss"].step[1])
    assert list(columns["val"].step) == [1.0]
    assert list(columns["val"].time) == [1001.0]
    assert (columns["val"].source, columns["val"].rank) == ("runtime", 0)


def test_of_repeated_steps_the_newest_attempt_counts(tmp_path: Path) -> None:
    """A restarted rank goes on at its checkpoint; what it repeats is there on request."""
    first = [{"step": float(step), "loss": 1.0} for step in (1, 2, 3, 4)]
    second = [{"step": float(step), "loss": 2.0} for step in (3, 4, 5)]
    third = [{"step": 5.0, "loss": 3.0}]
    for attempt in (first, second, third):
        write(tmp_path, "runtime", "rank0", *attempt)
    assert rows_in(tmp_path) == [*first[:2], *second[:2], *third]
    assert rows_in(tmp_path, superseded=True) == [*first, *second, *third]
    assert list(rows_in(tmp_path).columns()["loss"].value) == [1.0, 1.0, 2.0, 2.0, 3.0]


@pytest.mark.parametrize("kept", [0, 1, 31, 32, 40, 63, 64])
def test_a_torn_row_is_ignored(tmp_path: Path, kept: int) -> None:
    """Only whole rows count, wherever a file ends."""
    write(tmp_path, "runtime", "rank0", {"step": 1.0, "loss": 0.5}, {"step": 2.0, "loss": 0.25})
    file = tmp_path / "metrics" / "runtime.rank0.0.rows"
    os.truncate(file, kept)
    assert len(rows_in(tmp_path)) == kept // 32
    assert newest_steps(str(tmp_path / "metrics")) == ({0: kept // 32} if kept >= 32 else {})


def test_a_reader_continues_where_it_stopped(tmp_path: Path) -> None:
    """Each row is read once, also one that was torn at the first look, and new attempts are found."""
    write(tmp_path, "runtime", "rank0", {"step": 1.0, "loss": 0.5}, {"step": 2.0, "loss": 0.25})
    file = tmp_path / "metrics" / "runtime.rank0.0.rows"
    data = file.read_bytes()
    os.truncate(file, 40)
    news = NewRows(str(tmp_path / "metrics"), ("runtime",))
    assert [values for _, values in news.read()] == [{"step": 1.0, "loss": 0.5}]
    assert list(news.read()) == []
    file.write_bytes(data)
    write(tmp_path, "runtime", "rank0", {"step": 2.0, "loss": 0.125})
    assert [values["loss"] for _, values in news.read()] == [0.25, 0.125]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("runtime.rank0.1.rows", b"x" * 64),
        ("notes.txt", b"x" * 64),
        ("runtime.rank0.rows", b"x" * 64),
        ("later.node7.0.rows", b"x" * 64),
    ],
)
def test_what_is_no_metrics_file_is_left_alone(tmp_path: Path, name: str, content: bytes) -> None:
    """Files without names, of other programs and of later versions."""
    write(tmp_path, "runtime", "rank0", {"step": 1.0, "loss": 0.5})
    (tmp_path / "metrics" / name).write_bytes(content)
    assert rows_in(tmp_path) == [{"step": 1.0, "loss": 0.5}]


def test_each_metric_comes_from_the_preferred_source(tmp_path: Path) -> None:
    """`report` before patterns before lines, name by name; values of no known form only alone."""
    write(tmp_path, "recognised", "rank0", {"step": 1.0, "guess": 4.0})
    assert rows_in(tmp_path) == [{"step": 1.0, "guess": 4.0}]
    write(tmp_path, "printed", "rank0", {"step": 1.0, "loss": 3.0})
    write(tmp_path, "patterns", "rank0", {"step": 1.0, "loss": 2.0, "speed": 7.0})
    write(tmp_path, "runtime", "rank0", {"step": 1.0, "loss": 1.0})
    columns = rows_in(tmp_path).columns()
    assert {name: column.source for name, column in columns.items()} == {
        "loss": "runtime",
        "speed": "patterns",
    }
    assert list(columns["loss"].value) == [1.0]


def test_the_lowest_rank_counts(tmp_path: Path) -> None:
    """Whichever writes first; a launcher comes after all ranks, and any rank can be asked for."""
    write(tmp_path, "patterns", "instance0", {"step": 1.0, "loss": 9.0})
    write(tmp_path, "patterns", "rank10", {"step": 1.0, "loss": 10.0, "only": 1.0})
    write(tmp_path, "patterns", "rank2", {"step": 1.0, "loss": 2.0})
    columns = rows_in(tmp_path).columns()
    assert (list(columns["loss"].value), columns["loss"].rank) == ([2.0], 2)
    assert columns["only"].rank == 10
    assert list(rows_in(tmp_path, rank=10).columns()["loss"].value) == [10.0]


def test_other_ranks_write_their_step_once_a_second(tmp_path: Path) -> None:
    """The last one always, and no value; nothing of it is a row of the run."""
    code = REPORT + "for step in range(2000): report(step=step, loss=0.5)"
    assert script(tmp_path, code, **rank(1)).stdout == ""
    script(tmp_path, REPORT + "report(step=7, loss=0.5)", **rank(0))
    assert newest_steps(str(tmp_path / "metrics")) == {0: 7.0, 1: 1999.0}
    assert (tmp_path / "metrics" / "runtime.rank1.0.rows").stat().st_size <= 32 * 10
    assert rows_in(tmp_path) == [{"step": 7.0, "loss": 0.5}]


def test_every_rank_writes_its_values_on_request(tmp_path: Path) -> None:
    """`report("every", ...)`; only rank 0 prints."""
    for number in (0, 1):
        code = REPORT + f"report('every', step=1, wait={number}.5)"
        lines = script(tmp_path, code, **rank(number)).stdout.splitlines()
        assert len(lines) == 1 - number
    assert list(rows_in(tmp_path, rank=1).columns()["wait"].value) == [1.5]
    assert rows_in(tmp_path) == [{"step": 1.0, "wait": 0.5}]


def test_instances_that_are_all_rank_0_have_their_own_files(tmp_path: Path) -> None:
    """SageMaker starts such copies of a script without a distribution."""
    for number in ("0", "1"):
        env = {"CLOUDTRAIN_INSTANCE": number, "CLOUDTRAIN_INSTANCE_COUNT": "2"}
        script(tmp_path, REPORT + f"report(step=1, loss={number})", **env)
    assert {path.name for path in (tmp_path / "metrics").glob("*.rows")} == {
        "runtime.instance0.0.rows",
        "runtime.instance1.0.rows",
    }


def test_lines_are_thinned_and_values_are_not(tmp_path: Path) -> None:
    """The first and the last line are printed, at most ten in a second."""
    code = REPORT + "for step in range(5000): report(step=step, loss=step / 2)"
    began = time.monotonic()
    lines = script(tmp_path, code).stdout.splitlines()
    assert len(lines) <= 10 * (time.monotonic() - began + 2)
    assert lines[0] == "[metrics] step=0 loss=0"
    assert lines[-1] == "[metrics] step=4999 loss=2499.5"
    assert list(rows_in(tmp_path).columns()["loss"].value) == [step / 2 for step in range(5000)]


@pytest.mark.slow
@pytest.mark.parametrize("env", [{}, {"CLOUDTRAIN_RUN_DIR": "/nonexistent/run"}])
def test_every_line_is_printed_where_nothing_is_written(
    tmp_path: Path, env: dict[str, str]
) -> None:
    """On the clouds, and where the folder is gone: what follows the first failure is printed."""
    code = REPORT + (
        "import time\nreport(step=0)\ntime.sleep(1.2)\nfor step in range(1, 101): report(step=step)"
    )
    env = {"CLOUDTRAIN_RUN_DIR": "", **env}
    assert len(script(tmp_path, code, **env).stdout.splitlines()) == 101


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, 20, 100, 1000, 4096])
def test_a_full_disk_stops_the_metrics_only(tmp_path: Path, limit: int) -> None:
    """The script goes on to its end, and what is in the file is whole."""
    code = REPORT + (
        f"import resource, time\nresource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "for step in range(50):\n    report(step=step, loss=step)\n"
        "time.sleep(0.6)\nfor step in range(50, 200):\n    report(step=step, loss=step)\n"
        "print('done')"
    )
    assert script(tmp_path, code).stdout.splitlines()[-1] in ("done", "[metrics] step=199 loss=199")
    values = [values["loss"] for values in rows_in(tmp_path)]
    assert values == list(map(float, range(len(values))))
    assert len(values) == (0 if limit < 20 else limit // 32)


@pytest.mark.slow
def test_a_disk_with_room_again_gets_the_rest(tmp_path: Path) -> None:
    """No row is lost by a short write, and none is doubled."""
    code = REPORT + (
        "import resource, time\nresource.setrlimit(resource.RLIMIT_FSIZE, (100, -1))\n"
        "for step in range(50): report(step=step, loss=step)\n"
        "time.sleep(1.2)\nresource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))\n"
        "report(step=50, loss=50)"
    )
    script(tmp_path, code)
    assert [values["loss"] for values in rows_in(tmp_path)] == list(map(float, range(51)))


@pytest.mark.slow
def test_a_file_system_that_hangs_stops_no_step(tmp_path: Path) -> None:
    """`report` returns at once, and the process ends."""
    code = REPORT + (
        "import time\nfrom cloudtrain.runtime.metrics_file import MetricWriter\n"
        "MetricWriter.flush = lambda self: time.sleep(3600)\n"
        "report(step=0)\ntime.sleep(0.7)\nbegan = time.thread_time()\n"
        "for step in range(1000): report(step=step, loss=1)\n"
        "assert time.thread_time() - began < 1\nprint('done')"
    )
    assert "done" in script(tmp_path, code).stdout


def test_a_forked_process_writes_nothing_twice(tmp_path: Path) -> None:
    """A worker of a data loader inherits what its parent has not written yet."""
    code = REPORT + (
        "import os\nreport(step=1, loss=0.5)\nif os.fork() == 0: raise SystemExit\nos.wait()"
    )
    script(tmp_path, code)
    assert rows_in(tmp_path) == [{"step": 1.0, "loss": 0.5}]


def test_a_process_of_multiprocessing_writes_all(tmp_path: Path) -> None:
    """It runs no exit handlers of Python; what it reported last is written and printed."""
    code = REPORT + (
        "import multiprocessing\n"
        "def work():\n    for step in range(100): report(step=step, loss=step)\n"
        "process = multiprocessing.get_context('fork').Process(target=work)\n"
        "process.start()\nprocess.join()"
    )
    lines = script(tmp_path, code).stdout.splitlines()
    assert lines[-1] == "[metrics] step=99 loss=99"
    assert len(rows_in(tmp_path)) == 100


def test_a_value_without_a_name_is_refused() -> None:
    """Also on ranks that would write nothing."""
    with pytest.raises(ValueError, match="neither"):
        report(0.25)  # type: ignore[arg-type]


ENDLESS = REPORT + "step = 0\nwhile True:\n    step += 1\n    report(step=step, loss=step)"


@pytest.mark.slow
def test_a_killed_rank_loses_and_doubles_no_row_that_was_written(tmp_path: Path) -> None:
    """SIGKILL at random moments: what a reader has seen stays, in order and whole."""
    moments = random.Random(KILLS)
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        env = HERE | {"CLOUDTRAIN_RUN_DIR": str(folder)}
        process = subprocess.Popen(
            [sys.executable, "-c", ENDLESS], env=env, stdout=subprocess.DEVNULL
        )
        news = NewRows(str(folder / "metrics"), ("runtime",))
        seen: list[float] = []
        deadline = time.monotonic() + DEADLINE
        while not seen and time.monotonic() < deadline:
            seen += [values["loss"] for _, values in news.read()]
        time.sleep(moments.uniform(0, 1.2))
        seen += [values["loss"] for _, values in news.read()]
        process.send_signal(signal.SIGKILL)
        process.wait()
        kept = list(rows_in(folder).columns()["loss"].value)
        # on a busy disk, calls are dropped before they are written
        assert kept == sorted(set(kept))
        assert kept[: len(seen)] == seen
