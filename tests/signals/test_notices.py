"""Notices: what a script and its watchers write at once, and what is read back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cloudtrain.plans.progress import Notice
from cloudtrain.runtime import alert
from cloudtrain.runtime.metrics_file import FOLDER
from cloudtrain.runtime.notices import write_notice
from cloudtrain.signals.notices import newest_of, parse_notices, read_notices
from tests.signals.test_metrics_files import HERE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder for metrics of the run of this process."""
    monkeypatch.setenv("CLOUDTRAIN_RUN_DIR", str(tmp_path))
    return str(tmp_path / FOLDER)


def only(folder: str) -> Notice:
    (notice,) = read_notices(folder)
    return notice


def test_an_alert_is_read_back(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its rank where there are several, and without where there is one."""
    alert("the loss doubled")
    assert only(folder)[:2] == ("alert", "the loss doubled")
    assert only(folder).rank is None
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    alert("so did mine")
    assert [(found.text, found.rank) for found in read_notices(folder)] == [
        ("the loss doubled", None),
        ("so did mine", 1),
    ]


def test_a_text_is_safe_to_show(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line without control characters and secrets, of at most 500 characters."""
    monkeypatch.setenv("CLOUDTRAIN_SECRETS", '{"TOKEN": "env:TOKEN", "ABSENT": "ssm:absent"}')
    monkeypatch.setenv("TOKEN", "hunter2")
    alert("a\x1b[31m\nhunter2\u202eb" + 600 * "x")
    text = only(folder).text
    assert text.startswith("a [31m *** bxx")
    assert len(text) == 500


def test_without_a_folder_a_notice_is_a_line_of_output(capsys: pytest.CaptureFixture[str]) -> None:
    """As on the clouds, and where the disk is full; readers of logs find it behind a prefix."""
    write_notice("idle", "2 GPUs: [notice] {}", rank=3, folder="/dev/null/full")
    line = capsys.readouterr().out
    assert line.startswith("[notice] {")
    (found,) = parse_notices(["step 1", f"[rank3] {line}", "[notice] {", '[notice] {"kind": 1}'])
    assert found[:2] == ("idle", "2 GPUs: [notice] {}")
    assert found.rank == 3


def test_the_newest_line_of_a_state_counts(folder: str) -> None:
    """It keeps the time at which it began; another rank, another kind and each alert stand apart."""
    write_notice("stalled", "rank 1 is in load", rank=1)
    began = only(folder).time
    write_notice("stalled", "it goes on", rank=1, ended=began + 5)
    assert only(folder) == Notice("stalled", "it goes on", began, 1, began + 5)
    write_notice("stalled", "rank 1 is in save", rank=1)
    assert only(folder).time > began
    write_notice("stalled", "rank 2 is in load", rank=2)
    alert("one")
    alert("two")
    alert("two")
    texts = [found.text for found in read_notices(folder)]
    assert texts == ["rank 1 is in save", "rank 2 is in load", "one", "two"]


def test_a_line_that_a_full_disk_cut_off_spoils_no_other(folder: str) -> None:
    """Nor does anything else that stands in the file."""
    alert("one")
    (file,) = Path(folder).iterdir()
    with file.open("ab") as stream:
        stream.write(b'{"kind": "alert", "te')
    assert len(read_notices(folder)) == 1
    alert("two")
    with file.open("ab") as stream:
        stream.write(b'\xff\nnull\n{"kind": "alert", "text": [], "time": 0}\n')
    assert [found.text for found in read_notices(folder)] == ["one", "two"]


def test_each_process_has_a_file(folder: str) -> None:
    """So that no two write into the same one, on a file system of several machines either."""
    code = "from cloudtrain.runtime import alert; alert('{}')"
    for rank in "01":
        environ = HERE | {"CLOUDTRAIN_RUN_DIR": str(Path(folder).parent), "RANK": rank}
        environ["WORLD_SIZE"] = "2"
        subprocess.run([sys.executable, "-c", code.format(rank)], env=environ, check=True)
    assert len(list(Path(folder).iterdir())) == 2
    assert {(found.text, found.rank) for found in read_notices(folder)} == {("0", 0), ("1", 1)}


def test_a_process_cannot_fill_the_disk_with_notices(tmp_path: Path) -> None:
    """A thousand are enough."""
    code = "from cloudtrain.runtime import alert\nfor step in range(1100): alert(f'{step}')"
    environ = HERE | {"CLOUDTRAIN_RUN_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True)
    assert len(read_notices(str(tmp_path / FOLDER))) == 1000


def test_a_run_without_a_folder_has_no_notices(tmp_path: Path) -> None:
    assert read_notices(str(tmp_path / "absent")) == []
    assert newest_of([]) == []
