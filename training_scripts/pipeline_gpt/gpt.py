"""A GPT for text as bytes, made to be cut: it is one list of blocks, and any slice of the list is a model, too.

    whole = GPT(Shape(layers=8))                        # blocks 0 to 9: the embedding, 8 layers, the head
    stage = GPT(Shape(layers=8), blocks=range(3, 6))    # a pipeline stage: takes and returns (batch, length, width)
    stage.reset_parameters(seed=1)                      # the same weights as these blocks have in the whole model
    stage.state_dict().keys()                           # blocks.3.*, blocks.4.*, blocks.5.*: keys of the whole model

Nothing is computed from outside a block's own parameters: no buffers, no weights tied between embedding and head. A
model built under `torch.device("meta")` becomes real with `to_empty(device=...)` and `reset_parameters(seed)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloudtrain.runtime import SetupError

BYTES = 256
"""The vocabulary: text is a row of bytes, so nothing has to be learned or looked up before training."""


@dataclass(frozen=True)
class Shape:
    """The size of the model."""

    layers: int = 8
    heads: int = 4
    width: int = 128  # of the residual stream; a multiple of `heads`
    context: int = 128  # bytes that the model sees at once
    vocabulary: int = BYTES

    @property
    def block_count(self) -> int:
        """Return the number of all blocks: the embedding, the layers and the head."""
        return self.layers + 2


class Embedding(nn.Module):
    """Block 0: bytes to vectors, (batch, length) to (batch, length, width), from the byte and its position."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)

    def reset_parameters(self) -> None:
        """Fill with small normal numbers, as in GPT-2."""
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))


class Attention(nn.Module):
    """Attention in which every position looks back at all positions before it.

    The rows of `queries_keys_values` are ordered by head, then query, key, value, and `forward` derives the number of
    heads from their shape. A slice of the rows is therefore a slice of the heads, which is what tensor parallelism
    cuts.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_width = shape.width // shape.heads
        self.queries_keys_values = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        by_head = self.queries_keys_values(x).view(batch, length, -1, 3, self.head_width).transpose(1, 2)
        queries, keys, values = by_head.unbind(3)
        seen = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.out(seen.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    """Feed-forward of each position by itself: four times as wide, and back."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.wide = nn.Linear(shape.width, 4 * shape.width, bias=False)
        self.out = nn.Linear(4 * shape.width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(functional.gelu(self.wide(x)))


class Layer(nn.Module):
    """Blocks 1 to `layers`. Attention, then feed-forward, both around a residual connection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.layers = shape.layers
        self.attention_norm = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.feed_norm = nn.LayerNorm(shape.width)
        self.feed = FeedForward(shape)

    def reset_parameters(self) -> None:
        """Initialise as in GPT-2: the more layers add to the residual stream, the smaller their contributions start."""
        self.attention_norm.reset_parameters()
        self.feed_norm.reset_parameters()
        nn.init.normal_(self.attention.queries_keys_values.weight, std=0.02)
        nn.init.normal_(self.feed.wide.weight, std=0.02)
        for last in (self.attention.out, self.feed.out):
            nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * self.layers))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed(self.feed_norm(x))


class Head(nn.Module):
    """The last block: vectors to logits, (batch, length, width) to (batch, length, vocabulary)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        self.logits = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def reset_parameters(self) -> None:
        """Fill with small numbers, so that training starts from almost equal chances for all bytes: a loss of ln 256 =
        5.55."""
        self.norm.reset_parameters()
        nn.init.normal_(self.logits.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.norm(x))


def make_block(shape: Shape, index: int) -> nn.Module:
    """Make block `index` of the model, before initialisation by our rules."""
    if index == 0:
        return Embedding(shape)
    return Head(shape) if index == shape.block_count - 1 else Layer(shape)


class GPT(nn.Module):
    """The blocks of a model, or some of them, one after the other.

    `blocks` names those that this module holds: all, or a slice that starts where another module ended.
    """

    def __init__(self, shape: Shape, blocks: Iterable[int] | None = None) -> None:
        super().__init__()
        self.shape = shape
        held = range(shape.block_count) if blocks is None else blocks
        self.blocks = nn.ModuleDict({str(index): make_block(shape, index) for index in held})

    def reset_parameters(self, seed: int) -> None:
        """Set initial weights. Each block has its own seed, so they do not depend on which blocks are held here."""
        device = next(self.parameters()).device
        for index, block in self.blocks.items():
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                torch.manual_seed(seed * 10_007 + int(index))
                block.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks.values():
            x = block(x)
        return x


def loss_of(logits: Tensor, following: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next byte, in nats. `following` is (batch, length)."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), following.flatten())


def parameters_of(blocks: Iterable[nn.Module]) -> int:
    """Return the number of trainable numbers."""
    return sum(parameter.numel() for block in blocks for parameter in block.parameters())


def flops_per_token(shape: Shape) -> int:
    """Return the floating-point operations of forward and backward for one token: 6 for every weight that is multiplied
    with, 12 * width * context for the attention of each layer (as if it saw the whole context: the convention of PaLM's
    appendix B and of nanoGPT)."""
    in_layers = 12 * shape.width**2 * shape.layers
    in_head = shape.width * shape.vocabulary
    return 6 * (in_layers + in_head) + 12 * shape.layers * shape.width * shape.context


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
