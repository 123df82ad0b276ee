"""What a training script and its own modules show by their syntax: whether the processes of a run
work together, where the script saves files, which packages it cannot do without, and which options
it accepts."""

from __future__ import annotations

import ast
import posixpath
import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from itertools import chain
from typing import NamedTuple, TypeVar

from cloudtrain.documents.document import parse_python
from cloudtrain.runtime.torchrun_words import is_module, words_of_script

_SIGNS = frozenset(
    "distributed distribute DistributedDataParallel DistributedSampler DDP FSDP "
    "FullyShardedDataParallel fully_shard init_process_group init_distributed "
    "detect_environment instance_group local_rank world_size get_rank get_world_size".split()
)
"""Names of a script whose processes work together, from torch and from `cloudtrain.runtime`."""

_VARIABLES = frozenset(
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR TF_CONFIG "
    "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_SIZE PMI_RANK "
    "SLURM_PROCID SLURM_LOCALID SM_HOSTS SM_CURRENT_HOST local_rank local-rank".split()
)
"""Variables and options from which a script reads its rank."""

_PLAIN = frozenset(
    "torch torchvision torchaudio numpy pandas scipy sklearn PIL cv2 matplotlib seaborn tqdm "
    "yaml datasets transformers tokenizers safetensors einops h5py joblib wandb tensorboard "
    "tensorboardX mlflow requests rich click cloudtrain".split()
)
"""Packages that start and join no processes by themselves. Classes of transformers such as
`Trainer` do."""

_LIBRARIES = frozenset("accelerate lightning pytorch_lightning transformers trl".split())
"""Packages that train in several processes if a launcher has started them, and in one process
otherwise."""

_OF_PERSONS = frozenset(("get_ipython", "display", "input"))
"""Functions that need a person or a notebook."""

_JOINING_CLASSES = ("Trainer", "TrainingArguments", "HfArgumentParser")
"""Ends of the names of classes of transformers that join other processes."""

_DYNAMIC = frozenset(("importlib", "runpy", "subprocess"))
"""Modules that run code which the script does not show."""

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
    unreadable: tuple[tuple[str, int, str], ...] = ()
    """The file and the line of each text that no Python reads, with the reason."""
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
    for folder in ("", *str(python_path).split(":")):
        for end in ("/__main__.py", ".py"):
            file = posixpath.join(folder, path + end)
            if is_file(file):
                return file
    return None


class _Import(NamedTuple):
    """One package or module that a statement imports."""

    statement: ast.Import | ast.ImportFrom
    package: str
    """The first part of its name; empty for a relative import."""
    files: list[str]
    """The files that it could be among the script's own modules."""


@dataclass
class _Program:
    """A script with its own modules."""

    nodes: dict[str, list[ast.AST]] = field(default_factory=dict)
    """The nodes of the script and of each module, by the path of its file."""
    packages: set[str] = field(default_factory=set)
    own_packages: frozenset[str] = frozenset()
    """The packages that the script itself imports."""
    needs: dict[str, tuple[str, int]] = field(default_factory=dict)
    unreadable: list[tuple[str, int, str]] = field(default_factory=list)
    attended: list[tuple[str, int, str]] = field(default_factory=list)

    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """Yield each call with the path of its file."""
        for path, nodes in self.nodes.items():
            for call in _all_of(ast.Call, nodes):
                yield path, call


_Node = TypeVar("_Node", bound=ast.AST)


def _all_of(kind: type[_Node], nodes: Iterable[ast.AST]) -> list[_Node]:
    """Return the nodes of one type."""
    return [node for node in nodes if isinstance(node, kind)]


