"""Symbolic links: kept while they stay in the bundle, refused otherwise."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudtrain.code.tree import scan
from cloudtrain.code.unpack import unpack
from cloudtrain.errors import JobError
from tests.examples import examples


def fill(root: Path, files: list[str], links: dict[str, str]) -> Path:
    """Make a folder with files that hold their own path, and links."""
    for path in files:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)
    for path, target in links.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(target)
    return root


def targets(root: Path) -> dict[str, str | None]:
    """The links in the bundle."""
    return {entry.path: entry.target for entry in scan(root).entries if entry.kind == "symlink"}


@pytest.mark.parametrize(
    ("link", "target", "kept"),
    [
        ("x.py", "a.py", "a.py"),
        ("x.py", "./pkg//b.py", "pkg/b.py"),
        ("pkg/x.py", "../a.py", "../a.py"),
        ("x", "pkg", "pkg"),
        ("x", "pkg/", "pkg"),
        ("x", "alias/b.py", "pkg/b.py"),
        ("x", "alias/../a.py", "a.py"),
        ("x", "deep/../../a.py", "a.py"),
        ("pkg/x", "../other", "../other"),
        ("x", "y", "y"),
    ],
)
def test_a_link_inside_is_kept_in_its_plainest_form(
    tmp_path: Path, link: str, target: str, kept: str
) -> None:
    """It points where it pointed, without detours through other links."""
    root = fill(
        tmp_path / "src",
        ["a.py", "pkg/b.py", "pkg/in/c.py", "other/d.py"],
        {"alias": "pkg", "deep": "pkg/in", "y": "a.py"},
    )
    (root / link).symlink_to(target)
    assert targets(root)[link] == kept
    tree = scan(root)
    tree.write(tmp_path / "out.tar.gz")
    unpack(tmp_path / "out.tar.gz", tmp_path / "out", tree.sha256)
    was, now = (root / link).resolve(), (tmp_path / "out" / link).resolve()
    assert was.relative_to(root) == now.relative_to(tmp_path / "out")


def test_an_absolute_link_inside_becomes_relative(tmp_path: Path) -> None:
    """Also where the folder is reached through a link of its own."""
    root = fill(tmp_path / "real", ["pkg/a.py"], {})
    (tmp_path / "alias").symlink_to("real")
    (root / "by-name").symlink_to(tmp_path / "alias/pkg/a.py")
    (root / "by-place").symlink_to(root / "pkg/a.py")
    assert targets(tmp_path / "alias") == {"by-name": "pkg/a.py", "by-place": "pkg/a.py"}


def test_links_to_folders_are_not_walked(tmp_path: Path) -> None:
    """A link to a folder beside it is one entry."""
    root = fill(tmp_path, ["a/b.py", "c/d.py"], {"a/c": "../c"})
    tree = scan(root)
    assert [entry.path for entry in tree.entries if entry.path not in tree.own_files] == [
        "a/b.py",
        "a/c",
        "c/d.py",
    ]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("../outside.py", "is outside `source_dir`"),
        ("/etc/hostname", "is outside `source_dir`"),
        ("up/../../outside.py", "is outside `source_dir`"),
        ("../src/a.py", "is outside `source_dir`"),
        ("missing.py", "is not in the bundle: `missing.py` is ignored, an empty folder or missing"),
        ("a.py/b", "is not in the bundle: `a.py/b` is ignored, an empty folder or missing"),
        ("left.bin", "is not in the bundle: `left.bin` is ignored, an empty folder or missing"),
        ("empty", "is not in the bundle: `empty` is ignored, an empty folder or missing"),
        ("link", "leads back to itself"),
        (".", "is a folder that contains the link"),
        ("./", "is a folder that contains the link"),
        ("up/..", "is a folder that contains the link"),
    ],
)
def test_a_link_that_would_be_broken_is_refused(tmp_path: Path, target: str, reason: str) -> None:
    """The error names the link, where it points, why not, and the line that leaves it out."""
    root = fill(tmp_path / "src", ["a.py", "left.bin", "pkg/b.py"], {"up": "pkg"})
    (root / "empty").mkdir()
    (root / ".cloudtrainignore").write_text("*.bin\n")
    (tmp_path / "outside.py").write_text("")
    (root / "link").symlink_to(target)
    with pytest.raises(JobError) as caught:
        scan(root)
    (problem,) = caught.value.problems
    assert problem.message == f"the link `link` points to `{target}`, which {reason}"
    assert problem.hint is not None
    assert problem.hint.startswith(
        "add the line `/link` to `.cloudtrainignore` in `source_dir`, or put a copy"
    )


def test_all_bad_links_are_reported_at_once_and_the_hint_works(tmp_path: Path) -> None:
    """Following every hint gives a bundle."""
    root = fill(
        tmp_path, ["a.py"], {"one": "/etc/hostname", "two[*] \\": "nowhere", "sub/#3": "../../x"}
    )
    with pytest.raises(JobError) as caught:
        scan(root)
    hints = [problem.hint or "" for problem in caught.value.problems]
    assert len(hints) == 3
    lines = [hint.split("`")[1] for hint in hints]
    (root / ".cloudtrainignore").write_text("\n".join(lines) + "\n")
    assert targets(root) == {}


def test_many_links_through_links_end(tmp_path: Path) -> None:
    """Links that double at every step are refused as quickly as the kernel refuses them."""
    links = {f"l{number}": f"l{number - 1}/../l{number - 1}" for number in range(1, 40)}
    root = fill(tmp_path, ["d/a.py"], {"l0": "d", **links})
    with pytest.raises(JobError, match="leads back to itself"):
        scan(root)


PARTS = st.sampled_from(["a", "b", "c", "..", ".", "x", "y"])


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    links=st.dictionaries(
        st.sampled_from(["x", "y", "a/x", "a/b/y"]),
        st.lists(PARTS, min_size=1, max_size=5).map("/".join),
        min_size=1,
        max_size=4,
    )
)
def test_random_links_are_judged_as_the_kernel_follows_them(links: dict[str, str]) -> None:
    """A bundle is made only if every link arrives inside; and unpacked, each arrives where it did."""
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder).resolve()
        root = fill(top / "src", ["a/b/c", "b/a", "c"], links)
        try:
            tree = scan(root)
        except JobError as error:
            refused = {problem.message.split("`")[1] for problem in error.problems}
            assert refused <= set(links)
            for path in set(links) - refused:
                assert (root / path).exists()
            return
        tree.write(top / "out.tar.gz")
        unpack(top / "out.tar.gz", top / "out", tree.sha256)
        for path in links:
            was, now = (root / path).resolve(strict=True), (top / "out" / path).resolve(strict=True)
            assert was.relative_to(root) == now.relative_to(top / "out")
