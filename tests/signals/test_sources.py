"""Where the metrics of a run come from, on this machine and through the public API."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.runtime.metrics_file import FOLDER
from cloudtrain.signals.log import LogIndex
from tests.deadlines import DEADLINE
from tests.signals.test_metrics_files import HERE, KILLS

pytestmark = pytest.mark.lifecycle


def submitted(folder: Path, script: str, **fields: object) -> ct.Run:
    (folder / "src").mkdir(exist_ok=True)
    (folder / "src" / "train.py").write_text(script)
    job = {"name": "plain", "source_dir": str(folder / "src"), "entry_point": "train.py", **fields}
    return ct.submit(ct.TrainingJob.model_validate(job))


def run_of(folder: Path, script: str, **fields: object) -> ct.Run:
    """A script that has ended."""
    run = submitted(folder, script, **fields)
    assert run.wait().state is ct.RunState.SUCCEEDED
    return run


def sources(run: ct.Run) -> dict[str, str]:
    return {name: column.source for name, column in run.metrics().columns().items()}


def test_a_script_without_a_word_of_metrics_has_curves(tmp_path: Path) -> None:
    """Its lines are recognised, because there is nothing else."""
    script = "for step in range(1, 9):\n    print(f'step {step} loss: {1 / step:.3f}')"
    run = run_of(tmp_path, script)
    column = run.metrics().columns()["loss"]
    assert column.source == "recognised"
    assert list(column.step)[-3:] == [6.0, 7.0, 8.0]
    assert column.value[-1] == 0.125
    assert abs(column.time[-1] - time.time()) < 900


def test_recognition_can_be_switched_off(tmp_path: Path) -> None:
    """With `metrics: none`, which no target gets to see."""
    script = "for step in range(1, 9):\n    print(f'step {step} loss: {1 / step:.3f}')"
    run = run_of(tmp_path, script, metrics="none")
    assert run.metrics() == []
    assert "metrics" not in run.show().plan["request"]


def test_files_of_libraries_come_before_lines(tmp_path: Path) -> None:
    """Lightning's CSV of this run, restarts included, and not one that the code came with."""
    script = (
        "import pathlib\n"
        "for version, steps in ((0, (1, 2, 3)), (1, (3, 4))):\n"
        "    folder = pathlib.Path('lightning_logs', f'version_{version}')\n"
        "    folder.mkdir(parents=True)\n"
        "    rows = [f'0,{step},{version}.5' for step in steps]\n"
        "    (folder / 'metrics.csv').write_text('\\n'.join(['epoch,step,train_loss', *rows, '']))\n"
        "    for step in steps: print(f'step {step} loss: 0.1')\n"
    )
    (tmp_path / "src" / "old").mkdir(parents=True)
    (tmp_path / "src" / "old" / "metrics.csv").write_text("step,stale\n1,1.0\n")
    run = run_of(tmp_path, script)
    assert sources(run).keys() == {"train_loss", "epoch"}
    column = run.metrics().columns()["train_loss"]
    assert column.source == "lightning"
    assert list(zip(column.step, column.value, strict=True)) == [
        (1.0, 0.5),
        (2.0, 0.5),
        (3.0, 1.5),
        (4.0, 1.5),
    ]


def test_what_report_wrote_is_preferred(tmp_path: Path) -> None:
    """To a pattern of the job and to lines, name by name."""
    script = (
        "from cloudtrain import runtime\n"
        "for step in range(1, 6):\n"
        "    runtime.report(step=step, loss=1.0)\n"
        "    print(f'step {step} loss: 2.0 speed: 7.0')\n"
    )
    metrics = {"loss": "loss: ([0-9.]+)", "speed": "speed: ([0-9.]+)"}
    run = run_of(tmp_path, script, metrics=metrics)
    assert sources(run) == {"loss": "runtime", "speed": "patterns"}


def _as_earlier_versions_wrote_it(run: ct.Run) -> None:
    """No metrics files, and the values beside the lines in the journal."""
    assert run.directory is not None
    shutil.rmtree(run.directory / FOLDER, ignore_errors=True)
    records = []
    for line in run.logs():
        record = {**line._asdict(), "attempt": 0}
        if "loss: " in line.text:
            record["values"] = {"loss": float(line.text.rpartition(" ")[2])}
        records.append(json.dumps(record))
    (run.directory / "output.jsonl").write_text("".join(f"{record}\n" for record in records))
    (run.directory / "output.index").unlink()
    shutil.rmtree(run.directory / "logs")


def _long_over(run: ct.Run) -> None:
    """What is read of it now is kept."""
    assert run.directory is not None
    status = run.directory / "status.json"
    status.write_text(json.dumps(json.loads(status.read_text()) | {"ended": time.time() - 3600}))


@pytest.mark.parametrize(
    ("line", "metrics"),
    [
        ("'[metrics] step=1 loss=0.5'", {}),
        ("'step 1 loss: 0.5'", {"loss": "loss: ([0-9.]+)"}),
        ("'step 1 \"loss: 0.5'", {"loss": "loss: ([0-9.]+)"}),
    ],
)
def test_runs_of_earlier_versions_are_read(
    tmp_path: Path, line: str, metrics: dict[str, str]
) -> None:
    """From their journal; the lines are as they were."""
    run = run_of(tmp_path, f"print({line})", metrics=metrics)
    before = [item.text for item in run.logs()]
    _as_earlier_versions_wrote_it(run)
    assert run.metrics() == [{"step": 1.0, "loss": 0.5}]
    assert [item.text for item in run.logs()] == before


