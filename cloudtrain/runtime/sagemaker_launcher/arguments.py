"""Hyperparameters: JSON texts in the request, values in `SM_HPS`, argv for the script; as in sagemaker-training."""

from __future__ import annotations

import json

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

RESERVED_PREFIXES = ("sagemaker_", "cloudtrain_")
"""Hyperparameters for whoever launches the script; the script never sees them."""


def decode_hyperparameters(hyperparameters: Mapping[str, str]) -> dict[str, Any]:
    """Each text as the JSON value that it holds; what is not JSON stays the text that it is."""
    return {key: _value(text) for key, text in hyperparameters.items()}


def split(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The script's hyperparameters, and the launcher's."""
    ours = {key: value for key, value in values.items() if key.startswith(RESERVED_PREFIXES)}
    return {key: value for key, value in values.items() if key not in ours}, ours


def argv_of(values: Mapping[str, Any], *, bare_flags: bool = False) -> list[str]:
    """`--key value`, keys sorted, `-k` for one letter (sagemaker-training's `mapping.to_cmd_args`). With `bare_flags`
    what is true is `--key` alone, and what is false is left out."""
    argv = []
    for key in sorted(values):
        word, value = f"-{key}" if len(key) == 1 else f"--{key}", values[key]
        if bare_flags and isinstance(value, bool):
            argv += [word] if value else []
        else:
            argv += [word, text_of(value)]
    return argv


def text_of(value: Any) -> str:
    """None as nothing, True and False as words, a list as Python writes it, a mapping as `a=1,b=2` with sorted keys."""
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
