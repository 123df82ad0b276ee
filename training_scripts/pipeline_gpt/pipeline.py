"""Processes in a grid of replicas x shards x stages x tensor, and one step of the pipeline that this process is part
of.

Along `replica` processes hold the same parameters. Along `shard` each holds a part of every parameter of its stages and
gathers them for a step (FSDP2). Along `stage` they hold the stages of one model. Along `tensor` processes compute each
layer together. `gpt_fsdp`'s `layouts.py` cuts and shards a block.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from gpt import GPT, logits_in_parts, loss_sum, tokens_to_learn
from layouts import (
    add_up,
    cut,
    ease,
    excess_of,
    initialise,
    is_older,
    parts_of,
    shape_of,
    shard,
    whole,
)
from optimizing import part_here
from schedules import SCHEDULES, chunks_of, order_of, stages_of
from torch import Tensor, nn

from cloudtrain.runtime import SetupError

AXES = ("replica", "shard", "stage", "tensor")


@dataclass(frozen=True)
class Place:
    """The position of this process: in which replica of the model, and where along its pipeline."""

    replicas: int
    processes: int  # of one pipeline
    replica: int
    process: int
    pipeline: Any  # the process group of the stages that hand activations to each other
    # the process group of those who hold the same parts of the same stages in the other replicas
    peers: Any
    device: torch.device
    shards: int = 1
    tensor: int = 1
    shard: int = 0
    mesh: Any = None  # the grid as torch knows it
    # the process group of those who hold one replica together; None where that is `pipeline`
    model: Any = None

    @property
    def shares(self) -> int:
        """Return the number of shares of a batch: replicas and shards have different data."""
        return self.replicas * self.shards

    @property
    def share(self) -> int:
        """Return the share of this process."""
        return self.replica * self.shards + self.shard


def check(config: Any, world_size: int) -> None:
    """Raise a SetupError for combinations that cannot work, before anything is computed."""
    shares = config.replicas * config.shards
    processes, rest = divmod(world_size, shares * config.tensor)
    if rest or not processes:
        what = (
            f"{config.replicas} replicas"
            + f" x {config.shards} shards x {config.tensor} tensor"
            * (config.shards * config.tensor > 1)
        )
        raise SetupError(
            f"{world_size} processes cannot hold {what}", hint="start a multiple of their product"
        )
    shape = shape_of(config)
    if shape.tied and processes > 1:
        raise SetupError(
            "the embedding and the head are in different stages, and `tied` weights are one",
            hint="use one stage",
        )
    for name in ("heads", "kv_heads", "context", "vocabulary", "feed_width"):
        if getattr(shape, name) % config.tensor:
            raise SetupError(
                f"`{name}` {getattr(shape, name)} cannot be cut into {config.tensor} equal parts",
                hint=f"tensor parallelism divides it: make `--{name}` a multiple of {config.tensor}",
            )
    if config.global_batch % (shares * config.microbatches):
        raise SetupError(
            f"{config.global_batch} windows cannot be cut into {shares} x {config.microbatches} equal parts",
            hint="make `--global_batch` a multiple of replicas times shards times microbatches",
        )
    check_version(processes)
    eased = [
        name
        for name in ("recompute", "compile")
        if getattr(config, name, "none") not in ("none", False)
    ]
    if eased and processes > 1 and config.schedule.startswith("zero"):
        raise SetupError(
            f"`--{eased[0]}` does not go with `{config.schedule}`, which computes a backward in two parts",
            hint="use `--schedule 1f1b` or `interleaved`",
        )
    stages = processes * chunks_of(config.schedule, config.chunks)
    if processes > 1 and stages > config.layers + 2:
        raise SetupError(
            f"{config.layers + 2} blocks are too few for {stages} stages", hint="raise `--layers`"
        )
    if config.schedule == "1f1b" and config.microbatches < processes:
        raise SetupError(
            f"`1f1b` needs at least {processes} microbatches", hint="raise `--microbatches`"
        )
    try:
        order_of(
            config.schedule,
            processes,
            config.microbatches,
            chunks_of(config.schedule, config.chunks),
        )
    # from torch, for example a number of microbatches that makes no equal rounds
    except ValueError as error:
        raise SetupError(
            f"`{config.schedule}` cannot run: {error}", hint="change `--microbatches`"
        ) from None


def check_version(processes: int) -> None:
    """Raise a SetupError where stages would wait for each other for ever."""
    if processes > 1 and is_older("2.7") and dist.get_backend() == "gloo":
        raise SetupError(
            f"stages over gloo hang with PyTorch before 2.7, and this is {torch.__version__}",
            hint="use a GPU for each process, or a newer PyTorch",
        )


def take_place(config: Any, device: torch.device) -> Place:
    """Lay the processes out in a grid. `cluster` makes neighbours one pipeline, so that activations take the short way.
    `spread` makes neighbours shards and replicas of each other, so that parameters and gradients take the short way,
    and stages may be on other instances. Along `tensor` processes are always neighbours, because they exchange in every
    layer."""
    ranks, along = torch.arange(dist.get_world_size()), (config.replicas, config.shards)
    if config.placement == "cluster":
        grid = ranks.view(*along, -1, config.tensor)
    else:
        grid = ranks.view(-1, *along, config.tensor).permute(1, 2, 0, 3)
    mesh = dist.DeviceMesh(device.type, grid, mesh_dim_names=AXES)
    groups = [dist.new_group(replica.flatten().tolist()) for replica in grid]
    replica, shard_, process, _ = mesh.get_coordinate() or (0, 0, 0, 0)
    return Place(
        config.replicas, grid.shape[2], replica, process, mesh.get_group("stage"), mesh.get_group("replica"), device,
        config.shards, config.tensor, shard_, mesh, groups[replica],
    )  # fmt: skip


class Loss:
    """The loss of a microbatch as a part of the batch's, from this process's logits. `count` is the number of tokens to
    learn from, as a mean over the shares of the batch. gloo's mean over shards is a sum before torch 2.9, so the loss
    is divided by `times`."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.times = (
            excess_of(place.mesh.get_group("shard"), place.device) if place.shards > 1 else 1.0
        )
        self.count = torch.ones((), device=place.device)

    def begin(self, following: Tensor) -> None:
        """Count the tokens of a step. Borders of documents leave different numbers in the shares."""
        self.count = tokens_to_learn(following, self.place.shares > 1)

    def __call__(self, logits: Tensor, following: Tensor) -> Tensor:
        place = self.place
        if place.tensor > 1:
            from torch.distributed.tensor import DTensor, Shard

            logits = DTensor.from_local(logits, place.mesh["tensor"], [Shard(-1)], run_check=False)
        return whole(loss_sum(logits, following)) / (self.count * self.times)


