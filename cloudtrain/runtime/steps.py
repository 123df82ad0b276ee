"""Convert a training step from Python, numpy or TensorFlow to a plain number."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from .errors import SetupError


def whole_step(step: SupportsIndex) -> int:
    """Return the step as a Python integer, for file names and JSON.

    Raises:
        SetupError: the step is not a whole number, or is below 0.
    """
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if number < 0:
        raise SetupError(
            f"the step `{step!r}` is not a whole number of at least 0", hint="pass the number of steps so far: 0, 1, 2"
        )
    return number