def read_syntax(script: str, read: Callable[[str], str | None]) -> ScriptSyntax:
    """Read a script and the modules beside it that it imports. `read` returns the text of the file
    at a path such as `src/train.py`, or None if there is none, and raises SyntaxError if Python
    cannot decode it. Modules that cannot be parsed are unknown packages."""
    program = _read_program(script, read)
    nodes = list(chain.from_iterable(program.nodes.values()))
    words = [node for node in nodes if type(node) in _WORDS]
    calls = list(program.calls())

    defaults: dict[str, str] = {}
    for _, call in calls:
        defaults.update(_defaults(call))
    values = _assigned(nodes)
    saves = list(_saves(calls, values, defaults))

    # The package `integrations` sets the folder itself.
    names = {node.id for node in _all_of(ast.Name, words)}
    if "integrations" not in names:
        for path, call in calls:
            if _parses_output_dir(call):
                saves.append(Save(path, call.lineno, "output_dir", ""))
                defaults = {"output_dir": "trainer_output"} | defaults

    asks = any(map(_asks, nodes))
    return ScriptSyntax(
        packages=program.own_packages,
        is_alone=_is_alone(program.packages, words, calls),
        needs_no_launcher=asks or not program.packages.isdisjoint(_LIBRARIES),
        saves=tuple(saves),
        needs=program.needs,
        defaults=defaults,
        outside=tuple(_outside(program, set(defaults.values()))),
        unreadable=tuple(program.unreadable),
        attended=tuple(program.attended),
        written=tuple(_written(calls, values)),
    )


def _read_program(script: str, read: Callable[[str], str | None]) -> _Program:
    """Read the script, the modules that it imports, the modules that they import, and so on."""
    program = _Program()

    @cache
    def is_own_module(file: str) -> bool:
        try:
            return read(file) is not None
        except SyntaxError:
            return True

    folder = posixpath.dirname(script)
    certain = {script}  # the files that are imported whenever the script starts
    seen: set[str] = set()
    waiting = deque([script])
    while waiting and len(program.nodes) < _MOST_MODULES:
        path = waiting.popleft()  # the nearest modules first
        if path in seen:
            continue
        seen.add(path)
        try:
            text = read(path)
            if text is None:
                continue
            module, nodes = _parse(text)
        except (SyntaxError, RecursionError) as error:
            program.packages.add(path)
            if isinstance(error, SyntaxError) and path in certain and not _may_be_new(error):
                program.unreadable.append((path, error.lineno or 1, error.msg))
            continue
        program.nodes[path] = nodes

        at_top = set(map(id, module.body))
        for found in _imports(nodes, path, folder):
            modules: list[str] = []
            if found.package != "cloudtrain":  # every bundle has its runtime
                modules = list(filter(is_own_module, found.files))
            waiting += modules
            at_start = path in certain and id(found.statement) in at_top
            if at_start:
                certain.update(modules)
            if found.package and not modules:
                program.packages.add(found.package)
                if at_start:
                    program.needs.setdefault(found.package, (path, found.statement.lineno))

        if path == script:
            program.own_packages = frozenset(program.packages)
        if path in certain:
            for line, name in _attended(module.body, nodes, path == script):
                program.attended.append((path, line, name))
    return program


_NEW = re.compile(
    r"\s*(?:type|match|case|except|def \w+\[|class \w+\[)|.*\b(?:[rf]{1,2}|t)[\"']|.*\*"
)
"""The beginnings of lines that a newer Python than this one may read."""


def _may_be_new(error: SyntaxError) -> bool:
    """Return whether a newer Python may read the line, or the line is unknown."""
    return error.lineno is None or _NEW.match((error.text or "").lower()) is not None


def _is_alone(packages: set[str], words: list[ast.AST], calls: list[tuple[str, ast.Call]]) -> bool:
    """Return whether a program with these imports, names and calls trains in one process."""
    if "torch" not in packages or not packages.isdisjoint(_DYNAMIC):
        return False
    if any(map(_joins, words)):
        return False
    if packages - sys.stdlib_module_names <= _PLAIN:
        return True
    # `loss.backward()`, but not `accelerator.backward(loss)`, with which a library trains
    methods = {getattr(call.func, "attr", "") for _, call in calls if not call.args}
    return "backward" in methods


def _assigned(nodes: list[ast.AST]) -> dict[str, list[ast.expr]]:
    """Return the expressions that are assigned to each name."""
    values: dict[str, list[ast.expr]] = {}
    for node in _all_of(ast.Assign, nodes):
        for target in _all_of(ast.Name, node.targets):
            values.setdefault(target.id, []).append(node.value)
    return values


