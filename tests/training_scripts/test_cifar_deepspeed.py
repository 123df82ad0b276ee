"""The DeepSpeed script: the configuration of a stage as a plain function; and run for real where DeepSpeed is installed.

DeepSpeed is not in the project's own environment. `make test-scripts` makes one that has it, and names its interpreter
in `CLOUDTRAIN_DEEPSPEED_PYTHON`:

    python tools/run/training_scripts.py deepspeed

The first run compiles DeepSpeed's collective operations for CPUs, 20 seconds to minutes; `TORCH_EXTENSIONS_DIR` keeps
them, and lies in that environment.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from cloudtrain import TrainingJob
from tests.deadlines import DEADLINE
from tests.training_scripts import runs
from tests.training_scripts.runs import (
    REPOSITORY,
    SAME_GRADIENT,
    Edit,
    Run,
    check_out,
    plant,
    terminate,
)

FOLDER = REPOSITORY / "training_scripts" / "cifar_deepspeed"
PYTHON = os.environ.get("CLOUDTRAIN_DEEPSPEED_PYTHON", sys.executable)
EXTENSIONS = {name: os.environ[name] for name in ("TORCH_EXTENSIONS_DIR",) if name in os.environ}
TWO = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SMALL = ["--width", "4", "--epochs", "1", "--report_every", "1"]


def has_deepspeed() -> bool:
    """Asked of the interpreter that would run it, without importing it."""
    ask = "import importlib.util, sys; sys.exit(importlib.util.find_spec('deepspeed') is None)"
    return subprocess.run([PYTHON, "-c", ask], check=False).returncode == 0


needs_deepspeed = pytest.mark.skipif(
    not has_deepspeed(),
    reason="DeepSpeed is not installed: set CLOUDTRAIN_DEEPSPEED_PYTHON to a Python that has it",
)


@pytest.fixture(scope="module")
def zero() -> ModuleType:
    """`zero.py`, which needs nothing."""
    spec = importlib.util.spec_from_file_location("cifar_deepspeed_zero", FOLDER / "zero.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings(zero: Any, **changes: Any) -> dict[str, Any]:
    """The configuration of a run with two processes, changed."""
    plain = {
        "stage": 2,
        "global_batch": 64,
        "processes": 2,
        "accumulate": 1,
        "learning_rate": 0.005,
    }
    rest = {"steps": 88, "warmup_steps": 11, "bf16": False}
    base = zero.read_settings(FOLDER / "ds_config.json")
    before = copy.deepcopy(base)
    found: dict[str, Any] = zero.settings_for(base, **{**plain, **rest, **changes})
    assert base == before
    return found


# The configuration


def test_the_four_stages_differ_in_one_number(zero: Any) -> None:
    """One configuration: what is compared between stages is the stage and nothing else."""
    of_stage = {stage: settings(zero, stage=stage) for stage in (0, 1, 2, 3)}
    for stage, found in of_stage.items():
        assert found["zero_optimization"].pop("stage") == stage
    assert of_stage[0] == of_stage[1] == of_stage[2] == of_stage[3]


@pytest.mark.parametrize(("processes", "accumulate"), [(1, 1), (2, 1), (2, 4), (8, 2)])
def test_batch_sizes_multiply_up(zero: Any, processes: int, accumulate: int) -> None:
    """DeepSpeed refuses a configuration in which micro batch x parts x processes is not the batch."""
    found = settings(zero, processes=processes, accumulate=accumulate)
    micro = found["train_micro_batch_size_per_gpu"]
    assert (
        micro * found["gradient_accumulation_steps"] * processes == found["train_batch_size"] == 64
    )


@pytest.mark.parametrize(
    ("changes", "said"), [({"processes": 3}, "3 processes x 1 parts"), ({"stage": 4}, "stage 4")]
)
def test_what_cannot_be_is_said(zero: Any, changes: dict[str, Any], said: str) -> None:
    """A mean of means over shares of different sizes is not the mean; and there are four stages."""
    with pytest.raises(ValueError, match=said):
        settings(zero, **changes)


@pytest.mark.parametrize(
    ("files", "writers"),
    [
        (["mp_rank_00_model_states.pt"], 0),
        (["mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"], 1),
        (
            [
                f"zero_pp_rank_{rank}_mp_rank_00_{what}_states.pt"
                for rank in range(12)
                for what in ("model", "optim")
            ],
            12,
        ),
    ],
    ids=["stage 0", "bf16", "stage 3"],
)
def test_the_processes_that_wrote_a_checkpoint(
    zero: Any, tmp_path: Path, files: list[str], writers: int
) -> None:
    """Each wrote one file of the optimizer, at the stages that divide it."""
    for file in files:
        (tmp_path / file).touch()
    assert zero.count_writers(tmp_path) == writers


def test_each_stage_holds_less(zero: Any) -> None:
    """The table of the ZeRO paper for fp32 with Adam: 16 bytes per parameter, divided further with every stage."""
    assert [zero.bytes_per_parameter(stage, 1) for stage in (0, 1, 2, 3)] == [16, 16, 16, 16]
    assert [zero.bytes_per_parameter(stage, 4) for stage in (0, 1, 2, 3)] == [16, 10, 7, 4]


def test_in_bf16_the_optimizer_holds_most(zero: Any) -> None:
    """Two bytes each for weight and gradient, and twelve for the weight in fp32 and its moments: the paper's table."""
    assert [zero.bytes_per_parameter(stage, 1, bf16=True) for stage in (0, 1, 2, 3)] == [
        16,
        16,
        16,
        16,
    ]
    assert [zero.bytes_per_parameter(stage, 4, bf16=True) for stage in (0, 1, 2, 3)] == [
        16,
        7,
        5.5,
        4,
    ]


