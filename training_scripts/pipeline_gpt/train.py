"""Train a GPT cut into pipeline stages, with any schedule, replicated for data parallelism.

One process, then two stages, then four stages as two pipelines of two:
    python train.py
    torchrun --nproc-per-node 2 train.py
    torchrun --nproc-per-node 4 train.py --replicas 2

The schedules; the stages balanced by memory instead of by time:
    torchrun --nproc-per-node 2 train.py --schedule simple
    torchrun --nproc-per-node 2 train.py --schedule interleaved
    torchrun --nproc-per-node 2 train.py --schedule zero-bubble-v --balance memory

What the schedules cost, beside the theory, as tables, as a timeline and as a picture:
    torchrun --nproc-per-node 4 train.py --measure

Shards and tensor parallelism beside the stages; all such grids against one process:
    torchrun --nproc-per-node 8 train.py --shards 2 --tensor 2 --precision bf16
    torchrun --nproc-per-node 8 train.py --compare

Whether a large job fits its GPUs, seen on this machine without one:
    cloudtrain fit job_gpu_7b.yaml --target sagemaker

As a job: this machine, Amazon SageMaker, Azure Machine Learning; then with SageMaker's own library, smp:
    cloudtrain submit job.yaml
    cloudtrain submit job.yaml --target sagemaker
    cloudtrain submit job.yaml --target azureml
    cloudtrain submit job_smp.yaml --target sagemaker

Stop it with SIGTERM (or lose the spot instance) and run it again, with any number of stages and replicas and any
schedule: it continues from its last checkpoint, and the losses are those of a run that was never stopped.
"""

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

try:
    from cloudtrain import runtime
# not installed; in a checkout it stands two folders up, and the runtime is plain Python
except ModuleNotFoundError:
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent))
    from cloudtrain import runtime

# In a checkout some of these stand only there (.cloudtraininclude); a copy and a bundle have them
# here.
sys.path.append(str(Path(__file__).resolve().parent.parent / "gpt_fsdp"))
from balance import choose, cut_of, profile, table
from data import Batch, Feed, Text, moved
from gpt import loss_of, slices_of
from optimizing import clip_gradients, learning_rate_at, make_adamw
from schedules import chunks_of, most_held, order_of, stages_of

from cloudtrain.runtime.sharded import read_shards, write_shards


@dataclass
class Config:
    # the kind of norms, positions and feed-forward
    family: Literal["gpt2", "llama", "qwen2", "qwen3"] = "gpt2"
    layers: int = 8
    heads: int = 4
    width: int = 128
    context: int = 128  # tokens that the model sees at once
    vocabulary: int = 256  # at least the 256 bytes, where no tokenizer was used
    # of keys and values, each for several heads of queries; 0: as many as `heads`
    kv_heads: int = 0
    head_width: int = 0  # 0: `width` / `heads`
    feed_width: int = 0  # 0: four times `width` for gpt2, 8/3 of it for the others
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    tied: bool = False  # the head has the embedding's weights; for one stage
    # a folder of transformers: its shape and weights; else the input `base`, or data/base
    init_from: str = ""
    # a folder in the model directory for the model as transformers opens it; instead of model.pt
    export: str = ""
    steps: int = 60
    global_batch: int = 16  # windows of text per optimizer step, over all replicas
    microbatches: int = 8  # parts into which each replica cuts its share of the batch
    # weights of the text's subfolders, as `web=0.7,code=0.3`; else all files, each window once
    mixture: str = ""
    # peak. Three times as much is where training becomes chaotic: another order of
    learning_rate: float = 1e-3
    # additions then changes the losses in the second digit
    # wsd: stay, and decay at the end
    rate_schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    warmup_steps: int = -1  # -1: a tenth of the steps
    decay_share: float = 0.2  # of the steps, for `wsd`
    min_rate: float = 0.0  # the end of the decay, as a share of the peak
    weight_decay: float = 0.1  # of matrices; biases and norms do not decay
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0  # the largest norm that the gradient of the whole model may have
    seed: int = 1

    # bf16: parameters computed with; weights, gradients' sums stay fp32
    precision: Literal["fp32", "bf16"] = "fp32"
    # of the whole model; what replicas, shards and tensor leave of the processes are stages
    replicas: int = 1
    # processes that share the parameters of a stage, each with data of its own (FSDP2)
    shards: int = 1
    tensor: int = 1  # processes that compute each layer together (tensor parallelism)
    schedule: Literal["simple", "1f1b", "interleaved", "zero-bubble", "zero-bubble-v"] = "1f1b"
    # stages per process, for `interleaved` and `zero-bubble`; the others have 1, `zero-bubble-v`
    # has 2
    chunks: int = 2
    # activations computed again instead of kept
    recompute: Literal["none", "selective", "full"] = "none"
    compile: bool = False  # torch.compile for each layer
    # what the largest stage should have least of
    balance: Literal["time", "memory", "blocks"] = "time"
    # neighbouring processes are stages, or replicas
    placement: Literal["cluster", "spread"] = "cluster"

    deterministic: bool = True  # equal runs give equal losses; False: the fastest kernels
    tf32: bool = False  # GPUs: fp32 products with three digits, several times as fast
    backend: str = "auto"  # nccl, gloo, or auto for the best that runs here
    # smp: SageMaker's own library, which exists only there
    engine: Literal["torch", "smp"] = "torch"
    report_every: int = 5  # steps
    checkpoint_every: int = 20  # steps
    step_delay: float = 0.0  # seconds of sleep after each step, to watch or interrupt a run

    # do not train; the gradients of all grids of these processes, beside those of one process
    compare: bool = False
    measure: bool = False  # do not train; measure the schedules, and say how far theory is away
    experiments: list[Literal["exact", "bubble", "speed"]] = field(
        default_factory=lambda: ["exact", "bubble", "speed"]
    )
    repeat: int = 3  # times that each is measured; the median counts
    # seconds that a forward of one process takes where stages sleep instead of computing
    sleep: float = 0.04


