"""Train a decoder with FSDP2, tensor parallelism, or both: one model, five layouts, the same losses.

One process, then two that shard the model, then four as two shards of two tensor-parallel processes:
    python train.py
    torchrun --nproc-per-node 2 train.py --layout fsdp
    torchrun --nproc-per-node 4 train.py --layout 2d --tensor 2

Options that change memory and speed and, but for bf16, no loss:
    torchrun --nproc-per-node 2 train.py --layout fsdp --reshard False --accumulate 2 --recompute selective
    torchrun --nproc-per-node 2 train.py --layout fsdp --precision bf16 --async_checkpoints

Your own text: *.txt, or files of tokens that prepare.py, nanoGPT or llm.c wrote, in data/text:
    python prepare.py --tokenizer gpt2
    torchrun --nproc-per-node 8 train.py --preset gpu-124m --evaluate_every 250

A Llama, Qwen2 or Qwen3 of Hugging Face, trained further on your text, so that transformers opens the result:
    python prepare.py --tokenizer Qwen3-0.6B
    torchrun --nproc-per-node 8 train.py --init_from Qwen3-0.6B --context 2048 --export hf
    torchrun --nproc-per-node 2 train.py --family llama --kv_heads 2 --tied --export hf

All layouts side by side, as a table:
    torchrun --nproc-per-node 4 train.py --compare

What each of 512 GPUs would hold, without one:
    python train.py --dry_run --world 512 --layout 2d --tensor 8 --preset 7b

How much of one GPU it uses (GPT-2's size):
    python train.py --preset gpu-124m

As a job: this machine, Amazon SageMaker, Azure Machine Learning:
    cloudtrain submit job.yaml
    cloudtrain submit job.yaml --target sagemaker
    cloudtrain submit job.yaml --target azureml

Stop it with SIGTERM (or lose the spot instance) and run it again, with any number of processes and any layout: it
continues from its last checkpoint, and the losses are those of a run that was never stopped.
"""

import sys
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
import torch.distributed as dist

try:
    from cloudtrain import runtime
# not installed; in a checkout it stands two folders up, and the runtime is plain Python
except ModuleNotFoundError:
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent))
    from cloudtrain import runtime

# In a checkout gpt.py stands only there (.cloudtraininclude); a copy and a bundle have it here.
sys.path.append(str(Path(__file__).resolve().parent.parent / "pipeline_gpt"))
from data import Batch, Feed, Text, moved
from huggingface import export, read_weights, start_of
from layouts import Grid, Spread, begin, check_hardware, collect_garbage, grid_of
from optimizing import Guard, learning_rate_at, make_adamw


@dataclass
class Config:
    # the kind of norms, positions and feed-forward
    family: Literal["gpt2", "llama", "qwen2", "qwen3"] = "gpt2"
    layers: int = 4
    heads: int = 4
    width: int = 128
    context: int = 64  # tokens that the model sees at once
    vocabulary: int = 256  # at least the 256 bytes, where no tokenizer was used
    # of keys and values, each for several heads of queries; 0: as many as `heads`
    kv_heads: int = 0
    head_width: int = 0  # 0: `width` / `heads`
    feed_width: int = 0  # 0: four times `width` for gpt2, 8/3 of it for the others
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    tied: bool = False  # the head has the embedding's weights
    # a folder of transformers: its shape and weights; else the input `base`, or data/base
    init_from: str = ""
    # a folder in the model directory for the model as transformers opens it; instead of model.pt
    export: str = ""
    steps: int = 60
    global_batch: int = 16  # windows of text per optimizer step, over all processes
    accumulate: int = 1  # parts into which each process cuts its share
    # sharded layouts scatter gradients with each part; False: only with the last, and until then each
    # process holds 4 bytes for every parameter of the model
    sync_each_part: bool = True
    # weights of the text's subfolders, as `web=0.7,code=0.3`; else all files, each window once
    mixture: str = ""
    learning_rate: float = 1e-3  # peak
    # wsd: stay, and decay at the end
    rate_schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    warmup_steps: int = -1  # -1: a tenth of the steps
    decay_share: float = 0.2  # of the steps, for `wsd`
    min_rate: float = 0.0  # the end of the decay, as a share of the peak
    weight_decay: float = 0.1  # of matrices; biases and norms do not decay
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0  # the largest norm that the gradient of the whole model may have
    # leave out steps whose gradient is so many times larger than usual, or not finite
    skip_spikes: float = 0.0
    seed: int = 1

    layout: Literal["ddp", "fsdp", "hsdp", "tp", "2d"] = "fsdp"
    replicas: int = 2  # of the sharded model, for `hsdp`
    tensor: int = 2  # processes that compute each layer together, for `2d`
    context_parallel: int = 1  # processes that share each window; for `ddp`, `fsdp` and `hsdp`
    # give gathered parameters back after the forward (ZeRO 3), or keep them (ZeRO 2)
    reshard: bool = True
    # to compute with; weights and gradients' sums stay fp32
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    # activations computed again instead of kept
    recompute: Literal["none", "selective", "full"] = "none"
    # tokens whose logits a step holds, computed twice; 0: all, once. For large vocabularies
    logits_at_once: int = 0
    compile: bool = False  # torch.compile for each block and the loss
    tf32: bool = False  # GPUs: fp32 products with three digits, several times as fast
    # matrix products in float8: Hopper and newer, with torchao and `--compile`
    float8: bool = False
    # tensor parallelism's messages beside its products: NVLink, with `--compile`
    async_tensor: bool = False

    async_checkpoints: bool = False  # write while training goes on
    keep: int = 3  # checkpoints
    checkpoint_every: int = 20  # steps; 0 saves only when stopped
    report_every: int = 5  # steps
    evaluate_every: int = 0  # steps between two looks at the held-out text; 0: only at the end
    evaluate_windows: int = 64  # of it
    profile: str = ""  # a trace of some steps on some ranks, as `10-12@0`
    deterministic: bool = True  # equal runs give equal losses; False: the fastest kernels
    backend: str = "auto"  # smddp, nccl, gloo, or auto for the best that runs here
    step_delay: float = 0.0  # seconds of sleep after each step, to watch or interrupt a run

    preset: Literal["", "gpu-124m", "7b"] = ""  # a row of PRESETS; what else is given wins over it
    compare: bool = False  # do not train; all layouts side by side
    dry_run: bool = False  # do not train; what each of `world` processes would hold
    world: int = 8  # processes of a dry run


