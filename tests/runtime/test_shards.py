"""Dealing out files: every file once, as evenly as can be, under its own name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.runtime.shards import deal, keys_in, link_share

KEYS = st.sets(
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1),
    max_size=40,
)


@given(KEYS, st.integers(min_value=1, max_value=9))
def test_every_key_goes_to_exactly_one_instance(keys: set[str], count: int) -> None:
    """None is lost, none comes twice, and the shares differ by at most one key."""
    shares = deal(keys, count)
    dealt = [key for share in shares for key in share]
    assert sorted(dealt) == sorted(keys)
    assert len(shares) == count
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(KEYS, st.integers(min_value=1, max_value=9))
def test_the_same_keys_are_dealt_the_same_way(keys: set[str], count: int) -> None:
    """Whatever order the file system lists them in."""
    assert deal(sorted(keys), count) == deal(sorted(keys, reverse=True), count)


def test_keys_are_in_the_order_of_s3() -> None:
    """Which compares UTF-8 bytes: capitals before small letters, `é` after `z`."""
    assert deal(["é", "z", "Z", "a/b", "a-b"], 1) == [["Z", "a-b", "a/b", "z", "é"]]


def link_shares(source: Path, target: Path, count: int) -> None:
    for number in range(count):
        link_share(str(target / str(number)), str(source), number, count)


def test_files_keep_their_paths_and_are_links(tmp_path: Path) -> None:
    """A file in a folder is found in that folder; nothing is copied; more instances than files leave some empty."""
    raw = tmp_path / "raw"
    (raw / "deep/er").mkdir(parents=True)
    for name in ("a b.txt", "deep/er/c.txt"):
        (raw / name).write_text(name)
    link_shares(raw, tmp_path / "out", 3)
    assert (tmp_path / "out/0/a b.txt").read_text() == "a b.txt"
    assert (tmp_path / "out/1/deep/er/c.txt").read_text() == "deep/er/c.txt"
    assert (tmp_path / "out/1/deep/er/c.txt").is_symlink()
    assert list((tmp_path / "out/2").iterdir()) == []


def test_a_single_file_goes_to_one_instance(tmp_path: Path) -> None:
    """As an S3 prefix that is one object."""
    (tmp_path / "one.csv").write_text("x")
    link_shares(tmp_path / "one.csv", tmp_path / "out", 2)
    assert [len(list((tmp_path / "out" / name).iterdir())) for name in "01"] == [1, 0]
    assert (tmp_path / "out/0/one.csv").read_text() == "x"


def test_linked_folders_are_followed_once(tmp_path: Path) -> None:
    """A link to another folder brings its files; one that leads back to where it lies has no end and is left out."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other/x").touch()
    (tmp_path / "raw/in").mkdir(parents=True)
    (tmp_path / "raw/in/y").touch()
    (tmp_path / "raw/linked").symlink_to(tmp_path / "other")
    (tmp_path / "raw/in/loop").symlink_to(tmp_path / "raw")
    assert sorted(keys_in(str(tmp_path / "raw"))) == ["in/y", "linked/x"]


def test_folders_that_link_to_each_other_have_an_end(tmp_path: Path) -> None:
    """Each is followed through the other, and neither back to where the way began."""
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"of_{name}").touch()
        (tmp_path / name / "other").symlink_to(tmp_path / other)
    assert sorted(keys_in(str(tmp_path))) == ["a/of_a", "a/other/of_b", "b/of_b", "b/other/of_a"]


def test_an_input_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """A folder that vanished is no empty shard."""
    with pytest.raises(FileNotFoundError):
        keys_in(str(tmp_path / "gone"))
