"""Train a 3-D UNet (MONAI) to find an organ, on patches, with DistributedDataParallel.

One process, then two:
    python train.py
    torchrun --nproc-per-node 2 train.py

With volumes of your own, in the layout of the Medical Segmentation Decathlon (dataset.json, imagesTr, labelsTr):
    python prepare.py --raw Task09_Spleen
    torchrun --nproc-per-node 8 train.py --patch 96,96,96 --channels 16,32,64,128,256 --steps 20000 --global_batch 16

As a job: this machine, Amazon SageMaker, Azure Machine Learning; and from what a job has prepared:
    cloudtrain submit job.yaml
    cloudtrain submit job.yaml --target sagemaker
    cloudtrain submit job.yaml --target azureml
    cloudtrain submit prepare.yaml
    cloudtrain submit job.yaml --set inputs.volumes.local=run:spleen-prepare/output/volumes

Without volumes it trains on synthetic ones, ellipsoids and noise, and says so.

Stop it with SIGTERM (or lose the spot instance) and run it again, with any number of processes: it continues from its
last checkpoint, and the losses are those of a run that was never stopped.
"""

import math
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

try:
    from cloudtrain import runtime
# not installed; in a checkout it stands two folders up, and the runtime is plain Python
except ModuleNotFoundError:
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent))
    from cloudtrain import runtime

try:
    from monai.inferers.utils import sliding_window_inference
    from monai.networks.nets.unet import UNet
except ModuleNotFoundError as error:
    missing = runtime.SetupError(
        f"`{error.name}` is not installed", hint="pip install -r requirements.txt"
    )
    missing.tell()
    sys.exit(1)

from patches import Patches
from pictures import draw
from volumes import Volume, read_volumes


@dataclass
class Config:
    steps: int = 150
    global_batch: int = 4  # patches per step, over all processes
    patch: list[int] = field(default_factory=lambda: [32, 32, 16])  # voxels
    # of the UNet's levels, each half as fine
    channels: list[int] = field(default_factory=lambda: [8, 16, 32])
    residual_units: int = 1  # convolutions on each level
    learning_rate: float = 5e-3  # peak; rises over the warm-up, then falls to zero along a cosine
    warmup_steps: int = 10
    weight_decay: float = 1e-4
    labelled: float = 0.5  # how many patches are centred on a labelled voxel
    augment: bool = True  # a little brighter or darker, with a little more or less contrast
    # along each axis half of the time; a mirrored patient has the spleen on the wrong side
    mirror: bool = False
    overlap: float = 0.25  # of the windows that predict a whole volume
    precision: Literal["auto", "fp32", "bf16", "fp64"] = (
        "auto"  # auto: bf16 on GPUs that have it; fp64: to compare runs
    )
    workers: int = 0  # processes that cut patches ahead, for each process that trains; 0: none
    pictures: int = 4  # held-out volumes of which slices are drawn
    seed: int = 1
    deterministic: bool = True  # equal runs give equal losses; False: the fastest kernels
    compile: bool = False  # fuse operations into kernels (torch.compile): GPUs, long runs
    backend: str = "auto"  # smddp, nccl, gloo, or auto for the best that runs here
    report_every: int = 10  # steps
    evaluate_every: int = 75  # steps
    checkpoint_every: int = 50  # steps
    step_delay: float = 0.0  # seconds of sleep after each step, to watch or interrupt a run


AT_LEAST = {
    "steps": 0, "global_batch": 1, "patch": 1, "channels": 1, "residual_units": 0, "warmup_steps": 0,
    "labelled": 0, "overlap": 0, "workers": 0, "pictures": 0, "report_every": 1, "evaluate_every": 1,
    "checkpoint_every": 1, "step_delay": 0,
}  # fmt: skip

config = runtime.arguments(Config, at_least=AT_LEAST)
runtime.use_determinism(config.deterministic)
# try the ways to convolve, and take the fastest
torch.backends.cudnn.benchmark = not config.deterministic
torch.manual_seed(config.seed)  # the same initial weights everywhere

group = runtime.init_process_group(config.backend)
runtime.watch_for_stop()
on_gpu = group.device.type == "cuda"
precision = config.precision
if precision == "auto":
    precision = "bf16" if on_gpu and runtime.has_bf16() else "fp32"
