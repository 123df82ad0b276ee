"""Durations as ISO 8601 writes them, in days, hours, minutes and whole seconds: `P1D`, `PT2H`, `PT1M30S`."""

from __future__ import annotations

import re

_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")


def duration_text(seconds: int) -> str:
    """Return the text of a number of seconds."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    time = "".join(f"{number}{unit}" for number, unit in ((hour, "H"), (minute, "M"), (second, "S")) if number)
    return "P" + (f"{days}D" if days else "") + (f"T{time}" if time else "")


def duration_seconds(text: str) -> int | None:
    """Return the seconds of such a text; None for any other."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
