"""Overrides: `--set resources.instance_count=4` replaces a value in the file by a value of the
field's type."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from shlex import quote
from typing import Any

from pydantic import BaseModel

from cloudtrain.documents.document import MAX_DEPTH, Content, Positions, Unreadable, read_document
from cloudtrain.documents.yaml_text import read_scalar
from cloudtrain.errors import Problem, ValidNames, dotted, shortened
from cloudtrain.job.nodes import JSON, Changes, Kind, SchemaNode, ValuePath, node_of_model
from cloudtrain.job.training import PerTarget, TrainingJob

_PART = re.compile(
    r"""\s*(?:"(?P<double>(?:[^"\\]|\\.)*)"|"""
    r"""'(?P<single>[^']*)'|\[(?P<index>[0-9]+)\]|(?P<bare>[^.\[\]="']+))"""
)
_SYNTAX = "write `--set resources.instance_count=4`"
_REMOVE = "null"
_MAX_DIGITS = 9
"""Maximum number of digits of an index, because Python limits the numbers that it reads."""
_CONTAINERS: dict[Kind, type | tuple[type, ...]] = {"list": list, "json": (dict, list)}
"""The types that can contain other values at a path of each kind, if not a mapping."""
Data = dict[str, Any]


class _Refused(Exception):
    def __init__(
        self, message: str, hint: str, path: ValuePath = (), *, code: str = "CT022"
    ) -> None:
        super().__init__(message)
        self.problem = Problem(path, message, hint, code=code)


def _refuse(problem: Problem, path: ValuePath) -> _Refused:
    """Return the error for a problem in the new value at `path`, without the position inside that
    value."""
    return _Refused(problem.message, problem.hint or _SYNTAX, path, code=problem.code)


def override(
    data: Data, overrides: Sequence[str], model: type[BaseModel] = TrainingJob
) -> tuple[Data, Changes]:
    """Apply overrides to the `data` of a `model`, one after the other, and return the data (changed
    in place) and the changes. `a.b=null` removes a value. A wrong override does not change the
    data, and is reported as a problem.

    A new `distribution.type` removes the fields that the new distribution does not have.
    """
    origins: dict[ValuePath, str] = {}
    texts: dict[ValuePath, str] = {}
    problems: list[Problem] = []
    for text in overrides:
        origin = shortened(f"--set {text}")
        try:
            parts, value_text = _split(text)
            path, positions = _apply(data, parts, value_text, model)
        except _Refused as error:
            problems.append(replace(_for_script(error.problem, text, model), file=origin))
            continue
        for old in [old for old in texts if old[: len(path)] == path]:
            del texts[old]
        origins = {old: text for old, text in origins.items() if old[: len(path)] != path} | {
            path: origin
        }
        texts |= {(*path, *inner): value for inner, value in positions.texts.items()}
    return data, Changes(origins, texts, tuple(problems))


def _for_script(problem: Problem, text: str, model: type[BaseModel]) -> Problem:
    """Return the problem with a hint about hyperparameters, if the override names no field:
    `epochs=3`."""
    names_field = model is not TrainingJob or not isinstance(problem.hint, ValidNames)
    if names_field or not re.fullmatch(r"[\w-]+=[\w.+-]{1,40}", text):
        return problem
    return replace(
        problem, hint=f"for an option of your script, write `--set hyperparameters.{text}`"
    )


_FIELD = re.compile(r"`(?P<field>(?P<name>[a-z_]+): [^`]+)`(?: under `(?P<above>[\w.]+)`)?")
"""A field with its value in a hint, as a job file has it: `gpu: H100`, or with its place: `type:
torch` under `x`."""


def hint_without_file(hint: str, path: ValuePath) -> str:
    """Return the hint for a job without a file: `--set resources.gpu=H100` instead of `gpu: H100`.
    The fields belong to the innermost part of `path`, the path of the wrong value, that has such a
    field."""

    def options(match: re.Match[str]) -> str:
        node, above = (
            node_of_model(TrainingJob),
            match["above"] and tuple(match["above"].split(".")),
        )
        for length, part in enumerate(() if above else (*path, "")):
            above = path[:length] if match["name"] in node.field_names() else above
            node = node.child(part) or JSON
        try:
            texts = (
                read_document(match["field"], "yaml").positions.texts if above is not None else {}
            )
        except Unreadable:
            texts = {}
        words = [
            f"--set {quote(f'{dotted((*above, *inner))}={text}')}" for inner, text in texts.items()
        ]
        return f"`{' '.join(words)}`" if words else match[0]

    return _FIELD.sub(options, hint)


def _split(text: str) -> tuple[list[str], str]:
    """Split an override such as `a."b.c"[0]=value` into the parts of its path and the text of its
    value."""
    parts: list[str] = []
    offset = 0
    while True:
        match = _PART.match(text, offset)
        if match is None or (
            match["index"] is None and match["bare"] is not None and not match["bare"].strip()
        ):
            break
        offset = match.end()
        name = match["double"] if match["double"] is not None else match["single"]
        name = re.sub(r"\\(.)", r"\1", name) if match["double"] is not None else name
        if len(parts) == MAX_DEPTH:
            raise _Refused(
                f"`{shortened(text)}` has too many levels", "use fewer levels: a job has about five"
            )
        parts.append(match["index"] or (name if name is not None else match["bare"].strip()))
        if text[offset : offset + 1] == "=":
            return parts, text[offset + 1 :]
        if text[offset : offset + 1] == ".":
            offset += 1
        elif text[offset : offset + 1] != "[":
            break
    if "=" not in text:
        raise _Refused(f"`{shortened(text)}` has no `=` after the field", _SYNTAX)
    raise _Refused(
        f"`{shortened(text.partition('=')[0])}` is not the path of a field",
        f'{_SYNTAX}; quote a key with dots: `hyperparameters."a.b"=1`',
    )


