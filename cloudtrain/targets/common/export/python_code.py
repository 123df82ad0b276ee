"""Write a program as Python code, in the layout of common formatters."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from textwrap import wrap
from typing import Any

from cloudtrain.targets.common.export.calls import Call, Program, Ref

WIDTH = 88
"""Maximum width of a line, as in `black` and `ruff`."""

_WHOLE = frozenset({"boto3", "estimator", "trainer", "ml_client.jobs"})
"""Names that stay before a dot: variables, and modules that the code imports as a whole (boto3, because the SDK has a
`Session` too)."""


def python_code(program: Program, *, title: str) -> str:
    """Return the Python code that starts the job, with `title` as the docstring of its module."""
    arguments = Call(f"{program.result}.{program.method}", {**program.arguments, **program.in_code})
    blocks = [
        f'"""{title}"""',
        "\n".join(_imports(program)),
        "\n".join([*_assignments(program), *_steps(program)]),
        "\n".join(_layout("", arguments, "", 0)),
    ]
    code = "\n\n".join(blocks) + "\n"
    ast.parse(code)
    return code


def _imports(program: Program) -> Iterator[str]:
    modules: dict[str, set[str]] = {}
    steps = [arguments for _, arguments in program.steps]
    for call in _calls([program.variables, steps, program.arguments]):
        module, _, name = call.name.rpartition(".")
        modules.setdefault(module, set()).add(name)
    yield from (f"import {module}" for module in sorted(modules.keys() & _WHOLE))
    for module in sorted(modules.keys() - _WHOLE):
        names = sorted(modules[module])
        line = f"from {module} import {', '.join(names)}"
        yield from (
            [line] if len(line) <= WIDTH else [f"from {module} import (", *(f"    {name}," for name in names), ")"]
        )


def _assignments(program: Program) -> Iterator[str]:
    for name, value in program.variables.items():
        if name == program.result:
            yield ""
            for note in program.notes:
                yield from (f"# {line}" for line in wrap(note, WIDTH - 2))
        yield from _layout(f"{name} = ", value, "", 0)


def _steps(program: Program) -> Iterator[str]:
    for method, arguments in program.steps:
        yield from _layout("", Call(f"{program.result}.{method}", arguments), "", 0)


def _calls(value: Any) -> Iterator[Call]:
    if isinstance(value, Call):
        yield value
        value = value.arguments
    inner: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        yield from _calls(one)


def _layout(head: str, value: Any, tail: str, depth: int) -> Iterator[str]:
    """Yield the lines of code for `value`, preceded by `head` and followed by `tail`: one line if all of it fits,
    otherwise one line per part of the value, with a comma after the last part. `depth` is the level of indentation."""
    indent = "    " * depth
    line = f"{indent}{head}{_inline(value)}{tail}"
    parts = list(_parts(value))
    if (len(line) <= WIDTH and not (depth == 0 and isinstance(value, Call) and len(parts) > 2)) or not parts:
        yield line
        return
    opening, closing = _brackets(value)
    yield f"{indent}{head}{opening}"
    for name, part in parts:
        yield from _layout(name, part, ",", depth + 1)
    yield f"{indent}{closing}{tail}"


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Call):
        yield from ((f"{name}=", argument) for name, argument in value.arguments.items())
    elif isinstance(value, dict):
        yield from ((f"{_inline(key)}: ", inner) for key, inner in value.items())
    elif isinstance(value, list):
        yield from (("", inner) for inner in value)


def _brackets(value: Any) -> tuple[str, str]:
    if isinstance(value, Call):
        return f"{_name(value)}(", ")"
    return ("{", "}") if isinstance(value, dict) else ("[", "]")


def _name(call: Call) -> str:
    module, _, name = call.name.rpartition(".")
    return call.name if module in _WHOLE else name


def _inline(value: Any) -> str:
    if isinstance(value, Call | dict | list):
        opening, closing = _brackets(value)
        return opening + ", ".join(f"{name}{_inline(part)}" for name, part in _parts(value)) + closing
    if isinstance(value, Ref):
        return value.variable if value.index is None else f"{value.variable}[{value.index}]"
    return _text(value) if isinstance(value, str) else repr(value)


def _text(value: str) -> str:
    """Return a Python string literal, in double quotes unless single quotes need fewer escapes."""
    if value.isprintable() and '"' not in value:
        return '"' + value.replace("\\", "\\\\") + '"'
    return repr(value)
