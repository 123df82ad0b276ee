"""What a training script and its own modules show by their syntax: whether the processes of a run
work together, where the script saves files, which packages it cannot do without, and which options
it accepts."""

from __future__ import annotations

import ast
import posixpath
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from cloudtrain.documents.document import parse_python
from cloudtrain.runtime.torchrun_words import is_module, words_of_script

_SIGNS = frozenset(
    "distributed distribute DistributedDataParallel DistributedSampler DDP FSDP "
    "FullyShardedDataParallel fully_shard "
    "init_process_group init_distributed detect_environment instance_group local_rank "
    "world_size get_rank "
    "get_world_size".split()
)
"""Names of a script whose processes work together, from torch and from `cloudtrain.runtime`."""

_VARIABLES = frozenset(
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR TF_CONFIG OMPI_COMM_WORLD_RANK "
    "OMPI_COMM_WORLD_LOCAL_RANK "
    "OMPI_COMM_WORLD_SIZE PMI_RANK SLURM_PROCID SLURM_LOCALID SM_HOSTS SM_CURRENT_HOST "
    "local_rank local-rank".split()
)
"""Variables and options from which a script reads its rank."""

_PLAIN = frozenset(
    "torch torchvision torchaudio numpy pandas scipy sklearn PIL cv2 matplotlib seaborn tqdm "
    "yaml datasets "
    "transformers tokenizers safetensors einops h5py joblib wandb tensorboard tensorboardX "
    "mlflow requests rich click "
    "cloudtrain".split()
)
"""Packages that start and join no processes by themselves. Classes of transformers such as
`Trainer` do."""

_LIBRARIES = frozenset("accelerate lightning pytorch_lightning transformers trl".split())
"""Packages that train in several processes if a launcher has started them, and in one process
otherwise."""

_OF_PERSONS = frozenset(("get_ipython", "display", "input"))
"""Functions that need a person or a notebook."""

_JOINING_CLASSES = ("Trainer", "TrainingArguments", "HfArgumentParser")
_DYNAMIC = frozenset(("importlib", "runpy", "subprocess"))
_MOST_MODULES = 40


class Save(NamedTuple):
    """A call that saves a model to `path`, or to `path` below the value of the script's option
    `option`. Three dots replace what only the running script knows."""

    file: str
    line: int
    option: str | None
    path: str


class ScriptSyntax(NamedTuple):
    """What a script and its own modules show. `defaults` maps the script's options to their
    defaults that are texts."""

    packages: frozenset[str] = frozenset()
    """The packages that the script itself imports."""
    is_alone: bool = False
    """Whether the script imports torch, and neither joins other processes nor leaves that to a
    library."""
    needs_no_launcher: bool = False
    """Whether the script also works if `python` starts it: it asks whether a launcher has set its
    rank, or leaves the processes to a library."""
    saves: tuple[Save, ...] = ()
    needs: Mapping[str, tuple[str, int]] = {}
    """The packages that are imported whenever the script starts, each with the file and line of the
    import."""
    defaults: Mapping[str, str] = {}
    outside: tuple[tuple[str, int, str], ...] = ()
    """The file, the line and the text of each constant that begins with `../`, except defaults of
    options."""
    attended: tuple[tuple[str, int, str], ...] = ()
    """The file, the line and the name of each function that needs a person or a notebook, and is
    certainly called."""
    written: tuple[tuple[str, int, str], ...] = ()
    """The file, the line and the folder of each file that is written below a relative folder that
    no call makes."""


def script_file(
    entry_point: str, is_file: Callable[[str], bool], python_path: object = ""
) -> str | None:
    """Return the path of the script that an entry point runs. For a module, return its file in the
    code, or None if there is none. `python_path` is the job's variable PYTHONPATH."""
    if not is_module(entry_point):
        return entry_point
    path = words_of_script(entry_point)[1].replace(".", "/")
    folders = ("", *str(python_path).split(":"))
    files = (
        posixpath.join(folder, path + end) for folder in folders for end in ("/__main__.py", ".py")
    )
    return next(filter(is_file, files), None)


