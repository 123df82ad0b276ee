"""Every error has a code that `cloudtrain explain` knows, and a hint. The source is read, so that none is forgotten."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.job.problems import error_codes
from tests.architecture.test_layers import tree

PACKAGE = Path(cloudtrain.__file__).parent

FILES = sorted(
    file for file in PACKAGE.rglob("*.py") if not {"runtime", "_training_scripts"} & {*file.parts}
)
"""The runtime has errors of its own, which are printed on another machine."""

PROBLEMS = {
    "Problem": 2,
    "KeyProblem": 2,
    "MissingProblem": 2,
    "wrong": 1,
    "cannot_adopt": 1,
    "Unreadable": 1,
    "_Refused": 1,
}
"""What makes one of several mistakes, and which argument is the hint."""

NEED_A_CODE = {"Problem", "KeyProblem", "MissingProblem", "wrong"}
"""Of those, the ones that have no code by themselves."""

LISTS = {"JobError", "CompileError", "PreflightError"}
"""Errors that are lists of what has its codes already."""


@cache
def classes() -> dict[str, str | None]:
    """The classes of errors, by name, with the code of all their errors; None where each says its own."""
    found: dict[str, str | None] = {"CloudtrainError": None}
    definitions = [
        node for file in FILES for node in ast.walk(tree(file)) if isinstance(node, ast.ClassDef)
    ]
    before = -1
    while len(found) > before:
        before = len(found)
        for node in definitions:
            above = next(
                (base.id for base in node.bases if isinstance(base, ast.Name) and base.id in found),
                None,
            )
            if above is not None:
                codes = [
                    item.value.value
                    for item in node.body
                    if isinstance(item, ast.Assign)
                    and ast.unparse(item.targets[0]) == "code"
                    and isinstance(item.value, ast.Constant)
                ]
                found[node.name] = codes[0] if codes else found[above]
    return found


def calls(file: Path) -> Iterator[tuple[str, ast.Call]]:
    """The calls in a file that make an error or a problem."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            if name in classes() or name in PROBLEMS:
                yield name, node


def argument(node: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """An argument by name or position."""
    named = next((item.value for item in node.keywords if item.arg == name), None)
    if named is None and position is not None and len(node.args) > position:
        return node.args[position]
    return named


@pytest.mark.slow
def test_every_error_has_a_code_and_a_hint() -> None:
    """No error is raised without a code that can be explained and a hint that says what to type."""
    faults = []
    for file, (name, node) in ((path, call) for path in FILES for call in calls(path)):
        if name in LISTS or (name == "super" and not node.args):
            continue
        has_code = argument(node, "code") is not None or (
            name in classes() and classes()[name] is not None
        )
        if not has_code and (name in classes() or name in NEED_A_CODE):
            faults.append(f"{file}:{node.lineno}: no code")
        own = name in classes() and any(
            item.name == name for item in tree(file).body if isinstance(item, ast.ClassDef)
        )
        hint = argument(node, "hint", PROBLEMS.get(name))
        if not own and (hint is None or (isinstance(hint, ast.Constant) and not hint.value)):
            faults.append(f"{file}:{node.lineno}: no hint")
    assert faults == []


def codes_in_the_source() -> set[str]:
    """Every code of an error that stands in the source, the table left out."""
    texts = (file.read_text() for file in FILES)
    return {code for text in texts for code in re.findall(r'"(CT[09][0-9]{2})"', text)}


def test_the_table_has_the_codes_that_are_used() -> None:
    """Nothing is raised that cannot be explained, and nothing is explained that is never raised."""
    assert codes_in_the_source() == set(error_codes())


def test_the_codes_of_errors_are_no_codes_of_rules() -> None:
    """A code means one thing."""
    from cloudtrain.rules.engine import all_rules

    assert {rule.code for rule in all_rules()} & error_codes().keys() == set()


def test_every_code_is_explained() -> None:
    """One line that says what is wrong, and a paragraph that says more."""
    for code, entry in error_codes().items():
        assert entry.code == code
        assert entry.summary.endswith("."), code
        assert len(entry.summary) < 80, code
        assert entry.explanation.endswith("."), code
