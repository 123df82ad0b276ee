"""Train ResNet50 split over two devices, and pipelined: PyTorch's model-parallel tutorial, made real.

One process: a stage on each GPU; with one GPU or none, two stages on what there is:
    python train.py

Two processes, each with a stage of its own: over GPUs, machines, or CPU cores that stand for devices:
    torchrun --nproc-per-node 2 train.py

The three models of the tutorial are two numbers: one device; split without pipelining; pipelined:
    python train.py --stages 1 --split_size 24
    python train.py --split_size 24
    python train.py --split_size 12

Measure all three, sweep over split sizes, draw the three plots into `plots/`; with the tutorial's own numbers:
    python train.py --experiment
    python train.py --as_tutorial

As a job: this machine, Amazon SageMaker, Azure Machine Learning:
    cloudtrain submit job.yaml
    cloudtrain submit job.yaml --target sagemaker
    cloudtrain submit job.yaml --target azureml

Stop it with SIGTERM (or lose the spot instance) and run it again, with any number of stages and processes: it continues
from its last checkpoint.
"""

import math
import os
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn

try:
    from cloudtrain import runtime
# not installed; in a checkout it stands two folders up, and the runtime is plain Python
except ModuleNotFoundError:
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent))
    from cloudtrain import runtime

from data import load_digits, load_folder
from place import cut, find_place, parts_of, stage_table
from resnet import MODELS


@dataclass
class Config:
    model: Literal["resnet50", "resnet14", "toy"] = "resnet50"
    norm: Literal["batch", "group"] = "batch"  # group: nothing depends on how the batch is split
    # images: the input `images`, a folder of pictures for each class
    data: Literal["digits", "images"] = "digits"
    image_size: int = 32  # pixels a side
    batch: int = 24  # images per optimizer step
    split_size: int = 12  # images of a microbatch; the whole batch: no pipelining
    # else one per process; in one process one per GPU: two at least, at most microbatches
    stages: int | None = None
    # pieces that begin a stage (`layer3.0`); else balanced by time
    cuts: list[str] = field(default_factory=list)
    # GPUs of one process: copies beside the computing; False copies as the tutorial does
    overlap: bool = True
    device: Literal["auto", "cpu", "cuda"] = "auto"
    backend: str = "auto"  # smddp, nccl, gloo, or auto for the best that runs here
    precision: Literal["fp32", "bf16"] = "fp32"  # bf16, in one process: convolutions by autocast
    tf32: bool = False  # GPUs: fp32 products with three digits, several times as fast
    threads: int = 1  # of each process on CPU; one, because a core stands for a device
    steps: int = 60
    # peak; rises over the first tenth, then falls to zero along a cosine
    learning_rate: float = 0.003
    momentum: float = 0.9
    weight_decay: float = 1e-4
    seed: int = 1
    deterministic: bool = True  # equal runs give equal losses; False: the fastest kernels
    report_every: int = 5  # steps
    checkpoint_every: int = 20  # steps
    step_delay: float = 0.0  # seconds of sleep after each step, to watch or interrupt a run
    experiment: bool = False  # measure instead of training
    as_tutorial: bool = False  # measure what the tutorial measures, with its numbers
    # with either: a narrow network and few repeats, to see that everything works
    tiny: bool = False
    splits: list[int] = field(default_factory=list)  # with either: the split sizes of the sweep
    repeats: int = 5  # with either: measurements of each
    batches: int = 1  # with either: training steps in a measurement


AT_LEAST = {
    "image_size": 1, "batch": 1, "split_size": 1, "stages": 1, "threads": 1, "steps": 0, "momentum": 0,
    "report_every": 1, "checkpoint_every": 1, "step_delay": 0, "splits": 1, "repeats": 1, "batches": 1,
}  # fmt: skip

config = runtime.arguments(Config, at_least=AT_LEAST)
has_gpu = config.device != "cpu" and torch.cuda.is_available()
measures = config.experiment or config.as_tutorial
if measures:
    import experiment

    sizes = (
        experiment.TUTORIAL if config.as_tutorial else experiment.SIZES["gpu" if has_gpu else "cpu"]
    )
    if config.tiny:
        sizes = experiment.TINY_TUTORIAL if config.as_tutorial else experiment.SIZES["tiny"]
    config = runtime.arguments(replace(Config(), **sizes), at_least=AT_LEAST)
for option, split_sizes in {
    "split_size": [config.split_size],
    "splits": config.splits if measures else [],
}.items():
    for size in split_sizes:
        if config.batch % size:
            raise runtime.SetupError(
                f"{config.batch} images cannot be divided into microbatches of {size}",
                hint=f"use divisors of {config.batch} in `--{option}`",
            )
        if (
            size == 1
            and config.image_size <= 32
            and config.norm == "batch"
            and config.model != "toy"
        ):
            raise runtime.SetupError(
                "BatchNorm has nothing to average over in a microbatch of one image of 32 pixels",
                hint="use `--norm group`, `--image_size 64` or larger microbatches",
            )
if measures and not has_gpu and runtime.detect_environment().world_size == 1:
    runtime.notice("no GPU is used: two processes stand for two devices")
    sys.stderr.flush()
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    os.execv(sys.executable, [*launcher, *sys.argv])

runtime.use_determinism(config.deterministic, warn_only=True)
# try the ways to convolve, and take the fastest
torch.backends.cudnn.benchmark = not config.deterministic
torch.manual_seed(config.seed)  # the same initial weights everywhere
torch.set_num_threads(config.threads)
runtime.use_tf32(config.tf32)
group = runtime.init_process_group(config.backend, sends=True)
runtime.watch_for_stop()
microbatches = config.batch // config.split_size
place = find_place(group.world_size, group.backend, config.device, config.stages, microbatches)
if place.across and config.precision == "bf16":
    raise runtime.SetupError(
        "stages in several processes compute in fp32", hint="leave `--precision` out"
    )
