"""Distribute one model over processes in five layouts, which all give the same losses.

Processes form a grid of three axes. Along `replicate` they hold the same parameters and average gradients (DDP). Along
`shard` each holds a part of every parameter, gradient and optimizer state, and gathers a block's parameters just before
it computes with them (FSDP2). Along `tensor` they compute each layer together, each with a slice of its matrices
(tensor parallelism). A layout determines the lengths of the axes:

    layout   replicate  shard   tensor
    ddp      all        1       1
    fsdp     1          all     1
    hsdp     replicas   rest    1         shards within an instance, replicas of that across instances
    tp       1          1       all
    2d       1          rest    tensor    tensor parallel within an instance, sharded across them
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from gpt import GPT, Layer, Shape, loss_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from cloudtrain.runtime import SetupError, has_float8

AXES = ("replicate", "shard", "tensor")


@dataclass(frozen=True)
class Grid:
    """The number of processes along each axis."""

    replicate: int
    shard: int
    tensor: int

    @property
    def data(self) -> int:
        """Return the number of shares of a batch. Processes along `tensor` work on the same share."""
        return self.replicate * self.shard

    def share_of(self, rank: int) -> int:
        """Return the share of a process. Neighbours are along `tensor`, because those exchange most. Several processes
        may each have a grid of one process."""
        return rank // self.tensor % self.data


LAYOUTS: dict[str, Callable[[int, int, int], Grid]] = {
    "ddp": lambda world, _replicas, _tensor: Grid(world, 1, 1),
    "fsdp": lambda world, _replicas, _tensor: Grid(1, world, 1),
    "hsdp": lambda world, replicas, _tensor: Grid(replicas, world // replicas, 1),
    "tp": lambda world, _replicas, _tensor: Grid(1, 1, world),
    "2d": lambda world, _replicas, tensor: Grid(1, world // tensor, tensor),
}

SHARDED = frozenset({"fsdp", "hsdp", "2d"})
"""Layouts under FSDP2, also where the axis `shard` has length 1."""


def grid_of(config: Any, world: int) -> Grid:
    """Return the grid of a layout.

    Raises:
        SetupError: the processes, the model or the batch cannot be divided that way.
    """
    grid = LAYOUTS[config.layout](world, config.replicas, config.tensor)
    if grid.data * grid.tensor != world:
        option, size = ("replicas", config.replicas) if config.layout == "hsdp" else ("tensor", config.tensor)
        raise SetupError(
            f"{world} processes make no grid of {option} {size}", hint=f"start a multiple of `--{option}` processes"
        )
    for name in ("heads", "context", "vocabulary"):
        if getattr(config, name) % grid.tensor:
            raise SetupError(
                f"`{name}` {getattr(config, name)} cannot be cut into {grid.tensor} equal parts",
                hint=f"tensor parallelism divides it: make `--{name}` a multiple of {grid.tensor}",
            )
    if config.width % config.heads:
        raise SetupError(f"`width` {config.width} is no multiple of `heads` {config.heads}", hint="change `--heads`")
    if config.global_batch % (grid.data * config.accumulate):
        raise SetupError(
            f"{config.global_batch} windows cannot be cut into {grid.data} shares of {config.accumulate} equal parts",
            hint="make `--global_batch` a multiple of data-parallel processes times `--accumulate`",
        )
    return grid


def check_hardware(config: Any, device: torch.device) -> None:
    """Raise a SetupError if an option needs a feature that this hardware lacks."""
    if config.float8 and not has_float8():
        raise SetupError(
            f"`--float8` needs a GPU with float8 (H100, L40S, B200, MI300), and this is {name_of(device)}",
            hint="leave it out; `--precision bf16` runs here" if device.type == "cuda" else "leave it out",
        )
    if config.async_tensor and (device.type != "cuda" or torch.cuda.device_count() < 2):
        raise SetupError(
            f"`--async_tensor` needs GPUs that reach each other's memory (NVLink), and this is {name_of(device)}",
            hint="leave it out",
        )
    for flag in ("float8", "async_tensor"):
        if getattr(config, flag) and not config.compile:
            raise SetupError(f"`--{flag}` works only with the compiler", hint="add `--compile`")


def name_of(device: torch.device) -> str:
    """Return the GPU's name, or the name of the device used instead."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"


