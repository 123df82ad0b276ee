"""References in a job: found everywhere they may stand, checked, replaced."""

from __future__ import annotations

import re
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cloudtrain as ct
from cloudtrain.job.data import reference_problems, references_in, replace_references
from cloudtrain.targets.common.compiling import resolve_hyperparameters, without_literals
from tests.hints import suggested


def test_references_are_found_where_they_may_stand() -> None:
    """In the command, hyperparameters at any depth and the environment's variables; not in tags."""
    job = {
        "command": "run ${{inputs.a}}",
        "hyperparameters": {"x": [{"y": "${{ inputs.b }}"}]},
        "environment": {"variables": {"P": "${{outputs.nothing}}"}},
        "tags": {"t": "${{inputs.c}}"},
    }
    paths = [problem.path for problem in reference_problems(job)]
    assert paths == [
        ("command",),
        ("hyperparameters", "x", 0, "y"),
        ("environment", "variables", "P"),
    ]


@pytest.mark.parametrize(
    ("reference", "hint"),
    [("inputs.tran", suggested("train")), ("input.train", suggested("inputs.train")),
     ("outputs.modle", suggested("model")), ("checkpoints", suggested("checkpoint"))],
)  # fmt: skip
def test_a_wrong_reference_offers_the_nearest(reference: str, hint: str) -> None:
    """Names of inputs and outputs, and the forms of a reference."""
    job = {"command": f"run ${{{{{reference}}}}}", "inputs": {"train": {"local": "x"}}}
    [problem] = reference_problems(job)
    assert (problem.path, problem.hint) == (("command",), hint)


def test_right_references_are_no_problem() -> None:
    """The output `model` always exists."""
    job = {
        "command": "${{inputs.train}} ${{outputs.model}} ${{checkpoint}}",
        "inputs": {"train": {}},
    }
    assert reference_problems(job) == []


def test_references_in_models_are_found_too() -> None:
    """In Python, the environment may already be a model."""
    with pytest.raises(ct.JobError) as error:
        ct.TrainingJob(
            name="a",
            entry_point="t.py",
            environment=ct.Environment(variables={"D": "${{inputs.x}}"}),
        )
    assert error.value.problems[0].path == ("environment", "variables", "D")


def test_references_are_replaced() -> None:
    """Each by its path, white space inside ignored."""
    text = "${{inputs.a}}:${{ checkpoint }}"
    assert references_in(text) == ["inputs.a", "checkpoint"]
    assert replace_references(text, {"inputs.a": "/a", "checkpoint": "/c"}.__getitem__) == "/a:/c"


def test_a_key_is_no_reference() -> None:
    """Only values are replaced, at any depth."""
    hyperparameters = {"grid": {"${{inputs.x}}": ["${{inputs.x}}"]}}
    filled = {"grid": {"${{inputs.x}}": ["7"]}}
    assert resolve_hyperparameters(hyperparameters, {"inputs.x": "7"}) == filled
    job = ct.TrainingJob(
        name="a", entry_point="t.py", inputs={"x": {"value": 7}}, hyperparameters=hyperparameters
    )
    assert without_literals(job).hyperparameters == filled


@given(
    st.lists(st.sampled_from(["${{", "}}", "}", "{", "$", " ", "\n", "\t", "a"]), max_size=20).map(
        "".join
    )
)
def test_a_reference_is_on_one_line_but_for_the_space_around_it(text: str) -> None:
    """It is what this regular expression finds, which takes too long for long texts."""
    found = re.findall(r"\$\{\{\s*(.*?)\s*\}\}", text)
    assert references_in(text) == found
    assert replace_references(text, str.upper) == re.sub(
        r"\$\{\{\s*(.*?)\s*\}\}", lambda match: match[1].upper(), text
    )


@pytest.mark.parametrize(
    "text", ["${{" + " " * 200_000, "${{" * 100_000, "${{a" * 100_000 + "\na}}"]
)
def test_references_that_do_not_end_are_passed_over_at_once(text: str) -> None:
    """Many beginnings, or much space behind one, take the time of one look at each character."""
    start = process_time()
    assert ct.TrainingJob(name="job", command=text).command == text
    assert process_time() - start < 1
