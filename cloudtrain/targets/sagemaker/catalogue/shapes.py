r"""Match the service's regular expressions, which use Java's syntax, against a whole text.

Differences from Python: `\p{L}`, `\p{N}` and `\p{Z}` (any letter, number, separator), `\p{Alnum}`
(ASCII), code points above U+FFFF written as two escapes, `\d` and `\w` (ASCII only), and `.`, which
stops at every line break.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cloudtrain.documents.document import load_table
from cloudtrain.errors import NearName, ValuePath, did_you_mean, dotted
from cloudtrain.job.nodes import describe_value
from cloudtrain.machines.table import InstanceTable, InstanceType
from cloudtrain.targets.sagemaker.request import JsonMapping, JsonObject

_CLASSES = {"L": ("a-zA-Z", "\ue000"), "N": ("0-9", "\ue001"), "Z": (" ", "\ue002")}
"""Maps each Unicode category to its ASCII members, and to the character that stands for all its
other members."""

_OTHER = "\ue003"
"""The character that stands for every non-ASCII character outside these categories."""

_TOKEN = (
    r"\\u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|\\p\{(?P<name>\w+)\}|\\.|(?P<open>\[\^?\]?)|(?P<close>\])|(?P<dot>\.)"
)


def matches(pattern: str, text: str) -> bool:
    """Return whether the whole text matches one of the service's patterns."""
    regex, by_category = _compile(pattern)
    return regex.fullmatch(_categorize(text) if by_category else text) is not None


@cache
def _compile(pattern: str) -> tuple[re.Pattern[str], bool]:
    """Return the pattern for Python, and whether texts must be passed through `_categorize` before
    matching."""
    inside = False

    def translate(match: re.Match[str]) -> str:
        nonlocal inside
        if match["high"]:
            high = chr(int(match["high"], 16))
            low = chr(int(match["low"], 16))
            pair = high + low
            character = pair.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
            return re.escape(character)
        name = match["name"]
        if name:
            members = "a-zA-Z0-9" if name == "Alnum" else "".join(_CLASSES[name])
            return members if inside else f"[{members}]"
        if match["open"] and not inside:
            inside = True
        elif match["close"]:
            inside = False
        elif match["dot"] and not inside:
            return r"[^\n\r\x85\u2028\u2029]"
        return match[0]

    expression = re.sub(_TOKEN, translate, pattern)
    categories = re.findall(r"\\p\{(\w)\}", pattern)
    return re.compile(expression, re.ASCII), not _CLASSES.keys().isdisjoint(categories)


def _categorize(text: str) -> str:
    if text.isascii():
        return text
    letters: list[str] = []
    for letter in text:
        category = unicodedata.category(letter)[0]
        if letter.isascii():
            letters.append(letter)
        elif category in _CLASSES:
            letters.append(_CLASSES[category][1])
        else:
            letters.append(_OTHER)
    return "".join(letters)


# The names, types, limits, patterns and enums that SageMaker accepts in a request, from the
# service's own model.
#
# botocore itself checks only names, types, required fields and minima. It leaves maxima, patterns
# and enums to the service (tried with botocore 1.44.5), which answers after the upload. The data is
# generated from botocore's model.

DATA = Path(__file__).with_name("data")

MANY = 12
"""Hints list the values of an enum only if it has at most this many values."""

Kind = Literal["unknown", "missing", "type", "min", "max", "pattern", "enum"]


class ShapeViolation(NamedTuple):
    """A reason why the service would refuse a request. `path` is the path of the wrong or missing
    field."""

    path: ValuePath
    message: str
    hint: str | None
    kind: Kind


class Title(NamedTuple):
    """The name of a value in messages. Its text is made only where a message needs it."""

    path: ValuePath
    before: str = ""

    def __str__(self) -> str:
        return f"{self.before}`{dotted(self.path)}`"


def violations(request: JsonMapping, operation: str = "CreateTrainingJob") -> list[ShapeViolation]:
    """Return everything in a request that the service's own model forbids, in the order of the
    request."""
    shape = _model()["operations"][operation]
    return list(_check(request, shape, (), Title((operation,))))


@cache
def _model() -> JsonMapping:
    content: JsonObject = json.loads((DATA / "shapes.json").read_text(encoding="utf-8"))
    return content


def _shape(name: str) -> JsonMapping:
    shape: JsonMapping = _model()["shapes"][name]
    return shape


def _check(value: object, name: str, path: ValuePath, title: Title) -> Iterator[ShapeViolation]:
    """Yield all violations in a value and its parts.

    `name` is the value's shape in the service's model, `path` its path in the request, `title` its
    name in messages.
    """
    shape = _shape(name)
    kind = shape["type"]
    accepted, words = _TYPES[kind]
    is_misplaced_bool = isinstance(value, bool) and kind != "boolean"
    if is_misplaced_bool or not isinstance(value, accepted):
        message = f"{title} is {describe_value(value)}, and the service takes {words}"
        yield ShapeViolation(path, message, f"write {words}", "type")
    elif kind in _INSIDE:
        yield from _INSIDE[kind](value, shape, path, title)


def _structure(
    value: JsonMapping, shape: JsonMapping, path: ValuePath, title: Title
) -> Iterator[ShapeViolation]:
    members = shape["members"]
    hints = {name: did_you_mean(str(name), members) for name in value if name not in members}
    for name in shape.get("required", ()):
        if name in value:
            continue
        is_misspelt = NearName.of(name) in hints.values()
        if not is_misspelt:
            message = f"{title} needs `{name}`"
            place = (*path, name)
            yield ShapeViolation(place, message, f"add `{name}`", "missing")
    for name, inner in value.items():
        place = (*path, name)
        if name in hints:
            message = f"{title} has no field `{name}`"
            yield ShapeViolation(place, message, hints[name], "unknown")
        else:
            yield from _check(inner, members[name], place, Title(place))


