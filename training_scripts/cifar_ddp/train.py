"""Train a residual network on CIFAR-10 with DistributedDataParallel and a real input pipeline.

One process, then two, then two with two loading workers each:
    python train.py
    torchrun --nproc-per-node 2 train.py
    torchrun --nproc-per-node 2 train.py --workers 2

CIFAR-10's python version is read from data/cifar, folder or archive; from elsewhere:
    CLOUDTRAIN_INPUT_CIFAR=cifar-10-python.tar.gz torchrun --nproc-per-node 8 train.py --width 64 --blocks 3 --epochs 30

As a job: this machine, Amazon SageMaker, Azure Machine Learning:
    cloudtrain submit job.yaml
    cloudtrain submit job.yaml --target sagemaker
    cloudtrain submit job.yaml --target azureml

Without CIFAR-10 it trains on 1,797 scans of handwritten digits in the same format, and says so.

Stop it with SIGTERM (or lose the spot instance) and run it again, with any number of processes: it continues from its
last checkpoint, and the losses are those of a run that was never stopped.
"""

import math
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

try:
    from cloudtrain import runtime
# not installed; in a checkout it stands two folders up, and the runtime is plain Python
except ModuleNotFoundError:
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent))
    from cloudtrain import runtime

from batches import Batches
from cifar import Cifar, read_cifar
from make_digits import write_digits
from network import ResNet, decayed_and_not


@dataclass
class Config:
    epochs: int = 4
    global_batch: int = 64  # images per optimizer step, over all processes
    learning_rate: float = 0.05  # peak; rises over the warm-up, then falls to zero along a cosine
    warmup_epochs: float = 0.5
    momentum: float = 0.9
    weight_decay: float = 5e-4
    label_smoothing: float = 0.1
    # channels of the first stage; the second has twice, the third four times as many
    width: int = 8
    blocks: int = 1  # residual blocks per stage: 3 make ResNet-20
    # batch: faster on GPUs, but what is learned depends on the processes; sync: over all processes,
    # on GPUs only
    norm: Literal["group", "batch", "sync"] = "group"
    augment: bool = True  # shift every image by up to four pixels
    # and mirror half of them; unless told, CIFAR-10 only: a mirrored digit is no digit
    mirror: bool | None = None
    precision: Literal["auto", "fp32", "bf16", "fp64"] = (
        "auto"  # auto: bf16 on GPUs that have it; fp64: to compare runs
    )
    tf32: bool = False  # GPUs: fp32 products with three digits, several times as fast
    workers: int = 1  # processes that prepare batches ahead, for each process that trains; 0: none
    prefetch: int = 4  # batches that each worker keeps ready
    seed: int = 1
    deterministic: bool = True  # equal runs give equal losses; False: the fastest kernels
    compile: bool = False  # fuse operations into kernels (torch.compile): GPUs, long runs
    backend: str = "auto"  # smddp, nccl, gloo, or auto for the best that runs here
    report_every: int = 10  # steps
    checkpoint_every: int = 50  # steps
    step_delay: float = 0.0  # seconds of sleep after each step, to watch or interrupt a run


AT_LEAST = {
    "epochs": 0, "global_batch": 1, "warmup_epochs": 0, "momentum": 0, "width": 1, "blocks": 1, "workers": 0,
    "prefetch": 1, "report_every": 1, "checkpoint_every": 1, "step_delay": 0,
}  # fmt: skip

config = runtime.arguments(Config, at_least=AT_LEAST)
runtime.use_determinism(config.deterministic)
# try the ways to convolve, and take the fastest
torch.backends.cudnn.benchmark = not config.deterministic
torch.manual_seed(config.seed)  # the same initial weights everywhere
if not torch.cuda.is_available():
    torch.set_num_threads(1)  # the network is too small to share among cores

group = runtime.init_process_group(config.backend)
runtime.watch_for_stop()
on_gpu = group.device.type == "cuda"
precision = config.precision
if precision == "auto":
    precision = "bf16" if on_gpu and runtime.has_bf16() else "fp32"
