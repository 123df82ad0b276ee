"""ISO 8601 durations in days, hours, minutes and whole seconds: `P1D`, `PT2H`, `PT1M30S`."""

from __future__ import annotations

import re

_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")


def duration_text(seconds: int) -> str:
    """Return seconds as an ISO 8601 duration."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    time = "".join(f"{number}{unit}" for number, unit in ((hour, "H"), (minute, "M"), (second, "S")) if number)
    return "P" + (f"{days}D" if days else "") + (f"T{time}" if time else "")


def duration_seconds(text: str) -> int | None:
    """Return the seconds of an ISO 8601 duration; None if the text is not one."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
