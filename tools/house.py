"""Measure the structure and the density of the package, and fail above a limit. Part of `make check`.

    python tools/house.py            every number beside its limit
    python tools/house.py --quick    without the numbers that need a run of `cloudtrain plan`
    python tools/house.py --list one-importer     what a number counts, a line each
    python tools/house.py --density job rules     the figures about statements, of these rooms alone

A limit is where the package wants to be. A number that is not there yet has a `bound` as well: it may fall, and never
rises. Lower the bound with the change that lowers the number.

Weight is counted in nodes of the syntax tree, whatever the formatting; contexts such as Load do not count. A
statement's own nodes are those in it, without the statements inside it. Left out of the figures about statements are
docstrings, imports, `def`, `class`, and tables of literals at the level of a module.
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
LONG_FUNCTION = 400
"""Nodes of a function."""
LONG_FILE = 4_500
"""Nodes of a file."""
HEAVY = 14
"""Own nodes of a statement that a reader still takes in at a glance."""
WIDE = 100
"""Columns of a line."""

_KEYS = re.compile(
    r"launch import keys|launch\.keys|sagemaker_[a-z_]*_enabled|request import .*\bkeys\b|import request as keys"
)
_OLD_ROADS = re.compile(r'as_training|getattr\(.*"emulate"')


class Number(NamedTuple):
    """One measured number. `bound` holds until the limit is reached."""

    name: str
    what: str
    limit: float
    bound: float | None = None


NUMBERS = (
    Number("files", "Python files that hold something", 330, bound=369),
    Number("nodes", "nodes of the syntax", 340_000, bound=441_682),
    Number("entries", "entries of cloudtrain/", 22),
    Number("statement-p90", "own nodes of a statement, which 9 of 10 do not exceed", 14),
    Number("heavy-statements", f"statements with over {HEAVY} own nodes, in percent", 8),
    Number("tuple-assignments", "`a, b = x, y`, per 1,000 statements", 3),
    Number("conditionals", "conditional expressions, per 1,000 statements", 28),
    Number("comprehensions", "comprehensions, per 1,000 statements", 33),
    Number("wide", f"lines over {WIDE} columns, addresses apart", 0),
    Number("long-files", f"files over {LONG_FILE:,} nodes", 0),
    Number("folder-circles", "circles of folders, imports in functions and for types included", 0),
    Number("file-circles", "files in circles, imports in functions and for types included", 0),
    Number("one-importer", "modules with one importer, parts of targets apart", 30),
    Number("local-imports", "imports inside functions", 350),
    Number("any", "`Any` in annotations", 1_000),
    Number("twice", "public class names that stand twice", 8),
    Number("long-functions", f"functions over {LONG_FUNCTION} nodes", 8),
    Number("target-members", "members of `Target`", 12),
    Number("assertions", "members of `Target` that raise AssertionError", 0),
    Number("sendings", "files that make a submission", 1),
    Number("contexts", "files that make a compile context", 2),
    Number("old-roads", "lines with `as_training` or a look-up of `emulate` by name", 0),
    Number("launcher-keys", "files that name SageMaker's launcher keys", 6),
    Number("sagemaker-keys", "files that name a key of SageMaker's request, mean", 5),
    Number("azureml-keys", "files that name a key of Azure ML's request, mean", 3),
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
        package = (
            module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
        )
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                above = (
                    package.split(".")[: len(package.split(".")) - node.level + 1]
                    if node.level
                    else []
                )
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


_CONTEXTS = (ast.Load, ast.Store, ast.Del)
_WEIGHTLESS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
_COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp)


def nodes_of(tree: ast.AST) -> int:
    """Return the number of nodes of a syntax tree, without contexts."""
    return sum(not isinstance(node, _CONTEXTS) for node in ast.walk(tree))


def own_nodes(statement: ast.stmt) -> int:
    """Return the number of nodes of a statement, without contexts and without the statements inside it."""
    count = 0
    stack: list[ast.AST] = [statement]
    while stack:
        node = stack.pop()
        count += not isinstance(node, _CONTEXTS)
        stack += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]
    return count


def _is_table(statement: ast.stmt) -> bool:
    """Return whether a statement assigns a literal."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return False
    try:
        ast.literal_eval(statement.value)
    except (ValueError, TypeError, SyntaxError):
        return False
    return True


def _statements(house: House) -> Iterator[tuple[Module, ast.stmt]]:
    """Yield every statement but docstrings."""
    for module in house.modules.values():
        for node in ast.walk(module.tree):
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if isinstance(node, ast.stmt) and not is_text:
                yield module, node


def _weights(house: House) -> Iterator[tuple[int, str]]:
    """Yield the own nodes and the place of each statement that has a weight."""
    for module, node in _statements(house):
        is_table = node in module.tree.body and _is_table(node)
        if not isinstance(node, _WEIGHTLESS) and not is_table:
            yield own_nodes(node), house.place(module, node.lineno)


