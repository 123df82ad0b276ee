"""The suggestion of a name: which name it is, and its words, which are quoted here alone."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

import cloudtrain as ct
from cloudtrain.errors import InPlace, NearName, ValidNames, did_you_mean
from tests.hints import suggested

NAMES = ["learning_rate", "num_epochs", "Batch"]


def test_the_words_of_a_near_name() -> None:
    assert did_you_mean("batsh", NAMES) == suggested("Batch")


def test_the_words_of_a_list() -> None:
    assert did_you_mean("x", ["b", "a"]) == "use one of `a`, `b`"


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("learning_rat", "learning_rate"),
        ("lr", "learning_rate"),
        ("epoch", "num_epochs"),
        ("BATCH", "Batch"),
    ],
)
def test_a_near_name_says_which_it_is(word: str, name: str) -> None:
    hint = did_you_mean(word, NAMES)
    assert isinstance(hint, NearName)
    assert isinstance(hint, InPlace)
    assert hint.name == name


def test_what_is_near_nothing_gets_a_list() -> None:
    """And nothing is suggested where there are no names."""
    assert isinstance(did_you_mean("zzz", NAMES), ValidNames)
    assert did_you_mean("zzz", []) is None


def test_a_hint_is_text_everywhere() -> None:
    """In JSON, in a copy and in another process."""
    hint = NearName.of("a")
    for other in (copy.deepcopy(hint), pickle.loads(pickle.dumps(hint))):
        assert (other, other.name) == (hint, "a")
    assert json.loads(json.dumps(hint)) == str(hint)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"zzz": 1}, "`zzz` is not a field of `Resources`"),
        ({"interconnect": "zzz"}, '`interconnect` cannot be `"zzz"`'),
        ({"gpu": 3}, "`gpu` must be text, not `3`"),
    ],
)
def test_the_words_of_a_wrong_field(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ct.JobError) as caught:
        ct.Resources(**fields)
    assert caught.value.message == words
