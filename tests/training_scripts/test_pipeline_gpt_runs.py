"""The pipeline script, run for real: one loss curve for every schedule, split and number of replicas, across stops.

Every run here is bare: plain python or torchrun, in a folder where cloudtrain is not installed.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import pytest

from tests.training_scripts.runs import (
    FIVE_DECIMALS,
    HOLD,
    Run,
    assert_same_losses,
    check_out,
    held_once,
    kill_rank,
    run,
    terminate,
)

pytestmark = pytest.mark.torch

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
SIZE = ["--layers", "6", "--heads", "2", "--width", "32", "--context", "32"]
SMALL = [*SIZE, "--steps", "30", "--learning_rate", "0.003", "--report_every", "1"]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a checkout as a user has it."""
    return check_out("pipeline_gpt", tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def alone(script: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One process without a pipeline, never interrupted: what all other runs are compared with."""
    result = run(tmp_path_factory.mktemp("alone"), sys.executable, script, *SMALL)
    assert result.exit_code == 0, result.errors
    return result


def test_one_process_learns_english(alone: Run) -> None:
    """From the chance of a byte among 256 to below 4.2 nats, on text that it was not trained on."""
    assert alone.losses[1] == pytest.approx(5.55, abs=0.02)
    assert len(alone.losses) == 30
    test_loss = alone.last("test_loss")
    assert test_loss < 4.2
    assert alone.lines[-1].startswith(f"test loss {test_loss:.4f} after 30 steps")


def test_stopped_it_goes_on_with_other_stages_replicas_and_schedule(
    script: Path, alone: Run, tmp_path: Path
) -> None:
    """Four stages on 2 processes with zero bubble, SIGTERM, then 2 replicas of four stages on 4 processes, of which one
    is killed: the losses of a single process that was never stopped, and in the end its model."""
    first = run(
        tmp_path,
        *TORCHRUN, "2", script, *SMALL, "--schedule", "zero-bubble-v", "--step_delay", "0.05",
        disturb=terminate, at=6,
    )  # fmt: skip
    stopped_at = json.loads((tmp_path / "checkpoint" / "preempted").read_text())["step"]
    assert 6 <= stopped_at < 30
    assert (
        first.lines[0]
        == "processes=2 replicas=1 shards=1 stages=4 tensor=1 schedule=zero-bubble-v device=cpu backend=gloo"
    )
    # who holds each stage
    assert [line.split()[1] for line in first.lines[2:6]] == ["0", "1", "1", "0"]

    other = [
        "--replicas",
        "2",
        "--schedule",
        "interleaved",
        "--microbatches",
        "4",
        "--balance",
        "memory",
    ]
    second = run(
        tmp_path,
        *TORCHRUN, "4", "--max-restarts", "1", held_once(script), *SMALL, *other, "--checkpoint_every", "5",
        disturb=kill_rank(1), at=stopped_at + 7, **{HOLD: str(stopped_at + 7)},
    )  # fmt: skip
    assert second.exit_code == 0, second.errors
    resumed = [int(step) for step in re.findall(r"resumed from step (\d+)\n", second.errors)]
    assert resumed[0] == stopped_at
    assert len(resumed) == 2
    assert resumed[1] >= stopped_at + 2
    assert not (tmp_path / "checkpoint" / "preempted").exists()
    assert min(second.losses) == stopped_at + 1
    for part in (first, second):
        assert_same_losses(part, alone)
    assert second.last("test_loss") == pytest.approx(alone.last("test_loss"), abs=FIVE_DECIMALS)


@pytest.mark.slow
def test_it_goes_on_from_shards_and_tensor_parallelism(
    script: Path, alone: Run, tmp_path: Path
) -> None:
    """Two shards x two tensor-parallel processes, SIGTERM, then two stages under another schedule: the losses of a
    single process that was never stopped, and its model."""
    cut = ["--shards", "2", "--tensor", "2", "--step_delay", "0.05"]
    first = run(tmp_path, *TORCHRUN, "4", script, *SMALL, *cut, disturb=terminate, at=4)
    stopped_at = json.loads((tmp_path / "checkpoint" / "preempted").read_text())["step"]
    second = run(tmp_path, *TORCHRUN, "2", script, *SMALL, "--schedule", "zero-bubble-v")
    assert second.exit_code == 0, second.errors
    assert second.resumed_from[0] == stopped_at == min(second.losses) - 1
    for part in (first, second):
        assert_same_losses(part, alone)
    assert second.last("test_loss") == pytest.approx(alone.last("test_loss"), abs=FIVE_DECIMALS)


@pytest.mark.slow
def test_every_grid_has_the_gradients_of_one_process(script: Path, tmp_path: Path) -> None:
    """Replicas, shards, tensor parallelism and two of them together, under the schedules that differ; what four
    processes cannot form is said."""
    found = run(tmp_path, *TORCHRUN, "4", script, "--compare")
    assert found.exit_code == 0, found.errors
    rows = re.findall(
        r"^(\S.*?) +(\d x \d x \d x \d) +5\.\d+ +\S+ +(\S+)$", "\n".join(found.lines), re.MULTILINE
    )
    assert [name for name, _, _ in rows] == [
        "bf16", "replicas", "fsdp", "fsdp, interleaved", "fsdp, zero-bubble", "fsdp, zero-bubble-v", "fsdp, bf16",
        "tp", "tp, interleaved", "tp, zero-bubble", "tp, zero-bubble-v", "replicas x fsdp", "replicas x tp",
        "fsdp x tp", "fsdp x tp, bf16",
    ]  # fmt: skip
    for name, _, difference in rows:
        assert float(difference) < (0.02 if "bf16" in name else 1e-6), name
    assert (
        found.lines[-1]
        == "replicas x fsdp x tp: 4 processes cannot hold 2 replicas x 2 shards x 2 tensor"
    )


def test_measured_schedules_agree_with_one_process(script: Path, tmp_path: Path) -> None:
    """All five give the gradients of a single process; each shows its bubble and a timeline."""
    found = run(
        tmp_path,
        *TORCHRUN, "2", script, "--measure", "--experiments", "exact,bubble", "--repeat", "1", "--sleep", "0.03",
    )  # fmt: skip
    assert found.exit_code == 0, found.errors
    names = ("simple", "1f1b", "interleaved", "zero-bubble", "zero-bubble-v")
    rows = [line.split() for line in found.lines if line.startswith(names) and ":" not in line]
    assert [row[0] for row in rows] == 3 * list(names)
    for loss, difference, gradients in (row[-3:] for row in rows[:5]):
        assert float(loss) == pytest.approx(5.55, abs=0.02)
        assert float(difference) < 1e-6
        assert float(gradients) < 1e-6
    for name, formula, ideal, measured, _ in rows[5:]:
        # how near theory it is, `make bench` says: here the machine may be busy
        assert 0 <= float(measured) < 1, name
        assert formula == ("-" if name.startswith("zero") else ideal)
    for simple, *_, zero_bubble, zero_bubble_v in (rows[5:10], rows[10:]):
        assert max(float(zero_bubble[2]), float(zero_bubble_v[2])) < float(simple[2])
    timeline = [line for line in found.lines if re.fullmatch(r"[01] \|[0-9a-jw.]{100}\|", line)]
    assert len(timeline) == 2 * len(names)


STAND_IN = '''
"""The calls of smdistributed.modelparallel.torch that the script makes, for one process and one partition."""

import contextlib
import functools
import os
import pathlib
import types

import torch
import torch.distributed as dist

MICROBATCHES = 4
CALLS = open("calls.txt", "w", buffering=1)
state = types.SimpleNamespace(cfg=types.SimpleNamespace(fp16="SMP_FP16" in os.environ))
tp_size = lambda: 2 if "SMP_FP16" in os.environ else 1


@contextlib.contextmanager
def model_creation(tensor_parallelism=False, dtype=None):
    print("model_creation", tensor_parallelism, dtype, file=CALLS)
    yield


def set_activation_checkpointing(module):
    print("set_activation_checkpointing", type(module).__name__, file=CALLS)


def init():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


local_rank = dp_rank = lambda: 0
dp_size = lambda: 1
get_mp_process_group = get_dp_process_group = lambda: dist.group.WORLD
_inside_step = False


class DistributedModel(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *tensors):
        assert _inside_step, "a DistributedModel can only be called inside a step"
        return self.module(*tensors)

    def backward(self, loss):
        assert _inside_step
        (loss / MICROBATCHES).backward()  # gradients are averaged over microbatches

    def local_parameters(self):
        return self.module.parameters()

    def get_module(self):
        return self.module


def DistributedOptimizer(optimizer, static_loss_scale=1.0, dynamic_loss_scale=False, dynamic_loss_args=None):
    print("DistributedOptimizer", dynamic_loss_scale, file=CALLS)
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    optimizer.clip_master_grads = lambda limit: torch.nn.utils.clip_grad_norm_(parameters, limit)
    return optimizer


class StepOutput:
    def __init__(self, outputs):
        self.outputs = outputs

    def reduce_mean(self):
        return torch.stack(self.outputs).mean()


def step(function):
    @functools.wraps(function)
    def in_microbatches(*tensors):
        global _inside_step
        _inside_step = True
        outputs = [function(*parts) for parts in zip(*(tensor.chunk(MICROBATCHES) for tensor in tensors))]
        _inside_step = False
        return StepOutput(outputs)

    return in_microbatches


def save_checkpoint(path, tag, partial=True, model=None, optimizer=None, user_content=None,
                    translate_if_full=True, num_kept_partial_checkpoints=None):
    global _model, _optimizer
    folder = pathlib.Path(path)
    state = {"model": model.module.state_dict(), "user_content": user_content}
    state["optimizer"] = optimizer.state_dict() if optimizer else None
    torch.save(state, folder / (f"{tag}_partial" if partial else tag))
    if partial:
        (folder / "newest").write_text(tag)
'''


def test_the_smp_engine_learns_the_same(script: Path, alone: Run, tmp_path: Path) -> None:
    """With a stand-in of the library's calls, SageMaker's arguments, and its microbatches: the losses of the script's
    own engine. Checkpoints and the whole model are saved through the library."""
    library = tmp_path / "library" / "smdistributed" / "modelparallel"
    library.mkdir(parents=True)
    (library / "torch.py").write_text(STAND_IN)
    arguments = [
        "--engine",
        "smp",
        "--mp_parameters",
        '{"partitions": 1, "microbatches": 4, "ddp": true}',
    ]
    found = run(
        tmp_path, sys.executable, script, *SMALL, *arguments, PYTHONPATH=str(tmp_path / "library")
    )
    assert found.exit_code == 0, found.errors
    assert len(found.losses) == 30
    assert_same_losses(found, alone, norms=False)
    assert (tmp_path / "checkpoint" / "newest").read_text() == "step_30"
    assert (tmp_path / "model" / "model.pt").is_file()
    validated = found.reported["validation_loss"]
    assert validated[30] < validated[min(validated)]
    assert found.reported["perplexity"][30] == pytest.approx(math.exp(validated[30]), rel=1e-4)
    assert (tmp_path / "calls.txt").read_text().splitlines() == [
        "model_creation False None",
        "DistributedOptimizer False",
    ]

    # as job_smp.yaml asks for it; what these do is the library's
    more = [*SMALL, *arguments, "--recompute", "full"]
    (tmp_path / "all").mkdir()
    with_all = run(
        tmp_path / "all", sys.executable, script, *more,
        PYTHONPATH=str(tmp_path / "library"), SMP_FP16="1",
    )  # fmt: skip
    assert with_all.exit_code == 0, with_all.errors
    assert_same_losses(with_all, alone, norms=False)
    calls = (tmp_path / "all" / "calls.txt").read_text().splitlines()
    layers = calls.count("set_activation_checkpointing Layer")
    assert layers == len(calls) - 2 > 0
    assert calls[0] == "model_creation True torch.float16"
    assert calls[-1] == "DistributedOptimizer True"


def test_documents_and_recomputed_layers_learn_as_in_one_process(
    script: Path, tmp_path: Path
) -> None:
    """Rows of gpt_fsdp's prepare.py, packed and masked in every stage: two stages that recompute, and shards with tensor
    parallelism, have the losses of one process; windows differ in how much of them is learned."""
    import numpy as np

    text = tmp_path / "text"
    text.mkdir()
    draw = np.random.default_rng(1)
    for name, count in (("train", 3000), ("val", 400)):
        draw.integers(97, 105, count).astype(np.uint16).tofile(text / f"{name}.bin")
        np.save(
            text / f"{name}.starts.npy",
            np.unique(np.append(0, draw.integers(0, count, count // 20))),
        )
    llama = [
        "--family",
        "llama",
        "--kv_heads",
        "2",
        "--heads",
        "4",
        "--layers",
        "4",
        "--width",
        "32",
        "--context",
        "32",
    ]
    options = [*llama, "--steps", "4", "--report_every", "1", "--microbatches", "4"]
    variables = {"CLOUDTRAIN_INPUT_TEXT": str(text)}
    one = run(tmp_path / "one", sys.executable, script, *options, **variables)
    assert one.exit_code == 0, one.errors
    for name, processes, more in (
        ("recomputed", "2", ["--recompute", "full"]),
        ("cut", "4", ["--shards", "2", "--tensor", "2", "--recompute", "selective"]),
    ):
        found = run(tmp_path / name, *TORCHRUN, processes, script, *options, *more, **variables)
        assert found.exit_code == 0, found.errors
        assert_same_losses(found, one)
        assert found.last("test_loss") == pytest.approx(one.last("test_loss"), abs=FIVE_DECIMALS)
