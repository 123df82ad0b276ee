"""`cloudtrain status --stacks` of a run on this machine."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cloudtrain as ct
from cloudtrain.cli.app import app
from cloudtrain.errors import UsageError
from tests.deadlines import DEADLINE
from tests.guards import needs_proc

pytestmark = needs_proc

SCRIPT = """
import time
from cloudtrain import runtime
def load_next_batch(password="secret"):
    time.sleep(600)
runtime.report(step=1)
load_next_batch()
"""


def test_status_shows_where_a_rank_is(tmp_path: Path) -> None:
    """Its function and line, and no value; a run that is over has no stacks."""
    (tmp_path / "train.py").write_text(SCRIPT)
    job = ct.TrainingJob(name="stacks", source_dir=tmp_path, entry_point="train.py")
    run = ct.submit(job)
    deadline = time.monotonic() + DEADLINE
    while not any("[metrics]" in line.text for line in run.logs()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    try:
        while not all(look.is_still for look in run.stacks()):  # it still starts a thread
            assert time.monotonic() < deadline
        answer = CliRunner().invoke(app, ["status", run.name, "--stacks", "--json"])
        text = CliRunner().invoke(app, ["status", run.name, "--stacks"])
    finally:
        run.stop()
        run.wait()
    (rank,) = json.loads(answer.stdout)["ranks"]
    assert rank["frames"][0]["function"] == "load_next_batch"
    assert rank["frames"][0]["line"] == 5
    assert json.loads(answer.stdout)["held_up_by"] == [0]
    assert "rank 0: in load_next_batch (train.py:5), standing still" in text.stdout
    assert "secret" not in answer.stdout + text.stdout
    with pytest.raises(UsageError) as caught:
        run.stacks()
    assert caught.value.code == "CT967"
