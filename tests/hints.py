"""Messages and hints as tests expect them: by the values in them. Their words are the program's own,
and `tests/api/test_suggestions.py` quotes each of them once."""

from __future__ import annotations

from functools import cache
from typing import Any

import cloudtrain as ct
from cloudtrain.errors import NearName, ValidNames


def suggested(name: object) -> str:
    """The hint that suggests the name."""
    return NearName.of(str(name))


def one_of(*names: str) -> str:
    """The hint that lists the valid names."""
    return ValidNames.of(names)


def words_before_name(hint: str) -> str:
    """The words of a hint up to its first quoted name."""
    return hint.partition("`")[0]


@cache
def _words_of(field: str, value: Any) -> str:
    """The message about a wrong field of `Resources`."""
    try:
        ct.Resources(**{field: value})
    except ct.JobError as error:
        return error.message
    raise AssertionError(f"{field} can be {value}")


def no_field(name: str, owner: str) -> str:
    """The message about a field that `owner` does not have, such as `a job`."""
    words = _words_of("zzz", 1)
    return words.replace("`zzz`", f"`{name}`").replace("`Resources`", owner)


def no_choice(name: str, value: str) -> str:
    """The message about a field that cannot have the value."""
    words = _words_of("interconnect", "zzz")
    return words.replace("`interconnect`", f"`{name}`").replace('`"zzz"`', value)


def wrong_type(name: str, words: str, value: str) -> str:
    """The message about a value of a wrong type. `words` describe the type, such as `text`."""
    return (
        _words_of("gpu", 3)
        .replace("`gpu`", f"`{name}`")
        .replace("`3`", value)
        .replace("text", words)
    )