PRESETS: dict[str, dict[str, Any]] = {
    "": {},
    # GPT-2 small, 124 million weights: the vocabulary of 50257 is padded to 50304, and the embedding
    # is tied to the head. Text stays bytes, which use 256 of the vocabulary.
    "gpu-124m": {
        "layers": 12, "heads": 12, "width": 768, "context": 1024, "vocabulary": 50304,
        "global_batch": 64, "accumulate": 2, "learning_rate": 6e-4, "report_every": 10, "checkpoint_every": 0,
        "precision": "bf16", "compile": True, "deterministic": False, "tied": True,
    },
    "7b": {
        "family": "llama", "layers": 32, "heads": 32, "width": 4096, "context": 4096, "vocabulary": 50304,
        "global_batch": 512, "learning_rate": 3e-4, "precision": "bf16", "recompute": "selective", "compile": True,
        "deterministic": False,
    },
}  # fmt: skip

AT_LEAST = {
    "layers": 1, "heads": 1, "width": 1, "context": 1, "vocabulary": 256, "steps": 0, "global_batch": 1,
    "accumulate": 1, "kv_heads": 0, "head_width": 0, "feed_width": 0, "rope_theta": 1, "norm_eps": 0,
    "warmup_steps": -1, "decay_share": 0, "min_rate": 0, "weight_decay": 0, "beta1": 0, "beta2": 0, "skip_spikes": 0,
    "context_parallel": 1, "logits_at_once": 0, "evaluate_every": 0, "evaluate_windows": 1, "replicas": 1,
    "tensor": 1, "keep": 1, "checkpoint_every": 0, "report_every": 1, "step_delay": 0, "world": 1,
}  # fmt: skip

config = runtime.arguments(Config, at_least=AT_LEAST)
if config.preset:
    config = runtime.arguments(replace(Config(), **PRESETS[config.preset]), at_least=AT_LEAST)

start = start_of(config, replace(Config(), **PRESETS[config.preset]))
if config.dry_run:
    from plan import print_plan

    print_plan(config)
    sys.exit()

group, device = begin(config)
check_hardware(config, group.device)

text = Text(config)
of_text = [text.tokens, config.mixture, config.context, config.seed]
first_position = 0  # windows of the user's text that were seen before `first_step`
first_step = 0


def windows_of(step: int, grid: Grid) -> Batch:
    """Return this process's windows for one step. Processes along `tensor` and `context` have the same."""
    position = first_position + (step - first_step) * config.global_batch
    return text.batch(step, position, grid.share_of(group.rank), grid.data)


feeds: dict[Grid, Feed] = {}


def share_at(step: int, grid: Grid) -> Batch:
    """Return this process's windows on the device, read ahead by a thread."""
    if grid not in feeds:
        feeds[grid] = Feed(lambda step: windows_of(step, grid), device)
    return feeds[grid].at(step)