def test_the_job_files_are_the_three_forms() -> None:
    """Processes started by torchrun, by MPI, and by DeepSpeed's launcher with its tuner; files they name are there."""
    forms = {}
    for name in ("job.yaml", "job_mpi.yaml", "job_autotune.yaml"):
        job = TrainingJob(**yaml.safe_load((FOLDER / name).read_text("utf-8")))
        forms[name] = getattr(job.distribution, "launch", None)
        assert (
            FOLDER / str(job.hyperparameters.get("deepspeed_config", "ds_config.json"))
        ).is_file()
    assert forms == {"job.yaml": "torch", "job_mpi.yaml": "mpi", "job_autotune.yaml": "launcher"}
    tuned = json.loads((FOLDER / "ds_config_autotune.json").read_text())
    assert tuned["autotuning"]["enabled"] is True


# Runs


def run(folder: Path, *command: str | Path, stop_at: int | None = None) -> dict[int, float]:
    """Losses by step, of a run in a checkout of its own; with `stop_at`, SIGTERM is sent once that step is reported."""
    return whole_run(folder, *command, stop_at=stop_at).losses


def whole_run(folder: Path, *command: str | Path, stop_at: int | None = None) -> Run:
    """All that it reported."""
    check_out("cifar_deepspeed", folder)
    path = f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}"
    disturb = None if stop_at is None else terminate
    done = runs.run(
        folder,
        *command,
        disturb=disturb,
        at=stop_at or 0,
        deadline=DEADLINE,
        PATH=path,
        **EXTENSIONS,
    )
    assert (done.exit_code == 0) is (stop_at is None), done.errors  # torchrun ends a SIGTERM with 1
    return done


SCRIPT = Path("training_scripts", "cifar_deepspeed", "train.py")


@needs_deepspeed
@pytest.mark.torch
def test_losses_are_equal_across_the_stages(tmp_path: Path) -> None:
    """Stages 1 to 3 print the same losses throughout; stage 0 sums in another order, which shows in the last digits
    after some steps, as with one process."""
    stages = {
        stage: run(tmp_path / str(stage), *TWO, SCRIPT, *SMALL, "--zero_stage", str(stage))
        for stage in range(4)
    }
    assert [len(losses) for losses in stages.values()] == [22] * 4
    for step, loss in stages[1].items():
        assert stages[2][step] == pytest.approx(loss, abs=1e-5), f"step {step}"
        assert stages[3][step] == pytest.approx(loss, abs=1e-5), f"step {step}"
        assert stages[0][step] == pytest.approx(loss, abs=1e-5 if step <= 8 else 0.02), (
            f"step {step}"
        )
    assert stages[0][22] < 2.0 < stages[0][1]
    for stage in stages:
        assert (tmp_path / str(stage) / "model" / "model.pt").is_file()


@needs_deepspeed
@pytest.mark.torch
@pytest.mark.parametrize("stage", ["1", "3"])
def test_stopped_it_goes_on_where_it_was(tmp_path: Path, stage: str) -> None:
    """SIGTERM, then the same command again: every process finds its part, and the losses are those of one run."""
    arguments = [*SMALL, "--zero_stage", stage]
    whole = run(tmp_path / "whole", *TWO, SCRIPT, *arguments)
    parts = tmp_path / "parts"
    first = run(parts, *TWO, SCRIPT, *arguments, "--step_delay", "0.2", stop_at=6)
    stopped_at = json.loads((parts / "checkpoint" / "preempted").read_text())["step"]
    second = run(parts, *TWO, SCRIPT, *arguments)
    assert (max(first), min(second), max(second)) == (stopped_at, stopped_at + 1, 22)
    for step, loss in {**first, **second}.items():
        assert loss == pytest.approx(whole[step], abs=1e-5), f"step {step}"


