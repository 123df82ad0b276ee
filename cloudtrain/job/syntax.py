"""What a training script and its own modules show by their syntax: whether the processes of a run work together, and
where the script saves files, and which packages it cannot do without."""

from __future__ import annotations

import ast
import posixpath
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from cloudtrain.documents.document import parse_python

_SIGNS = frozenset(
    "distributed distribute DistributedDataParallel DistributedSampler DDP FSDP FullyShardedDataParallel fully_shard "
    "init_process_group init_distributed detect_environment instance_group local_rank world_size get_rank "
    "get_world_size".split()
)
"""Names of a script whose processes work together, from torch and from `cloudtrain.runtime`."""

_VARIABLES = frozenset(
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR TF_CONFIG OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK "
    "OMPI_COMM_WORLD_SIZE PMI_RANK SLURM_PROCID SLURM_LOCALID SM_HOSTS SM_CURRENT_HOST local_rank local-rank".split()
)
"""Variables and options from which a script reads its rank."""

_PLAIN = frozenset(
    "torch torchvision torchaudio numpy pandas scipy sklearn PIL cv2 matplotlib seaborn tqdm yaml datasets "
    "transformers tokenizers safetensors einops h5py joblib wandb tensorboard tensorboardX mlflow requests rich click "
    "cloudtrain".split()
)
"""Packages that start and join no processes by themselves. Classes of transformers such as `Trainer` do."""

_JOINING_CLASSES = ("Trainer", "TrainingArguments", "HfArgumentParser")
_DYNAMIC = frozenset(("importlib", "runpy", "subprocess"))
_MOST_MODULES = 40


class Save(NamedTuple):
    """A call that saves a model to `path`, or to `path` below the value of the script's option `option`. Three dots
    replace what only the running script knows."""

    file: str
    line: int
    option: str | None
    path: str


class ScriptSyntax(NamedTuple):
    """What a script and its own modules show. `defaults` maps the script's options to their defaults that are texts."""

    packages: frozenset[str] = frozenset()
    """The packages that the script itself imports."""
    is_alone: bool = False
    """Whether the script imports torch, and neither joins other processes nor leaves that to a library."""
    saves: tuple[Save, ...] = ()
    needs: Mapping[str, tuple[str, int]] = {}
    """The packages that are imported whenever the script starts, each with the file and line of the import."""
    defaults: Mapping[str, str] = {}


def read_syntax(script: str, read: Callable[[str], str | None]) -> ScriptSyntax:
    """Read a script and the modules beside it that it imports. `read` returns the text of the file at a path such as
    `src/train.py`, or None if there is none. Modules that cannot be parsed are unknown packages."""
    nodes: dict[str, list[ast.AST]] = {}
    waiting, packages, own = [script], set[str](), frozenset[str]()
    certain, needs = {script}, dict[str, tuple[str, int]]()
    while waiting and len(nodes) < _MOST_MODULES:
        path = waiting.pop()
        text = None if path in nodes else read(path)
        if text is None:
            continue
        try:
            nodes[path], tops = _nodes(text)
        except (SyntaxError, RecursionError):
            packages.add(path)
            continue
        for statement, name, candidates in _imports(nodes[path], path, posixpath.dirname(script)):
            places = () if name == "cloudtrain" else candidates  # every bundle has its runtime
            modules = [place for place in places if place in nodes or read(place) is not None]
            is_certain = path in certain and statement in tops
            certain |= {*modules} if is_certain else set()
            waiting += modules
            packages |= {name} if name and not modules else set()
            if is_certain and name and not modules:
                needs.setdefault(name, (path, statement.lineno))
        own = frozenset(packages) if path == script else own
    every = [(path, node) for path, inside in nodes.items() for node in inside]
    calls = [(path, node) for path, node in every if isinstance(node, ast.Call)]
    trains = any(isinstance(node.func, ast.Attribute) and node.func.attr == "backward" for _, node in calls)
    joins = not packages.isdisjoint(_DYNAMIC) or any(_joins(node) for _, node in every)
    is_alone = "torch" in packages and not joins and (trains or packages - sys.stdlib_module_names <= _PLAIN)
    defaults = dict(option for _, node in calls for option in _defaults(node))
    values: dict[str, list[ast.expr]] = {}
    for node in (node for _, node in every if isinstance(node, ast.Assign)):
        for target in (target for target in node.targets if isinstance(target, ast.Name)):
            values.setdefault(target.id, []).append(node.value)
    saves = [(path, node.lineno, _place(_saved_to(node), values, defaults)) for path, node in calls]
    found = tuple(Save(path, line, *place) for path, line, place in saves if place not in (None, (None, "")))
    return ScriptSyntax(own, is_alone, found, needs, defaults)


@lru_cache(maxsize=_MOST_MODULES)
def _nodes(text: str) -> tuple[list[ast.AST], frozenset[ast.AST]]:
    """Return the nodes of a module, and those of its statements that run whenever it is imported: none inside of `try`,
    `if` or a function."""
    module = parse_python(text)
    kinds = ast.Import | ast.ImportFrom | ast.Call | ast.Constant | ast.Attribute | ast.Name | ast.Assign
    nodes: list[ast.AST] = [node for node in ast.walk(module) if isinstance(node, kinds | ast.arg | ast.keyword)]
    return nodes, frozenset(module.body)


