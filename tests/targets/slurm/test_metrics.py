"""Metrics files on a cluster are copied as they grow. Needs no cluster."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cloudtrain.runtime.metrics_file import MetricWriter
from cloudtrain.signals.rows import MetricRows, read_files
from cloudtrain.targets.slurm import transfer
from cloudtrain.targets.slurm.runner import Runner
from cloudtrain.targets.slurm.scripts import parse_records
from cloudtrain.targets.slurm.service import status_of


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "logs").mkdir(parents=True)
    return folder


def copied(run: Path, cache: Path) -> list[dict[str, float]]:
    """What is read after the next copy."""
    runner = Runner(None, dict(os.environ), run)
    assert transfer.copy_metrics(runner, str(run), cache) == (run / "metrics").is_dir()
    return list(MetricRows(read_files(str(cache))))


def test_only_what_is_new_is_copied(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows come once and in order, also in small pieces, after a torn end and from several ranks."""
    monkeypatch.setattr(transfer, "_MOST", 50)
    cache = run.parent / "cache"
    assert copied(run, cache) == []
    assert not cache.exists()

    writer = MetricWriter(str(run / "metrics"), "runtime", "rank0")
    other = MetricWriter(str(run / "metrics"), "runtime", "rank1")
    wanted = []
    for step in range(4):
        values = {"step": float(step), "loss": 1 / (step + 1), f"more{step}": 2.0}
        wanted.append(values)
        writer.add(values, 1000.0 + step)
        writer.flush()
        other.add({"step": float(step)}, 1000.0)
        other.flush()
        rows = run / "metrics" / "runtime.rank0.0.rows"
        whole = rows.read_bytes()
        rows.write_bytes(whole + b"torn"[:step])
        assert copied(run, cache) == wanted
        rows.write_bytes(whole)
    assert {path.name: path.read_bytes() for path in (run / "metrics").iterdir()} == {
        path.name: path.read_bytes() for path in cache.iterdir()
    }


def test_other_files_stay_there(run: Path) -> None:
    """Only files of the format are copied, whatever is in the folder."""
    (run / "metrics").mkdir()
    for name in ("runtime.rank0.0.rows", "notes.rows", "x y.names", "run time.rank0.0.rows"):
        (run / "metrics" / name).write_bytes(b"")
    (run / "metrics" / "runtime.rank1.0.rows").mkdir()
    assert copied(run, run.parent / "cache") == []


@pytest.mark.parametrize(
    "command", ["echo Invalid job id specified; exit 1", "echo 'r|RUNNING||1|2|3'"]
)
def test_a_status_has_the_notices_of_the_run(
    run: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each state once, as its newest line has it; what is no notice is left out."""
    programs = run.parent / "bin"
    programs.mkdir()
    for name, text in {"squeue": command, "sacct": "true"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    (run / "job").symlink_to("7")
    (run / "metrics").mkdir()
    lines = [
        {"kind": "waiting", "text": "rank 1", "time": 1.0, "rank": 1},
        {"kind": "waiting", "text": "rank 1", "time": 2.0, "rank": 1, "ended": 3.0},
        {"kind": "alert", "text": "hot", "time": 4.0},
    ]
    texts = [*map(json.dumps, lines), "torn"]
    (run / "metrics" / "notices.rank1.jsonl").write_text("\n".join(texts))
    runner = Runner(None, dict(os.environ), run.parent)
    (record,) = parse_records(runner.run("status", str(run.parent), "run"))
    notices = status_of(record, bytes).notices
    assert [(notice.text, notice.ended) for notice in notices] == [("rank 1", 3.0), ("hot", None)]
