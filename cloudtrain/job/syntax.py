"""What a training script and its own modules show by their syntax: whether the processes of a run work together, and
where the script saves files."""

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
    """A call that saves a file. Its path is `path`, or `path` below the value of the option `option`; three dots
    replace what only the running script knows."""

    file: str
    line: int
    call: str
    path: str
    option: str | None = None


class ScriptSyntax(NamedTuple):
    """What the script shows.

    Attributes:
        is_alone: whether the script imports torch, and neither joins other processes nor leaves that to a library.
        saves: the calls that save a model.
        defaults: maps the script's options, without dashes, to their defaults that are texts.
    """

    is_alone: bool = False
    saves: tuple[Save, ...] = ()
    defaults: Mapping[str, str] = {}


def read_syntax(script: str, read: Callable[[str], str | None]) -> ScriptSyntax:
    """Read a script and the modules beside it that it imports. `read` returns the text of the file at a path such as
    `src/train.py`, or None if there is none. A script that cannot be parsed shows nothing."""
    texts: dict[str, str] = {}
    waiting, external = [script], set[str]()
    try:
        while waiting:
            path = waiting.pop()
            text = read(path) if path not in texts else None
            if text is None or len(texts) == _MOST_MODULES:
                continue
            texts[path] = text
            for name, candidates in _imports(_nodes(text), path, posixpath.dirname(script)):
                places = () if name == "cloudtrain" else candidates  # every bundle has its runtime
                own = [place for place in places if place in texts or read(place) is not None]
                waiting += own
                if not own:
                    external.add(name)
        return _syntax_of(tuple(texts.items()), frozenset(external))
    except (SyntaxError, RecursionError):
        return ScriptSyntax()


@lru_cache(maxsize=_MOST_MODULES)
def _nodes(text: str) -> list[ast.AST]:
    return [node for node in ast.walk(parse_python(text)) if isinstance(node, _READ)]


_READ = (
    ast.Import, ast.ImportFrom, ast.Call, ast.Constant, ast.Attribute, ast.Name, ast.Assign, ast.AnnAssign, ast.arg,
    ast.keyword,
)  # fmt: skip