def _apply(
    data: Data, parts: list[str], text: str, root: type[BaseModel]
) -> tuple[ValuePath, Positions]:
    """Set the value at the path `parts` to `text` and create missing parents. After an error,
    `data` is unchanged. Return the path with its keys and indexes, and the positions and spellings
    of the values in `text`."""
    shape: SchemaNode = node_of_model(root)
    holder: Any = data
    path: ValuePath = ()
    additions: list[tuple[object, str | int, object]] = []
    for part in parts[:-1]:
        key, inner = _step(shape, holder, part, path, root)
        path, value = (*path, key), _get(holder, key)
        inside = _open(value, inner, path)
        if inside is not value:
            additions.append((holder, key, inside))
        holder, shape = inside, inner
    key, inner = _step(shape, holder, parts[-1], path, root)
    path = (*path, key)
    document = _value(inner, text, path)
    for above, name, inside in additions:
        _put(above, name, inside)
    if text.strip() != _REMOVE:
        _put(holder, key, document.data)
        if shape.kind == "choice" and key == "type" and shape.model(holder["type"]) is not None:
            for name in holder.keys() - shape.field_names(holder["type"]):
                del holder[name]
    elif isinstance(holder, dict):
        holder.pop(key, None)
    elif isinstance(key, int) and key < len(holder):
        holder.pop(key)
    return path, document.positions


def _step(
    shape: SchemaNode, holder: object, part: str, path: ValuePath, root: type[BaseModel]
) -> tuple[str | int, SchemaNode]:
    """Convert `part` of an override's path to a key or index of `holder`, whose schema and path are
    `shape` and `path`. Return the key and the schema of its value."""
    if shape.kind == "value":
        raise _Refused(
            f"`{dotted(path)}` holds one value, so nothing can be set below it", _SYNTAX, path
        )
    if isinstance(holder, list):
        inner = shape.child(0)
        assert inner is not None, "only a list or any JSON holds a list"
        return _index(part, len(holder), path), inner
    tag = holder.get("type") if isinstance(holder, Mapping) else None
    child = shape.child(part, tag)
    if child is None or (shape.kind in ("model", "choice") and part not in shape.field_names(tag)):
        # costs start-up time, and most names are right
        from cloudtrain.job.explain import unknown_field

        wording = unknown_field((*path, part), shape, root, tag)
        raise _Refused(wording.message, wording.hint, (*path, part), code=wording.code)
    return part, child


def _index(text: str, length: int, path: ValuePath) -> int:
    where = dotted(path)
    if not (text.isascii() and text.isdecimal()):
        raise _Refused(
            f"`{where}` is a list, and `{shortened(text)}` is not an index",
            f"write `{where}[0]`",
            path,
        )
    if len(text) > _MAX_DIGITS or int(text) > length:
        message = f"`{where}` has {length} entries, so there is no `[{shortened(text)}]`"
        raise _Refused(message, f"the next one is `{where}[{length}]`", path)
    return int(text)


def _open(value: object, shape: SchemaNode, path: ValuePath) -> object:
    """Return the mapping or list at `path` in which an override can set a value: `value` if it has
    the right type, else a new mapping or list. A text that is written once for all targets becomes
    a mapping with this text for each target.
    """
    if isinstance(value, _CONTAINERS.get(shape.kind, dict)):
        return value
    if isinstance(value, str) and shape.model() is PerTarget:
        return dict.fromkeys(PerTarget.model_fields, value)
    if value is not None and shape.kind in ("value", "json"):
        where = dotted(path)
        raise _Refused(f"`{where}` holds one value, so nothing can be set below it", _SYNTAX, path)
    return [] if shape.kind == "list" else {}


def _get(holder: Any, key: str | int) -> object:
    if isinstance(holder, list):
        return holder[key] if isinstance(key, int) and key < len(holder) else None
    return holder.get(key)


def _put(holder: Any, key: str | int, value: object) -> None:
    if isinstance(holder, list) and key == len(holder):
        holder.append(value)
    else:
        holder[key] = value


def _value(shape: SchemaNode, text: str, path: ValuePath) -> Content:
    """Convert the text of an override to a value of its field's type. A text that does not fit the
    type stays text, which validation refuses."""
    plain = Positions(texts={(): text})
    starts = text.lstrip()[:1]
    if (
        shape.kind != "value"
        and (starts in ("{", "[") or (shape.kind == "json" and starts in ('"', "'")))
        and starts
    ):
        try:
            document = read_document(text, "yaml")
        except Unreadable as error:
            raise _refuse(error.problem, path) from None
        if document.problems:
            raise _refuse(document.problems[0], path)
        return document
    if shape.options and shape.kind == "value":
        return Content(
            next((option for option in shape.options if str(option) == text), text), plain
        )
    reads = shape.kind == "json" or (shape.type in (int, bool, float) and not shape.has_parser)
    return Content(read_scalar(text) if reads and text else text, plain)