def read_syntax(script: str, read: Callable[[str], str | None]) -> ScriptSyntax:
    """Read a script and the modules beside it that it imports. `read` returns the text of the file
    at a path such as `src/train.py`, or None if there is none. Modules that cannot be parsed are
    unknown packages."""
    nodes: dict[str, list[ast.AST]] = {}
    waiting, packages, own = [script], set[str](), frozenset[str]()
    certain, needs, attended = {script}, dict[str, tuple[str, int]](), list[tuple[str, int, str]]()
    while waiting and len(nodes) < _MOST_MODULES:
        path = waiting.pop(0)  # the nearest modules first
        text = None if path in nodes else read(path)
        if text is None:
            continue
        try:
            module, nodes[path] = _parse(text)
        except (SyntaxError, RecursionError):
            packages.add(path)
            continue
        for statement, name, candidates in _imports(nodes[path], path, posixpath.dirname(script)):
            places = () if name == "cloudtrain" else candidates  # every bundle has its runtime
            modules = [place for place in places if place in nodes or read(place) is not None]
            is_certain = path in certain and statement in module.body
            certain |= {*modules} if is_certain else set()
            waiting += modules
            packages |= {name} if name and not modules else set()
            if is_certain and name and not modules:
                needs.setdefault(name, (path, statement.lineno))
        own = frozenset(packages) if path == script else own
        if path in certain:
            attended += [
                (path, *call) for call in _attended(module.body, nodes[path], path == script)
            ]
    every = [(path, node) for path, inside in nodes.items() for node in inside]
    calls = [(path, node) for path, node in every if isinstance(node, ast.Call)]
    words = [node for _, node in every if type(node) in _WORDS]
    # `loss.backward()`, but not `accelerator.backward(loss)`, with which a library trains.
    trains = any(
        getattr(node.func, "attr", "") == "backward" and not node.args for _, node in calls
    )
    joins = not packages.isdisjoint(_DYNAMIC) or any(_joins(node) for node in words)
    is_alone = (
        "torch" in packages
        and not joins
        and (trains or packages - sys.stdlib_module_names <= _PLAIN)
    )
    asks = any(_asks(node) for _, node in every if type(node) in (ast.Call, ast.Compare))
    needs_no_launcher = asks or not packages.isdisjoint(_LIBRARIES)
    defaults = dict(option for _, node in calls for option in _defaults(node))
    values: dict[str, list[ast.expr]] = {}
    for node in (node for _, node in every if isinstance(node, ast.Assign)):
        for target in (target for target in node.targets if isinstance(target, ast.Name)):
            values.setdefault(target.id, []).append(node.value)
    saves = [
        (path, node.lineno, _place(to, values, defaults))
        for path, node in calls
        if (to := _saved_to(node))
    ]
    # which sets the folder
    if not any(getattr(node, "id", "") == "integrations" for node in words):
        parsed = [
            (path, node.lineno, ("output_dir", ""))
            for path, node in calls
            if _parses_output_dir(node)
        ]
        saves, defaults = (
            [*saves, *parsed],
            ({"output_dir": "trainer_output"} if parsed else {}) | defaults,
        )
    found = tuple(
        Save(path, line, *place) for path, line, place in saves if place not in (None, (None, ""))
    )
    constants = [
        (path, node)
        for path, node in every
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    texts = [
        (path, node.lineno, str(node.value))
        for path, node in constants
        if str(node.value).startswith("../")
    ]
    outside = tuple(row for row in texts if row[2] not in defaults.values())
    makes = any(_name_of(node) in ("mkdir", "makedirs") for _, node in calls)
    files = [
        (path, node.lineno, to) for path, node in calls if not makes and (to := _written_to(node))
    ]
    writes = [(path, line, _place(to, values, {})) for path, line, to in files]
    folders = [
        (path, line, posixpath.split(posixpath.normpath(place[1]))[0])
        for path, line, place in writes
        if place
    ]
    written = tuple(
        row for row in folders if row[2] and row[2][0] not in "/.~$" and "..." not in row[2]
    )
    return ScriptSyntax(
        own, is_alone, needs_no_launcher, found, needs, defaults, outside, tuple(attended), written
    )


@lru_cache(maxsize=_MOST_MODULES)
def _parse(text: str) -> tuple[ast.Module, list[ast.AST]]:
    """Return a module and its nodes as `ast.walk` gives them, but those without parts, such as
    `Load` and `Add`, which are half of all. Several rules ask for those of one text."""
    module = parse_python(text)
    nodes: list[ast.AST] = [module]
    for node in nodes:  # the list grows meanwhile
        for name in node._fields:
            part = getattr(node, name, None)
            if isinstance(part, list):
                nodes += [item for item in part if isinstance(item, ast.AST) and item._fields]
            elif isinstance(part, ast.AST) and part._fields:
                nodes.append(part)
    return module, nodes


def _name_of(call: ast.Call) -> str:
    """Return the last part of the name of the called function, `save` of `torch.save`; empty if it
    has no name."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _attended(
    body: list[ast.stmt], nodes: list[ast.AST], is_main: bool
) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each call that certainly runs: at the top, below `__main__`,
    or in a function that is called there, but not in a branch, nor behind one that may end the
    function or the script."""
    if not any(isinstance(node, ast.Call) and _name_of(node) in _OF_PERSONS for node in nodes):
        return
    functions = {item.name: item.body for item in body if isinstance(item, ast.FunctionDef)}
    bound = {
        node.id
        for node in nodes
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)} | functions.keys()
    froms = [alias for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
    # it returns None outside of a notebook
    bound |= {alias.asname or alias.name for alias in froms} - {"get_ipython"}
    waiting = [] if "*" in bound else list(body)
    while waiting:
        item = waiting.pop(0)
        inside = list(ast.walk(item))
        if (isinstance(item, ast.If) and is_main and "__main__" in ast.unparse(item.test)) or (
            isinstance(item, ast.With) and "suppress" not in ast.unparse(item.items[0])
        ):
            waiting[:0] = item.body
        elif isinstance(item, ast.Expr | ast.Assign | ast.Return) and not any(
            isinstance(node, ast.IfExp | ast.BoolOp | ast.Lambda) for node in inside
        ):
            names = [
                (node.lineno, ast.unparse(node.func))
                for node in inside
                if isinstance(node, ast.Call)
            ]
            yield from (call for call in names if call[1] in _OF_PERSONS - bound)
            waiting[:0] = [line for _, name in names for line in functions.pop(name, ())]
        elif not any(isinstance(node, ast.FunctionDef) for node in inside) and any(
            isinstance(node, ast.Return | ast.Raise) or getattr(node, "id", "") in ("sys", "exit")
            for node in inside
        ):
            return


def _imports(
    nodes: list[ast.AST], path: str, folder: str
) -> Iterator[tuple[ast.Import | ast.ImportFrom, str, list[str]]]:
    """Yield each import, its package, and the files that it could be, in `folder` or at the top.
    The name of a relative import is empty."""
    for node in (node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))):
        bases, modules = [folder, ""], []
        if isinstance(node, ast.Import):
            modules = [[alias.name] for alias in node.names]
        else:
            start = [node.module] if node.module else []
            modules = [[*start, *(".".join([*start, alias.name]) for alias in node.names)]]
            if node.level:
                bases = [posixpath.join(posixpath.dirname(path), *[".."] * (node.level - 1))]
        for names in modules:
            stems = [
                posixpath.normpath(posixpath.join(base, *name.split(".")))
                for base in bases
                for name in names
            ]
            is_relative = isinstance(node, ast.ImportFrom) and node.level
            yield (
                node,
                "" if is_relative else names[0].partition(".")[0],
                [stem + end for stem in stems for end in (".py", "/__init__.py")],
            )


