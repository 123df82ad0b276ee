"""The example of the documentation runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deadlines import DEADLINE

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.torch
def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    """One hundred metric lines, and nothing on stderr."""
    page = (REPOSITORY / "docs" / "guides" / "runtime.md").read_text("utf-8")
    example = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert example is not None
    (tmp_path / "example.py").write_text(example[1])
    found = subprocess.run(
        [sys.executable, "example.py", "--learning-rate", "0.2"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.splitlines() == [
        f"[metrics] step={step} loss=0.25" for step in range(1, 101)
    ]
