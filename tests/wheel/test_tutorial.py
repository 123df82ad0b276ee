"""The hour of a newcomer: `docs/start/tutorial.md`, from top to bottom, in a new environment made from the wheel.

Every file of the page is written, every command runs, and every output is compared with the one on the page.
`pytest tests/wheel/test_tutorial.py --update-golden` writes what the commands printed into the page.

What depends on the machine, the moment or the code's version may differ: see `PATTERNS`. Lines may be wrapped elsewhere,
because names and paths have other lengths. A line `...` stands for any number of lines.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.deadlines import DEADLINE
from tests.wheel.conftest import ROOT, run

pytestmark = [pytest.mark.wheel, pytest.mark.torch]

PAGE = ROOT / "docs" / "start" / "tutorial.md"

HOME = "/home/ada"
"""Stands on the page for the reader's home."""

INSTALLATION = """\
$ mkdir tiny-gpt && cd tiny-gpt
$ python3 -m venv .venv && . .venv/bin/activate
$ pip install "$HOME/src/cloudtrain[torch]"
"""
"""The page's first commands. The test does the same with the wheel and the PyTorch that is here."""

PATTERNS = {
    r"\b[0-9a-f]{40,64}\b": "<sha256>",
    r"(?<=-)[0-9a-f]{8}(?=-\d)": "<hash>",  # of a run's name
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC": "<time>",
    r"(?<![\w.])(\d+(\.\d+)? s|(\d+(\.\d+)?[dhms])+)(?=\s|$|:)": "<duration>",
    r"(?<=seconds_left=)\S+": "<duration>",
    r"\b\d+(\.\d+)? (B|[KMG]iB)\b": "<size>",
    r"(?<=loss[= ])\d+\.\d+": "<loss>",  # processors differ in the last digits
    r"^\d\.\d+$": "<loss>",
    r"(?<=\()\d+ CPUs?, [^)]*(?=\))": "<processors>",
    r"(?<=local://)[^/\s]+": "<host>",
}
"""What may differ from one machine, run or version to the next."""


class Command(NamedTuple):
    """A command of the page, the text that stands below it, and where that begins and ends in the page."""

    line: str
    shown: str
    start: int
    end: int


class File(NamedTuple):
    """A file that the reader writes."""

    name: str
    text: str


def steps(page: str) -> list[Command | File]:
    """What a reader does, in the order of the page."""
    block = r"^(?:`(?P<name>[\w.]+)`:\n\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$"
    found: list[Command | File] = []
    for match in re.finditer(block, page, re.MULTILINE | re.DOTALL):
        if match["kind"] != "console":
            assert match["name"], f"no name above the block\n{match['text']}"
            found.append(File(match["name"], match["text"]))
            continue
        for command in re.finditer(
            r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", match["text"], re.MULTILINE
        ):
            start, end = (match.start("text") + offset for offset in command.span(2))
            found.append(Command(command[1], command[2], start, end))
    return found


def comparable(text: str) -> str:
    """`text` without what may differ."""
    for pattern, word in PATTERNS.items():
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return " ".join(text.split())


def agree(shown: str, printed: str) -> bool:
    """Whether a command printed what the page shows."""
    parts = [
        re.escape(comparable(part)) for part in re.split(r"^\.\.\.$", shown, flags=re.MULTILINE)
    ]
    return re.fullmatch(r"\s*.*\s*".join(parts), comparable(printed)) is not None


def elided(shown: str, printed: str) -> str:
    """`printed`, with the lines left out that the page leaves out: as many stand before and after `...`."""
    before, dots, after = shown.partition("...\n")
    if not dots:
        return printed
    lines = printed.splitlines(keepends=True)
    return "".join([*lines[: before.count("\n")], dots, *lines[len(lines) - after.count("\n") :]])


def lend(binaries: Path, *names: str) -> None:
    """Put distributions of the tests' environment, and what they depend on, into another one."""
    site = Path(
        run(
            str(binaries / "python"),
            "-c",
            "import site; print(*site.getsitepackages())",
            cwd=binaries,
        ).stdout
    )
    wanted, seen = list(names), set[str]()
    while wanted:
        name = re.split(r"[^\w.-]", wanted.pop())[0]
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # optional, or of another platform
            continue
        wanted += [need for need in distribution.requires or () if "extra ==" not in need]
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            place = Path(str(site).strip()) / top
            if not place.exists():
                place.symlink_to(Path(str(distribution.locate_file(top))))


@pytest.fixture
def project(wheel: Path, clean_environment: Path) -> Path:
    """The folder `tiny-gpt` in the reader's home, with a new environment that has the wheel and PyTorch."""
    folder = clean_environment / "tiny-gpt"
    folder.mkdir()
    run(sys.executable, "-m", "venv", ".venv", cwd=folder)
    binaries = folder / ".venv" / "bin"
    run(str(binaries / "python"), "-m", "pip", "install", "-q", str(wheel), cwd=folder)
    lend(binaries, "torch", "numpy")
    return folder


def environment(home: Path) -> dict[str, str]:
    """What a shell of 80 columns has in which the page's `.venv` is active."""
    kept = {
        name: value for name, value in os.environ.items() if name in ("LANG", "LC_ALL", "TMPDIR")
    }
    path = f"{home / 'tiny-gpt' / '.venv' / 'bin'}:{os.environ['PATH']}"
    return {
        **kept,
        "PATH": path,
        "HOME": str(home),
        "COLUMNS": "80",
        "TERM": "dumb",
        "NO_COLOR": "1",
    }


def test_the_page_from_top_to_bottom(project: Path, request: pytest.FixtureRequest) -> None:
    """Each command prints what stands below it."""
    page = PAGE.read_text("utf-8")
    opening = "".join(f"$ {step.line}\n" for step in steps(page)[:3] if isinstance(step, Command))
    assert opening == INSTALLATION
    home, differing, printed_by = project.parent, [], []
    for step in steps(page)[3:]:
        if isinstance(step, File):
            (project / step.name).write_text(step.text, "utf-8")
            continue
        printed = subprocess.run(
            ["bash", "-c", step.line],
            cwd=project,
            env=environment(home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=DEADLINE,
        ).stdout.replace(str(home), HOME)
        assert "Traceback" not in printed, printed
        printed_by.append((step, elided(step.shown, printed)))
        if not agree(step.shown, printed):
            lines = difflib.unified_diff(
                step.shown.splitlines(), printed.splitlines(), "page", "printed", lineterm=""
            )
            differing.append("\n".join((f"$ {step.line}", *lines)))
    if request.config.getoption("--update-golden"):
        # from the end, so that the places of earlier ones stay
        for command, text in reversed(printed_by):
            page = page[: command.start] + text + page[command.end :]
        PAGE.write_text(page, "utf-8")
    else:
        assert not differing, "\n\n".join(differing)


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        ("a-0123abcd-1 after 28s\n", "a-deadbeef-1 after 1m2s\n", True),
        ("after 6.6s: loss 2.555\n", "after 1m2s: loss 2.5\n", True),
        ("one\n...\nten\n", "one\ntwo\nthree\nten\n", True),
        ("in two\nlines\n", "in\ntwo lines\n", True),
        ("loss 2.555\n", "loss nan\n", False),
        ("all 12 values\n", "all 11 values\n", False),
        ("", "error\n", False),
        ("one\n", "", False),
    ],
)
def test_what_counts_as_the_same(shown: str, printed: str, expected: bool) -> None:
    """Names, times and figures of a machine may differ; words, counts and lines may not."""
    assert agree(shown, printed) is expected
