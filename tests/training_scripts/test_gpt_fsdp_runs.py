"""The FSDP script, run for real: one loss curve for every layout and number of processes, across stops and kills.

Every run here is bare: plain python, or forks of one process, in a folder where cloudtrain is not installed.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import psutil  # noqa: TID253 - tests may start slowly
import pytest

from tests.training_scripts import runs
from tests.training_scripts.runs import (
    FIVE_DECIMALS,
    HOLD,
    Run,
    assert_same_losses,
    check_out,
    forks,
    held_once,
    terminate,
)

pytestmark = pytest.mark.torch

REPOSITORY = Path(__file__).parents[2]
SMALL = [
    "--layers",
    "2",
    "--width",
    "32",
    "--context",
    "32",
    "--steps",
    "16",
    "--report_every",
    "1",
]
SIX_DECIMALS = 1.5e-6  # of numbers printed with six


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a checkout as a user has it."""
    return check_out("gpt_fsdp", tmp_path_factory.mktemp("checkout"))


def kill_rank_1(launcher: psutil.Process) -> None:
    """What losing a process looks like. Forks have the environment of their launcher, and the order of their ranks."""
    sorted(launcher.children(), key=lambda rank: rank.pid)[1].kill()


def run(script: Path, folder: Path, launcher: list[str], *arguments: str, **options: Any) -> Run:
    """A run in `folder`. The fork launcher is the checkout's own; without it nothing says where the runtime is."""
    where = (
        {"PYTHONPATH": str(script.parents[2])}
        if "cloudtrain.runtime.fork_launcher" in launcher
        else {}
    )
    return runs.run(folder, *launcher, script, *arguments, **where, **options)


