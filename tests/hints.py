"""Hints as tests expect them: by the values in them. Their words are those of the program, and
`tests/api/test_suggestions.py` quotes each of them once."""

from __future__ import annotations

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
