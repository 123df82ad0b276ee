"""Every mistake in a job file is reported with its line and column, all at once, in all three formats."""

from __future__ import annotations

from time import process_time
from typing import Any, get_args

import pytest

import cloudtrain as ct
from cloudtrain.documents.document import Format
from cloudtrain.job.file import parse, parse_job
from tests.hints import no_choice, no_field, suggested, wrong_type

Told = tuple[int | None, int | None, str, str | None]


def told(text: str, format: Format = "yaml") -> list[Told]:
    """Line, column, message and hint of every problem."""
    with pytest.raises(ct.JobError) as error:
        parse_job(text, format=format, file="job")
    assert all(problem.file == "job" for problem in error.value.problems)
    return [(p.line, p.column, p.message, p.hint) for p in error.value.problems]


FIVE: dict[Format, str] = {
    "yaml": """\
name: my-job
entry_point: train.py
distribution:
  type: torhc
environment:
  version: 2.10
resources:
  instance_cout: 2
hyperparameters:
  data: "${{inputs.trian}}"
inputs:
  train:
    local: data
    mode: mout
""",
    "toml": """\
name = "my-job"
entry_point = "train.py"
distribution.type = "torhc"
[environment]
version = 2.10
[resources]
instance_cout = 2
[hyperparameters]
data = "${{inputs.trian}}"
[inputs.train]
local = "data"
mode = "mout"
""",
    "json": """\
{"name": "my-job", "entry_point": "train.py",
 "distribution": {"type": "torhc"},
 "environment": {"version": 2.10},
 "resources": {"instance_cout": 2},
 "hyperparameters": {"data": "${{inputs.trian}}"},
 "inputs": {"train": {"local": "data",
\t"mode": "mout"}}}
""",
}
PLACES = {
    "yaml": [(4, 9), (6, 12), (8, 3), (10, 9), (14, 11)],
    "toml": [(3, 21), (5, 11), (7, 1), (9, 8), (12, 8)],
    "json": [(2, 27), (3, 29), (4, 16), (5, 30), (7, 10)],
}


@pytest.mark.parametrize("format", get_args(Format))
def test_five_mistakes_are_five_errors(format: Format) -> None:
    """In the order of the file, each at the wrong value, or at the key where the key is wrong."""
    said = [
        ("`torhc` is not a distribution", suggested("torch")),
        (wrong_type("version", "text", "`2.10`"), 'write `"2.10"`, in quotes'),
        (no_field("instance_cout", "`resources`"), suggested("instance_count")),
        (
            "`${{inputs.trian}}` refers to nothing: the job has no input `trian`",
            suggested("train"),
        ),
        (no_choice("mode", '`"mout"`'), suggested("mount")),
    ]
    expected = [(*place, *words) for place, words in zip(PLACES[format], said, strict=True)]
    assert told(FIVE[format], format) == expected


def test_the_place_of_what_is_missing_is_its_parent() -> None:
    """The key of the mapping that lacks it, or the top of the file."""
    text = "entry_point: t.py\ndistribution:\n  type: smp\n"
    assert [(line, column, message) for line, column, message, _ in told(text)] == [
        (1, 1, "`name` is missing"),
        (2, 1, "`version` is missing"),
    ]


def test_a_rule_of_a_whole_mapping_points_at_its_key() -> None:
    """An input without a place."""
    text = "name: a\nentry_point: t.py\ninputs:\n  train:\n    mode: pipe\n"
    assert told(text)[0][:3] == (4, 3, "an input needs a location on at least one target")


def test_an_empty_value_says_so() -> None:
    """`resources:` with nothing under it."""
    text = "name: a\nentry_point: t.py\nresources:\n"
    assert told(text) == [(3, 11, "`resources` has no value", "write a value, or remove the line")]


def test_a_number_is_shown_as_it_is_written() -> None:
    """`1e3` and `0x10` where text is asked for."""
    text = "name: a\nentry_point: t.py\ntags: {a: 1e3, b: 0x10, c: 007}\n"
    assert [hint for *_, hint in told(text)] == [
        f'write `"{t}"`, in quotes' for t in ("1e3", "0x10", "007")
    ]


