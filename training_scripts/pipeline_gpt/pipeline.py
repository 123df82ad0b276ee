"""Processes in a grid, replicas times stages, and one training step of the pipeline that this process is part of."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpt import GPT, loss_of
from schedules import SCHEDULES, chunks_of, order_of, stages_of
from torch import Tensor, nn

from cloudtrain import runtime
from cloudtrain.runtime import SetupError


@dataclass(frozen=True)
class Place:
    """Where this process stands: in which replica of the model, and where along its pipeline."""

    replicas: int
    processes: int  # of one pipeline
    replica: int
    process: int
    pipeline: Any  # the process group of this replica
    peers: Any  # the process group of those who hold the same stages in the other replicas
    device: torch.device


def check(config: Any, world_size: int) -> None:
    """Raise a SetupError for what cannot work, before anything is computed."""
    processes, rest = divmod(world_size, config.replicas)
    if rest:
        raise SetupError(
            f"{world_size} processes cannot hold {config.replicas} replicas", hint="start a multiple of `--replicas`"
        )
    if config.width % config.heads:
        raise SetupError(f"`width` {config.width} is no multiple of `heads` {config.heads}", hint="change `--heads`")
    if config.global_batch % (config.replicas * config.microbatches):
        raise SetupError(
            f"{config.global_batch} windows cannot be cut into {config.replicas} x {config.microbatches} equal parts",
            hint="make `--global_batch` a multiple of replicas times microbatches",
        )
    check_version(processes)
    stages = processes * chunks_of(config.schedule, config.chunks)
    if processes > 1 and stages > config.layers + 2:
        raise SetupError(f"{config.layers + 2} blocks are too few for {stages} stages", hint="raise `--layers`")
    if config.schedule == "1f1b" and config.microbatches < processes:
        raise SetupError(f"`1f1b` needs at least {processes} microbatches", hint="raise `--microbatches`")
    try:
        order_of(config.schedule, processes, config.microbatches, chunks_of(config.schedule, config.chunks))
    except ValueError as error:  # from torch, for example a number of microbatches that makes no equal rounds
        raise SetupError(f"`{config.schedule}` cannot run: {error}", hint="change `--microbatches`") from None


def check_version(processes: int) -> None:
    """Raise a SetupError where stages would wait for each other for ever."""
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    if processes > 1 and version < (2, 7) and dist.get_backend() == "gloo":
        raise SetupError(
            f"stages over gloo hang with PyTorch before 2.7, and this is {torch.__version__}",
            hint="use a GPU for each process, or a newer PyTorch",
        )


def take_place(replicas: int, placement: str, device: torch.device) -> Place:
    """Lay the processes out in a grid. `cluster` makes neighbours one pipeline, so that activations take the short way;
    `spread` makes neighbours replicas of each other, so that gradients do, and stages may stand on other instances."""
    world = dist.get_world_size()
    ranks = torch.arange(world)
    grid = ranks.view(replicas, -1) if placement == "cluster" else ranks.view(-1, replicas).T
    mesh = dist.DeviceMesh(device.type, grid, mesh_dim_names=("replica", "stage"))
    replica, process = mesh.get_coordinate()
    return Place(
        replicas, world // replicas, replica, process, mesh.get_group("stage"), mesh.get_group("replica"), device
    )


class Pipeline:
    """The stages of this process, and the schedule that runs them. `modules` maps the stage's number to its blocks."""

    def __init__(
        self,
        modules: dict[int, nn.Module],
        schedule: str,
        chunks: int,
        microbatches: int,
        place: Place,
        loss: Callable[[Tensor, Tensor], Tensor] = loss_of,
    ) -> None:
        from stages import Stage
        from torch.distributed.pipelining.schedules import get_schedule_class

        row, count = SCHEDULES[schedule], place.processes * chunks
        self.stages = [
            Stage(module, number, count, place.device, group=place.pipeline) for number, module in modules.items()
        ]
        for stage in self.stages:
            stage.here = dict(zip(modules, self.stages, strict=True))
        self.schedule = get_schedule_class(row.torch_name)(
            self.stages[0] if row.single else self.stages, microbatches, loss_fn=loss
        )

    def step(self, inputs: Tensor, following: Tensor) -> Tensor:
        """Forward and backward of one batch, in microbatches. Returns its loss where the last stage is, 0 elsewhere.
        Gradients are means over the batch."""
        has_first = any(stage.is_first for stage in self.stages)
        has_last = any(stage.is_last for stage in self.stages)
        losses: list[Tensor] = []
        self.schedule.step(
            *([inputs] if has_first else []),
            target=following if has_last else None,
            losses=losses if has_last else None,
        )
        return torch.stack(losses).mean().detach() if has_last else torch.zeros((), device=inputs.device)