def _imports(
    nodes: list[ast.AST], path: str, folder: str
) -> Iterator[tuple[ast.Import | ast.ImportFrom, str, list[str]]]:
    """Yield each import, its package, and the files that it could be, in `folder` or at the top. The name of a relative
    import is empty."""
    for node in nodes:
        bases, modules = [folder, ""], []
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.Import):
            modules = [[alias.name] for alias in node.names]
        else:
            start = [node.module] if node.module else []
            modules = [[*start, *(".".join([*start, alias.name]) for alias in node.names)]]
            if node.level:
                bases = [posixpath.join(posixpath.dirname(path), *[".."] * (node.level - 1))]
        for names in modules:
            stems = [posixpath.normpath(posixpath.join(base, *name.split("."))) for base in bases for name in names]
            is_relative = isinstance(node, ast.ImportFrom) and node.level
            yield (
                node,
                "" if is_relative else names[0].partition(".")[0],
                [stem + end for stem in stems for end in (".py", "/__init__.py")],
            )


def _joins(node: ast.AST) -> bool:
    """Return whether a node is a sign that the script's processes work together."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.lstrip("-") in _VARIABLES
    names = {getattr(node, field, None) for field in ("id", "attr", "arg")}
    if isinstance(node, ast.Import | ast.ImportFrom):
        source = getattr(node, "module", None) or ""
        names = {part for text in (source, *(alias.name for alias in node.names)) for part in text.split(".")}
    is_of_transformers = "transformers" in names or getattr(getattr(node, "value", None), "id", "") == "transformers"
    return not names.isdisjoint(_SIGNS) or (
        is_of_transformers and any(str(name).endswith(_JOINING_CLASSES) for name in names)
    )


def _defaults(call: ast.Call) -> Iterator[tuple[str, str]]:
    """Yield the option that one `add_argument` call adds, with its default, if that is a text."""
    names = [str(word.value) for word in call.args if isinstance(word, ast.Constant)]
    name = next((name for name in names if name.startswith("--")), None)
    for word in call.keywords if ast.unparse(call.func).endswith(".add_argument") and name else ():
        if word.arg == "default" and isinstance(word.value, ast.Constant) and isinstance(word.value.value, str):
            yield str(name).removeprefix("--"), word.value.value


def _saved_to(call: ast.Call) -> ast.expr | None:
    """Return the argument that names where a call saves a model; None for other calls."""
    name = ast.unparse(call.func) if isinstance(call.func, ast.Name | ast.Attribute) else ""
    last = "TrainingArguments" if name.endswith("TrainingArguments") else name.rpartition(".")[2]
    position, key = _SAVES.get(name) or _SAVES.get(last, (-1, ""))
    given = call.args[position] if 0 <= position < len(call.args) else None
    return next((word.value for word in call.keywords if key and word.arg == key), given)


_SAVES = {
    "torch.save": (1, "f"),
    "joblib.dump": (1, "filename"),
    "save_file": (1, "filename"),
    "save_pretrained": (0, "save_directory"),
    "save_model": (0, "output_dir"),
    **dict.fromkeys(("TrainingArguments", "SFTConfig", "DPOConfig", "GRPOConfig"), (0, "output_dir")),
}
"""Maps each function that saves a model to the position and the name of the argument with the path."""


def _place(
    node: ast.expr | None, values: Mapping[str, list[ast.expr]], options: Mapping[str, str], depth: int = 8
) -> tuple[str | None, str] | None:
    """Return the option with which a path begins, if any, and the rest of the path; None if the beginning is unknown.
    `values` are the expressions that are assigned to names."""
    parts, between = [node], "/"
    match node if depth else None:
        case ast.Constant(value=str(text)):
            return None, text
        case ast.Attribute(value=ast.Name(), attr=attr):
            option = next((name for name in options if name.replace("-", "_") == attr), None)
            return (option, "") if option else None
        case ast.Name(id=name) if len(values.get(name, ())) == 1:
            parts = [*values[name]]
        case ast.FormattedValue(value=value):
            parts = [value]
        case ast.JoinedStr(values=texts):
            parts, between = list(texts), ""
        case ast.BinOp(left=left, op=ast.Div() | ast.Add() as op, right=right):
            parts, between = [left, right], "/" if isinstance(op, ast.Div) else ""
        case ast.Call(func=ast.Attribute(value=value, attr="joinpath"), args=arguments):
            parts = [value, *arguments]
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[*arguments]) if name in _OF_PARTS:
            parts = list(arguments)
        case _:
            return None
    start, *rest = [_place(part, values, options, depth - 1) for part in parts] or [None]
    texts_of_rest = ["..." if part is None or part[0] else part[1] for part in rest]
    if start is None:
        return None
    return start[0], posixpath.join(start[1], *texts_of_rest) if between else start[1] + "".join(texts_of_rest)


_OF_PARTS = frozenset(("join", "Path", "str", "fspath", "expanduser"))
"""Functions of a path, or of its parts."""
