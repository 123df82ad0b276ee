"""A target is one folder: no other module knows its name, and no target imports another."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import cloudtrain
from cloudtrain.job.data import Checkpoint, Input, Output
from cloudtrain.job.processing import ProcessingInput, ProcessingOutput
from cloudtrain.job.training import Environment, PerTarget
from cloudtrain.system.plugins import TAKEN, target_names
from tests.architecture.test_layers import imports, modules, tree

PACKAGE = Path(cloudtrain.__file__).parent
BUILT_IN = sorted(
    path.name for path in (PACKAGE / "targets").iterdir() if (path / "target.py").is_file()
)

SPECIAL = {
    "system.plugins": "the target when none is named",
    "lifecycle.rehearse": "preemption is rehearsed on this machine, whatever the job's own target is",
    "cli.options": "an option of the local target",
}
"""Modules that may know the local target."""


def test_every_folder_is_a_target() -> None:
    """What has a `target.py` is found by its entry point, and the other way round."""
    assert set(BUILT_IN) <= set(target_names())


def outside(name: str) -> bool:
    """Whether a module is no target's own. The runtime is the training side: it travels in every bundle."""
    parts = name.split(".")
    return parts[0] != "runtime" and not (
        parts[0] == "targets" and len(parts) > 1 and parts[1] in BUILT_IN
    )


def code_of(tree: ast.AST) -> Iterator[str]:
    """Every name and every text of a module, but for documentation: docstrings, and sentences for people."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and not re.search(r"\s", node.value)
        ):
            yield node.value
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg | ast.keyword) and node.arg:
            yield node.arg


def test_no_name_of_a_target_outside_its_folder() -> None:
    """Neither as a text nor as a part of a name. `local` is an ordinary word, so only the text itself counts."""
    words = [word for word in BUILT_IN if word != "local"]
    pattern = re.compile(rf"(?<![A-Za-z])({'|'.join(words)})(?![A-Za-z])")
    found = [
        (name, text)
        for name, file in modules()
        if outside(name) and name not in SPECIAL
        for text in code_of(tree(file))
        if text == "local" or pattern.search(text)
    ]
    assert found == []


def test_only_a_target_imports_its_folder() -> None:
    """Nothing imports from a target's folder but what stands in it; inside functions and for type checkers too."""
    found = [
        (name, imported)
        for name, file in modules()
        for imported in imports(file, inside_functions=True, for_types=True)
        if (parts := imported.split("."))[:2] == ["cloudtrain", "targets"]
        and len(parts) > 2
        and parts[2] in BUILT_IN
        if parts[2]
        != (name.split(".")[1] if not outside(name) and name.startswith("targets.") else None)
        if not (parts[2] == "local" and {name.split(".")[0], name} & SPECIAL.keys())
    ]
    assert found == []


def test_no_target_can_have_the_name_of_a_field() -> None:
    """`TAKEN` has every field and method of the models that have a field per target, and every key of the settings."""
    public = {
        name
        for model in (
            Input,
            Output,
            Checkpoint,
            PerTarget,
            Environment,
            ProcessingInput,
            ProcessingOutput,
        )
        for name in (*model.model_fields, *dir(model))
        if name not in target_names() and not name.startswith(("_", "model_"))
    }
    assert public | {"profiles", "target"} == TAKEN
