"""The allowed content at each path of a job, derived from the models' fields. Error messages,
overrides and the JSON schema use this description."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, JsonValue

from cloudtrain.documents.document import Positions
from cloudtrain.errors import Problem, ValidNames, quoted, shortened
from cloudtrain.errors import ValuePath as ValuePath

Kind = Literal["model", "choice", "map", "list", "json", "value"]


class SchemaNode(NamedTuple):
    """The schema at one path of a job.

    Attributes:
        kind: `model` (fixed fields), `choice` (one of several models, selected by `type`), `map`
            (any keys), `list`, `json` (any JSON value) or `value` (a single value).
        words: a description of the allowed values, such as `a whole number`.
        models: the pydantic models: for a `model`, one by its class name; for a `choice`, several
            by their values of `type`.
        inner: the node of the items of a map or list.
        options: the allowed values, if they can be listed.
        has_parser: whether the field has its own parser for text, such as `2h` or a short form of a
            mapping.
    """

    kind: Kind
    words: str
    models: Mapping[str, type[BaseModel]] = {}
    inner: SchemaNode | None = None
    options: tuple[Any, ...] = ()
    has_parser: bool = False
    type: Any = None

    def model(self, tag: object = None) -> type[BaseModel] | None:
        """Return the pydantic model of this node; for a choice, the one whose `type` is `tag`. None
        if there is no such model."""
        if self.kind == "model":
            return next(iter(self.models.values()))
        return self.models.get(tag) if isinstance(tag, str) else None

    def child(self, part: str | int, tag: object = None) -> SchemaNode | None:
        """Return the node for the key or index `part`; None if `part` is not allowed. `tag` is the
        value of `type` at this node; without it, the fields of all models of a choice are
        allowed."""
        if self.kind in ("map", "list"):
            return self.inner
        if self.kind == "json":
            return self
        for model in self._models_with(tag):
            if part in model.model_fields:
                return node_of_field(model, str(part))
        return None

    def field_names(self, tag: object = None) -> list[str]:
        """Return the names of the fields that are allowed at this node. If the node is one of
        several models, `tag` selects a model. Without `tag`, return the fields of all models."""
        names: dict[str, None] = {}
        for model in self._models_with(tag):
            names.update(dict.fromkeys(model.model_fields))
        return list(names)

    def _models_with(self, tag: object) -> Iterable[type[BaseModel]]:
        """Return the model that `tag` selects, or all models if it selects none."""
        model = self.model(tag)
        return self.models.values() if model is None else [model]


JSON = SchemaNode("json", "text, a number, `true`, `false`, a list or a mapping")

_VALUES = {str: "text", int: "a whole number", float: "a number", bool: "`true` or `false`"}


@cache
def node_of_model(model: type[BaseModel]) -> SchemaNode:
    """Return the node of a mapping that becomes the model."""
    return SchemaNode("model", "a mapping", {model.__name__: model})


@cache
def node_of_field(model: type[BaseModel], name: str) -> SchemaNode:
    """Return the node of the field `name` of a model."""
    info = model.model_fields[name]
    return _node(info.annotation, _has_parser(info.metadata))


def _has_parser(metadata: Iterable[object]) -> bool:
    """Return whether the metadata of an annotation holds a function that parses text."""
    return any(isinstance(item, BeforeValidator) for item in metadata)


def _node(annotation: Any, has_parser: bool = False) -> SchemaNode:
    """Return the node of a value that pydantic validates by the annotation."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        return _node(arguments[0], has_parser or _has_parser(arguments[1:]))
    if origin in (Union, UnionType):
        options = [option for option in arguments if option is not type(None)]
        if len(options) == 1:
            return _node(options[0], has_parser)
        if _is_model(options[0]):
            models = {str(option.model_fields["type"].default): option for option in options}
            return SchemaNode("choice", "a mapping with a `type`", models, options=tuple(models))
        *others, last = [_node(option).words for option in options]
        return SchemaNode("json", f"{', '.join(others)} or {last}")
    if annotation is JsonValue:
        return JSON
    if origin is Literal:
        words = "one of " + quoted(arguments)
        return SchemaNode("value", words, options=arguments, type=type(arguments[0]))
    if origin is dict:
        return SchemaNode("map", "a mapping", inner=_node(arguments[1]))
    if origin is tuple:
        return SchemaNode("list", "a list", inner=_node(arguments[0]))
    if _is_model(annotation):
        words = "text or a mapping" if has_parser else "a mapping"
        return SchemaNode("model", words, {annotation.__name__: annotation}, has_parser=has_parser)
    return SchemaNode("value", _VALUES[annotation], has_parser=has_parser, type=annotation)


