"""A step of a training, whoever counted it: Python, numpy, TensorFlow."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from .errors import SetupError


def whole_step(step: SupportsIndex) -> int:
    """The step as Python's own number, which names and JSON can hold.

    Raises:
        SetupError: it is no whole number, or below 0.
    """
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if number < 0:
        raise SetupError(
            f"the step `{step!r}` is not a whole number from 0 on", hint="count steps, or pass `int(step)`"
        )
    return number