def _list(
    value: list[Any], shape: JsonMapping, path: ValuePath, title: Title
) -> Iterator[ShapeViolation]:
    yield from _check_count(len(value), ("entry", "entries"), shape, path, title)
    for index, inner in enumerate(value):
        place = (*path, index)
        yield from _check(inner, shape["member"], place, Title(place))


def _map(
    value: JsonMapping, shape: JsonMapping, path: ValuePath, title: Title
) -> Iterator[ShapeViolation]:
    yield from _check_count(len(value), ("entry", "entries"), shape, path, title)
    for key, inner in value.items():
        place = (*path, key)
        yield from _check(key, shape["key"], place, Title(path, "a key of "))
        name = str(key)
        if isinstance(key, str) and len(key) > 40:
            name = f"{key[:37]}..."
        yield from _check(inner, shape["value"], place, Title((*path, name)))


def _string(
    value: str, shape: JsonMapping, path: ValuePath, title: Title
) -> Iterator[ShapeViolation]:
    sized = list(_check_count(len(value), ("character", "characters"), shape, path, title))
    yield from sized

    if "enum" in shape and value not in shape["enum"]:
        message = f"{title} is {describe_value(value)}, which the service does not know"
        near = did_you_mean(value, shape["enum"])
        if len(shape["enum"]) > MANY and not isinstance(near, NearName):
            near = None
        yield ShapeViolation(path, message, near, "enum")

    pattern = shape.get("pattern")
    if pattern is not None and not sized and not matches(pattern, value):
        message = f"{title} is {describe_value(value)}, which the service refuses"
        hint = _hints().get(pattern, f"it must match `{pattern}`")
        yield ShapeViolation(path, message, hint, "pattern")


@cache
def _hints() -> dict[str, str]:
    """Map the service's patterns to words; messages show other patterns unchanged."""
    return dict(load_table(__file__, "patterns.toml")["hints"])


def _number(
    value: int, shape: JsonMapping, path: ValuePath, title: Title
) -> Iterator[ShapeViolation]:
    if _is_within_bounds(value, shape):
        return
    least = f"write `{shape.get('min')}` or more"
    most = f"write `{shape.get('max')}` or less"
    fact = f"{title} is {value:,}"
    yield from _check_bounds(value, fact, (least, most), shape, path)


def _check_count(
    count: int, units: tuple[str, str], shape: JsonMapping, path: ValuePath, title: Title
) -> Iterator[ShapeViolation]:
    if _is_within_bounds(count, shape):
        return

    def amount(number: int) -> str:
        return units[0] if number == 1 else units[1]

    fact = f"{title} is empty"
    if count:
        fact = f"{title} has {count:,} {amount(count)}"
    least = shape.get("min", 0)
    most = shape.get("max", 0)
    at_least = f"use at least {least} {amount(least)}"
    at_most = f"use at most {most} {amount(most)}"
    yield from _check_bounds(count, fact, (at_least, at_most), shape, path)


def _is_within_bounds(number: int, shape: JsonMapping) -> bool:
    least: int = shape.get("min", number)
    most: int = shape.get("max", number)
    return least <= number <= most


def _check_bounds(
    number: int, fact: str, hints: tuple[str, str], shape: JsonMapping, path: ValuePath
) -> Iterator[ShapeViolation]:
    if "min" in shape and number < shape["min"]:
        message = f"{fact}, and the service takes at least {shape['min']:,}"
        yield ShapeViolation(path, message, hints[0], "min")
    if "max" in shape and number > shape["max"]:
        message = f"{fact}, and the service takes at most {shape['max']:,}"
        yield ShapeViolation(path, message, hints[1], "max")


_TYPES: dict[str, tuple[Any, str]] = {
    "structure": (Mapping, "a mapping"),
    "map": (Mapping, "a mapping"),
    "list": (list | tuple, "a list"),
    "string": (str, "a text"),
    "integer": (int, "a whole number"),
    "long": (int, "a whole number"),
    "boolean": (bool, "true or false"),
}

_INSIDE: dict[str, Callable[[Any, JsonMapping, ValuePath, Title], Iterator[ShapeViolation]]] = {
    "structure": _structure,
    "map": _map,
    "list": _list,
    "string": _string,
    "integer": _number,
    "long": _number,
}


def members_of(operation: str) -> tuple[str, ...]:
    """Return the fields that a request can have."""
    return tuple(_shape(_model()["operations"][operation])["members"])


def _describe(instance: InstanceType) -> list[tuple[str, str]]:
    """Return labelled facts: the local disk, the toolkit's EFA variables, and which sources list
    the type for SMDDP."""
    variables: list[str] = []
    if instance.efa_in_toolkit:
        variables.append("FI_PROVIDER=efa")
    if instance.rdma_in_toolkit:
        variables.append("FI_EFA_USE_DEVICE_RDMA=1")
    names: list[str] = []
    if instance.smddp:
        names.append("AWS's documentation")
    if instance.smddp_in_sdk:
        names.append("SDK v2")

    disk = f"{instance.nvme_gb} GB NVMe" if instance.nvme_gb else "none"
    toolkit = "sets no EFA variable"
    if variables:
        toolkit = f"sets {' and '.join(variables)}"
    smddp = "named neither by AWS's documentation nor by SDK v2"
    if names:
        smddp = f"named by {' and '.join(names)}"
    return [("local disk", disk), ("toolkit 5.1.4", toolkit), ("SMDDP", smddp)]


TABLE = InstanceTable(DATA / "instances.csv", prefix="ml.", fabric="efa", describe=_describe)
