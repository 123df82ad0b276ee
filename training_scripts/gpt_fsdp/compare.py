"""Compare the losses, memory and speed of all layouts on the same processes.

Every row trains its own model on the same batches. The rows take turns, one step each, so that other load on the
machine affects all of them alike.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from layouts import Grid, Spread, grid_of, local_bytes, whole
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cloudtrain.runtime import SetupError

ALONE = "one process"
"""The row that others are compared with: every process trains the whole model on the whole batch, without any
messages."""

ROWS: dict[str, dict[str, Any]] = {
    ALONE: {"layout": "ddp"},
    "ddp": {"layout": "ddp"},
    "ddp, 2 parts": {"layout": "ddp", "accumulate": 2},
    "fsdp": {"layout": "fsdp"},
    "fsdp, kept": {"layout": "fsdp", "reshard": False},
    "fsdp, 2 parts": {"layout": "fsdp", "accumulate": 2},
    "fsdp, one sync": {"layout": "fsdp", "accumulate": 2, "sync_each_part": False},
    "fsdp, selective": {"layout": "fsdp", "recompute": "selective"},
    "fsdp, full": {"layout": "fsdp", "recompute": "full"},
    "fsdp, logits": {"layout": "fsdp", "logits_at_once": 64},
    "fsdp, bf16": {"layout": "fsdp", "precision": "bf16"},
    "fsdp, context": {"layout": "fsdp", "context_parallel": 2},
    "hsdp": {"layout": "hsdp"},
    "hsdp, 2 parts": {"layout": "hsdp", "accumulate": 2},
    "tp": {"layout": "tp"},
    "2d": {"layout": "2d"},
}

LEGEND = """\
difference  the largest of a loss from that of one process with the whole batch, over all steps
gradient    the same of the norm of the whole gradient before clipping, as a share: AdamW and clipping would hide it
held        parameters and optimizer states of one process, between the steps
working     what a step adds at its worst moment: activations, gradients, gathered parameters
step        median; on a GPU the memory is its allocator's, on a CPU that of all tensors"""

Result = TypeVar("Result")
Step = Callable[[Spread, torch.optim.Optimizer, int], tuple[Tensor, Tensor]]


@dataclass
class Row:
    """One layout or option to compare, and its results."""

    name: str
    grid: Grid
    spread: Spread
    optimizer: torch.optim.Optimizer
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    working: int = 0

    def turn(self, step: int, train_step: Step, device: torch.device) -> None:
        """Run one step of this row, timed until the last process is done. The second step measures memory instead."""
        dist.barrier()
        begun = time.perf_counter()
        if step == 1:
            (loss, norm), self.working = working_bytes(
                lambda: train_step(self.spread, self.optimizer, step), device
            )
        else:
            loss, norm = train_step(self.spread, self.optimizer, step)
        mean = loss.clone()
        dist.all_reduce(mean)  # on GPUs, reading the result below waits for all of it
        self.losses.append(mean.item() / dist.get_world_size())
        self.norms.append(whole(norm).item())
        if step > 1:
            self.seconds.append(time.perf_counter() - begun)

    @property
    def held(self) -> int:
        """Return the bytes held between two steps."""
        states = (value for state in self.optimizer.state.values() for value in state.values())
        return local_bytes(self.spread.model.parameters()) + local_bytes(states)


def compare(
    config: Any, group: Any, device: torch.device, make_optimizer: Callable[..., Any], step: Step
) -> None:
    """Train all rows that these processes can form for `config.steps` steps, and print the table on rank 0."""
    rows, refused = [], []
    for name, changes in ROWS.items():
        changed = replace(config, **changes)
        try:
            grid = grid_of(changed, 1 if name == ALONE else group.world_size)
            spread = Spread(changed, grid, device)
        except SetupError as error:
            refused.append(f"{name}: {error.message}")
            continue
        rows.append(Row(name, grid, spread, make_optimizer(spread)))
    for number in range(config.steps):
        for row in rows:
            row.turn(number, step, device)
    if group.is_main:
        tokens = config.global_batch * config.context
        print(
            f"processes={group.world_size} device={device.type} steps={config.steps} tokens per step={tokens}"
        )
        print("\n".join([table(rows, tokens), "", LEGEND, *refused]), flush=True)


def table(rows: list[Row], tokens: int) -> str:
    """Return one line for each row."""
    reference = rows[0]
    lines = [
        f"{'layout':<16} {'replicate x shard x tensor':>26} {'loss':>9} {'difference':>10} {'gradient':>9} "
        f"{'held MiB':>9} {'working MiB':>11} {'step ms':>8} {'tokens/s':>9}"
    ]
    for row in rows:
        difference = max(abs(a - b) for a, b in zip(row.losses, reference.losses, strict=True))
        gradient = max(abs(a - b) / b for a, b in zip(row.norms, reference.norms, strict=True))
        seconds = median(row.seconds) if row.seconds else float("nan")
        size = f"{row.grid.replicate} x {row.grid.shard} x {row.grid.tensor}"
        lines.append(
            f"{row.name:<16} {size:>26} {row.losses[-1]:>9.6f} {difference:>10.1e} {gradient:>9.1e} "
            f"{row.held / 2**20:>9.2f} "
            f"{row.working / 2**20:>11.2f} {1e3 * seconds:>8.1f} {tokens / seconds:>9,.0f}"
        )
    return "\n".join(lines)


def working_bytes(run: Callable[[], Result], device: torch.device) -> tuple[Result, int]:
    """Return the result of `run`, and its peak memory above the starting level."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        return run(), torch.cuda.max_memory_allocated(device) - before
    with LiveTensors() as live:
        return run(), live.most


class LiveTensors(TorchDispatchMode):
    """After every operation, adds up the memory of all tensors that operations made and that still exist. Those on the
    meta device have none."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._kinds = (Tensor, torch.nn.Parameter)
        self._storages: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run the operation. An operation on a distributed tensor is followed by the operations on its local parts."""
        kwargs = kwargs or {}
        # DTensor tries an operation out, without memory
        if any(issubclass(kind, FakeTensor) for kind in types):
            return function(*args, **kwargs)
        if any(kind not in self._kinds for kind in types):
            return NotImplemented
        inputs = {id(storage) for storage in self._storages_of((args, kwargs))}
        result = function(*args, **kwargs)
        for storage in self._storages_of(result):
            key = id(storage)
            if key not in inputs:  # a view or an update of what was there
                forget = partial(self._storages.pop, key, None)
                self._storages[key] = weakref.ref(storage, lambda _, forget=forget: forget())
        # FSDP2 changes the size of storages without an operation
        alive = [ref() for ref in list(self._storages.values())]
        self.most = max(
            self.most, sum(storage.nbytes() for storage in alive if storage is not None)
        )
        return result

    def _storages_of(self, tree: Any) -> list[Any]:
        """Return the memory of all tensors of our kinds in nested containers."""
        return [
            leaf.untyped_storage()
            for leaf in tree_leaves(tree)
            if type(leaf) in self._kinds and leaf.device.type != "meta"
        ]