def _saves(
    calls: list[tuple[str, ast.Call]],
    values: Mapping[str, list[ast.expr]],
    defaults: Mapping[str, str],
) -> Iterator[Save]:
    """Yield each call that saves a model to a path of which the beginning is known."""
    options = {name.replace("-", "_"): name for name in defaults}
    for path, call in calls:
        place = _place(_saved_to(call), values, options)
        if place is not None and place != (None, ""):
            yield Save(path, call.lineno, *place)


def _outside(program: _Program, defaults: set[str]) -> Iterator[tuple[str, int, str]]:
    """Yield the file, the line and the text of each constant that leads out of the folder."""
    for path, nodes in program.nodes.items():
        for node in _all_of(ast.Constant, nodes):
            text = node.value
            if isinstance(text, str) and text.startswith("../") and text not in defaults:
                yield path, node.lineno, text


def _written(
    calls: list[tuple[str, ast.Call]], values: Mapping[str, list[ast.expr]]
) -> Iterator[tuple[str, int, str]]:
    """Yield the file, the line and the folder of each call that writes below a relative folder;
    none if the program makes folders at all."""
    called = {_name_of(call) for _, call in calls}
    if not called.isdisjoint(("mkdir", "makedirs")):
        return
    for path, call in calls:
        place = _place(_written_to(call), values, {})
        if place is None:
            continue
        folder = posixpath.dirname(posixpath.normpath(place[1]))
        if folder and folder[0] not in "/.~$" and "..." not in folder:
            yield path, call.lineno, folder


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
    called_anywhere = {_name_of(call) for call in _all_of(ast.Call, nodes)}
    if called_anywhere.isdisjoint(_OF_PERSONS):
        return

    # A module may bind one of these names to something else.
    functions = {item.name: item.body for item in _all_of(ast.FunctionDef, body)}
    bound = _bound_names(nodes) | functions.keys()
    if "*" in bound:
        return

    waiting = deque(body)
    while waiting:
        item = waiting.popleft()
        inside = list(ast.walk(item))
        entered = _entered(item, is_main)
        may_skip = any(isinstance(node, _PERHAPS) for node in inside)
        if entered is not None:
            waiting.extendleft(reversed(entered))
        elif isinstance(item, ast.Expr | ast.Assign | ast.Return) and not may_skip:
            called: list[ast.stmt] = []
            for call in _all_of(ast.Call, inside):
                name = ast.unparse(call.func)
                if name in _OF_PERSONS - bound:
                    yield call.lineno, name
                called += functions.pop(name, ())  # each once, for functions that call themselves
            waiting.extendleft(reversed(called))
        elif _may_end(inside):
            return


_PERHAPS = (ast.IfExp, ast.BoolOp, ast.Lambda)
"""Expressions of which a part may not be evaluated."""


def _entered(item: ast.stmt, is_main: bool) -> list[ast.stmt] | None:
    """Return the body of a statement whose body certainly runs; None for others."""
    if isinstance(item, ast.If) and is_main and "__main__" in ast.unparse(item.test):
        return item.body
    if isinstance(item, ast.With) and "suppress" not in ast.unparse(item.items[0]):
        return item.body
    return None


def _may_end(inside: list[ast.AST]) -> bool:
    """Return whether a statement with these nodes may end the function or the script."""
    if _all_of(ast.FunctionDef, inside):
        return False
    for node in inside:
        if isinstance(node, ast.Return | ast.Raise):
            return True
        if isinstance(node, ast.Name) and node.id in ("sys", "exit"):
            return True
    return False


def _bound_names(nodes: list[ast.AST]) -> set[str]:
    """Return the names that a module binds, without those of its functions; `*` for all names of
    another module."""
    bound: set[str] = set()
    imported: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.ImportFrom):
            imported.update(alias.asname or alias.name for alias in node.names)
    return bound | imported - {"get_ipython"}  # it returns None outside of a notebook


def _imports(nodes: list[ast.AST], path: str, folder: str) -> Iterator[_Import]:
    """Yield each import of the module at `path`. The script is in `folder`."""
    at_top = [folder, ""]
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                package = alias.name.partition(".")[0]
                yield _Import(node, package, _module_files([alias.name], at_top))
        elif isinstance(node, ast.ImportFrom):
            # Each name may be a module itself: `from package import module`.
            start = [node.module] if node.module else []
            names = start + [".".join([*start, alias.name]) for alias in node.names]
            if node.level:
                above = [".."] * (node.level - 1)
                base = posixpath.join(posixpath.dirname(path), *above)
                yield _Import(node, "", _module_files(names, [base]))
            else:
                package = names[0].partition(".")[0]
                yield _Import(node, package, _module_files(names, at_top))


