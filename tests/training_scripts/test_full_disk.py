"""A checkpoint that does not fit on the disk ends the run with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training_scripts.runs import check_out, forks, run

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("name", "processes", "kilobytes", "arguments"),
    [
        ("digits_ddp", 1, 100, "--epochs 1"),
        ("gpt_fsdp", 2, 2000, "--steps 6"),
        ("gpt_fsdp", 2, 2000, "--steps 6 --async_checkpoints"),
    ],
)
def test_a_full_disk_is_named_without_a_traceback(
    name: str, processes: int, kilobytes: int, arguments: str, tmp_path: Path
) -> None:
    """A limit for the length of a file stands for the disk: the system refuses the write in the same way."""
    script = check_out(name, tmp_path / "checkout")
    limited = ["bash", "-c", f'ulimit -f {kilobytes}; exec "$@"', "-", *forks(processes)]
    options = [*arguments.split(), "--checkpoint_every", "5"]
    found = run(tmp_path / "run", *limited, script, *options, PYTHONPATH=str(script.parents[2]))
    assert found.exit_code == 1
    assert found.errors.count("error: no checkpoint can be written to `checkpoint") == 1
    assert "File too large" in found.errors
    assert "Traceback" not in found.errors
