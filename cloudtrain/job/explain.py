"""The wording of pydantic's errors: a message and a hint for each type of error, in the syntax of
the user's file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel

from cloudtrain.documents import JsonMapping
from cloudtrain.documents.document import Format, Unreadable, load_table, read_document
from cloudtrain.documents.toml_json import toml_text
from cloudtrain.errors import NearName, did_you_mean, dotted, quoted, shortened
from cloudtrain.job.nodes import (
    NAME_RULES,
    SchemaNode,
    Source,
    ValuePath,
    describe_value,
    mend_name,
    node_of_model,
)
from cloudtrain.system.plugins import DEFAULT_TARGET, all_targets, target_names

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class Wording(NamedTuple):
    """The text for one error: the message, a hint that says what to type, and the code for
    `cloudtrain explain`."""

    message: str
    hint: str
    code: str


def unknown_field(
    path: ValuePath, parent: SchemaNode, root: type[BaseModel], tag: object = None
) -> Wording:
    """Return the text for a field that does not exist. `tag` is the value of `type` in the same
    mapping."""
    name = str(path[-1])
    names = parent.field_names(tag)
    root_node = node_of_model(root)
    near = did_you_mean(name, names)
    # A field that exists elsewhere is more likely meant than one of this place with a similar name.
    is_near = isinstance(near, NearName) and _home_of(name, parent, root_node) is None
    hint = _habit_hint(name, parent, root_node, names)
    if hint is None and not is_near:
        hint = _place_hint(path, parent, root_node)

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
        length = len(value) if isinstance(value, str) else 0
        facts = {"name": name, "value": describe_value(value), "length": length, **context}
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
    elif node.type is int and isinstance(value, str | float):
        digits = re.fullmatch(r"\s*(-?\d{1,16})(?:\.0)?\s*", str(value))
        if digits:
            hint = f"write `{int(digits[1])}`"
            if isinstance(value, str):
                hint += ", without quotes"
    elif node.type is bool and value != "" and isinstance(value, str | int):
        is_yes = describe_value(value).strip('`"').casefold() in _YES
        hint = f"write `{json.dumps(is_yes)}`"
    elif node.kind == "list":
        item = node.child(0)
        is_mapping = item is not None and item.kind in _MAPPINGS and not item.has_parser
        if isinstance(value, str) and not is_mapping:
            hint = f"write `{name}: [{shortened(value)}]`"
    elif node.kind in _MAPPINGS:
        hint = _mapping_hint(node, name, value)
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
        return "write `str(path)`; write a URI as text, because a path drops one of its slashes"
    if isinstance(value, str):  # of which half a character is wrong
        return None
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
    ours = _DISTRIBUTION.get(type_name.casefold())
    hint = NearName.of(ours) if ours else did_you_mean(type_name, tags)
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


# Hints for field names of other tools, such as SageMaker, Azure ML, torchrun and Slurm, and for
# short forms.

_TABLES = load_table(__file__, "other_tools.toml")


def _ours_by_habit(table: str) -> dict[str, str]:
    """Return a table that maps other tools' names to ours. The file has it the other way round."""
    ours_by_habit: dict[str, str] = {}
    for ours, habits in _TABLES[table].items():
        ours_by_habit.update(dict.fromkeys(habits.split(), ours))
    return ours_by_habit


_MEANT = _ours_by_habit("fields")
"""Maps names from other tools to ours. Searched only for names that are not fields at their
position."""

_DISTRIBUTION = _ours_by_habit("distributions")

_ACCOUNT = frozenset(
    (
        "target compute_target role_arn security_groups keep_alive_period_in_seconds "
        "workspace_name experiment_name"
    ).split()
)
"""Names that other tools have in a job and cloudtrain has in the settings of a target."""


def _habit_hint(
    name: str, parent: SchemaNode, root: SchemaNode, names: Iterable[str]
) -> str | None:
    """Return a hint for a name that other tools, or cloudtrain elsewhere, have for a field: at the
    top of a job for a target or its choice, and for a field of training jobs in a processing job.
    Return None for other names. `names` are those of the fields in `parent`."""
    if parent is root:
        if name in ("target", "settings", "profile"):
            return (
                "choose one with `--target NAME` and `--profile NAME`; settings are in "
                "`cloudtrain.toml`"
            )
        if name in target_names():
            return f"its settings are in `cloudtrain.toml`, under `[{name}]`"
    if list(parent.models) == ["ProcessingJob"] and name in _TABLES["only_training"]:
        return str(_TABLES["only_training"][name])
    word = name.casefold().replace("-", "_")
    field = _MEANT.get(word)
    for target in all_targets():
        if word in target.facts.place_aliases:  # `s3_uri` means `sagemaker`
            field = str(target.name)
    if field is None:
        return None
    home = field if field in names else _home_of(field, parent, root)
    return NearName.of(home) if home else None