def _module_files(names: Sequence[str], folders: Sequence[str]) -> list[str]:
    """Return the files of modules with these names that could be in the folders."""
    files = []
    for folder in folders:
        for name in names:
            stem = posixpath.normpath(posixpath.join(folder, *name.split(".")))
            files += [f"{stem}.py", f"{stem}/__init__.py"]
    return files


_WORDS = frozenset(
    (ast.Constant, ast.Name, ast.Attribute, ast.arg, ast.keyword, ast.Import, ast.ImportFrom)
)
"""The nodes that hold names or texts."""


def _joins(node: ast.AST) -> bool:
    """Return whether a node is a sign that the script's processes work together."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.lstrip("-") in _VARIABLES
    names = _names_in(node)
    if not names.isdisjoint(_SIGNS):
        return True
    owner = getattr(getattr(node, "value", None), "id", "")
    of_transformers = owner == "transformers" or "transformers" in names
    return of_transformers and any(name.endswith(_JOINING_CLASSES) for name in names)


def _names_in(node: ast.AST) -> set[str]:
    """Return the name that a node holds, or all parts of the names that it imports."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        module = getattr(node, "module", None) or ""
        names = [module, *(alias.name for alias in node.names)]
        return {*".".join(names).split(".")}
    for field_name in ("id", "attr", "arg"):
        name = getattr(node, field_name, None)
        if name:
            return {name}
    return set()


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
    if getattr(call.func, "attr", "") != "add_argument":
        return
    names = [str(word.value) for word in _all_of(ast.Constant, call.args)]
    long_names = [name for name in names if name.startswith("--")]
    if not long_names:
        return
    for word in call.keywords:
        if word.arg == "default":
            match word.value:
                case ast.Constant(value=str(default)):
                    yield long_names[0].removeprefix("--"), default


def _saved_to(call: ast.Call) -> ast.expr | None:
    """Return the argument that names where a call saves a model; None for other calls."""
    last = _name_of(call)
    if last.endswith("TrainingArguments"):
        last = "TrainingArguments"
    if last not in _SAVING:
        return None

    name = ast.unparse(call.func)
    is_known = name in _SAVES
    if not is_known and last not in _SAVES:  # such as `dump` of another package than joblib
        return None
    position, key = _SAVES[name if is_known else last]
    path: ast.expr | None = None
    if position < len(call.args):
        path = call.args[position]
    for word in call.keywords:
        if word.arg == key:
            path = word.value
    if last == "save" and not is_known:  # of Keras
        text = ast.unparse(path or call)
        return path if text[:-1].endswith((".keras", ".h5")) else None
    return path


def _parses_output_dir(call: ast.Call) -> bool:
    """Return whether a call makes a parser that has the option `--output_dir` of Hugging Face's
    trainers."""
    if _name_of(call) not in ("HfArgumentParser", "TrlParser"):
        return False
    text = ast.unparse(call)
    return any(name in text for name in _ARGUMENT_CLASSES)


_ARGUMENT_CLASSES = ("TrainingArguments", "SFTConfig", "DPOConfig", "GRPOConfig")
"""The classes with the arguments of Hugging Face's trainers."""

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
    **dict.fromkeys(_ARGUMENT_CLASSES, (0, "output_dir")),
}
"""Maps each function that saves a model to the position and the name of the argument with the
path."""

_SAVING = frozenset(name.rpartition(".")[2] for name in _SAVES)


def _written_to(call: ast.Call) -> ast.expr | None:
    """Return the argument that names the file which a call writes, without making its folder; None
    for other calls."""
    name = _name_of(call)
    if name in ("save", "dump"):
        of_package = ast.unparse(call.func).startswith(("torch.", "joblib.", "np.", "numpy."))
        return _saved_to(call) if of_package else None
    writes = name in ("savefig", "to_csv")
    if name == "open":
        keywords = [word.value for word in call.keywords if word.arg == "mode"]
        for mode in call.args[1:2] + keywords:
            text = str(getattr(mode, "value", "r"))
            writes = text.startswith(("w", "a", "x"))
    return call.args[0] if writes and call.args else None


