"""References of runs: `target://place/name`."""

from __future__ import annotations

import pytest

import cloudtrain as ct
from cloudtrain.errors import UsageError


@pytest.mark.parametrize(
    "text", ["local://host/a-1", "my_cluster2://%2Fshared%2Fqueue/a-1", "sagemaker://p@eu-west-1/a"]
)
def test_a_reference_is_read_as_it_is_written(text: str) -> None:
    """Names of targets have letters, digits and underscores; a place may have anything but a slash."""
    assert str(ct.RunRef.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["a-1", "local://host", "local://a/b/c", "2cluster://host/a-1", "My://host/a-1"]
)
def test_what_is_no_reference(text: str) -> None:
    """Anything else is an error that shows how a reference looks."""
    with pytest.raises(UsageError) as caught:
        ct.RunRef.parse(text)
    assert "local://host/name" in caught.value.hint
