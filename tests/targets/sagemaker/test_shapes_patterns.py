"""The service's patterns are Java's, and are matched as Java would."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.targets.sagemaker.catalogue import shapes
from cloudtrain.targets.sagemaker.catalogue.shapes import matches

PATTERNS = sorted(
    {shape["pattern"] for shape in shapes._model()["shapes"].values() if "pattern" in shape}
)
TAG = r"([\p{L}\p{Z}\p{N}_.:/=+\-@]*)"


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_of_the_model_can_be_matched(pattern: str) -> None:
    """None has a construct that is left untranslated: Python would refuse it."""
    assert matches(pattern, "x") in (True, False)


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (".*", "one line, é, 🙂", True), (".*", "two\nlines", False), (".*", "two\rlines", False),
        (".*", "two\u2028lines", False), (".*", "two\x85lines", False), ("a.c", "a.c", True), (r"a\.c", "abc", False),
        ("[.]", ".", True), ("[.]", "x", False), (r"[\S\s]*", "two\nlines 🙂", True),
        (r"\d+K", "4K", True), (r"\d+K", "٤K", False), (r"\w+", "é", False),
        (TAG, "équipe 4 ½ 漢字 a_b.c:d/e=f+g-h@i", True), (TAG, "a\u00a0b\u3000c", True), (TAG, "a;b", False),
        (TAG, "🙂", False), (TAG, "\ue000", False), (TAG, "a\tb", False), (r"\p{L}", "é", True), (r"\p{N}", "é", False),
        (r"[\p{Alnum}\-]+", "aB-9", True), (r"[\p{Alnum}\-]+", "é", False),
        (r"[\u0020-\uD7FF\uE000-\uFFFD\uD800\uDC00-\uDBFF\uDFFF\t]*", "catalog 🙂\t", True),
        (r"[\u0020-\uD7FF\uE000-\uFFFD\uD800\uDC00-\uDBFF\uDFFF\t]*", "\x07", False),
        ("a|b", "ab", False), ("[a-z]+", "abc\n", False),
    ],
)  # fmt: skip
def test_one_text(pattern: str, text: str, expected: bool) -> None:
    """Line breaks, Unicode classes, surrogates, and always the whole text."""
    assert matches(pattern, text) is expected


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_ascii_tags_are_as_a_plain_pattern_says(text: str) -> None:
    """On ASCII the translation of the classes is exact."""
    assert matches(TAG, text) == bool(re.fullmatch(r"[a-zA-Z 0-9_.:/=+\-@]*", text))


@given(st.characters(exclude_categories=["Cs"]))
def test_a_tag_takes_letters_numbers_and_separators_of_all_languages(char: str) -> None:
    """Decided by the first letter of the character's category, as Java does."""
    import unicodedata

    assert matches(TAG, char) == (unicodedata.category(char)[0] in "LNZ" or char in "_.:/=+-@")
