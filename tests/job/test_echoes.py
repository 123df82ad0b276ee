"""One mistake is one error: a field that is only missing because its name is misspelt is not reported as well."""

from __future__ import annotations

import pytest

import cloudtrain as ct
from cloudtrain.job.file import parse_job


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("nmae: x\nentry_point: t.py\n", ["nmae"]),
        ("name: x\nentry_pont: t.py\n", ["entry_pont"]),
        ("name: x\ncomand: ls\n", ["comand"]),
        ("name: x\nscript: t.py\n", ["script"]),
        ("name: x\nunrelated: 1\n", ["entry_point", "unrelated"]),
        ("entry_pont: t.py\n", ["name", "entry_pont"]),
    ],
)
def test_a_misspelt_name_is_one_error(text: str, paths: list[str]) -> None:
    """The wrong name is reported, the missing right one only when no wrong name stands for it."""
    with pytest.raises(ct.JobError) as caught:
        parse_job(text, format="yaml", file="job.yaml")
    assert sorted(problem.dotted for problem in caught.value.problems) == sorted(paths)


def test_five_mistakes_are_five_errors() -> None:
    """Five different kinds of mistake, each with its own line and a hint."""
    text = (
        "name: my job\n"
        "entry_pont: train.py\n"
        "distribution: {type: torhc}\n"
        "hyperparameters: {data: '${{inputs.train}}'}\n"
        "max_runtime: soon\n"
    )
    with pytest.raises(ct.JobError) as caught:
        parse_job(text, format="yaml", file="job.yaml")
    assert [problem.line for problem in caught.value.problems] == [1, 2, 3, 4, 5]
    assert all(problem.hint for problem in caught.value.problems)