def _place(
    node: ast.expr | None,
    values: Mapping[str, list[ast.expr]],
    options: Mapping[str, str],
    depth: int = 8,
) -> tuple[str | None, str] | None:
    """Return the option with which a path begins, if any, and the rest of the path; None if the
    beginning is unknown. `values` are the expressions that are assigned to names, `options` the
    script's options by the attributes that hold their values."""
    if depth == 0:  # a name may be assigned to itself
        return None
    match node:
        case ast.Constant(value=str(text)):
            return None, text
        case ast.Attribute(value=ast.Name(), attr=attr):
            # The value of an option, such as `args.output_dir`.
            return (options[attr], "") if attr in options else None
    parts, between = _parts(node, values)
    if not parts:
        return None

    start, *rest = [_place(part, values, options, depth - 1) for part in parts]
    if start is None:
        return None
    option, path = start
    for place in rest:
        text = "..." if place is None or place[0] else place[1]
        path = posixpath.join(path, text) if between else path + text
    return option, path


def _parts(
    node: ast.expr | None, values: Mapping[str, list[ast.expr]]
) -> tuple[Sequence[ast.expr], str]:
    """Return the expressions that a path is made of, in order, and what stands between them; no
    expressions if `node` makes no path."""
    match node:
        case ast.Name(id=name) if len(values.get(name, ())) == 1:
            return values[name], "/"
        case ast.FormattedValue(value=value):
            return [value], "/"
        case ast.JoinedStr(values=texts):
            return texts, ""
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return [left, right], "/"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [left, right], ""
        case ast.Call(func=ast.Attribute(value=value, attr="joinpath"), args=arguments):
            return [value, *arguments], "/"
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=arguments):
            if name in _OF_PARTS:
                return arguments, "/"
    return [], ""


_OF_PARTS = frozenset(("join", "Path", "str", "fspath", "expanduser"))
"""Functions of a path, or of its parts."""


# The options of a script that uses argparse or `runtime.arguments`, if its text determines them
# all.

_GROUPS = frozenset(("add_argument_group", "add_mutually_exclusive_group"))
_FILLS = _GROUPS | {"add_argument"}
_READS = "parse_args"
_HARMLESS = frozenset(
    (_READS, "set_defaults", "get_default", "error", "exit", "print_help", "print_usage")
)


_TEXTS_OF_HELP = {"description", "prog", "usage", "epilog", "formatter_class"}
"""Arguments of `ArgumentParser` that add no options."""


class _NotCertain(Exception):
    """The options cannot all be determined from the script's text."""


@dataclass(frozen=True)
class Options:
    """The names of a script's options, without dashes. argparse takes beginnings of them,
    `runtime.arguments` does not, but takes `-` for `_`. `required` has the names of each option
    without which the script ends, and `positional` the arguments without dashes that it needs."""

    names: frozenset[str]
    of_argparse: bool
    required: tuple[tuple[str, ...], ...] = ()
    positional: tuple[str, ...] = ()

    @cached_property
    def _understood(self) -> set[str]:
        """Every name that the script understands."""
        return self._words_for(self.names)

    def _words_for(self, options: Iterable[str]) -> set[str]:
        """Return every word that the script understands as one of the options."""
        if not self.of_argparse:
            return set(options)
        return {option[:length] for option in options for length in range(len(option) + 1)}

    def _word(self, name: str) -> str:
        return name if self.of_argparse else name.replace("-", "_")

    def accept(self, name: str) -> bool:
        """Return whether the script takes `--NAME`."""
        return self._word(name) in self._understood

    def required_beside(self, given: Iterable[str]) -> list[str]:
        """Return the required options that none of the given names means, each by its longest
        name."""
        words = set(map(self._word, given))
        missing = []
        for option in self.required:
            if words.isdisjoint(self._words_for(option)):
                missing.append(max(option, key=len))
        return missing


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
        return _options_of_dataclass(tree, nodes) or _options_of_parser(tree, nodes)
    except (_NotCertain, SyntaxError, RecursionError):
        return None


