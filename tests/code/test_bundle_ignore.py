"""`.cloudtrainignore`: gitignore's rules, held against git itself, and the defaults behind them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudtrain.code.ignore import ignore_line
from cloudtrain.code.tree import scan
from cloudtrain.errors import JobError
from tests.examples import examples

IGNORE = ".cloudtrainignore"


def kept(root: Path) -> set[str]:
    """The user's paths in the bundle."""
    tree = scan(root)
    return {entry.path for entry in tree.entries if entry.path not in tree.own_files}


def fill(root: Path, /, *paths: str, **rules: str) -> None:
    """Make files; `rules` are ignore files by folder, `root` for the root's own."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)
    for folder, text in rules.items():
        (root / ("" if folder == "root" else folder) / IGNORE).write_text(text)


def test_rules_are_gitignores(tmp_path: Path) -> None:
    """Globs, anchors, folders, comments and `!` mean what they mean to git."""
    fill(
        tmp_path,
        *(
            "train.py",
            "a.bin",
            "sub/a.bin",
            "keep.bin",
            "out/x",
            "sub/out/x",
            "#x",
            "data/a",
            "sub/data/a",
            "docs",
        ),
        root="*.bin\n!keep.bin\n/out\n# comment\n\n\\#x\ndata/\ndocs/\n",
    )
    assert kept(tmp_path) == {"train.py", "keep.bin", "sub/out/x", "docs"}


def test_the_nearest_ignore_file_wins(tmp_path: Path) -> None:
    """A file in a sub-folder adds to and overrides the rules above it, for its own folder only."""
    fill(
        tmp_path,
        "a.log",
        "sub/a.log",
        "sub/b.log",
        "sub/deep/a.log",
        "sub/c.txt",
        "c.txt",
        root="*.log\n",
        sub="!a.log\n*.txt\n",
    )
    assert kept(tmp_path) == {"sub/a.log", "sub/deep/a.log", "c.txt"}


def test_ignored_folders_are_never_read(unprivileged: Path) -> None:
    """A folder that is left out may be unreadable, endless or on a dead disk: nobody looks."""
    fill(unprivileged, "train.py", "data/x", ".git/x", root="data/\n")
    for name in ("data", ".git"):
        (unprivileged / name).chmod(0)
    try:
        assert kept(unprivileged) == {"train.py"}
    finally:
        for name in ("data", ".git"):
            (unprivileged / name).chmod(0o700)


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        (".git/config", "default .git"),
        ("pkg/__pycache__/a.pyc", "default __pycache__"),
        ("a.pyc", "default *.pyc"),
        (".venv/bin/python", "default .venv"),
        ("my-env/pyvenv.cfg", "default a virtual environment"),
        ("conda/conda-meta/history", "default a conda environment"),
        ("x.egg-info/PKG-INFO", "default *.egg-info"),
        (".env", "default .env"),
        ("conf/.env.production", "default .env.*"),
        ("id_rsa", "default id_rsa"),
        ("certs/server.pem", "default *.pem"),
        ("server.key", "default *.key"),
        (".aws/credentials", "default .aws/"),
        (".netrc", "default .netrc"),
    ],
)
def test_defaults_are_left_out_and_a_rule_brings_them_back(
    tmp_path: Path, path: str, rule: str
) -> None:
    """Each default names itself in `ignored`, and gives way to a `!` rule."""
    fill(tmp_path, "train.py", path)
    assert kept(tmp_path) == {"train.py"}
    (left_out,) = scan(tmp_path).ignored
    assert left_out.rule == rule
    name = left_out.path.rsplit("/", 1)[-1]
    fill(tmp_path, root=f"!{name}\n")
    if path != "pkg/__pycache__/a.pyc":
        assert kept(tmp_path) == {"train.py", path}


def test_a_list_of_what_to_keep_does_not_bring_defaults_back(tmp_path: Path) -> None:
    """`*`, `!*/`, `!*.py` means the user's own Python files, not those of a virtual environment."""
    fill(
        tmp_path,
        "a.py",
        "pkg/b.py",
        "pkg/c.txt",
        ".venv/lib/d.py",
        ".git/e.py",
        root="*\n!*/\n!*.py\n",
    )
    assert kept(tmp_path) == {"a.py", "pkg/b.py"}


@pytest.mark.parametrize(
    "path",
    [".env.example", "env/agent.py", "keys.py", "monkey.py", ".github/x", "venv.py", ".gitignore"],
)
def test_near_misses_of_the_defaults_are_kept(tmp_path: Path, path: str) -> None:
    """Ordinary code that only looks like a default is in the bundle."""
    fill(tmp_path, path)
    assert kept(tmp_path) == {path}


def test_an_ignored_path_names_file_line_and_rule(tmp_path: Path) -> None:
    """What is missing from a bundle can be traced to the line that did it."""
    fill(tmp_path, "sub/a.bin", "b.tmp", root="# first\n*.tmp\n", sub="\n\n*.bin \n")
    assert [tuple(item) for item in scan(tmp_path).ignored if not item.path.endswith(IGNORE)] == [
        ("b.tmp", ".cloudtrainignore:2 *.tmp"),
        ("sub/a.bin", "sub/.cloudtrainignore:3 *.bin"),
    ]


