"""Following files that grow: no line is lost, none comes twice. Needs no cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtrain.targets.slurm.runner import Runner
from cloudtrain.targets.slurm.transfer import ClusterLog
from tests.examples import examples

TEXT = st.text(
    st.characters(blacklist_characters="\n\r", blacklist_categories=("Cs",)), max_size=20
)


def log_of(folder: Path, **options: int) -> ClusterLog:
    return ClusterLog(Runner(None, dict(os.environ), folder), str(folder), **options)


def write(folder: Path, name: str, data: bytes) -> None:
    file = folder / "logs" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as stream:
        stream.write(data)


@pytest.mark.slow
@settings(max_examples=examples(15))
@given(lines=st.lists(TEXT, max_size=6), cuts=st.lists(st.integers(0, 60), max_size=4))
def test_wherever_it_is_cut(tmp_path_factory, lines: list[str], cuts: list[int]) -> None:  # type: ignore[no-untyped-def]
    """However a file grows, in the middle of a line or of a character, its lines come once and in order."""
    folder = tmp_path_factory.mktemp("log")
    data, log, seen, done = "\n".join(lines).encode(), log_of(folder), [], 0
    for cut in [*sorted(cut for cut in cuts if cut < len(data)), len(data)]:
        write(folder, "0/node_0.rank_0.stdout.log", data[done:cut])
        done = cut
        seen += [line.text for line in log.new_lines()]
    seen += [line.text for line in log.rest()]
    assert seen == (lines if not lines or lines[-1] else lines[:-1])


def test_restarts_in_order(tmp_path: Path) -> None:
    """The output of a restart comes after that of the start before, and every process is told apart."""
    write(tmp_path, "1/node_0.rank_0.stdout.log", b"again\n")
    write(tmp_path, "0/node_1.rank_1.stderr.log", b"other\n")
    write(tmp_path, "0/node_0.rank_0.stdout.log", b"first\n")
    write(tmp_path, "0/node_0.launcher.stderr.log", b"launcher\n")
    write(tmp_path, "0/notes.txt", b"not a log\n")
    lines = list(log_of(tmp_path).new_lines())
    assert [(line.instance, line.rank, line.stream, line.text) for line in lines] == [
        (0, None, "stderr", "launcher"),
        (0, 0, "stdout", "first"),
        (1, 1, "stderr", "other"),
        (0, 0, "stdout", "again"),
    ]
    assert [line.text for line in log_of(tmp_path, rank=1).new_lines()] == ["other"]
    assert [line.text for line in log_of(tmp_path, instance=0).new_lines()] == [
        "launcher",
        "first",
        "again",
    ]


def test_progress_bars(tmp_path: Path) -> None:
    """Of a progress bar the last state is kept; bytes that are no text do no harm."""
    write(tmp_path, "0/node_0.rank_0.stderr.log", b"1%\r50%\r100%\r\n\xff\xfe\n")
    assert [line.text for line in log_of(tmp_path).new_lines()] == ["100%", "��"]


def test_more_than_one_reading(tmp_path: Path) -> None:
    """A file that is longer than one reading is read to its end, and an endless line in parts."""
    write(tmp_path, "0/node_0.rank_0.stdout.log", b"x" * 5 * 2**20 + b"\nend\n")
    texts = [line.text for line in log_of(tmp_path).new_lines()]
    assert sum(map(len, texts)) == 5 * 2**20 + 3
    assert texts[-1] == "end"
