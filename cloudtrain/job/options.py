"""The options of a script that uses argparse or `runtime.arguments`, if its text determines them
all."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cloudtrain.job.syntax import all_of, bound_by, name_of, parse

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

    def _means(self, name: str, options: Iterable[str]) -> bool:
        """Return whether the script understands a name as one of the options."""
        if self.of_argparse:
            return any(option.startswith(name) for option in options)
        return name.replace("-", "_") in options

    def accept(self, name: str) -> bool:
        """Return whether the script takes `--NAME`."""
        return self._means(name, self.names)

    def required_beside(self, given: Sequence[str]) -> list[str]:
        """Return the required options that none of the given names means, each by its longest
        name."""
        missing = []
        for option in self.required:
            if not any(self._means(name, option) for name in given):
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
        tree, nodes = parse(text)
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
    classes = [node for node in all_of(ast.ClassDef, nodes) if node.name in shared]
    if len(classes) != 1 or classes[0].bases:
        raise _NotCertain
    if not _is_reached(calls[0], tree, nodes):
        raise _NotCertain

    lines = all_of(ast.AnnAssign, classes[0].body)
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
    for call in all_of(ast.Call, nodes):
        # Most calls have other names, and `unparse` takes long.
        if name_of(call) in last_parts and ast.unparse(call.func) in functions:
            found.append(call)
    return found


def _names_used(call: ast.Call) -> set[str]:
    """Return the names in a call, such as those of its function and of its arguments."""
    return {node.id for node in all_of(ast.Name, ast.walk(call))}


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
    copied = {id(node.value) for node in all_of(ast.Starred, nodes)}
    for attribute in all_of(ast.Attribute, nodes):
        if attribute.attr in _ARGUMENTS and id(attribute) not in copied:
            raise _NotCertain
    for alias in all_of(ast.alias, nodes):
        if alias.name in ("*", "argv"):
            raise _NotCertain
    for handler in all_of(ast.ExceptHandler, nodes):
        caught = all_of(ast.Name, ast.walk(handler.type or ast.Name("BaseException")))
        if any(item.id in ("SystemExit", "BaseException") for item in caught):
            raise _NotCertain


_ARGUMENTS = ("argv", "orig_argv", "parse_known_args")
"""What gives a script arguments that the parser's calls do not show."""


def _parser_classes(nodes: list[ast.AST]) -> set[str]:
    """Return the names of the class `ArgumentParser` in the script, such as
    `argparse.ArgumentParser` or an alias."""
    names: set[str] = set()
    for node in all_of(ast.Import, nodes):
        for alias in node.names:
            if alias.name == "argparse":
                names.add(f"{alias.asname or alias.name}.ArgumentParser")
    for from_module in all_of(ast.ImportFrom, nodes):
        if from_module.module == "argparse" and not from_module.level:
            for alias in from_module.names:
                if alias.name == "ArgumentParser":
                    names.add(alias.asname or alias.name)
    return names


def _holders(nodes: list[ast.AST]) -> dict[int, str]:
    """Return the name to which each value is assigned, by the value's id, if the script binds that
    name only there."""
    bindings = Counter(map(bound_by, nodes))
    holders = {}
    for node in all_of(ast.Assign, nodes):
        for target in all_of(ast.Name, node.targets):
            if len(node.targets) == 1 and bindings[target.id] == 1:
                holders[id(node.value)] = target.id
    return holders


def _calls_on(parser: ast.Call, nodes: list[ast.AST]) -> list[tuple[str, ast.Call]]:
    """Return the method calls on the parser and its groups, in the order of the text, if the script
    uses both for nothing else."""
    # `parser.add_argument(...)`: the attribute by its owner, and the call by the attribute
    holders = _holders(nodes)
    holding: dict[int, ast.AST] = {}
    uses: dict[str, list[ast.Name]] = {}
    for node in nodes:
        if isinstance(node, ast.Attribute):
            holding[id(node.value)] = node
        elif isinstance(node, ast.Call):
            holding[id(node.func)] = node
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            uses.setdefault(node.id, []).append(node)

    found: list[tuple[str, ast.Call]] = []
    filled = [parser]
    for owner in filled:  # a group of options is filled like the parser, and the list grows
        holder = holders.get(id(owner))
        if holder is None:
            raise _NotCertain
        for name in uses.get(holder, ()):
            method = holding.get(id(name))
            call = holding.get(id(method))
            if not isinstance(method, ast.Attribute) or not isinstance(call, ast.Call):
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
                functions = [item.func for item in all_of(ast.Call, nodes)]
                return node.name in {getattr(function, "id", "") for function in functions}
            return not isinstance(node, ast.ClassDef)
    return False