@pytest.mark.parametrize("format", get_args(Format))
@pytest.mark.parametrize("text", ["", " \n\n", "\ufeff"])
def test_an_empty_file(format: Format, text: str) -> None:
    """Says how a job starts, in its format."""
    [(_, _, message, hint)] = told(text, format)
    assert message == "the job file is empty"
    assert hint is not None
    assert "my-job" in hint


@pytest.mark.parametrize(
    ("format", "text"), [("yaml", "# only\n"), ("toml", "# only\n"), ("json", "{}")]
)
def test_a_file_without_entries_is_empty_too(format: Format, text: str) -> None:
    """Comments alone are no job."""
    assert told(text, format)[0][2] == "the job file is empty"


@pytest.mark.parametrize(
    ("text", "problem"),
    [("1: 2\n", (1, 1, "a key must be text, not `1`", 'write `"1"`, in quotes')),
     ("? [a]\n", (1, 3, "a key must be text, not a list or a mapping", "write a name before the colon"))],
)  # fmt: skip
def test_a_file_with_mistakes_alone_is_not_empty(text: str, problem: tuple[Any, ...]) -> None:
    """Its mistakes are told, and what a job needs."""
    found = told(text)
    assert problem in found
    assert "`name` is missing" in {message for *_, message, _ in found}


@pytest.mark.parametrize(
    ("format", "text", "what"),
    [
        ("yaml", "\n- a\n", "a list"),
        ("yaml", "hello", '`"hello"`'),
        ("json", "[]", "a list"),
        ("json", " 3", "`3`"),
    ],
)
def test_the_top_must_be_a_mapping(format: Format, text: str, what: str) -> None:
    """Lists and plain values are not jobs."""
    assert told(text, format)[0][2] == f"a job file holds a mapping at the top, not {what}"


def test_a_job_file_knows_where_everything_stands() -> None:
    """Findings of later checks get their place from the job file."""
    found = parse("name: a\nentry_point: t.py\nresources:\n  instance_type:\n    azureml: x\n", format="yaml", file="j.yaml",
                  overrides=["resources.instance_count=4"])  # fmt: skip
    assert found.place_of(("resources", "instance_type", "azureml")) == "j.yaml:5:14"
    assert found.place_of(("resources", "gpu")) == "j.yaml:3:1"
    assert found.place_of(("resources", "instance_count")) == "--set resources.instance_count=4"
    assert found.place_of(("spot",)) == "j.yaml:1:1"


def test_a_byte_order_mark_is_no_character() -> None:
    """Editors on Windows write it; columns do not count it."""
    for format, text in FIVE.items():
        assert told("\ufeff" + text, format) == told(text, format)


@pytest.mark.parametrize("format", get_args(Format))
def test_line_ends_of_windows(format: Format) -> None:
    """The places are the same."""
    assert told(FIVE[format].replace("\n", "\r\n"), format) == told(FIVE[format], format)


@pytest.mark.parametrize(
    ("format", "text"),
    [("yaml", "a: " + "[" * 60_000), ("json", "[" * 60_000), ("toml", "a = " + "[" * 5_000), ("yaml", "- " * 3_000),
     ("yaml", "\n".join("  " * depth + "a:" for depth in range(2_000))), ("yaml", "- " * 200_000), ("yaml", "? " * 200_000),
     ("yaml", "a: " + "{b: " * 200_000)],
    ids=lambda value: value[:20],
)  # fmt: skip
def test_deep_nesting_is_refused(format: Format, text: str) -> None:
    """Without a crash of the parser, whether it is the depth or the number of values that is noticed first."""
    assert told(text, format)[0][2] in (
        "the text is nested too deeply", "the text has more values than cloudtrain reads"
    )  # fmt: skip


@pytest.mark.parametrize("indent", [" ", "\t"])
def test_a_long_indent_is_read_at_once(indent: str) -> None:
    """In TOML too, where a key of too many parts is looked for behind any indent."""
    text = 'name = "job"\n' + indent * 100_000 + "entry_pont = 1\n"
    start = process_time()
    assert told(text, "toml")[0][:2] == (2, 100_001)
    assert process_time() - start < 1
