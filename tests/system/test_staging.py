"""Files from elsewhere come into a folder together or not at all, and nothing is written outside of it."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cloudtrain.system.staging import Staging, Unsafe, safe_name, safe_target
from tests.examples import examples


def everything(root: Path) -> dict[str, str]:
    """Every path below a folder, and what is there: a file's text, a link's target, or nothing for a folder."""
    found = {}
    for path in paths_below(root):
        name = path.relative_to(root).as_posix()
        found[name] = (
            str(path.readlink())
            if path.is_symlink()
            else path.read_text()
            if path.is_file()
            else ""
        )
    return found


def paths_below(root: Path) -> Iterator[Path]:
    """As rglob, which in Python 3.10 gives up at a link whose target is too long for a name."""
    for folder, folders, files in os.walk(root):
        yield from (Path(folder, name) for name in (*folders, *files))


def land(folder: Path, files: dict[str, str], links: dict[str, str] | None = None) -> list[Path]:
    """Files and links, all at once."""
    with Staging(folder) as staging:
        for name, text in files.items():
            staging.place(name).write_text(text)
        for name, target in (links or {}).items():
            staging.link(name, target)
        return staging.move()


def test_files_arrive_together(tmp_path: Path) -> None:
    """In the order in which they came, beside what was there, and nothing else is left."""
    (tmp_path / "got/a").mkdir(parents=True)
    (tmp_path / "got/a/mine").write_text("kept")
    (tmp_path / "got/a/b").write_text("old")
    assert land(tmp_path / "got", {"z": "1", "a/b": "2", "a/c/d": "3"}, {"l": "a/b"}) == [
        tmp_path / "got" / name for name in ("z", "a/b", "a/c/d", "l")
    ]
    assert everything(tmp_path / "got") == {
        "z": "1", "a": "", "a/b": "2", "a/c": "", "a/c/d": "3", "a/mine": "kept", "l": "a/b",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/a", "outside"), ("..", "outside"), ("a/../b", "outside"), ("a\\..\\b", "outside"), ("\\a", "outside"),
        ("", "not a valid file name"), ("./", "not a valid file name"), ("a\nb", "control character"), ("a\x1b[2J", "control character"),
        ("a\x00b", "control character"), ("a\x9bb", "control character"), ("a/" + "x" * 256, "too long"),
        ("ü" * 128, "too long"), ("\ud800", "not text"),
    ],
)  # fmt: skip
def test_names_that_are_refused(name: str, reason: str, tmp_path: Path) -> None:
    """With a reason that can be printed, and before anything is written."""
    with pytest.raises(Unsafe, match=reason) as caught:
        land(tmp_path / "got", {"good": "", name: ""})
    assert str(caught.value).isprintable()
    assert everything(tmp_path) == {}


@pytest.mark.parametrize(
    "name", ["a b", "ü", "x" * 255, "a/./b//c", "...", "..a", "C:x", "a\u202eb", "\udcff"]
)
def test_names_that_are_taken(name: str, tmp_path: Path) -> None:
    """What looks odd and is harmless."""
    (path,) = land(tmp_path, {name: "x"})
    assert path.read_text() == "x"


@pytest.mark.parametrize(
    "files", [("a", "a"), ("a", "./a"), ("a/b", "a//b"), ("a", "a/b"), ("a/b", "a")]
)
def test_a_place_is_taken_once(files: tuple[str, str], tmp_path: Path) -> None:
    """Two files of one name, however it is written, or a file that is a folder too."""
    with Staging(tmp_path / "got") as staging:
        staging.place(files[0])
        with pytest.raises(Unsafe):
            staging.place(files[1])
    assert everything(tmp_path) == {}


def test_names_that_differ_only_in_case(tmp_path: Path) -> None:
    """Both, where the file system tells them apart; elsewhere neither."""
    (tmp_path / "probe").write_text("")
    if (tmp_path / "PROBE").exists():
        with pytest.raises(Unsafe):
            land(tmp_path / "got", {"a": "1", "A": "2"})
        with pytest.raises(Unsafe):
            land(tmp_path / "got", {"a/x": "1", "A/y": "2"})
    else:
        assert len(land(tmp_path / "got", {"a": "1", "A": "2", "b/x": "1", "B/y": "2"})) == 4


def test_a_link_of_an_earlier_download_is_not_followed(tmp_path: Path) -> None:
    """The first archive leaves a link to the folder itself; below it, the links of the second would walk out."""
    land(tmp_path / "a/got", {"t/file": ""}, {"s": "."})
    before = everything(tmp_path)
    for links in ({"s/t/l": "../../evil"}, {"s/l": "../evil"}):
        with pytest.raises(Unsafe, match="`s` is a link, which may lead outside"):
            land(tmp_path / "a/got", {"good": "1"}, links)
    with pytest.raises(Unsafe, match="`s` is a link"):
        land(tmp_path / "a/got", {"s/file": "1"})
    assert everything(tmp_path) == before


def test_a_link_that_is_planted_meanwhile_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody exchanges a folder for a link after it was looked at, when the first file is moved."""
    folder, outside, rename = tmp_path / "got/s", tmp_path / "outside", os.rename
    folder.mkdir(parents=True)
    outside.mkdir()

    def plant(*places: str, **folders: int) -> None:
        monkeypatch.setattr(os, "rename", rename)
        folder.rmdir()
        folder.symlink_to(outside)
        rename(*places, **folders)

    monkeypatch.setattr(os, "rename", plant)
    with pytest.raises(OSError, match="s"):
        land(tmp_path / "got", {"a": "1", "s/x": "2"})
    assert list(outside.iterdir()) == []
    assert [path.name for path in (tmp_path / "got").iterdir()] == ["s"]


