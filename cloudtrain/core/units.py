"""Durations and sizes with units, and counts: `2h`, `1h30m`, `90` seconds; `64g`, `512m`, plain bytes."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from cloudtrain.problems.collect import describe_value, wrong

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_BYTES = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}

_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,9})?"
DURATION_PATTERN = rf"^ *(?:[0-9]{{1,12}}|{_NUMBER} *[smhdwSMHDW](?: *{_NUMBER} *[smhdwSMHDW])*) *$"
SIZE_PATTERN = rf"^ *{_NUMBER} *(?:[bB]|[kmgtKMGT](?:[iI]?[bB])?)? *$"

MAX_DURATION = 2**31 - 1
"""In seconds. Both services store durations in 32 bits."""
MAX_SIZE = 2**63 - 1
"""In bytes."""

MAX_COUNT = 1024
"""Upper bound on counts. A larger number is probably a typing mistake, and a plan lists every process."""

_DURATION = re.compile(DURATION_PATTERN)
_DURATION_PART = re.compile(rf"({_NUMBER}) *([smhdwSMHDW])")
_SIZE = re.compile(rf"^ *({_NUMBER}) *([bkmgtBKMGT]?)")

_DURATION_HINT = "write for example `90s`, `30m`, `2h` or `1d`"
_CODE = "CT015"
_SIZE_HINT = "write for example `512m`, `64g` or `1t`"


def parse_duration(value: Any) -> int:
    """Return the number of seconds in a duration such as `2h`, `1h30m`, `1.5d`, `"90"` or 90.

    Raises:
        ValueError: the value is not a duration, not a whole number of seconds, less than one second or more than
            68 years.
    """
    if isinstance(value, str):
        if not _DURATION.fullmatch(value):
            raise wrong(f"{describe_value(value)} is not a duration", _DURATION_HINT, code=_CODE)
        text = value.strip(" ")
        parts = _DURATION_PART.findall(text) or [(text, "s")]
        seconds = sum(Decimal(number) * _SECONDS[unit.lower()] for number, unit in parts)
    else:
        seconds = _number(value, "a duration", _DURATION_HINT)
    return _whole(value, seconds, MAX_DURATION, ("a duration", "second", "68 years", _DURATION_HINT))


def parse_size(value: Any) -> int:
    """Return the number of bytes in a size such as `64g`, `512m`, `1.5t`, `"1024"` or 1024. As in docker, units are
    powers of 1024.

    Raises:
        ValueError: the value is not a size, not a whole number of bytes, less than one byte or more than 8 EiB.
    """
    if isinstance(value, str):
        match = _SIZE.match(value) if re.fullmatch(SIZE_PATTERN, value) else None
        if match is None:
            raise wrong(f"{describe_value(value)} is not a size", _SIZE_HINT, code=_CODE)
        size = Decimal(match[1]) * _BYTES[match[2].lower()]
    else:
        size = _number(value, "a size", _SIZE_HINT)
    return _whole(value, size, MAX_SIZE, ("a size", "byte", "8 EiB", _SIZE_HINT))


def _number(value: Any, kind: str, hint: str) -> Decimal:
    if value is None:
        raise wrong(f"{kind} cannot be `null`", hint, code=_CODE)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(f"{describe_value(value)} is not {kind}", hint, code=_CODE)
    return Decimal(value)


def _whole(written: Any, number: Decimal | int, most: int, words: tuple[str, str, str, str]) -> int:
    kind, unit, limit, hint = words
    if number < 1:
        raise wrong(f"{kind} must be at least 1 {unit}, not {describe_value(written)}", hint, code=_CODE)
    if number > most:
        raise wrong(f"{describe_value(written)} is more than {limit}", hint, code=_CODE)
    if number != int(number):
        raise wrong(f"{describe_value(written)} is not a whole number of {unit}s", hint, code=_CODE)
    return int(number)


def format_duration(seconds: float) -> str:
    """Format seconds as `2h`, `1h30m` or `45s`, with the two largest units. Durations below ten seconds have one
    decimal: `2.4s`.
    """
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f}s"
    return "".join(_parts(round(seconds))[:2])


def exact_duration(seconds: int) -> str:
    """Format seconds exactly with all units, in the syntax of job files: `1h1m30s`."""
    return "".join(_parts(seconds))


def _parts(seconds: int) -> list[str]:
    left, parts = seconds, []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, _SECONDS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return parts or ["0s"]


def format_size(size: float) -> str:
    """Format a size as `512 B`, `1.5 KiB` or `64 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if size == int(size) else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


Duration = Annotated[
    int,
    BeforeValidator(parse_duration),
    Field(strict=True),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MAX_DURATION},
                {"type": "string", "pattern": DURATION_PATTERN},
            ],
            "description": "Seconds, or a number with a unit: `90s`, `30m`, `2h`, `1d`.",
        }
    ),
]
"""A duration in whole seconds, at least 1."""

Size = Annotated[
    int,
    BeforeValidator(parse_size),
    Field(strict=True),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MAX_SIZE},
                {"type": "string", "pattern": SIZE_PATTERN},
            ],
            "description": "Bytes, or a number with a unit (powers of 1024): `512m`, `64g`, `1t`.",
        }
    ),
]
"""A size in whole bytes, at least 1."""

Count = Annotated[int, Field(ge=1, le=MAX_COUNT, strict=True)]
"""A count of instances of a job, or of processes on an instance."""
