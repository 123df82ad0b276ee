"""A decoder made to be cut: it is one list of blocks, and any slice of the list is a model, too.

    whole = GPT(Shape(layers=8))                        # blocks 0 to 9: the embedding, 8 layers, the head
    stage = GPT(Shape(layers=8), blocks=range(3, 6))    # a pipeline stage: takes and returns (batch, length, width)
    stage.reset_parameters(seed=1)                      # the same weights as these blocks have in the whole model
    stage.state_dict().keys()                           # model.layers.2.*, .3.*, .4.*: keys of the whole model

`Shape.family` is GPT-2's (learned positions, LayerNorm, GELU), Llama's (RoPE, RMSNorm, SwiGLU), Qwen2's (Llama's with
biases before attention) or Qwen3's (with norms of queries and keys). Parameters have the names of Hugging Face's
transformers, so a file of weights needs no conversion. A model built under `torch.device("meta")` becomes real with
`to_empty(device=...)`, `tie()` and `reset_parameters(seed)`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from cloudtrain.runtime import SetupError

BYTES = 256
"""The vocabulary where text is a row of bytes: nothing has to be learned or looked up before training."""

FAMILIES = ("gpt2", "llama", "qwen2", "qwen3")

NOT_LEARNED = -100
"""The expected output of a position from which nothing is learned: the next token begins another document."""


@dataclass(frozen=True)
class Shape:
    """The size and the family of the model. What is 0 follows from the rest."""

    layers: int = 8
    heads: int = 4
    width: int = 128  # of the residual stream; a multiple of `heads`, unless `head_width` is given
    context: int = 128  # tokens that the model sees at once
    vocabulary: int = BYTES
    family: str = "gpt2"
    # heads of keys and values, each for several heads of queries (GQA); else as many as `heads`
    kv_heads: int = 0
    head_width: int = 0  # else `width` / `heads`
    # else 4 times `width` for gpt2, and 8/3 rounded up to a multiple of 256 for the others
    feed_width: int = 0
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    tied: bool = False  # the head has the embedding's weights

    def __post_init__(self) -> None:
        wide = 4 * self.width if self.family == "gpt2" else -(-8 * self.width // 3 // 256) * 256
        usual = {"kv_heads": self.heads, "head_width": self.width // self.heads, "feed_width": wide}
        for name, value in usual.items():
            object.__setattr__(self, name, getattr(self, name) or value)

    @property
    def block_count(self) -> int:
        """Return the number of all blocks: the embedding, the layers and the head."""
        return self.layers + 2

    def norm(self, width: int) -> nn.Module:
        """Make a norm over `width` numbers."""
        return (nn.LayerNorm if self.family == "gpt2" else nn.RMSNorm)(width, eps=self.norm_eps)


class Seen(NamedTuple):
    """What each position sees of the others: rotations for RoPE, and a mask. Without a mask it is all before it.

    `gather` puts the keys and values of all processes together that share a window (context parallelism).
    """

    cos: Tensor | None = None
    sin: Tensor | None = None
    mask: Any = None
    gather: Any = None


def seen_by(
    shape: Shape,
    length: int,
    device: torch.device,
    documents: Tensor | None,
    positions: Tensor | None,
    gather: Any,
) -> Seen:
    """Return what the positions of a window see. `documents` (batch, length) has a number for each document; tokens of
    different documents do not see each other. `positions` are those of this process, where it has not all of them."""
    here = torch.arange(length, device=device) if positions is None else positions
    cos = sin = None
    if shape.family != "gpt2":
        half = (
            torch.arange(0, shape.head_width, 2, device=device, dtype=torch.float32)
            / shape.head_width
        )
        angles = here[:, None].float() / shape.rope_theta**half
        angles = torch.cat((angles, angles), -1)
        # (length, 1, head_width): the same for all heads
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    everywhere, of_keys = here, documents
    if gather is not None:
        everywhere = gather(here[None], 1)[0]
        of_keys = None if documents is None else gather(documents, 1)
    return Seen(cos, sin, mask_of(here, everywhere, documents, of_keys), gather)


def mask_of(
    here: Tensor, everywhere: Tensor, documents: Tensor | None, of_keys: Tensor | None
) -> Any:
    """Return which keys (columns) each query (row) sees; None if those are all before it. On GPUs it is a mask of
    blocks for `flex_attention`, which computes no block that nobody sees."""
    if documents is None and here is everywhere:
        return None
    if here.is_cuda:
        return blocks_of(here, everywhere, documents, of_keys)
    before = everywhere[None, :] <= here[:, None]
    if documents is None or of_keys is None:
        return before
    same = documents[:, :, None] == of_keys[:, None, :]
    return (same & before)[:, None]


def blocks_of(
    here: Tensor, everywhere: Tensor, documents: Tensor | None, of_keys: Tensor | None
) -> Any:
    """Return the same as a mask of blocks."""
    from torch.nn.attention.flex_attention import create_block_mask

    def sees(row: Any, _head: Any, query: Any, key: Any) -> Any:
        before = everywhere[key] <= here[query]
        if documents is None or of_keys is None:
            return before
        return before & (documents[row, query] == of_keys[row, key])

    rows = None if documents is None else len(documents)
    return create_block_mask(sees, rows, None, len(here), len(everywhere), device=str(here.device))


@cache
def compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Any) -> Tensor:
    """Return attention over (batch, heads, length, head_width), by the fastest way for the mask: flash attention
    without one, a mask on CPUs, `flex_attention` on GPUs."""
    grouped: dict[str, Any] = {"enable_gqa": True} if queries.shape[1] != keys.shape[1] else {}
    if mask is None or isinstance(mask, Tensor):
        return functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None, **grouped
        )
    from torch.nn.attention.flex_attention import flex_attention

    flex = flex_attention if torch.compiler.is_compiling() else compiled_flex()
    seen: Tensor = flex(queries, keys, values, block_mask=mask, **grouped)
    return seen


def rotated(x: Tensor, seen: Seen) -> Tensor:
    """Turn each pair of numbers of (batch, length, heads, head_width) by an angle that grows with the position."""
    if seen.cos is None or seen.sin is None:
        return x
    first, second = x.chunk(2, -1)
    return x * seen.cos.to(x.dtype) + torch.cat((-second, first), -1) * seen.sin.to(x.dtype)


class Attention(nn.Module):
    """Attention in which every position looks back at all positions before it.

    `forward` derives the number of heads from the shapes of the projections. A slice of their rows is therefore a slice
    of the heads, which is what tensor parallelism cuts.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_width, has_bias = shape.head_width, shape.family == "qwen2"
        for_queries, for_keys = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
        self.q_proj = nn.Linear(shape.width, for_queries, bias=has_bias)
        self.k_proj = nn.Linear(shape.width, for_keys, bias=has_bias)
        self.v_proj = nn.Linear(shape.width, for_keys, bias=has_bias)
        self.o_proj = nn.Linear(for_queries, shape.width, bias=False)
        if shape.family == "qwen3":
            self.q_norm, self.k_norm = shape.norm(shape.head_width), shape.norm(shape.head_width)

    def forward(self, x: Tensor, seen: Seen) -> Tensor:
        batch, length, _ = x.shape
        parts = (
            layer(x).view(batch, length, -1, self.head_width)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        queries, keys, values = parts
        if hasattr(self, "q_norm"):
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries, keys = rotated(queries, seen), rotated(keys, seen)
        if seen.gather is not None:
            keys, values = seen.gather(keys, 1), seen.gather(values, 1)
        found = attend(
            queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), seen.mask
        )
        return self.o_proj(found.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    """Feed-forward of each position by itself: wider, and back. SwiGLU has a third matrix, which lets numbers pass."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        if shape.family != "gpt2":
            self.gate_proj = nn.Linear(shape.width, shape.feed_width, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.feed_width, bias=False)
        self.down_proj = nn.Linear(shape.feed_width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if hasattr(self, "gate_proj"):
            return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return self.down_proj(functional.gelu(self.up_proj(x)))


class Layer(nn.Module):
    """Blocks 1 to `layers`. Attention, then feed-forward, both around a residual connection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = shape.norm(shape.width)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = shape.norm(shape.width)
        self.mlp = FeedForward(shape)

    def forward(self, x: Tensor, seen: Seen) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), seen)
        return x + self.mlp(self.post_attention_layernorm(x))


