"""`--launcher fork` on the command line."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.hints import suggested

JOB = "name: toy\nentry_point: train.py\ndistribution: {type: torch}\n"


@pytest.fixture
def torch_job(clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A torch job, on a machine that shows no GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (clean_environment / "train.py").write_text("")
    (clean_environment / "job.yaml").write_text(JOB)
    return "job.yaml"


@pytest.mark.skipif(
    find_spec("torch") is None, reason="a plan for an interpreter without PyTorch is refused"
)
def test_plan_shows_the_launcher_and_every_variable_of_the_ranks(cli: Cli, torch_job: str) -> None:
    """One launcher for all instances; the ranks with what they will find; restarts are not said to have no effect."""
    result = cli(
        "plan", torch_job, "--launcher", "fork", "--instances", "2", "--max-restarts", "1", "--json"
    )
    assert result.code == 0, result.err
    plan = json.loads(result.out)
    launcher, *ranks = plan["processes"]
    assert (launcher["role"], launcher["argv"][2:4]) == (
        "fork",
        ["-m", "cloudtrain.runtime.fork_launcher"],
    )
    assert [(rank["rank"], rank["instance"]) for rank in ranks] == [(0, 0), (1, 1)]
    assert ranks[1]["env"]["MASTER_PORT"] == "${{ports.rendezvous}}"
    assert ranks[1]["env"]["TORCHELASTIC_MAX_RESTARTS"] == "1"
    assert "LO203" not in {finding["code"] for finding in plan["findings"]}


@pytest.mark.parametrize(
    ("flags", "message", "hint"),
    [
        (("--launcher", "frok"), "`launcher` cannot be", suggested("fork")),
        (
            ("--launcher", "fork", "--set", "distribution.type=none"),
            "this job is `none`",
            "--launcher torchrun",
        ),
        (
            ("--launcher", "fork", "--emulate", "sagemaker"),
            "no effect with `emulate`",
            "remove one of them",
        ),
        (
            ("--launcher", "fork", "--target", "sagemaker"),
            "`--launcher` works only on the local target",
            "--target local",
        ),
    ],
)
def test_wrong_flags(
    cli: Cli, torch_job: str, flags: tuple[str, ...], message: str, hint: str
) -> None:
    """What makes no sense together is said, with what to type."""
    result = cli("plan", torch_job, *flags)
    assert result.code == 2
    text = " ".join(result.err.split())
    assert message in text
    assert hint in text


def test_gpus_are_refused(cli: Cli, torch_job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with GPUs is told how to hide them."""
    monkeypatch.setattr("cloudtrain.runtime.hardware.present_gpus", lambda _: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    result = cli("plan", torch_job, "--launcher", "fork")
    assert (result.code, "CUDA_VISIBLE_DEVICES=" in result.err) == (2, True)
