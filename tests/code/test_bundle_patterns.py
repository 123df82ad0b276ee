"""One line of an ignore file means what git says, and takes no longer for having many stars."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from cloudtrain.code.ignore import NoPattern, Pattern, Rules, pattern_of
from tests.examples import examples

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git says what patterns mean")


def ours(line: str, path: str) -> bool:
    """Whether a single line leaves the path out: by itself, or with a folder on the way to it."""
    pattern = pattern_of(line.encode())
    parts = path.encode().split(b"/")
    folders = [b"/".join(parts[:depth]) for depth in range(1, len(parts))]
    if pattern is None or not pattern.ignores:
        return False
    return any(pattern.matches(folder, True) for folder in folders) or pattern.matches(
        path.encode(), False
    )


def gits(line: str, paths: list[str], repository: Path) -> list[bool]:
    """The same by git, for several files."""
    (repository / ".gitignore").write_bytes(line.encode() + b"\n")
    asked = "".join(f"{path}\0" for path in paths).encode()
    command = ["git", "-C", repository, "check-ignore", "--no-index", "-v", "-n", "-z", "--stdin"]
    answer = subprocess.run(command, input=asked, capture_output=True, check=False).stdout.split(
        b"\0"
    )[:-1]
    assert len(answer) == 4 * len(paths), answer
    return [
        bool(source) and not rule.startswith(b"!")
        for source, rule in zip(answer[::4], answer[2::4], strict=True)
    ]


@pytest.fixture(scope="module")
def repository() -> Iterator[Path]:
    """An empty one, whose ignore file changes."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "init", "-q", folder], check=True)
        yield Path(folder)


@pytest.fixture(scope="module")
def is_old(repository: Path) -> bool:
    """Whether this machine's git lets the stars of `a**/b` match folders, as git did until 2.39 at least."""
    return gits("a**/b", ["ax/y/b"], repository) == [True]


