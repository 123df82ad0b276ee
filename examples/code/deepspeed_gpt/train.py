"""Train a GPT-2 on the bytes of any text with DeepSpeed: ZeRO stage 2 over all GPUs of all instances.

    torchrun --nproc-per-node 2 train.py --steps 20
    cloudtrain submit ../../deepspeed_gpt.yaml --target azureml

Whoever starts the processes tells them their ranks (torchrun, or Azure ML itself): no `deepspeed` command, no hostfile,
no ssh. Batch, precision, ZeRO and optimizer are in ds_config.json.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

from cloudtrain import runtime


@dataclass
class Config:
    deepspeed_config: str = "ds_config.json"
    steps: int = 1000  # optimizer steps
    context: int = 1024  # tokens (bytes of text) that the model sees at once
    layers: int = 24
    heads: int = 16
    width: int = 1024
    report_every: int = 10  # steps
    save_every: int = 200  # steps
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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.queries_keys_values(self.before_attention(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.before_feed(x))


class GPT2(nn.Module):
    """Predicts the next byte. Returns the mean loss, a scalar."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, config.width)
        self.positions = nn.Parameter(0.02 * torch.randn(config.context, config.width))
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.last_norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, 256, bias=False)

    def forward(self, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        logits = self.head(self.last_norm(self.blocks(x)))
        return nn.functional.cross_entropy(logits.float().view(-1, 256), following.reshape(-1))


def read_text(folder: Path) -> torch.Tensor:
    """All `*.txt` files as one row of bytes."""
    content = b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*.txt")))
    if not content:
        raise SystemExit(f"error: there is no text in `{folder}`\n\nhint: put `*.txt` files there")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


config = runtime.arguments(Config)
torch.manual_seed(config.seed)
group = runtime.init_process_group()
runtime.watch_for_stop()
text = read_text(runtime.input_dir("text"))
settings = json.loads(Path(config.deepspeed_config).read_text())
model = GPT2(config)
engine, _, _, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config=settings
)

# DeepSpeed's checkpoints are folders that all ranks write together; `latest` in them names the last
# whole one.
checkpoints = str(runtime.checkpoint_dir())
resumed, _ = (
    engine.load_checkpoint(checkpoints) if Path(checkpoints, "latest").exists() else (None, None)
)
parts, part = engine.gradient_accumulation_steps(), 0
total = torch.zeros((), device=engine.device)

while engine.global_steps < config.steps:
    # The data of a step follows from the step, so a resumed run sees what the interrupted one would
    # have seen.
    place = (engine.global_steps * parts + part) * group.world_size + group.rank
    random = torch.Generator().manual_seed(config.seed * 1_000_003 + place)
    starts = torch.randint(
        len(text) - config.context - 1, (engine.train_micro_batch_size_per_gpu(),), generator=random
    ).tolist()
    window = (
        torch.stack([text[start : start + config.context + 1] for start in starts])
        .long()
        .to(engine.device)
    )
    loss = engine(window[:, :-1], window[:, 1:])
    engine.backward(loss)
    total += loss.detach()
    part = (part + 1) % parts
    at_boundary = engine.is_gradient_accumulation_boundary()
    engine.step()
    if not at_boundary:
        continue
    step, stop = engine.global_steps, runtime.should_stop()
    if step % config.report_every == 0:
        dist.all_reduce(total)
        runtime.report(step=step, total=config.steps, loss=total / (parts * group.world_size))
    total.zero_()
    if stop or step % config.save_every == 0 or step == config.steps:
        engine.save_checkpoint(checkpoints)
    if stop and step < config.steps:
        runtime.exit_preempted(step)

if group.is_main:
    torch.save(model.state_dict(), runtime.model_dir() / "model.pt")
runtime.destroy_process_group()