_WORDS = frozenset(
    (ast.Constant, ast.Name, ast.Attribute, ast.arg, ast.keyword, ast.Import, ast.ImportFrom)
)
"""The nodes that hold names or texts."""


def _joins(node: ast.AST) -> bool:
    """Return whether a node is a sign that the script's processes work together."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.lstrip("-") in _VARIABLES
    names = {getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "arg", None)}
    if isinstance(node, ast.Import | ast.ImportFrom):
        source = getattr(node, "module", None) or ""
        names = {
            part
            for text in (source, *(alias.name for alias in node.names))
            for part in text.split(".")
        }
    is_class = any(str(name).endswith(_JOINING_CLASSES) for name in names)
    is_of_transformers = (
        "transformers" in names or getattr(getattr(node, "value", None), "id", "") == "transformers"
    )
    return not names.isdisjoint(_SIGNS) or (is_class and is_of_transformers)


def _asks(node: ast.AST) -> bool:
    """Return whether a node asks for a variable that only a launcher sets, such as
    `os.environ.get("RANK", -1)`."""
    match node:
        case ast.Call(
            func=ast.Attribute(attr="get" | "getenv"), args=[ast.Constant(value=name), *_]
        ):
            return name in _VARIABLES
        case ast.Compare(left=ast.Constant(value=name), ops=[ast.In() | ast.NotIn()]):
            return name in _VARIABLES
    return False


def _defaults(call: ast.Call) -> Iterator[tuple[str, str]]:
    """Yield the option that one `add_argument` call adds, with its default, if that is a text."""
    is_option = getattr(call.func, "attr", "") == "add_argument"
    names = (
        [str(word.value) for word in call.args if isinstance(word, ast.Constant)]
        if is_option
        else []
    )
    name = next((name for name in names if name.startswith("--")), None)
    for word in call.keywords if name else ():
        if (
            word.arg == "default"
            and isinstance(word.value, ast.Constant)
            and isinstance(word.value.value, str)
        ):
            yield str(name).removeprefix("--"), word.value.value


def _saved_to(call: ast.Call) -> ast.expr | None:
    """Return the argument that names where a call saves a model; None for other calls."""
    last = "TrainingArguments" if _name_of(call).endswith("TrainingArguments") else _name_of(call)
    if last not in _SAVING:
        return None
    name = ast.unparse(call.func)
    position, key = _SAVES.get(name) or _SAVES.get(last, (-1, ""))
    given = call.args[position] if 0 <= position < len(call.args) else None
    path = next((word.value for word in call.keywords if key and word.arg == key), given)
    is_other = (
        last == "save"
        and name not in _SAVES
        and not ast.unparse(path or call)[:-1].endswith((".keras", ".h5"))
    )
    return None if is_other else path


def _parses_output_dir(call: ast.Call) -> bool:
    """Return whether a call makes a parser that has the option `--output_dir` of Hugging Face's
    trainers."""
    words = ast.unparse(call) if _name_of(call) in ("HfArgumentParser", "TrlParser") else ""
    return any(
        name in words for name in ("TrainingArguments", "SFTConfig", "DPOConfig", "GRPOConfig")
    )


_SAVES = {
    "torch.save": (1, "f"),
    "joblib.dump": (1, "filename"),
    "save_file": (1, "filename"),
    "save_pretrained": (0, "save_directory"),
    "save_model": (0, "output_dir"),
    "trainer.save_checkpoint": (0, "filepath"),  # of Lightning, with its callback
    "ModelCheckpoint": (0, "dirpath"),
    **dict.fromkeys(("np.save", "numpy.save"), (0, "file")),
    # of Keras, if the path ends as one of Keras does
    **dict.fromkeys(("save", "save_weights"), (0, "filepath")),
    **dict.fromkeys(
        ("TrainingArguments", "SFTConfig", "DPOConfig", "GRPOConfig"), (0, "output_dir")
    ),
}
"""Maps each function that saves a model to the position and the name of the argument with the
path."""

_SAVING = frozenset(name.rpartition(".")[2] for name in _SAVES)


def _written_to(call: ast.Call) -> ast.expr | None:
    """Return the argument that names the file which a call writes, without making its folder; None
    for other calls."""
    name = _name_of(call)
    if name in ("save", "dump"):
        return (
            _saved_to(call)
            if ast.unparse(call.func).startswith(("torch.", "joblib.", "np.", "numpy."))
            else None
        )
    modes = (
        [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "mode")]
        if name == "open"
        else []
    )
    writes = any(str(getattr(mode, "value", "r")).startswith(("w", "a", "x")) for mode in modes)
    return call.args[0] if call.args and (writes or name in ("savefig", "to_csv")) else None


def _place(
    node: ast.expr | None,
    values: Mapping[str, list[ast.expr]],
    options: Mapping[str, str],
    depth: int = 8,
) -> tuple[str | None, str] | None:
    """Return the option with which a path begins, if any, and the rest of the path; None if the
    beginning is unknown. `values` are the expressions that are assigned to names."""
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
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[*arguments]) if (
            name in _OF_PARTS
        ):
            parts = list(arguments)
        case _:
            return None
    start, *rest = [_place(part, values, options, depth - 1) for part in parts] or [None]
    texts_of_rest = ["..." if part is None or part[0] else part[1] for part in rest]
    if start is None:
        return None
    return start[0], posixpath.join(start[1], *texts_of_rest) if between else start[1] + "".join(
        texts_of_rest
    )


_OF_PARTS = frozenset(("join", "Path", "str", "fspath", "expanduser"))
"""Functions of a path, or of its parts."""


# The options of a script that uses argparse or `runtime.arguments`, if its text determines them
# all.

_FILLS = frozenset(("add_argument", "add_argument_group", "add_mutually_exclusive_group"))
_READS = "parse_args"
_HARMLESS = frozenset(
    (_READS, "set_defaults", "get_default", "error", "exit", "print_help", "print_usage")
)


_TEXTS_OF_HELP = {"description", "prog", "usage", "epilog", "formatter_class"}
"""Arguments of `ArgumentParser` that add no options."""


class _NotCertain(Exception):
    """The options cannot all be determined from the script's text."""