def _options_of_dataclass(tree: ast.Module, nodes: list[ast.AST]) -> Options | None:
    """Return the fields of the dataclass with which the script calls `runtime.arguments`; None if
    it does not."""
    calls = _calls_to({"runtime.arguments"}, nodes)
    if not calls:
        return None
    for call in calls:
        words = {word.arg for word in call.keywords}
        if len(call.args) != 1 or not words <= {"at_least"}:
            raise _NotCertain

    # Each call names the class, as in `arguments(Options)` and `arguments(Options(lr=1))`.
    shared = set.intersection(*map(_names_used, calls))
    classes = [node for node in _all_of(ast.ClassDef, nodes) if node.name in shared]
    if len(classes) != 1 or classes[0].bases:
        raise _NotCertain
    if not _is_reached(calls[0], tree, nodes):
        raise _NotCertain

    lines = _all_of(ast.AnnAssign, classes[0].body)
    fields = {ast.unparse(line.target): line.value for line in lines}
    required: list[tuple[str, ...]] = []
    # An object may have values already; only a class has none.
    if all(isinstance(call.args[0], ast.Name) for call in calls):
        required = [(name,) for name, default in fields.items() if default is None]
    return Options(frozenset(fields), False, tuple(required))


def _calls_to(functions: Collection[str], nodes: list[ast.AST]) -> list[ast.Call]:
    """Return the calls of functions with these names, such as `argparse.ArgumentParser`."""
    last_parts = {function.rpartition(".")[2] for function in functions}
    found = []
    for call in _all_of(ast.Call, nodes):
        # Most calls have other names, and `unparse` takes long.
        if _name_of(call) in last_parts and ast.unparse(call.func) in functions:
            found.append(call)
    return found


def _names_used(call: ast.Call) -> set[str]:
    """Return the names in a call, such as those of its function and of its arguments."""
    return {node.id for node in _all_of(ast.Name, ast.walk(call))}


def _options_of_parser(tree: ast.Module, nodes: list[ast.AST]) -> Options:
    """Return the options that the script adds to its parser."""
    parsers = _calls_to(_parser_classes(nodes), nodes)
    if len(parsers) != 1:
        raise _NotCertain
    parser = parsers[0]
    if not {word.arg for word in parser.keywords} <= _TEXTS_OF_HELP:
        raise _NotCertain

    calls = _calls_on(parser, nodes)
    reads = [call for name, call in calls if name == _READS]
    if len(reads) != 1 or reads[0].args or reads[0].keywords:
        raise _NotCertain
    if not _is_reached(reads[0], tree, nodes):
        raise _NotCertain

    options = {"help", "h"}
    required: list[tuple[str, ...]] = []
    positional: list[str] = []
    for name, call in calls:
        if name == "add_argument":
            own = tuple(_option_names(call))
            options.update(own)
            words = {word.arg: ast.unparse(word.value) for word in call.keywords}
            if own and words.get("required") == "True":
                required.append(own[::2])  # without their negations
            if call.args and not own and "nargs" not in words:
                positional.append(ast.literal_eval(call.args[0]))
    return Options(frozenset(options), True, tuple(required), tuple(positional))


def _require_plain(nodes: list[ast.AST]) -> None:
    """Refuse what may add options, or catch the `SystemExit` of an unknown option."""
    # as in `[*launcher, *sys.argv]`
    copied = {id(node.value) for node in _all_of(ast.Starred, nodes)}
    for node in nodes:
        if _may_add(node) and id(node) not in copied:
            raise _NotCertain


def _may_add(node: ast.AST) -> bool:
    """Return whether a node may add options that the parser's calls do not show, or catch
    `SystemExit`."""
    if isinstance(node, ast.Attribute):
        return node.attr in ("argv", "orig_argv", "parse_known_args")
    if isinstance(node, ast.ImportFrom):
        return any(alias.name == "*" for alias in node.names)
    if isinstance(node, ast.alias):
        return node.name == "argv"
    if isinstance(node, ast.ExceptHandler):
        if node.type is None:
            return True
        return any(item.id in _EXITS for item in _all_of(ast.Name, ast.walk(node.type)))
    return False