STARS_AFTER_A_NAME = re.compile(r"^[^*?\[\\]*[^*?\[\\/!]\*\*")
"""Lines that git has read in two ways."""

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
@settings(
    max_examples=examples(300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(line=lines, paths=asked)
@example("**/a*b/**/c", ["a/b", "x/ab/c", "x/aab/y/z/c", "ab/c"])
@example("a/**", ["a", "a/b", "a/b/c", "x/a/b"])
@example("*a*a*b", ["aab", "abab", "ba", "aaaab", "aaa"])
@example("**\\/*", ["1", "a/1", "a/b/1"])
@example("a/**\\/b", ["a/b", "a/x/b", "a/x/y/b", "b"])
@example("a\\/**", ["a", "a/b", "b"])
@example("\\/**", ["a", "a/b"])
def test_a_line_means_what_git_says(
    repository: Path, is_old: bool, line: str, paths: list[str]
) -> None:
    """Stars, sets, escapes, slashes and spaces, on paths of every depth."""
    assume(not (is_old and STARS_AFTER_A_NAME.match(line)))
    expected = gits(line, paths, repository)
    try:
        assert dict(zip(paths, [ours(line, path) for path in paths], strict=True)) == dict(
            zip(paths, expected, strict=True)
        )
    except NoPattern:
        assert not any(expected)


RECORDED_PATHS = "a/b ax/b ax/y/b ab/c/b x/a/b x/ay/z/b a/x/y/b a/bxc a/b/x/c a*/y/b".split()


@pytest.mark.parametrize(
    ("line", "matched"),
    [
        ("a**/b", "a/b ax/b a/b/x/c"),
        ("/ab**/b", ""),
        ("a**/**b", "a/b ax/b a/b/x/c"),
        ("/a**//**/", ""),
        ("x/a**/b", "x/a/b"),
        ("a/**/b", "a/b a/x/y/b a/b/x/c"),
        ("a**", " ".join(RECORDED_PATHS)),
        ("a\\**/b", ""),
        ("?**/b", "a/b ax/b a/b/x/c"),
        ("**a/b", "a/b a/b/x/c"),
        ("/****/b", "a/b ax/b ax/y/b ab/c/b x/a/b x/ay/z/b a/x/y/b a/b/x/c a*/y/b"),
        ("a/b**c", "a/bxc"),
    ],
)
def test_a_line_means_what_git_2_55_says(line: str, matched: str) -> None:
    """Recorded with git 2.55.0; git 2.39 lets the stars of the first, second, third, fourth and fifth match folders."""
    assert [path for path in RECORDED_PATHS if ours(line, path)] == matched.split()


simple_lines = st.lists(
    st.sampled_from(("*", "**", "?", "a", "b", "ab", ".", "/", "/", "**/", "/**/", "*a", "a**")),
    min_size=1,
    max_size=5,
).map("".join)


@pytest.mark.skipif(find_spec("pathspec") is None, reason="pathspec is not installed")
@settings(max_examples=examples(300), deadline=None)
@given(line=simple_lines, paths=asked)
@example("a**/b", ["a/b", "ax/b", "ax/y/b"])
def test_a_line_means_what_pathspec_says(line: str, paths: list[str]) -> None:
    """A second reader of the same rules, which differs from git on three stars and more, on `**/` at the end, and on
    `?`, which is one character for it and one byte for git.
    """
    assume("***" not in line and not line.endswith("**/"))
    assume("?" not in line or "".join(paths).isascii())
    import pathspec

    spec = pathspec.GitIgnoreSpec.from_lines([line])
    try:
        assert [ours(line, path) for path in paths] == [spec.match_file(path) for path in paths]
    except NoPattern:
        assume(False)


@pytest.mark.parametrize("line", ["!", "!/", "[a", "a[", "a\\", "[", "[[:nothing:]]", "[a-"])
def test_lines_that_can_match_nothing(line: str) -> None:
    """They are no patterns, and their author should know."""
    with pytest.raises(NoPattern):
        pattern_of(line.encode())


@settings(max_examples=examples(500), deadline=None)
@given(rules=st.lists(lines, min_size=1, max_size=12), paths=asked, is_folder=st.booleans())
@example(
    ["a*b", "*ab", "[ab]*", "**/a/*b", "a/**", "*a*"],
    ["ab", "a/b", "aab", "a", "b/a/ab", "bab"],
    False,
)
def test_every_path_meets_every_pattern_that_matches_it(
    rules: list[str], paths: list[str], is_folder: bool
) -> None:
    """The rule that decides among many is the last one that matches, as if each were tried."""
    patterns = []
    for line in rules:
        with suppress(NoPattern):
            if (pattern := pattern_of(line.encode())) is not None:
                patterns.append((line, pattern))
    decide = Rules("", b"\n".join(line.encode() for line, _ in patterns))
    for path in paths:
        last = [pattern for _, pattern in patterns if pattern.matches(path.encode(), is_folder)][
            -1:
        ]
        verdict = decide.judge(path, is_folder)
        assert [pattern.ignores for pattern in last] == (
            [] if verdict is None else [verdict.pattern.ignores]
        )


MANY: dict[str, Callable[[int], str]] = {
    "names": lambda number: f"part{number:05}.bin",
    "paths": lambda number: f"/data/part{number:05}.bin",
    "endings": lambda number: f"*-{number:05}.bin",
    "starts": lambda number: f"part{number:05}-*",
    "middles": lambda number: f"part*-{number:05}-*.bin",
    "folders": lambda number: f"data/**/part{number:05}/*.bin",
    "sets": lambda number: f"[pq]art{number:05}[!a]*",
}


@pytest.mark.slow
@pytest.mark.parametrize("line", MANY.values(), ids=MANY.keys())
def test_many_patterns_are_not_tried_one_by_one(
    line: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generated list of 20,000 lines: for each path only the few that share a text with it are tried."""
    tried = 0
    matches = Pattern.matches

    def counted(self: Pattern, path: bytes, is_folder: bool) -> bool:
        nonlocal tried
        tried += 1
        return matches(self, path, is_folder)

    rules = Rules("", "\n".join(map(line, range(20_000))).encode())
    monkeypatch.setattr(Pattern, "matches", counted)
    paths = [
        f"data/{name}"
        for name in ("part00007.bin", "part-00007-x.bin", "a-00007.bin", "part00007-x", "train.py")
    ]
    ignored = [path for path in [*paths, "data/a/part00007/x.bin"] if rules.judge(path, False)]
    assert (bool(ignored), tried < 20) == (True, True)


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
