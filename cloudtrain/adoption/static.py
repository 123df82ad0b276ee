"""`cloudtrain adopt SCRIPT --static`: drafts a job from the text of a script, without running the
script.

Calls are read in order, with the variables that are assigned before them. A value that cannot be
computed from literals is kept as its source text.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Formatter
from typing import Any

from cloudtrain.adoption.proof import (
    Adoption,
    FieldDifference,
    adoption_of,
    moved,
    settled,
    shown_path,
)
from cloudtrain.adoption.sources import cells_of, text_of
from cloudtrain.documents.document import parse_python
from cloudtrain.errors import UsageError
from cloudtrain.job.training import TrainingJob
from cloudtrain.system.plugins import all_parts
from cloudtrain.targets.adoption import FILL_IN, Original, StaticCall, Unknown
from cloudtrain.targets.contract import ScriptReader


def adopt_statically(script: Path, place: Path) -> Adoption:
    """Return a draft of the first job that the script's text creates. The draft is never `equal`,
    because nothing is compared."""
    try:
        calls = list(calls_in(script))
    except RecursionError:
        hint = "run the script by leaving out `--static`"
        raise UsageError(
            f"`{script}` is nested too deeply to be read", hint=hint, code="CT981"
        ) from None
    kind = f"the text of {script.name}"
    for name, draft_of_calls in all_parts(ScriptReader).items():
        result = draft_of_calls(calls)
        if result is None:
            continue
        draft, unknown = result
        origin = Original(name, {}, "", kind, folder=str(script.absolute().parent))
        draft = moved(draft, origin, place)
        unknown = {**unknown, **_take_secrets_out(draft.job, settled(draft))}
        settled(draft)  # a placeholder may not be valid where the secret was
        why = "the text does not show the value, or the draft has no field for it"
        differences = [
            FieldDifference(path, text, draft.comments.get((path,), ""), why)
            for path, text in unknown.items()
        ]
        differences.append(
            FieldDifference(
                "(the whole request)", "", "", "nothing was executed, so nothing was compared"
            )
        )
        head = [
            (
                f"A draft from {kind}: values that are not literals in the source are missing "
                "here, "
                "or guessed."
            )
        ]
        head += [f"{path} was: {text}" for path, text in unknown.items()]
        return adoption_of(name, kind, draft, differences, head, is_draft=True)
    hint = (
        "run the script by leaving out `--static`, or adopt the request of a job that it has "
        "created"
    )
    raise UsageError(
        f"no call in `{script}` creates a job that cloudtrain recognizes", hint=hint, code="CT976"
    )


def _take_secrets_out(fields: dict[str, Any], job: TrainingJob) -> dict[str, str]:
    """Take what looks like a secret out of a job's fields. Return the paths of the values, each
    with a placeholder."""
    from cloudtrain.rules.values import secret_values

    paths = [secret.path for secret in secret_values(job)]
    for path in paths:
        holder = fields
        for part in path[:-1]:
            holder = holder[part]  # type: ignore[index]  # the job was read from these fields
        holder[path[-1]] = FILL_IN  # type: ignore[index]
    return {shown_path(path): "(a secret, which is not copied)" for path in paths}


def calls_in(script: Path) -> Iterator[StaticCall]:
    """Yield every call in a script or a notebook. An argument whose value the text does not show is
    an `Unknown`."""
    notebook = script.suffix == ".ipynb"
    names: dict[str, Any] = {}
    for cell in cells_of(script) if notebook else [text_of(str(script))[0]]:
        try:
            tree = parse_python(cell)
        except SyntaxError as error:
            if notebook:
                continue
            hint = "name a Python 3 script"
            raise UsageError(
                f"`{script}` is not Python: {error}", hint=hint, code="CT981"
            ) from None
        for statement in tree.body:
            yield from _calls(statement, names)


def _calls(statement: ast.AST, names: dict[str, Any]) -> Iterator[StaticCall]:
    """Yield the calls in a statement, each before the calls in its arguments. Add the variables
    that the statement assigns, with their values, to `names`."""
    if isinstance(statement, ast.If):
        yield from _calls_of_branches(statement, names)
        return
    inner = [
        child
        for part in ("body", "handlers", "orelse", "finalbody")
        for child in getattr(statement, part, ())
    ]
    if inner:
        for name in _targets(getattr(statement, "target", None)):
            names[name] = Unknown(name)  # of a loop
        for child in inner:
            yield from _calls(child, names)
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Call):
            keywords = _keywords(node, names)
            yield StaticCall(
                _dotted(node.func, names), [_value(one, names) for one in node.args], keywords
            )
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            _assign(target, statement.value, names)
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        _assign(statement.target, statement.value, names)
    elif isinstance(statement, ast.AugAssign):
        for name in _targets(statement.target):
            names[name] = Unknown(ast.unparse(statement))


def _calls_of_branches(statement: ast.If, names: dict[str, Any]) -> Iterator[StaticCall]:
    """Yield the calls in both branches of an `if`. In `names`, a variable whose value differs
    between the branches becomes an `Unknown`."""
    branches = []
    for body in (statement.body, statement.orelse):
        branches.append(
            {
                name: dict(value) if isinstance(value, dict) else value
                for name, value in names.items()
            }
        )
        for child in body:
            yield from _calls(child, branches[-1])
    for name in {*branches[0], *branches[1]}:
        one, other = (branch.get(name) for branch in branches)
        names[name] = (
            one if one == other else Unknown(f"{name}, by `if {ast.unparse(statement.test)}`")
        )


def _targets(target: ast.expr | None) -> Iterator[str]:
    yield from (node.id for node in ast.walk(target or ast.Pass()) if isinstance(node, ast.Name))


def _assign(target: ast.expr, value: ast.expr, names: dict[str, Any]) -> None:
    if isinstance(target, ast.Name):
        names[target.id] = _value(value, names)
    elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
        mapping, key = names.get(target.value.id), _value(target.slice, names)
        if isinstance(mapping, dict) and isinstance(key, str):
            mapping[key] = _value(value, names)
    elif (
        isinstance(target, ast.Tuple)
        and isinstance(value, ast.Tuple)
        and len(target.elts) == len(value.elts)
    ):
        for one, other in zip(target.elts, value.elts, strict=True):
            _assign(one, other, names)


def _keywords(node: ast.Call, names: Mapping[str, Any]) -> dict[str, Any]:
    keywords: dict[str, Any] = {}
    for keyword in node.keywords:
        value = _value(keyword.value, names)
        if keyword.arg is not None:
            keywords[keyword.arg] = value
        elif isinstance(value, dict):
            keywords |= value
    return keywords


def _dotted(node: ast.expr, names: Mapping[str, Any]) -> str:
    """Return the name of a call, such as `sagemaker.pytorch.PyTorch`. For a method of a call's
    result, include the call: `PyTorch().fit`."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, names)}.{node.attr}"
    if isinstance(node, ast.Call):
        return f"{_dotted(node.func, names)}()"
    value = names.get(node.id) if isinstance(node, ast.Name) else None
    return (
        f"{value.name}()"
        if isinstance(value, StaticCall)
        else node.id
        if isinstance(node, ast.Name)
        else "?"
    )


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression, or an `Unknown` if the text does not show the value."""
    if isinstance(node, ast.Name) and isinstance(names.get(node.id), Unknown):
        return names[node.id]
    try:
        return _of_sensible_size(_known(node, names))
    except (
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        ZeroDivisionError,
        OverflowError,
    ):
        return Unknown(ast.unparse(node))


def _known(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return _sure(names[node.id])
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(one, names) for one in node.elts]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        spread = [
            (_known(key, names), _value(one, names)) if key else (None, _known(one, names))
            for key, one in pairs
        ]
        return {
            k: v for key, one in spread for k, v in ({key: one} if key is not None else one).items()
        }
    if isinstance(node, ast.JoinedStr):
        return "".join(str(_known(part, names)) for part in node.values)
    if isinstance(node, ast.FormattedValue) and node.format_spec is None:
        return _plain(_known(node.value, names))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_known(node.operand, names)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        left, right = _plain(_known(node.left, names)), _plain(_known(node.right, names))
        if isinstance(node.op, ast.Mult) and not (
            isinstance(left, int | float) and isinstance(right, int | float)
        ):
            raise ValueError("`*` is supported only between numbers")
        return _of_sensible_size(left + right if isinstance(node.op, ast.Add) else left * right)
    if isinstance(node, ast.Subscript):
        return _sure(_known(node.value, names)[_known(node.slice, names)])
    if isinstance(node, ast.Call):
        return _called(node, names)
    raise ValueError("the expression is not a literal")


def _called(node: ast.Call, names: Mapping[str, Any]) -> Any:
    arguments, keywords = [_value(one, names) for one in node.args], _keywords(node, names)
    if isinstance(node.func, ast.Name) and node.func.id == "dict" and len(arguments) < 2:
        return {**(_sure(arguments[0]) if arguments else {}), **keywords}
    if _dotted(node.func, names) in ("os.path.join", "path.join", "posixpath.join"):
        return posixpath.join(*arguments)
    if isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        text = _plain(_known(node.func.value, names))
        if any(
            _UNSAFE.search(f"{name}:{form}")
            for _, name, form, _ in Formatter().parse(text)
            if name is not None
        ):
            raise ValueError("a field reads an attribute, or is very wide")
        return text.format(
            *map(_plain, arguments), **{name: _plain(value) for name, value in keywords.items()}
        )
    return StaticCall(_dotted(node.func, names), arguments, keywords)


_UNSAFE = re.compile(r"^[^:]*[.\[]|[0-9]{4}|\{")
"""A field of `str.format` that reads an attribute or an item, or whose width has four digits or is
computed."""

_MOST = 10_000
"""The most characters and elements of a value. A few lines can double a value many times."""


def _of_sensible_size(value: Any) -> Any:
    """Return the value. Raises `ValueError` if it is larger than `_MOST`."""
    size, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        size += (
            len(one) if isinstance(one, str) else one.bit_length() if isinstance(one, int) else 1
        )
        if size > _MOST:
            raise ValueError("the value is too large")
        inner = (*one.arguments, *one.keywords.values()) if isinstance(one, StaticCall) else one
        waiting += (
            inner.values()
            if isinstance(inner, dict)
            else inner
            if isinstance(inner, list | tuple)
            else ()
        )
    return value


def _sure(value: Any) -> Any:
    if isinstance(value, Unknown):
        raise ValueError(value.text)
    return value


def _plain(value: Any) -> Any:
    if not isinstance(value, str | int | float):
        raise TypeError("the value is neither a string nor a number")
    return value
