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
from cloudtrain.errors import NearName, ValuePath, did_you_mean, dotted, shortened
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
            return re.escape(pair.encode("utf-16-be", "surrogatepass").decode("utf-16-be"))
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


def violations(request: JsonMapping, operation: str = "CreateTrainingJob") -> list[ShapeViolation]:
    """Return everything in a request that the service's own model forbids, in the order of the
    request."""
    found = _check(request, _model()["operations"][operation], (operation,))
    return [violation._replace(path=violation.path[1:]) for violation in found]


@cache
def _model() -> JsonMapping:
    content: JsonObject = json.loads((DATA / "shapes.json").read_text(encoding="utf-8"))
    return content


def _shape(name: str) -> JsonMapping:
    shape: JsonMapping = _model()["shapes"][name]
    return shape


def _title(path: ValuePath) -> str:
    """Return the name of the value at `path`, which starts with the operation, in messages."""
    return f"`{shortened(dotted(path[1:] or path), _LONGEST)}`"


_LONGEST = 160
"""Maximum length of a path in a message, in characters: longer than each path of the service's own
fields. A name in a mapping can have any length."""


def _check(value: object, name: str, path: ValuePath) -> Iterator[ShapeViolation]:
    """Yield all violations in a value and its parts. `name` is the value's shape in the service's
    model, `path` its path in the request, behind the name of the operation."""
    shape = _shape(name)
    kind = shape["type"]
    accepted, words, check_inside = _TYPES[kind]
    is_misplaced_bool = isinstance(value, bool) and kind != "boolean"
    if is_misplaced_bool or not isinstance(value, accepted):
        message = f"{_title(path)} is {describe_value(value)}, and the service takes {words}"
        yield ShapeViolation(path, message, f"write {words}", "type")
    else:
        yield from check_inside(value, shape, path)


def _structure(value: JsonMapping, shape: JsonMapping, path: ValuePath) -> Iterator[ShapeViolation]:
    members = shape["members"]
    hints = {name: did_you_mean(str(name), members) for name in value if name not in members}
    for name in shape.get("required", ()):
        is_misspelt = NearName.of(name) in hints.values()
        if name not in value and not is_misspelt:
            message = f"{_title(path)} needs `{name}`"
            place = (*path, name)
            yield ShapeViolation(place, message, f"add `{name}`", "missing")
    for name, inner in value.items():
        place = (*path, name)
        if name in hints:
            message = f"{_title(path)} has no field `{name}`"
            yield ShapeViolation(place, message, hints[name], "unknown")
        else:
            yield from _check(inner, members[name], place)


def _list(value: list[Any], shape: JsonMapping, path: ValuePath) -> Iterator[ShapeViolation]:
    yield from _check_bounds(len(value), _ENTRIES, shape, path)
    for index, inner in enumerate(value):
        yield from _check(inner, shape["member"], (*path, index))


def _map(value: JsonMapping, shape: JsonMapping, path: ValuePath) -> Iterator[ShapeViolation]:
    yield from _check_bounds(len(value), _ENTRIES, shape, path)
    for key, inner in value.items():
        place = (*path, key)
        for violation in _check(key, shape["key"], path):
            yield violation._replace(path=place, message=f"a key of {violation.message}")
        yield from _check(inner, shape["value"], place)


def _string(value: str, shape: JsonMapping, path: ValuePath) -> Iterator[ShapeViolation]:
    sized = list(_check_bounds(len(value), _CHARACTERS, shape, path))
    yield from sized

    if "enum" in shape and value not in shape["enum"]:
        message = f"{_title(path)} is {describe_value(value)}, which the service does not know"
        near = did_you_mean(value, shape["enum"])
        if len(shape["enum"]) > MANY and not isinstance(near, NearName):
            near = None
        yield ShapeViolation(path, message, near, "enum")

    pattern = shape.get("pattern")
    if pattern is not None and not sized and not matches(pattern, value):
        message = f"{_title(path)} is {describe_value(value)}, which the service refuses"
        hint = _hints().get(pattern, f"it must match `{pattern}`")
        yield ShapeViolation(path, message, hint, "pattern")


@cache
def _hints() -> dict[str, str]:
    """Map the service's patterns to words; messages show other patterns unchanged."""
    return dict(load_table(__file__, "patterns.toml")["hints"])


def _number(value: int, shape: JsonMapping, path: ValuePath) -> Iterator[ShapeViolation]:
    return _check_bounds(value, None, shape, path)


_ENTRIES = ("entry", "entries")
_CHARACTERS = ("character", "characters")


def _check_bounds(
    number: int, units: tuple[str, str] | None, shape: JsonMapping, path: ValuePath
) -> Iterator[ShapeViolation]:
    """Yield a violation if a number is out of bounds. `units` are the singular and the plural of
    what it counts; None if it is the value itself."""
    least = shape.get("min", number)
    most = shape.get("max", number)
    if least <= number <= most:
        return

    def amount(text: str) -> str:
        if units is None:
            return text
        one, several = units
        return f"{text} {one if text == '1' else several}"

    verb = "is" if units is None else "has"
    fact = f"{_title(path)} {verb} {amount(f'{number:,}')}"
    at_least = f"use at least {amount(str(least))}"
    at_most = f"use at most {amount(str(most))}"
    if units is None:
        at_least = f"write `{least}` or more"
        at_most = f"write `{most}` or less"
    if number < least:
        message = f"{fact}, and the service takes at least {least:,}"
        yield ShapeViolation(path, message, at_least, "min")
    else:
        message = f"{fact}, and the service takes at most {most:,}"
        yield ShapeViolation(path, message, at_most, "max")


_TYPES: dict[
    str, tuple[Any, str, Callable[[Any, JsonMapping, ValuePath], Iterator[ShapeViolation]]]
] = {
    "structure": (Mapping, "a mapping", _structure),
    "map": (Mapping, "a mapping", _map),
    "list": (list | tuple, "a list", _list),
    "string": (str, "a text", _string),
    "integer": (int, "a whole number", _number),
    "long": (int, "a whole number", _number),
    "boolean": (bool, "true or false", _number),
}


def members_of(operation: str) -> tuple[str, ...]:
    """Return the fields that a request can have."""
    return tuple(_shape(_model()["operations"][operation])["members"])


def _describe(instance: InstanceType) -> list[tuple[str, str]]:
    """Return labelled facts: the local disk, the toolkit's EFA variables, and which sources list
    the type for SMDDP."""
    variables = {
        "FI_PROVIDER=efa": instance.efa_in_toolkit,
        "FI_EFA_USE_DEVICE_RDMA=1": instance.rdma_in_toolkit,
    }
    sources = {"AWS's documentation": instance.smddp, "SDK v2": instance.smddp_in_sdk}
    disk = f"{instance.nvme_gb} GB NVMe" if instance.nvme_gb else "none"
    toolkit = " and ".join(filter(variables.get, variables)) or "no EFA variable"
    names = " and ".join(filter(sources.get, sources))
    smddp = f"by {names}" if names else "neither by AWS's documentation nor by SDK v2"
    return [
        ("local disk", disk),
        ("toolkit 5.1.4", f"sets {toolkit}"),
        ("SMDDP", f"named {smddp}"),
    ]


TABLE = InstanceTable(DATA / "instances.csv", prefix="ml.", fabric="efa", describe=_describe)