class Pipeline:
    """The stages of this process, and the schedule that runs them. `modules` maps the stage's number to its blocks."""

    def __init__(
        self,
        modules: dict[int, nn.Module],
        schedule: str,
        chunks: int,
        microbatches: int,
        place: Place,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        from stages import Stage
        from torch.distributed.pipelining.schedules import get_schedule_class

        row, count = SCHEDULES[schedule], place.processes * chunks
        self.stages = [
            Stage(module, number, count, place.device, group=place.pipeline)
            for number, module in modules.items()
        ]
        for stage in self.stages:
            stage.here = dict(zip(modules, self.stages, strict=True))
        self.place = place
        self.loss = Loss(place)
        kind: Any = get_schedule_class(row.torch_name)
        # the loss is scaled
        named = {"scale_grads": False} if "scale_grads" in signature(kind).parameters else {}
        self.schedule = kind(
            self.stages[0] if row.single else self.stages,
            microbatches,
            loss_fn=loss or self.loss,
            **named,
        )

    def step(self, inputs: Tensor, following: Tensor, documents: Tensor | None = None) -> Tensor:
        """Run forward and backward of one batch, in microbatches. Return its loss where the last stage is, 0 elsewhere.
        Gradients are means over the batch. Every stage gets the numbers of documents for its masks."""
        self.loss.begin(following)
        masked = {} if documents is None else {"documents": documents}
        has_first = any(stage.is_first for stage in self.stages)
        has_last = any(stage.is_last for stage in self.stages)
        losses: list[Tensor] = []
        with logits_in_parts(self.place.tensor):
            self.schedule.step(
                *([inputs] if has_first else []),
                target=following if has_last else None,
                losses=losses if has_last else None,
                **masked,
            )
        return (
            torch.stack(losses).sum().detach() * self.loss.times
            if has_last
            else torch.zeros((), device=inputs.device)
        )


class Alone:
    """The whole model without a pipeline; in one process, the reference for all others."""

    def __init__(self, model: nn.Module, microbatches: int, place: Place | None = None) -> None:
        self.model, self.microbatches = model, microbatches
        self.place = place or Place(1, 1, 0, 0, None, None, next(model.parameters()).device)
        self.loss = Loss(self.place)

    def step(self, inputs: Tensor, following: Tensor, documents: Tensor | None = None) -> Tensor:
        """Run forward and backward of one batch, with the same result as `Pipeline.step`."""
        self.loss.begin(following)
        total, count = torch.zeros((), device=inputs.device), self.microbatches
        parts = list(
            zip(
                inputs.chunk(count), following.chunk(count), parts_of(documents, count), strict=True
            )
        )
        for number, (part, target, those) in enumerate(parts, start=1):
            if self.place.shards > 1:
                self.model.set_requires_gradient_sync(number == self.microbatches)  # type: ignore[operator]
            with logits_in_parts(self.place.tensor):
                loss = self.loss(self.model(part, those), target)
                loss.backward()
            total += loss.detach() * self.loss.times
        return total


def make_stages(
    shape: Any,
    split: Sequence[range],
    schedule: str,
    chunks: int,
    seed: int,
    place: Place,
    precision: str = "fp32",
    easing: Any = None,
) -> dict[int, nn.Module]:
    """Make the stages of this process. No other blocks exist here; these have the weights they have in the whole
    model. `easing` has the options `recompute` and `compile`."""
    numbers = stages_of(schedule, place.process, place.processes, chunks)
    return {
        stage: make_stage(shape, split[stage], seed, place, precision, easing) for stage in numbers
    }


def make_stage(
    shape: Any, blocks: range, seed: int, place: Place, precision: str, easing: Any = None
) -> nn.Module:
    """Make a stage of some blocks: cut along `tensor` first, then sharded, then filled with their weights. The blocks
    of a stage stay gathered from its first microbatch to its last, because each microbatch would otherwise gather them
    again."""
    with torch.device("meta"):
        module = GPT(shape, blocks)
    if place.tensor > 1:
        cut(module, place.mesh["tensor"])
        if module.has_head:  # stages hand plain tensors on; the loss puts the parts together
            module.lm_head.register_forward_hook(
                lambda _head, _inputs, logits: logits.to_local().clone()
            )
    if easing is not None:
        ease(module, easing)
    if place.shards > 1:
        mesh = place.mesh["replica", "shard"] if place.replicas > 1 else place.mesh["shard"]
        shard(module, mesh, SimpleNamespace(precision=precision, reshard=False))
    module.to_empty(device=place.device)
    module.tie()
    initialise(module, shape, seed)
    # else FSDP2 casts, and what goes from stage to stage is bf16, too
    if precision == "bf16" and place.shards == 1:
        module.forward = torch.autocast(place.device.type, torch.bfloat16)(module.forward)  # type: ignore[method-assign]
    return module


class Replicas:
    """Data parallelism: gradients become their means over the replicas, block by block.

    A block's message leaves when its last microbatch has gone backward, and travels while others still compute.
    Schedules that split the backward write gradients without triggering hooks, so their messages leave when all is
    done. FSDP2 does this itself.
    """

    def __init__(
        self, modules: dict[int, nn.Module], place: Place, microbatches: int, *, overlaps: bool
    ) -> None:
        self.place = place
        self.is_needed = place.replicas > 1 and place.shards == 1
        blocks = [
            named for module in modules.values() for named in module.parameters_by_block().values()
        ]
        self.blocks = [list(named.values()) for named in blocks]
        self._under_way: dict[int, tuple[Tensor, Any]] = {}
        if self.is_needed and overlaps:
            for number, block in enumerate(self.blocks):
                left = [microbatches * len(block)]

                def count(_: Tensor, number: int = number, left: list[int] = left) -> None:
                    left[0] -= 1
                    if not left[0]:
                        left[0] = microbatches * len(self.blocks[number])
                        self._send(number)

                for parameter in block:
                    parameter.register_post_accumulate_grad_hook(count)

    def _send(self, number: int) -> None:
        flat = torch.cat([part_here(parameter.grad).flatten() for parameter in self.blocks[number]])
        self._under_way[number] = flat, dist.all_reduce(flat, group=self.place.peers, async_op=True)

    @torch.no_grad()
    def wait(self) -> None:
        """Wait until every gradient is complete and the mean over the replicas."""
        for number in reversed(range(len(self.blocks) if self.is_needed else 0)):
            if number not in self._under_way:
                self._send(number)
        for number, (flat, work) in self._under_way.items():
            work.wait()
            flat /= self.place.replicas
            parts = [part_here(parameter.grad) for parameter in self.blocks[number]]
            for part, mean in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
                part.copy_(mean.view_as(part))
        self._under_way.clear()
        add_up(parameter for block in self.blocks for parameter in block)


@torch.no_grad()
def gather(shape: Any, mine: dict[str, Any], place: Place) -> dict[str, Tensor] | None:
    """Return the whole model in host memory of rank 0, parameter by parameter; None elsewhere. Every process must call
    it."""
    if place.replica:
        return None
    with torch.device("meta"):
        everything = dict(GPT(shape).named_parameters())
    # two exchanges, said each time
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    here, is_main = dist.get_rank(), dist.get_rank() == 0
    holders: list[Any] = [None] * dist.get_world_size(place.model)
    dist.all_gather_object(holders, (here, list(mine)), group=place.model)
    holder_of = {name: rank for rank, names in reversed(holders) for name in names}
    found = {}
    for name, parameter in everything.items():
        part = whole(mine[name]).detach() if name in mine else None
        if is_main and part is None:
            part = torch.empty_like(parameter, device=place.device)
            dist.recv(part, holder_of[name])
        elif part is not None and holder_of[name] == here != 0:
            dist.send(part.contiguous(), 0)
        if is_main and part is not None:
            found[name] = part.cpu()
    return found if is_main else None
