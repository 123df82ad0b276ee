r"""What a terminal obeys, or does not show, is written out: `\x1b`, `\u202e`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import unicodedata

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
    on_one_line,
    shell_word,
    to_text,
    visible,
    visible_json,
    visible_output,
    visible_yaml,
)
from cloudtrain.plans.html import to_html

HOSTILE = (
    "\x1b[2J", "\x1b]0;title\x07", "\x1b]8;;http://evil\x1b\\", "\x9b31m", "\x85", "\x7f", "\x00", "\b\b", "\r", "\n",
    "\t", "\u202e", "\u2066", "\u200b", "\u200d", "\ufeff", "\u2028", "\u00ad", "\u3164", "\U000e0041", "\udcff",
    "\u061c", "\x1b[8m", "\x1b[31m", "`", "'", "$(x)", "\\", "[/bold]", "é", "日本", "😀", " ",
)  # fmt: skip
"""Parts of which texts are made that somebody else has written."""

TEXT = st.lists(st.sampled_from(HOSTILE) | st.text(max_size=3), max_size=8).map("".join)
OURS = re.compile(r"\x1b\[[0-9;]*m")

PREPENDED = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
"""Formats that are seen: signs before Arabic, Syriac and Kaithi numbers."""

HIEROGLYPHS = range(0x13430, 0x13440)
"""Formats that place hieroglyphs above each other."""


def is_seen(char: str) -> bool:
    """Whether a character shows itself and does nothing else, by Unicode's own tables."""
    category = unicodedata.category(char)
    visible_format = category == "Cf" and (ord(char) in PREPENDED or ord(char) in HIEROGLYPHS)
    return category not in ("Cc", "Cf", "Cs", "Zl", "Zp") or visible_format


def unseen_in(text: str) -> list[str]:
    """What must not be in an output: everything unseen but line feeds."""
    return [char for char in text if char != "\n" and not is_seen(char)]


@pytest.mark.slow
def test_every_character_of_unicode() -> None:
    """Whatever Unicode calls a control, a format, a line end or half a character is written out; no letter is."""
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        if not is_seen(char):
            assert on_one_line(char) != char, hex(code)
        elif unicodedata.category(char)[0] in "LNPS" and char not in "\u115f\u1160\u3164\uffa0":
            assert on_one_line(char) == char, hex(code)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", r"\x1b[2J"), ("a\rb", r"a\rb"), ("\u202egnp.exe", r"\u202egnp.exe"), ("a\u200bb", r"a\u200bb"),
        ("\x9b1m", r"\x9b1m"), ("\U000e0041", r"\U000e0041"), ("\udcff", r"\udcff"), ("é 日本 😀", "é 日本 😀"),
        ("a\tb\nc", "a   b\nc"),
    ],
)  # fmt: skip
def test_how_it_is_written(text: str, shown: str) -> None:
    """As in Python and JSON; letters of any script stay."""
    assert visible(text) == shown


def test_a_part_of_a_line_stays_in_its_line() -> None:
    """A line feed in a file name does not begin a line."""
    assert on_one_line("a\nerror: b\tc") == r"a\nerror: b\tc"


@given(TEXT, TEXT, st.lists(TEXT, max_size=3), st.integers(10, 60) | st.none(), st.booleans())
def test_documents_show_nothing_else(
    text: str, other: str, more: list[str], width: int | None, color: bool
) -> None:
    """Every kind of block, at every width, with and without colour, and as HTML: only what is seen, line feeds, and our
    own colours. A text within a line begins no line of its own."""
    blocks = [
        Heading(text), Pairs([(text, other), (other, Span(text, "bad"))]), Table((text, "B"), [(text, Span(other, "good"))]),
        Lines(more), CommandLine([text, other], [(text, other)]), Notice("error", text, text, other, more, hint=other),
        Text(text),
    ]  # fmt: skip
    shown = to_text(Document(blocks), width=width, color=color)
    assert unseen_in(OURS.sub("", shown)) == []
    assert color or "\x1b" not in shown
    assert unseen_in(to_html(Document(blocks))) == []
    for one_line in (Heading(text), Lines([text]), CommandLine(["x"], [(text, other)])):
        lines = to_text(Document([one_line]), width=None).count("\n")
        assert lines == len(more[:0]) + (2 if isinstance(one_line, CommandLine) else 1)


