"""`TF_CONFIG` as tf.distribute accepts it. Both clouds write it a little differently.

Azure ML sends an empty `ps` list, which tf.distribute takes for a parameter server job. SageMaker's parameter server
launch calls the chief `master`, a word that TensorFlow 2 refuses.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping
from typing import Any

from .errors import SetupError


def read_tf_config(variables: Mapping[str, str] | None = None) -> dict[str, Any] | None:
    """`TF_CONFIG` with empty task lists dropped and `master` renamed to `chief`; None when it is not set.

    Raises:
        SetupError: it is not a JSON object.
    """
    text = (os.environ if variables is None else variables).get("TF_CONFIG", "")
    if not text.strip():
        return None
    try:
        config = json.loads(text)
    except ValueError as error:
        raise SetupError(f"`TF_CONFIG` is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise SetupError("`TF_CONFIG` is not a JSON object")
    cluster = {_role(role): addresses for role, addresses in (config.get("cluster") or {}).items() if addresses}
    task = dict(config.get("task") or {})
    if "type" in task:
        task["type"] = _role(str(task["type"]))
    return {**config, "cluster": cluster, "task": task}


def apply_tf_config(variables: MutableMapping[str, str] | None = None) -> None:
    """Write `TF_CONFIG` back as tf.distribute accepts it. Call it before `import tensorflow`."""
    target = os.environ if variables is None else variables
    config = read_tf_config(target)
    if config is not None:
        target["TF_CONFIG"] = json.dumps(config)


def _role(role: str) -> str:
    return "chief" if role == "master" else role
