"""Overrides: `--set resources.instance_count=4` replaces a value in the file by a value of the
field's type."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
    r"""'(?P<single>[^']*)'|\[(?P<index>[0-9]+)\]|(?P<bare>[^\s.\[\]="'][^.\[\]="']*))"""
    r"(?P<sign>=|\.|(?=\[))"
)
"""A part of a path, with the sign behind it."""
_SYNTAX = "write `--set resources.instance_count=4`"
_MAX_DIGITS = 9
"""Maximum number of digits of an index, because Python limits the numbers that it reads."""
_CONTAINERS: dict[Kind, type | tuple[type, ...]] = {"list": list, "json": (dict, list)}
"""The types that can contain other values at a path of each kind, if not a mapping."""
Data = dict[str, Any]


class _Refused(Exception):
    """An override that cannot be applied, with its problem."""

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
    data, and is reported as a problem, as is one that undoes an earlier one.

    A new `distribution.type` removes the fields that the new distribution does not have.
    """
    origins: dict[ValuePath, str] = {}
    texts: dict[ValuePath, str] = {}
    touched: dict[ValuePath, str] = {}  # every path above, at and below the values that are set
    problems: list[Problem] = []
    for text in overrides:
        origin = shortened(f"--set {text}")
        try:
            parts, value_text = _split(text)
            path, positions, lost = _apply(data, parts, value_text, model)
        except _Refused as error:
            problems.append(replace(_for_script(error.problem, text, model), file=origin))
            continue
        for place in (path, *lost):
            earlier = touched.get(place, origin)
            if earlier != origin:
                message = f"`{origin}` undoes `{earlier}`"
                problems.append(
                    Problem(path, message, "remove one of the two", file=origin, code="CT069")
                )
                break
        for inner, value in positions.texts.items():
            inner_path = (*path, *inner)
            texts[inner_path] = value
            touched[inner_path] = origin
        origins[path] = origin
        for length in range(len(path) + 1):
            touched[path[:length]] = origin
    return data, Changes(origins, texts, tuple(problems))


def _for_script(problem: Problem, text: str, model: type[BaseModel]) -> Problem:
    """Return the problem with a hint about hyperparameters, if the override names no field:
    `epochs=3`."""
    if model is not TrainingJob or not isinstance(problem.hint, ValidNames):
        return problem
    if not re.fullmatch(r"[\w-]+=[\w.+-]{1,40}", text):
        return problem
    return replace(
        problem, hint=f"for an option of your script, write `--set hyperparameters.{text}`"
    )


_FIELD = r"`(?P<field>(?P<name>[a-z_]+): [^`]+)`(?: under `(?P<above>[\w.]+)`)?"
"""A field with its value in a hint, as a job file has it: `gpu: H100`, or with its place: `type:
torch` under `x`."""


def hint_without_file(hint: str, path: ValuePath) -> str:
    """Return the hint for a job without a file: `--set resources.gpu=H100` instead of `gpu: H100`.
    The fields belong to the innermost part of `path`, the path of the wrong value, that has such a
    field."""

    def as_options(match: re.Match[str]) -> str:
        if match["above"]:
            above: ValuePath | None = tuple(match["above"].split("."))
        else:
            above = _holder_of(match["name"], path)
        if above is None:
            return match[0]
        try:
            texts = read_document(match["field"], "yaml").positions.texts
        except Unreadable:
            return match[0]
        words = []
        for inner, text in texts.items():
            field = dotted((*above, *inner))
            words.append(f"--set {quote(f'{field}={text}')}")
        return f"`{' '.join(words)}`" if words else match[0]

    return re.sub(_FIELD, as_options, hint)


def _holder_of(field: str, path: ValuePath) -> ValuePath | None:
    """Return the innermost part of the path below which a job has the field; None if none has
    it."""
    holder = None
    node = node_of_model(TrainingJob)  # pyright: ignore[reportArgumentType]  # it is hashable
    for length, part in enumerate((*path, "")):
        if field in node.field_names():
            holder = path[:length]
        node = node.child(part) or JSON
    return holder


def _split(text: str) -> tuple[list[str], str]:
    """Split an override such as `a."b.c"[0]=value` into the parts of its path and the text of its
    value."""
    parts: list[str] = []
    offset = 0
    sign = ""
    while sign != "=":
        match = _PART.match(text, offset)
        if match is None:
            field, equals, _ = text.partition("=")
            if not equals:
                raise _Refused(f"`{shortened(text)}` has no `=` after the field", _SYNTAX)
            raise _Refused(
                f"`{shortened(field)}` is not the path of a field",
                f'{_SYNTAX}; quote a key with dots: `hyperparameters."a.b"=1`',
            )
        if len(parts) == MAX_DEPTH:
            raise _Refused(
                f"`{shortened(text)}` has too many levels", "use fewer levels: a job has about five"
            )
        parts.append(_part(match))
        offset = match.end()
        sign = match["sign"]
    return parts, text[offset:]


def _part(match: re.Match[str]) -> str:
    """Return the key or the index that a part of a path names."""
    if match["double"] is not None:
        return re.sub(r"\\(.)", r"\1", match["double"])
    if match["single"] is not None:
        return match["single"]
    return match["index"] or match["bare"].strip()


def _apply(
    data: Data, parts: list[str], text: str, root: type[BaseModel]
) -> tuple[ValuePath, Positions, list[ValuePath]]:
    """Set the value at the path `parts` to `text` and create missing parents. After an error,
    `data` is unchanged. Return the path with its keys and indexes, the positions and spellings of
    the values in `text`, and the paths of other values that are gone."""
    shape: SchemaNode = node_of_model(root)
    holder: Any = data
    path: ValuePath = ()
    lost: list[ValuePath] = []
    # the missing parents: each with its own parent and its key
    additions: list[tuple[object, str | int, object]] = []
    for part in parts[:-1]:
        key, inner = _step(shape, holder, part, path, root)
        path = (*path, key)
        value = _get(holder, key)
        container = _container_for(value, inner, path)
        if container is not value:
            additions.append((holder, key, container))
            if value is not None and not container:
                lost.append(path)
        holder = container
        shape = inner
    key, inner = _step(shape, holder, parts[-1], path, root)
    path = (*path, key)
    document = _value(inner, text, path)

    for above, name, container in additions:
        _put(above, name, container)
    if text.strip() == "null":
        with suppress(KeyError, IndexError):
            del holder[key]
        return path, document.positions, lost
    _put(holder, key, document.data)
    if shape.kind == "choice" and key == "type":
        model = shape.model(document.data)
        if model is not None:
            for name in holder.keys() - model.model_fields.keys():
                del holder[name]
                lost.append((*path[:-1], name))
    return path, document.positions, lost


def _step(
    shape: SchemaNode, holder: object, part: str, path: ValuePath, root: type[BaseModel]
) -> tuple[str | int, SchemaNode]:
    """Convert `part` of an override's path to a key or index of `holder`, whose schema and path are
    `shape` and `path`. Return the key and the schema of its value."""
    if shape.kind == "value":
        raise _holds_one_value(path)
    if isinstance(holder, list):
        inner = shape.child(0)
        assert inner is not None, "only a list or any JSON holds a list"
        return _index(part, len(holder), path), inner
    tag = holder.get("type") if isinstance(holder, Mapping) else None
    child = shape.child(part, tag)
    if child is None:
        # costs start-up time, and most names are right
        from cloudtrain.job.explain import unknown_field

        path = (*path, part)
        wording = unknown_field(path, shape, root, tag)
        raise _Refused(wording.message, wording.hint, path, code=wording.code)
    return part, child


def _holds_one_value(path: ValuePath) -> _Refused:
    """Return the error for an override of something below a single value."""
    return _Refused(
        f"`{dotted(path)}` holds one value, so nothing can be set below it", _SYNTAX, path
    )


def _index(text: str, length: int, path: ValuePath) -> int:
    """Return the index that `text` names in a list of `length` entries, or of the next entry."""
    where = dotted(path)
    if not (text.isascii() and text.isdecimal()):
        message = f"`{where}` is a list, and `{shortened(text)}` is not an index"
        raise _Refused(message, f"write `{where}[0]`", path)
    if len(text) > _MAX_DIGITS or int(text) > length:
        message = f"`{where}` has {length} entries, so there is no `[{shortened(text)}]`"
        raise _Refused(message, f"the next one is `{where}[{length}]`", path)
    return int(text)


def _container_for(value: object, shape: SchemaNode, path: ValuePath) -> object:
    """Return the mapping or list at `path` in which an override can set a value: `value` if it has
    the right type, else a new mapping or list. A text that is written once for all targets becomes
    a mapping with this text for each target.
    """
    if isinstance(value, _CONTAINERS.get(shape.kind, dict)):
        return value
    if isinstance(value, str) and shape.model() is PerTarget:
        return dict.fromkeys(PerTarget.model_fields, value)
    if value is not None and shape.kind in ("value", "json"):
        raise _holds_one_value(path)
    return [] if shape.kind == "list" else {}


def _get(holder: Any, key: Any) -> object:
    """Return a value from a mapping or list; None if it is missing."""
    try:
        return holder[key]
    except (KeyError, IndexError):
        return None


def _put(holder: Any, key: Any, value: object) -> None:
    """Set a value in a mapping or list. The index after the last adds it to a list."""
    if isinstance(holder, list) and key == len(holder):
        holder.append(value)
    else:
        holder[key] = value


def _value(shape: SchemaNode, text: str, path: ValuePath) -> Content:
    """Convert the text of an override to a value of its field's type. A text that does not fit the
    type stays text, which validation refuses."""
    start = text.lstrip()[:1]
    openings = {"value": "", "json": "{[\"'"}.get(shape.kind, "{[")
    if start and start in openings:
        try:
            document = read_document(text, "yaml")
        except Unreadable as error:
            raise _refuse(error.problem, path) from None
        if document.problems:
            raise _refuse(document.problems[0], path)
        return document

    value: object = text
    if shape.options and shape.kind == "value":
        # An option may be a number.
        by_text = {str(option): option for option in shape.options}
        value = by_text.get(text, text)
    elif text and _reads_scalars(shape):
        value = read_scalar(text)
    return Content(value, Positions(texts={(): text}))


def _reads_scalars(shape: SchemaNode) -> bool:
    """Return whether a value of the field can be a number or `true`."""
    if shape.kind == "json":
        return True
    return shape.type in (int, bool, float) and not shape.has_parser
