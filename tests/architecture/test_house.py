"""`tools/house.py`, which measures the structure of the package, on small packages with one fault each."""

from __future__ import annotations

import runpy
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
        ("file-circles", "errors.py", "def hint():\n    from cloudtrain.targets.contract import Target\n"),
        (
            "file-circles",
            "errors.py",
            "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from cloudtrain.targets import contract\n",
        ),
        ("file-circles", "errors.py", "from .targets.contract import Target\n"),
        ("folder-circles", "errors.py", "def hint():\n    from cloudtrain.targets.contract import Target\n"),
        ("local-imports", "errors.py", "def hint():\n    import json\n"),
        ("twice", "rules.py", "class JobError:\n    pass\n"),
        ("long-functions", "errors.py", "def hint():\n" + "    a = 1\n" * 60),
        ("long-files", "errors.py", "a = 1\n" * 601),
        ("any", "errors.py", "from typing import Any\n\na: Any = 1\n"),
        ("sendings", "errors.py", "a = Sending()\n"),
        ("contexts", "errors.py", "a = CompileContext()\n"),
        ("old-roads", "errors.py", 'a = getattr(own, "emulate", None)\n'),
        ("launcher-keys", "errors.py", 'a = "sagemaker_mpi_enabled"\n'),
        ("assertions", "targets/contract.py", "class Target:\n    def a(self):\n        raise AssertionError('no')\n"),
    ],
)
def test_each_fault_is_counted(tmp_path: Path, number: str, file: str, text: str) -> None:
    """A package without a fault has none; with one, it is listed."""
    assert measure(tmp_path, CLEAN, number) == []
    assert measure(tmp_path, CLEAN | {file: text}, number) != []


@pytest.mark.slow
def test_the_members_of_a_target() -> None:
    """Methods and annotated attributes count; private names do not."""
    house = HOUSE["House"](Path(__file__).parents[2])
    assert {"name", "compile", "service"} <= set(HOUSE["LISTS"]["target-members"](house))
