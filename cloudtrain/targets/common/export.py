"""Exports: turn a request into calls of the service's own SDK. All targets share this code."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, NamedTuple

from cloudtrain.documents import JsonObject
from cloudtrain.system.plugins import require

# Calls of an SDK as data. They can be printed as code, or executed.


class Call(NamedTuple):
    """One call, such as `sagemaker.inputs.TrainingInput(s3_data=...)`: its dotted name and its
    arguments, which may be calls themselves."""

    name: str
    arguments: JsonObject


@dataclass(frozen=True)
class Ref:
    """A reference to a variable of the program, or with `index` to one item of the variable's
    list."""

    variable: str
    index: int | None = None


class Program(NamedTuple):
    """A program that sends a job through an SDK: it creates variables, then calls methods of the
    last variable.

    Attributes:
        variables: maps names to a call, a list or a plain value, in order; a value may refer to
            earlier variables.
        method: the method that sends the request; it is a method of the last variable.
        arguments: the arguments of `method`.
        extra: the extra of cloudtrain that installs the SDK.
        notes: comments that explain unusual parts of the written code.
        steps: methods of the last variable to call before `method`, with their arguments.
        in_code: more arguments of `method`, which are only written as code and never executed.
    """

    variables: JsonObject
    method: str
    arguments: JsonObject
    extra: str
    notes: tuple[str, ...] = ()
    steps: tuple[tuple[str, JsonObject], ...] = ()
    in_code: Mapping[str, Any] = {}

    @property
    def result(self) -> str:
        return list(self.variables)[-1]


def build(program: Program, **objects: Any) -> tuple[Any, JsonObject]:
    """Execute the program except for its last call, which sends the request. Return the program's
    last variable and the arguments of the last call. `objects` replace the variables of the same
    names."""
    scope: JsonObject = {}
    for name, value in program.variables.items():
        given = objects.get(name)
        if given is None:
            scope[name] = _make(value, scope, program.extra)
        else:
            scope[name] = given

    result = scope[program.result]
    for method, arguments in program.steps:
        getattr(result, method)(**_make(arguments, scope, program.extra))
    return result, _make(program.arguments, scope, program.extra)


def build_arguments(program: Program) -> JsonObject:
    """Return the arguments of the last call, which must not refer to variables."""
    arguments: JsonObject = _make(program.arguments, {}, program.extra)
    return arguments


def _make(value: Any, scope: JsonObject, extra: str) -> Any:
    """Return the object that a value of a program stands for: calls are executed, and references
    replaced by the variables in `scope`."""
    if isinstance(value, Call):
        module, _, attribute = value.name.rpartition(".")
        arguments = _make(value.arguments, scope, extra)
        function = getattr(require(module, extra=extra), attribute)
        return function(**arguments)
    if isinstance(value, Ref):
        variable = scope[value.variable]
        return variable if value.index is None else variable[value.index]
    if isinstance(value, dict):
        return {key: _make(inner, scope, extra) for key, inner in value.items()}
    if isinstance(value, list):
        return [_make(inner, scope, extra) for inner in value]
    return value


# Read the fields of a request, and find fields that an export did not use.


class Fields:
    """The fields of a request that have not been used yet."""

    def __init__(self, request: JsonObject) -> None:
        self._unused = deepcopy(request)

    def take(self, path: str, default: Any = None) -> Any:
        """Return the value at `path`, such as `ResourceConfig.InstanceType`, and mark the field as
        used. Return `default` if there is no unused field at `path`."""
        *parents, name = path.split(".")
        place: Any = self._unused
        for parent in parents:
            place = place.get(parent, {})
        return place.pop(name, default)

    def take_if(self, path: str, expected_value: object) -> bool:
        """A field with another value stays unused, so that it is reported if the SDK has no
        equivalent."""
        value = self.take(path)
        if value == expected_value:
            return True
        if value is not None:
            self.put_back(path, value)
        return False

    def put_back(self, path: str, value: object) -> None:
        """Mark a field that was taken as unused."""
        *parents, name = path.split(".")
        place = self._unused
        for parent in parents:
            place = place[parent]
        place[name] = value

    def remaining_paths(self) -> list[str]:
        return sorted(_leaves(self._unused))


def _leaves(value: object, path: str = "") -> Iterator[str]:
    """Yield the paths of all values that are no mappings."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    else:
        yield path


# Write a program as Python code, in the layout of common formatters.

WIDTH = 88
"""Maximum width of a line, as in `black` and `ruff`."""