def _imports(nodes: list[ast.AST], path: str, folder: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each imported package or module, and the files that it could be: beside the script, or at the top."""
    for node in nodes:
        if isinstance(node, ast.Import):
            modules = [(alias.name, [alias.name]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            names = [f"{node.module}.{alias.name}" if node.module else alias.name for alias in node.names]
            modules = [(start, [*([node.module] if node.module else []), *names])]
        else:
            continue
        level = getattr(node, "level", 0)
        bases = [posixpath.normpath(posixpath.join(posixpath.dirname(path), *[".."] * (level - 1)))] if level else []
        for name, dotted in modules:
            files = [
                posixpath.normpath(posixpath.join(base, *module.split("."))) + end
                for base in bases or dict.fromkeys((folder, ""))
                for module in dotted
                for end in (".py", "/__init__.py")
            ]
            yield name.partition(".")[0], files


@lru_cache(maxsize=4)
def _syntax_of(texts: tuple[tuple[str, str], ...], external: frozenset[str]) -> ScriptSyntax:
    nodes = [(path, node) for path, text in texts for node in _nodes(text)]
    calls = [(path, node) for path, node in nodes if isinstance(node, ast.Call)]
    packages = external - {""}  # of relative imports without a file
    is_understood = packages - sys.stdlib_module_names <= _PLAIN or any(
        isinstance(node.func, ast.Attribute) and node.func.attr == "backward" for _, node in calls
    )
    joins = not packages.isdisjoint(_DYNAMIC) or any(_joins(node) for _, node in nodes)
    defaults = dict(option for _, node in calls for option in _defaults(node))
    places = _Places([node for _, node in nodes], defaults)
    saves = (Save(path, node.lineno, ast.unparse(node.func), text, option)
             for path, node in calls for option, text in places.of(_saved_to(node)))  # fmt: skip
    return ScriptSyntax("torch" in packages and is_understood and not joins, tuple(saves), defaults)


def _joins(node: ast.AST) -> bool:
    """Return whether a node is a sign that the script's processes work together."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.lstrip("-") in _VARIABLES
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "transformers":
        return node.attr.endswith(_JOINING_CLASSES)
    if isinstance(node, ast.ImportFrom):
        words = {*(node.module or "").split("."), *(alias.name for alias in node.names)}
        is_of_transformers = (node.module or "").partition(".")[0] == "transformers"
        return not words.isdisjoint(_SIGNS) or (is_of_transformers and any(w.endswith(_JOINING_CLASSES) for w in words))
    if isinstance(node, ast.Import):
        return any(not _SIGNS.isdisjoint(alias.name.split(".")) for alias in node.names)
    return any(getattr(node, field, None) in _SIGNS for field in ("id", "attr", "arg"))


def _defaults(call: ast.Call) -> Iterator[tuple[str, str]]:
    """Yield the option that one `add_argument` call adds, with its default, if that is a text."""
    names = [word.value for word in call.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    default = next((word.value for word in call.keywords if word.arg == "default"), None)
    if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument" and isinstance(default, ast.Constant):
        name = next((name for name in names if name.startswith("--")), None)
        if name is not None and isinstance(default.value, str):
            yield name.removeprefix("--"), default.value


def _saved_to(call: ast.Call) -> ast.expr | None:
    """Return the argument that names where a call saves a model; None for other calls."""
    name = ast.unparse(call.func) if isinstance(call.func, ast.Name | ast.Attribute) else ""
    last = name.rpartition(".")[2]
    words = {word.arg: word.value for word in call.keywords}
    if last.endswith("TrainingArguments") or last in ("SFTConfig", "DPOConfig", "GRPOConfig"):
        position, key = 0, "output_dir"
    elif last in ("save_pretrained", "save_model"):
        position, key = 0, "save_directory" if last == "save_pretrained" else "output_dir"
    elif name in ("torch.save", "joblib.dump") or last == "save_file":
        position, key = 1, {"torch.save": "f"}.get(name, "filename")
    else:
        return None
    return words.get(key, call.args[position] if len(call.args) > position else None)


class _Places:
    """The paths that expressions of the script name, from constants, names that are bound once, and options."""

    def __init__(self, nodes: list[ast.AST], defaults: Mapping[str, str]) -> None:
        self._options = {name.replace("-", "_"): name for name in defaults}
        self._values: dict[str, list[ast.expr]] = {}
        for node in nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        self._values.setdefault(target.id, []).append(node.value)

    def of(self, node: ast.expr | None) -> Iterator[tuple[str | None, str]]:
        """Yield the option at the beginning of a path, if any, and the rest of the path; nothing for another path."""
        place = self._place(node, 0) if node is not None else None
        if place is not None and (place[0] or place[1]):
            yield place

    def _place(self, node: ast.expr, depth: int) -> tuple[str | None, str] | None:
        if depth > 8:
            return None
        match node:
            case ast.Constant(value=str(text)):
                return None, text
            case ast.JoinedStr(values=parts):
                return self._together(parts, "", depth)
            case ast.FormattedValue(value=value):
                return self._place(value, depth + 1)
            case ast.BinOp(left=left, op=ast.Div() | ast.Add(), right=right):
                return self._together([left, right], "/" if isinstance(node.op, ast.Div) else "", depth)
            case ast.Call(func=ast.Attribute(value=value, attr="joinpath"), args=parts):
                return self._together([value, *parts], "/", depth)
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=parts) if name in _SAME and parts:
                return self._together(parts, "/", depth)
            case ast.Name(id=name) if len(self._values.get(name, ())) == 1:
                return self._place(self._values[name][0], depth + 1)
            case ast.Attribute(value=ast.Name(), attr=name) if name in self._options:
                return self._options[name], ""
        return None

    def _together(self, parts: list[ast.expr], between: str, depth: int) -> tuple[str | None, str] | None:
        start, *rest = (self._place(part, depth + 1) for part in parts)
        if start is None:
            return None
        texts = [start[1], *("..." if part is None or part[0] else part[1] for part in rest)]
        return start[0], posixpath.join(*texts) if between else "".join(texts)


_SAME = frozenset(("join", "Path", "str", "fspath", "expanduser"))
"""Functions of a path, or of its parts."""