class Spread:
    """A model on the grid, with real weights. `model` is trained and saved; `trained` is the object to call."""

    def __init__(self, config: Any, grid: Grid, device: torch.device) -> None:
        if config.layout in SHARDED and device.type == "cpu" and is_older("2.7"):
            raise SetupError(
                f"FSDP2 runs on CPUs from PyTorch 2.7 on, and this is {torch.__version__}",
                hint="use `--layout ddp`, GPUs, or a newer PyTorch",
            )
        self.grid, self.device, self.config = grid, device, config
        self.shape = Shape(config.layers, config.heads, config.width, config.context, config.vocabulary)
        is_alone = config.layout == "ddp" and grid.replicate == 1
        mesh = None if is_alone else make_mesh(grid, device)
        self.model = arrange(self.shape, config, grid, mesh)
        self._excess = excess_of(mesh.get_group("shard"), device) if config.layout in SHARDED else 1.0
        self.model.to_empty(device=device)
        initialise(self.model, self.shape, config.seed)
        self.trained: nn.Module = self.model
        if config.layout == "ddp" and grid.replicate > 1:
            ids = [device.index] if device.type == "cuda" else None
            self.trained = nn.parallel.DistributedDataParallel(self.model, device_ids=ids, gradient_as_bucket_view=True)
        with_compiler = config.compile and grid.tensor == 1
        self.loss_of = torch.compile(loss_of) if with_compiler else loss_of

    def gradients(self, inputs: Tensor, following: Tensor) -> Tensor:
        """Run forward and backward of this process's share, in `accumulate` parts. Return its mean loss. Gradients are
        exchanged with the last part, and are means over the whole batch."""
        parts = self.config.accumulate
        total = torch.zeros((), device=self.device)
        for number, (part, target) in enumerate(zip(inputs.chunk(parts), following.chunk(parts), strict=True), start=1):
            with self._exchanging(number == parts), self._logits_in_parts():
                loss = self._loss(part, target) / parts
                (loss / self._excess).backward()
            total += whole(loss.detach())
        self._add_up()
        return total

    @torch.no_grad()
    def _add_up(self) -> None:
        """Add up the gradients of norms under tensor parallelism, of which each process has the part of its positions.
        Before torch 2.9, the norm of the gradients would otherwise be wrong, because it was computed from the parts."""
        for parameter in self.model.parameters():
            gradient: Any = parameter.grad
            if any(placement.is_partial() for placement in getattr(gradient, "placements", ())):
                parameter.grad = gradient.redistribute(placements=parameter.placements)

    @torch.no_grad()
    def evaluate(self, inputs: Tensor, following: Tensor) -> Tensor:
        """Return the mean loss of this process's share. It is not compiled, because compiling takes longer than a
        single evaluation."""
        parts = self.config.accumulate
        with self._logits_in_parts(), torch.compiler.set_stance("force_eager"):
            pairs = zip(inputs.chunk(parts), following.chunk(parts), strict=True)
            sums = [whole(self._loss(part, target)) * len(part) for part, target in pairs]  # the last may be smaller
            return torch.stack(sums).sum() / len(inputs)

    def _loss(self, inputs: Tensor, following: Tensor) -> Tensor:
        is_cast = self.config.precision == "bf16" and self.config.layout not in SHARDED  # else FSDP2 casts
        with torch.autocast(self.device.type, torch.bfloat16, enabled=is_cast):
            logits = self.trained(inputs)
        return self.loss_of(logits, following)

    def _logits_in_parts(self) -> contextlib.AbstractContextManager[None]:
        """Return the loss from divided logits. With tensor parallelism the vocabulary is divided, so no process holds
        all logits, and cross-entropy is added up."""
        if self.grid.tensor == 1:
            return contextlib.nullcontext()
        from torch.distributed.tensor.parallel import loss_parallel

        return loss_parallel()

    @contextlib.contextmanager
    def _exchanging(self, is_last: bool) -> Iterator[None]:
        """Exchange gradients only with the last part of the batch. The gradients of other parts stay on the process."""
        if self.config.layout in SHARDED:
            self.model.set_requires_gradient_sync(is_last)
        no_sync = getattr(self.trained, "no_sync", contextlib.nullcontext)  # DistributedDataParallel has it
        with contextlib.nullcontext() if is_last else no_sync():
            yield


