"""Files that other programs remove or replace while the source folder is being read, as editors do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.code.data import UnreadableData, read_data
from cloudtrain.code.ignore import IGNORE_FILE, INCLUDE_FILE
from cloudtrain.code.tree import Tree, scan
from cloudtrain.errors import JobError

Change = Callable[[Path], object]


class Listing:
    """What `os.scandir` returns, with a change to the folder after it was read to its end."""

    def __init__(self, listing: Any, change: Callable[[], object]) -> None:
        self._listing, self._change = listing, change

    def __enter__(self) -> Iterator[os.DirEntry[str]]:
        return iter(self._listing)

    def __exit__(self, *_: object) -> None:
        self._listing.close()
        self._change()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a script, and one item of each kind that may go."""
    folder = tmp_path / "src"
    (folder / "work").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "model.py").write_text("x = 1\n")
    (folder / "work/part.py").write_text("y = 1\n")
    (folder / "link.py").symlink_to("train.py")
    return folder


def after_listings(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *changes: Callable[[], object]
) -> None:
    """Make one of the changes after each listing of the folder, as long as some are left."""
    left, scandir = list(changes), os.scandir

    def listing(place: Any) -> Any:
        found = scandir(place)
        return Listing(found, left.pop(0)) if os.fspath(place) == str(folder) and left else found

    monkeypatch.setattr(os, "scandir", listing)


def before_opening(monkeypatch: pytest.MonkeyPatch, file: Path, change: Change) -> None:
    """Make the change when the file is opened for the first time."""
    left, opening = [change], os.open

    def opened(place: Any, *arguments: Any, **words: Any) -> int:
        if os.fspath(place) == str(file) and left:
            left.pop()(file)
        return opening(place, *arguments, **words)

    monkeypatch.setattr(os, "open", opened)


def become_a_link(file: Path) -> None:
    """Be replaced by a link to another file."""
    file.unlink()
    file.symlink_to("train.py")


def become_a_folder(file: Path) -> None:
    """Be replaced by a folder with a file."""
    file.unlink()
    file.mkdir()
    (file / "inside.py").write_text("z = 1\n")


def become_a_file(place: Path) -> None:
    """Be replaced by a file."""
    if place.is_symlink():
        place.unlink()
    else:
        remove_folder(place)
    place.write_text("now = 1\n")


def get_another_name(file: Path) -> None:
    """Be renamed within the folder."""
    file.rename(file.with_name("zoo.py"))


def remove_folder(folder: Path) -> None:
    """Be removed with all files."""
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def own(tree: Tree) -> list[tuple[str, str]]:
    """The path and kind of everything that comes from the user's folder."""
    return [(entry.path, entry.kind) for entry in tree.entries if entry.path not in tree.own_files]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("model.py", Path.unlink),
        ("model.py", get_another_name),
        ("model.py", become_a_link),
        ("model.py", become_a_folder),
        ("link.py", Path.unlink),
        ("link.py", become_a_file),
        ("work", remove_folder),
        ("work", become_a_file),
    ],
)
def test_an_item_that_goes_after_the_listing_is_no_error(
    source: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: Change
) -> None:
    """The bundle is the one of the folder as it is afterwards, and nothing is missing that only has a new name."""
    after_listings(monkeypatch, source, lambda: change(source / name))
    found = scan(source)
    monkeypatch.undo()
    assert own(found) == own(scan(source))
    assert found.sha256 == scan(source).sha256


@pytest.mark.parametrize("change", [Path.unlink, get_another_name, become_a_link, become_a_folder])
def test_a_file_that_goes_before_it_is_read_is_no_error(
    source: Path, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    """The same between the walk and the reading of the file's content."""
    before_opening(monkeypatch, source / "model.py", change)
    found = scan(source)
    monkeypatch.undo()
    assert own(found) == own(scan(source))
    assert found.sha256 == scan(source).sha256


@pytest.mark.parametrize(
    ("name", "text"), [(IGNORE_FILE, "model.py\n"), (INCLUDE_FILE, "../beside.py\n")]
)
def test_a_list_that_goes_after_the_listing_no_longer_applies(
    source: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    """An ignore file or include file that an editor replaces is looked for again."""
    (source.parent / "beside.py").write_text("")
    before = own(scan(source))
    (source / name).write_text(text)
    after_listings(monkeypatch, source, (source / name).unlink)
    assert own(scan(source)) == before


def test_an_included_file_that_goes_is_reported_as_missing(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second look at the include file finds its line to be wrong."""
    beside = source.parent / "beside.py"
    beside.write_text("")
    (source / INCLUDE_FILE).write_text("../beside.py\n")
    before_opening(monkeypatch, beside, Path.unlink)
    with pytest.raises(JobError) as caught:
        scan(source)
    assert [(problem.message, problem.code) for problem in caught.value.problems] == [
        ("`../beside.py` does not exist", "CT055")
    ]


def test_a_source_folder_that_goes_is_reported_as_missing(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is the one for a folder that never existed."""
    after_listings(monkeypatch, source, lambda: source.rename(source.with_name("moved")))
    with pytest.raises(JobError, match=r"the folder `.*src` does not exist"):
        scan(source)


def test_the_lock_of_an_editor_is_left_out(source: Path) -> None:
    """Emacs makes a link to nothing beside a file with unsaved changes; other links to nothing are errors still."""
    before = scan(source)
    (source / ".#train.py").symlink_to("me@here.4711:1763712000")
    (source / ".#notes").write_text("")
    after = scan(source)
    assert own(after) == [(".#notes", "file"), *own(before)]
    assert [item.path for item in after.ignored] == [".#train.py"]
    (source / "lock").symlink_to("me@here.4711:1763712000")
    with pytest.raises(JobError, match="the link `lock` points to"):
        scan(source)


def test_data_that_goes_is_looked_for_again(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's data may also be written while it is listed or read; a link to nothing stays an error at once."""
    after_listings(monkeypatch, source, (source / "model.py").unlink)
    before_opening(monkeypatch, source / "work/part.py", get_another_name)
    assert [file.path for file in read_data(str(source)).files] == [
        "link.py",
        "train.py",
        "work/zoo.py",
    ]
    (source / "link.py").unlink()
    (source / "link.py").symlink_to("nothing")
    monkeypatch.setattr(time, "sleep", pytest.fail)
    with pytest.raises(UnreadableData, match=r"link\.py` cannot be read: No such file"):
        read_data(str(source))


def test_a_folder_that_never_rests_is_an_error_that_says_so(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some attempts, the error names the path and what to do about it; no attempt comes at once."""
    pauses: list[float] = []

    def write_and_wait(seconds: float) -> None:
        pauses.append(seconds)
        (source / "out [1].tmp").write_text("")

    monkeypatch.setattr(time, "sleep", write_and_wait)
    after_listings(monkeypatch, source, *[(source / "out [1].tmp").unlink] * 100)
    with pytest.raises(JobError) as caught:
        scan(source)
    assert pauses == sorted(pauses)
    assert sum(pauses) < 5
    [problem] = caught.value.problems
    assert problem.code == "CT963"
    assert problem.message == (
        f"`out [1].tmp` was removed or replaced while `source_dir` was being read, {len(pauses) + 1} times in a row"
    )
    assert problem.hint == (
        "run the command again when no program is writing to `source_dir`, "
        "or if the job does not need it, add the line `/out \\[1].tmp` to `.cloudtrainignore`"
    )
