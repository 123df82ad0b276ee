"""YAML as job files use it: 1.2 values, anchors, merges, and the errors of its syntax."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.documents.document import Content, read_document
from cloudtrain.errors import JobError
from cloudtrain.job.file import parse_job


def read(text: str) -> Any:
    """The data of a text that has no problems."""
    document = read_document(text, "yaml")
    assert document.problems == ()
    return document.data


def told(text: str) -> list[tuple[int | None, int | None, str, str | None]]:
    """What is wrong with a text, without what is wrong with the job in it."""
    head = "name: a\nentry_point: t.py\n"
    with pytest.raises(JobError) as error:
        parse_job(head + text, format="yaml", file="job.yaml")
    return [(p.line and p.line - 2, p.column, p.message, p.hint) for p in error.value.problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 1e-3), ("1E5", 1e5), ("1.", 1.0), (".5", 0.5), ("-2.5e+3", -2500.0), ("0o17", 15), ("0xff", 255), ("017", 17),
     ("+3", 3), ("-0", 0), ("on", "on"), ("off", "off"), ("yes", "yes"), ("No", "No"), ("y", "y"), ("12:30", "12:30"),
     ("1:30:00", "1:30:00"), ("2024-01-02", "2024-01-02"), ("1_000", "1_000"), ("0b11", "0b11"), ("true", True), ("False", False),
     ("null", None), ("~", None), ("", None), (".inf", float("inf")), ("-.INF", float("-inf")), ("1.2.3", "1.2.3"), ("1e", "1e"),
     ("'1'", "1"), ('"true"', "true"), ("!!str 2.10", "2.10"), ("!!float 3", 3.0), ("=", "="), ("infinity", "infinity")],
)  # fmt: skip
def test_plain_values_follow_yaml_1_2(text: str, value: object) -> None:
    """The core schema: no `on`, no sexagesimal numbers, no dates; exponents need no point."""
    assert read(f"x: {text}") == {"x": value}
    assert type(read(f"x: {text}")["x"]) is type(value)


def test_nan_is_a_number() -> None:
    """And not equal to itself."""
    assert read("x: .nan")["x"] != read("x: .nan")["x"]


TEXT = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\x85\u2028\u2029"), max_size=6
)
"""Without the three line breaks that PyYAML itself writes so that they are lost."""

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(TEXT, VALUES, min_size=1, max_size=3), st.booleans())
def test_what_pyyaml_writes_reads_back(data: dict[str, Any], flow: bool) -> None:
    """Everything quoted, so types are tags (`!!int "3"`): PyYAML's plain values are those of YAML 1.1."""
    text = yaml.safe_dump(data, default_flow_style=flow, default_style='"', allow_unicode=True)
    assert read(text) == data


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_as_yaml(text: str) -> None:
    """No text makes another exception than JobError."""
    with pytest.raises(JobError):
        parse_job(text, format="yaml", file="f")


def test_anchors_and_merges() -> None:
    """Own keys win over merged ones, earlier merges over later ones, wherever `<<` stands."""
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {y: 3, <<: [*a, *b]}\nd: {<<: *b, z: 4}\ne: *a\n"
    found = read(text)
    assert (found["c"], found["d"], found["e"]) == (
        {"y": 3, "x": 1, "z": 2},
        {"y": 2, "z": 4},
        {"x": 1, "y": 1},
    )


def test_a_merged_merge() -> None:
    """A mapping that was merged itself brings in all that it has."""
    assert read("a: &a {x: 1}\nb: &b {<<: *a, y: 2}\nc: {<<: *b}")["c"] == {"x": 1, "y": 2}


def test_a_mistake_in_merged_text_stands_where_it_is_written() -> None:
    """At the anchor, not at the alias, once for each job value that it makes wrong."""
    text = "inputs:\n  a: &a {local: x, mode: mout}\n  b: {<<: *a}\n"
    places = [(line, column) for line, column, *_ in told(text)]
    assert places == [(2, 26), (2, 26)]


def test_a_key_that_appears_twice_is_reported_once() -> None:
    """Where it is written, and not again where its mapping is merged."""
    [found] = document("a: &a {x: 1, x: 2}\nb: {x: 3, <<: *a}\n")
    assert found[:3] == (1, 14, "`x` appears twice; the first is on line 1")


