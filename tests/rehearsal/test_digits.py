"""The bundled script survives its preemption, with two real processes."""

from __future__ import annotations

import pytest

import cloudtrain as ct
from cloudtrain.rehearsal.rehearse import Wishes, rehearse, run_whole

pytestmark = pytest.mark.torch


def test_the_digits_survive() -> None:
    """SIGTERM at a step of 138 that take a tenth of a second: the script saves there, and every loss is the same."""
    job = ct.bundled_job("digits_ddp", ["hyperparameters.epochs=6"])
    target = ct.Local(launcher="fork", processes_per_instance=2)
    found = rehearse(run_whole(job, lambda one: ct.submit(one, target)), Wishes(at_step=50))
    assert (found.verdict.kind, found.left, found.comparison.largest_difference) == ("same", "saved", 0.0), found
    assert (found.comparison.saved_at, found.comparison.resumed_at, found.comparison.compared) == (50, 51, 14)
