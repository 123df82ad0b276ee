"""The layers of the package: who may import whom, and what may not be imported while starting."""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import cloudtrain

PACKAGE = Path(cloudtrain.__file__).parent

LAYERS = {
    name: layer
    for layer, name in enumerate(
        "errors version runtime system documents job plans code machines estimate rules signals targets lifecycle adoption lookup api page cli __main__".split()
    )
}
"""Module or package to layer: each has its own."""

HEAVY = {
    "torch", "rich", "boto3", "botocore", "sagemaker", "azure", "numpy", "isal", "psutil", "yaml",
    "IPython", "tomllib", "tomli", "sqlite3", "optuna", "matplotlib",
}  # fmt: skip
"""Imported inside functions only. (sqlite3 may be imported by the store itself, which is imported late.)"""


@cache
def modules() -> list[tuple[str, Path]]:
    """Every module of the package: dotted name below `cloudtrain`, and its file."""
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        relative = file.relative_to(PACKAGE)
        if relative.parts[0] == "_training_scripts" or relative == Path("__init__.py"):
            continue
        parts = relative.with_suffix("").parts
        found.append((".".join(part for part in parts if part != "__init__"), file))
    return found


@cache
def tree(file: Path) -> ast.Module:
    """A module, parsed."""
    return ast.parse(file.read_text())


@cache
def imports(file: Path, *, inside_functions: bool, for_types: bool = False) -> tuple[str, ...]:
    """Absolute names that a file imports; those for type checkers on request."""
    return tuple(_imports(file, inside_functions=inside_functions, for_types=for_types))


def _imports(file: Path, *, inside_functions: bool, for_types: bool) -> Iterator[str]:
    package = "cloudtrain." + ".".join(file.relative_to(PACKAGE).parts[:-1])
    stack: list[ast.AST] = [tree(file)]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not inside_functions:
            continue
        if isinstance(node, ast.If) and not for_types and "TYPE_CHECKING" in ast.dump(node.test):
            stack.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, package.rstrip("."))
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        stack.extend(
            child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)
        )


def part_of(name: str) -> str | None:
    """The layer key of an imported name: `cloudtrain.lifecycle.store.schema` is `lifecycle`."""
    parts = name.split(".")
    return parts[1] if parts[0] == "cloudtrain" and len(parts) > 1 and parts[1] in LAYERS else None


def test_every_module_has_a_layer() -> None:
    """A new module must say in which layer it is."""
    assert {name.split(".")[0] for name, _ in modules()} <= LAYERS.keys()


def test_imports_point_down() -> None:
    """A module imports only from its own part, its own layer or lower ones, inside functions too."""
    upward = {
        (name, found)
        for name, file in modules()
        for found in imports(file, inside_functions=True)
        if (part := part_of(found)) is not None
        and part != name.split(".")[0]
        and LAYERS[part] > LAYERS[name.split(".")[0]]
    }
    assert upward == set()


PAGE_USES = ("api", "errors", "plans.", "signals.", "lifecycle.runs.", "system.plugins", "page")
"""What the page may import: what users have, and the forms in which the commands show it."""


def test_the_page_uses_no_store_and_no_target() -> None:
    """It knows runs as a notebook does."""
    strange = {
        (name, found)
        for name, file in modules()
        for found in imports(file, inside_functions=True)
        if name.startswith("page.")
        and found.startswith("cloudtrain.")
        and not found.removeprefix("cloudtrain.").startswith(PAGE_USES)
    }
    assert strange == set()


def test_no_import_cycles() -> None:
    """No module reaches itself through imports, those inside functions and for type checkers included."""
    files = dict(modules())
    graph: dict[str, set[str]] = {}
    for name, file in files.items():
        targets = {
            found.removeprefix("cloudtrain.")
            for found in imports(file, inside_functions=True, for_types=file.name != "__init__.py")
        }
        graph[name] = {target for target in targets if target in files and target != name}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for target in graph[name]:
                visit(target, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_heavy_imports_are_late() -> None:
    """SDKs, torch, rich and their like are imported inside functions."""
    early = {
        (name, package)
        for name, file in modules()
        for package in {
            imported.split(".")[0] for imported in imports(file, inside_functions=False)
        }
        & HEAVY
        # a program of its own, which runs in the interpreter of a script
        if not (package == "torch" and name.startswith("estimate.probe."))
        and not (
            package == "sqlite3"
            and name
            in {"lifecycle.store.records", "lifecycle.store.schema", "lifecycle.store.store"}
        )
    }
    assert early == set()


def test_runtime_stands_alone() -> None:
    """The runtime imports nothing of cloudtrain but itself, so that it works inside a bundle."""
    for file in (PACKAGE / "runtime").rglob("*.py"):
        ours = {
            found
            for found in imports(file, inside_functions=True)
            if found.startswith("cloudtrain")
        }
        assert all(found.startswith("cloudtrain.runtime") for found in ours), (file, ours)


def _modules_after(code: str) -> set[str]:
    probe = (
        f"import sys; before = set(sys.modules); {code}; print(*sorted(set(sys.modules) - before))"
    )
    result = subprocess.run([sys.executable, "-S", "-c", probe], capture_output=True, text=True, check=True,
                            env={"PYTHONPATH": str(PACKAGE.parent)})  # fmt: skip
    return set(result.stdout.split())


def test_import_cloudtrain_loads_nothing_else() -> None:
    """`import cloudtrain` loads no other module at all."""
    assert _modules_after("import cloudtrain") == {"cloudtrain"}


def test_import_runtime_is_standard_library_only() -> None:
    """Without site-packages on the path, the runtime still imports."""
    loaded = _modules_after("import cloudtrain.runtime")
    assert "cloudtrain.runtime" in loaded
    assert not {name for name in loaded if name.split(".")[0] in {"pydantic", "torch", "numpy"}}


def test_public_names_exist() -> None:
    """Every public name resolves, and none is also the name of a module, which would hide it."""
    for name in cloudtrain.__all__:
        assert getattr(cloudtrain, name) is not None
    submodules = {info.name for info in pkgutil.iter_modules([str(PACKAGE)])}
    assert set(cloudtrain.__all__) & submodules == set()


def test_public_surface_is_pinned() -> None:
    """A name is added to or removed from the public surface on purpose."""
    assert cloudtrain.__all__ == sorted([
        "Adoption", "AzureML", "Checkpoint", "CloudtrainError", "DeepSpeed", "Environment", "Finding", "FitReport", "Horovod", "Input",
        "InstanceGroup", "InstancePreference", "JobError", "Level", "Local", "LogLine", "MPI", "NoDistribution", "Objective", "Output",
        "PersonNeeded", "Plan", "PlanDiffers", "PreflightError", "ProcessingInput", "ProcessingJob", "ProcessingOutput", "Range", "Ray", "Resources", "Run",
        "RunNotFound", "RunRef", "RunState", "RunStatus", "SMDDP", "SMP", "SageMaker", "SettingsError", "Spot",
        "StopEarly", "Sweep", "SweepRun", "TargetError", "TensorFlow", "Torch", "TrainingJob", "Trial", "adopt",
        "bundled_job", "check", "compare", "diff", "fit", "load_job", "load_sweep", "pin", "plan", "recover", "run", "runs", "submit", "ui", "upload",
    ])  # fmt: skip
