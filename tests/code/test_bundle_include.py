"""`.cloudtraininclude`: files and folders from elsewhere, beside the code, as if they stood there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloudtrain.code import tree
from cloudtrain.code.tree import Tree, scan
from cloudtrain.code.unpack import unpack
from cloudtrain.errors import JobError
from tests.code.findings import secret_findings
from tests.code.test_bundle_scan import fill

INCLUDE = ".cloudtraininclude"
SHARED = {
    "shared/gpt.py": "gpt = 1\n",
    "shared/common/net.py": "net = 1\n",
    "shared/common/deep/er.py": "er = 1\n",
    "src/train.py": "import gpt, common.net\n",
}


def own(tree: Tree) -> list[str]:
    """The paths that are the user's."""
    return [entry.path for entry in tree.entries if entry.path not in tree.own_files]


def problems(folder: Path) -> list[tuple[str, str]]:
    """Message and place of each problem that a scan raises; every one has a code and a hint."""
    with pytest.raises(JobError) as caught:
        scan(folder)
    assert caught.value.exit_code == 2
    assert all(
        problem.hint and problem.code in ("CT052", "CT055") for problem in caught.value.problems
    )
    return [(problem.message, str(problem.place)) for problem in caught.value.problems]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A source folder that includes a file and a folder from beside it."""
    fill(tmp_path, {**SHARED, f"src/{INCLUDE}": "../shared/gpt.py\n../shared/common\n"})
    return tmp_path / "src"


def test_a_bundle_with_includes_is_that_of_a_folder_with_copies(
    source: Path, tmp_path: Path
) -> None:
    """The same entries, the same hash and the same archive; the list itself is in neither."""
    copies = {"gpt.py": "gpt = 1\n", "common/net.py": "net = 1\n", "common/deep/er.py": "er = 1\n"}
    fill(tmp_path / "copies", {**copies, "train.py": SHARED["src/train.py"]})
    tree, copied = scan(source), scan(tmp_path / "copies")
    assert own(tree) == ["common/deep/er.py", "common/net.py", "gpt.py", "train.py"]
    assert tree.entries == copied.entries
    assert tree.identity == copied.identity
    assert [item.rule for item in tree.ignored] == [f"default {INCLUDE}"]
    tree.write(tmp_path / "one.tar.gz")
    copied.write(tmp_path / "two.tar.gz")
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "two.tar.gz").read_bytes()
    unpack(tmp_path / "one.tar.gz", tmp_path / "code", tree.sha256)
    assert (tmp_path / "code/common/deep/er.py").read_text() == "er = 1\n"


@pytest.mark.parametrize(
    "lines",
    [
        b"../shared/common\n../shared/gpt.py",
        b"# shared\n\n  ../shared/gpt.py  \n../shared/common/\n",
        b"\xef\xbb\xbf../shared/gpt.py\r\n../src/../shared/common\r\n",
    ],
)
def test_how_the_lines_are_written_is_no_part_of_the_content(source: Path, lines: bytes) -> None:
    """Order, comments, blank lines, line ends, a byte order mark and another spelling of a path change nothing."""
    before = scan(source).sha256
    (source / INCLUDE).write_bytes(lines)
    assert scan(source).sha256 == before


def test_absolute_paths_links_and_dots(source: Path, tmp_path: Path) -> None:
    """A path may be absolute; a link is followed and keeps its name; `..` has the name of its folder."""
    (tmp_path / "link.py").symlink_to("shared/gpt.py")
    (source / "inner").mkdir()
    (source / "inner" / INCLUDE).touch()
    (source / INCLUDE).write_text(
        f"{tmp_path}/shared/gpt.py\n../link.py\n../shared/common/deep/..\n"
    )
    tree = scan(source)
    assert own(tree) == ["common/deep/er.py", "common/net.py", "gpt.py", "link.py", "train.py"]
    assert {entry.kind for entry in tree.entries} == {"file"}


@pytest.mark.parametrize("change", ["gpt.py", "common/deep/er.py"])
def test_a_change_elsewhere_is_a_change_of_the_bundle(
    source: Path, tmp_path: Path, change: str
) -> None:
    """The hash covers what is included, and its executable bit."""
    hashes = {scan(source).sha256}
    (tmp_path / "shared" / change).chmod(0o755)
    hashes.add(scan(source).sha256)
    (tmp_path / "shared" / change).write_text("other")
    hashes.add(scan(source).sha256)
    assert len(hashes) == 3


def test_ignore_rules_are_those_of_the_source_folder(source: Path, tmp_path: Path) -> None:
    """Rules and defaults see a path as it is in the bundle; an ignore file inside an included folder counts too, one
    beside it does not."""
    rules = {"src/.cloudtrainignore": "/common/deep/\n", "shared/.cloudtrainignore": "*.py\n"}
    fill(tmp_path, {**rules, "shared/common/.cloudtrainignore": "*.bin\n"})
    fill(tmp_path / "shared/common", {"a.bin": "", ".env": "", "__pycache__/a.pyc": ""})
    tree = scan(source)
    assert own(tree) == ["common/net.py", "gpt.py", "train.py"]
    assert {item.path: item.rule for item in tree.ignored if item.path.startswith("common/")} == {
        "common/.cloudtrainignore": "default .cloudtrainignore",
        "common/.env": "default .env",
        "common/__pycache__": "default __pycache__",
        "common/a.bin": "common/.cloudtrainignore:1 *.bin",
        "common/deep": ".cloudtrainignore:1 /common/deep/",
    }


def test_only_the_list_at_the_root_counts(source: Path, tmp_path: Path) -> None:
    """One in a sub-folder or in an included folder includes nothing, so that no list leads to another."""
    fill(
        tmp_path,
        {f"src/sub/{INCLUDE}": "../../shared/common\n", f"shared/common/{INCLUDE}": "../../src\n"},
    )
    assert own(scan(source)) == ["common/deep/er.py", "common/net.py", "gpt.py", "train.py"]


def test_a_secret_elsewhere_is_found_and_its_hint_is_true(source: Path, tmp_path: Path) -> None:
    """What is included is searched as the user's own; the line of the hint leaves it out."""
    (tmp_path / "shared/common/net.py").write_text("k = 'glpat-" + "9f2c7e1b4a8d3056" + "c1e7'\n")
    (finding,) = secret_findings(scan(source))
    assert "`common/net.py:1`" in finding.message
    assert finding.hint is not None
    (source / ".cloudtrainignore").write_text(finding.hint.split("`")[1] + "\n")
    assert secret_findings(scan(source)) == []


