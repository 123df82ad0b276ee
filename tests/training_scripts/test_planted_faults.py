"""Three faults planted in every data-parallel layout, each of which losses of the first steps would hide, and gradients
do not: a factor of 2, a missing exchange, a share that another process has, too.

The scripts for Horovod, DeepSpeed and TensorFlow need other launchers or environments: their files of tests have theirs.
Parameter servers, whose workers do not wait for each other, have no one gradient to compare."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.training_scripts.runs import (
    SAME_GRADIENT,
    Edit,
    Run,
    assert_same_losses,
    check_out,
    forks,
    plant,
    run,
)

pytestmark = pytest.mark.torch


@dataclass(frozen=True)
class Script:
    """A data-parallel script, small, and how each fault is planted in it."""

    name: str
    arguments: str
    faults: dict[str, Edit]
    processes: int = 2
    needs: tuple[str, ...] = ()
    """Modules."""


FIRST_STEPS = "--report_every 1 --epochs 1"
SCRIPTS = (
    Script("digits_ddp", FIRST_STEPS, {
        "factor": ("train.py", "(loss * group.world_size / len(batch))", "(2 * loss * group.world_size / len(batch))"),
        "missing": ("train.py", "contextlib.nullcontext() if is_last else model.no_sync()", "model.no_sync()"),
        "shard": ("train.py", "batch[group.rank :: group.world_size]", "batch[:: group.world_size]"),
    }),
    Script("cifar_ddp", f"{FIRST_STEPS} --width 4 --global_batch 256 --precision fp64", {
        "factor": ("train.py", "(loss * group.world_size / config", "(2 * loss * group.world_size / config"),
        "missing": ("train.py", "logits = model(prepared(pixels))", "logits = network(prepared(pixels))"),
        "shard": ("batches.py", "return whole[self.rank :: self.world_size]", "return whole[:: self.world_size]"),
    }),
    Script("toy_smddp", "--steps 10", {
        "factor": ("train.py", "(loss * group.world_size).backward()", "(2 * loss * group.world_size).backward()"),
        "missing": ("train.py", "cross_entropy(model(images[mine])", "cross_entropy(layer(images[mine])"),
        "shard": ("train.py", "batch[group.rank :: group.world_size]", "batch[:: group.world_size]"),
    }),
    Script("pipeline_gpt", "--layers 1 --width 16 --heads 1 --context 16 --steps 2 --report_every 1 --replicas 2", {
        "factor": ("pipeline.py", "flat /= self.place.replicas", "flat /= 1"),
        "missing": ("pipeline.py", "flat /= self.place.replicas", "flat = torch.cat([p.grad.flatten() for p in self.blocks[number]])"),
        "shard": ("data.py", "starts.chunk(shares)[share]", "starts.chunk(shares)[0]"),
    }),
    Script("spleen_segmentation", "--precision fp64 --steps 3 --patch 16,16,8 --channels 4,8 --residual_units 0 "
           "--report_every 1 --pictures 0", {
        "factor": ("train.py", "(loss * group.world_size / config", "(2 * loss * group.world_size / config"),
        "missing": ("train.py", "logits = model(images)", "logits = network(images)"),
        "shard": ("patches.py", "range(self.rank, self.global_batch", "range(0, self.global_batch"),
    }, needs=("monai", "nibabel")),
)  # fmt: skip
FAULTS = ("factor", "missing", "shard")


def run_of(script: Path, folder: Path, processes: int, arguments: str) -> Run:
    """All losses and norms of a short run."""
    found = run(
        folder, *forks(processes), script, *arguments.split(), PYTHONPATH=str(script.parents[2])
    )
    assert found.exit_code == 0, found.errors
    assert found.norms
    return found


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_planted_fault_is_seen(script: Script, tmp_path: Path) -> None:
    """The comparison that all tests of a script use passes for the script as it is, and fails for each fault; at the
    first step, before anything was learned, the gradient's norm says so."""
    for module in script.needs:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    alone = "--replicas 2"
    right = check_out(script.name, tmp_path / "right")
    one = run_of(right, tmp_path / "one", 1, script.arguments.replace(alone, ""))
    assert_same_losses(run_of(right, tmp_path / "two", script.processes, script.arguments), one)
    first = min(one.norms)
    for fault in FAULTS:
        wrong = check_out(script.name, tmp_path / fault)
        plant(wrong, script.faults[fault])
        found = run_of(wrong, tmp_path / f"{fault}_run", script.processes, script.arguments)
        with pytest.raises(AssertionError):
            assert_same_losses(found, one)
        if first == 1:
            assert abs(found.norms[1] / one.norms[1] - 1) > SAME_GRADIENT, fault


MISSING = '''

LONELY = set()


def lonely(mesh):
    """No exchange: of a grid with replicas their all-reduce, else what the reduce-scatter adds up."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives

    usual = collectives.DefaultReduceScatter.__call__

    def kept(self, output_tensor, input_tensor, group, op, async_op=False):
        if group not in LONELY:
            return usual(self, output_tensor, input_tensor, group, op, async_op)
        output_tensor.copy_(input_tensor.chunk(group.size())[group.rank()])

    if not LONELY:
        collectives.DefaultReduceScatter.__call__ = kept
    LONELY.add(mesh.get_group())
'''

