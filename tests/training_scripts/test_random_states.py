"""A network with dropout, planted in each script: a run that was stopped and resumed draws what one run draws."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.training_scripts.runs import (
    Edit,
    Run,
    assert_same_losses,
    check_out,
    forks,
    plant,
    run,
    terminate,
)

pytestmark = pytest.mark.torch

RESNET = (
    "--model toy --image_size 8 --batch 8 --split_size 4 --steps 20 --report_every 1 --device cpu"
)
DROPS: dict[str, tuple[str, int, Edit]] = {
    "toy_smddp": ("--steps 60", 2, ("train.py", "model(images[mine])", "model(nn.functional.dropout(images[mine]))")),
    "cifar_ddp": (
        "--epochs 1 --width 8 --report_every 1", 1,
        ("train.py", "model(prepared(pixels))", "model(nn.functional.dropout(prepared(pixels), 0.3))"),
    ),
    "mnist_horovod": (
        "--epochs 1 --report_every 1", 1,
        ("train.py", "    logits = network(train", "    logits = nn.functional.dropout(torch.ones(1), 0.3) * network(train"),
    ),
    "resnet_model_parallel": (
        RESNET, 1,
        ("train.py", "pipeline.step(*batch_at(step))",
         "pipeline.step(*(part if number else nn.functional.dropout(part, 0.3) "
         "for number, part in enumerate(batch_at(step))))"),
    ),
    "spleen_segmentation": (
        "--steps 12 --report_every 1", 1,
        ("train.py", "logits = model(images)", "logits = model(torch.nn.functional.dropout(images, 0.3))"),
    ),
}  # fmt: skip
"""Script to arguments, processes, and what is planted."""

OLDER: dict[str, Edit] = {
    "toy_smddp": ("train.py", ', "random": runtime.random_states()}', "}"),
    "mnist_horovod": ("train.py", ', "random": random},', "},"),
    "resnet_model_parallel": ("train.py", '{**whole_state(), "random": random}', "whole_state()"),
}
"""What each script saved before it saved random states."""


@pytest.mark.parametrize("name", DROPS)
def test_a_resumed_run_draws_what_one_run_draws(name: str, tmp_path: Path) -> None:
    """SIGTERM in the middle, then the same command: the losses of a run that was never stopped."""
    arguments, processes, edit = DROPS[name]
    if name == "spleen_segmentation" and find_spec("monai") is None:
        pytest.skip("monai is not installed: `pip install monai==1.6.1` (the extra `dev` has it)")
    script = check_out(name, tmp_path / "checkout")
    plant(script, edit)

    def start(folder: str, *more: str, stop_at: int | None = None) -> Run:
        found = run(
            tmp_path / folder, *forks(processes), script, *arguments.split(), *more,
            disturb=None if stop_at is None else terminate, at=stop_at or 0, PYTHONPATH=str(script.parents[2]),
        )  # fmt: skip
        assert stop_at is not None or found.exit_code == 0, found.errors
        return found

    whole = start("whole")
    first = start("parts", "--step_delay", "0.2", stop_at=min(sorted(whole.losses)[1:]))
    stopped_at = json.loads((tmp_path / "parts" / "checkpoint" / "preempted").read_text())["step"]
    rest = start("parts")
    assert rest.resumed_from == [stopped_at]
    assert_same_losses(first, whole)
    assert_same_losses(rest, whole, at_least=1)


@pytest.mark.parametrize("name", OLDER)
def test_a_checkpoint_of_an_earlier_version_is_refused_in_a_sentence(
    name: str, tmp_path: Path
) -> None:
    """Once, on whichever number of processes, and without a traceback."""
    arguments, processes, _ = DROPS[name]
    older, script = check_out(name, tmp_path / "older"), check_out(name, tmp_path / "checkout")
    plant(older, OLDER[name])
    for each, exit_code in ((older, 0), (script, 1)):
        command = [*forks(processes), each, *arguments.split()]
        found = run(tmp_path / "run", *command, PYTHONPATH=str(each.parents[2]))
        assert found.exit_code == exit_code, found.errors
    assert (
        found.errors.count("error: the checkpoint was saved by an earlier version of this script")
        == 1
    )
    assert "hint: remove the checkpoints to start from the beginning" in found.errors
    assert "Traceback" not in found.errors
