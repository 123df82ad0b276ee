"""Measure the structure of the package, and fail above a limit. Part of `make check`.

    python tools/house.py            every number beside its limit
    python tools/house.py --quick    without the numbers that need a run of `cloudtrain plan`
    python tools/house.py --list one-importer     what a number counts, a line each

A limit is where the package wants to be. A number that is not there yet has a `bound` as well: it may fall, and never
rises. Lower the bound with the change that lowers the number.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "cloudtrain"
LONG_FUNCTION, LONG_FILE = 60, 600

_KEYS = re.compile(
    r"launch import keys|launch\.keys|sagemaker_[a-z_]*_enabled|request import .*\bkeys\b|import request as keys"
)
_OLD_ROADS = re.compile(r'as_training|getattr\(.*"emulate"')


class Number(NamedTuple):
    """One measured number. `bound` holds until the limit is reached."""

    name: str
    what: str
    limit: int
    bound: int | None = None


NUMBERS = (
    Number("files", "Python files that hold something", 290),
    Number("lines", "lines of Python", 70_000),
    Number("entries", "entries of cloudtrain/", 17),
    Number("long-files", f"files over {LONG_FILE} lines", 0),
    Number("folder-circles", "circles of folders, imports in functions and for types included", 0),
    Number("file-circles", "files in circles, imports in functions and for types included", 0),
    Number("one-importer", "modules with one importer, parts of targets apart", 30),
    Number("local-imports", "imports inside functions", 350),
    Number("any", "`Any` in annotations", 1_000),
    Number("twice", "public class names that stand twice", 8),
    Number("long-functions", f"functions over {LONG_FUNCTION} lines", 8),
    Number("target-members", "members of `Target`", 12),
    Number("assertions", "members of `Target` that raise AssertionError", 0),
    Number("sendings", "files that make a submission", 1),
    Number("contexts", "files that make a compile context", 2),
    Number("old-roads", "lines with `as_training` or a look-up of `emulate` by name", 0),
    Number("launcher-keys", "files that name SageMaker's launcher keys", 6),
)

RUN_NUMBERS = (
    Number("entered", "modules that a plan for SageMaker enters", 80),
    Number("switches", "switches of module in that plan", 1_800),
    Number("compiles", "calls of `Target.compile` in that plan", 1),
    Number("settings", "calls of `load_settings` in that plan", 1),
)


class Module(NamedTuple):
    """A file of the package with its syntax tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module