def _place_hint(path: ValuePath, parent: SchemaNode, root: SchemaNode) -> str | None:
    """Return a hint for a field that belongs to another `type` than the chosen one, such as another
    distribution, or to another position in the job, or to a target's settings. If no such field
    exists, return a hint to the field of the job with almost this name; None if there is none."""
    holder: SchemaNode | None = root
    for part in path[:-1]:
        holder = holder.child(part) if holder is not None else None
    if holder is not None and holder.kind == "choice":
        others = _types_with(path[-1], holder)
        if others:
            return f"remove it: it belongs to {quoted(others)}"

    word = str(path[-1]).casefold().replace("-", "_")
    home = _home_of(word, parent, root)
    if home is None:
        settings = [target.settings.model_fields for target in all_targets()]
        if any(word in names for names in (_ACCOUNT, *settings)):
            return "put it in `cloudtrain.toml`: it is a setting of the target, not of a job"
        # Of two paths with the same last name, the first one counts.
        paths = {path.rpartition(".")[2]: path for path in reversed(_paths(root))}
        near = get_close_matches(word, paths, n=1, cutoff=0.8)
        return NearName.of(paths[near[0]]) if near else None

    above, _, field = home.rpartition(".")
    if not above:
        return f"`{field}` belongs at the top of the job"
    holder = root.child(above)
    if holder is not None and holder.kind == "choice":
        kind = _types_with(field, holder)[0]
        return f"it belongs under `{above}` with a `type` that has it: `{kind}`"
    return f"it belongs under `{above}`"


def _types_with(field: str | int, choice: SchemaNode) -> list[str]:
    """Return each `type: NAME` whose model has the field."""
    return [f"type: {kind}" for kind, model in choice.models.items() if field in model.model_fields]


def _home_of(name: str, parent: SchemaNode, root: SchemaNode) -> str | None:
    """Return the path of the first field called `name` that is found one level below `parent`, at
    the top level of the job, or one level below the top; None if there is none."""
    for path in (*_paths(parent), *root.field_names(), *_paths(root)):
        if f".{path}".endswith(f".{name}"):
            return path
    return None


def _paths(node: SchemaNode) -> list[str]:
    """Return the paths one level below the fields of a node, such as `resources.instance_count`."""
    paths = []
    for name in node.field_names():
        child = node.child(name)
        if child is not None and child.kind in ("model", "choice"):
            paths += [f"{name}.{inner}" for inner in child.field_names()]
    return paths


def _mapping_hint(node: SchemaNode, name: str, value: object) -> str | None:
    """Return a hint with the mapping that the user probably meant by `value`, such as a text, in
    the field `name`. Return None if no mapping is likely."""
    if isinstance(value, str) and node.kind == "choice":
        word = value.casefold()
        near = get_close_matches(_DISTRIBUTION.get(word, word), node.options, n=1)
        type_name = near[0] if near else node.options[0]
        return f"write `{name}: {{type: {type_name}}}`"
    if isinstance(value, str) and DEFAULT_TARGET in node.field_names():
        owner = DEFAULT_TARGET
        for target in all_targets():
            if value.startswith(target.facts.place_prefixes):
                owner = str(target.name)
        return f"write `{name}: {{{owner}: {value}}}`"
    if value is True:
        return f"write `{name}: {{}}`"
    # A model is no single value, and among those of `secrets` may be a secret.
    if not isinstance(value, list) or node.inner is None or node.inner.kind == "model":
        return None

    entries = []
    for item in value:
        if isinstance(item, str) and "=" in item:
            key, _, text = item.partition("=")
            if node.inner.type is str:
                text = json.dumps(text, ensure_ascii=False)
            entries.append(f"{key}: {text}")
    return f"write `{name}: {{{', '.join(entries)}}}`" if entries else None


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
