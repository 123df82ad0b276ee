"""Histories of lists of alternatives, each against the model; and that the model can tell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloudtrain.lifecycle import watcher
from tests.lifecycle.capacity.histories import Difference, history

SEED = int(os.environ.get("CLOUDTRAIN_TEST_SEED", "1"))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("part", range(3))
def test_histories_agree_with_the_model(part: int, tmp_path: Path) -> None:
    for seed in range(SEED + 30 * part, SEED + 30 * (part + 1)):
        history(seed, tmp_path)


@pytest.mark.slow
def test_a_list_that_moves_on_without_an_answer_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a watcher that takes silence for a refusal."""

    def wait(self: watcher.ListWatcher, _: str) -> None:
        attempt = self._attempts[-1]
        if attempt.sent is None:
            self._finish(attempt, "it does not answer")
        self._sleep()

    monkeypatch.setattr(watcher.ListWatcher, "_wait", wait)

    def run_all() -> None:
        for seed in range(200):
            history(seed, tmp_path)

    with pytest.raises(Difference):
        run_all()
