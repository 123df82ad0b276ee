"""Codes of errors in job files, settings, commands, runs and targets: the table `codes.toml`, read
on first use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from cloudtrain.documents.document import load_table


class ErrorCode(NamedTuple):
    """A type of error: its code, a one-line summary, and an explanation of the cause and the
    correction."""

    code: str
    summary: str
    explanation: str


@cache
def error_codes() -> Mapping[str, ErrorCode]:
    """Return every code that an error of cloudtrain can have."""
    table = load_table(__file__, "codes.toml")
    codes = {}
    for code, entry in table.items():
        explanation = " ".join(entry["explanation"].split())
        codes[code] = ErrorCode(code, entry["summary"], explanation)
    return codes
