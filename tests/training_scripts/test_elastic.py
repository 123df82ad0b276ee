"""An instance that is lost and comes back: the losses are those of a run that never lost anybody."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.training_scripts.runs import assert_same_losses, check_out, run

pytestmark = pytest.mark.torch


def test_a_lost_instance_comes_back_and_the_losses_go_on(tmp_path: Path) -> None:
    """Two processes, one, two again; every reported loss is that of one process without any loss of instances."""
    script = check_out("digits_ddp", tmp_path / "checkout")
    alone = run(tmp_path / "alone", sys.executable, script, "--epochs", "6", "--report_every", "5")
    # time to rejoin
    arguments = ["--epochs", "6", "--lose_at", "20", "--alone_for", "10", "--step_delay", "0.3"]
    found = run(
        tmp_path / "elastic",
        sys.executable,
        script.with_name("elastic.py"),
        *arguments,
        deadline=900,
    )
    assert found.exit_code == 0, [*found.lines, found.errors]
    result = json.loads((tmp_path / "elastic" / "elastic" / "elastic.json").read_text())
    assert result["sizes"][:3] == [2, 1, 2]
    assert result["lost_at"] >= 20
    assert result["back_at"] >= result["lost_at"] + 10
    assert_same_losses(found, alone, at_least=20)
    assert max(found.losses) == 6 * 23 // 5 * 5
