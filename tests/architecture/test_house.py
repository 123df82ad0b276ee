"""`tools/house.py`, which measures the structure of the package, on small packages with one fault each."""

from __future__ import annotations

import ast
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HOUSE: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "house.py"))

CLEAN = {
    "__init__.py": "",
    "errors.py": "class JobError(Exception):\n    pass\n",
    "targets/contract.py": "from cloudtrain.errors import JobError\n\nclass Target:\n    name: str\n",
}


def measure(folder: Path, files: dict[str, str], number: str) -> list[str]:
    """Return what `house.py` counts as `number` in a package with these files."""
    for name, text in files.items():
        path = folder / "cloudtrain" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(HOUSE["LISTS"][number](HOUSE["House"](folder)))


@pytest.mark.parametrize(
    ("number", "file", "text"),
    [
        (
            "file-circles",
            "errors.py",
            "def hint():\n    from cloudtrain.targets.contract import Target\n",
        ),
        (
            "file-circles",
            "errors.py",
            "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from cloudtrain.targets import contract\n",
        ),
        ("file-circles", "errors.py", "from .targets.contract import Target\n"),
        (
            "folder-circles",
            "errors.py",
            "def hint():\n    from cloudtrain.targets.contract import Target\n",
        ),
        ("local-imports", "errors.py", "def hint():\n    import json\n"),
        ("twice", "rules.py", "class JobError:\n    pass\n"),
        ("long-functions", "errors.py", "def hint():\n" + "    a = 1\n" * 134),
        ("long-files", "errors.py", "a = 1\n" * 1_501),
        ("heavy-statements", "errors.py", "a = b + c + d + e + f + g\n"),
        ("tuple-assignments", "errors.py", "a, b = 1, 2\n"),
        ("conditionals", "errors.py", "a = 1 if b else 2\n"),
        ("comprehensions", "errors.py", "a = [b for b in c]\n"),
        ("wide", "errors.py", f"a = '{'b' * 100}'\n"),
        ("any", "errors.py", "from typing import Any\n\na: Any = 1\n"),
        ("sendings", "errors.py", "a = Sending()\n"),
        ("contexts", "errors.py", "a = CompileContext()\n"),
        ("old-roads", "errors.py", 'a = getattr(own, "emulate", None)\n'),
        ("launcher-keys", "errors.py", 'a = "sagemaker_mpi_enabled"\n'),
        (
            "assertions",
            "targets/contract.py",
            "class Target:\n    def a(self):\n        raise AssertionError('no')\n",
        ),
    ],
)
def test_each_fault_is_counted(tmp_path: Path, number: str, file: str, text: str) -> None:
    """A package without a fault has none; with one, it is listed."""
    assert measure(tmp_path, CLEAN, number) == []
    assert measure(tmp_path, CLEAN | {file: text}, number) != []


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("a = 1", 3),
        ("a = b.c(d, e=[f])", 9),
        ("if a:\n    b = c + d + e + f\n", 2),
        ("for a in b:\n    pass\n", 3),
    ],
)
def test_a_statement_weighs_what_stands_in_it_alone(text: str, nodes: int) -> None:
    """Contexts do not count, nor do the statements inside it."""
    assert HOUSE["own_nodes"](ast.parse(text).body[0]) == nodes


def test_the_weight_does_not_depend_on_the_formatting(tmp_path: Path) -> None:
    """A statement over many lines weighs what it weighs on one; comments and docstrings weigh nothing."""
    packed = "def a():\n    return b(c, d, e=[f, g], h=i(j, k, l))\n"
    loose = (
        'def a():\n    """Say why."""\n    # A comment.\n    return b(\n        c,\n        d,\n'
        "        e=[f, g],\n        h=i(j, k, l),\n    )\n"
    )
    found = [
        measure(tmp_path, CLEAN | {"errors.py": text}, "heavy-statements")
        for text in (packed, loose)
    ]
    assert [len(lines) for lines in found] == [1, 1]
    assert [line.rpartition(" ")[2] for line in found[0]] == [
        line.rpartition(" ")[2] for line in found[1]
    ]


def test_tables_of_literals_have_no_weight(tmp_path: Path) -> None:
    """A table at the level of a module is data; the same inside a function is a statement."""
    table = "A = {'a': (1, 2, 3), 'b': (4, 5, 6), 'c': (7, 8, 9)}\n"
    assert measure(tmp_path, CLEAN | {"errors.py": table}, "heavy-statements") == []
    inside = f"def a():\n    {table}    return A\n"
    assert len(measure(tmp_path, CLEAN | {"errors.py": inside}, "heavy-statements")) == 1


def test_without_the_packages_it_says_so_in_a_line(tmp_path: Path) -> None:
    """A bare interpreter gets the command to type instead of a traceback."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')
    bare.chmod(0o755)
    house = Path(__file__).parents[2] / "tools" / "house.py"
    code = f"import runpy, sys; sys.executable = {str(bare)!r}; sys.argv = ['house.py']; "
    done = subprocess.run(
        [sys.executable, "-c", f"{code}runpy.run_path({str(house)!r}, run_name='__main__')"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "--quick" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_members_of_a_target() -> None:
    """Methods and annotated attributes count; private names do not."""
    house = HOUSE["House"](Path(__file__).parents[2])
    assert {"name", "compile", "service"} <= set(HOUSE["LISTS"]["target-members"](house))
