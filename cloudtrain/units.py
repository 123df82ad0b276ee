"""Durations and sizes with units: `2h`, `1h30m`, `90` seconds; `64g`, `512m`, plain bytes."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_BYTES = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhdw])+", re.IGNORECASE)
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)([smhdw])", re.IGNORECASE)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([bkmgt]?)(?:i?b)?", re.IGNORECASE)


def parse_duration(value: Any) -> Any:
    """Seconds as an int from `2h`, `1h30m`, `1.5d`, `"90"` or 90. Other types pass through to the validator.

    Raises:
        ValueError: the text is not a duration, or is not a whole number of seconds.
    """
    if not isinstance(value, str):
        return value
    text = value.strip().replace(" ", "")
    if text.isdecimal():
        return int(text)
    if not _DURATION.fullmatch(text):
        raise ValueError(f"`{value}` is not a duration; write for example `90s`, `30m`, `2h` or `1d`")
    seconds = sum(float(number) * _SECONDS[unit.lower()] for number, unit in _DURATION_PART.findall(text))
    if seconds != int(seconds):
        raise ValueError(f"`{value}` is not a whole number of seconds")
    return int(seconds)


def parse_size(value: Any) -> Any:
    """Bytes as an int from `64g`, `512m`, `1.5t`, `"1024"` or 1024. Units are powers of 1024, as docker's are.

    Raises:
        ValueError: the text is not a size, or is not a whole number of bytes.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip().replace(" ", ""))
    if match is None:
        raise ValueError(f"`{value}` is not a size; write for example `512m`, `64g` or `1t`")
    size = float(match[1]) * _BYTES[match[2].lower()]
    if size != int(size):
        raise ValueError(f"`{value}` is not a whole number of bytes")
    return int(size)


def format_duration(seconds: float) -> str:
    """`2h`, `1h30m`, `45s`; under ten seconds with one decimal: `2.4s`."""
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f}s"
    left, parts = round(seconds), []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, _SECONDS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"


def format_size(size: float) -> str:
    """`512 B`, `1.5 KiB`, `64 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if size == int(size) else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


Duration = Annotated[
    int,
    BeforeValidator(parse_duration),
    Field(ge=1),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": r"^\s*(\d+|([0-9.]+\s*[smhdwSMHDW]\s*)+)\s*$"},
            ],
            "description": "Seconds, or a number with a unit: `90s`, `30m`, `2h`, `1d`.",
        }
    ),
]
"""Whole seconds, at least 1."""

Size = Annotated[
    int,
    BeforeValidator(parse_size),
    Field(ge=1),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": r"^\s*[0-9.]+\s*[bkmgtBKMGT]?([iI]?[bB])?\s*$"},
            ],
            "description": "Bytes, or a number with a unit (powers of 1024): `512m`, `64g`, `1t`.",
        }
    ),
]
"""Whole bytes, at least 1."""