class Options(NamedTuple):
    """The names of a script's options, without dashes. argparse takes beginnings of them,
    `runtime.arguments` does not, but takes `-` for `_`. `required` has the names of each option
    without which the script ends, and `positional` the arguments without dashes that it needs."""

    names: frozenset[str]
    of_argparse: bool
    required: tuple[tuple[str, ...], ...] = ()
    positional: tuple[str, ...] = ()

    def accept(self, name: str) -> bool:
        folded = name.replace("-", "_")
        return any(
            option.startswith(name) if self.of_argparse else option == folded
            for option in self.names
        )

    def required_beside(self, given: Sequence[str]) -> list[str]:
        """Return the required options that none of the given names means, each by its longest
        name."""
        return [
            max(option, key=len)
            for option in self.required
            if not any(Options(frozenset(option), self.of_argparse).accept(word) for word in given)
        ]


def options_of_script(text: str) -> Options | None:
    """Return the script's options, or None if the script may have other options.

    The options are certain if the script creates a single `argparse.ArgumentParser`, adds each
    option by literal names, passes the parser to no function, and calls `parse_args()` at module
    level or in a function that is called by name. They are certain, too, if it calls
    `runtime.arguments` in such a place, with a dataclass of its own.
    """
    try:
        tree, nodes = _parse(text)
        _require_plain(nodes)
        return _fields(tree, nodes) or _read(tree, nodes)
    except (_NotCertain, SyntaxError, RecursionError):
        return None