COMPARED_FAULTS: dict[str, tuple[Edit, ...]] = {
    "factor": (("layouts.py", "(loss * (scale / self._excess)).backward()",
                "(loss * (scale / self._excess) * (2 if self.grid.data > 1 else 1)).backward()"),),
    "missing": (
        ("layouts.py", 'no_sync = getattr(self.trained, "no_sync", contextlib.nullcontext)',
         'no_sync, is_last = getattr(self.trained, "no_sync", contextlib.nullcontext), False'),
        ("layouts.py", "    policy = MixedPrecisionPolicy()\n",
         "    policy = MixedPrecisionPolicy()\n    mesh.ndim == 1 and lonely(mesh)\n"),
        ("layouts.py", "\n\ndef whole(tensor", MISSING + "\n\ndef whole(tensor"),
        ("layouts.py", "self.model.set_requires_all_reduce(is_last)",
         "self.model.set_requires_all_reduce(False)"),
    ),
    "shard": (("layouts.py", "return rank // (self.tensor * self.context) % self.data", "return 0"),),
}  # fmt: skip


@pytest.mark.slow
def test_the_comparison_sees_keys_whose_gradients_stay_away(tmp_path: Path) -> None:
    """With context parallelism, keys and values get gradients from all processes that share a window."""
    script = check_out("gpt_fsdp", tmp_path / "checkout")
    plant(
        script,
        ("layouts.py", "(differentiable if part.requires_grad else plain)(", "plain("),
        ("layouts.py", "part.contiguous(), dimension", "part.detach().contiguous(), dimension"),
    )
    small = "--layers 1 --width 32 --heads 4 --context 16 --steps 2 --compare".split()
    found = run(tmp_path / "run", *forks(2), script, *small, PYTHONPATH=str(script.parents[2]))
    assert found.exit_code == 0, found.errors
    rows = {line[:16].strip(): line[16:].replace(" x ", "x").split() for line in found.lines[2:18]}
    assert float(rows["fsdp, context"][3]) > SAME_GRADIENT
    assert float(rows["fsdp"][3]) < 1e-5


@pytest.mark.parametrize("fault", FAULTS)
def test_the_comparison_of_all_layouts_sees_a_planted_fault(fault: str, tmp_path: Path) -> None:
    """`gpt_fsdp --compare`: the column of gradients shows the fault in each layout that is data parallel, and none in
    tensor parallelism, where every process has the whole batch."""
    script = check_out("gpt_fsdp", tmp_path / "checkout")
    for edit in COMPARED_FAULTS[fault]:
        plant(script, edit)
    small = "--layers 1 --width 32 --heads 4 --context 16 --steps 2 --compare".split()
    found = run(tmp_path / "run", *forks(4), script, *small, PYTHONPATH=str(script.parents[2]))
    assert found.exit_code == 0, found.errors
    rows = {line[:16].strip(): line[16:].replace(" x ", "x").split() for line in found.lines[2:18]}
    seen = {name: float(cells[3]) for name, cells in rows.items()}
    for layout in (
        "ddp",
        "ddp, 2 parts",
        "fsdp",
        "fsdp, kept",
        "fsdp, 2 parts",
        "hsdp",
        "hsdp, 2 parts",
        "2d",
    ):
        assert seen[layout] > SAME_GRADIENT, (fault, layout)
    assert seen["tp"] < 1e-5


PIPELINED_FAULTS: dict[str, tuple[Edit, ...]] = {
    "factor": (
        (
            "pipeline.py",
            "/ (self.count * self.times)",
            "/ (self.count * self.times) * place.tensor",
        ),
    ),
    "missing": (
        (
            "layouts.py",
            "    policy = MixedPrecisionPolicy()\n",
            "    policy = MixedPrecisionPolicy()\n    lonely(mesh)\n",
        ),
        ("layouts.py", "\n\ndef whole(tensor", MISSING + "\n\ndef whole(tensor"),
    ),
    "shard": (("data.py", "starts.chunk(shares)[share]", "starts.chunk(shares)[0]"),),
}


@pytest.mark.slow
def test_a_planted_fault_is_seen_in_a_pipeline_of_shards(tmp_path: Path) -> None:
    """Two shards x two tensor-parallel processes of `pipeline_gpt`, as above."""
    small = "--layers 1 --width 16 --heads 2 --context 16 --steps 1 --report_every 1"
    right = check_out("pipeline_gpt", tmp_path / "right")
    one = run_of(right, tmp_path / "one", 1, small)
    cut = f"{small} --shards 2 --tensor 2"
    assert_same_losses(run_of(right, tmp_path / "four", 4, cut), one)
    for fault, edits in PIPELINED_FAULTS.items():
        wrong = check_out("pipeline_gpt", tmp_path / fault)
        for edit in edits:
            plant(wrong, edit)
        found = run_of(wrong, tmp_path / f"{fault}_run", 4, cut)
        assert abs(found.norms[1] / one.norms[1] - 1) > SAME_GRADIENT, fault
