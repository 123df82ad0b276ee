"""The bundled scripts survive their preemption, with two real processes each."""

from __future__ import annotations

import pytest

import cloudtrain as ct
from cloudtrain.lifecycle.rehearse import Rehearsal, rehearse, run_whole
from tests.deadlines import GRACE

pytestmark = pytest.mark.torch


def rehearsal_of(name: str, at_step: int, **hyperparameters: object) -> Rehearsal:
    """Of the script, small, with SIGTERM at that step."""
    job = ct.bundled_job(
        name, [f"hyperparameters.{key}={value}" for key, value in hyperparameters.items()]
    )
    target = ct.Local(launcher="fork", processes_per_instance=2, grace_period=GRACE)
    return rehearse(run_whole(job, lambda one: ct.submit(one, target)), at_step=at_step)


def test_the_digits_survive() -> None:
    """SIGTERM at a step of 138 that take a tenth of a second: the script saves there, and every loss is the same."""
    found = rehearsal_of("digits_ddp", 50, epochs=6)
    assert (found.verdict.kind, found.left, found.comparison.largest_difference) == (
        "same",
        "saved",
        0.0,
    ), found
    assert (found.comparison.saved_at, found.comparison.resumed_at, found.comparison.compared) == (
        50,
        51,
        14,
    )


@pytest.mark.parametrize(
    ("name", "small"),
    [
        ("pipeline_gpt", {"layers": 4, "width": 32, "context": 32, "schedule": "zero-bubble-v"}),
        ("gpt_fsdp", {"layers": 2, "width": 32, "context": 32}),
        # With 4 channels the backward pass of torch 2.13 can crash in oneDNN, as on an AMD EPYC
        # with AVX2.
        ("cifar_ddp", {"epochs": 2, "width": 8}),
    ],
)
def test_the_larger_scripts_survive(name: str, small: dict[str, object]) -> None:
    """A pipeline of two stages, two shards, and two processes with loaders of their own."""
    found = rehearsal_of(name, 10, report_every=2, **small)
    assert (found.verdict.kind, found.left) == ("same", "saved"), found
    assert found.comparison.saved_at is not None
    assert 10 <= found.comparison.saved_at < 40
    assert found.comparison.compared >= 10