def _fields(tree: ast.Module, nodes: list[ast.AST]) -> Options | None:
    """Return the fields of the dataclass with which the script calls `runtime.arguments`; None if
    it does not."""
    named = [node for node in nodes if isinstance(node, ast.Call) and _name_of(node) == "arguments"]
    calls = [node for node in named if ast.unparse(node.func) == "runtime.arguments"]
    if not calls:
        return None
    is_plain = all(
        len(call.args) == 1 and {word.arg for word in call.keywords} <= {"at_least"}
        for call in calls
    )
    names = [{node.id for node in ast.walk(call) if isinstance(node, ast.Name)} for call in calls]
    classes = [
        node
        for node in nodes
        if isinstance(node, ast.ClassDef) and all(node.name in each for each in names)
    ]
    if (
        not is_plain
        or len(classes) != 1
        or classes[0].bases
        or not _is_reached(calls[0], tree, nodes)
    ):
        raise _NotCertain
    fields = {
        ast.unparse(line.target): line.value
        for line in classes[0].body
        if isinstance(line, ast.AnnAssign)
    }
    # and no object that has values already
    is_class = all(isinstance(call.args[0], ast.Name) for call in calls)
    required = [(name,) for name, default in fields.items() if default is None and is_class]
    return Options(frozenset(fields), False, tuple(required))


def _read(tree: ast.Module, nodes: list[ast.AST]) -> Options:
    names = _imported(nodes)
    parsers = [
        node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) in names
    ]
    if len(parsers) != 1 or not {word.arg for word in parsers[0].keywords} <= _TEXTS_OF_HELP:
        raise _NotCertain
    holders = {_holder(parsers[0], nodes)}
    options, required, positional = {"help", "h"}, list[tuple[str, ...]](), list[str]()
    while True:  # a group of options is filled like the parser
        calls = list(_calls_of(holders, nodes))
        groups = {_holder(call, nodes) for name, call in calls if name in _FILLS - {"add_argument"}}
        if groups <= holders:
            break
        holders |= groups
    for name, call in calls:
        if name == "add_argument":
            own = tuple(_names(call))
            options.update(own)
            if own and any(
                word.arg == "required" and ast.unparse(word.value) == "True"
                for word in call.keywords
            ):
                required.append(own[::2])  # without their negations
            if call.args and not own and not any(word.arg == "nargs" for word in call.keywords):
                positional.append(ast.literal_eval(call.args[0]))
    reads = [call for name, call in calls if name == _READS]
    if (
        len(reads) != 1
        or reads[0].args
        or reads[0].keywords
        or not _is_reached(reads[0], tree, nodes)
    ):
        raise _NotCertain
    return Options(frozenset(options), True, tuple(required), tuple(positional))


