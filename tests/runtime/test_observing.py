"""Traces of some steps, NCCL's flight recorder, and what held the memory when it ran out."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cloudtrain import runtime
from cloudtrain.runtime import observing

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run."""
    monkeypatch.setenv("CLOUDTRAIN_RUN_DIR", str(tmp_path))
    return tmp_path / "diagnostics"


def train(profile: runtime.StepProfile, steps: int) -> None:
    """Steps that compute something."""
    import torch

    for step in range(1, steps + 1):
        profile.begin(step)
        with torch.profiler.record_function(f"step {step}"):
            torch.ones(8) @ torch.ones(8)
    profile.end()


def test_a_trace_holds_the_steps_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of five; a Chrome trace in the run's folder, named on stderr."""
    train(runtime.StepProfile("2-3@0"), 5)
    (path,) = folder.iterdir()
    assert path.name == "trace_steps_2-3_rank_0.json"
    names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
    assert {"step 2", "step 3"} <= names
    assert not {"step 1", "step 4"} & names
    assert str(path) in capsys.readouterr().err


def test_a_run_that_ends_earlier_writes_what_it_has(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan may come from a variable, which needs no change of the job."""
    monkeypatch.setenv("CLOUDTRAIN_PROFILE", "2-100@all")
    train(runtime.StepProfile(), 3)
    assert [path.name for path in folder.iterdir()] == ["trace_steps_2-100_rank_0.json"]


def test_other_ranks_and_no_plan_record_nothing(folder: Path) -> None:
    """Rank 0 is not rank 3."""
    train(runtime.StepProfile("1@3"), 2)
    train(runtime.StepProfile(), 2)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("text", "message"), [("soon", "`soon` is not a profile"), ("5-2", "ends before it begins")]
)
def test_a_plan_that_is_none_is_refused(text: str, message: str) -> None:
    """With an example."""
    with pytest.raises(runtime.SetupError, match=message):
        runtime.StepProfile(text)


def test_the_flight_recorder_writes_into_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the names that this torch reads; what the user set stays."""
    for name in list(os.environ):
        if name.startswith(("TORCH_FR", "TORCH_NCCL")):
            monkeypatch.delenv(name)
    with monkeypatch.context() as patch:
        patch.setenv("TORCH_FR_BUFFER_SIZE", "77")
        observing.record_flights()
        assert os.environ["TORCH_FR_BUFFER_SIZE"] == "77"
        assert os.environ["TORCH_FR_DUMP_TEMP_FILE"] == str(folder / "nccl_trace_rank_")
        assert os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
        for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT"):
            patch.setenv(name, "")  # so that it is taken away again
            patch.delenv(name)


def test_running_out_of_memory_leaves_a_snapshot(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in of CUDA's observer, which torch calls when an allocation fails."""
    import torch

    observers: list[Any] = []
    monkeypatch.setattr(
        torch._C, "_cuda_attach_out_of_memory_observer", observers.append, raising=False
    )
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **_: None)
    monkeypatch.setattr(
        torch.cuda.memory, "_dump_snapshot", lambda path: Path(path).write_bytes(b"snapshot")
    )
    observing.watch_memory()
    observers[0](0, 1 << 30, 0, 0)
    assert (folder / "out_of_memory_rank_0.pickle").read_bytes() == b"snapshot"
    monkeypatch.setenv("CLOUDTRAIN_MEMORY_HISTORY", "0")
    observing.watch_memory()
    assert len(observers) == 1