class Alone:
    """The whole model in one process, without a pipeline: what all schedules must agree with."""

    def __init__(self, model: nn.Module, microbatches: int) -> None:
        self.model, self.microbatches = model, microbatches

    def step(self, inputs: Tensor, following: Tensor) -> Tensor:
        """As `Pipeline.step`."""
        total = torch.zeros((), device=inputs.device)
        for part, target in zip(inputs.chunk(self.microbatches), following.chunk(self.microbatches), strict=True):
            loss = loss_of(self.model(part), target) / self.microbatches
            loss.backward()
            total += loss.detach()
        return total


def make_stages(
    shape: Any, split: Sequence[range], schedule: str, chunks: int, seed: int, place: Place
) -> dict[int, nn.Module]:
    """The stages of this process. No other blocks exist here; these have the weights they have in the whole model."""
    modules: dict[int, nn.Module] = {}
    for stage in stages_of(schedule, place.process, place.processes, chunks):
        module = GPT(shape, split[stage])
        module.reset_parameters(seed)
        modules[stage] = module.to(place.device)
    return modules


def learning_rate_at(step: int, config: Any) -> float:
    """Rises over the first tenth of the steps, then falls to zero along a cosine."""
    warm = min(1.0, (step + 1) / math.ceil(config.steps / 10))
    return float(config.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * step / config.steps)))


def text_folder() -> Path | None:
    """The input `text` of the job, else `data/text`; None where there is neither, which is said."""
    usual, nothing = Path("data", "text"), Path(os.devnull)
    folder = runtime.input_dir("text", default=usual if usual.exists() else nothing)
    if folder != nothing:
        return folder
    runtime.notice("no input `text`: training on the English of Python's own help")
    return None


def computing_in(precision: str, modules: dict[int, nn.Module]) -> None:
    """Let the stages multiply in bf16. The residual stream, and so what goes from stage to stage, stays fp32."""
    if precision == "bf16":
        for module in modules.values():
            device = next(module.parameters()).device.type
            module.forward = torch.autocast(device, torch.bfloat16)(module.forward)  # type: ignore[method-assign]


class Replicas:
    """Data parallelism: gradients become their means over the replicas, block by block.

    A block's message leaves when its last microbatch has gone backward, and travels while others still compute.
    Schedules that take the backward apart write gradients in a way that tells nobody; theirs leave when all is done.
    torch's schedules divide gradients by the number of microbatches at their end, so what left before is `early` times
    as large.
    """

    def __init__(
        self, modules: dict[int, nn.Module], place: Place, microbatches: int, *, overlaps: bool, early: int
    ) -> None:
        self.place, self.early = place, early
        self.blocks = [list(block.parameters()) for module in modules.values() for block in module.blocks.values()]
        self._under_way: dict[int, tuple[Tensor, Any, int]] = {}
        if place.replicas > 1 and overlaps:
            for number, block in enumerate(self.blocks):
                left = [microbatches * len(block)]

                def count(_: Tensor, number: int = number, left: list[int] = left) -> None:
                    left[0] -= 1
                    if not left[0]:
                        left[0] = microbatches * len(self.blocks[number])
                        self._send(number, self.early)

                for parameter in block:
                    parameter.register_post_accumulate_grad_hook(count)

    def _send(self, number: int, times: int = 1) -> None:
        flat = torch.cat([parameter.grad.flatten() for parameter in self.blocks[number]])
        self._under_way[number] = flat, dist.all_reduce(flat, group=self.place.peers, async_op=True), times

    def wait(self) -> None:
        """Until every gradient is the mean over the replicas."""
        if self.place.replicas == 1:
            return
        for number in reversed(range(len(self.blocks))):
            if number not in self._under_way:
                self._send(number)
        for number, (flat, work, times) in self._under_way.items():
            work.wait()
            flat /= times * self.place.replicas
            block = self.blocks[number]
            for parameter, mean in zip(block, flat.split([parameter.numel() for parameter in block]), strict=True):
                parameter.grad.copy_(mean.view_as(parameter))
        self._under_way.clear()


def clip_gradients(parameters: Sequence[Tensor], limit: float, pipeline: Any) -> Tensor:
    """Scale gradients such that their norm is at most `limit`. The norm is that of the whole model, so of all processes
    of the group `pipeline`."""
    squares = torch.stack([parameter.grad.square().sum() for parameter in parameters]).sum()
    dist.all_reduce(squares, group=pipeline)
    norm = squares.sqrt()
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        parameter.grad.mul_(scale)
    return norm


def gather(mine: dict[str, Any], place: Place) -> dict[str, Any] | None:
    """The parts of all processes of the first pipeline, together, on rank 0; None elsewhere."""
    if place.replica:
        return None
    is_main = dist.get_rank() == 0
    parts: list[Any] | None = [None] * place.processes if is_main else None
    dist.gather_object(mine, parts, dst=0, group=place.pipeline)
    return {name: value for part in parts for name, value in part.items()} if parts is not None else None
