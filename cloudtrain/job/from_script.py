"""The `JobFile` of a training script without a job file, and the options that a script accepts."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloudtrain.documents.document import Positions, Unreadable, parse_python, read_document
from cloudtrain.documents.yaml_text import read_scalar
from cloudtrain.errors import JobError
from cloudtrain.job.file import JobFile, anchored, parse
from cloudtrain.job.overrides import override
from cloudtrain.job.script import fields_of_script
from cloudtrain.job.training import TrainingJob


def load_script(script: Path, arguments: Sequence[str], overrides: Sequence[str] = ()) -> JobFile:
    """Return the job of a script. Relative local paths start at the working directory.

    Raises:
        UsageError: the script does not exist or is not valid Python.
        JobError: the job has problems; all are listed.
    """
    here = Path.cwd()
    text = yaml_text(fields_of_script(script, arguments, here))
    try:
        file = parse(text, format="yaml", file=str(script), overrides=overrides)
    except JobError as error:  # a line of a file that does not exist would confuse the reader
        own = str(script)
        problems = [
            replace(problem, file=None, line=None, column=None) if problem.file == own else problem
            for problem in error.problems
        ]
        raise JobError(problems) from None
    return file._replace(job=anchored(file.job, here).from_folder(here), positions=Positions())


def job_text(script: Path, arguments: Sequence[str], overrides: Sequence[str] = ()) -> str:
    """Return the text of a job file for the job of `load_script`. The file must be saved in the working directory."""
    data, _ = override(fields_of_script(script, arguments, Path.cwd()), overrides, TrainingJob)
    return yaml_text(data)


def yaml_text(data: dict[str, object]) -> str:
    """Return the fields as YAML that cloudtrain reads back unchanged: PyYAML's output if it is unchanged and printable,
    else JSON with invisible characters escaped."""
    import yaml

    class _Dumper(yaml.SafeDumper):
        """PyYAML's writer, which would leave `1e-3` unquoted: text in YAML 1.1, but a number in YAML 1.2."""

    def quoted_text(dumper: Any, text: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, None if read_scalar(text) == text else "'")

    _Dumper.add_representer(str, quoted_text)
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    try:
        if text.replace("\n", "").isprintable() and read_document(text, "yaml").data == data:
            return text
    except Unreadable:
        pass
    quoted = json.dumps(data, indent=2, ensure_ascii=False)
    return "".join(letter if letter.isprintable() or letter == "\n" else f"\\U{ord(letter):08x}" for letter in quoted)


# The options of a script that uses argparse, if they can all be determined from the script's text.

_FILLS = frozenset(("add_argument", "add_argument_group", "add_mutually_exclusive_group"))
_READS = "parse_args"
_HARMLESS = frozenset((_READS, "set_defaults", "get_default", "error", "exit", "print_help", "print_usage"))


_TEXTS_OF_HELP = {"description", "prog", "usage", "epilog", "formatter_class"}
"""Arguments of `ArgumentParser` that add no options."""


class _NotCertain(Exception):
    """The options cannot all be determined from the script's text."""


def options_of_script(text: str) -> frozenset[str] | None:
    """Return the names of the script's options without dashes, or None if the script may have other options.

    The options are certain if the script creates a single `argparse.ArgumentParser`, adds each option by literal names,
    passes the parser to no function, and calls `parse_args()` at module level or in a function that is called by name.
    """
    try:
        return frozenset(_read(parse_python(text)))
    except (_NotCertain, SyntaxError, RecursionError):
        return None


def _read(tree: ast.Module) -> set[str]:
    nodes = list(ast.walk(tree))
    _require_plain(nodes)
    names = _imported(nodes)
    parsers = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) in names]
    if len(parsers) != 1 or not {word.arg for word in parsers[0].keywords} <= _TEXTS_OF_HELP:
        raise _NotCertain
    holders = {_holder(parsers[0], nodes)}
    options = {"help", "h"}
    while True:  # a group of options is filled like the parser
        calls = list(_calls_of(holders, nodes))
        groups = {_holder(call, nodes) for name, call in calls if name in _FILLS - {"add_argument"}}
        if groups <= holders:
            break
        holders |= groups
    for name, call in calls:
        if name == "add_argument":
            options.update(_names(call))
    reads = [call for name, call in calls if name == _READS]
    if len(reads) != 1 or reads[0].args or reads[0].keywords or not _is_reached(reads[0], tree, nodes):
        raise _NotCertain
    return options


def _require_plain(nodes: list[ast.AST]) -> None:
    """Refuse what may add options, or catch the `SystemExit` of an unknown option."""
    for node in nodes:
        is_star = isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
        is_argv = isinstance(node, ast.Attribute) and node.attr in ("argv", "orig_argv", "parse_known_args")
        is_caught = isinstance(node, ast.ExceptHandler) and (
            node.type is None or any(isinstance(item, ast.Name) and item.id in _EXITS for item in ast.walk(node.type))
        )
        if is_star or is_argv or is_caught or (isinstance(node, ast.alias) and node.name == "argv"):
            raise _NotCertain


_EXITS = ("SystemExit", "BaseException")


def _imported(nodes: list[ast.AST]) -> set[str]:
    """Return the names of the class `ArgumentParser` in the script, such as `argparse.ArgumentParser` or an alias."""
    whole = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names = {f"{alias.asname or alias.name}.ArgumentParser" for alias in whole if alias.name == "argparse"}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "argparse" and not node.level:
            names.update(alias.asname or alias.name for alias in node.names if alias.name == "ArgumentParser")
    return names


def _holder(call: ast.Call, nodes: list[ast.AST]) -> str:
    """Return the name to which the result of a call is assigned, if the script binds that name only there."""
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
        or (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name)
        for node in nodes
    )


def _calls_of(holders: set[str], nodes: list[ast.AST]) -> Iterator[tuple[str, ast.Call]]:
    """Yield the method calls on the parser and its groups, if the script uses both for nothing else."""
    called = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
    methods = {
        id(node.value): node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in holders:
            method = methods.get(id(node))
            call = called.get(id(method)) if method is not None else None
            if method is None or call is None or method.attr not in _FILLS | _HARMLESS:
                raise _NotCertain
            yield method.attr, call


def _names(call: ast.Call) -> Iterator[str]:
    """Yield the option names, without dashes, of one `add_argument` call, if the call's text shows them all."""
    words = {word.arg: word.value for word in call.keywords}
    if None in words or not isinstance(words.get("nargs", ast.Constant("?")), ast.Constant):
        raise _NotCertain
    if getattr(words.get("nargs"), "value", None) in ("...", "A..."):  # takes every option that follows
        raise _NotCertain
    for word in call.args:
        if not isinstance(word, ast.Constant) or not isinstance(word.value, str):
            raise _NotCertain
        if word.value.startswith("-"):
            yield word.value.lstrip("-")
            yield f"no-{word.value.lstrip('-')}"  # of a BooleanOptionalAction


def _is_reached(call: ast.Call, tree: ast.Module, nodes: list[ast.AST]) -> bool:
    """Return whether the call is at module level, or in a function that is called by its name."""
    names = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    for node in tree.body:
        if any(inner is call for inner in ast.walk(node)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                return node.name in names
            return not isinstance(node, ast.ClassDef)
    return False