def test_a_quoted_merge_sign_is_a_key() -> None:
    """Only a plain `<<` merges."""
    assert read('x: {"<<": 1}') == {"x": {"<<": 1}}


def document(text: str) -> list[tuple[int | None, int | None, str, str | None]]:
    """The problems that leave the text readable."""
    found: Content = read_document(text, "yaml")
    return [(p.line, p.column, p.message, p.hint) for p in found.problems]


@pytest.mark.parametrize(
    ("text", "told"),
    [("a: 1\nb: 2\na: 3\n", (3, 1, "`a` appears twice; the first is on line 1", "remove one of them")),
     ("x: {a: 1, a: 2}", (1, 11, "`a` appears twice; the first is on line 1", "remove one of them")),
     ("x: {1: y}", (1, 5, "a key must be text, not `1`", 'write `"1"`, in quotes')),
     ("true: y", (1, 1, "a key must be text, not `true`", 'write `"true"`, in quotes')),
     ("?\n: y", (1, 2, "a key must be text, not empty", "write a name before the colon")),
     ("? [a]\n: y", (1, 3, "a key must be text, not a list or a mapping", "write a name before the colon")),
     ("a: !foo 3", (1, 4, "a job file cannot have tags such as `!foo`", "remove the tag")),
     ("a: !!python/object:os.system {}", (1, 4, "a job file cannot have tags such as `!!python/object:os.system`", "remove the tag")),
     ("a: !!int x", (1, 4, "`x` does not have the type of its tag `!!int`", "remove the tag")),
     ("a: {<<: 3}", (1, 9, "`<<` takes in a mapping or a list of mappings", "write `<<: *name`, where `&name` is a mapping"))],
)  # fmt: skip
def test_problems_that_leave_the_text_readable(text: str, told: tuple[Any, ...]) -> None:
    """Duplicates, keys that are no text, and tags; at the key or the value itself."""
    assert document(text) == [told]


@pytest.mark.parametrize(
    ("text", "line", "column", "message", "hint"),
    [("resources:\n\tinstance_count: 2\n", 2, 1, "not valid YAML: a tab cannot indent a line", "indent with spaces"),
     ("a: b: c\n", 1, 5, "not valid YAML: mapping values are not allowed in this context",
      "put text that holds `: ` in quotes, and indent entries alike"),
     ("a: 1\n---\nb: 2\n", 2, 1, "the file holds several documents (`---`)", "a file holds one job: remove the others"),
     ("a: [1, 2\n", 2, 1, "not valid YAML: did not find expected ',' or ']'", "close the list with `]`"),
     ("a: *no\n", 1, 4, "not valid YAML: found undefined alias", "an alias `*name` needs an anchor `&name` before it"),
     ("a: &x [*x]\n", 1, 4, "the text holds an anchor that refers to itself",
      "write the value in the alias's place"),
     ("a: é\x07\n", 1, 5, "not valid YAML: the text holds a control character", "remove it"),
     ("a: @b\n", 1, 4, "not valid YAML: found character that cannot start any token",
      "put text that starts with a special sign in quotes")],
)  # fmt: skip
def test_syntax_errors_have_a_place_and_a_hint(
    text: str, line: int, column: int, message: str, hint: str | None
) -> None:
    """One problem: nothing else can be said about such a text."""
    assert told(text) == [(line, column, message, hint)]


def test_aliases_cannot_blow_a_file_up() -> None:
    """Ten lines that stand for a billion values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    assert told("\n".join(lines))[0][2] == "the text has more values than cloudtrain reads"


def test_merges_cannot_blow_a_file_up() -> None:
    """Ten kilobytes that stand for half a million merged keys."""
    keys = ", ".join(f"k{number}: 1" for number in range(800))
    text = f"a: &a {{{keys}}}\nb: {{<<: [{', '.join(['*a'] * 800)}]}}"
    assert told(text)[0][2] == "the text has more values than cloudtrain reads"


@pytest.mark.parametrize("written", ["1" * 4000, "0x" + "f" * 4000, "0o" + "7" * 5000])
def test_a_number_too_long_for_python_stays_text(written: str) -> None:
    """Python neither reads nor writes whole numbers of more than 4300 digits."""
    assert read(f"a: {written}") == {"a": written}
    assert str(read(f"a: {written[:3500]}")["a"]).isdecimal()
