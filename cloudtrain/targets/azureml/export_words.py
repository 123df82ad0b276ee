"""Convert a body's values into another tool's terms. Values that the tool cannot express are always reported."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

Convert = Callable[[Any], Any]
Table = Mapping[str, tuple[str, Convert]]
"""Maps fields of the body to the tool's name and a converter of the value. `""`: the tool writes the field itself."""


class Wordless(Exception):
    """The tool cannot express some parts of a value. `paths` has their dotted paths; `""` is the value itself."""

    def __init__(self, *paths: str) -> None:
        super().__init__(*paths)
        self.paths = paths


def part(table: Table, *, always: Collection[str] = ()) -> Convert:
    """Return a function that converts a mapping, field by field, as `table` says. Fields outside `table` are refused.

    So is a mapping that lacks a field in `always`, which the tool would add.
    """

    def convert(value: Any) -> dict[str, Any]:
        fields = mapping(value)
        found, wordless = {}, [f"{name} left out" for name in always if name not in fields]
        for name, inner in fields.items():
            word, how = table.get(name, ("", _nothing))
            converted = _collect(how, inner, name, wordless)
            if word:
                found[word] = converted
        return _or_raise(found, wordless)

    return convert


def each(how: Convert) -> Convert:
    def convert(value: Any) -> dict[str, Any]:
        wordless: list[str] = []
        found = {name: _collect(how, inner, name, wordless) for name, inner in mapping(value).items()}
        return _or_raise(found, wordless)

    return convert


def kinds(field: str, converters: Mapping[str, Convert]) -> Convert:
    """The value of the field `field` selects one of `converters` for the rest of a mapping."""

    def convert(value: Any) -> Any:
        kind = mapping(value).get(field)
        if not isinstance(kind, str) or kind not in converters:
            raise Wordless(field)
        return converters[kind]({name: inner for name, inner in value.items() if name != field})

    return convert


def not_empty(how: Convert) -> Convert:
    """Refuse an empty mapping, because the tool would leave it out."""

    def convert(value: Any) -> Any:
        if value == {}:
            raise Wordless("")
        return how(value)

    return convert


def one_of(table: Mapping[Any, str]) -> Convert:
    """Return a function that looks up the tool's name of a value in `table`. Other values are refused."""

    def convert(value: object) -> str:
        if isinstance(value, bool | dict | list) or value not in table:
            raise Wordless("")
        return table[value]

    return convert


def constant(expected: object) -> Convert:
    def convert(value: object) -> object:
        if value != expected or type(value) is not type(expected):
            raise Wordless("")
        return value

    return convert


def of_type(*types: type) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) not in types:
            raise Wordless("")
        return value

    return convert


text, count, flag, mapping = of_type(str), of_type(int), of_type(bool), of_type(dict)


def texts(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise Wordless("")
    return value


def _nothing(value: object) -> None:  # noqa: ARG001 - a converter
    raise Wordless("")


def _collect(how: Convert, value: object, name: str, wordless: list[str]) -> Any:
    try:
        return how(value)
    except Wordless as error:
        wordless += [f"{name}.{path}" if path else name for path in error.paths]
        return None


def _or_raise(found: dict[str, Any], wordless: list[str]) -> dict[str, Any]:
    if wordless:
        raise Wordless(*wordless)
    return found
