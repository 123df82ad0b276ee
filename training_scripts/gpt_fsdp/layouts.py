"""Distribute one model over processes in five layouts, which all give the same losses.

Processes form a grid of four axes. Along `replicate` they hold the same parameters and average gradients (DDP). Along
`shard` each holds a part of every parameter, gradient and optimizer state, and gathers a block's parameters just before
it computes with them (FSDP2). Along `context` they have parts of the same windows, and gather keys and values for
attention; FSDP2 shards over this axis, too. Along `tensor` they compute each layer together, each with a slice of its
matrices (tensor parallelism). A layout determines the lengths of the axes; `--context_parallel` divides the others:

    layout   replicate  shard   tensor
    ddp      all        1       1
    fsdp     1          all     1
    hsdp     replicas   rest    1         shards within an instance, replicas of that across instances
    tp       1          1       all
    2d       1          rest    tensor    tensor parallel within an instance, sharded across them
"""

from __future__ import annotations

import contextlib
import gc
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from gpt import FAMILIES, GPT, Shape, logits_in_parts, loss_sum, tokens_to_learn
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from cloudtrain import runtime
from cloudtrain.runtime import SetupError, has_bf16, has_float8

AXES = ("replicate", "shard", "tensor")


@dataclass(frozen=True)
class Grid:
    """The number of processes along each axis."""

    replicate: int
    shard: int
    tensor: int
    context: int = 1

    @property
    def data(self) -> int:
        """Return the number of shares of a batch. Processes along `tensor` and `context` work on the same share."""
        return self.replicate * self.shard

    def share_of(self, rank: int) -> int:
        """Return the share of a process. Neighbours are along `tensor`, because those exchange most. Several processes
        may each have a grid of one process."""
        return rank // (self.tensor * self.context) % self.data

    def positions_of(self, rank: int, length: int) -> Tensor | None:
        """Return the positions of a window that a process along `context` has; None for all. It has one part from the
        front and one from the back, because positions at the back see more and take longer."""
        if self.context == 1:
            return None
        place, parts = (
            rank // self.tensor % self.context,
            torch.arange(length).chunk(2 * self.context),
        )
        return torch.cat([parts[place], parts[-1 - place]])


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
    part = getattr(config, "context_parallel", 1)
    if world % part:
        raise SetupError(
            f"{world} processes make no grid of context_parallel {part}",
            hint="start a multiple of `--context_parallel` processes",
        )
    grid = LAYOUTS[config.layout](world // part, config.replicas, config.tensor)
    if grid.data * grid.tensor * part != world:
        option, size = (
            ("replicas", config.replicas) if config.layout == "hsdp" else ("tensor", config.tensor)
        )
        raise SetupError(
            f"{world} processes make no grid of {option} {size}",
            hint=f"start a multiple of `--{option}` processes",
        )
    if part > 1 and (grid.tensor > 1 or config.context % (2 * part)):
        raise SetupError(
            f"`--context_parallel {part}` cuts no windows of {config.context} under `--layout {config.layout}`",
            hint=f"use `ddp`, `fsdp` or `hsdp`, and a multiple of {2 * part} for `--context`",
        )
    grid = Grid(grid.replicate, grid.shard, grid.tensor, part)
    shape = shape_of(config)
    sizes = {
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "context": shape.context,
        "vocabulary": shape.vocabulary,
    }
    for name, size in {**sizes, "feed_width": shape.feed_width}.items():
        if size % grid.tensor:
            raise SetupError(
                f"`{name}` {size} cannot be cut into {grid.tensor} equal parts",
                hint=f"tensor parallelism divides it: make `--{name}` a multiple of {grid.tensor}",
            )
    if config.global_batch % (grid.data * config.accumulate):
        raise SetupError(
            f"{config.global_batch} windows cannot be cut into {grid.data} shares of {config.accumulate} equal parts",
            hint="make `--global_batch` a multiple of data-parallel processes times `--accumulate`",
        )
    return grid


def shape_of(config: Any) -> Shape:
    """Return the shape that the options describe.

    Raises:
        SetupError: they contradict each other.
    """
    optional = ("family", "kv_heads", "head_width", "feed_width", "rope_theta", "norm_eps", "tied")
    more = {name: getattr(config, name) for name in optional if hasattr(config, name)}
    if config.width % config.heads and not more.get("head_width"):
        raise SetupError(
            f"`width` {config.width} is no multiple of `heads` {config.heads}",
            hint="change `--heads`",
        )
    shape = Shape(
        config.layers, config.heads, config.width, config.context, config.vocabulary, **more
    )
    assert shape.family in FAMILIES
    if shape.heads % shape.kv_heads:
        raise SetupError(
            f"`heads` {shape.heads} is no multiple of `kv_heads` {shape.kv_heads}",
            hint="change `--kv_heads`",
        )
    if shape.family != "gpt2" and shape.head_width % 2:
        raise SetupError(
            f"RoPE turns pairs, and `head_width` is {shape.head_width}", hint="make it even"
        )
    return shape


def check_hardware(config: Any, device: torch.device) -> None:
    """Raise a SetupError if an option needs a feature that this hardware lacks."""
    if config.float8 and not has_float8():
        raise SetupError(
            f"`--float8` needs a GPU with float8 (H100, L40S, B200, MI300), and this is {name_of(device)}",
            hint="leave it out; `--precision bf16` runs here"
            if device.type == "cuda"
            else "leave it out",
        )
    if config.precision == "bf16" and device.type == "cuda" and not has_bf16():
        raise SetupError(
            f"{name_of(device)} has no bf16, and would imitate it slowly",
            hint="use `--precision fp16`",
        )
    if config.async_tensor and (device.type != "cuda" or torch.cuda.device_count() < 2):
        raise SetupError(
            f"`--async_tensor` needs GPUs that reach each other's memory (NVLink), and this is {name_of(device)}",
            hint="leave it out",
        )
    for flag in ("float8", "async_tensor"):
        if getattr(config, flag) and not config.compile:
            raise SetupError(f"`--{flag}` works only with the compiler", hint="add `--compile`")


def begin(config: Any, *, sends: bool = False) -> tuple[Any, torch.device]:
    """Start the process group. Return it and the device on which the model is."""
    # blocks that grow: lengths and sizes that change leave no gaps between them
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    runtime.use_determinism(config.deterministic)
    if not torch.cuda.is_available():
        # a process stands for a device, and one thread each keeps them alike
        torch.set_num_threads(1)
    runtime.use_tf32(config.tf32)
    group = runtime.init_process_group(config.backend, sends=sends)
    if group.device.type == "cuda" and group.backend == "gloo" and group.world_size > 1:
        runtime.notice("gloo sends no tensors between GPUs, so the model stays on the CPU")
        return group, torch.device("cpu")
    return group, group.device


GARBAGE_EVERY = 50


def collect_garbage(step: int) -> None:
    """Let Python collect its garbage after every 50th step. By itself it does so on each process at another moment, and
    all others wait for that one."""
    if gc.isenabled():
        gc.collect()
        gc.disable()
    elif step % GARBAGE_EVERY == 0:
        gc.collect(1)


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
        self.shape = shape_of(config)
        self.is_replicated = config.layout == "ddp" and grid.replicate * grid.context > 1
        is_alone = config.layout == "ddp" and not self.is_replicated
        mesh = None if is_alone else make_mesh(grid, device)
        self.model = arrange(self.shape, config, grid, mesh)
        self._is_shared = grid.data * grid.context > 1
        self._excess = 1.0
        self._gather = None if grid.context == 1 else gathering(grid, device)
        self.positions = (
            grid.positions_of(dist.get_rank(), config.context) if grid.context > 1 else None
        )
        self.trained: nn.Module = self.model
        with_compiler = config.compile and grid.tensor == 1
        self.loss_sum = torch.compile(loss_sum) if with_compiler else loss_sum
        if config.layout in SHARDED:
            self._excess = excess_of(mesh.get_group("shard"), device)
        self.model.to_empty(device=device)
        self.model.tie()
        initialise(self.model, self.shape, config.seed)
        if self.is_replicated:
            ids = [device.index] if device.type == "cuda" else None
            self.trained = nn.parallel.DistributedDataParallel(
                self.model, device_ids=ids, gradient_as_bucket_view=True
            )

    def gradients(
        self, inputs: Tensor, following: Tensor, documents: Tensor | None = None, scale: float = 1.0
    ) -> Tensor:
        """Run forward and backward of this process's share, in `accumulate` parts. Return a loss whose mean over all
        processes is the batch's mean over its tokens. Gradients are those of the mean, times `scale`."""
        parts = self.config.accumulate
        inputs, following, documents = self._mine(inputs, following, documents)
        count = tokens_to_learn(following, self._is_shared)
        total = torch.zeros((), device=self.device)
        shares = zip(
            inputs.chunk(parts), following.chunk(parts), parts_of(documents, parts), strict=True
        )
        for number, (part, target, those) in enumerate(shares, start=1):
            with self._exchanging(number == parts), logits_in_parts(self.grid.tensor):
                loss = self._loss(part, target, those, self.config.logits_at_once) / count
                (loss * (scale / self._excess)).backward()
            total += whole(loss.detach())
        add_up(self.model.parameters())
        return total

    def take_step(
        self, optimizer: torch.optim.Optimizer, guard: Any, batch: tuple[Any, ...], number: int
    ) -> tuple[Tensor, Tensor]:
        """Make one step of the optimizer, which is this `number`. Return this process's part of the mean loss, and the
        norm of the whole gradient."""
        loss = self.gradients(*batch, scale=guard.scale)
        norm = whole(guard.clip(list(self.model.parameters()), self.config.clip))
        if guard.accepts(number, norm):
            optimizer.step()
        optimizer.zero_grad()
        return loss, norm

    def _mine(
        self, inputs: Tensor, following: Tensor, documents: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return this process's positions of the windows, where processes along `context` divide them."""
        if self.positions is None:
            return inputs, following, documents
        self.positions = here = self.positions.to(self.device)
        return (
            inputs[:, here],
            following[:, here],
            None if documents is None else documents[:, here],
        )

    @torch.no_grad()
    def evaluate(
        self, inputs: Tensor, following: Tensor, documents: Tensor | None = None
    ) -> Tensor:
        """Return a loss whose mean over all processes is that of all tokens. Logits exist for some tokens at a time:
        those of a whole batch are often larger than all else. It is not compiled, because compiling takes longer than
        a single evaluation; but `flex_attention`, which masks documents on GPUs, needs the compiler."""
        inputs, following, documents = self._mine(inputs, following, documents)
        count, parts = tokens_to_learn(following, self._is_shared), self.config.accumulate
        needs_compiler = self.device.type == "cuda" and (
            documents is not None or self.grid.context > 1
        )
        eager = (
            contextlib.nullcontext() if needs_compiler else torch.compiler.set_stance("force_eager")
        )
        with logits_in_parts(self.grid.tensor), eager:
            shares = list(
                zip(
                    inputs.chunk(parts),
                    following.chunk(parts),
                    parts_of(documents, parts),
                    strict=False,
                )
            )
            return (
                torch.stack(
                    [whole(self._loss(*share, at_once=LOGITS_AT_ONCE)) for share in shares]
                ).sum()
                / count
            )

    def _loss(
        self, inputs: Tensor, following: Tensor, documents: Tensor | None, at_once: int = 0
    ) -> Tensor:
        """Return the sum of the losses. With `at_once`, the model computes it from a part of the logits at a time."""
        kind = PRECISIONS[self.config.precision]
        is_cast = kind is not None and self.config.layout not in SHARDED  # else FSDP2 casts
        where = {"documents": documents, "positions": self.positions, "gather": self._gather}
        with torch.autocast(self.device.type, kind or torch.bfloat16, enabled=is_cast):
            if at_once:
                return self.trained(inputs, **where, following=following, at_once=at_once)
            logits = self.trained(inputs, **where)
        return self.loss_sum(logits, following)

    @contextlib.contextmanager
    def _exchanging(self, is_last: bool) -> Iterator[None]:
        """Exchange the gradients of one part of the batch, as far as memory requires.

        A sharded layout scatters them with each part, because a process would otherwise hold 4 bytes for each
        parameter of the whole model. Replicas of it, and DistributedDataParallel, wait for the last part: what waits
        is in memory that they have anyway.
        """
        if self.config.layout in SHARDED:
            self.model.set_requires_gradient_sync(is_last or self.config.sync_each_part)
            self.model.set_requires_all_reduce(is_last)
        # DistributedDataParallel has it
        no_sync = getattr(self.trained, "no_sync", contextlib.nullcontext)
        with contextlib.nullcontext() if is_last else no_sync():
            yield


@torch.no_grad()
def add_up(parameters: Iterable[Tensor]) -> None:
    """Add up the gradients of norms under tensor parallelism, of which each process has the part of its positions.
    Before torch 2.9, the norm of the gradients would otherwise be wrong, because it was computed from the parts."""
    for parameter in parameters:
        gradient: Any = parameter.grad
        if any(placement.is_partial() for placement in getattr(gradient, "placements", ())):
            parameter.grad = gradient.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]


def make_mesh(grid: Grid, device: torch.device) -> Any:
    """Return the grid as torch's mesh, in which FSDP2 also shards along `context`. Neighbouring processes differ in
    `tensor` first, in `replicate` last."""
    sizes = (grid.replicate, grid.shard * grid.context, grid.tensor)
    mesh = dist.init_device_mesh(device.type, sizes, mesh_dim_names=AXES)
    if grid.shard > 1 and grid.tensor > 1:
        # or the norm of gradients goes over one axis, then over the other
        mesh["shard", "tensor"]._flatten("model")
    return mesh


def gathering(grid: Grid, device: torch.device) -> Callable[[Tensor, int], Tensor]:
    """Return the function that puts the parts of a tensor on all processes along `context` together. Its backward adds
    up the gradients, also those that are not contiguous, which `torch.distributed.nn.all_gather` gets wrong on gloo."""
    import torch.distributed._functional_collectives as collectives

    group = dist.init_device_mesh(
        device.type, (grid.data, grid.context), mesh_dim_names=("data", "part")
    ).get_group("part")
    # to 2.12
    name = (
        "all_gather_single"
        if hasattr(collectives, "all_gather_single_autograd")
        else "all_gather_tensor"
    )
    plain, differentiable = getattr(collectives, name), getattr(collectives, f"{name}_autograd")

    def gather(part: Tensor, dimension: int) -> Tensor:
        found: Tensor = (differentiable if part.requires_grad else plain)(
            part.contiguous(), dimension, group
        )
        return found

    return gather


def parts_of(documents: Tensor | None, parts: int) -> Any:
    """Return the numbers of documents for each part of a batch."""
    return [None] * parts if documents is None else documents.chunk(parts)


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
    ease(model, config)
    if config.layout in SHARDED:
        shard(model, mesh["replicate", "shard"] if grid.replicate > 1 else mesh["shard"], config)
    return model


def ease(model: GPT, config: Any) -> None:
    """Let layers compute activations again instead of keeping them, and compile each layer."""
    for layer in model.layers.values():
        if config.recompute != "none":
            layer.__class__ = recomputing(type(layer), config.recompute)
        if config.compile:
            layer.forward = torch.compile(layer.forward)  # type: ignore[method-assign]


def use_float8(model: GPT) -> None:
    """Compute the matrix products of all layers in float8, scaled tensor by tensor. The head is not changed."""
    try:
        from torchao.float8 import convert_to_float8_training
    except ModuleNotFoundError:
        raise SetupError("`--float8` needs torchao", hint="pip install torchao") from None
    convert_to_float8_training(model, module_filter_fn=lambda _, name: "lm_head" not in name)


def send_beside(mesh: Any) -> None:
    """Let the compiler divide matrix products and their messages into parts, so that computing and sending overlap."""
    import torch._inductor.config
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    torch._inductor.config._micro_pipeline_tp = True
    enable_symm_mem_for_group(mesh.get_group().group_name)


def shard(model: GPT, mesh: Any, config: Any) -> None:
    """Apply FSDP2, block by block: while one block computes, the parameters of the next one are on their way.

    With `reshard`, a block's parameters are freed after its forward and gathered again for its backward (ZeRO 3).
    Without it they are kept in between (ZeRO 2), for more memory and one exchange less. The head is always kept,
    because it is needed again at once.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if (kind := PRECISIONS[config.precision]) is not None:
        policy = MixedPrecisionPolicy(param_dtype=kind, reduce_dtype=torch.float32)
    blocks: list[nn.Module] = list(model.layers.values())
    # else it is gathered with the head, whose weights it has
    if model.has_embedding and not model.shape.tied:
        blocks.insert(0, model.model.embed_tokens)  # type: ignore[arg-type]
        # nothing changes it in place
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=config.reshard)
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
    with_seen = PrepareModuleInput(
        input_layouts=(positions, None), desired_input_layouts=(Replicate(), None)
    )
    # of (batch, length, heads, head_width)
    heads = SequenceParallel(sequence_dim=2, use_local_output=True)
    layer = {
        "input_layernorm": SequenceParallel(),
        "self_attn": with_seen,
        **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
        "self_attn.o_proj": RowwiseParallel(output_layouts=positions),
        "post_attention_layernorm": SequenceParallel(),
        "mlp": gathered,
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=positions),
        "self_attn.q_norm": heads,
        "self_attn.k_norm": heads,
    }
    ends = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=positions),
        # (length, width)
        "model.embed_positions": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Shard(0)
        ),
        "model.norm": SequenceParallel(use_local_output=True),
        "lm_head": ColwiseParallel(
            input_layouts=positions, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    for block in model.layers.values():
        parallelize_module(
            block, mesh, {name: plan for name, plan in layer.items() if has_module(block, name)}
        )
    parallelize_module(
        model, mesh, {name: plan for name, plan in ends.items() if has_module(model, name)}
    )
    # what is still being exchanged gets wrong gradients, or none, from a compiled layer
    if model.has_embedding:
        model.model.embed_tokens.register_forward_hook(
            lambda _embedding, _tokens, found: found.clone()
        )
    model.tensor = mesh.size()
    model.tie()


def has_module(module: nn.Module, name: str) -> bool:
    """Return whether a module of that name is in it."""
    return any(name == each for each, _ in module.named_modules())


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
    # its name from 2.13 on
    reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    reduce_scatter(mean, torch.ones(count, device=device), op=dist.ReduceOp.AVG, group=group)
    return float(mean.item())


@cache
def recomputing(kind: type[nn.Module], how: str) -> type[nn.Module]:
    """Return a layer's class that computes activations again in the backward. `full` keeps only the layer's input: a
    third more arithmetic, memory of one layer instead of all. `selective` also keeps the results of matrix products and
    attention, and computes cheap operations again: norms, activation functions, sums."""
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if how == "selective":
        options["context_fn"] = kept_contexts

    class Recomputed(kind):  # type: ignore[misc, valid-type]
        def forward(self, *inputs: Any) -> Tensor:
            return checkpoint(super().forward, *inputs, **options)

    return Recomputed


def kept_contexts() -> Any:
    """Return the two contexts that torch's `checkpoint` needs: for the forward pass and for its recomputation."""
    return create_selective_checkpoint_contexts(KEPT)


KEPT = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,  # with a bias, as Qwen2's
    torch.ops.aten._scaled_mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
]
"""The operations whose results selective recomputation keeps."""

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}

LOGITS_AT_ONCE = 2048
"""Tokens whose logits an evaluation computes at once: 1 GiB in fp32 for a vocabulary of 128,000."""


@torch.no_grad()
def initialise(model: GPT, shape: Shape, seed: int) -> None:
    """Initialise weights independently of the layout. Each block is made whole on the CPU from its own seed, and each
    process takes its part: no messages, and never more than one block at a time."""
    for index, named in model.parameters_by_block().items():
        source = GPT(shape, blocks=[index])
        source.reset_parameters(seed)
        weights = dict(source.named_parameters())
        for name, parameter in named.items():
            fill(parameter, weights[name])


@torch.no_grad()
def fill(parameter: Tensor, weights: Tensor) -> None:
    """Copy this process's part of `weights` into a parameter, spread or not."""
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