def _require_plain(nodes: list[ast.AST]) -> None:
    """Refuse what may add options, or catch the `SystemExit` of an unknown option."""
    # as in `[*launcher, *sys.argv]`
    copied = {id(node.value) for node in nodes if isinstance(node, ast.Starred)}
    for node in (node for node in nodes if type(node) in _ADDING and id(node) not in copied):
        is_star = isinstance(node, ast.ImportFrom) and any(
            alias.name == "*" for alias in node.names
        )
        is_argv = isinstance(node, ast.Attribute) and node.attr in (
            "argv",
            "orig_argv",
            "parse_known_args",
        )
        is_caught = isinstance(node, ast.ExceptHandler) and (
            node.type is None
            or any(isinstance(item, ast.Name) and item.id in _EXITS for item in ast.walk(node.type))
        )
        if is_star or is_argv or is_caught or (isinstance(node, ast.alias) and node.name == "argv"):
            raise _NotCertain


_ADDING = frozenset((ast.ImportFrom, ast.Attribute, ast.ExceptHandler, ast.alias))
_EXITS = ("SystemExit", "BaseException")


def _imported(nodes: list[ast.AST]) -> set[str]:
    """Return the names of the class `ArgumentParser` in the script, such as
    `argparse.ArgumentParser` or an alias."""
    whole = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names = {
        f"{alias.asname or alias.name}.ArgumentParser"
        for alias in whole
        if alias.name == "argparse"
    }
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "argparse" and not node.level:
            names.update(
                alias.asname or alias.name for alias in node.names if alias.name == "ArgumentParser"
            )
    return names


def _holder(call: ast.Call, nodes: list[ast.AST]) -> str:
    """Return the name to which the result of a call is assigned, if the script binds that name only
    there."""
    for node in nodes:
        if isinstance(node, ast.Assign) and node.value is call and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name) and _bindings(target.id, nodes) == 1:
                return target.id
    raise _NotCertain


def _bindings(name: str, nodes: list[ast.AST]) -> int:
    return sum(
        (isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load))
        or (isinstance(node, ast.arg) and node.arg == name)
        or (isinstance(node, ast.alias) and (node.asname or node.name) == name)
        or (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and node.name == name
        )
        for node in nodes
    )


def _calls_of(holders: set[str], nodes: list[ast.AST]) -> Iterator[tuple[str, ast.Call]]:
    """Yield the method calls on the parser and its groups, if the script uses both for nothing
    else."""
    called = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
    methods = {
        id(node.value): node
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in holders:
            method = methods.get(id(node))
            call = called.get(id(method)) if method is not None else None
            if method is None or call is None or method.attr not in _FILLS | _HARMLESS:
                raise _NotCertain
            yield method.attr, call


def _names(call: ast.Call) -> Iterator[str]:
    """Yield the option names, without dashes, of one `add_argument` call, if the call's text shows
    them all."""
    words = {word.arg: word.value for word in call.keywords}
    if None in words or not isinstance(words.get("nargs", ast.Constant("?")), ast.Constant):
        raise _NotCertain
    # takes every option that follows
    if getattr(words.get("nargs"), "value", None) in ("...", "A..."):
        raise _NotCertain
    for word in call.args:
        if not isinstance(word, ast.Constant) or not isinstance(word.value, str):
            raise _NotCertain
        if word.value.startswith("-"):
            yield word.value.lstrip("-")
            yield f"no-{word.value.lstrip('-')}"  # of a BooleanOptionalAction


def _is_reached(call: ast.Call, tree: ast.Module, nodes: list[ast.AST]) -> bool:
    """Return whether the call is at module level, or in a function that is called by its name."""
    names = {
        node.func.id
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    place = (call.lineno, call.col_offset)
    for node in tree.body:
        if (
            (node.lineno, node.col_offset)
            <= place
            < (node.end_lineno or 0, node.end_col_offset or 0)
        ):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                return node.name in names
            return not isinstance(node, ast.ClassDef)
    return False