@pytest.mark.parametrize("names", [["a", "b/c"], ["b/c", "a"]])
def test_something_in_the_way_leaves_the_folder_as_it_was(names: list[str], tmp_path: Path) -> None:
    """A folder in the place of a file, or a file in that of a folder, found before the first is moved."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a/mine").write_text("kept")
    before = everything(tmp_path)
    with pytest.raises(Unsafe, match="`a` cannot be written, because a folder has this name"):
        land(tmp_path, dict.fromkeys(names, "new"))
    assert everything(tmp_path) == before


def test_what_fails_half_way_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third of four cannot be moved: the folder has its old files, and no new ones."""
    (tmp_path / "got/a").mkdir(parents=True)
    (tmp_path / "got/a/1").write_text("old")
    before = everything(tmp_path)
    with Staging(tmp_path / "got") as staging:
        for name in ("a/1", "b/2", "c/3", "d/4"):
            staging.place(name).write_text("new")
        next(iter((tmp_path / "got").glob(".cloudtrain-*/new/c/3"))).unlink()
        with pytest.raises(FileNotFoundError):
            staging.move()
    assert everything(tmp_path) == before


def test_nothing_at_all_leaves_nothing(tmp_path: Path) -> None:
    """A folder that was made for files that did not come is removed; one that was there stays."""
    (tmp_path / "there").mkdir()
    for name in ("there", "new/deep"):
        with Staging(tmp_path / name) as staging:
            assert staging.move() == []
    assert everything(tmp_path) == {"there": ""}


def test_a_file_may_turn_out_not_to_exist(tmp_path: Path) -> None:
    """It is dropped, and its name is free again."""
    with Staging(tmp_path) as staging:
        staging.place("a")
        staging.drop("a")
        staging.place("a").write_text("1")
        staging.place("b")
        staging.drop("b")
        staging.move()
    assert everything(tmp_path) == {"a": "1"}


def test_modes_are_ordinary(tmp_path: Path) -> None:
    """The scratch folder is private; what comes out of it is not."""
    land(tmp_path / "got", {"a/b": ""})
    plain = tmp_path / "plain"
    plain.mkdir()
    assert stat.S_IMODE((tmp_path / "got/a").stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    assert (tmp_path / "got/a/b").stat().st_mode & 0o444 == 0o444


def test_threads_share_a_staging(tmp_path: Path) -> None:
    """Many files below the same folders."""
    with Staging(tmp_path) as staging:

        def work(number: int) -> None:
            for index in range(50):
                staging.place(f"a/{index % 5}/b/{number}-{index}").write_text("x")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(staging.move()) == 400


parts = st.sampled_from(["a", "b", "c", "..", ".", "", "\\", "A", "é", "é", "a\n", "x" * 256])
names = st.lists(parts, min_size=1, max_size=4).map("/".join)
members = st.lists(st.tuples(names, st.none() | names), max_size=6)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(members, min_size=1, max_size=3))
@example([[("s", "."), ("t/x", None)], [("s/t/l", "../../evil")]])
@example([[("a/b/c", None), ("l", "a/b")], [("l/x", "../../..")]])
@example([[("a", "b"), ("b", "a")], [("a/x", None)]])
@example([[("a/l", "../b")], [("b", "a/l")]])
def test_nothing_ever_leaves(downloads: list[list[tuple[str, str | None]]]) -> None:
    """Whatever several downloads bring into one folder: nothing appears outside, no link points out, and each of them
    comes whole or changes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder).resolve()
        root = base / "a/b/got"
        root.mkdir(parents=True)
        for download in downloads:
            before = everything(base)
            try:
                land_members(root, download)
            except Unsafe:
                assert everything(base) == before
            assert {name for name in everything(base) if not name.startswith("a/b/got/")} == {
                "a",
                "a/b",
                "a/b/got",
            }
        for path in paths_below(root):
            assert Path(os.path.realpath(path)).is_relative_to(root)


def land_members(root: Path, download: list[tuple[str, str | None]]) -> None:
    """One download: names, and for links what they point to."""
    with Staging(root) as staging:
        for name, target in download:
            if target is None:
                staging.place(name).write_text("x")
            else:
                staging.link(name, target)
        staging.move()


@settings(max_examples=examples(300), deadline=None)
@given(st.text(max_size=12) | names)
def test_a_safe_name_stays_below(name: str) -> None:
    """Whatever the text: what comes back is relative, plain, and the same when it is asked again."""
    with suppress(Unsafe):
        safe = safe_name(name)
        assert safe == safe_name(safe)
        assert os.path.normpath(f"/x/{safe}") == f"/x/{safe}"


@settings(max_examples=examples(300), deadline=None)
@given(names, names)
def test_a_safe_target_stays_below(name: str, target: str) -> None:
    """Joined to the folder of its link it never leaves, and says nothing twice."""
    with suppress(Unsafe):
        safe = safe_name(name)
        kept = safe_target(safe, target)
        place = os.path.normpath(f"/x/{safe}/../{kept}")
        assert place == "/x" or place.startswith("/x/")
        assert kept == safe_target(safe, kept)
