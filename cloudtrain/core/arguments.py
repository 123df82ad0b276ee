"""What the models take for a field, where that is more than the field holds: `max_runtime="2h"` is kept as 7200.

Only type checkers read this. Each model with such a field spells out its `__init__` for them, because without
pydantic's plugin they would ask for what the field holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DurationInput = int | str
"""Seconds, or text with units: `2h`, `1h30m`."""

SizeInput = int | str
"""Bytes, or text with a unit: `64g`."""

Texts = list[str] | tuple[str, ...]
"""Several texts. One alone is a mistake, and a `Sequence[str]` would take it for its letters."""

Json = str | int | float | list[Any] | dict[str, Any] | None
"""What JSON has words for. A tuple is not among it."""

Fields = Mapping[str, Any]
"""The fields of a model, in place of the model."""
