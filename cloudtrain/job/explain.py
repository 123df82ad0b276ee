"""The wording of pydantic's errors: a message and a hint for each type of error, in the syntax of
the user's file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel

from cloudtrain.documents import JsonMapping
from cloudtrain.documents.document import Format, Unreadable, load_table, read_document
from cloudtrain.documents.toml_json import toml_text
from cloudtrain.errors import NearName, did_you_mean, dotted, shortened
from cloudtrain.job.nodes import (
    NAME_RULES,
    SchemaNode,
    Source,
    ValuePath,
    describe_value,
    mend_name,
    node_of_model,
)
from cloudtrain.job.other_tools import (
    distribution_hint,
    habit_hint,
    home_of,
    mapping_hint,
    place_hint,
)
from cloudtrain.system.plugins import all_targets

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class Wording(NamedTuple):
    """The text for one error: the message, a hint that says what to type, and the code for
    `cloudtrain explain`."""

    message: str
    hint: str
    code: str


def unknown_field(
    path: ValuePath, parent: SchemaNode, root: type[BaseModel] | None, tag: object = None
) -> Wording:
    """Return the text for a field that does not exist. `tag` is the value of `type` in the same
    mapping."""
    name = str(path[-1])
    names = parent.field_names(tag)
    root_node = node_of_model(root) if root is not None else parent
    near = did_you_mean(name, names)
    # A field that exists elsewhere is more likely meant than one of this place with a similar name.
    is_near = isinstance(near, NearName) and home_of(name, parent, root_node) is None
    hint = habit_hint(name, parent, root_node, names)
    if hint is None and not is_near:
        hint = place_hint(path, parent, root_node)

    owner = _owner(parent, path[:-1])
    message = f"`{shortened(name)}` is not a field of {owner}"
    return Wording(message, hint or near or "remove it", "CT010")


def _owner(parent: SchemaNode, path: ValuePath) -> str:
    """Return what has the fields at a path, in words: a path, or what the file holds."""
    if path:
        return f"`{shortened(dotted(path))}`"
    model = parent.model()
    if model is None:
        return "a job"
    for target in all_targets():
        if target.settings is model:
            return f"`[{target.name}]`"
    return _TITLES.get(model.__name__, f"`{model.__name__}`")


_TITLES = {"TrainingJob": "a job", "ProcessingJob": "a processing job", "Sweep": "a sweep"}


def label(path: ValuePath) -> str:
    """Return the last name of a path and the indexes after it, such as `instance_groups[0]`."""
    start = 0
    for position, part in enumerate(path):
        if isinstance(part, str):
            start = position
    return shortened(dotted(path[start:])) or "the job"


def explain(
    item: ErrorDetails,
    path: ValuePath,
    node: SchemaNode | None,
    parent: SchemaNode | None,
    source: Source,
) -> Wording:
    """Return the message, hint and code for one error of pydantic."""
    error_type = item["type"]
    value = item["input"]
    name = label(path)
    context = item.get("ctx", {})
    if error_type == "extra_forbidden" and parent is not None:
        return unknown_field(path, parent, source.root)
    if item["loc"][-1:] == ("[key]",):
        return _bad_key(str(value), context, path)
    if error_type == "string_pattern_mismatch":
        return _bad_pattern(name, str(value), context["pattern"])
    if error_type == "literal_error" and node is not None:
        return _no_option(name, value, node.options)
    if error_type == "union_tag_invalid" and node is not None:
        return _no_tag(name, value, context["tag"], node.options)

    text = _wordings().get(error_type)
    if text is not None:
        facts = {
            "name": name,
            "value": describe_value(value),
            "length": len(value) if isinstance(value, str) else 0,
            "above": context.get("gt", 0) + 1,
            **context,
        }
        return Wording(text.message.format(**facts), text.hint.format(**facts), text.code)
    if node is None or error_type == "value_error":
        return Wording(
            item["msg"].removeprefix("Value error, "),
            "write another value, or remove the line",
            "CT013",
        )
    if value is None:
        return Wording(f"`{name}` has no value", "write a value, or remove the line", "CT011")

    spelling = source.find_spelling(path) if source.find_spelling else None
    message = f"`{name}` must be {node.words}, not {describe_value(value, spelling)}"
    return Wording(message, _type_hint(node, name, value, spelling), "CT012")


_EXAMPLES = {int: "1", float: "1.5", bool: "true"}


def _example_value(node: SchemaNode) -> str:
    """Return a value that the node allows, or a pattern of one, in YAML on one line."""
    model = node.model()
    if node.options:
        first = node.options[0]
        return f"{{type: {first}}}" if node.kind == "choice" else str(first)
    if model is not None:
        fields = model.model_fields
        needed = [name for name, field in fields.items() if field.is_required()]
        texts = ", ".join(f"{name}: ..." for name in needed or [*fields][:1])
        return f"{{{texts}}}"
    if node.inner is not None:
        inner = _example_value(node.inner)
        return f"[{inner}]" if node.kind == "list" else f"{{NAME: {inner}}}"
    return _EXAMPLES.get(node.type, "text")


def _type_hint(node: SchemaNode, name: str, value: object, spelling: str | None) -> str:
    """Return the hint for a value of a wrong type: the value that was probably meant, or an
    example."""
    hint = None
    if name in _COUNTS and isinstance(value, int):
        hint = f"write `{_COUNTS[name]}: {value}` for the number, and here the name"
    elif node.words == "text" or node.kind == "json":
        hint = _hint_for_text(value, spelling)
    elif node.type is int:
        digits = re.fullmatch(r"\s*(-?\d{1,16})(?:\.0)?\s*", str(value))
        if digits:
            hint = f"write `{int(digits[1])}`, without quotes"
    elif node.type is bool and value != "" and isinstance(value, str | int):
        is_yes = str(value).casefold() in _YES
        hint = f"write `{json.dumps(is_yes)}`"
    elif node.kind == "list":
        item = node.child(0)
        is_mapping = item is not None and item.kind in _MAPPINGS and not item.has_parser
        if isinstance(value, str) and not is_mapping:
            hint = f"write `{name}: [{shortened(value)}]`"
    elif node.kind in _MAPPINGS:
        hint = mapping_hint(node, name, value)
    if hint is not None:
        return hint
    example = _example_value(node)
    if not name.endswith("]"):  # no name in a list
        example = f"{name}: {example}"
    return f"write for example `{example}`"


_COUNTS = {"gpu": "gpus_per_instance"}
"""Fields for a name in which others write a number, and the field for the number."""

_YES = ("yes", "on", "true", "1")
_MAPPINGS = ("model", "choice", "map")


def _hint_for_text(value: object, spelling: str | None) -> str | None:
    """Return the hint for a value in a field of text; None if it could not be written as text."""
    if isinstance(value, os.PathLike):
        return "write it as text: a path drops one slash of a URI"
    if spelling or isinstance(value, bool | int | float):
        text = shortened(spelling or describe_value(value).strip("`"))
        return f'write `"{text}"`, in quotes'
    return None


def _no_option(name: str, value: object, options: Sequence[object]) -> Wording:
    """Return the text for a value that is not one of the allowed ones."""
    word = value if isinstance(value, str) else ""
    hint = did_you_mean(word, map(str, options)) or "remove it"
    return Wording(f"`{name}` cannot be {describe_value(value)}", hint, "CT013")


def _no_tag(name: str, value: object, tag: str, tags: Sequence[str]) -> Wording:
    """Return the text for a `type` that does not exist."""
    type_name = value.get("type") if isinstance(value, Mapping) else tag
    if not isinstance(type_name, str):
        return _no_option("type", type_name, tags)
    message = f"`{shortened(type_name)}` is not a {name}"
    hint = distribution_hint(type_name) or did_you_mean(type_name, tags)
    return Wording(message, hint or f"write `type: {tags[0]}`", "CT013")


def _bad_pattern(name: str, value: str, pattern: str) -> Wording:
    """Return the text for a text, such as a name, that has letters which are not allowed."""
    rule = NAME_RULES.get(pattern) or f"what matches {pattern}"
    message = f"`{name}` may contain only {rule}; {describe_value(value)} is not valid"
    example = mend_name(value, pattern, 40) or "my-job"
    return Wording(message, f"write for example `{example}`", "CT016")


def _bad_key(key: str, context: JsonMapping, path: ValuePath) -> Wording:
    """Return the text for a name, such as that of an input, that is not valid."""
    kind = {"inputs": "an input", "outputs": "an output"}.get(str(path[0]), "an entry")
    pattern = context.get("pattern", "")
    rule = NAME_RULES.get(pattern) or f"at most {context.get('max_length')} characters"
    message = f"`{shortened(key)}` cannot name {kind}: use {rule}"
    return Wording(message, f"write `{mend_name(key, pattern, 64) or 'train'}`", "CT016")


@cache
def _wordings() -> Mapping[str, Wording]:
    """Map pydantic's name of an error to our text. Errors of type (`int_type`, ...) are explained
    by the node."""
    table = load_table(__file__, "wordings.toml")
    return {kind: Wording(**texts) for kind, texts in table.items()}


# Conversion of hints, which are written as YAML, to the syntax of the user's file, which may be
# TOML or JSON.

_FIELD = re.compile(r"`([A-Za-z_]\w*: [^`]+)`")


def in_form(hint: str | None, format: Format) -> str | None:
    """Return the hint with each `field: value` in the syntax of `format`."""
    if hint is None or format == "yaml":
        return hint

    def convert(match: re.Match[str]) -> str:
        # a pattern that is not YAML, such as `checkpoint: {...}`, stays as it is
        try:
            data = read_document(match[1], "yaml").data
        except (Unreadable, UnicodeEncodeError):  # or half of a surrogate pair, from JSON
            return match[0]
        if not isinstance(data, dict):
            return match[0]
        text = json.dumps(data, ensure_ascii=False) if format == "json" else toml_text(data)
        return f"`{text[1:-1]}`"

    return _FIELD.sub(convert, hint)