def test_a_log_is_read_in_any_thread(tmp_path: Path) -> None:
    """A search can be interrupted in the main thread only, as a notebook's may not be."""
    run = run_of(tmp_path, "print('step 1 loss: 0.5')", metrics={"loss": "loss: ([0-9.]+)"})
    _as_earlier_versions_wrote_it(run)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run.metrics).result() == [{"step": 1.0, "loss": 0.5}]


def test_the_log_of_a_run_that_is_over_is_read_once(tmp_path: Path) -> None:
    """What was found is kept, and goes with the run."""
    run = run_of(tmp_path, "print('step 1 loss: 0.5')", metrics={"loss": "loss: ([0-9.]+)"})
    _as_earlier_versions_wrote_it(run)
    _long_over(run)
    found = run.metrics()
    assert run.directory is not None
    (run.directory / "output.jsonl").write_text("")
    assert run.metrics() == found == [{"step": 1.0, "loss": 0.5}]
    kept = Path(os.environ["CLOUDTRAIN_STATE_DIR"], "metrics", run.name)
    assert kept.is_dir()
    run.remove()
    assert not kept.exists()


def test_lines_without_metrics_are_not_read_again(tmp_path: Path) -> None:
    """While a script runs; but all are, for what the new lines of a table need."""
    script = (
        "import pathlib, time\nprint('epoch  train_loss  acc', flush=True)\n"
        f"while not pathlib.Path({str(tmp_path)!r}, 'go').exists(): time.sleep(0.01)\n"
        "for epoch in range(3): print(f'{epoch}  0.{9 - epoch}  0.{epoch}', flush=True)\n"
    )
    run = submitted(tmp_path, script)
    next(run.logs(follow=True))
    assert run.metrics() == []
    assert run.metrics() == []
    (tmp_path / "go").touch()
    assert run.wait(DEADLINE).state is ct.RunState.SUCCEEDED
    assert list(run.metrics().columns()["train_loss"].value) == [0.9, 0.8, 0.7]


@pytest.mark.slow
def test_a_log_without_metrics_is_read_once(tmp_path: Path) -> None:
    """Of a run on this machine that has just ended."""
    run = run_of(tmp_path, "for i in range(5): print('reading block', i)")
    assert run.metrics() == []
    other = run_of(tmp_path, "for i in range(5): print('step', i, 'loss', 0.5)")
    assert run.directory is not None
    assert other.directory is not None
    for name in ("output.index", "output.sources"):
        shutil.copy(other.directory / name, run.directory / name)
    shutil.copytree(other.directory / "logs", run.directory / "logs", dirs_exist_ok=True)
    assert list(run.logs()) == list(other.logs())
    assert run.metrics() == []
    assert len(other.metrics()) == 5


def test_newest_lines_come_first(tmp_path: Path) -> None:
    """Of all ranks or of one, whatever is in them, and no older ones than asked for."""
    script = (
        "import time\nfor number in range(3000): print(number, '\\u00e9 \"quoted\" \\\\n' * 9)\n"
        "time.sleep(0.5)\nprint('last', flush=True)"
    )
    run = run_of(tmp_path, script)
    lines = list(run.logs())
    assert len(lines) == 3001
    assert newest(run.log_index()) == lines[::-1]
    assert newest(run.log_index(rank=0)) == lines[::-1]
    assert newest(run.log_index(rank=1)) == []
    since = run.log_index().newest(lines[-1].time)
    assert [text for batch in since for text in batch.texts] == ["last"]


def newest(index: LogIndex) -> list[ct.LogLine]:
    """The lines of a log, the newest first."""
    return [line for batch in index.newest() for line in [*batch.lines()][::-1]]


PRINTS = (
    "import time\nfor step in range(1, 100_000):\n    print(f'step {step} loss: {step}', flush=True)\n"
    "    time.sleep(0.001)"
)


@pytest.mark.slow
def test_a_killed_supervisor_doubles_no_row(tmp_path: Path) -> None:
    """SIGKILL at random moments: the rows that it wrote stay, in order and whole, and the lost run ends."""
    moments = random.Random(KILLS)
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = submitted(folder, PRINTS, metrics={"loss": "loss: ([0-9]+)"})
        assert run.directory is not None
        next(run.logs(follow=True))
        time.sleep(moments.uniform(0, 0.5))
        seen = list(run.metrics().columns()["loss"].value)
        pid = json.loads((run.directory / "status.json").read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        assert run.wait(DEADLINE).state is ct.RunState.LOST
        kept = list(run.metrics().columns()["loss"].value)
        assert kept == list(map(float, range(1, len(kept) + 1)))
        assert kept[: len(seen)] == seen


READS = "import sys, cloudtrain as ct\nprint('up', flush=True)\nct.run(sys.argv[1]).metrics()"


@pytest.mark.slow
def test_a_killed_reader_leaves_nothing_behind(tmp_path: Path) -> None:
    """SIGKILL at random moments while a log is read for the first time: the next one reads all of it."""
    moments = random.Random(KILLS)
    script = "for step in range(1, 20_001): print(f'step {step} loss: {step}')"
    run = run_of(tmp_path, script, metrics={"loss": "loss: ([0-9]+)"})
    _as_earlier_versions_wrote_it(run)
    _long_over(run)
    for _ in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, "-c", READS, run.name], env=HERE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(moments.uniform(0, 1))
        process.kill()
        process.communicate()
        assert list(run.metrics().columns()["loss"].value) == list(map(float, range(1, 20_001)))
        shutil.rmtree(Path(os.environ["CLOUDTRAIN_STATE_DIR"], "metrics", run.name))