_EXITS = ("SystemExit", "BaseException")


def _parser_classes(nodes: list[ast.AST]) -> set[str]:
    """Return the names of the class `ArgumentParser` in the script, such as
    `argparse.ArgumentParser` or an alias."""
    names: set[str] = set()
    for node in _all_of(ast.Import, nodes):
        for alias in node.names:
            if alias.name == "argparse":
                names.add(f"{alias.asname or alias.name}.ArgumentParser")
    for from_module in _all_of(ast.ImportFrom, nodes):
        if from_module.module == "argparse" and not from_module.level:
            for alias in from_module.names:
                if alias.name == "ArgumentParser":
                    names.add(alias.asname or alias.name)
    return names


def _holders(nodes: list[ast.AST]) -> dict[int, str]:
    """Return the name to which each value is assigned, by the value's id, if the script binds that
    name only there."""
    bindings = Counter(map(_bound_by, nodes))
    holders = {}
    for node in _all_of(ast.Assign, nodes):
        for target in _all_of(ast.Name, node.targets):
            if len(node.targets) == 1 and bindings[target.id] == 1:
                holders[id(node.value)] = target.id
    return holders


def _bound_by(node: ast.AST) -> str | None:
    """Return the name to which a node gives a value; None for other nodes."""
    if isinstance(node, ast.Name):
        return None if isinstance(node.ctx, ast.Load) else node.id
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.alias):
        return node.asname or node.name
    is_definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return getattr(node, "name", None) if is_definition else None


def _calls_on(parser: ast.Call, nodes: list[ast.AST]) -> list[tuple[str, ast.Call]]:
    """Return the method calls on the parser and its groups, in the order of the text, if the script
    uses both for nothing else."""
    # `parser.add_argument(...)`: the attribute by its owner, and the call by the attribute
    holders = _holders(nodes)
    methods: dict[int, ast.Attribute] = {}
    calls: dict[int, ast.Call] = {}
    uses: dict[str, list[ast.Name]] = {}
    for node in nodes:
        if isinstance(node, ast.Attribute):
            methods[id(node.value)] = node
        elif isinstance(node, ast.Call):
            calls[id(node.func)] = node
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            uses.setdefault(node.id, []).append(node)

    found: list[tuple[str, ast.Call]] = []
    filled = [parser]
    for owner in filled:  # a group of options is filled like the parser, and the list grows
        holder = holders.get(id(owner))
        if holder is None:
            raise _NotCertain
        for name in uses.get(holder, ()):
            method = methods.get(id(name))
            call = calls.get(id(method))
            if method is None or call is None:
                raise _NotCertain
            if method.attr not in _FILLS | _HARMLESS:
                raise _NotCertain
            found.append((method.attr, call))
            if method.attr in _GROUPS:
                filled.append(call)
    return sorted(found, key=lambda item: (item[1].lineno, item[1].col_offset))


def _option_names(call: ast.Call) -> Iterator[str]:
    """Yield the option names, without dashes, of one `add_argument` call, if the call's text shows
    them all."""
    words = {word.arg: word.value for word in call.keywords}
    nargs = words.get("nargs", ast.Constant("?"))
    if None in words or not isinstance(nargs, ast.Constant):  # `**words`
        raise _NotCertain
    if nargs.value in ("...", "A..."):  # takes every option that follows
        raise _NotCertain
    for word in call.args:
        if not isinstance(word, ast.Constant) or not isinstance(word.value, str):
            raise _NotCertain
        if word.value.startswith("-"):
            name = word.value.lstrip("-")
            yield name
            yield f"no-{name}"  # of a BooleanOptionalAction


def _is_reached(call: ast.Call, tree: ast.Module, nodes: list[ast.AST]) -> bool:
    """Return whether the call is at module level, or in a function that is called by its name."""
    place = (call.lineno, call.col_offset)
    for node in tree.body:
        start = (node.lineno, node.col_offset)
        end = (node.end_lineno or 0, node.end_col_offset or 0)
        if start <= place < end:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions = [item.func for item in _all_of(ast.Call, nodes)]
                return node.name in {getattr(function, "id", "") for function in functions}
            return not isinstance(node, ast.ClassDef)
    return False
