"""Functions for the wording of messages."""

from __future__ import annotations

from collections.abc import Sequence


def plural(number: int, one: str) -> str:
    """Return a number with its noun in the right form: `1 GPU`, `8 GPUs`, `2 processes`."""
    return f"{number:,} {one}" if number == 1 else f"{number:,} {one}{'es' if one.endswith('s') else 's'}"


def join_names(names: Sequence[str], most: int = 6) -> str:
    """Return at most `most` of the names as text: `` `a`, `b` and 3 more``."""
    shown = ", ".join(f"`{name}`" for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