if config.norm == "sync" and not on_gpu:
    raise runtime.SetupError(
        "`--norm sync` needs GPUs", hint="use `--norm group`, which is the same on all processes"
    )
runtime.use_tf32(config.tf32)
dtype = torch.float64 if precision == "fp64" else torch.float32  # of weights, gradients and sums


def load_images() -> tuple[Cifar, bool]:
    """Return the images, and whether they are CIFAR-10 (or a user's own images in its place) instead of the digits."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path("data", "cifar")
        place = runtime.input_dir("cifar", default=place if place.exists() else folder)
        if given := str(place) != folder:
            return read_cifar(place), given
        runtime.notice(
            "no input `cifar`: training on handwritten digits that come with scikit-learn, in its format"
        )
        return read_cifar(write_digits(Path(folder))), given


(train, test, names), is_cifar = load_images()
if group.is_main:
    print(
        f"processes={group.world_size} device={group.device.type} backend={group.backend} precision={precision} "
        f"train={len(train.labels)} test={len(test.labels)} classes={len(names)}",
        flush=True,
    )

batches = Batches(
    train,
    config.global_batch,
    config.seed,
    group.rank,
    group.world_size,
    augment=config.augment,
    mirror=is_cifar if config.mirror is None else config.mirror,
)
last_step = config.epochs * batches.steps_per_epoch
warmup_steps = max(1.0, config.warmup_epochs * batches.steps_per_epoch)


def learning_rate_at(step: int) -> float:
    """Rise linearly to the peak, then follow half a cosine down to zero at the last step."""
    if step < warmup_steps:
        return config.learning_rate * (step + 1) / (warmup_steps + 1)
    return (
        config.learning_rate
        * 0.5
        * (1 + math.cos(math.pi * (step - warmup_steps) / (last_step - warmup_steps)))
    )


# Mean and spread of each colour, over the training images. Bytes have 256 values, so counting them
# is exact.
levels = torch.arange(256, dtype=torch.float64)
histogram = torch.stack(
    [torch.bincount(train.pixels[:, c].flatten(), minlength=256) for c in range(3)]
).double()
share = histogram / histogram.sum(1, keepdim=True)
means = share @ levels
spreads = (share @ levels.square() - means.square()).sqrt()
mean, spread = (numbers.view(1, 3, 1, 1).to(group.device, dtype) for numbers in (means, spreads))


def prepared(pixels: torch.Tensor) -> torch.Tensor:
    """Move the bytes to the device and convert them there to floats with mean 0 and variance 1, which are four times as
    large.
    """
    return ((pixels.to(group.device, non_blocking=True).to(dtype) - mean) / spread).contiguous(
        memory_format=torch.channels_last
    )


def in_precision() -> torch.autocast:
    """Compute convolutions and matrix products in bf16, sums and norms in fp32. bf16 needs no loss scaling."""
    return torch.autocast(group.device.type, torch.bfloat16, enabled=precision == "bf16")


@torch.no_grad()
def confusion() -> torch.Tensor:
    """Return how often each class (row) was taken for each class (column), over all test images, (classes, classes).

    Each process counts its share; the counts are added up. Averages could not be combined this way, because the shares
    differ in size."""
    network.eval()
    counts = torch.zeros(len(names) ** 2, dtype=torch.long, device=group.device)
    mine = slice(group.rank, None, group.world_size)
    for pixels, labels in zip(
        test.pixels[mine].split(500), test.labels[mine].split(500), strict=True
    ):
        with in_precision():
            guesses = network(prepared(pixels)).argmax(1)
        counts += torch.bincount(
            labels.to(group.device) * len(names) + guesses, minlength=len(counts)
        )
    network.train()
    dist.all_reduce(counts)
    return counts.view(len(names), len(names)).cpu()


def gradient_norm() -> torch.Tensor:
    """Return the norm of the whole gradient. All processes get the same value, which shows that it was averaged
    correctly."""
    return torch.stack([parameter.grad.norm() for parameter in network.parameters()]).norm()


network = ResNet(config.width, config.blocks, len(names), config.norm)
network.to(group.device, dtype, memory_format=torch.channels_last)
if config.compile:
    network.compile()
model = DistributedDataParallel(
    network, device_ids=[group.device.index] if on_gpu else None, gradient_as_bucket_view=True
)
optimizer = torch.optim.SGD(
    decayed_and_not(network, config.weight_decay),
    lr=config.learning_rate,
    momentum=config.momentum,
    nesterov=config.momentum > 0,
)

# Resume: the checkpoint has all that is not a function of the step.
checkpoints = runtime.Checkpoints()
first_step = 0
if resumed := checkpoints.load(map_location=group.device):
    network.load_state_dict(resumed.state["network"])
    optimizer.load_state_dict(resumed.state["optimizer"])
    runtime.restore_random_states(resumed.state.get("random"))
    first_step = resumed.step
    runtime.notice(f"resumed from step {first_step}")


def save(step: int) -> None:
    # of all processes, for what a network of yours may draw: dropout
    random = runtime.random_states()
    checkpoints.save(
        {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "random": random},
        step,
    )


# Forked workers share the images' memory; `spawn` would copy them, and run this file again in each
# worker.
loader = DataLoader(
    batches,
    sampler=range(first_step, last_step),
    batch_size=None,
    num_workers=config.workers,
    prefetch_factor=config.prefetch if config.workers else None,
    multiprocessing_context="fork" if config.workers else None,
    worker_init_fn=runtime.leave_stops_to_the_parent,
    pin_memory=on_gpu,
    # else it would draw from the random states that a checkpoint has restored
    generator=torch.Generator(),
)

started = time.perf_counter()
for step, (pixels, labels) in enumerate(loader, start=first_step):
    for parameter_group in optimizer.param_groups:
        parameter_group["lr"] = learning_rate_at(step)

    # DistributedDataParallel averages gradients over the processes, so each loss is a sum, scaled
    # such that this average is the mean over the whole batch, whatever the sizes of the shares.
    with in_precision():
        logits = model(prepared(pixels))
    labels = labels.to(group.device, non_blocking=True)
    loss = nn.functional.cross_entropy(
        logits.to(dtype), labels, reduction="sum", label_smoothing=config.label_smoothing
    )
    (loss * group.world_size / config.global_batch).backward()
    optimizer.step()

    done = step + 1
    if done % config.report_every == 0 or done == first_step + 1:
        total = loss.detach().clone()
        dist.all_reduce(total)
        epoch = done / batches.steps_per_epoch
        figures = {"loss": total / config.global_batch, "gradient_norm": gradient_norm()}
        runtime.report(
            step=done, total=last_step, epoch=epoch, **figures, learning_rate=learning_rate_at(step)
        )
        runtime.check_finite(done, **figures)
    optimizer.zero_grad()
    if done % batches.steps_per_epoch == 0:
        counts = confusion()
        accuracy = counts.diagonal().sum() / counts.sum()
        runtime.report(step=done, epoch=done // batches.steps_per_epoch, test_accuracy=accuracy)
    if done % config.checkpoint_every == 0 or done == last_step:
        save(done)
    if config.step_delay:
        time.sleep(config.step_delay)
    if runtime.should_stop() and done < last_step:
        save(done)
        runtime.exit_preempted(done)
seconds = time.perf_counter() - started

counts = confusion()
if group.is_main:
    torch.save(network.state_dict(), runtime.model_dir() / "model.pt")
    for name, row, right in zip(names, counts, counts.diagonal(), strict=True):
        print(f"  {name:<12} {right:>5} of {row.sum():>5}  {right / row.sum().clamp(min=1):.4f}")
    trained = (last_step - first_step) * config.global_batch
    print(
        f"test accuracy {counts.diagonal().sum() / counts.sum():.4f} after {last_step} steps, {seconds:.1f} s, "
        f"{trained / seconds:.0f} images/s",
        flush=True,
    )
runtime.destroy_process_group()