def held_out_loss(spread: Spread) -> torch.Tensor:
    """Return the mean loss over the same held-out windows each time. Each process takes an equal share, because layouts
    exchange while they compute."""
    grid = spread.grid
    each = max(1, config.evaluate_windows // grid.data)
    first = grid.share_of(group.rank) * each
    batch = text.held_out(range(first, first + each), each * grid.data, config.seed)
    return mean_over_processes(spread.evaluate(*moved(batch, device)))


def make_optimizer(spread: Spread) -> torch.optim.AdamW:
    return make_adamw(spread.model.parameters(), config)


guards: defaultdict[Spread, Guard] = defaultdict(
    lambda: Guard(config.precision, config.skip_spikes)
)


def train_step(
    spread: Spread, optimizer: torch.optim.Optimizer, step: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make one step of the optimizer. Return this process's part of the mean loss, and the norm of the whole
    gradient."""
    for parameter_group in optimizer.param_groups:
        parameter_group["lr"] = learning_rate_at(step, config)
    return spread.take_step(optimizer, guards[spread], share_at(step, spread.grid), step + 1)


def mean_over_processes(value: torch.Tensor) -> torch.Tensor:
    """Return the mean over the batch."""
    dist.all_reduce(value)
    return value / group.world_size


if config.compare:
    from compare import compare

    compare(config, group, device, make_optimizer, train_step)
    runtime.destroy_process_group()
    sys.exit()

from meter import Meter  # noqa: E402
from saving import Saving  # noqa: E402

runtime.watch_for_stop()
grid = grid_of(config, group.world_size)
spread = Spread(config, grid, device)
if start:
    read_weights(spread.model, start)
optimizer = make_optimizer(spread)
guard = guards[spread]
saving = Saving(spread.model, optimizer, keep=config.keep, is_async=config.async_checkpoints)
if group.is_main:
    print(
        f"processes={group.world_size} layout={config.layout} replicate={grid.replicate} shard={grid.shard} "
        f"tensor={grid.tensor} context={grid.context} device={device.type} backend={group.backend}",
        flush=True,
    )
first_step = saving.load()
if first_step:
    runtime.notice(f"resumed from step {first_step}")
    first_position = saving.progress["windows"]
    if saving.progress.get("text", of_text) != of_text:
        runtime.notice(
            "the text, `--mixture`, `--context` or `--seed` has changed: its windows are others now"
        )
    guard.restore(saving.progress.get("guard", {}))


def save(step: int) -> None:
    if guard.is_used:
        runtime.check_finite(step, gradient_norm=norm)
    saving.save(step)


meter = Meter(spread.shape, device, group.world_size, is_bf16=config.precision == "bf16")
profile = runtime.StepProfile(config.profile)
started = time.perf_counter()
for step in range(first_step, config.steps):
    profile.begin(step + 1)
    loss, norm = train_step(spread, optimizer, step)
    meter.count(config.global_batch * config.context)
    collect_garbage(step)

    done = step + 1
    if done % config.report_every == 0 or done == first_step + 1:
        figures = {"loss": mean_over_processes(loss), "gradient_norm": norm}
        left_out = {"left_out": guard.left_out} if guard.left_out else {}
        runtime.report(step=done, total=config.steps, **figures, **left_out, **meter.window())
        if guard.is_used:
            runtime.check_finite(done, **figures)
    if config.evaluate_every and done % config.evaluate_every == 0:
        runtime.report(step=done, held_out_loss=held_out_loss(spread))
        meter.restart()
    windows = first_position + (done - first_step) * config.global_batch
    saving.progress = {"windows": windows, "guard": guard.state(), "text": of_text}
    saving.poll()
    if config.checkpoint_every and (done % config.checkpoint_every == 0 or done == config.steps):
        save(done)
        meter.restart()
    if config.step_delay:
        time.sleep(config.step_delay)
    if runtime.should_stop() and done < config.steps:
        save(done)
        saving.wait()
        runtime.exit_preempted(done)

profile.end()
saving.wait()
seconds, speed = time.perf_counter() - started, meter.summary()
test_loss = held_out_loss(spread)
runtime.report(step=config.steps, test_loss=test_loss)
if config.export:
    folder = runtime.model_dir() / config.export
    export(
        dict(spread.model.named_parameters()),
        spread.shape,
        folder,
        start,
        text.folder,
        is_main=group.is_main,
    )
else:
    weights = saving.weights()
    if group.is_main:
        torch.save(weights, runtime.model_dir() / "model.pt")
if group.is_main:
    print(speed)
    if saving.waited:
        print(
            f"{len(saving.waited)} checkpoints, for each of which training stood still {median(saving.waited):.3f} s"
        )
    print(f"test loss {test_loss:.4f} after {config.steps} steps, {seconds:.1f} s", flush=True)
runtime.destroy_process_group()