_WHOLE = frozenset({"boto3", "estimator", "trainer", "ml_client.jobs"})
"""Names that stay before a dot: variables, and modules that the code imports as a whole (boto3,
because the SDK has a `Session` too)."""


def python_code(program: Program, *, title: str) -> str:
    """Return the Python code that starts the job, with `title` as the docstring of its module."""
    arguments = {**program.arguments, **program.in_code}
    sending = Call(f"{program.result}.{program.method}", arguments)
    blocks = [
        f'"""{title}"""',
        "\n".join(_imports(program)),
        "\n".join(_statements(program)),
        "\n".join(_layout("", sending, "", 0)),
    ]
    code = "\n\n".join(blocks) + "\n"
    ast.parse(code)  # fails here rather than in the user's hands
    return code


def _imports(program: Program) -> Iterator[str]:
    """Yield the import lines for all calls of the program, sorted."""
    modules: dict[str, set[str]] = {}
    steps = [arguments for _, arguments in program.steps]
    for call in _calls([program.variables, steps, program.arguments]):
        module, _, name = call.name.rpartition(".")
        modules.setdefault(module, set()).add(name)

    for module in sorted(modules.keys() & _WHOLE):
        yield f"import {module}"
    for module in sorted(modules.keys() - _WHOLE):
        names = sorted(modules[module])
        line = f"from {module} import {', '.join(names)}"
        if len(line) <= WIDTH:
            yield line
            continue
        yield f"from {module} import ("
        for name in names:
            yield f"    {name},"
        yield ")"


def _statements(program: Program) -> Iterator[str]:
    """Yield the lines of all statements before the last call. The notes stand above the last
    variable."""
    for name, value in program.variables.items():
        if name == program.result:
            yield ""
            for note in program.notes:
                for line in wrap(note, WIDTH - 2):
                    yield f"# {line}"
        yield from _layout(f"{name} = ", value, "", 0)
    for method, arguments in program.steps:
        step = Call(f"{program.result}.{method}", arguments)
        yield from _layout("", step, "", 0)


def _calls(value: object) -> Iterator[Call]:
    """Yield every call in a value, also those in the arguments of other calls."""
    if isinstance(value, Call):
        yield value
    for _, item in _items(value):
        yield from _calls(item)


def _layout(head: str, value: object, tail: str, depth: int) -> Iterator[str]:
    """Yield the lines of code for `value`, preceded by `head` and followed by `tail`: one line if
    all of it fits, otherwise one line per item of the value, with a comma after the last one.
    `depth` is the level of indentation."""
    indent = "    " * depth
    line = f"{indent}{head}{_inline(value)}{tail}"
    items = list(_items(value))
    is_statement = depth == 0 and isinstance(value, Call)
    is_long_call = is_statement and len(items) > 2
    if not items or (len(line) <= WIDTH and not is_long_call):
        yield line
        return
    opening, closing = _brackets(value)
    yield f"{indent}{head}{opening}"
    for name, item in items:
        yield from _layout(name, item, ",", depth + 1)
    yield f"{indent}{closing}{tail}"


def _items(value: object) -> Iterator[tuple[str, object]]:
    """Yield what stands before each item of a value, and the item."""
    if isinstance(value, Call):
        for name, argument in value.arguments.items():
            yield f"{name}=", argument
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield f"{_inline(key)}: ", inner
    elif isinstance(value, list):
        for inner in value:
            yield "", inner


def _brackets(value: object) -> tuple[str, str]:
    """Return the text before and after the items of a value; all of its text before, if a value of
    its kind has no items."""
    if isinstance(value, Call):
        module, _, name = value.name.rpartition(".")
        function = value.name if module in _WHOLE else name
        return f"{function}(", ")"
    if isinstance(value, dict):
        return "{", "}"
    if isinstance(value, list):
        return "[", "]"
    if isinstance(value, Ref):
        index = "" if value.index is None else f"[{value.index}]"
        return f"{value.variable}{index}", ""
    text = _text(value) if isinstance(value, str) else repr(value)
    return text, ""


def _inline(value: object) -> str:
    """Return the code for a value on one line."""
    opening, closing = _brackets(value)
    items = [f"{name}{_inline(item)}" for name, item in _items(value)]
    return opening + ", ".join(items) + closing


def _text(value: str) -> str:
    """Return a Python string literal, in double quotes unless single quotes need fewer escapes."""
    if value.isprintable() and '"' not in value:
        return '"' + value.replace("\\", "\\\\") + '"'
    return repr(value)
