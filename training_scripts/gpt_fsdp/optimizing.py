"""The optimizer's groups, the learning rate, the norm of gradients, and steps whose gradients cannot be right."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cloudtrain import runtime

IN_A_ROW = 10
"""Steps that may be left out one after the other, before the run ends: then it is no accident."""

WARM, LARGEST_SCALE, GROW_EVERY = 20, 2.0**24, 1000


def make_adamw(
    parameters: Iterable[Tensor], config: Any, *, fused: bool = True
) -> torch.optim.AdamW:
    """Make AdamW. Matrices decay and vectors (biases, norms) do not. One kernel updates all parameters, and each
    process the parts that it holds."""
    every = list(parameters)
    groups = [
        {"params": [one for one in every if one.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [one for one in every if one.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, fused=fused)


def learning_rate_at(step: int, config: Any) -> float:
    """Return the learning rate of a step: it rises for `warmup_steps`, and falls as `rate_schedule` says, down to
    `min_rate` of its peak."""
    warmup = getattr(config, "warmup_steps", -1)
    warmup = math.ceil(config.steps / 10) if warmup < 0 else warmup
    rise = min(1.0, (step + 1) / warmup) if warmup else 1.0
    schedule = getattr(config, "rate_schedule", "cosine")
    if schedule == "cosine":
        fall = 0.5 * (1 + math.cos(math.pi * step / config.steps))
    # warm up, stay, decay: what was learned before the decay can be trained on
    elif schedule == "wsd":
        fall = min(1.0, (config.steps - step) / max(1.0, config.decay_share * config.steps))
    else:
        fall = 1.0
    least = getattr(config, "min_rate", 0.0)
    return float(config.learning_rate * rise * (least + (1 - least) * fall))


def part_here(tensor: Any) -> Tensor:
    """Return this process's part of a spread tensor."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def copies_of(parameter: Any) -> int:
    """Return how many processes of a replica hold the same part of a parameter."""
    placements = getattr(parameter, "placements", ())
    names = parameter.device_mesh.mesh_dim_names if placements else ()
    return math.prod(
        parameter.device_mesh.size(axis)
        for axis, placement in enumerate(placements)
        if placement.is_replicate() and names[axis] != "replica"
    )


def clip_gradients(parameters: Sequence[Tensor], limit: float, group: Any) -> Tensor:
    """Scale gradients so that their norm is at most `limit`. It is the norm of the whole model, over all processes of
    the group, which hold one replica in stages."""
    gradients = [(part_here(parameter.grad), copies_of(parameter)) for parameter in parameters]
    squares = torch.stack(
        [gradient.float().square().sum() / copies for gradient, copies in gradients]
    ).sum()
    dist.all_reduce(squares, group=group)
    norm = squares.sqrt()
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    for gradient, _ in gradients:
        gradient.mul_(scale)
    return norm


class Guard:
    """Leaves out steps whose gradients are not finite, or far larger than usual, and scales losses for fp16.

    Small gradients are zero in fp16, so the loss is multiplied by a factor that is as large as it can be: it is halved
    when gradients become infinite, and doubled after some time without that. `spikes` is the number of times by which
    the norm of a gradient may exceed the usual one; 0 leaves no step out, and a norm that is not finite ends the run.
    """

    def __init__(self, precision: str, spikes: float) -> None:
        self.spikes, self.is_scaling = spikes, precision == "fp16"
        self.scale = 2.0**16 if self.is_scaling else 1.0
        self.usual = 0.0  # norm
        self.seen = self.good = self.left_out = self.in_a_row = 0
        self.is_used = True  # the newest step

    def state(self) -> dict[str, float]:
        """Return what a resumed run needs."""
        return {
            name: getattr(self, name)
            for name in ("scale", "usual", "seen", "good", "left_out", "in_a_row")
        }

    def restore(self, state: dict[str, float]) -> None:
        vars(self).update(state)

    def clip(self, parameters: list[Tensor], limit: float) -> Tensor:
        """Take the scale out of the gradients and limit their norm. Return the norm before that."""
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit * self.scale)
        if self.scale != 1.0:
            with torch.no_grad():
                torch._foreach_mul_(
                    [one.grad for one in parameters if one.grad is not None], 1 / self.scale
                )
            norm = norm / self.scale
        return norm

    def accepts(self, step: int, norm: Tensor) -> bool:
        """Decide whether a step is used, from the norm of the whole gradient, which is the same on all processes.
        Without fp16 and `spikes` it is, and nothing waits for the GPU."""
        if not self.is_scaling and not self.spikes:
            return True
        value = float(norm)
        is_finite = math.isfinite(value)
        limit = self.spikes * self.usual if self.spikes and self.seen >= WARM else math.inf
        self.is_used = is_finite and value <= limit
        self._rescale(is_finite)
        if self.is_used:
            self.seen, self.in_a_row = self.seen + 1, 0
            self.usual += (value - self.usual) / min(self.seen, 100)
            return True
        self.left_out, self.in_a_row = self.left_out + 1, self.in_a_row + 1
        if not self.is_scaling or is_finite:
            runtime.notice(
                f"step {step} is left out: the norm of its gradient is {value:.3g}, usual is {self.usual:.3g}"
            )
        if self.in_a_row >= (4 * IN_A_ROW if self.is_scaling else IN_A_ROW):
            raise runtime.SetupError(
                f"{self.in_a_row} steps in a row were left out, up to step {step}: training diverges",
                hint="lower `--learning_rate`, or resume from an earlier checkpoint",
            )
        return False

    def _rescale(self, is_finite: bool) -> None:
        if not self.is_scaling:
            return
        self.good = self.good + 1 if is_finite else 0
        if not is_finite:
            self.scale = max(1.0, self.scale / 2)
        elif self.good % GROW_EVERY == 0:
            self.scale = min(LARGEST_SCALE, self.scale * 2)