dtype = torch.float64 if precision == "fp64" else torch.float32  # of weights, gradients and sums
patch = tuple(config.patch)
coarsest = 2 ** (len(config.channels) - 1)
if len(patch) != 3 or any(side % coarsest or side < 2 * coarsest for side in patch):
    raise runtime.SetupError(
        f"`--patch {config.patch}` does not fit {len(config.channels)} levels",
        hint=f"three multiples of {coarsest}, two or more",
    )
if config.global_batch < group.world_size:
    raise runtime.SetupError(
        f"`--global_batch {config.global_batch}` for {group.world_size} processes",
        hint="each needs at least one patch",
    )

# synthetic volumes, when there are no others; gone when the process ends
demo = tempfile.TemporaryDirectory()


def find_volumes() -> list[Volume]:
    """Return the volumes that `prepare.py` wrote: from the job's input, else from the default output folder of
    `prepare.py`.
    """
    prepared = runtime.input_dir(
        "volumes", default="volumes" if Path("volumes").is_dir() else demo.name
    )
    if str(prepared) == demo.name:
        from make_volumes import write_synthetic
        from prepare import prepare_all

        runtime.notice("no input `volumes`: training on synthetic ones, ellipsoids and noise")
        prepare_all(
            write_synthetic(Path(demo.name, "raw"), count=12, voxel=6.0, seed=1),
            prepared,
            (6.0, 6.0, 6.0),
        )
    return read_volumes(prepared)


# A fixed fifth is held out, whatever the seed.
volumes = find_volumes()
held_out, train = volumes[::5], [volume for number, volume in enumerate(volumes) if number % 5]
if not train:
    raise runtime.SetupError(f"{len(volumes)} prepared volumes", hint="with two, one is held out")
classes = len(volumes[0].facts["labels"])
patches = Patches(
    train,
    patch,
    config.global_batch,
    config.seed,
    group.rank,
    group.world_size,
    labelled=config.labelled,
    augment=config.augment,
    mirror=config.mirror,
)


def learning_rate_at(step: int) -> float:
    """Rise linearly to the peak, then follow half a cosine down to zero at the last step."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / (config.warmup_steps + 1)
    rest = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * rest))


def in_precision() -> torch.autocast:
    """Compute convolutions in bf16, norms and sums in fp32. bf16 needs no loss scaling."""
    return torch.autocast(group.device.type, torch.bfloat16, enabled=precision == "bf16")


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return cross-entropy plus soft Dice, which a large background does not drown. Losses are per patch and summed
    over patches, so that a batch can be divided. Sums of products with ones and zeros are used, because those repeat on
    GPUs, too."""
    numbers = torch.arange(classes, device=labels.device).view(-1, 1, 1, 1)
    truth = (labels[:, None] == numbers).to(logits.dtype)
    log_chance = logits.log_softmax(1)
    cross_entropy = -(truth * log_chance).sum(1).mean((1, 2, 3))
    chance, inside = log_chance.exp()[:, 1:].flatten(2), truth[:, 1:].flatten(2)
    overlap = (2 * (chance * inside).sum(2) + 1) / (chance.sum(2) + inside.sum(2) + 1)
    return (cross_entropy + 1 - overlap.mean(1)).sum()


@torch.no_grad()
def predict(volume: Volume) -> torch.Tensor:
    """Return the class of each voxel, int64 (x, y, z). The network looks through windows as large as a patch; where
    windows overlap, those with the voxel in their middle weigh more."""
    image = torch.from_numpy(volume.image.astype("float32")).to(group.device, dtype)[None, None]
    with in_precision():
        logits = sliding_window_inference(
            image, patch, 4, network, overlap=config.overlap, mode="gaussian"
        )
    return logits.argmax(1)[0]


def evaluate(pictures: int = 0) -> torch.Tensor:
    """Return Dice of each held-out volume and class, (volumes, classes - 1). Each process takes its share of the
    volumes, and draws the first `pictures` of them. Voxels are counted, so the division among processes does not
    matter."""
    network.eval()
    both = torch.zeros(len(held_out), classes - 1, dtype=torch.long)
    total = torch.zeros_like(both)
    for number in range(group.rank, len(held_out), group.world_size):
        volume = held_out[number]
        guess, truth = predict(volume).cpu(), torch.from_numpy(volume.label.astype("int64"))
        for kind in range(1, classes):
            both[number, kind - 1] = ((guess == kind) & (truth == kind)).sum()
            total[number, kind - 1] = (guess == kind).sum() + (truth == kind).sum()
        if number < pictures:
            title = f"{volume.name}: Dice {dice(both[number], total[number]).mean():.3f}"
            path = runtime.output_dir("pictures") / f"{volume.name}.png"
            draw(path, title, volume.image, truth.numpy(), guess.numpy(), volume.facts["spacing"])
    network.train()
    counts = torch.stack([both, total]).to(group.device)
    dist.all_reduce(counts)
    return dice(*counts.cpu())


