"""What the documentation shows type-checks for somebody who has mypy and not pydantic's plugin for it."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cloudtrain.system import plugins
from cloudtrain.targets.registry import all_targets
from tests.deadlines import DEADLINE

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
WALK_THROUGH = "adding-a-target"
"""Made of the files of the sample target, which are checked as a package."""
SAMPLE = REPOSITORY / "tests" / "sample_target" / "src"
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))

READERS_OWN = {
    "azureml-sdk": "from typing import Any\nml_client: Any = None\n",
    "runtime": "from typing import Any\ntrainer: Any = None\nmodel: Any = None\ndata: Any = None\nmain: Any = None\n",
}
"""What a page's blocks take from the reader's own program."""

CONFIG = """
[mypy]
strict = true
ignore_missing_imports = true
warn_unused_ignores = true

# An installed package: what is wrong inside of it is not the user's.
[mypy-cloudtrain.*]
follow_imports = silent

# Not what this is about, and large.
[mypy-torch.*,matplotlib.*,IPython.*,tests.*]
follow_imports = skip

# Their networks are classes of torch or Lightning, which are Any here.
[mypy-page_tutorial,page_lightning]
disallow_subclassing_any = false

# A notebook's functions have no annotations; what they call is checked all the same.
[mypy-notebook_04_parallelism]
disallow_untyped_defs = false
disallow_untyped_calls = false
check_untyped_defs = true
"""

ONLY_CLOUDTRAIN = {"04_parallelism"}
"""Notebooks whose other cells compute and draw, with what the scripts printed."""


def blocks_of(page: Path) -> str:
    """The Python blocks of a page, in their order, as one program."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    return READERS_OWN.get(page.stem, "") + "\n".join(blocks) if blocks else ""


def cells_of(notebook: Path) -> str:
    """The code cells of a notebook, as one program."""
    cells = [
        cell
        for cell in json.loads(notebook.read_text("utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    sources = ["".join(cell["source"]) for cell in cells]
    return "\n".join(
        source for source in sources if notebook.stem not in ONLY_CLOUDTRAIN or "ct." in source
    )


@pytest.mark.slow
def test_documented_calls_type_check(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Every Python block of the pages, every notebook, and `jobs.py` with the mistakes that must be found."""
    pytest.importorskip("mypy")
    assert len({page.stem for page in PAGES}) == len(PAGES) > 50
    programs = {f"page_{page.stem}": blocks_of(page) for page in PAGES if page.stem != WALK_THROUGH}
    programs |= {f"notebook_{notebook.stem}": cells_of(notebook) for notebook in NOTEBOOKS}
    programs["jobs"] = (REPOSITORY / "tests" / "typing" / "jobs.py").read_text("utf-8")
    files = [
        tmp_path / f"{name.replace('-', '_')}.py" for name, program in programs.items() if program
    ]
    for file, program in zip(files, filter(None, programs.values()), strict=True):
        file.write_text(program, "utf-8")
    config = tmp_path / "mypy.ini"
    config.write_text(CONFIG)
    cache = pytestconfig.cache.mkdir("mypy") if pytestconfig.cache else tmp_path / "cache"
    mypy = [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(cache)]
    result = subprocess.run(
        [*mypy, *map(str, files)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert result.stdout == f"Success: no issues found in {len(files)} source files\n", (
        result.stdout + result.stderr
    )


@pytest.mark.slow
def test_the_sample_target_type_checks(tmp_path: Path) -> None:
    """A package with a target of its own keeps the promises as mypy reads them."""
    pytest.importorskip("mypy")
    config = tmp_path / "mypy.ini"
    config.write_text(
        f"[mypy]\nmypy_path = {SAMPLE}\n[mypy-cloudtrain.*]\nfollow_imports = silent\n", "utf-8"
    )
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(config),
        "-p",
        "cloudtrain_folder",
    ]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr


RULE_MODULES = {"rules", "training_rules", "online"}
"""Abilities that are lists of modules."""


def parts_as_declared() -> str:
    """A program that declares each part of a built-in target with the type of its ability."""
    kinds = {name: kind for kind, name in plugins._ABILITIES.items()}
    lines: list[str] = []
    for kind in kinds.values():
        lines.append(f"from {kind.__module__} import {kind.__name__}")
    for target in all_targets():
        for name, place in target.parts.items():
            if name not in RULE_MODULES:
                module, _, function = place.partition(":")
                alias = f"{target.name}_{name}"
                lines.append(f"from {module} import {function} as {alias}")
                lines.append(f"_{alias}: {kinds[name].__name__} = {alias}")
    return "\n".join(lines)


@pytest.mark.slow
def test_the_parts_of_targets_have_their_types(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Each part of a built-in target is called as its type says."""
    pytest.importorskip("mypy")
    for module in ("rules.values", "targets.capacity"):  # with the types of `path` and `capacity`
        importlib.import_module(f"cloudtrain.{module}")
    program = tmp_path / "parts.py"
    program.write_text(parts_as_declared(), "utf-8")
    config = tmp_path / "mypy.ini"
    config.write_text(CONFIG)
    cache = pytestconfig.cache.mkdir("mypy") if pytestconfig.cache else tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", config, "--cache-dir", cache, program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
