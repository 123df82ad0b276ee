"""Scripts that use version 3 of the SDK: the request is adopted, and it is said that their code was not uploaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.adoption import V3, adopted

pytestmark = pytest.mark.parity(3)


@pytest.mark.parametrize("name", V3)
def test_a_trainer_script_is_adopted(name: str, tmp_path: Path) -> None:
    """The whole request, but that its code is where version 3 would have uploaded it."""
    found = adopted("v3", V3[name], tmp_path)
    assert [item.path for item in found.differences] == ["InputDataConfig"]
    assert "uploaded" in found.differences[0].reason
