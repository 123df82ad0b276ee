"""Where to cut a chain of pieces into stages so that the slowest stage is as fast as possible.

A pipeline runs at the pace of its slowest stage, so each piece is weighed by its time, measured for forward and
backward at the size of a microbatch. Counting parameters puts nearly all of ResNet50's time on the first device, and a
cut that was measured with the whole batch does not fit the small one, whose convolutions have another balance.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn


def balanced(costs: Sequence[float], stages: int) -> list[int]:
    """Return the number of each stage's first piece, 0 for the first stage. Exact, and every stage has at least one
    piece.

    Raises:
        ValueError: the number of stages exceeds that of pieces.
    """
    if not 1 <= stages <= len(costs):
        raise ValueError(f"{len(costs)} pieces cannot make {stages} stages")
    before = list(accumulate(costs, initial=0.0))  # the cost of all pieces before each
    impossible = (float("inf"), [0])
    # for the first n pieces: slowest stage, and cuts
    best = [impossible, *((cost, [0]) for cost in before[1:])]
    for _ in range(stages - 1):
        best = [
            min(
                (
                    (max(slowest, before[end] - before[cut]), [*cuts, cut])
                    for cut, (slowest, cuts) in enumerate(best[:end])
                ),
                default=impossible,
            )
            for end in range(len(costs) + 1)
        ]
    return best[-1][1]


def stage_costs(costs: Sequence[float], cuts: Sequence[int]) -> list[float]:
    """Return the cost of each stage."""
    return [sum(costs[first:end]) for first, end in pairwise([*cuts, len(costs)])]


def measured(
    pieces: Sequence[nn.Module], microbatch: torch.Tensor, repeats: int = 3
) -> list[float]:
    """Return the seconds that each piece takes for one microbatch, forward and backward, on the microbatch's device.

    All pieces run one after the other, so that caches behave as in a step. The first round warms up. The measurement
    uses a copy, since BatchNorm would remember the images.
    """
    pieces = [copy.deepcopy(piece).to(microbatch.device) for piece in pieces]
    rounds = [_one_round(pieces, microbatch) for _ in range(repeats + 1)][1:]
    return [median(times) for times in zip(*rounds, strict=True)]


def _one_round(pieces: Sequence[nn.Module], x: torch.Tensor) -> list[float]:
    times, passed = [], []
    for number, piece in enumerate(pieces):
        x = x.detach().requires_grad_(number > 0)  # the first piece owes nobody a gradient
        began = _now(x.device)
        y = piece(x)
        times.append(_now(x.device) - began)
        passed.append((x, y))
        x = y
    gradient = x.new_ones(x.shape)
    for number, (x, y) in reversed(list(enumerate(passed))):
        began = _now(x.device)
        y.backward(gradient)
        times[number] += _now(x.device) - began
        gradient = x.grad if x.grad is not None else gradient
    return times


def _now(device: torch.device) -> float:
    """Return the time when all work given to the device is done."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
    return time.perf_counter()
