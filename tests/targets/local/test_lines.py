"""Bytes to lines: nothing is lost, however the bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.targets.local.output import LONGEST, PROGRESS_EVERY, LineSplitter


def split(*chunks: bytes) -> list[str]:
    """All lines of a stream that arrives in these pieces, and then ends."""
    lines = LineSplitter()
    return [line for chunk in chunks for line in lines.feed(chunk, 0.0)] + lines.flush()


@given(st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"])), st.data())
def test_pieces_do_not_matter(text: str, data: st.DataObject) -> None:
    """A stream cut anywhere, inside characters too, gives the lines that the whole stream has."""
    content = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=6)))
    chunks = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    expected = text.split("\n")
    assert split(*chunks) == (expected[:-1] if expected[-1] == "" else expected)


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_any_bytes(chunks: list[bytes]) -> None:
    """No bytes are an error, and no line holds a newline."""
    assert all("\n" not in line for line in split(*chunks))


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"10%\r20%\r100%\n", ["100%"]),
        (b"\r10%\r20%\rdone\n", ["done"]),
        (b"last\r", ["last"]),
        (b"\n\n", ["", ""]),
        (b"\xff\xfe ok\n", ["\ufffd\ufffd ok"]),
        (b"", []),
    ],
)
def test_what_a_terminal_would_show(content: bytes, lines: list[str]) -> None:
    """Carriage returns leave the last state; bad UTF-8 is replaced."""
    assert split(content) == lines


def test_progress_bar_is_seen_now_and_then() -> None:
    """A bar that runs for hours without a newline shows a state every few seconds, and needs no memory."""
    lines, shown = LineSplitter(), []
    for step in range(3000):
        shown += lines.feed(f"\r{step}/3000".encode(), now=100 + step * 0.01)
        assert len(lines.pending) < 100
    assert len(shown) == pytest.approx(30 / PROGRESS_EVERY, abs=1)
    assert lines.feed(b"\n", 200.0) == ["2999/3000"]


@pytest.mark.parametrize("piece", [b"x", "ä".encode(), "🙂".encode()])
def test_endless_line(piece: bytes) -> None:
    """A line without end goes on in further lines, cut between characters; all of it is there."""
    content = piece * (3 * LONGEST // len(piece))
    for chunks in (
        [content],
        [content[n : n + 999] for n in range(0, len(content), 999)],
        [content + b"\n"],
    ):
        lines = split(*chunks)
        assert "".join(lines).encode() == content
        assert max(len(line.encode()) for line in lines) <= LONGEST
