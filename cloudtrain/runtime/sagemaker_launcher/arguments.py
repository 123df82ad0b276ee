"""Convert hyperparameters as sagemaker-training does: JSON texts in the request, values in
`SM_HPS`, argv for the script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

RESERVED_PREFIXES = ("sagemaker_", "cloudtrain_")
"""Prefixes of hyperparameters for the launcher. The script never sees them."""


def decode_hyperparameters(hyperparameters: Mapping[str, str]) -> dict[str, Any]:
    """Decode each hyperparameter as JSON. A text that is not JSON is kept."""
    return {key: _value(text) for key, text in hyperparameters.items()}


def split(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two mappings: the script's hyperparameters, and those that are reserved for the
    launcher."""
    user = dict(values)
    reserved = {}
    for key in values:
        if key.startswith(RESERVED_PREFIXES):
            reserved[key] = user.pop(key)
    return user, reserved


def argv_of(values: Mapping[str, Any], *, bare_flags: bool = False) -> list[str]:
    """Return `--key value` for each hyperparameter, sorted by key; `-k` for one letter
    (sagemaker-training's `mapping.to_cmd_args`). With `bare_flags`, a true value becomes `--key`
    alone, and a false value is left out."""
    argv = []
    for key in sorted(values):
        word = ("-" if len(key) == 1 else "--") + key
        value = values[key]
        if not bare_flags or not isinstance(value, bool):
            argv += [word, text_of(value)]
        elif value:
            argv.append(word)
    return argv


def text_of(value: Any) -> str:
    """Return a value as text. None becomes an empty text, a boolean `True` or `False`, a list a
    Python literal, and a mapping `a=1,b=2` with sorted keys."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return ",".join(f"{key}={value[key]}" for key in sorted(value))
    return str(value)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text