def test_a_rule_that_is_no_pattern_is_an_error_with_its_line(tmp_path: Path) -> None:
    """A rule that would silently ignore nothing is shown instead."""
    for rule in ("!",):  # for git `[z-a]` is a pattern, which matches nothing
        fill(tmp_path, "train.py", root=f"*.bin\n{rule}\n")
        with pytest.raises(JobError) as caught:
            scan(tmp_path)
        assert caught.value.problems[0].message == f"`{rule}` is not a pattern"
        assert caught.value.problems[0].place == ".cloudtrainignore:2:1  source_dir"


@pytest.mark.parametrize("ending", ["\r\n", "\n"])
def test_line_ends_and_a_byte_order_mark_do_not_matter(tmp_path: Path, ending: str) -> None:
    """An ignore file saved on Windows works."""
    fill(tmp_path, "train.py", "a.bin", "b.tmp")
    (tmp_path / IGNORE).write_bytes(b"\xef\xbb\xbf" + f"*.bin{ending}*.tmp{ending}".encode())
    assert kept(tmp_path) == {"train.py"}


def test_a_folder_name_with_a_line_break_hides_nothing(tmp_path: Path) -> None:
    """A rule reaches files below oddly named folders too."""
    fill(tmp_path, "two\nlines/a.bin", "two\nlines/a.py", root="*.bin\n")
    assert kept(tmp_path) == {"two\nlines/a.py"}


def test_a_small_folder_loads_little(tmp_path: Path) -> None:
    """The usual small folder does not pay for importing what only a large one needs."""
    fill(tmp_path, "train.py", ".env", "__pycache__/x.pyc")
    code = (
        "import sys; from pathlib import Path; from cloudtrain.code.tree import scan; scan(Path(sys.argv[1]));"
        "print(sorted({'isal', 'tarfile', 'concurrent.futures'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


odd_names = st.text(
    st.characters(
        codec="utf-8", exclude_characters="/\0", categories=("L", "N", "P", "S", "Zs", "Cc", "Cf")
    ),
    min_size=1,
    max_size=8,
).filter(lambda name: name not in (".", "..") and not name.startswith((".", "cloudtrain")))


@pytest.mark.slow
@settings(max_examples=examples(80), deadline=None)
@given(
    name=odd_names
    | st.binary(min_size=1, max_size=6)
    .filter(lambda name: not set(name) & set(b"/\0."))
    .map(os.fsdecode)
)
def test_the_line_for_a_path_can_be_printed_and_matches_it(name: str) -> None:
    """Whatever the name: line breaks, control characters, stars, spaces at the end, bytes that are not UTF-8."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        fill(root, "sub/kept")
        (root / "sub" / name).touch()
        line = ignore_line(f"sub/{name}")
        assert line.isprintable()
        (root / IGNORE).write_text(line + "\n")
        assert kept(root) <= {"sub/kept"}


NAMES = ("a", "b", "ab", "a.x", "b.x", "[a]", "foo", "-n", "a b")
PARTS = (
    "*",
    "**",
    "?",
    "a",
    "b",
    "*.x",
    "a*",
    "*b",
    "[ab]",
    "[!a]",
    "[a-b].x",
    "foo",
    "\\[a\\]",
    "-n",
    "a b",
    "a?b",
)


@st.composite
def rule_lines(draw: st.DrawFn) -> str:
    """One line of an ignore file, most of them with an effect on the names above."""
    parts = draw(st.lists(st.sampled_from(PARTS), min_size=1, max_size=3))
    mark = draw(st.sampled_from(["", "", "", "!", "!"]))
    return (
        mark
        + draw(st.sampled_from(["", "/"]))
        + "/".join(parts)
        + draw(st.sampled_from(["", "", "/", " "]))
    )


paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)
rule_files = st.dictionaries(
    st.lists(st.sampled_from(NAMES[:3]), max_size=2).map("/".join),
    st.lists(rule_lines(), min_size=1, max_size=5),
    max_size=3,
)


@pytest.mark.skipif(shutil.which("git") is None, reason="git says what the rules mean")
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(files=st.sets(paths, min_size=1, max_size=14), rules=rule_files)
def test_random_rules_mean_what_git_says(files: set[str], rules: dict[str, list[str]]) -> None:
    """Random trees with nested rule files and `!`: the bundle holds what `git ls-files` would list."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for path in sorted(files):
            if (
                not any((root / parent).is_file() for parent in Path(path).parents)
                and not (root / path).exists()
            ):
                fill(root, path)
        for place, lines in rules.items():
            if (root / place).is_dir():
                (root / place / IGNORE).write_text("".join(f"{line}\n" for line in lines))
        subprocess.run(["git", "init", "-q", root], check=True)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--others", f"--exclude-per-directory={IGNORE}"],
            cwd=root,
            capture_output=True,
            check=True,
        ).stdout
        expected = {
            os.fsdecode(path)
            for path in listed.split(b"\0")
            if path and not path.endswith(IGNORE.encode())
        }
        assert {path for path in kept(root) if not path.endswith(IGNORE)} == expected
