"""Where to cut a model into stages: the cost of each block, and the split whose worst stage is best.

torch.distributed.pipelining runs stages but does not choose them. A pipeline is as fast as its slowest stage, and needs
instances as large as its largest one; so a split is judged by its worst stage, and a dynamic programme finds the best
of all splits into contiguous stages.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

STATE_BYTES = 16
"""Memory for each parameter: itself, its gradient, and Adam's two moments, 4 bytes each."""


@dataclass(frozen=True)
class Cost:
    """What one block costs. `seconds` is forward and backward of one microbatch; `activation_bytes` is what autograd
    keeps of one microbatch between the two."""

    name: str
    parameters: int
    activation_bytes: int
    seconds: float = 0.0


@dataclass(frozen=True)
class Cut:
    """How many processes hold a stage: its parameters are divided over `shards` and `tensor`, its activations over
    `tensor`. With shards, the parameters gathered for a step and their gradients come on top, `gathered_bytes` each."""

    shards: int = 1
    tensor: int = 1
    gathered_bytes: int = 8

    def parameter_bytes(self) -> float:
        """Return the bytes on one process for each parameter of its stage."""
        return (
            STATE_BYTES / self.shards + (self.gathered_bytes if self.shards > 1 else 0)
        ) / self.tensor


WHOLE = Cut()


def cut_of(config: Any) -> Cut:
    """Return the cut. Gathered are parameters in their computing type, and gradients in fp32."""
    return Cut(config.shards, config.tensor, 4 + (2 if config.precision == "bf16" else 4))


def split(count: int, stages: int, cost: Callable[[int, int, int], float]) -> list[range]:
    """Cut blocks 0 to `count` - 1 into contiguous stages. `cost(stage, first, end)` judges one stage.

    Of all splits whose worst stage costs least, the result has the least sum of squares, so it is the most even one.
    """
    if not 1 <= stages <= count:
        raise ValueError(f"{count} blocks cannot be cut into {stages} stages")
    worst = max(cost(stage, *ends) for stage, ends in enumerate(_best(count, stages, cost, max)))
    limit = worst * (1 + 1e-9)  # the same sum, added up in another order

    def squared_within_limit(stage: int, first: int, end: int) -> float:
        value = cost(stage, first, end)
        return value**2 if value <= limit else math.inf

    ends = _best(count, stages, squared_within_limit, lambda before, here: before + here)
    return [range(*pair) for pair in ends]


def _best(
    count: int,
    stages: int,
    cost: Callable[[int, int, int], float],
    add: Callable[[float, float], float],
) -> list[tuple[int, int]]:
    """Return the cut with the least total, where `add` puts a stage's cost on top of the stages before it."""
    # of the first n blocks
    best: list[tuple[float, list[tuple[int, int]]]] = [(0.0, [])] + [(math.inf, [])] * count
    for stage in range(stages):
        longer = [(math.inf, [])] * (stage + 1)
        for end in range(stage + 1, count + 1):
            tries = (
                (add(total, cost(stage, first, end)), [*cuts, (first, end)])
                for first, (total, cuts) in enumerate(best[:end])
                if len(cuts) == stage
            )
            longer.append(min(tries, default=(math.inf, [])))
        best = longer
    return best[count][1]


def stage_seconds(costs: Sequence[Cost], blocks: range) -> float:
    """Return the seconds for forward and backward of one microbatch."""
    return sum(costs[block].seconds for block in blocks)


def stage_bytes(costs: Sequence[Cost], blocks: range, held: int, cut: Cut = WHOLE) -> float:
    """Return the bytes on one process: parameters with their gradients and moments, and the activations of `held`
    microbatches."""
    each = cut.parameter_bytes()
    return sum(
        each * costs[block].parameters + held * costs[block].activation_bytes / cut.tensor
        for block in blocks
    )


