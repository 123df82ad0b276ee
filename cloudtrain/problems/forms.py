"""Conversion of hints, which are written as YAML, to the syntax of the user's file, which may be TOML or JSON."""

from __future__ import annotations

import json
import re
from typing import Any

from cloudtrain.documents.document import Format, Unreadable, read_document

_FIELD = re.compile(r"`([A-Za-z_]\w*: [^`]+)`")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def in_form(hint: str | None, format: Format) -> str | None:
    """Return the hint with each `field: value` in the syntax of `format`."""
    if hint is None or format == "yaml":
        return hint
    return _FIELD.sub(lambda match: f"`{_convert(match[1], format)}`", hint)


def _convert(text: str, format: Format) -> str:
    try:
        data = read_document(text, "yaml").data
    except Unreadable:  # such as `checkpoint: {...}`, which only shows a position
        return text
    except UnicodeEncodeError:  # half of a surrogate pair, from JSON
        return text
    if not isinstance(data, dict):
        return text
    if format == "json":
        return json.dumps(data, ensure_ascii=False)[1:-1]
    return ", ".join(f"{_key(key)} = {_value(value)}" for key, value in data.items())


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(name)} = {_value(item)}" for name, item in value.items())
        return f"{{{inner}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False)
