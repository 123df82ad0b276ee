"""Types of arguments that job models convert to the type of the field: `max_runtime="2h"` is stored as 7200.

Only type checkers use this module. The models declare an `__init__` with these types, because a type checker without
pydantic's plugin would accept only the types of the fields.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

DurationInput = int | str
"""Seconds, or text with units: `2h`, `1h30m`."""

SizeInput = int | str
"""Bytes, or text with a unit: `64g`."""

PathInput = str | os.PathLike[str]
"""A path as text or as a `pathlib.Path`, stored as text."""

Texts = list[str] | tuple[str, ...]
"""Several texts. `Sequence[str]` would also accept a single string and treat it as a sequence of letters."""

Json = str | int | float | list[Any] | dict[str, Any] | None
"""The types that JSON can hold, so no tuples."""

Fields = Mapping[str, Any]
"""The fields of a model, given as a mapping instead of the model."""
