"""Documents as text: what fits, what is wrapped, and that colour changes no word."""

from __future__ import annotations

import io
import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.plans.document import (
    CommandLine,
    Document,
    Heading,
    Lines,
    Notice,
    Pairs,
    Span,
    Table,
    Text,
    to_text,
    width_of,
    wrap,
)

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")

EVERYTHING = Document(
    [
        Heading("A heading"),
        Pairs([("state", Span("failed", "bad")), ("reason", "a long reason " * 10)]),
        Text("Use `cloudtrain stop NAME` to stop it."),
        Table(("NAME", "STATE"), [("run-1", Span("running", "info")), ("run-2", "lost")]),
        Lines(['{"a": 1}']),
        CommandLine(["python", "-u", "train.py", "--note", "it's"], [("RANK", "0")]),
        Notice("error", "bad", "CT101", "job.yaml:1:1", ("detail",), "do this"),
    ]
)


def test_notice_looks_like_the_documented_error() -> None:
    """Message with its code, place, blank line, hint: the look that the documentation promises."""
    notice = Notice(
        "error",
        "`Standard_NC24s_v3` has no InfiniBand, and this job runs on 4 instances",
        "AZ203",
        "job.yaml:9:20  resources.instance_type",
        hint="use `Standard_ND96asr_v4`, or accept Ethernet with `--ignore AZ203`",
    )
    assert to_text(Document([notice]), width=None) == (
        "error: `Standard_NC24s_v3` has no InfiniBand, and this job runs on 4 instances [AZ203]\n"
        "  job.yaml:9:20  resources.instance_type\n"
        "\n"
        "hint: use `Standard_ND96asr_v4`, or accept Ethernet with `--ignore AZ203`\n"
    )


def test_a_cut_column_has_room_or_is_left_out() -> None:
    """Each row is one line: cut with 12 columns or more, and without the last cell below."""
    table = Document(
        [
            Table(
                ("NAME", "STATE", "LAST"),
                [("run-12345678", "lost", "a reason without an end")],
                is_cut=True,
            )
        ]
    )
    assert to_text(table, width=40).splitlines()[1] == "run-12345678  lost   a reason without..."
    assert to_text(table, width=30).splitlines() == ["NAME          STATE", "run-12345678  lost"]
    assert to_text(table, width=None).splitlines()[1].endswith("without an end")


def test_a_path_that_is_too_long_is_broken_after_a_slash() -> None:
    """Its pieces stand in the column of the value; a command in backticks stays whole."""
    path = "/home/ada/.local/state/cloudtrain/runs/digits-ddp-4a521170-1/checkpoint"
    text = to_text(Document([Pairs([("run folder", path), ("hint", f"`cat {path}`")])]), width=60)
    assert path in text.splitlines()[0], "in a file, a search finds it"
    text = to_text(
        Document([Pairs([("run folder", path), ("hint", f"`cat {path}`")])]), width=60, fold=True
    )
    lines = text.splitlines()
    assert lines[0] == "  run folder  /home/ada/.local/state/cloudtrain/runs/"
    assert lines[1] == "              digits-ddp-4a521170-1/checkpoint"
    assert f"`cat {path}`" in text
    typed = Document([CommandLine(["cat", path])])
    assert to_text(typed, width=60, fold=True) == to_text(typed, width=60)


def test_a_long_value_never_reaches_the_first_column() -> None:
    """A list is broken after a comma; a name that is longer than a line is broken at its end."""
    value = (
        '{"hosts":["algo-1","algo-2"],"instance_type":"ml.p4d.24xlarge","digest":"'
        + 64 * "ab"
        + '"}'
    )
    lines = to_text(Document([Pairs([("groups", value)])]), width=40, fold=True).splitlines()
    assert lines[0].endswith('"algo-2"],')
    assert "".join(line[10:] for line in lines) == value
    assert all(len(line) <= 40 and line.startswith(10 * " ") for line in lines[1:])


@pytest.mark.parametrize("width", [20, 40, 80, None])
def test_colour_changes_no_word(width: int | None) -> None:
    """Without its escape sequences, coloured text is the plain text."""
    coloured = to_text(EVERYTHING, width=width, color=True)
    assert "\x1b[" in coloured
    assert ESCAPE.sub("", coloured) == to_text(EVERYTHING, width=width)


