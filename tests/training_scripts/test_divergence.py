"""A training that has diverged ends with a sentence, before it replaces good checkpoints with its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training_scripts.runs import check_out, forks, run

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("gpt_fsdp", "--steps 60 --layers 1 --width 32 --report_every 100"),
        ("pipeline_gpt", "--steps 60 --layers 1 --width 32 --context 32 --report_every 100"),
        ("cifar_ddp", "--width 8 --report_every 5"),
    ],
)
def test_a_diverged_training_saves_nothing(name: str, arguments: str, tmp_path: Path) -> None:
    """It is seen at a report or, between two of them, before a save."""
    script = check_out(name, tmp_path / "checkout")
    options = [*arguments.split(), "--learning_rate", "1e30", "--checkpoint_every", "20"]
    found = run(tmp_path / "run", *forks(2), script, *options, PYTHONPATH=str(script.parents[2]))
    assert found.exit_code == 1
    assert "the training has diverged" in found.errors
    assert "Traceback" not in found.errors
    assert not (tmp_path / "run" / "checkpoint").is_dir() or not list(
        (tmp_path / "run" / "checkpoint").glob("0*")
    )