class House:
    """The package below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / PACKAGE
        self.modules: dict[str, Module] = {}
        for path in sorted(self.folder.rglob("*.py")):
            text = path.read_text("utf-8")
            if text.strip():
                parts = path.relative_to(root).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                self.modules[name] = Module(name, path, text, ast.parse(text))

    @cached_property
    def imports(self) -> Mapping[str, frozenset[str]]:
        """Map each module to the modules of the package that it imports, anywhere in the file."""
        return {module.name: frozenset(self._imported(module)) for module in self.modules.values()}

    def _imported(self, module: Module) -> Iterator[str]:
        package = module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                start = ".".join([*above, *([node.module] if node.module else [])])
                names = [f"{start}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                target = name if name in self.modules else name.rpartition(".")[0]
                if target in self.modules and target != module.name:
                    yield target

    def functions(self) -> Iterator[tuple[Module, ast.FunctionDef | ast.AsyncFunctionDef]]:
        """Yield every function and method."""
        for module in self.modules.values():
            for node in ast.walk(module.tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield module, node

    def place(self, module: Module, line: int) -> str:
        """Return `path:line`, for lists."""
        return f"{module.path.relative_to(self.root)}:{line}"

    def lines_matching(self, pattern: re.Pattern[str]) -> Iterator[str]:
        """Yield the place of each line with a match."""
        for module in self.modules.values():
            for number, line in enumerate(module.text.splitlines(), 1):
                if pattern.search(line):
                    yield self.place(module, number)


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the strongly connected parts of a graph with more than one node (Tarjan's algorithm)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    parts: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            part = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(part) > 1:
                parts.append(sorted(part))

    for node in graph:
        if node not in number:
            visit(node)
    return parts


def _folder_circles(house: House) -> Iterator[str]:
    """Yield the circles between the entries of each folder, in which at least one entry is a folder itself."""
    folders = {name.rpartition(".")[0] for name in house.modules if "." in name}
    for parent in sorted(folders):
        graph: dict[str, set[str]] = defaultdict(set)
        for name, others in house.imports.items():
            for other in others:
                if name.startswith(f"{parent}.") and other.startswith(f"{parent}."):
                    here, there = (item[len(parent) + 1 :].split(".")[0] for item in (name, other))
                    if here != there:
                        graph[here].add(there)
        for part in circles(graph):
            if any((house.root / parent.replace(".", "/") / entry).is_dir() for entry in part):
                yield f"{parent}: {', '.join(part)}"


def _one_importer(house: House) -> Iterator[str]:
    importers: Counter[str] = Counter(other for others in house.imports.values() for other in others)
    named = {text for module in house.modules.values() for text in re.findall(r"cloudtrain(?:\.\w+)+", module.text)}
    for name, count in importers.items():
        is_part = re.match(rf"{PACKAGE}\.(targets\.\w+|runtime)\.", name) or name in (PACKAGE, f"{PACKAGE}.cli.app")
        if count == 1 and not is_part and f"{name}:" not in named:
            yield f"{name} <- {next(module for module, others in house.imports.items() if name in others)}"


def _local_imports(house: House) -> Iterator[str]:
    for module, function in house.functions():
        for node in ast.walk(function):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield house.place(module, node.lineno)


def _any(house: House) -> Iterator[str]:
    for module in house.modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Name) and node.id == "Any":
                yield house.place(module, node.lineno)


def _twice(house: House) -> Iterator[str]:
    places = defaultdict[str, list[str]](list)
    for module in house.modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(house.place(module, node.lineno))
    yield from (f"{name}: {', '.join(items)}" for name, items in sorted(places.items()) if len(items) > 1)


def _long_functions(house: House) -> Iterator[str]:
    for module, node in house.functions():
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > LONG_FUNCTION:
            yield f"{house.place(module, node.lineno)} {node.name}: {length}"


def _target(house: House) -> ast.ClassDef:
    module = house.modules.get(f"{PACKAGE}.targets.contract") or house.modules[f"{PACKAGE}.targets.base"]
    return next(node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef) and node.name == "Target")


def _target_members(house: House) -> Iterator[str]:
    for node in _target(house).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def _assertions(house: House) -> Iterator[str]:
    for node in _target(house).body:
        if isinstance(node, ast.FunctionDef) and any(
            isinstance(part, ast.Raise) and part.exc is not None and "AssertionError" in ast.unparse(part.exc)
            for part in ast.walk(node)
        ):
            yield node.name


def _makers(house: House, *names: str) -> Iterator[str]:
    for module in house.modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                yield str(module.path.relative_to(house.root))
                break


LISTS: dict[str, Callable[[House], Iterable[str]]] = {
    "files": lambda house: house.modules,
    "entries": lambda house: [
        item.name for item in house.folder.iterdir() if item.name not in ("__pycache__", "py.typed")
    ],
    "long-files": lambda house: [
        f"{module.path.relative_to(house.root)}: {module.text.count(chr(10))}"
        for module in house.modules.values()
        if module.text.count("\n") > LONG_FILE
    ],
    "folder-circles": _folder_circles,
    "file-circles": lambda house: [name for part in circles(house.imports) for name in part],
    "one-importer": _one_importer,
    "local-imports": _local_imports,
    "any": _any,
    "twice": _twice,
    "long-functions": _long_functions,
    "target-members": _target_members,
    "assertions": _assertions,
    "sendings": lambda house: _makers(house, "Submission", "Sending"),
    "contexts": lambda house: _makers(house, "CompileContext", "Context"),
    "old-roads": lambda house: house.lines_matching(_OLD_ROADS),
    "launcher-keys": lambda house: sorted({place.partition(":")[0] for place in house.lines_matching(_KEYS)}),
}


# Runs `cloudtrain ARGUMENTS` in a child and counts, at each call of a function of the package, whether its module is
# another one than that of the call before. Modules of which only the import runs do not count as entered.
_PROBE = """
import json, os, sys
modules, state = set(), {"last": None, "switches": 0}
calls = {"compile": 0, "load_settings": 0}
folder = sys.argv.pop(1)