AT_LEAST = {
    "layers": 1, "heads": 1, "width": 1, "context": 1, "vocabulary": 256, "kv_heads": 0, "head_width": 0,
    "feed_width": 0, "rope_theta": 1, "norm_eps": 0,
    "warmup_steps": -1, "decay_share": 0, "min_rate": 0, "weight_decay": 0, "beta1": 0, "beta2": 0,
    "steps": 0, "global_batch": 1, "microbatches": 1,
    "replicas": 1, "shards": 1, "tensor": 1, "chunks": 1, "report_every": 1, "checkpoint_every": 1, "step_delay": 0,
    "repeat": 1, "sleep": 0,
}  # fmt: skip

config = runtime.arguments(Config, at_least=AT_LEAST)
if config.engine == "smp":
    from smp_engine import train_with_smp

    train_with_smp(config)
    sys.exit()

# These need a newer PyTorch than smp has.
from huggingface import export, read_weights, start_of  # noqa: E402
from layouts import begin, collect_garbage, shape_of  # noqa: E402
from pipeline import Alone, Pipeline, Replicas, check, gather, make_stages, take_place  # noqa: E402

start = start_of(config, Config())
group, device = begin(config, sends=True)
if config.measure or config.compare:
    from compare import OF_GRIDS, compare
    from measure import measure

    if config.compare:
        compare(config, device, OF_GRIDS)
    else:
        measure(config, device)
    runtime.destroy_process_group()
    sys.exit()

runtime.watch_for_stop()
check(config, group.world_size)
shape = shape_of(config)
place = take_place(config, device)
chunks = chunks_of(config.schedule, config.chunks)
stage_count = place.processes * chunks if place.processes > 1 else 1
if group.is_main:
    print(
        f"processes={group.world_size} replicas={place.replicas} shards={place.shards} stages={stage_count} "
        f"tensor={place.tensor} schedule={config.schedule} "
        f"device={device.type} backend={group.backend}",
        flush=True,
    )

text = Text(config)


def share_at(step: int) -> Batch:
    """Return this process's part of the batch of one step. All processes of one pipeline get the same."""
    return text.batch(step, step * config.global_batch, place.share, place.shares)


# The split. Rank 0 measures a model of one layer at the size of a microbatch; all layers cost the
# same.
if stage_count > 1:
    costs = [None]
    if group.is_main:
        microbatch = share_at(0)[0].chunk(config.microbatches)[0].to(device)
        first, layer, last = profile(
            [one.to(device) for one in slices_of(shape)], microbatch, loss_of
        )
        costs = [[first, *[layer] * shape.layers, last]]
    dist.broadcast_object_list(costs, src=0)
    held = most_held(order_of(config.schedule, place.processes, config.microbatches, chunks))
    cut = cut_of(config)
    split = choose(costs[0], stage_count, held, config.balance, cut)
    holders = {
        s: p
        for p in range(place.processes)
        for s in stages_of(config.schedule, p, place.processes, chunks)
    }
    if group.is_main:
        print(table(costs[0], split, held, holders, cut), flush=True)
    modules = make_stages(
        shape, split, config.schedule, chunks, config.seed, place, config.precision, config
    )
    pipeline = Pipeline(modules, config.schedule, chunks, config.microbatches, place)