def _heavy_statements(house: House) -> Iterator[str]:
    for weight, place in sorted(_weights(house), key=lambda item: -item[0]):
        if weight > HEAVY:
            yield f"{place}: {weight}"


def _tuple_assignments(house: House) -> Iterator[str]:
    for module, node in _statements(house):
        is_pair = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)
        if is_pair and isinstance(node.value, ast.Tuple):
            yield house.place(module, node.lineno)


def _expressions(house: House, *kinds: type[ast.expr]) -> Iterator[str]:
    for module in house.modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, kinds):
                yield house.place(module, node.lineno)


def _wide(house: House) -> Iterator[str]:
    for module in house.modules.values():
        for number, line in enumerate(module.text.splitlines(), 1):
            if len(line) > WIDE and "://" not in line:
                yield house.place(module, number)


def _key_files(house: House, keys: Iterable[str]) -> Iterator[str]:
    """Yield, for each key that the package names, the number of files that have it as a text."""
    texts = [
        {node.value for node in ast.walk(module.tree) if isinstance(node, ast.Constant)}
        for module in house.modules.values()
    ]
    for key in keys:
        count = sum(key in words for words in texts)
        if count:
            yield f"{key}: {count}"


def _sagemaker_keys(house: House) -> Iterator[str]:
    """Yield the keys at the top of `CreateTrainingJob`."""
    table = house.folder / "targets/sagemaker/catalogue/data/shapes.json"
    if table.exists():
        shapes = json.loads(table.read_text())["shapes"]
        yield from _key_files(house, shapes["CreateTrainingJobRequest"]["members"])


def _azureml_keys(house: House) -> Iterator[str]:
    """Yield the keys at the top of a job's body. Everyday words, such as `inputs`, are left out."""
    table = house.folder / "targets/azureml/data/body.json"
    if table.exists():
        body = json.loads(table.read_text())
        yield from _key_files(house, [key for key in body if not key.islower()])


def _mean(lines: Iterable[str]) -> float:
    counts = [int(line.rpartition(" ")[2]) for line in lines]
    return round(sum(counts) / len(counts), 2) if counts else 0.0


def density(house: House) -> dict[str, float]:
    """Return the figures that are no counts of a list."""
    statements = sum(1 for _ in _statements(house))
    weights = sorted(weight for weight, _ in _weights(house))
    heavy = sum(weight > HEAVY for weight in weights)
    values: dict[str, float] = {
        "nodes": sum(nodes_of(module.tree) for module in house.modules.values()),
        "statement-p90": weights[int(0.9 * len(weights))],
        "heavy-statements": round(100 * heavy / len(weights), 2),
        "sagemaker-keys": _mean(_sagemaker_keys(house)),
        "azureml-keys": _mean(_azureml_keys(house)),
    }
    for name in ("tuple-assignments", "conditionals", "comprehensions"):
        values[name] = round(1000 * len(list(LISTS[name](house))) / statements, 2)
    return values


def asides(house: House) -> dict[str, float]:
    """Return what is printed and has no limit: headings in the middle of files, and nodes per line of code."""
    seams = 0
    lines = 0
    for module in house.modules.values():
        text = module.text.splitlines()
        lines += sum(bool(line.strip()) for line in text)
        for before, line, after in zip(text, text[1:], text[2:], strict=False):
            seams += line.startswith("# ") and not before and not after
    nodes = sum(nodes_of(module.tree) for module in house.modules.values())
    return {"seam comments": seams, "nodes per line": round(nodes / max(lines, 1), 2)}


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
    importers: Counter[str] = Counter(
        other for others in house.imports.values() for other in others
    )
    named = {
        text
        for module in house.modules.values()
        for text in re.findall(r"cloudtrain(?:\.\w+)+", module.text)
    }
    for name, count in importers.items():
        is_part = re.match(
            rf"{PACKAGE}\.(targets\.\w+|runtime|estimate\.probe)\.", name
        ) or name in (
            PACKAGE,
            f"{PACKAGE}.cli.app",
        )
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
    yield from (
        f"{name}: {', '.join(items)}" for name, items in sorted(places.items()) if len(items) > 1
    )


def _long_functions(house: House) -> Iterator[str]:
    for module, node in house.functions():
        nodes = nodes_of(node)
        if nodes > LONG_FUNCTION:
            yield f"{house.place(module, node.lineno)} {node.name}: {nodes}"


def _long_files(house: House) -> Iterator[str]:
    for module in house.modules.values():
        nodes = nodes_of(module.tree)
        if nodes > LONG_FILE:
            yield f"{module.path.relative_to(house.root)}: {nodes}"