def test_the_limit_of_size_counts_what_is_included(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of data does not come in by this door."""
    (tmp_path / "shared/common/data.bin").write_bytes(bytes(2000))
    monkeypatch.setattr(tree, "CEILING", 4000)
    assert scan(source).identity.size > 2000
    monkeypatch.setattr(tree, "CEILING", 1000)
    with pytest.raises(
        JobError, match=r"too much for a bundle of code; the largest: common/data\.bin"
    ):
        scan(source)


def test_every_wrong_line_is_named_at_once(source: Path, tmp_path: Path) -> None:
    """A path that leads nowhere, a name that the folder has, a name that an earlier line has, and no name at all."""
    fill(tmp_path, {"other/train.py": "", "other/gpt.py": "", "loop/x": ""})
    (tmp_path / "round").symlink_to("round")
    lines = [
        "../shared/gpt.py",
        "../shared/gtp.py",
        "../other/train.py",
        "../other/gpt.py",
        "/",
        "a\0b",
        "../round",
    ]
    (source / INCLUDE).write_text("\n".join(lines))
    where = [f"{INCLUDE}:{line}:1  source_dir" for line in (2, 3, 4, 5, 6, 7)]
    assert problems(source) == list(
        zip(
            [
                "`../shared/gtp.py` does not exist",
                "the bundle would have `train.py` from `source_dir` and from `../other/train.py`",
                "the bundle would have `gpt.py` from line 1 and from `../other/gpt.py`",
                "`/` has no name for the bundle",
                "`a\\x00b` is not a path: it has a NUL character in it",
                "`../round` cannot be read: Too many levels of symbolic links",
            ],
            where,
            strict=True,
        )
    )


def test_what_no_bundle_can_hold_cannot_be_included(source: Path, tmp_path: Path) -> None:
    """A pipe, and a package with the name of cloudtrain's own."""
    fill(tmp_path, {"shared/cloudtrain/own.py": ""})
    os.mkfifo(tmp_path / "shared/pipe")
    (source / INCLUDE).write_text("../shared/pipe\n../shared/cloudtrain\n")
    assert [message for message, _ in problems(source)] == [
        "`pipe` is a named pipe, which cannot be in a bundle",
        "`cloudtrain` in `source_dir` has the name of cloudtrain's own package, which is added to every bundle",
    ]


def test_a_link_in_an_included_folder_stays_in_the_bundle(source: Path, tmp_path: Path) -> None:
    """One that leads to a file of the bundle is kept; one that leads elsewhere is refused."""
    (tmp_path / "shared/common/same.py").symlink_to("net.py")
    entry = next(entry for entry in scan(source).entries if entry.path == "common/same.py")
    assert entry.target == "net.py"
    (tmp_path / "shared/common/away.py").symlink_to("../../other.py")
    ((message, _),) = problems(source)
    assert message.startswith(
        "the link `common/away.py` points to `../../other.py`, which is outside `source_dir`"
    )