@given(TEXT, st.booleans())
def test_output_shows_nothing_else(text: str, color: bool) -> None:
    """A line of a log: what is seen, tabs, and with colours only complete colours, ended at its end."""
    shown = visible_output(text.replace("\n", ""), color=color)
    assert unseen_in(OURS.sub("", shown).replace("\t", "")) == []
    assert color or "\x1b" not in shown
    assert not re.search(r"\x1b\[[0-9;]*m", shown) or shown.endswith("\x1b[0m")


@pytest.mark.parametrize(
    ("text", "plain", "colored"),
    [
        ("step 1", "step 1", "step 1"),
        ("a\tb", "a\tb", "a\tb"),
        ("\x1b[32mok\x1b[0m", "ok", "\x1b[32mok\x1b[0m\x1b[0m"),
        ("\x1b[1;38;5;208mok", "ok", "\x1b[1;38;5;208mok\x1b[0m"),
        ("\x1b[38;2;1;2;3mok\x1b[m", "ok", "\x1b[38;2;1;2;3mok\x1b[m\x1b[0m"),
        ("\x1b[8mhidden", r"\x1b[8mhidden", r"\x1b[8mhidden"),
        ("\x1b[2J\x1b[H", r"\x1b[2J\x1b[H", r"\x1b[2J\x1b[H"),
        ("\x1b]0;title\x07x", r"\x1b]0;title\x07x", r"\x1b]0;title\x07x"),
        (" 10%|#   |\r 50%|##  |\r100%|####|", "100%|####|", "100%|####|"),
        ("\x1b[A\r\x1b[2K 50%|##  |\x1b[K\r", " 50%|##  |", " 50%|##  |"),
        ("\u202e1.0 :ssol", r"\u202e1.0 :ssol", r"\u202e1.0 :ssol"),
    ],
)
def test_lines_of_a_log(text: str, plain: str, colored: str) -> None:
    """Colours on a terminal; the last state of a progress bar; everything else written out."""
    assert visible_output(text, color=False) == plain
    assert visible_output(text, color=True) == colored


@given(TEXT)
def test_json_keeps_its_value(text: str) -> None:
    """What is written out in a JSON document is the same value, and nothing unseen is left."""
    shown = visible_json(json.dumps({text: [text]}, ensure_ascii=False))
    assert json.loads(shown) == {text: [text]}
    assert unseen_in(shown) == []


@given(TEXT.filter(lambda text: not re.search("[\ud800-\udfff\ufffe\uffff]", text)))
def test_yaml_keeps_its_value(text: str) -> None:
    """The same for the YAML of Azure ML, whose texts are written in quotes where it matters."""
    import yaml

    from cloudtrain.targets.azureml.export import _dump

    shown = _dump({"a": text, "b": {text or "k": 1}})
    assert yaml.safe_load(shown) == {"a": text, "b": {text or "k": 1}}
    assert unseen_in(shown.replace("\t", "")) == []
    assert visible_yaml(shown) == shown


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    "text",
    [part for part in HOSTILE if part not in ("\x00", "\udcff")] + ["a b; rm -rf $HOME", "", "-x"],
)
def test_a_command_that_is_copied_is_the_command(text: str) -> None:
    """bash reads a word back as it was, whatever is in it, and the word shows what it holds."""
    word = shell_word(text)
    assert unseen_in(word) == []
    assert "\n" not in word
    argv = ["bash", "-c", f"printf %s {word}"]
    done = subprocess.run(
        argv, capture_output=True, check=True, env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}
    )
    assert done.stdout.decode() == text