def _target(house: House) -> ast.ClassDef:
    module = (
        house.modules.get(f"{PACKAGE}.targets.contract") or house.modules[f"{PACKAGE}.targets.base"]
    )
    return next(
        node
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and node.name == "Target"
    )


def _target_members(house: House) -> Iterator[str]:
    for node in _target(house).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def _assertions(house: House) -> Iterator[str]:
    for node in _target(house).body:
        if isinstance(node, ast.FunctionDef) and any(
            isinstance(part, ast.Raise)
            and part.exc is not None
            and "AssertionError" in ast.unparse(part.exc)
            for part in ast.walk(node)
        ):
            yield node.name


def _makers(house: House, *names: str) -> Iterator[str]:
    for module in house.modules.values():
        for node in ast.walk(module.tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in names
            ):
                yield str(module.path.relative_to(house.root))
                break


LISTS: dict[str, Callable[[House], Iterable[str]]] = {
    "files": lambda house: house.modules,
    "entries": lambda house: [
        item.name for item in house.folder.iterdir() if item.name not in ("__pycache__", "py.typed")
    ],
    "heavy-statements": _heavy_statements,
    "tuple-assignments": _tuple_assignments,
    "conditionals": lambda house: _expressions(house, ast.IfExp),
    "comprehensions": lambda house: _expressions(house, *_COMPREHENSIONS),
    "wide": _wide,
    "long-files": _long_files,
    "sagemaker-keys": _sagemaker_keys,
    "azureml-keys": _azureml_keys,
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
    "launcher-keys": lambda house: sorted(
        {place.partition(":")[0] for place in house.lines_matching(_KEYS)}
    ),
}


# Runs `cloudtrain ARGUMENTS` in a child and counts, at each call of a function of the package,
# whether its module is another one than that of the call before. Modules of which only the import
# runs do not count as entered.
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
status = 1
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
        settings = {
            "CLOUDTRAIN_STATE_DIR": str(Path(folder, "state")),
            "HOME": folder,
            "XDG_CONFIG_HOME": folder,
        }
        account = {
            "AWS_DEFAULT_REGION": "eu-west-1",
            "PYTHONPATH": str(root),
            "PATH": os.environ["PATH"],
            "CLOUDTRAIN_PROFILE": "house",
        }
        Path(folder, "cloudtrain").mkdir()
        table = 'role = "arn:aws:iam::111122223333:role/train"\nregion = "eu-west-1"\nbucket = "house"\n'
        Path(folder, "cloudtrain", "cloudtrain.toml").write_text(
            f"[profiles.house.sagemaker]\n{table}"
        )
        child = subprocess.run(
            [*probe, *arguments], env=settings | account, cwd=folder, capture_output=True, text=True
        )
        if "ModuleNotFoundError" in child.stderr:
            raise SystemExit(
                f"{sys.executable} lacks the packages that `cloudtrain plan` needs: use `.venv/bin/python`, "
                "or leave out what needs a run with `--quick`"
            )
        if not out.exists():
            raise SystemExit(f"the plan did not run: {child.stderr}")
        numbers = json.loads(out.read_text())
        if numbers.pop("status") != 0:
            raise SystemExit(child.stdout + child.stderr)
        numbers.pop("modules")
        return dict(numbers)


def main() -> int:
    """Print the table; return 1 if a number is above its limit and its bound."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="leave out what needs a run")
    parser.add_argument("--list", choices=sorted(LISTS), help="print what a number counts")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to measure")
    parser.add_argument(
        "--density", nargs="+", metavar="ROOM", help="folders or files of the package"
    )
    arguments = parser.parse_args()
    numbers = NUMBERS
    values: dict[str, float] = {}
    if not (arguments.quick or arguments.density or arguments.list):
        numbers += RUN_NUMBERS
        values |= measure_run(
            arguments.root
        )  # first: it says so if the interpreter is the wrong one
    house = House(arguments.root)
    if arguments.density:
        rooms = tuple(str(house.folder / room) for room in arguments.density)
        for name, module in list(house.modules.items()):
            if not str(module.path).startswith(rooms):
                del house.modules[name]
        for name, value in density(house).items():
            print(f"{name:17} {value:9,}")
        return 0
    if arguments.list:
        print(*LISTS[arguments.list](house), sep="\n")
        return 0
    values |= {name: len(list(items(house))) for name, items in LISTS.items()}
    values |= density(house)
    failures = 0
    for number in numbers:
        value = values[number.name]
        most = number.limit if number.bound is None else max(number.limit, number.bound)
        mark = "TOO MUCH"
        if value <= number.limit:
            mark = "ok"
        elif value <= most:
            mark = "above the limit, within its bound"
        failures += value > most
        print(f"{number.name:17} {value:9,}  limit {number.limit:7,}  {mark:34} {number.what}")
    for name, value in asides(house).items():
        print(f"{name:17} {value:9,}")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
