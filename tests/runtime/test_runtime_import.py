"""The runtime stands alone: it is shipped in bundles as `cloudtrain/__init__.py` and `cloudtrain/runtime/`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cloudtrain

PACKAGE = Path(cloudtrain.__file__).parent
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")


def test_a_bundle_with_the_runtime_alone_works_without_any_package(tmp_path: Path) -> None:
    """Every public name loads with the standard library only, and none of them pulls in torch."""
    shutil.copytree(PACKAGE / "runtime", tmp_path / "cloudtrain" / "runtime")
    shutil.copy(PACKAGE / "__init__.py", tmp_path / "cloudtrain")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from cloudtrain import runtime\n"
        "print(runtime.__file__)\n"
        "for name in runtime.__all__: getattr(runtime, name)\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(loaded - sys.stdlib_module_names - {'__main__', 'cloudtrain'}))\n"
        "runtime.report(step=1, loss=0.5)\n"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert found.stdout.splitlines() == [
        str(tmp_path / "cloudtrain" / "runtime" / "__init__.py"),
        "[]",
        "[metrics] step=1 loss=0.5",
    ]


def test_the_runtime_works_on_the_python_of_older_containers(tmp_path: Path) -> None:
    """SageMaker's images of PyTorch 1.13 have Python 3.9: every module loads there, and arguments are read."""
    python = next((path for path in sorted(PYENV.glob("3.9.*/bin/python"))), None) or shutil.which(
        "python3.9"
    )
    if (
        python is None
        or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode
    ):
        pytest.skip("Python 3.9 is not installed")
    modules = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in sorted((PACKAGE / "runtime").rglob("*.py"))
        if path.stem not in ("__main__", "huggingface")  # the latter needs transformers
    ]
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
        "from dataclasses import dataclass, field\n"
        "from importlib import import_module\n"
        "from typing import List, Optional, Tuple\n"
        "from cloudtrain import runtime\n"
        f"for name in {modules!r}: import_module(name)\n"
        "@dataclass\n"
        "class Config:\n"
        "    sizes: List[int] = field(default_factory=list)\n"
        "    betas: Tuple[float, float] = (0.9, 0.999)\n"
        "    limit: Optional[int] = None\n"
        "print(runtime.arguments(Config))\n"
        "print(runtime.detect_environment().world_size)\n"
    )
    arguments = ["--sizes", "[1, 2]", "--betas", "0.8,0.9", "--limit", "3"]
    command = [str(python), "-I", "-B", "-c", code, str(PACKAGE.parent), *arguments]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert found.stderr == ""
    assert found.stdout.splitlines() == ["Config(sizes=[1, 2], betas=(0.8, 0.9), limit=3)", "1"]


def test_importing_the_runtime_loads_no_submodule() -> None:
    """A script that uses one function pays for that function."""
    code = "import sys, cloudtrain.runtime; print([m for m in sys.modules if m.startswith('cloudtrain.runtime.')])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    assert found.stdout.strip() == "[]"


def test_no_public_name_is_also_a_file() -> None:
    """Importing a file of the package would replace the function of the same name."""
    files = {path.stem for path in (PACKAGE / "runtime").glob("*.py")}
    from cloudtrain import runtime

    assert files.isdisjoint(runtime.__all__)
    assert set(runtime.__all__) <= set(dir(runtime))