def test_rich_prints_the_same_words() -> None:
    """rich at 60 columns prints what the plain text of 60 columns has."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=60, color_system=None)
    console.print(EVERYTHING)
    printed = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert printed == to_text(EVERYTHING, width=60).splitlines()


def test_lines_end_without_padding() -> None:
    """No line ends in blanks, coloured or not."""
    for color in (False, True):
        assert all(line == line.rstrip() for line in to_text(EVERYTHING, color=color).splitlines())


def test_long_key_gets_its_own_line() -> None:
    """A run name is never cut: when the table is too wide, it stands alone and the rest stays in its columns."""
    name = "a-job-with-a-name-of-forty-characters-or-so-3f9a1c22-17"
    rows = [
        (name, "preparing", "sagemaker", "12d3h", "1h30m"),
        ("short", "lost", "local", "2m", "1s"),
    ]
    lines = to_text(
        Document([Table(("NAME", "STATE", "TARGET", "AGE", "DURATION"), rows)]), width=80
    ).splitlines()
    assert lines[1] == name
    assert max(map(len, lines)) <= 80
    assert lines[2].index("preparing") == lines[3].index("lost") == lines[0].index("STATE")


def test_last_column_is_wrapped_under_itself() -> None:
    """Running text in the last column continues in that column."""
    lines = to_text(
        Document([Table(("CODE", "WHAT"), [("CT101", "word " * 30)])]), width=40
    ).splitlines()
    assert len(lines) > 3
    assert all(line.startswith(" " * 7 + "word") for line in lines[2:])


def test_nothing_is_wrapped_without_a_width() -> None:
    """With no width, a row is one line: what a pipe gets."""
    text = to_text(Document([Table(("A", "B"), [("x" * 100, "word " * 50)])]), width=None)
    assert len(text.splitlines()) == 2


@pytest.mark.parametrize("width", [30, 80, None])
def test_command_can_be_pasted_into_a_shell(width: int | None) -> None:
    """A shell reads the argv back, backslashes at line ends included."""
    argv = [
        "/usr/bin/python",
        "-m",
        "x",
        "--note",
        'it\'s a "test"',
        "--empty",
        "",
        "--port",
        "${{ports.a}}",
        "*;&|",
    ]
    text = to_text(Document([CommandLine(argv)]), width=width)
    assert shlex.split(text.strip().removeprefix("$ ").replace("\\\n", "")) == argv


def test_control_characters_are_written_out() -> None:
    """A value cannot clear the screen or fake a line of output."""
    text = to_text(
        Document([Pairs([("name", "a\x1b[2Jb\rc")]), Notice("error", "x\x07y")]), width=80
    )
    assert "a\\x1b[2Jb\\rc" in text
    assert "x\\x07y" in text


def test_wide_characters_take_two_columns() -> None:
    """Columns stay aligned beside CJK text."""
    rows = [("データ", "one"), ("data", "two")]
    first, second = to_text(Document([Table(("NAME", "VALUE"), rows)])).splitlines()[1:]
    assert width_of(first[: first.index("one")]) == width_of(second[: second.index("two")])


@given(st.text(st.characters(codec="utf-8"), max_size=200), st.integers(10, 100))
def test_wrapping_keeps_every_word_and_the_width(text: str, width: int) -> None:
    """All that is not white space comes back in order, and only a single word may overflow."""
    lines = wrap(text, width)
    unwrapped = wrap(text, None)
    assert "".join("".join(lines).split()) == "".join("".join(unwrapped).split())
    for line in lines:
        assert width_of(line) <= width or " " not in line.strip() or "`" in line


def test_literals_stay_whole() -> None:
    """A command in backticks is not broken over two lines, so it can be copied."""
    lines = wrap(
        "stop the run that you have just started with `cloudtrain stop digits-ddp-3f9a1c22-1` now",
        60,
    )
    assert any("`cloudtrain stop digits-ddp-3f9a1c22-1`" in line for line in lines)
