"""Train a GPT-2 with SageMaker's model parallel library, version 1: pipeline over partitions, data parallel around it.

    cloudtrain submit ../../smp_gpt2.yaml --target sagemaker

`smdistributed.modelparallel` exists only in SageMaker's images, so this script runs only there. What the library
does: `smp.DistributedModel` cuts the model into `partitions` by memory and compute (`auto_partition`), `@smp.step`
cuts the batch into `microbatches` and sends them through the pipeline, and `smp.DistributedOptimizer` keeps each
partition's state where its parameters are.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import smdistributed.modelparallel.torch as smp
import torch
from torch import nn

from cloudtrain import runtime


@dataclass
class Config:
    steps: int = 500
    batch: int = 32  # sequences per step and data parallel group; a multiple of `microbatches`
    context: int = 512  # tokens (bytes of text) that the model sees at once
    layers: int = 12
    heads: int = 12
    width: int = 768
    learning_rate: float = 3e-4
    report_every: int = 10  # steps
    seed: int = 1


class Block(nn.Module):
    """Attention to what came before, then a feed-forward layer; both around a residual connection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.before_attention = nn.LayerNorm(config.width)
        self.queries_keys_values = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.before_feed = nn.LayerNorm(config.width)
        self.feed = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width),
        )
        hidden = torch.triu(
            torch.ones(config.context, config.context, dtype=torch.bool), diagonal=1
        )
        self.register_buffer("hidden", hidden, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.queries_keys_values(self.before_attention(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        # PyTorch 1.13 has no fused attention to call
        scores = q @ k.transpose(2, 3) / math.sqrt(width // self.heads)
        seen = scores.masked_fill(self.hidden[:length, :length], float("-inf")).softmax(3) @ v
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.before_feed(x))


class GPT2(nn.Module):
    """Predicts the next byte. Returns logits, (batch, length, 256)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, config.width)
        self.positions = nn.Parameter(0.02 * torch.randn(config.context, config.width))
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.last_norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, 256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        return self.head(self.last_norm(self.blocks(x)))


def read_text(folder: Path) -> torch.Tensor:
    """All `*.txt` files as one row of bytes."""
    content = b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*.txt")))
    if not content:
        raise SystemExit(f"error: there is no text in `{folder}`\n\nhint: put `*.txt` files there")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).long()


config = runtime.arguments(Config)
smp.init()
torch.cuda.set_device(smp.local_rank())
torch.manual_seed(config.seed)
text = read_text(runtime.input_dir("text"))
# ranks of one pipeline see the same batch
random = torch.Generator().manual_seed(config.seed * 1_009 + smp.dp_rank())

model = smp.DistributedModel(GPT2(config))
optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=config.learning_rate))


@smp.step
def forward_and_backward(tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """One microbatch; the library calls it for each."""
    logits = model(tokens)
    loss = nn.functional.cross_entropy(logits.view(-1, 256), following.view(-1))
    model.backward(loss)
    return loss


for step in range(1, config.steps + 1):
    starts = torch.randint(len(text) - config.context - 1, (config.batch,), generator=random)
    window = torch.stack(
        [text[start : start + config.context + 1] for start in starts.tolist()]
    ).cuda()
    optimizer.zero_grad()
    loss = forward_and_backward(
        window[:, :-1].contiguous(), window[:, 1:].contiguous()
    ).reduce_mean()
    optimizer.step()
    if step % config.report_every == 0 and smp.rank() == 0:
        runtime.report(step=step, loss=loss)

smp.save_checkpoint(
    str(runtime.model_dir()), tag="last", partial=False, model=model, optimizer=optimizer
)