def make_mesh(grid: Grid, device: torch.device) -> Any:
    """Return the grid as torch's mesh. Neighbouring processes differ in `tensor` first, in `replicate` last."""
    sizes = (grid.replicate, grid.shard, grid.tensor)
    mesh = dist.init_device_mesh(device.type, sizes, mesh_dim_names=AXES)
    if grid.shard > 1 and grid.tensor > 1:
        mesh["shard", "tensor"]._flatten("model")  # or the norm of gradients goes over one axis, then over the other
    return mesh


def arrange(shape: Shape, config: Any, grid: Grid, mesh: Any) -> GPT:
    """Arrange the model on the meta device, where it takes no memory: cut, recompute, compile, shard, in this order."""
    with torch.device("meta"):
        model = GPT(shape)
    if getattr(config, "float8", False):
        use_float8(model)
    if grid.tensor > 1:
        cut(model, mesh["tensor"])
        if getattr(config, "async_tensor", False):
            send_beside(mesh["tensor"])
    for block in model.blocks.values():
        if isinstance(block, Layer):
            block.__class__ = RECOMPUTED[config.recompute]
        if config.compile:
            block.forward = torch.compile(block.forward)
    if config.layout in SHARDED:
        shard(model, mesh["replicate", "shard"] if grid.replicate > 1 else mesh["shard"], config)
    return model


def use_float8(model: GPT) -> None:
    """Compute the matrix products of all layers in float8, scaled tensor by tensor. The head is not changed."""
    try:
        from torchao.float8 import convert_to_float8_training
    except ModuleNotFoundError:
        raise SetupError("`--float8` needs torchao", hint="pip install torchao") from None
    convert_to_float8_training(model, module_filter_fn=lambda _, name: ".logits" not in name)


def send_beside(mesh: Any) -> None:
    """Let the compiler divide matrix products and their messages into parts, so that computing and sending overlap."""
    import torch._inductor.config
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    torch._inductor.config._micro_pipeline_tp = True
    enable_symm_mem_for_group(mesh.get_group().group_name)


def shard(model: GPT, mesh: Any, config: Any) -> None:
    """Apply FSDP2, block by block: while one block computes, the parameters of the next one are on their way.

    With `reshard`, a block's parameters are freed after its forward and gathered again for its backward (ZeRO 3).
    Without it they are kept in between (ZeRO 2), for more memory and one exchange less. The last block is always kept,
    because it is needed again at once.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if config.precision == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    *others, last = model.blocks.values()
    for block in others:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=config.reshard)
    fully_shard(last, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


def cut(model: GPT, mesh: Any) -> None:
    """Apply tensor parallelism: attention by heads, feed-forward by its wide layer, the vocabulary by rows. Each pair
    of matrices is cut so that no exchange is needed between the first and the second. Between pairs, in norms and
    residuals, each process has its part of the positions (sequence parallelism)."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    positions = Shard(1)  # of (batch, length, width)
    gathered = PrepareModuleInput(input_layouts=positions, desired_input_layouts=Replicate())
    plans: dict[str, dict[str, Any]] = {
        "Embedding": {
            "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=positions),
            "positions": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),  # (length, width)
        },
        "Layer": {
            "attention_norm": SequenceParallel(),
            "attention": gathered,
            "attention.queries_keys_values": ColwiseParallel(),
            "attention.out": RowwiseParallel(output_layouts=positions),
            "feed_norm": SequenceParallel(),
            "feed": gathered,
            "feed.wide": ColwiseParallel(),
            "feed.out": RowwiseParallel(output_layouts=positions),
        },
        "Head": {
            "norm": SequenceParallel(),
            "logits": ColwiseParallel(input_layouts=positions, output_layouts=Shard(-1), use_local_output=False),
        },
    }
    for block in model.blocks.values():
        parallelize_module(block, mesh, plans[type(block).__name__])