class GPT(nn.Module):
    """The blocks of a model, or some of them, one after the other.

    `blocks` names those that this module holds: all, or a slice that starts where another module ended. `tensor` is the
    number of processes that divide the positions between the layers (sequence parallelism).
    """

    lm_head: nn.Linear
    tensor = 1

    def __init__(self, shape: Shape, blocks: Iterable[int] | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.held = tuple(range(shape.block_count) if blocks is None else blocks)
        self.model = nn.Module()
        self.has_embedding, self.has_head = 0 in self.held, shape.block_count - 1 in self.held
        if self.has_embedding:
            self.model.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
            if shape.family == "gpt2":
                self.model.embed_positions = nn.Embedding(shape.context, shape.width)
        inner = [index for index in self.held if 0 < index < shape.block_count - 1]
        self.layers = {index: Layer(shape) for index in inner}
        self.model.layers = nn.ModuleDict(
            {str(index - 1): layer for index, layer in self.layers.items()}
        )
        if self.has_head:
            self.model.norm = shape.norm(shape.width)
            self.lm_head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.tie()

    @property
    def name(self) -> str:
        """Return what kind of block the first one is."""
        return "Embedding" if self.has_embedding else "Layer" if self.layers else "Head"

    def tie(self) -> None:
        """Give the head the embedding's weights, if the shape says so and both are here. What replaces parameters,
        such as `to_empty` or tensor parallelism, unties them without a word."""
        if self.shape.tied and self.has_embedding and self.has_head:
            self.lm_head.weight = self.model.embed_tokens.weight

    def parameters_by_block(self) -> dict[int, dict[str, nn.Parameter]]:
        """Return the parameters of each block, by their names in the whole model; a tied one belongs to block 0."""
        found: dict[int, dict[str, nn.Parameter]] = {index: {} for index in self.held}
        for name, parameter in self.named_parameters():
            words = name.split(".")
            index = (
                0
                if "embed_" in name
                else int(words[2]) + 1
                if words[1] == "layers"
                else self.shape.block_count - 1
            )
            found[index][name] = parameter
        return found

    def reset_parameters(self, seed: int) -> None:
        """Set initial weights: small normal numbers as in GPT-2; the more layers add to the residual stream, the
        smaller their contributions start. Each block has its own seed, so weights do not depend on which blocks are
        held here."""
        for index, named in self.parameters_by_block().items():
            device = next(iter(named.values())).device if named else torch.device("cpu")
            with (
                torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
                torch.no_grad(),
            ):
                torch.manual_seed(seed * 10_007 + index)
                for name, parameter in named.items():
                    # alone here, and equal to the embedding there
                    if self.shape.tied and name == "lm_head.weight":
                        torch.manual_seed(seed * 10_007)
                    reset(name, parameter, self.shape.layers)

    def forward(
        self, x: Tensor, documents: Tensor | None = None, positions: Tensor | None = None, gather: Any = None,
        following: Tensor | None = None, at_once: int = 0,
    ) -> Tensor:  # fmt: skip
        """Return the logits, or with `following` the sum of the losses, whose logits are computed and dropped again for
        about `at_once` tokens at a time (in training, a second time for the backward). A module without the head
        returns (batch, length, width)."""
        length = x.shape[1] * (1 if self.has_embedding else self.tensor)
        seen = seen_by(self.shape, length, x.device, documents, positions, gather)
        if self.has_embedding:
            tokens, x = x, self.model.embed_tokens(x)
            if self.shape.family == "gpt2":
                here = (
                    torch.arange(length, device=tokens.device) if positions is None else positions
                )
                x = x + self.model.embed_positions(here)
        for layer in self.layers.values():
            x = layer(x, seen)
        if not self.has_head:
            return x
        x = self.model.norm(x)
        if following is None:
            return self.lm_head(x)

        def loss(part: Tensor, expected: Tensor) -> Tensor:
            return loss_sum(self.lm_head(part), expected)

        parts = self._parts(x, following, at_once)
        if not torch.is_grad_enabled():
            return torch.stack([loss(*pair) for pair in parts]).sum()
        losses = [
            checkpoint(loss, *pair, use_reentrant=False, preserve_rng_state=False) for pair in parts
        ]
        return torch.stack(losses).sum()

    def _parts(self, x: Tensor, following: Tensor, at_once: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Cut positions into parts of about `at_once` tokens. Each process along `tensor` cuts its own positions, and
        the head gathers them in the order of the processes."""
        batch, length, _ = x.shape
        expected = following.view(batch, self.tensor, length)
        each = max(1, at_once // (batch * self.tensor))
        for start in range(0, length, each):
            yield x[:, start : start + each], expected[:, :, start : start + each].flatten(1)


def slices_of(shape: Shape) -> list[GPT]:
    """Return the three kinds of blocks as models of their own: the embedding, a layer and the head."""
    return [GPT(replace(shape, layers=1), [index]) for index in range(3)]


def reset(name: str, parameter: Tensor, layers: int) -> None:
    """Set one parameter's initial numbers."""
    if name.endswith("bias"):
        parameter.zero_()
    elif "norm" in name:
        parameter.fill_(1.0)
    else:
        is_last = "o_proj" in name or "down_proj" in name
        parameter.normal_(std=0.02 / math.sqrt(2 * layers) if is_last else 0.02)


def loss_of(logits: Tensor, following: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next token, in nats. `following` is (batch, length)."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), following.flatten())


def loss_sum(logits: Tensor, following: Tensor) -> Tensor:
    """Return the sum of the cross-entropies, in nats."""
    return functional.cross_entropy(
        logits.flatten(0, 1).float(), following.flatten(), reduction="sum"
    )


def tokens_to_learn(following: Tensor, is_shared: bool) -> Tensor:
    """Return the number of tokens to learn from, as a mean over the processes that average gradients. Windows with
    borders of documents have fewer, and each token of the batch counts the same. Each share is on equally many
    processes."""
    count = (following != NOT_LEARNED).sum().float()
    if is_shared:
        dist.all_reduce(count)
        count /= dist.get_world_size()
    return count.clamp(min=1e-6)


def logits_in_parts(tensor: int) -> contextlib.AbstractContextManager[None]:
    """Return the loss from divided logits. With tensor parallelism the vocabulary is divided, so no process holds all
    logits, and cross-entropy is added up."""
    if tensor == 1:
        return contextlib.nullcontext()
    from torch.distributed.tensor.parallel import loss_parallel

    return loss_parallel()


def parameters_of(blocks: Iterable[nn.Module]) -> int:
    """Return the number of trainable numbers."""
    return sum(parameter.numel() for block in blocks for parameter in block.parameters())


def flops_per_token(shape: Shape) -> int:
    """Return the floating-point operations of forward and backward for one token: 6 for every weight that is multiplied
    with, 12 * heads * head_width * context for the attention of each layer (as if it saw the whole context: the
    convention of PaLM's appendix B and of nanoGPT)."""
    attention = 2 * shape.width * (shape.heads + shape.kv_heads) * shape.head_width
    feed = (2 if shape.family == "gpt2" else 3) * shape.width * shape.feed_width
    in_head = shape.width * shape.vocabulary
    looking_back = 12 * shape.layers * shape.heads * shape.head_width * shape.context
    return 6 * (shape.layers * (attention + feed) + in_head) + looking_back


def read_text(folder: Path | None = None) -> Tensor:
    """Return all `*.txt` files of a folder, as bytes; without a folder, the 466 kB of English in Python's own help (PSF
    licence)."""
    if folder is None:
        from pydoc_data.topics import topics  # the language reference, as `help()` shows it

        content = "\n".join(topics[name] for name in sorted(topics)).encode()
    else:
        content = b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*.txt")))
    if not content:
        raise SetupError(f"there is no text in `{folder}`", hint="put `*.txt` files there")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def divided(text: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Return the text to learn from, and its last tenth, which is for the test.

    Raises:
        SetupError: that tenth is too short for a window.
    """
    train, test = text[: -len(text) // 10], text[-len(text) // 10 :]
    if len(test) <= context:
        raise SetupError(
            f"the text has {len(text):,} bytes, and its last tenth no window of `--context` {context}",
            hint="give more text, or a smaller `--context`",
        )
    return train, test


def windows_at(text: Tensor, starts: Sequence[int] | Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Return windows of text, and the same windows one byte later: inputs and expected outputs, (count, context)
    each."""
    places = torch.as_tensor(starts)[:, None] + torch.arange(context + 1)
    windows = text[places].long()
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def starts_at(step: int, *, count: int, text: Tensor, context: int, seed: int) -> Tensor:
    """Return where the windows of one step start. It depends only on seed and step, so neither the number of processes
    nor an interruption changes what is learned."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    return torch.randint(len(text) - context, (count,), generator=generator)