@needs_deepspeed
@pytest.mark.torch
def test_another_number_of_processes_is_refused_in_words(tmp_path: Path) -> None:
    """A sentence and what to type, before DeepSpeed's own traceback."""
    run(tmp_path, *TWO, SCRIPT, *SMALL, "--step_delay", "0.2", stop_at=3)
    path = f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}"
    one = runs.run(tmp_path, PYTHON, SCRIPT, *SMALL, deadline=DEADLINE, PATH=path, **EXTENSIONS)
    assert one.exit_code == 1
    assert "error: 2 processes wrote the checkpoint" in one.errors
    assert "hint: resume with 2 processes" in one.errors
    assert "Traceback" not in one.errors


AFTER_START = "dtype = torch.bfloat16 if engine"
NO_EXCHANGE = {
    "0": "engine.enable_backward_allreduce = False",
    "1": "type(engine.optimizer).average_tensor = lambda *_: None",
    "2": "type(engine.optimizer).average_tensor = lambda *_: None",
    "3": "import deepspeed.runtime.zero.stage3 as at_3; at_3.reduce_scatter_coalesced = lambda tensors, group: "
    "[tensor.flatten().chunk(group.size())[group.rank()].clone() for tensor in tensors]",
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One process."""
    return whole_run(tmp_path_factory.mktemp("alone"), PYTHON, SCRIPT, *SMALL)


@needs_deepspeed
@pytest.mark.torch
@pytest.mark.parametrize("stage", NO_EXCHANGE)
def test_a_planted_fault_is_seen_at_each_stage(tmp_path: Path, alone: Run, stage: str) -> None:
    """A factor of 2, which Adam would hide, a missing exchange, a share taken twice: the first norm of the gradient is
    that of one process, or says so."""
    faults: dict[str, tuple[Edit, ...]] = {
        "none": (),
        "factor": (("train.py", "engine.backward(loss)", "engine.backward(2 * loss)"),),
        "missing": (("train.py", AFTER_START, f"{NO_EXCHANGE[stage]}\n{AFTER_START}"),),
        "shard": (
            (
                "batches.py",
                "return whole[self.rank :: self.world_size]",
                "return whole[:: self.world_size]",
            ),
        ),
    }
    for fault, edits in faults.items():
        plant(check_out("cifar_deepspeed", tmp_path / fault), *edits)
        found = whole_run(tmp_path / fault, *TWO, SCRIPT, *SMALL, "--zero_stage", stage)
        assert (abs(found.norms[1] / alone.norms[1] - 1) > SAME_GRADIENT) is (fault != "none"), (
            fault
        )


@needs_deepspeed
@pytest.mark.torch
def test_the_example_with_a_gpt_reports_the_whole_batch_and_resumes_on_its_data(
    tmp_path: Path,
) -> None:
    """`examples/code/deepspeed_gpt`: two processes of two parts each, stopped half-way and resumed, report what one
    process of four parts does."""
    example = REPOSITORY / "examples" / "code" / "deepspeed_gpt"
    settings = json.loads((example / "ds_config.json").read_text())
    settings.update(bf16={"enabled": False}, train_micro_batch_size_per_gpu=2)
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_bytes((example / "train.py").read_bytes())
    small = "--context 16 --layers 1 --heads 2 --width 32 --report_every 1".split()
    path = f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}"

    def losses(folder: str, launcher: list[str], parts: int, steps: int) -> dict[int, float]:
        config = tmp_path / f"parts{parts}.json"
        config.write_text(json.dumps({**settings, "gradient_accumulation_steps": parts}))
        found = runs.run(
            tmp_path / folder, *launcher, example / "train.py", *small, "--deepspeed_config", config,
            "--steps", str(steps), PATH=path, PYTHONPATH=str(REPOSITORY), CLOUDTRAIN_INPUT_TEXT=str(text), **EXTENSIONS,
        )  # fmt: skip
        assert found.exit_code == 0, found.errors
        return found.losses

    one = losses("one", [*TWO[:-1], "1"], 4, 8)
    two = {**losses("two", TWO, 2, 4), **losses("two", TWO, 2, 8)}
    assert set(one) == set(two) == set(range(1, 9))
    assert two == pytest.approx(one, abs=1e-4)