def is_older(version: str) -> bool:
    """Return whether this PyTorch came before `version`."""
    return tuple(map(int, torch.__version__.split(".")[:2])) < tuple(map(int, version.split(".")))


def excess_of(group: Any, device: torch.device) -> float:
    """Return the factor by which FSDP2's mean over `group` is too large. gloo before torch 2.9 answers
    `reduce_scatter(AVG)` with the sum, so gradients are too large by the number of processes, which AdamW does not
    show."""
    count = dist.get_world_size(group)
    if count == 1:
        return 1.0
    mean = torch.zeros(1, device=device)
    reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)  # its name from 2.13 on
    reduce_scatter(mean, torch.ones(count, device=device), op=dist.ReduceOp.AVG, group=group)
    return float(mean.item())


class RecomputedLayer(Layer):
    """Keeps only its input between forward and backward, and computes the rest again: a third more arithmetic, memory
    of one layer instead of all."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False, preserve_rng_state=False)


class SelectivelyRecomputedLayer(Layer):
    """Keeps the results of matrix products and attention, and computes cheap operations again: norms, GELU, sums."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False, preserve_rng_state=False, context_fn=kept_contexts)


def kept_contexts() -> Any:
    """Return the two contexts that torch's `checkpoint` needs: for the forward pass and for its recomputation."""
    return create_selective_checkpoint_contexts(KEPT)


RECOMPUTED: dict[str, type[Layer]] = {
    "none": Layer,
    "selective": SelectivelyRecomputedLayer,
    "full": RecomputedLayer,
}

KEPT = [
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
]
"""The operations whose results selective recomputation keeps."""


@torch.no_grad()
def initialise(model: GPT, shape: Shape, seed: int) -> None:
    """Initialise weights independently of the layout. Each block is made whole on the CPU from its own seed, and each
    process takes its part: no messages, and never more than one block at a time."""
    for index, block in model.blocks.items():
        source = GPT(shape, blocks=[int(index)])
        source.reset_parameters(seed)
        for parameter, weights in zip(block.parameters(), source.parameters(), strict=True):
            if hasattr(parameter, "placements"):
                parameter.to_local().copy_(part_of(weights, parameter))
            else:
                parameter.copy_(weights)


def part_of(weights: Tensor, parameter: Any) -> Tensor:
    """Return this process's part of a spread parameter. The last axis cuts first: FSDP2 shards the part that tensor
    parallelism leaves. With an uneven division the last parts are smaller, or empty."""
    mesh = parameter.device_mesh
    for axis in reversed(range(mesh.ndim)):
        placement = parameter.placements[axis]
        if not placement.is_replicate():
            parts = weights.chunk(mesh.size(axis), dim=placement.dim)
            mine = mesh.get_coordinate()[axis]
            weights = parts[mine] if mine < len(parts) else weights.narrow(placement.dim, 0, 0)
    return weights


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor, distributed or not, as an ordinary tensor. Every process of its mesh must call it."""
    gather = getattr(tensor, "full_tensor", None)
    return gather() if gather is not None else tensor


def local_bytes(tensors: Any) -> int:
    """Return the bytes of tensors on this process. For a sharded tensor, only the local part counts."""
    parts = (tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors)
    return sum(part.numel() * part.element_size() for part in parts)