def look(frame, event, argument):
    if event != "call":
        return
    code = frame.f_code
    if not code.co_filename.startswith(folder) or not code.co_flags & 1:  # bodies of modules and classes are no calls
        return
    if code.co_name == "compile" and code.co_filename.endswith("target.py"):
        calls["compile"] += 1
    if code.co_name == "load_settings":
        calls["load_settings"] += 1
    modules.add(code.co_filename)
    if code.co_filename != state["last"]:
        state["switches"] += state["last"] is not None
        state["last"] = code.co_filename

out = sys.argv.pop(1)
from cloudtrain.cli import command
os._exit = sys.exit  # what ends a command without the interpreter's own end
sys.setprofile(look)
try:
    command()
except SystemExit as stop:
    status = stop.code
finally:
    sys.setprofile(None)
    with open(out, "w") as file:
        json.dump({"entered": len(modules), "switches": state["switches"], "compiles": calls["compile"],
                   "settings": calls["load_settings"], "status": status or 0, "modules": sorted(modules)}, file)
"""


def measure_run(root: Path) -> dict[str, int]:
    """Plan a job for SageMaker in a child process, and return the numbers of `RUN_NUMBERS`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        probe = [sys.executable, "-c", _PROBE, f"{root / PACKAGE}{os.sep}", str(out)]
        arguments = ["plan", str(root / "examples/torch_cifar10.yaml"), "--target", "sagemaker"]
        settings = {"CLOUDTRAIN_STATE_DIR": str(Path(folder, "state")), "HOME": folder, "XDG_CONFIG_HOME": folder}
        account = {
            "AWS_DEFAULT_REGION": "eu-west-1",
            "PYTHONPATH": str(root),
            "PATH": os.environ["PATH"],
            "CLOUDTRAIN_PROFILE": "house",
        }
        Path(folder, "cloudtrain").mkdir()
        table = 'role = "arn:aws:iam::111122223333:role/train"\nregion = "eu-west-1"\nbucket = "house"\n'
        Path(folder, "cloudtrain", "cloudtrain.toml").write_text(f"[profiles.house.sagemaker]\n{table}")
        child = subprocess.run([*probe, *arguments], env=settings | account, cwd=folder, capture_output=True, text=True)
        if not out.exists():
            raise SystemExit(f"the plan did not run: {child.stderr}")
        numbers = json.loads(out.read_text())
        if numbers.pop("status") != 0:
            raise SystemExit(child.stdout + child.stderr)
        numbers.pop("modules")
        return dict(numbers)


def main() -> int:
    """Print the table; return 1 if a number is above its limit and its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave out what needs a run")
    parser.add_argument("--list", choices=sorted(LISTS), help="print what a number counts")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to measure")
    arguments = parser.parse_args()
    house = House(arguments.root)
    if arguments.list:
        print(*LISTS[arguments.list](house), sep="\n")
        return 0
    values = {name: len(list(items(house))) for name, items in LISTS.items()}
    values["lines"] = sum(module.text.count("\n") for module in house.modules.values())
    numbers = NUMBERS if arguments.quick else NUMBERS + RUN_NUMBERS
    if not arguments.quick:
        values |= measure_run(arguments.root)
    failures = 0
    for number in numbers:
        value, most = values[number.name], number.limit if number.bound is None else max(number.limit, number.bound)
        mark = "ok" if value <= number.limit else "above the limit, within its bound" if value <= most else "TOO MUCH"
        failures += value > most
        print(f"{number.name:16} {value:7,}  limit {number.limit:6,}  {mark:34} {number.what}")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
