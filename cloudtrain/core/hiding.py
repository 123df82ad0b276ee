"""Functions that hide secrets, which may be sent but must not appear in output or logs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeVar

Shown = TypeVar("Shown")

HIDDEN = "***"
"""Replaces a secret."""


def hide(value: Shown, secrets: Iterable[str]) -> Shown:
    """Return `value` (a text, mapping or sequence) with every secret replaced by `***`. Secrets are also
    replaced inside of longer texts, and where they are written with JSON escapes.
    """
    forms = sorted({form for secret in secrets for form in _forms(secret)}, key=len, reverse=True)
    return _hide(value, forms) if forms else value


def _forms(secret: str) -> Iterable[str]:
    """Yield the forms in which a secret can be written: unchanged and with JSON escapes. For a secret of several lines,
    also yield the forms of each line, because output is printed line by line.
    """
    lines = [line for line in secret.splitlines() if len(line) > _SHORT] or [secret]
    for form in (secret, *lines):
        yield form
        for ascii_only in (False, True):
            once = json.dumps(form, ensure_ascii=ascii_only)[1:-1]
            yield once
            yield json.dumps(once, ensure_ascii=ascii_only)[1:-1]


_SHORT = 8
"""Number of letters. Hiding a line of at most this length would also hide text that is not secret."""


def _hide(value: Any, forms: list[str]) -> Any:
    if isinstance(value, str):
        for form in forms:
            value = value.replace(form, HIDDEN)
        return value
    if isinstance(value, dict):
        return {_hide(key, forms): _hide(inner, forms) for key, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_hide(inner, forms) for inner in value))
    if isinstance(value, list | tuple):
        return type(value)(_hide(inner, forms) for inner in value)
    return value