def choose(
    costs: Sequence[Cost], stages: int, held: dict[int, int], by: str, cut: Cut = WHOLE
) -> list[range]:
    """Choose the blocks of each stage, balanced `by` time, memory, or number of blocks. `held[stage]` is the number of
    microbatches whose activations a stage keeps. It depends on the schedule and on the stage's position."""
    judges: dict[str, Callable[[int, range], float]] = {
        "time": lambda _, blocks: stage_seconds(costs, blocks),
        "memory": lambda stage, blocks: stage_bytes(costs, blocks, held[stage], cut),
        "blocks": lambda _, blocks: len(blocks),
    }
    judge = judges[by]
    return split(len(costs), stages, lambda stage, first, end: judge(stage, range(first, end)))


def table(
    costs: Sequence[Cost],
    chosen: Sequence[range],
    held: dict[int, int],
    processes: Sequence[int],
    cut: Cut = WHOLE,
) -> str:
    """Return the split as text: one line for each stage, and how uneven it is. `processes[stage]` holds the stage."""
    lines = [
        f"{'stage':>5} {'process':>7} {'blocks':>8} {'parameters':>12} {'ms':>8} {'held':>5} {'MiB':>8}"
    ]
    for stage, blocks in enumerate(chosen):
        lines.append(
            f"{stage:>5} {processes[stage]:>7} {f'{blocks[0]}-{blocks[-1]}':>8} "
            f"{sum(costs[block].parameters for block in blocks):>12,} {1e3 * stage_seconds(costs, blocks):>8.2f} "
            f"{held[stage]:>5} {stage_bytes(costs, blocks, held[stage], cut) / 2**20:>8.1f}"
        )
    by_count = split(len(costs), len(chosen), lambda _, first, end: float(end - first))
    uneven, usual = _unevenness(costs, chosen), _unevenness(costs, by_count)
    return "\n".join(
        [
            *lines,
            f"the slowest stage takes {uneven:.2f} of the mean; cut by number of blocks {usual:.2f}",
        ]
    )


def _unevenness(costs: Sequence[Cost], chosen: Sequence[range]) -> float:
    seconds = [stage_seconds(costs, blocks) for blocks in chosen]
    return max(seconds) / (sum(seconds) / len(seconds))


def profile(
    blocks: Sequence[nn.Module],
    tokens: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    repeat: int = 5,
) -> list[Cost]:
    """Measure the blocks one after the other. `tokens` is one microbatch, because small ones cost more for each
    sequence than large ones. The loss belongs to the last block."""
    costs, x = [], tokens
    for block in blocks:
        is_last = block is blocks[-1]

        def run(
            block: nn.Module = block, x: Tensor = x, is_last: bool = is_last
        ) -> tuple[Tensor, Tensor]:
            y = block(x.detach().requires_grad_(x.is_floating_point()))
            return y, loss(y, tokens) if is_last else y.sum()

        seconds = [_seconds(run, tokens) for _ in range(repeat + 1)][1:]  # the first one warms up
        parameters = sum(parameter.numel() for parameter in block.parameters())
        costs.append(
            Cost(
                getattr(block, "name", type(block).__name__),
                parameters,
                _kept_bytes(run, block),
                median(seconds),
            )
        )
        x = run()[0]
    return costs


def _seconds(run: Callable[[], tuple[Tensor, Tensor]], tokens: Tensor) -> float:
    """Return the seconds for forward and backward."""
    begun = _now(tokens)
    run()[1].backward()
    return _now(tokens) - begun


def _now(tensor: Tensor) -> float:
    if tensor.is_cuda:
        import torch

        torch.cuda.synchronize(tensor.device)
    return time.perf_counter()


def _kept_bytes(run: Callable[[], object], block: nn.Module) -> int:
    """Return the bytes that autograd keeps for the backward, without the parameters. Each storage counts once, however
    often it is kept."""
    import torch

    parameters = {parameter.untyped_storage()._cdata for parameter in block.parameters()}
    kept: dict[int, int] = {}
    # or an address is used again for something else; of the storage, because fake tensors have no
    # data
    alive = []

    def note(tensor: Tensor) -> Tensor:
        alive.append(tensor)
        storage = tensor.untyped_storage()
        if storage._cdata not in parameters:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        run()
    return sum(kept.values())
