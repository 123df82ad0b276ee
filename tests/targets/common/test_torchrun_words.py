"""Where torchrun would take an argument of the script for its own, every target ends torchrun's options first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import cloudtrain as ct


@pytest.mark.parametrize("name", ["log", "run", "max", "node", "local", "start", "master", "rdzv"])
def test_options_end_before_the_script(name: str, make_source: Callable[..., Path]) -> None:
    """`--` stands before the script, locally and under Slurm; the ranks get what the job says."""
    source = str(make_source({"train.py": ""}))
    job = ct.TrainingJob(
        name="job",
        source_dir=source,
        entry_point="train.py",
        hyperparameters={name: 3},
        distribution={"type": "torch"},
    )
    for target in (ct.Local(processes_per_instance=2), ct.Slurm()):
        agent, rank = (
            next(p for p in ct.plan(job, target).processes if p.role == role)
            for role in ("torchrun", "rank")
        )
        assert "--" in agent.argv[: agent.argv.index(f"--{name}")]
        assert rank.argv[-2:] == (f"--{name}", "3")


def test_other_arguments_change_nothing(make_source: Callable[..., Path]) -> None:
    """A name that torchrun does not know leaves its command line as it is."""
    source = str(make_source({"train.py": ""}))
    job = ct.TrainingJob(
        name="job",
        source_dir=source,
        entry_point="train.py",
        hyperparameters={"lr": 3},
        distribution={"type": "torch"},
    )
    for target in (ct.Local(processes_per_instance=2), ct.Slurm()):
        assert (
            "--" not in next(p for p in ct.plan(job, target).processes if p.role == "torchrun").argv
        )
