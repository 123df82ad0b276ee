"""The rules for names that users choose in a job: regular expressions and their descriptions."""

from __future__ import annotations

import re
from typing import NamedTuple

JOB_NAME = r"^[a-zA-Z0-9](-*[a-zA-Z0-9])*$"
"""The name of a job, valid for both SageMaker training jobs and Azure ML jobs."""

MAX_JOB_NAME = 40
"""Maximum length of a job's name, so that a run's name with hash and counter fits every target."""

PLACE_NAME = r"^[a-zA-Z_][a-zA-Z0-9_]*$"
"""The name of an input or output, valid for both SageMaker's channels and Azure ML's keys."""


class _Words(NamedTuple):
    rule: str
    filler: str
    first: str


_WORDS = {
    JOB_NAME: _Words("letters, digits and hyphens, with a letter or digit at both ends", "-", "[^a-zA-Z0-9]+"),
    PLACE_NAME: _Words("letters, digits and underscores, and no digit first", "_", "[^a-zA-Z_]+"),
}


def rule_of(pattern: str) -> str | None:
    """Return the description of a name pattern of this module; None for other patterns."""
    words = _WORDS.get(pattern)
    return words.rule if words else None


def mend_name(name: str, pattern: str, length: int) -> str | None:
    """Return a valid name like `name`, such as `my-job` for `my job`; None if there is none. A valid name matches
    `pattern`, and has at most `length` characters.
    """
    words = _WORDS.get(pattern)
    if words is None:
        return None
    text = re.sub("[^a-zA-Z0-9_-]+" if words.filler == "-" else "[^a-zA-Z0-9_]+", words.filler, name)
    text = text.replace("_", "-") if words.filler == "-" else text
    text = re.sub(f"^{words.first}", "", text)[:length].rstrip("-")
    return text if re.search(pattern, text) else None
