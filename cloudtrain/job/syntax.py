"""What a training script and its own modules show by their syntax: whether the processes of a run
work together, where the script saves files, which packages it needs, and which options
it accepts."""

from __future__ import annotations

import ast
import posixpath
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from itertools import chain
from typing import Any, NamedTuple, TypeVar

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


Spot = tuple[str, int, str]
"""A file, a line in it, and what is there."""

_Read = Callable[[str], "str | None"]
"""Returns the text of the file at a path such as `src/train.py`, or None if there is none, and
raises SyntaxError if Python cannot decode it."""

_Calls = list[tuple[str, ast.Call]]
"""Calls with the files that they stand in."""

_Values = Mapping[str, list[ast.expr]]
"""The expressions that are assigned to names."""


class Save(NamedTuple):
    """A call that saves a model to `path`, or to `path` below the value of the script's option
    `option`. Three dots replace what only the running script knows."""

    file: str
    line: int
    option: str | None
    path: str


@dataclass
class ScriptSyntax:
    """What a script and its own modules show. `options` maps the script's options to their
    defaults, and `defaults` has those that are texts."""

    nodes: dict[str, Nodes] = field(default_factory=dict)
    """The nodes of the script and of each module, by the path of its file."""
    imported: set[str] = field(default_factory=set)
    """All packages that the script and its modules import."""
    packages: frozenset[str] = frozenset()
    """The packages that the script itself imports."""
    why_alone: str = ""
    """Why one process runs the script, as the end of a sentence about it: it imports torch, and
    neither joins other processes nor leaves that to a library, or it starts the others itself.
    Empty if several processes may work together."""
    needs_no_launcher: bool = False
    """Whether the script also works if `python` starts it: it asks whether a launcher has set its
    rank, leaves the processes to a library, or shows no sign of other processes."""
    saves: Sequence[Save] = ()
    needs: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The packages that are imported whenever the script starts, each with the file and line of the
    import."""
    defaults: dict[str, str] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)
    outside: Sequence[Spot] = ()
    """The file, the line and the text of each constant that begins with `../`, except defaults of
    options."""
    unreadable: list[Spot] = field(default_factory=list)
    """The file and the line of each text that no Python reads, with the reason."""
    attended: list[Spot] = field(default_factory=list)
    """The file, the line and the name of each function that needs a person or a notebook, and is
    certainly called."""
    relative: int | None = None
    """The line of the script itself that certainly imports relative to its package."""
    written: Sequence[Spot] = ()
    """The file, the line and the folder of each file that is written below a relative folder that
    no call makes."""
    words: Sequence[ast.AST] = ()
    """The nodes that hold names or texts."""


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


_Node = TypeVar("_Node", bound=ast.AST)


class Nodes(list[ast.AST]):
    """All nodes of modules, sorted by their types once, because many checks ask for one type."""

    @cached_property
    def by_type(self) -> Mapping[type, list[Any]]:
        found: dict[type, list[Any]] = {}
        for node in self:
            found.setdefault(type(node), []).append(node)
        return found


def all_of(kind: type[_Node], nodes: Iterable[ast.AST]) -> list[_Node]:
    """Return the nodes of one type, in their order."""
    if isinstance(nodes, Nodes):
        return nodes.by_type.get(kind, [])
    return [node for node in nodes if isinstance(node, kind)]


def read_syntax(script: str, read: _Read) -> ScriptSyntax:
    """Read a script and the modules beside it that it imports. Modules that cannot be parsed are
    unknown packages."""
    syntax = _read_program(script, read)
    nodes = Nodes(chain.from_iterable(syntax.nodes.values()))
    words: list[ast.AST] = []
    for kind in _WORDS:
        words += all_of(kind, nodes)
    syntax.words = words
    calls: _Calls = []
    for path, own_nodes in syntax.nodes.items():
        calls += [(path, call) for call in all_of(ast.Call, own_nodes)]

    for _, call in calls:
        syntax.options.update(_defaults(call))
    for name, value in syntax.options.items():
        if isinstance(value, str):
            syntax.defaults[name] = value
    values = _assigned(nodes)
    syntax.outside = list(_outside(syntax))
    syntax.written = list(_written(calls, values))
    saves = list(_saves(calls, values, syntax.defaults))
    # The package `integrations` sets the folder itself.
    if "integrations" not in {node.id for node in all_of(ast.Name, nodes)}:
        for path, call in calls:
            if _parses_output_dir(call):
                saves.append(Save(path, call.lineno, "output_dir", ""))
                syntax.defaults.setdefault("output_dir", "trainer_output")
    syntax.saves = saves

    asks = any(map(_asks, [*all_of(ast.Call, nodes), *all_of(ast.Compare, nodes)]))
    joins = any(map(_joins, words))
    # a script without any sign of other processes does not wait for them
    has_library = not syntax.imported.isdisjoint(_LIBRARIES)
    syntax.needs_no_launcher = asks or not joins or has_library
    if "torch" in syntax.imported and not asks and any(_spawns(call) for _, call in calls):
        syntax.why_alone = "starts its processes itself"
    elif not joins and _is_alone(syntax.imported, calls):
        syntax.why_alone = "joins no other process"
    return syntax


def names_of_library(words: Sequence[ast.AST], library: str) -> set[str] | None:
    """Return the names that a script with these words uses of the module `library` and its
    submodules, with those of all imports and keywords, and `library` itself if it is imported.
    Return None if something else could use the library: code that the script does not show, or a
    trainer of another library."""
    owners: set[str] = set()
    names: set[str] = set()
    for node in words:
        if type(node) is not ast.Import and type(node) is not ast.ImportFrom:
            continue
        names |= _names_in(node)
        start = getattr(node, "module", None)
        for alias in node.names:
            module = f"{start}.{alias.name}" if start else alias.name
            if f"{module}.".startswith(f"{library}."):
                bound = alias.name if start else module.partition(".")[0]
                owners.add(alias.asname or bound)
                names.add(library)

    if not names.isdisjoint({*_DYNAMIC, "*"}) or any(name.endswith("Trainer") for name in names):
        return None
    # Without `as`, the script may have assigned the module to another name.
    may_be_renamed = library.partition(".")[0] in owners
    for node in words if owners else ():
        if type(node) is ast.keyword and node.arg:
            names.add(node.arg)
        elif type(node) is ast.Attribute and (may_be_renamed or _owner_of(node) in owners):
            names.add(node.attr)
    return names


def _owner_of(attribute: ast.Attribute) -> str:
    """Return the name before the first dot, `smp` of `smp.nn.Linear`; empty if it is no name."""
    value: ast.expr = attribute.value
    while isinstance(value, ast.Attribute):
        value = value.value
    return value.id if isinstance(value, ast.Name) else ""


def _read_program(script: str, read: _Read) -> ScriptSyntax:
    """Read the script, the modules that it imports, the modules that they import, and so on."""
    syntax = ScriptSyntax()

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
    while waiting and len(syntax.nodes) < _MOST_MODULES:
        path = waiting.popleft()  # the nearest modules first
        if path in seen:
            continue
        seen.add(path)
        try:
            text = read(path)
            if text is None:
                continue
            module, nodes = parse(text)
        except (SyntaxError, RecursionError) as error:
            syntax.imported.add(path)
            if isinstance(error, SyntaxError) and path in certain and not _may_be_new(error):
                syntax.unreadable.append((path, error.lineno or 1, error.msg))
            continue
        syntax.nodes[path] = nodes

        at_top = set(map(id, module.body))
        for statement, package, files in _imports(nodes, path, folder):
            modules: list[str] = []
            if package != "cloudtrain":  # every bundle has its runtime
                modules = list(filter(is_own_module, files))
            waiting += modules
            at_start = path in certain and id(statement) in at_top
            if at_start:
                certain.update(modules)
            if package and not modules:
                syntax.imported.add(package)
                if at_start:
                    syntax.needs.setdefault(package, (path, statement.lineno))
            # a script that sets `__package__` makes itself a part of a package
            is_relative = not package and "__package__" not in text
            if is_relative and at_start and path == script:
                syntax.relative = syntax.relative or statement.lineno

        if path == script:
            syntax.packages = frozenset(syntax.imported)
        if path in certain:
            for line, name in _attended(module.body, nodes, path == script):
                syntax.attended.append((path, line, name))
    return syntax


_NEW = (
    r"\s*(?:type|match|case|except|lazy|(?:async )?def \w+\[|class \w+\[)"
    r"|.*\b(?:[rf]{1,2}|t)[\"']|.*\*"
)
"""The beginnings of lines that a newer Python than this one may read."""


def _may_be_new(error: SyntaxError) -> bool:
    """Return whether a newer Python may read the line, or the line is unknown."""
    return error.lineno is None or re.match(_NEW, (error.text or "").lower()) is not None


def _is_alone(packages: set[str], calls: _Calls) -> bool:
    """Return whether a program with these imports and calls, and without a sign of other processes,
    trains in one process."""
    if "torch" not in packages or not packages.isdisjoint(_DYNAMIC):
        return False
    if packages - sys.stdlib_module_names <= _PLAIN:
        return True
    # `loss.backward()`, but not `accelerator.backward(loss)`, with which a library trains
    methods = {getattr(call.func, "attr", "") for _, call in calls if not call.args}
    return "backward" in methods


def _assigned(nodes: list[ast.AST]) -> dict[str, list[ast.expr]]:
    """Return the expressions that are assigned to each name."""
    values: dict[str, list[ast.expr]] = {}
    for node in all_of(ast.Assign, nodes):
        for target in all_of(ast.Name, node.targets):
            values.setdefault(target.id, []).append(node.value)
    return values


def _saves(
    calls: _Calls,
    values: _Values,
    defaults: Mapping[str, str],
) -> Iterator[Save]:
    """Yield each call that saves a model to a path of which the beginning is known."""
    options = {name.replace("-", "_"): name for name in defaults}
    for path, call in calls:
        place = _place(_saved_to(call), values, options)
        if place is not None and place != (None, ""):
            yield Save(path, call.lineno, *place)


def _outside(syntax: ScriptSyntax) -> Iterator[Spot]:
    """Yield the file, the line and the text of each constant that leads out of the folder."""
    defaults = syntax.defaults.values()
    for path, nodes in syntax.nodes.items():
        for node in all_of(ast.Constant, nodes):
            text = node.value
            if isinstance(text, str) and text.startswith("../") and text not in defaults:
                yield path, node.lineno, text


def _written(calls: _Calls, values: _Values) -> Iterator[Spot]:
    """Yield the file, the line and the folder of each call that writes below a relative folder;
    none if the program makes folders at all."""
    called = {name_of(call) for _, call in calls}
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
def parse(text: str) -> tuple[ast.Module, Nodes]:
    """Return a module and its nodes as `ast.walk` gives them, but those without parts, such as
    `Load` and `Add`, which are half of all. Several rules ask for those of one text."""
    module = parse_python(text)
    nodes = Nodes([module])
    for node in nodes:  # the list grows meanwhile
        for name in node._fields:
            part = getattr(node, name, None)
            if isinstance(part, list):
                nodes += [item for item in part if isinstance(item, ast.AST) and item._fields]
            elif isinstance(part, ast.AST) and part._fields:
                nodes.append(part)
    return module, nodes


def name_of(call: ast.Call) -> str:
    """Return the last part of the name of the called function, `save` of `torch.save`; empty if it
    has no name."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _attended(
    body: list[ast.stmt], nodes: list[ast.AST], is_main: bool
) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each call that certainly runs: at the top, below `__main__`,
    or in a function that is called there, but not in a branch, nor behind one that may end the
    function or the script."""
    called_anywhere = {name_of(call) for call in all_of(ast.Call, nodes)}
    if called_anywhere.isdisjoint(_OF_PERSONS):
        return

    # A module may bind one of these names to something else.
    functions = {item.name: item.body for item in all_of(ast.FunctionDef, body)}
    # That of IPython, which a script may import, returns None outside of a notebook.
    bound = set(map(bound_by, all_of(ast.alias, nodes))) - {"get_ipython"}
    bound.update(functions, map(bound_by, all_of(ast.Name, nodes)))
    bound.update(map(bound_by, all_of(ast.arg, nodes)))
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
            for call in all_of(ast.Call, inside):
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
    if all_of(ast.FunctionDef, inside):
        return False
    for node in inside:
        if isinstance(node, ast.Return | ast.Raise):
            return True
        if isinstance(node, ast.Name) and node.id in ("sys", "exit"):
            return True
    return False


def bound_by(node: ast.AST) -> str | None:
    """Return the name to which a node gives a value; None for other nodes."""
    if isinstance(node, ast.Name):
        return None if isinstance(node.ctx, ast.Load) else node.id
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.alias):
        return node.asname or node.name
    is_definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return getattr(node, "name", None) if is_definition else None


def _imports(
    nodes: list[ast.AST], path: str, folder: str
) -> Iterator[tuple[ast.Import | ast.ImportFrom, str, list[str]]]:
    """Yield each import of the module at `path`: the statement, the first part of the name of its
    package or module, empty for a relative import, and the files that it could be among the
    script's own modules. The script is in `folder`."""
    at_top = [folder, ""]
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.Import):
            for alias in node.names:
                package = alias.name.partition(".")[0]
                yield (node, package, _module_files([alias.name], at_top))
                names.append(alias.name)
        elif isinstance(node, ast.ImportFrom):
            # Each name may be a module itself: `from package import module`.
            start = [node.module] if node.module else []
            names = start + [".".join([*start, alias.name]) for alias in node.names]
            if node.level:
                above = [".."] * (node.level - 1)
                base = posixpath.join(posixpath.dirname(path), *above)
                yield (node, "", _module_files(names, [base]))
            else:
                package = names[0].partition(".")[0]
                yield (node, package, _module_files(names, at_top))
        if _TENSORBOARD in names and isinstance(node, ast.Import | ast.ImportFrom):
            yield (node, "tensorboard", [])


