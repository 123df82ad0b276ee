"""What the name of an unknown Azure size says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.errors import NearName
from cloudtrain.targets.azureml.catalogue import guess, nearest_size


@pytest.mark.parametrize(
    ("name", "infiniband", "gpu"),
    [
        ("Standard_ND192isr_X900_v9", True, "X900"),
        ("STANDARD_ND96ISR_H100_V5", True, "H100"),
        ("Standard_ND128isr_NDR_GB200_v6", True, "GB200"),
        ("Standard_ND128isrG5_GB300_v6", True, "GB300"),
        ("Standard_HB120-16rs_v3", True, ""),
        ("Standard_HB176s_v4", False, ""),
        ("Standard_H16mr", True, ""),
        ("Standard_NC320lds_xl_RTXPRO6000BSE_v6", False, "RTXPRO6000BSE"),
        ("Standard_D4pds_v5", False, ""),
        ("Standard_DS3_v2", False, ""),
        ("Standard_D3_v2", False, ""),
        ("Standard_A8m_v2", False, ""),
        ("Standard_E8-4ds_v4", False, ""),
    ],
)
def test_guesses(name: str, infiniband: bool, gpu: str) -> None:
    """InfiniBand by the `r`, the GPU where it is named; in any case."""
    found = guess(name)
    assert found is not None
    assert (found.has_infiniband, found.gpu) == (infiniband, gpu)
    assert f"`{name}`" in found.text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Standard_HB120-16rs_v3", "`Standard_HB120-16rs_v3` has InfiniBand"),
        ("Standard_D4pds_v5", "`Standard_D4pds_v5` has no InfiniBand"),
    ],
)
def test_a_guess_says_that_it_is_one(name: str, words: str) -> None:
    """In words, with what the name says of InfiniBand."""
    found = guess(name)
    assert found is not None
    assert words in found.text
    assert found.text.endswith("that is a guess")


@pytest.mark.parametrize(
    "name",
    ["", "gpu-cluster", "ml.p4d.24xlarge", "Standard_", "Standard_NC", "NC24r", "Standard_X 1"],
)
def test_other_names_say_nothing(name: str) -> None:
    """What is not built like a size's name has no guess."""
    assert guess(name) is None


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("nd96asr_v4", "Standard_ND96asr_v4"),
        ("Standard_ND96asrv4", "Standard_ND96asr_v4"),
        ("STANDARD_NC6", None),  # `Standard_NC64as_T4_v3` begins alike, and costs far more
        ("Standard_", None),
        ("", None),
    ],
)
def test_the_nearest_size(name: str, near: str | None) -> None:
    """Of the same series, and similar as a whole."""
    assert nearest_size(name) == (near and NearName.of(near))


@given(st.text(max_size=40) | st.from_regex(r"[Ss]tandard_\w+-?\w*", fullmatch=True))
def test_any_text_has_an_answer(name: str) -> None:
    """No text breaks the reader, and case changes nothing that counts."""
    found = guess(name)
    other = guess(name.swapcase()) if name.isascii() else found
    assert (found is None) == (other is None)
    if found and other:
        assert found.has_infiniband == other.has_infiniband