def dice(both: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Return 2 |A and B| / (|A| + |B|); 1 where both are empty."""
    return torch.where(total > 0, 2 * both / total.clamp(min=1), 1.0)


def gradient_norm() -> torch.Tensor:
    """Return the norm of the whole gradient. All processes get the same value, which shows that it was averaged
    correctly."""
    return torch.stack([parameter.grad.norm() for parameter in network.parameters()]).norm()


# Instance norm looks at one patch at a time, so the gradient is that of one process.
network = UNet(
    spatial_dims=3,
    in_channels=1,
    out_channels=classes,
    channels=config.channels,
    strides=[2] * (len(config.channels) - 1),
    num_res_units=config.residual_units,
    norm="instance",
)
network.to(group.device, dtype)
if config.compile:
    network.compile()
model = DistributedDataParallel(
    network, device_ids=[group.device.index] if on_gpu else None, gradient_as_bucket_view=True
)
optimizer = torch.optim.AdamW(
    network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
)
if group.is_main:
    print(
        f"processes={group.world_size} device={group.device.type} backend={group.backend} precision={precision} "
        f"train={len(train)} held_out={len(held_out)} classes={classes} "
        f"parameters={sum(parameter.numel() for parameter in network.parameters())}",
        flush=True,
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


loader = DataLoader(
    patches,
    sampler=range(first_step, config.steps),
    batch_size=None,
    num_workers=config.workers,
    multiprocessing_context="fork" if config.workers else None,
    worker_init_fn=runtime.leave_stops_to_the_parent,
    pin_memory=on_gpu,
    # else it would draw from the random states that a checkpoint has restored
    generator=torch.Generator(),
)

seconds, started = 0.0, time.perf_counter()
for step, (images, labels) in enumerate(loader, start=first_step):
    for parameter_group in optimizer.param_groups:
        parameter_group["lr"] = learning_rate_at(step)

    # DistributedDataParallel averages gradients over the processes, so each loss is a sum, scaled
    # such that this average is the mean over the whole batch, whatever the sizes of the shares.
    images, labels = (
        images.to(group.device, dtype, non_blocking=True),
        labels.to(group.device, non_blocking=True),
    )
    with in_precision():
        logits = model(images)
    loss = loss_of(logits.to(dtype), labels)
    (loss * group.world_size / config.global_batch).backward()
    optimizer.step()

    done = step + 1
    if done % config.report_every == 0 or done == first_step + 1:
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        epoch = done * config.global_batch / len(train)
        figures = {"loss": whole / config.global_batch, "gradient_norm": gradient_norm()}
        runtime.report(
            step=done,
            total=config.steps,
            epoch=epoch,
            **figures,
            learning_rate=learning_rate_at(step),
        )
        runtime.check_finite(done, **figures)
    optimizer.zero_grad()
    if done % config.evaluate_every == 0 and done < config.steps:
        seconds += time.perf_counter() - started
        runtime.report(step=done, dice=evaluate().mean())
        started = time.perf_counter()
    if done % config.checkpoint_every == 0 or done == config.steps:
        save(done)
    if config.step_delay:
        time.sleep(config.step_delay)
    if runtime.should_stop() and done < config.steps:
        save(done)
        runtime.exit_preempted(done)
seconds += time.perf_counter() - started

scores = evaluate(config.pictures)
runtime.report(step=config.steps, dice=scores.mean())
if group.is_main:
    torch.save(network.state_dict(), runtime.model_dir() / "model.pt")
    for volume, row in zip(held_out, scores.tolist(), strict=True):
        print(f"  {volume.name:<24} {' '.join(f'{score:.4f}' for score in row)}")
    trained = (config.steps - first_step) * config.global_batch
    print(
        f"dice {scores.mean():.4f} on {len(held_out)} held-out volumes after {config.steps} steps, {seconds:.1f} s, "
        f"{trained / seconds:.1f} patches/s",
        flush=True,
    )
runtime.destroy_process_group()
