"""Scripts that use version 3 of the SDK: the job's own fields are equal, and what its drivers start is what ours does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.adoption import V3, adopted

pytestmark = pytest.mark.parity(3)

DIFFERENT = {
    "mpi": "(start).processes",
    "own_variables": "(start).environment",
    "changed": "InputDataConfig",
}
"""Where version 3 does something that no job can say, or that it should not."""


@pytest.mark.parametrize("name", V3)
def test_a_trainer_script_is_adopted(name: str, tmp_path: Path) -> None:
    """Equal, with the code from the folder beside the script; and the place that differs is named."""
    found = adopted("v3", V3[name], tmp_path)
    assert [item.path for item in found.differences] == (
        [DIFFERENT[name]] if name in DIFFERENT else []
    )
    if name not in ("no_code", "changed"):
        assert found.job.source_dir == "src"
