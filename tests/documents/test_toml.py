"""TOML job files: the places that our scan finds, against what the standard library reads."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.documents.document import read_document
from cloudtrain.errors import JobError
from cloudtrain.job.file import parse_job

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
PLAIN = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=15,
)


def paths(value: Any, path: tuple[str | int, ...] = ()) -> dict[tuple[str | int, ...], Any]:
    """Every value under its path."""
    found = {path: value}
    entries = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in entries:
        found |= paths(inner, (*path, key))
    return found


def places(text: str) -> dict[str, tuple[int, int]]:
    """The place of each value, by its dotted path."""
    positions = read_document(text, "toml").positions.values
    return {".".join(map(str, path)): tuple(place) for path, place in positions.items() if path}


@given(st.dictionaries(TEXT, VALUES, max_size=4), st.booleans())
def test_every_value_that_tomli_w_writes_is_found(data: dict[str, Any], multiline: bool) -> None:
    """Every path has a place, and a plain value decodes from the very text at that place."""
    text = tomli_w.dumps(data, multiline_strings=multiline)
    document = read_document(text, "toml")
    assert document.data == tomllib.loads(text)
    lines = text.split("\n")
    for path, value in paths(document.data).items():
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            assert path in document.positions.values or path in document.positions.keys
            continue
        assert path in document.positions.values
        if not isinstance(value, dict | list):
            line, column = document.positions.values[path]
            written = "\n".join([lines[line - 1][column - 1 :], *lines[line:]])
            assert _starts_with(written, value)
            assert document.positions.texts[path] == (
                value if isinstance(value, str) else _text_of(written)
            )


def _text_of(written: str) -> str:
    return written.split("\n")[0].split(",")[0].split("]")[0].split("}")[0].strip()


def _starts_with(written: str, value: Any) -> bool:
    """Some beginning of the text is TOML for the value."""
    ends = (
        [i for i, char in enumerate(written) if char in "\"'"] if isinstance(value, str) else None
    )
    if ends is None:
        return bool(tomllib.loads(f"x = {_text_of(written)}")["x"] == value)
    for end in ends:
        try:
            if tomllib.loads(f"x = {written[: end + 1]}")["x"] == value:
                return True
        except tomllib.TOMLDecodeError:
            continue
    return False


def test_tables_and_dotted_keys() -> None:
    """Headers, dotted and quoted keys, inline tables; comments and blank lines between."""
    text = """\
# a job
name = "a"  # "not this"
a.b . "c.d" = 1

[ x . 'y z' ]  # table
k = { m = [ 1,
   # inside
   'two', ], n.o = true }
"""
    assert places(text) == {
        "name": (2, 8), "a": (3, 1), "a.b": (3, 3), "a.b.c.d": (3, 15), "x": (5, 3), "x.y z": (5, 7), "x.y z.k": (6, 5),
        "x.y z.k.m": (6, 11), "x.y z.k.m.0": (6, 13), "x.y z.k.m.1": (8, 4), "x.y z.k.n": (8, 14), "x.y z.k.n.o": (8, 20),
    }  # fmt: skip


def test_arrays_of_tables() -> None:
    """Each header starts the next entry; a sub-table belongs to the last one."""
    text = "[[g]]\nn = 1\n[g.sub]\nm = 2\n[[g]]\nn = 3\n[[g.deep]]\nk = 4\n[[g.deep]]\nk = 5\n"
    found = places(text)
    assert found["g.0.n"] == (2, 5)
    assert found["g.0.sub.m"] == (4, 5)
    assert found["g.1.n"] == (6, 5)
    assert found["g.1.deep.0.k"] == (8, 5)
    assert found["g.1.deep.1.k"] == (10, 5)


def test_all_kinds_of_strings() -> None:
    """Quotes, brackets and comment signs inside strings do not mislead the scan."""
    text = (
        'a = """x\n"] # " ""\\"""""\n'
        "b = '''y\n'] ''\n'''''\n"
        'c = "[\\"#"\n'
        "d = '\\'\n"
        'e = ["]", """}""", \'\'\'#\'\'\']\n'
        "f = 3\n"
    )
    data, found = read_document(text, "toml"), places(text)
    assert data.data == tomllib.loads(text)
    assert found["f"] == (len(text.split("\n")) - 1, 5)
    assert data.positions.texts[("a",)] == data.data["a"]
    assert data.positions.texts[("b",)] == data.data["b"]


@pytest.mark.parametrize(
    ("text", "line", "column", "hint"),
    [("a = b", 1, 5, 'write text in quotes: `key = "text"`'), ("a 1", 1, 3, "write `key = value`"),
     ("a = 1\na = 2", 2, 6, "the key appears twice; remove one of them"),
     ("[a]\n[a]\n", 2, 3, "the table appears twice; join the two"), ("a = [1", 1, 7, "close the list with `]`"),
     ('a = "\\q"', 1, 7, "use single quotes, in which a backslash stands for itself"),
     ("a = {b = 1}\na.c = 2\n", 2, 8, None)],
)  # fmt: skip
def test_syntax_errors(text: str, line: int, column: int, hint: str | None) -> None:
    """The place that the standard library names (it varies by a column between versions), and what to do."""
    with pytest.raises(JobError) as error:
        parse_job(text, format="toml", file="job.toml")
    [problem] = error.value.problems
    assert problem.message.startswith("not valid TOML: ")
    assert problem.line == line
    assert abs((problem.column or 0) - column) <= 1
    assert hint is None or problem.hint == hint


def test_a_date_is_no_job_value() -> None:
    """TOML has dates; JSON and the services do not."""
    with pytest.raises(JobError) as error:
        parse_job(
            'name = "a"\nentry_point = "t"\nhyperparameters.day = 2024-01-02\n',
            format="toml",
            file="f",
        )
    [problem] = error.value.problems
    assert (problem.line, problem.column) == (3, 23)
    assert problem.hint == 'write `"2024-01-02"`, in quotes'
