"""JSON job files: values, places, duplicates and the errors of the syntax."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.documents.document import read_document
from cloudtrain.errors import JobError
from cloudtrain.job.file import parse_job

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=15,
)


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> dict[tuple[str | int, ...], Any]:
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
        found |= leaves(inner, (*path, key))
    return found


@given(VALUES, st.sampled_from([None, 1, "\t"]))
def test_the_text_at_each_place_is_the_value(data: Any, indent: Any) -> None:
    """Every path has a place, and what stands there decodes to the value."""
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    document = read_document(text, "json")
    lines = text.split("\n")
    assert document.data == data
    assert document.positions.values.keys() == leaves(data).keys()
    for path, value in leaves(data).items():
        line, column = document.positions.values[path]
        rest = "\n".join([lines[line - 1][column - 1 :], *lines[line:]])
        assert json.JSONDecoder().raw_decode(rest)[0] == value


def told(text: str) -> tuple[int | None, int | None, str, str | None]:
    """The first problem of a text."""
    with pytest.raises(JobError) as error:
        parse_job(text, format="json", file="job.json")
    problem = error.value.problems[0]
    return problem.line, problem.column, problem.message, problem.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [("{'a': 1}", (1, 2, "not valid JSON: ", "double quotes")),
     ('{"a": NaN}', (1, 7, "`NaN` is not JSON", 'write `"NaN"`, as text')),
     ('{"NaN": "NaN", "a": -Infinity}', (1, 21, "`-Infinity` is not JSON", 'write `"-Infinity"`, as text')),
     ('{"a": 1} x', (1, 10, "not valid JSON: extra data", "a file holds one job")),
     ('{"a" 1}', (1, 6, "not valid JSON: expecting ':' delimiter", "")),
     ('{"a": ' + "9" * 5000 + "}", (1, 7, "a number has too many digits", "as text"))],
)  # fmt: skip
def test_syntax_errors(text: str, expected: tuple[int, int, str, str]) -> None:
    """With the place and what to write instead."""
    line, column, message, hint = told(text)
    assert line == expected[0]
    assert column == expected[1]
    assert message.startswith(expected[2])
    assert expected[3] in (hint or "")


def test_a_comma_too_many() -> None:
    """Python 3.13 points at it, older ones at what comes after; the hint is the same in sense."""
    line, column, message, hint = told('{"a": 1, }')
    assert (line, message[:16]) == (1, "not valid JSON: ")
    assert column in (8, 10)
    assert hint is not None
    assert "comma after the last" in hint


def test_a_duplicate_key_is_an_error_at_the_second() -> None:
    """Python would take the last one in silence."""
    text = '{"name": "a", "entry_point": "t.py",\n "name": "b"}'
    assert told(text) == (
        2,
        2,
        "`name` appears twice; the first is on line 1",
        "remove one of them",
    )


def test_escaped_keys_are_the_same_key() -> None:
    """`"\\u006eame"` is `name`."""
    assert told('{"name": "a", "entry_point": "t.py", "\\u006eame": "b"}')[2].startswith(
        "`name` appears twice"
    )


def test_an_infinite_number_is_refused() -> None:
    """`1e999` is valid JSON and reads as infinity."""
    assert told('{"name": "a", "entry_point": "t", "hyperparameters": {"x": 1e999}}')[2] == (
        "`x` cannot be `inf`: no service accepts it"
    )
