"""gpt_fsdp and transformers: each opens and trains what the other one has saved.

transformers is not in the project's own environment; `python tools/run/training_scripts.py llm` names an interpreter that has it
in `CLOUDTRAIN_LLM_PYTHON`. gpt_fsdp itself runs here, without any library of Hugging Face.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.training_scripts.runs import REPOSITORY, Run, check_out, forks, run

PYTHON = os.environ.get("CLOUDTRAIN_LLM_PYTHON", sys.executable)
CHECK = Path(__file__).parent / "llm" / "gpt_check.py"

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        subprocess.run([PYTHON, "-c", "import importlib.util as u, sys; sys.exit(not u.find_spec('transformers'))"]).returncode != 0,
        reason="set CLOUDTRAIN_LLM_PYTHON to a Python that has transformers",
    ),
]  # fmt: skip

FIVE_DIGITS = 5e-5
"""Of losses from 6 down to 4: half of the fifth digit."""

TRAINED = {
    "llama": (2, ["--layout", "fsdp"]),
    "smollm2": (1, ["--layout", "ddp"]),
    "tied": (4, ["--layout", "2d", "--tensor", "2"]),
    "qwen2": (2, ["--layout", "tp"]),
    "qwen3": (2, ["--layout", "fsdp", "--context_parallel", "2", "--accumulate", "2"]),
}


def checked(*arguments: str | Path) -> dict[str, Any]:
    """What transformers says."""
    done = subprocess.run(
        [PYTHON, CHECK, *map(str, arguments)], capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout) if done.stdout.startswith("{") else {}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a checkout as a user has it."""
    return check_out("gpt_fsdp", tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models as transformers saves them, and tokens."""
    folder = tmp_path_factory.mktemp("made")
    checked("make", folder)
    return folder


def train(script: Path, folder: Path, start: Path, text: Path, count: int, *options: str) -> Run:
    """Training that begins with a folder of transformers and writes one, in the subfolder `hf` of the model."""
    launcher = [sys.executable] if count == 1 else forks(count)
    found = run(
        folder, *launcher, script, "--init_from", start, "--context", "32", "--global_batch", "8", "--report_every", "1",
        "--learning_rate", "0.003", "--rate_schedule", "constant", "--warmup_steps", "0", "--export", "hf", *options,
        CLOUDTRAIN_INPUT_TEXT=str(text), PYTHONPATH=str(script.parents[2]),
    )  # fmt: skip
    assert found.exit_code == 0, found.errors
    return found


@pytest.fixture(scope="module")
def trained(
    script: Path, made: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Run, Path]]:
    """Ten steps of each model, each in another layout, and the folders that were written."""
    root = tmp_path_factory.mktemp("trained")
    return {
        name: (
            train(
                script, root / name, made / name, made / "text", count, "--steps", "10", *options
            ),
            root / name / "model" / "hf",
        )
        for name, (count, options) in TRAINED.items()
    }


def test_ten_steps_have_the_losses_of_transformers(
    made: Path, trained: dict[str, tuple[Run, Path]]
) -> None:
    """To five digits, whatever the layout."""
    theirs = checked("train", made, *TRAINED)
    for name, (found, _) in trained.items():
        ours = [found.losses[step] for step in range(1, 11)]
        assert ours == pytest.approx(theirs[name], abs=FIVE_DIGITS), name
        assert ours[9] < ours[0] - 0.05


def test_transformers_opens_what_was_trained(
    made: Path, trained: dict[str, tuple[Run, Path]]
) -> None:
    """The same logits to 1e-5 of their range, and the test loss that the training printed at its end; `rope_theta`
    stands where versions 4 and 5 look for it."""
    losses = checked("held_out", made / "text", *(folder for _, folder in trained.values()))
    for found, folder in trained.values():
        assert losses[str(folder)] == pytest.approx(found.last("test_loss"), abs=FIVE_DIGITS), (
            folder
        )
    for folder, found in checked("logits", *(folder for _, folder in trained.values())).items():
        assert found["difference"] <= 1e-5 * max(1.0, found["range"]), folder
        assert found["range"] > 1
    config = json.loads((trained["llama"][1] / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 500_000.0


def test_a_folder_trained_on_goes_on_at_another_size(
    script: Path, made: Path, trained: dict[str, tuple[Run, Path]], tmp_path: Path
) -> None:
    """Five steps in two shards, five in four processes as two shards of two: the losses of ten steps at once. The second
    run takes the weights of its checkpoint, and not those of the folder again."""
    first = train(
        script, tmp_path, made / "tied", made / "text", 2, "--steps", "5", "--layout", "fsdp"
    )
    again = train(
        script, tmp_path, made / "tied", made / "text", 4, "--steps", "10", "--layout", "2d"
    )
    assert again.resumed_from == [5]
    assert first.losses | again.losses == pytest.approx(trained["tied"][0].losses, abs=FIVE_DIGITS)
    assert again.last("test_loss") == pytest.approx(
        trained["tied"][0].last("test_loss"), abs=FIVE_DIGITS
    )


def test_pipeline_stages_begin_with_a_folder_and_write_one(
    script: Path, made: Path, trained: dict[str, tuple[Run, Path]], tmp_path: Path
) -> None:
    """pipeline_gpt, two stages of two shards: the losses of gpt_fsdp, and a model that transformers opens."""
    staged = check_out("pipeline_gpt", tmp_path / "checkout")
    options = ["--steps", "10", "--microbatches", "2", "--shards", "2"]
    found = train(staged, tmp_path / "run", made / "llama", made / "text", 4, *options)
    assert found.losses == pytest.approx(trained["llama"][0].losses, abs=FIVE_DIGITS)
    (difference,) = checked("logits", tmp_path / "run" / "model" / "hf").values()
    assert difference["difference"] <= 1e-5 * max(1.0, difference["range"])


@pytest.mark.parametrize(
    ("name", "count", "options"),
    [
        ("tied", 2, ["--layout", "fsdp"]),
        ("llama", 2, ["--layout", "tp"]),
        ("qwen3", 4, ["--layout", "2d"]),
    ],
)
def test_a_folder_goes_through_any_layout_unchanged(
    script: Path,
    trained: dict[str, tuple[Run, Path]],
    made: Path,
    tmp_path: Path,
    name: str,
    count: int,
    options: list[str],
) -> None:
    """Read into another layout than it was trained in, and written again without a step: the same bytes."""
    before = trained[name][1]
    train(script, tmp_path, before, made / "text", count, "--steps", "0", *options)
    after = tmp_path / "model" / "hf"
    assert (after / "model.safetensors").read_bytes() == (before / "model.safetensors").read_bytes()
    assert (after / "config.json").read_bytes() == (before / "config.json").read_bytes()
    assert REPOSITORY not in after.parents