_TENSORBOARD = "torch.utils.tensorboard"
"""A module of PyTorch that imports a package which PyTorch does not bring."""


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
            func=ast.Attribute(attr="get" | "getenv"), args=[ast.Constant(value=name), *default]
        ):
            # `get("LOCAL_RANK", 0)` chooses a device, whoever started the script
            is_device = name == "LOCAL_RANK" and [
                str(getattr(node, "value", "")) for node in default
            ] == ["0"]
            return name in _VARIABLES and not is_device
        case ast.Compare(left=ast.Constant(value=name), ops=[ast.In() | ast.NotIn()]):
            return name in _VARIABLES
    return False


def _spawns(call: ast.Call) -> bool:
    """Return whether a call starts the processes of a training: `mp.spawn(work, nprocs=8)`."""
    if name_of(call) not in ("spawn", "start_processes"):
        return False
    owner = getattr(call.func, "value", None)
    of_torch = getattr(owner, "id", getattr(owner, "attr", "")) in ("mp", "multiprocessing")
    return of_torch or any(word.arg == "nprocs" for word in call.keywords)


def _defaults(call: ast.Call) -> Iterator[tuple[str, object]]:
    """Yield the option with a value that one `add_argument` call adds, with its default, if that is
    a number or a text."""
    names = [str(word.value) for word in all_of(ast.Constant, call.args)]
    long_names = [name for name in names if name.startswith("--")]
    if name_of(call) != "add_argument" or not long_names:
        return
    words = {word.arg: getattr(word.value, "value", None) for word in call.keywords}
    default = words.get("default")
    if isinstance(default, int | float | str) and words.keys().isdisjoint(("action", "nargs")):
        yield long_names[0].removeprefix("--"), default


def _saved_to(call: ast.Call) -> ast.expr | None:
    """Return the argument that names where a call saves a model; None for other calls."""
    last = name_of(call)
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
    if name_of(call) not in ("HfArgumentParser", "TrlParser"):
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
    name = name_of(call)
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
    values: _Values,
    options: Mapping[str, str],
    depth: int = 8,
) -> tuple[str | None, str] | None:
    """Return the option with which a path begins, if any, and the rest of the path; None if the
    beginning is unknown. `values` are the expressions that are assigned to names, `options` the
    script's options by the attributes that hold their values."""
    if node is None or depth == 0:  # a name may be assigned to itself
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


def _parts(node: ast.expr | None, values: _Values) -> tuple[Sequence[ast.expr], str]:
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
