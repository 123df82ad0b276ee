"""The allowed content at each path of a job, derived from the models' fields. Error messages, overrides and the JSON
schema use this description.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, JsonValue

Kind = Literal["model", "choice", "map", "list", "json", "value"]
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class SchemaNode:
    """The schema at one path of a job.

    Attributes:
        kind: `model` (fixed fields), `choice` (one of several models, selected by `type`), `map` (any keys), `list`,
            `json` (any JSON value) or `value` (a single value).
        words: a description of the allowed values, such as `a whole number`.
        models: the pydantic models: for a `model`, one by its class name; for a `choice`, several by their values of
            `type`.
        inner: the node of the items of a map or list.
        options: the allowed values, if they can be listed.
        parsed: whether the field has its own parser for text, such as `2h` or a short form of a mapping.
    """

    kind: Kind
    words: str
    models: Mapping[str, type[BaseModel]] = field(default_factory=dict)
    inner: SchemaNode | None = None
    options: tuple[Any, ...] = ()
    parsed: bool = False
    type: Any = None

    def model(self, tag: object = None) -> type[BaseModel] | None:
        """Return the pydantic model of this node; for a choice, the one whose `type` is `tag`. None if there is no such
        model.
        """
        if self.kind == "model":
            return next(iter(self.models.values()))
        return self.models.get(tag) if isinstance(tag, str) else None

    def child(self, part: str | int, tag: object = None) -> SchemaNode | None:
        """Return the node for the key or index `part`; None if `part` is not allowed. `tag` is the value of `type` at
        this node; without it, the fields of all models of a choice are allowed.
        """
        if self.kind in ("map", "list"):
            return self.inner
        if self.kind == "json":
            return self
        chosen = self.model(tag)
        for model in [chosen] if chosen else self.models.values():
            if part in model.model_fields:
                return node_of_field(model, str(part))
        return None

    def field_names(self, tag: object = None) -> list[str]:
        """Return the names of the fields that are allowed at this node. If the node is one of several models,
        `tag` selects a model. Without `tag`, return the fields of all models.
        """
        chosen = self.model(tag)
        models = [chosen] if chosen else list(self.models.values())
        return list(dict.fromkeys(name for model in models for name in model.model_fields))


JSON = SchemaNode("json", "a JSON value")

_VALUES = {str: "text", int: "a whole number", float: "a number", bool: "`true` or `false`"}


@cache
def node_of_model(model: type[BaseModel]) -> SchemaNode:
    """Return the node of one model."""
    return SchemaNode("model", "a mapping", {model.__name__: model})


@cache
def node_of_field(model: type[BaseModel], name: str) -> SchemaNode:
    """Return the node of one field of a model."""
    info = model.model_fields[name]
    parsed = any(isinstance(item, BeforeValidator) for item in info.metadata)
    return _node(info.annotation, parsed)


def _node(annotation: Any, parsed: bool = False) -> SchemaNode:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        own = any(isinstance(item, BeforeValidator) for item in arguments[1:])
        return _node(arguments[0], parsed or own)
    if origin in (Union, UnionType):
        return _union([option for option in arguments if option is not type(None)], parsed)
    if annotation is JsonValue:
        return JSON
    if origin is Literal:
        return SchemaNode("value", "one of " + _quote_all(arguments), options=arguments, type=type(arguments[0]))
    if origin is dict:
        return SchemaNode("map", "a mapping", inner=_node(arguments[1]))
    if origin is tuple:
        return SchemaNode("list", "a list", inner=_node(arguments[0]))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        words = "text or a mapping" if parsed else "a mapping"
        return SchemaNode("model", words, {annotation.__name__: annotation}, parsed=parsed)
    return SchemaNode("value", _VALUES[annotation], parsed=parsed, type=annotation)


def _union(options: list[Any], parsed: bool) -> SchemaNode:
    if len(options) == 1:
        return _node(options[0], parsed)
    if not any(isinstance(option, type) and issubclass(option, BaseModel) for option in options):
        words = list(dict.fromkeys(_node(option).words for option in options))
        words = ["a number" if word == "a whole number" and "a number" in words else word for word in words]
        return SchemaNode("json", _either(list(dict.fromkeys(words))))
    models = {tag_of(option): option for option in options}
    return SchemaNode("choice", "a mapping with a `type`", models, options=tuple(models))


def _either(words: list[str]) -> str:
    """Join alternatives to one text, such as `text, a number or a list`."""
    words = sorted(words, key=lambda word: " or " in word)
    return ", ".join(words) if " or " in words[-1] else f"{', '.join(words[:-1])} or {words[-1]}"


def tag_of(model: type[BaseModel]) -> str:
    """Return the value of `type` that selects `model` in a choice. It is the default of the model's field `type`."""
    return str(model.model_fields["type"].default)


def _quote_all(values: tuple[Any, ...]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def plain_path(location: Path, root: type[BaseModel]) -> tuple[Path, SchemaNode | None, SchemaNode | None]:
    """Convert the location of a pydantic error to the path that a user sees, without union tags and key markers.

    Returns:
        The path, the node at the end of the path, and the parent of that node. A node is None if it is not known.
    """
    path: list[str | int] = []
    node: SchemaNode | None = node_of_model(root)
    parent: SchemaNode | None = None
    after_tag = False
    for part in location:
        if part == "[key]":
            continue
        if node is not None and node.kind in ("choice", "json") and not after_tag:
            chosen = node.model(part)
            after_tag = chosen is None
            node = node_of_model(chosen) if chosen else node
            continue
        path.append(part)
        parent, node = node, node.child(part) if node is not None else None
        after_tag = False
    return tuple(path), node, parent
