"""Convert `TF_CONFIG` to the form that tf.distribute accepts. Some launchers write it differently:

    written by                              value               result
    Azure ML                                `"ps": []`          dropped, as it marks a parameter
                                            server job
    SageMaker's toolkit, parameter servers  `"master": [...]`   `chief`, in cluster and task,
                                            because
                                                                tf.distribute does not know `master`
    launchers that write strings            `"index": "1"`      1

Only the `TF_CONFIG` of the script's process is converted. SageMaker's toolkit runs the parameter
servers as separate processes, whose `TF_CONFIG` still contains `master`. They work with a script
that uses `chief` (tested with TensorFlow 2.21).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping
from typing import Any

from .errors import SetupError

ROLES = {"master": "chief"}
"""Maps names of roles that tf.distribute does not know to its own names."""


def read_tf_config(variables: Mapping[str, str] | None = None) -> dict[str, Any] | None:
    """Return `TF_CONFIG` of `variables` in the form that tf.distribute accepts; None if it is not
    set. `variables` are environment variables; default: those of this process.

    Raises:
        SetupError: `TF_CONFIG`, its cluster or its task is not a JSON object, or the task's index
            is not a number.
    """
    if variables is None:
        variables = os.environ
    text = variables.get("TF_CONFIG", "")
    if not text.strip():
        return None
    try:
        config = json.loads(text)
    except ValueError as error:
        raise SetupError(f"`TF_CONFIG` is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise SetupError("`TF_CONFIG` is not a JSON object")
    cluster = {}
    for role, places in _object(config, "cluster").items():
        if places:
            cluster[ROLES.get(role, role)] = places

    task = dict(_object(config, "task"))
    if "type" in task:
        task["type"] = ROLES.get(task["type"], task["type"])
    if "index" in task:
        try:
            task["index"] = int(task["index"])
        except (TypeError, ValueError):
            raise SetupError(
                f"the task in `TF_CONFIG` has the index `{task['index']}`, which is not a number"
            ) from None
    return {**config, "cluster": cluster, "task": task}


def apply_tf_config(variables: MutableMapping[str, str] | None = None) -> None:
    """Change `TF_CONFIG` in `variables` to the form that tf.distribute accepts. Call it before
    `import tensorflow`. `variables` are environment variables; default: those of this process."""
    if variables is None:
        variables = os.environ
    config = read_tf_config(variables)
    if config is not None:
        variables["TF_CONFIG"] = json.dumps(config)


def _object(config: Mapping[str, Any], member: str) -> dict[str, Any]:
    value = config.get(member) or {}
    if not isinstance(value, dict):
        raise SetupError(f"`{member}` in `TF_CONFIG` is not a JSON object")
    return value
