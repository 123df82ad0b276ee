"""Convert texts from the command line to the types that the script declares."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
_NONE = frozenset({"", "none", "null"})
SEQUENCES = (list, tuple)
CONTAINERS = (*SEQUENCES, dict)
"""Types whose text may contain spaces, at which a shell may have split it."""

_TEXTS = (str, Path, Literal)
_UNIONS: tuple[object, ...] = (Union, getattr(types, "UnionType", Union))  # written `int | None` from Python 3.10 on


def convert(value: Any, kind: Any) -> Any:
    """Convert `value`, a text or JSON data, to the type `kind`, such as `int`, `list[int]`, `dict`, `Literal[...]` or
    `X | None`.

    Containers may be written as Python literals (`[1, 2]`, as SageMaker passes a list), as JSON, or as `1,2` and
    `a=1,b=2`. In a list of strings, the elements of `3.10,3.11` stay strings.

    Raises:
        ValueError: the value does not fit the type; the message names the expected form.
    """
    if get_origin(kind) in _UNIONS:
        return _convert_union(value, get_args(kind))
    if kind is Any:
        return _guess(value)
    if get_origin(kind) is Literal:
        return _choice(value, get_args(kind))
    container = get_origin(kind) or kind
    if container in _CONTAINERS:
        return _CONTAINERS[container](value, get_args(kind))
    if kind not in _SCALARS:
        raise ValueError(f"cannot be given on the command line: its type is `{kind}`")
    return _SCALARS[kind](value)


def is_one_of(kind: Any, kinds: Collection[Any]) -> bool:
    """Return whether the type `kind` is in `kinds`. A union counts if any of its members is in `kinds`. The types of
    elements are ignored, so `list[int]` counts as `list`.
    """
    if get_origin(kind) in _UNIONS:
        return any(is_one_of(option, kinds) for option in get_args(kind))
    return (get_origin(kind) or kind) in kinds


def kind_of(value: Any) -> Any:
    """Return the type of a default value. `[1, 2]` gives `list[int]`, because all elements have the same type; None
    gives `Any`.
    """
    if value is None:
        return Any
    if isinstance(value, (list, tuple)) and value:
        first = type(value[0])
        alike = all(type(item) is first for item in value) and first in _SCALARS
        if alike:
            return list[first] if isinstance(value, list) else tuple[first, ...]  # type: ignore[valid-type]
    return type(value)


def _convert_union(value: Any, options: tuple[Any, ...]) -> Any:
    if type(None) in options and (value is None or (isinstance(value, str) and value.lower() in _NONE)):
        return None
    problem = None
    for option in options:
        if option is not type(None):
            try:
                return convert(value, option)
            except ValueError as error:
                problem = problem or error
    raise problem or ValueError("must be empty")


def _bool(value: Any) -> bool:
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"`{value}` is neither `True` nor `False`")


def _int(value: Any) -> int:
    if isinstance(value, bool):
        raise ValueError(f"`{value}` is not a whole number")
    try:
        return int(value) if not isinstance(value, float) else _whole(value)
    except (TypeError, ValueError, OverflowError):
        pass
    try:
        return _whole(float(value))  # 1e4
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"`{value}` is not a whole number") from None


def _whole(number: float) -> int:
    if number != int(number):
        raise ValueError(f"`{number}` is not a whole number")
    return int(number)


def _float(value: Any) -> float:
    try:
        if not isinstance(value, bool):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise ValueError(f"`{value}` is not a number")


def _str(value: Any) -> str:
    return "" if value is None else str(value)


def _choice(value: Any, options: tuple[Any, ...]) -> Any:
    for option in options:
        if value == option or str(value) == str(option):
            return option
    raise ValueError(f"`{value}` is not one of " + ", ".join(f"`{option}`" for option in options))


def _list(value: Any, element: tuple[Any, ...]) -> list[Any]:
    return [convert(item, element[0] if element else Any) for item in _items(value, element)]


def _items(value: Any, elements: tuple[Any, ...]) -> Sequence[Any]:
    if not isinstance(value, str):
        return value if isinstance(value, SEQUENCES) else [value]
    are_texts = any(is_one_of(element, _TEXTS) for element in elements)
    found = None if are_texts and value.strip()[:1] not in ("[", "(") else _literal(value)
    if found is None:
        return [item.strip() for item in value.split(",")] if value.strip() else []
    return found if isinstance(found, SEQUENCES) else [found]


def _tuple(value: Any, elements: tuple[Any, ...]) -> tuple[Any, ...]:
    if elements and elements[-1] is not Ellipsis:
        items = _items(value, elements)
        if len(items) != len(elements):
            raise ValueError(f"`{value}` has {len(items)} values instead of {len(elements)}")
        return tuple(convert(item, kind) for item, kind in zip(items, elements))  # noqa: B905 Python 3.9
    return tuple(_list(value, elements))


def _dict(value: Any, elements: tuple[Any, ...]) -> dict[Any, Any]:
    found = _literal(value) if isinstance(value, str) else value
    if not isinstance(found, dict):
        pairs = [pair.partition("=") for pair in str(value).split(",") if pair.strip()]
        if any(not equals for _, equals, _ in pairs):
            raise ValueError(f"`{value}` is not written as `a=1,b=2`")
        found = {key.strip(): text for key, _, text in pairs}
    key_kind, value_kind = elements or (Any, Any)
    return {convert(key, key_kind): convert(item, value_kind) for key, item in found.items()}


def _literal(text: str) -> Any:
    """Return the value of a Python or JSON literal; None if the text is neither."""
    import json

    for read in (ast.literal_eval, json.loads):
        try:
            return read(text.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return None


def _guess(value: Any) -> Any:
    """Guess the value of a text without a declared type: `3` becomes a number, for example."""
    if not isinstance(value, str):
        return value
    if value.lower() in _NONE:
        return None
    found = _literal(value)
    return value if found is None else found


_SCALARS: dict[Any, Callable[[Any], Any]] = {
    bool: _bool,
    int: _int,
    float: _float,
    str: _str,
    Path: lambda value: Path(_str(value)),
}
_CONTAINERS: dict[Any, Callable[[Any, tuple[Any, ...]], Any]] = {list: _list, tuple: _tuple, dict: _dict}