def _is_model(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def plain_path(
    location: ValuePath, root: type[BaseModel]
) -> tuple[ValuePath, SchemaNode | None, SchemaNode | None]:
    """Convert the location of a pydantic error to the path that a user sees, without union tags and
    key markers.

    Returns:
        The path, the node at the end of the path, and the parent of that node. A node is None if it
            is not known.
    """
    path: list[str | int] = []
    node: SchemaNode | None = node_of_model(root)
    parent: SchemaNode | None = None
    after_tag = False
    for part in location:
        if part == "[key]":
            continue
        if node is not None and node.kind in ("choice", "json") and not after_tag:
            model = node.model(part)
            after_tag = model is None  # the tag of a plain type, such as `int`
            if model is not None:
                node = node_of_model(model)
            continue
        path.append(part)
        parent = node
        node = parent.child(part) if parent is not None else None
        after_tag = False
    return tuple(path), node, parent


# The rules for names that users choose in a job: regular expressions and their descriptions.

MODULE = r"-m [A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
"""An entry point that is a module."""

JOB_NAME = r"^[a-zA-Z0-9](-*[a-zA-Z0-9])*$"
"""The name of a job, valid for both SageMaker training jobs and Azure ML jobs."""

MAX_JOB_NAME = 40
"""Maximum length of a job's name, so that a run's name with hash and counter fits every target."""

PLACE_NAME = r"^[a-zA-Z_][a-zA-Z0-9_]*$"
"""The name of an input or output, valid for both SageMaker's channels and Azure ML's keys."""


NAME_RULES = {
    JOB_NAME: "letters, digits and hyphens, with a letter or digit at both ends",
    PLACE_NAME: "letters, digits and underscores, and no digit first",
}
"""The patterns of names, in words."""


def mend_name(name: str, pattern: str, length: int) -> str | None:
    """Return a valid name like `name`, such as `my-job` for `my job`; None if there is none. A
    valid name matches `pattern`, and has at most `length` characters."""
    filler = "-" if pattern == JOB_NAME else "_"
    text = re.sub("[^a-zA-Z0-9]+", filler, name).strip(filler)
    if pattern == PLACE_NAME:
        text = text.lstrip("0123456789_")
    text = text[:length].rstrip(filler)
    return text if re.search(pattern, text) else None


# Helpers for messages about values in a job: the origin of a value, its original spelling, and a
# short form.

FindSpelling = Callable[[ValuePath], "str | None"]
"""Returns the spelling of the value at a path in its file: `2.10` for the value 2.1."""


class KeyProblem(Problem):
    """A problem with the name of a field. The reported position is the position of the key instead
    of the value."""


def placed(problem: Problem, file: str, positions: Positions) -> Problem:
    """Return the problem with the file, and the line and column of the value that causes it, if
    they are known."""
    place = positions.of(problem.path, key=isinstance(problem, KeyProblem))
    line, column = place or (None, None)
    return replace(problem, file=file, line=line, column=column)


@dataclass(frozen=True)
class MissingProblem(Problem):
    """A problem for a missing field. It is dropped if another problem reports that the field's name
    is misspelt."""

    alternatives: tuple[str, ...] = ()
    """Other fields, each of which is an alternative to this one."""

    def is_echo_of(self, other: Problem) -> bool:
        """Return whether the other problem reports a misspelt name, with a hint that names this
        missing field or a field that can be given instead."""
        is_beside = other.path[:-1] == self.path[:-1]
        hint = other.hint or ""
        if not isinstance(other, KeyProblem) or not is_beside or isinstance(hint, ValidNames):
            return False
        names = (self.path[-1], *self.alternatives)
        return any(f"`{name}" in hint for name in names)


class Source(NamedTuple):
    """The origin of a model's data: the root model, the path under it, and a function that returns
    the original spelling of a value."""

    root: type[BaseModel]
    under: ValuePath = ()
    find_spelling: FindSpelling | None = None


def describe_value(value: object, spelling: str | None = None) -> str:
    """Return a short form of a value for a message: `"two"`, `2.10`, a list. `spelling` is the
    original spelling of a number."""
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
        if len(text) > 40:
            text = f"{text[:37]}..."
        return f"`{text}`"
    if value is None or isinstance(value, bool):
        return f"`{json.dumps(value)}`"
    if isinstance(value, int | float):
        try:
            return f"`{shortened(spelling or str(value))}`"
        except ValueError:  # Python does not write numbers of more than 4300 digits
            return "a number of too many digits"
    if isinstance(value, Mapping | BaseModel):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return f"`{type(value).__name__}`"


# The changes that overrides made to a job.


class Changes(NamedTuple):
    """The changes that overrides made: for each changed path, the override and the spelling of the
    new value. `problems` are about overrides that could not be applied."""

    origins: Mapping[ValuePath, str] = {}
    texts: Mapping[ValuePath, str] = {}
    problems: tuple[Problem, ...] = ()

    def origin(self, path: ValuePath) -> str | None:
        """Return the override (`--set a.b=1`) that set the value at a path or one of its parents;
        None if none did."""
        while path:
            if path in self.origins:
                return self.origins[path]
            path = path[:-1]
        return None
