"""The text of a hyperparameter's value for a reader, in which `1`, `1.0` and `"1"` differ."""

from __future__ import annotations

import json
from typing import Any

_LONGEST_FLOAT = 8
"""Characters up to which a float is shown exactly. A longer one gets four significant digits."""


def value_text(value: Any) -> str:
    """Return a value as a YAML or JSON file could have it. Text is quoted only if it would be read as another value."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if _needs_quotes(value) else value
    if isinstance(value, float):
        text = repr(value)
        return text if len(text) <= _LONGEST_FLOAT else _with_point(f"{value:.4g}")
    return json.dumps(value)


def _with_point(text: str) -> str:
    """Return the text of a float so that it does not look like a whole number."""
    return f"{text}.0" if text.lstrip("-").isdecimal() else text


def _needs_quotes(text: str) -> bool:
    from cloudtrain.documents.scalars import read_scalar

    return text != text.strip() or text[:1] in ("[", "{", '"', "'") or not isinstance(read_scalar(text), str)