@pytest.fixture(scope="module")
def alone(script: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One process with the whole model, never interrupted: what all other runs are compared with."""
    folder = tmp_path_factory.mktemp("alone")
    result = run(script, folder, [sys.executable], *SMALL, "--layout", "ddp")
    assert result.exit_code == 0, result.errors
    assert result.losses[1] == pytest.approx(5.55, abs=0.02)
    assert len(result.losses) == 16
    shutil.copy(folder / "model" / "model.pt", folder.parent / "alone.pt")
    return result


def test_all_layouts_learn_the_same_and_hold_what_they_should(
    script: Path, alone: Run, tmp_path: Path
) -> None:
    """Four processes: every row's losses are one process's to 5 decimals, its gradients to 5 digits, those of bf16 are near; a shard of four holds a
    quarter, of two a half; recomputing and resharding take less memory while working."""
    found = run(script, tmp_path, forks(4), *SMALL, "--compare", "--steps", "3", "--heads", "4")
    assert found.exit_code == 0, found.errors
    rows = {line[:16].strip(): line[16:].replace(" x ", "x").split() for line in found.lines[2:18]}
    _, loss, difference, gradient, held, working, *_ = zip(*rows.values(), strict=True)
    losses, differences = (
        dict(zip(rows, map(float, loss), strict=True)),
        dict(zip(rows, difference, strict=True)),
    )
    exact = set(rows) - {"fsdp, bf16"}
    assert len(exact) == 15
    gradients = dict(zip(rows, map(float, gradient), strict=True))
    assert max(gradients[name] for name in exact) <= 1e-5
    assert gradients["fsdp, bf16"] < 0.02
    assert max(float(differences[name]) for name in exact) <= FIVE_DECIMALS
    assert 0 < float(differences["fsdp, bf16"]) < 0.02
    assert losses["ddp"] != losses["fsdp, bf16"]
    bytes_held = dict(zip(rows, map(float, held), strict=True))
    assert bytes_held["fsdp"] == pytest.approx(bytes_held["ddp"] / 4, rel=0.02)
    assert bytes_held["hsdp"] == pytest.approx(bytes_held["ddp"] / 2, rel=0.02)
    assert bytes_held["2d"] == pytest.approx(bytes_held["ddp"] / 4, rel=0.02)
    bytes_working = dict(zip(rows, map(float, working), strict=True))
    assert bytes_working["fsdp, full"] < bytes_working["fsdp, selective"] < bytes_working["fsdp"]


def test_a_run_goes_on_in_any_layout_on_any_number_of_processes(
    script: Path, alone: Run, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two shards, SIGTERM; two shards of two tensor-parallel processes, SIGTERM; one process. The losses of one that
    was never stopped, to 6 decimals, and in the end its model."""
    import torch

    stops = [
        (forks(2), ["--layout", "fsdp", "--step_delay", "0.05"], 4),
        (forks(4), ["--layout", "2d", "--accumulate", "2", "--step_delay", "0.05"], 8),
        ([sys.executable], ["--layout", "fsdp"], None),
    ]
    seen: set[int] = set()
    for launcher, arguments, at in stops:
        disturb = terminate if at else None
        found = run(script, tmp_path, launcher, *SMALL, *arguments, disturb=disturb, at=at or 0)
        assert_same_losses(found, alone, within=SIX_DECIMALS)
        assert found.resumed_from == ([max(seen)] if seen else [])
        assert min(found.losses) == max(seen, default=0) + 1
        seen |= set(found.losses)
        marker = tmp_path / "checkpoint" / "preempted"
        if at:
            assert json.loads(marker.read_text())["step"] == max(seen)
        else:
            assert found.exit_code == 0, found.errors
            assert not marker.exists()
    assert seen == set(range(1, 17))
    files = tmp_path / "model" / "model.pt", tmp_path_factory.getbasetemp() / "alone.pt"
    mine, reference = (torch.load(path) for path in files)
    assert mine.keys() == reference.keys()
    for name, weights in reference.items():
        torch.testing.assert_close(mine[name], weights, rtol=0, atol=1e-4)


def test_after_a_kill_it_goes_on_from_what_was_written_meanwhile(
    script: Path, alone: Run, tmp_path: Path
) -> None:
    """`kill -9` of rank 1 while checkpoints are written by a thread: the ranks come back at the newest whole one."""
    found = run(
        held_once(script), tmp_path, forks(2, "--max-restarts", "1"),
        *SMALL, "--async_checkpoints", "--checkpoint_every", "2", "--keep", "2",
        disturb=kill_rank_1, at=9, **{HOLD: "9"},
    )  # fmt: skip
    assert found.exit_code == 0, found.errors
    assert len(found.resumed_from) == 1
    assert 4 <= found.resumed_from[0] <= 10
    assert set(found.losses) == set(range(1, 17))
    assert_same_losses(found, alone, within=SIX_DECIMALS)
    folders = sorted(path.name[7:] for path in (tmp_path / "checkpoint").iterdir())
    assert folders == ["step-14", "step-16"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch's compiler needs one of C++")
@pytest.mark.parametrize(("layout", "recompute"), [("fsdp", "selective"), ("2d", "none")])
def test_compiled_layers_learn_the_same(
    script: Path, tmp_path: Path, layout: str, recompute: str
) -> None:
    """A Llama in two shards or two tensor-parallel processes: losses and gradients of one process without the
    compiler. It gives wrong gradients, without an error, where a layer's input is still being exchanged."""
    options = [
        *SMALL[:6],
        "--family",
        "llama",
        "--kv_heads",
        "2",
        "--steps",
        "3",
        "--report_every",
        "1",
    ]
    alone = run(script, tmp_path / "alone", [sys.executable], *options, "--layout", "ddp")
    more = ["--compile", "--layout", layout, "--recompute", recompute]
    found = run(script, tmp_path / "compiled", forks(2), *options, *more)
    assert (alone.exit_code, found.exit_code) == (0, 0), alone.errors + found.errors
    assert found.losses == pytest.approx(alone.losses, abs=FIVE_DECIMALS)
    assert found.norms == pytest.approx(alone.norms, rel=1e-4)
