"""Hugging Face's Trainer and Lightning with the runtime's callbacks, in the real libraries.

They are not in the project's own environment. `make test-scripts` makes one that has them, and names its interpreter in
`CLOUDTRAIN_INTEGRATIONS_PYTHON`:

    python tools/run/training_scripts.py integrations
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.deadlines import DEADLINE
from tests.training_scripts import runs
from tests.training_scripts.runs import REPOSITORY, Run

SCRIPTS = Path(__file__).parent / "integrations"
PYTHON = os.environ.get("CLOUDTRAIN_INTEGRATIONS_PYTHON", sys.executable)
TWO = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def has_libraries() -> bool:
    """Asked of the interpreter that would run them, without importing them."""
    ask = (
        "import importlib.util as u, sys; "
        "sys.exit(not all(map(u.find_spec, ('transformers', 'accelerate', 'lightning', 'hydra'))))"
    )
    return subprocess.run([PYTHON, "-c", ask], check=False).returncode == 0


pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not has_libraries(), reason="set CLOUDTRAIN_INTEGRATIONS_PYTHON to a Python that has them"
    ),
]


def train(
    folder: Path,
    script: str,
    *,
    launcher: Sequence[str] = TWO,
    arguments: Sequence[str] = (),
    **variables: str,
) -> Run:
    """Run a script in `folder`, with the runtime in its path."""
    usual = {"PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"}
    return runs.run(folder, *launcher, SCRIPTS / script, *arguments, **usual, **variables)


def test_the_trainer_of_hugging_face_stops_and_resumes(tmp_path: Path) -> None:
    """One of two ranks is asked to stop: both save and leave with exit code 0. The next run skips a torn checkpoint,
    goes on, and its losses are those of a run that nothing interrupted."""
    whole = train(tmp_path / "whole", "huggingface_tiny.py")
    assert whole.exit_code == 0, whole.errors
    assert sorted(whole.losses) == list(range(1, 13))
    assert {"eval_loss", "train_loss", "total", "epoch", "seconds_left"} <= whole.reported.keys()
    assert "saved ['model.safetensors']" in whole.lines

    folder = tmp_path / "stopped"
    stopped = train(folder, "huggingface_tiny.py", STOP_AT="6")
    assert stopped.exit_code == 0, stopped.errors
    last = max(stopped.losses)
    assert 4 < last < 8  # between two epochs' ends, where nothing else saves
    assert json.loads((folder / "checkpoint" / "preempted").read_text())["step"] == last
    assert not (folder / "model").exists()
    torn = folder / "checkpoint" / "checkpoint-99"
    shutil.copytree(folder / "checkpoint" / f"checkpoint-{last}", torn)
    os.truncate(torn / "model.safetensors", 100)

    resumed = train(folder, "huggingface_tiny.py")
    assert resumed.exit_code == 0, resumed.errors
    assert "skipped the torn checkpoint" in resumed.errors
    assert resumed.losses == {step: loss for step, loss in whole.losses.items() if step > last}
    assert resumed.last("eval_loss") == whole.last("eval_loss")
    # the Trainer's mean is of the steps since it has resumed
    assert "train_loss" not in resumed.reported
    assert not (folder / "checkpoint" / "preempted").exists()

    alone = train(tmp_path / "alone", "huggingface_tiny.py", USE_CPU="")
    assert alone.exit_code == 1
    assert "the trainer uses 1 of the 2 processes of this job" in alone.errors


@pytest.mark.parametrize("processes", [2, 1])
def test_lightning_stops_and_resumes(tmp_path: Path, processes: int) -> None:
    """In the middle of an epoch, with data in random order: the losses are those of a run that nothing interrupted. The
    single process trains three times, with a data loader's worker, and Lightning's older package."""
    if processes == 2:
        whole, stopped, resumed = (
            train(tmp_path, "lightning_tiny.py", arguments=(name,))
            for name in ("whole", "stopped:6", "stopped")
        )
        assert [one.exit_code for one in (whole, stopped, resumed)] == [0, 0, 0], (
            stopped.errors + resumed.errors
        )
    else:
        names = ("whole", "stopped:6", "stopped")
        usual = {"WORKERS": "1", "PACKAGE": "pytorch_lightning"}
        found = train(tmp_path, "lightning_tiny.py", launcher=[PYTHON], arguments=names, **usual)
        assert found.exit_code == 0, found.errors
        whole, stopped, resumed, rest = Run(), Run(), Run(), Run()
        several = iter((whole, stopped, resumed, rest))
        current = next(several)
        for line in found.lines:
            current.add(line)
            current = next(several) if line == "trained" else current
    assert sorted(whole.losses) == list(range(1, 13))
    assert {"validation/loss", "total", "epoch", "seconds_left"} <= whole.reported.keys()
    assert max(stopped.losses) == 6
    kept = {path.name for path in (tmp_path / "stopped").iterdir()}
    assert kept == {"000002-step-6", "000003-step-8", "000004-step-12"}
    assert resumed.losses == {step: loss for step, loss in whole.losses.items() if step > 6}
    assert resumed.last("validation/loss") == whole.last("validation/loss")


@pytest.mark.parametrize(
    ("example", "options", "found"),
    [
        (
            "accelerate.yaml",
            ["--processes-per-instance", "2"],
            r"\[metrics\] step=80 epoch=5 loss=\S+ processes=2",
        ),
        ("hydra.yaml", [], r"it's a line: learning rate 0\.2, sizes \[8, 4\]"),
    ],
)
def test_the_examples_for_accelerate_and_hydra_run(
    tmp_path: Path, example: str, options: list[str], found: str
) -> None:
    """As jobs on this machine, with the interpreter that has the libraries."""
    command = [sys.executable, "-m", "cloudtrain", "submit", str(REPOSITORY / "examples" / example)]
    variables = {"CLOUDTRAIN_STATE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    chosen = ["--target", "local", "--python", PYTHON, *options]
    done = subprocess.run(
        [*command, *chosen],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(found, done.stdout)
