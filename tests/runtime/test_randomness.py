"""Random states in a checkpoint: what is drawn after a resumption is what would have been drawn."""

from __future__ import annotations

import random

import pytest

from cloudtrain import runtime


@pytest.mark.slow
def test_pythons_numbers_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch, and after other draws."""
    random.seed(3)
    states = runtime.random_states()
    expected = [random.random() for _ in range(5)]
    random.seed(99)
    runtime.restore_random_states(states)
    assert [random.random() for _ in range(5)] == expected


@pytest.mark.torch
def test_dropout_drops_what_it_would_have_dropped() -> None:
    """torch's and numpy's generators, through plain text that a checkpoint can hold."""
    import numpy as np
    import torch

    torch.manual_seed(1)
    np.random.seed(1)
    dropout = torch.nn.Dropout(0.5)
    dropout(torch.ones(10))
    states = runtime.random_states()
    assert isinstance(states, str)
    expected = dropout(torch.ones(1000)), np.random.rand(3)
    torch.manual_seed(5)
    np.random.seed(5)
    runtime.restore_random_states(states)
    found = dropout(torch.ones(1000)), np.random.rand(3)
    assert torch.equal(found[0], expected[0])
    assert (found[1] == expected[1]).all()


@pytest.mark.slow
def test_a_process_more_than_there_were_keeps_its_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so; its numbers are those of the seed that the script gave it."""
    states = runtime.random_states()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    random.seed(7)
    expected = random.Random(7).random()
    runtime.restore_random_states(states)
    assert random.random() == expected
    assert "the checkpoint has random states of 1 processes" in capsys.readouterr().err


def test_a_checkpoint_without_states_is_named() -> None:
    """An earlier version of a script saved none."""
    with pytest.raises(runtime.SetupError, match="without random states") as caught:
        runtime.restore_random_states(None)
    assert caught.value.hint is not None
