"""Pydantic's errors in the words of the job: a table from the type of an error to a message and a hint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from cloudtrain.errors import Problem, did_you_mean
from cloudtrain.problems.habits import distribution_hint, elsewhere_hint, habit_hint, mapping_hint, training_hint
from cloudtrain.problems.names import mended, rule_of
from cloudtrain.problems.shape import Shape, plain_path, shape_of_model
from cloudtrain.problems.source import Path, Source, shown

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = ["explain", "plain_path", "unknown_field"]


def unknown_field(
    path: Path, parent: Shape, root: type[BaseModel] | None = None, tag: object = None
) -> tuple[str, str | None]:
    """The message and the hint for a field that does not exist; `tag` is the `type` that was chosen beside it."""
    name, known = str(path[-1]), parent.field_names(tag)
    whole = shape_of_model(root) if root is not None else parent
    near = did_you_mean(name, known)
    hint = training_hint(name, parent) or habit_hint(name, parent, whole, known)
    if hint is None and not (near or "").startswith("did you mean"):
        hint = elsewhere_hint(name, parent, whole)
    hint = hint or near
    return f"`{name}` is not a field of {_owner(parent, path[:-1])}", hint


def _owner(parent: Shape, path: Path) -> str:
    if path:
        return f"`{Problem(path, '').dotted}`"
    model = parent.model()
    return "a job" if model is None else _TITLES.get(model.__name__, f"`{model.__name__}`")


_TITLES = {"TrainingJob": "a job", "ProcessingJob": "a processing job"}


def label(path: Path) -> str:
    """The last name of a path, with its indexes: `instance_groups[0]`."""
    start = max((i for i, part in enumerate(path) if isinstance(part, str)), default=0)
    return Problem(path[start:], "").dotted or "the job"


_Said = tuple[str, "str | None"]


def explain(item: ErrorDetails, path: Path, shape: Shape | None, parent: Shape | None, source: Source) -> _Said:
    """One error of pydantic as a message and a hint."""
    kind, value, name = item["type"], item["input"], label(path)
    context = item.get("ctx", {})
    if kind == "extra_forbidden" and parent is not None:
        return unknown_field(path, parent, source.root)
    if item["loc"][-1:] == ("[key]",):
        return _bad_key(str(value), context, path)
    if kind in _WITH_CONTEXT:
        return _WITH_CONTEXT[kind](name, value, context)
    if shape is None or kind == "value_error":
        return item["msg"].removeprefix("Value error, "), None
    if value is None:
        return f"`{name}` has no value", "give it one, or remove the line"
    written = source.written(path) if source.written else None
    if kind == "invalid-json-value":  # a date in TOML, or an object in Python
        words = "text, a number, `true`, `false`, a list or a mapping"
        return f"`{name}` must be {words}, not {shown(value)}", f'write `"{written}"`, in quotes' if written else None
    return f"`{name}` must be {shape.words}, not {shown(value, written)}", _type_hint(shape, name, value, written)


def _type_hint(shape: Shape, name: str, value: Any, written: str | None) -> str | None:
    if shape.words == "text" and isinstance(value, bool | int | float):
        text = written or (str(value).lower() if isinstance(value, bool) else str(value))
        return f'write `"{text}"`, in quotes'
    if shape.type is int and isinstance(value, str) and len(value) < 20 and value.strip().isdecimal():
        return f"write `{int(value)}`, without quotes"
    if shape.type is bool and isinstance(value, str | int):
        word = str(value).casefold()
        return "write `true`" if word in ("yes", "on", "true", "1") else "write `false`" if word else None
    if shape.kind == "list" and isinstance(value, str):
        return f"write `{name}: [{value}]`"
    return mapping_hint(shape, name, value) if shape.kind in ("model", "choice", "map") else None


def _missing(name: str, _: Any, __: Mapping[str, Any]) -> _Said:
    return f"`{name}` is missing", f"add `{name}: ...`"


def _no_option(name: str, value: Any, options: Sequence[Any]) -> _Said:
    texts = [str(option) for option in options]
    hint = did_you_mean(value, texts) if isinstance(value, str) else None
    return f"`{name}` cannot be {shown(value)}", hint or did_you_mean("", texts)


def _no_tag(name: str, value: Any, context: Mapping[str, Any]) -> _Said:
    tags = [tag.strip("' ") for tag in context["expected_tags"].split(",")]
    written = value.get("type") if isinstance(value, Mapping) else context["tag"]
    if not isinstance(written, str):
        return _no_option("type", written, tags)
    kind = "an" if name[0] in "aeiou" else "a"
    return f"`{written}` is not {kind} {name}", distribution_hint(written) or did_you_mean(written, tags)


def _needs_tag(name: str, _: Any, __: Mapping[str, Any]) -> _Said:
    return f"`{name}` needs a `type`", f"add for example `type: torch` under `{name}`"


def _too_small(name: str, value: Any, context: Mapping[str, Any]) -> _Said:
    return f"`{name}` must be at least {context['ge']}, not {shown(value)}", None


def _too_big(name: str, value: Any, context: Mapping[str, Any]) -> _Said:
    return f"`{name}` must be at most {context['le']}, not {shown(value)}", None


def _too_long(name: str, value: Any, context: Mapping[str, Any]) -> _Said:
    limit = context["max_length"]
    return f"`{name}` has {len(value)} characters, and at most {limit} are allowed", f"shorten it to {limit} characters"


def _too_short(name: str, _: Any, __: Mapping[str, Any]) -> _Said:
    return f"`{name}` is empty", "give it a text"


def _pattern(name: str, value: Any, context: Mapping[str, Any]) -> _Said:
    pattern = context["pattern"]
    better = mended(value, pattern, 40)
    hint = f"write for example `{better}`" if better else None
    return f"`{name}` may hold {rule_of(pattern) or f'what matches {pattern}'}; {shown(value)} does not fit", hint


def _bad_key(key: str, context: Mapping[str, Any], path: Path) -> _Said:
    kind = {"inputs": "an input", "outputs": "an output"}.get(str(path[0]), "an entry")
    if "max_length" in context:
        return f"`{key}` is too long for the name of {kind}", f"use at most {context['max_length']} characters"
    pattern = context.get("pattern", "")
    better = mended(key, pattern, 64)
    rule = rule_of(pattern) or "text"
    return f"`{key}` cannot name {kind}: use {rule}", f"write `{better}`" if better else None


_WITH_CONTEXT: dict[str, Callable[[str, Any, Mapping[str, Any]], _Said]] = {
    "missing": _missing,
    "literal_error": lambda name, value, context: _no_option(name, value, _expected(context)),
    "union_tag_invalid": _no_tag,
    "union_tag_not_found": _needs_tag,
    "greater_than_equal": _too_small,
    "less_than_equal": _too_big,
    "string_too_long": _too_long,
    "string_too_short": _too_short,
    "string_pattern_mismatch": _pattern,
}
"""From pydantic's name of an error to our words; errors of type (`int_type`, ...) are told by the shape instead."""


def _expected(context: Mapping[str, Any]) -> list[str]:
    """The options in pydantic's `'mount', 'download' or 'pipe'`."""
    return [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