if group.is_main:
    print(f"{len(place.devices)} stages; {place.words}; backend {group.backend}", flush=True)

# The data: a fixed fifth is the test set, whatever the seed. It stays in host memory.
images = (
    load_digits()
    if config.data == "digits"
    else load_folder(runtime.input_dir("images"), config.image_size)
)
shuffled = torch.randperm(len(images.labels), generator=torch.Generator().manual_seed(0))
test, train = shuffled[: len(shuffled) // 5], shuffled[len(shuffled) // 5 :]
steps_per_epoch = len(train) // config.batch
if not steps_per_epoch:
    raise runtime.SetupError(
        f"`--batch {config.batch}` of {len(train)} images", hint="give at most as many"
    )


def batch_at(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and labels of one step. They depend only on seed and step, so neither stages nor an interruption
    change what is learned."""
    epoch, position = divmod(step, steps_per_epoch)
    order = torch.randperm(
        len(train), generator=torch.Generator().manual_seed(config.seed * 100_003 + epoch)
    )
    return images.batch(train[order[position * config.batch :][: config.batch]], config.image_size)


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return a microbatch's part of the mean over the batch: a scaled sum, so that the parts add up."""
    return nn.functional.cross_entropy(logits, labels, reduction="sum") / config.batch


if measures:
    experiment.run(config, place, batch_at(0), loss_of)
    runtime.destroy_process_group()
    sys.exit(0)

# The model is made whole on the host, resumed, cut, and each part moved to its device. A process
# forgets the weights of parts that others hold; the names stay.
checkpoints = runtime.Checkpoints()
model = MODELS[config.model](images.classes, config.image_size, config.norm).to(
    memory_format=torch.channels_last
)
resumed = checkpoints.load()
if resumed:
    model.load_state_dict(resumed.state["model"])
    runtime.notice(f"resumed from step {resumed.step}")
pieces = model.pieces()
example, _ = batch_at(0)
cuts, costs = cut(place, pieces, example[: config.split_size], config.cuts)
if group.is_main:
    print(stage_table(place, pieces, cuts, costs), flush=True)
pipeline = place.pipeline(
    parts_of(pieces, cuts),
    example,
    config.split_size,
    loss_of,
    config.overlap,
    config.precision == "bf16",
)

mine = {name: parameter for name, parameter in model.named_parameters() if not parameter.is_meta}
optimizer = torch.optim.SGD(
    mine.values(),
    lr=config.learning_rate,
    momentum=config.momentum,
    weight_decay=config.weight_decay,
)
if resumed:
    for name, momentum in resumed.state["momentum"].items():
        if name in mine:
            optimizer.state[mine[name]]["momentum_buffer"] = momentum.to(mine[name].device)
    runtime.restore_random_states(resumed.state.get("random"))


def whole_state() -> dict[str, dict[str, torch.Tensor]]:
    """Return weights and momentum by name, on the main process those of all stages, elsewhere of one stage. The result
    does not depend on the cuts."""
    momentum = {
        name: optimizer.state[parameter].get("momentum_buffer") for name, parameter in mine.items()
    }
    here = {
        "model": {
            name: tensor.cpu() for name, tensor in model.state_dict().items() if not tensor.is_meta
        },
        "momentum": {name: tensor.cpu() for name, tensor in momentum.items() if tensor is not None},
    }
    stages = [here] * group.world_size
    if group.world_size > 1:
        dist.gather_object(here, stages if group.is_main else None)
    return {
        kind: {name: tensor for stage in stages for name, tensor in stage[kind].items()}
        for kind in here
    }


def save(step: int) -> None:
    # of all processes, for what a network of yours may draw: dropout
    random = runtime.random_states()
    checkpoints.save({**whole_state(), "random": random}, step)


def learning_rate_at(step: int) -> float:
    warm = min(1.0, (step + 1) / max(1, config.steps // 10))
    return config.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * step / config.steps))


def test_accuracy() -> float:
    model.eval()
    correct = 0
    for numbers in test.split(config.batch):
        pixels, labels = images.batch(numbers, config.image_size)
        correct += int((pipeline.predict(pixels).argmax(1).cpu() == labels).sum())
    model.train()
    return correct / len(test)


started = time.perf_counter()
first_step = resumed.step if resumed else 0
for step in range(first_step, config.steps):
    for parameter_group in optimizer.param_groups:
        parameter_group["lr"] = learning_rate_at(step)
    loss = pipeline.step(*batch_at(step))
    optimizer.step()
    optimizer.zero_grad()

    done = step + 1
    if done % config.report_every == 0 or done == first_step + 1:
        runtime.report(
            step=done, total=config.steps, epoch=done / steps_per_epoch, loss=pipeline.shared(loss)
        )
    if done % config.checkpoint_every == 0 or done == config.steps:
        save(done)
    if config.step_delay:
        time.sleep(config.step_delay)
    if runtime.should_stop() and done < config.steps:
        save(done)
        runtime.exit_preempted(done)

rate = (config.steps - first_step) * config.batch / (time.perf_counter() - started)
accuracy = test_accuracy()
runtime.report(step=config.steps, test_accuracy=accuracy)
state = whole_state()
if group.is_main:
    torch.save(state["model"], runtime.model_dir() / "model.pt")
    print(
        f"test accuracy {accuracy:.4f} after {config.steps} steps, {rate:.1f} images per second",
        flush=True,
    )
runtime.destroy_process_group()
