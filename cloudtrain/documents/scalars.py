"""Plain values as in YAML 1.2 (its core schema): `1e-3` is a number; `on`, `yes` and `12:30` are text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from cloudtrain.documents.limits import MAX_DIGITS

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)")
_NAN = re.compile(r"\.(?:nan|NaN|NAN)")


def _whole(base: int) -> Callable[[str], Any]:
    """Return a function that reads an integer in the given base. A number with too many digits stays text."""
    return lambda text: int(text, base) if len(text) <= MAX_DIGITS else text


_READERS: tuple[tuple[re.Pattern[str], Callable[[str], Any]], ...] = (
    (_NULL, lambda _: None),
    (_BOOL, lambda text: text.lower() == "true"),
    (_INT, _whole(10)),
    (_OCTAL, _whole(8)),
    (_HEX, _whole(16)),
    (_FLOAT, float),
    (_INFINITE, lambda text: float(text.replace(".", ""))),
    (_NAN, lambda _: float("nan")),
)

KINDS = {"null": (0,), "bool": (1,), "int": (2, 3, 4), "float": (2, 5, 6, 7)}
"""The readers that an explicit tag (`!!int`) allows."""


def read_scalar(text: str) -> Any:
    """Convert a plain value to null, bool, int or float by its spelling. Other text stays text."""
    for pattern, reader in _READERS:
        if pattern.fullmatch(text):
            return reader(text)
    return text


def read_tagged(text: str, kind: str) -> Any:
    """Convert a value with an explicit type: `!!float 3` has the text `3` and the kind `float`.

    Raises:
        ValueError: the text is not of that type.
    """
    for index in KINDS[kind]:
        pattern, reader = _READERS[index]
        if pattern.fullmatch(text):
            return float(text) if kind == "float" and index == 2 else reader(text)
    raise ValueError(f"{text!r} is not of type {kind}")
