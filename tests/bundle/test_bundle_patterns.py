"""One line of an ignore file means what git says, and takes no longer for having many stars."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cloudtrain.bundle.patterns import NoPattern, pattern_of

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git says what patterns mean")


def ours(line: str, path: str) -> bool:
    """Whether a single line leaves the path out: by itself, or with a folder on the way to it."""
    pattern = pattern_of(line.encode())
    parts = path.encode().split(b"/")
    folders = [b"/".join(parts[:depth]) for depth in range(1, len(parts))]
    if pattern is None or not pattern.ignores:
        return False
    return any(pattern.matches(folder, True) for folder in folders) or pattern.matches(path.encode(), False)


def gits(line: str, paths: list[str], repository: Path) -> list[bool]:
    """The same by git, for several files."""
    (repository / ".gitignore").write_bytes(line.encode() + b"\n")
    asked = "".join(f"{path}\0" for path in paths).encode()
    command = ["git", "-C", repository, "check-ignore", "--no-index", "-v", "-n", "-z", "--stdin"]
    answer = subprocess.run(command, input=asked, capture_output=True, check=False).stdout.split(b"\0")[:-1]
    assert len(answer) == 4 * len(paths), answer
    return [bool(source) and not rule.startswith(b"!") for source, rule in zip(answer[::4], answer[2::4], strict=True)]


@pytest.fixture(scope="module")
def repository() -> Iterator[Path]:
    """An empty one, whose ignore file changes."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "init", "-q", folder], check=True)
        yield Path(folder)


PIECES = (
    "*", "**", "***", "?", "a", "b", "ab", "A", ".", "-", "ü", " ", "1", "/", "/", "/", "**/", "/**", "/**/", "[ab]", "[!ab]",
    "[^a]", "[a-c]", "[c-a]", "[]a]", "[!]a]", "[a-]", "[-a]", "[a/b]", "[[:digit:]]", "[![:alpha:]-]", "[\\]]", "[\\a-c]",
    "[*]", "[?a]", "\\*", "\\a", "\\[", "\\\\", "\\/", "!", "#", "]", "*a", "a*", "*a*b",
)  # fmt: skip
lines = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join)
names = st.text("ab1.-ü]A*[\\ ", min_size=1, max_size=4).filter(
    lambda name: name not in (".", "..") and name.strip(".")
)
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
asked = st.lists(paths, min_size=1, max_size=12)


@needs_git
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(line=lines, paths=asked)
@example("**/a*b/**/c", ["a/b", "x/ab/c", "x/aab/y/z/c", "ab/c"])
@example("a/**", ["a", "a/b", "a/b/c", "x/a/b"])
@example("*a*a*b", ["aab", "abab", "ba", "aaaab", "aaa"])
@example("a**/b", ["a/b", "ax/b", "ax/y/b"])
@example("**\\/*", ["1", "a/1", "a/b/1"])
@example("a/**\\/b", ["a/b", "a/x/b", "a/x/y/b", "b"])
def test_a_line_means_what_git_says(repository: Path, line: str, paths: list[str]) -> None:
    """Stars, sets, escapes, slashes and spaces, on paths of every depth."""
    expected = gits(line, paths, repository)
    try:
        assert dict(zip(paths, [ours(line, path) for path in paths], strict=True)) == dict(
            zip(paths, expected, strict=True)
        )
    except NoPattern:
        assert not any(expected)


@pytest.mark.parametrize("line", ["!", "!/", "[a", "a[", "a\\", "[", "[[:nothing:]]", "[a-"])
def test_lines_that_can_match_nothing(line: str) -> None:
    """They are no patterns, and their author should know."""
    with pytest.raises(NoPattern):
        pattern_of(line.encode())


@pytest.mark.parametrize(
    "line",
    ["*a" * 8 + "b", "*a" * 60 + "b", "**/" * 30 + "*a" * 30 + "/b", "[ab]*" * 50 + "c", "?*" * 50 + "c", "a*" * 40 + "/**/b"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["a" * 250, "/".join(["a" * 60] * 60), "ab" * 120 + "x"])
def test_many_stars_end(line: str, path: str) -> None:
    """A file name of 250 letters against sixty stars: there are more ways to match them than this test has years."""
    pattern = pattern_of(line.encode())
    assert pattern is not None
    assert not pattern.matches(path.encode(), True)


def test_bytes_that_are_no_text() -> None:
    """A name that is not UTF-8 is matched as it is."""
    pattern = pattern_of(b"*.\xff\xfe")
    assert pattern is not None
    assert pattern.matches(b"\xfe.\xff\xfe", False)