else:
    blocks = [range(shape.block_count)]
    modules = make_stages(shape, blocks, "simple", 1, config.seed, place, config.precision, config)
    pipeline = Alone(modules[0], config.microbatches, place)

if start:
    for module in modules.values():
        read_weights(module, start)
named = {
    name: parameter for module in modules.values() for name, parameter in module.named_parameters()
}
parameters = list(named.values())
optimizer = make_adamw(parameters, config)

# Resume: a checkpoint knows blocks and nothing of stages, so that each process takes what it holds
# now.
checkpoints = runtime.Checkpoints()
first_step = 0


def state_by_name(random: str = "") -> dict[str, object]:
    """Return this process's part of the state: parameters and their moments, by names that do not depend on the stages,
    and random states.
    """
    # AdamW makes its state with the first step; a checkpoint is read into it
    for parameter in parameters:
        if not optimizer.state[parameter]:
            moments = {
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
            optimizer.state[parameter].update(step=torch.zeros(()), **moments)
    moments = {name: optimizer.state[parameter] for name, parameter in named.items()}
    return {
        "model": {name: parameter.detach() for name, parameter in named.items()},
        "optimizer": moments,
        "random": random,
    }


loaded: dict[str, Any] = {}


def read(folder: Path) -> None:
    """Read this process's part of the state from a checkpoint. Parameters and moments are read in place."""
    loaded.update(loaded or state_by_name())
    read_shards(loaded, folder)


if saved := checkpoints.load_sharded(read):
    runtime.restore_random_states(loaded["random"])
    first_step = saved.step
    runtime.notice(f"resumed from step {first_step}")


def save(step: int) -> None:
    """Let every process write its part of the state. Only one replica writes a part that several hold."""
    runtime.check_finite(step, gradient_norm=norm)
    state = state_by_name(runtime.random_states())
    checkpoints.save_sharded(lambda folder: write_shards(state, folder), step)


def mean_of(loss: torch.Tensor) -> torch.Tensor:
    """Return the mean over the batch: the processes with the last stage have it, the others have 0."""
    dist.all_reduce(loss)
    return loss / (place.shares * place.tensor)


replicas = Replicas(modules, place, config.microbatches, overlaps="zero" not in config.schedule)
feed = Feed(share_at, device)
started = time.perf_counter()
for step in range(first_step, config.steps):
    for parameter_group in optimizer.param_groups:
        parameter_group["lr"] = learning_rate_at(step, config)
    loss = pipeline.step(*feed.at(step))
    replicas.wait()
    norm = clip_gradients(parameters, config.clip, place.model)
    optimizer.step()
    optimizer.zero_grad()
    collect_garbage(step)

    done = step + 1
    if done % config.report_every == 0 or done == first_step + 1:
        runtime.report(step=done, total=config.steps, loss=mean_of(loss), gradient_norm=norm)
        runtime.check_finite(done, gradient_norm=norm)
    if done % config.checkpoint_every == 0 or done == config.steps:
        save(done)
    if config.step_delay:
        time.sleep(config.step_delay)
    if runtime.should_stop() and done < config.steps:
        save(done)
        runtime.exit_preempted(done)

seconds = time.perf_counter() - started
weights = gather(shape, named, place)
if group.is_main and config.export:
    export(weights, shape, runtime.model_dir() / config.export, start, text.folder)
elif group.is_main:
    torch.save(weights, runtime.model_dir() / "model.pt")

# The test, through the same pipeline: a step whose gradients nobody uses.
batches = max(1, 32 // config.global_batch)
losses = []
each = config.global_batch // place.shares
for number in range(batches):
    first = number * config.global_batch + place.share * each
    batch = text.held_out(range(first, first + each), batches * config.global_batch, seed=0)
    losses.append(mean_of(pipeline.step(*moved(batch, device))))
    replicas.wait()
    optimizer.zero_grad()
test_loss = torch.stack(losses).mean().item()
runtime.report(step=config.steps, test_loss=test_loss)
if group.is_main:
    per_second = (config.steps - first_step) * config.global_batch * shape.context / seconds
    print(
        f"test loss {test_loss:.4f} after {config.steps} steps, {seconds:.1f} s, {per_second:,.0f} tokens/s",
        flush=True,
    )
runtime.destroy_process_group()
