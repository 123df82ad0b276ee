"""Train a small convolutional network on MNIST, data parallel.

    torchrun --nproc-per-node 2 train.py --epochs 1
    cloudtrain submit ../../smddp_mnist.yaml --target sagemaker

The runtime chooses the process group: SMDDP where the image has it, NCCL on GPUs, gloo on CPUs. Everything else is
plain PyTorch: importing the library registered its backend.
"""

import gzip
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cloudtrain import runtime


@dataclass
class Config:
    epochs: int = 10
    batch: int = 256  # images per optimizer step and process
    learning_rate: float = 0.05
    seed: int = 1


def read_mnist(folder: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images, (N, 1, 28, 28), normalised, and labels, (N,), of `train` or `t10k`. The files start with their sizes,
    in 16 and 8 bytes; the rest is one byte for each pixel or label."""
    pixels = bytearray(gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())[16:])
    labels = bytearray(gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())[8:])
    images = torch.frombuffer(pixels, dtype=torch.uint8).reshape(-1, 1, 28, 28).float()
    return images.div_(255).sub_(0.1307).div_(0.3081), torch.frombuffer(
        labels, dtype=torch.uint8
    ).long()


config = runtime.arguments(Config)
torch.manual_seed(config.seed)
group = runtime.init_process_group()
runtime.watch_for_stop()
folder = runtime.input_dir("train")
images, labels = (part.to(group.device) for part in read_mnist(folder, "train"))
test_images, test_labels = (part.to(group.device) for part in read_mnist(folder, "t10k"))
steps = max(1, len(images) // (config.batch * group.world_size))

network = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(64 * 7 * 7, 128),
    nn.ReLU(),
    nn.Linear(128, 10),
).to(group.device)
model = DistributedDataParallel(network, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(network.parameters(), lr=config.learning_rate, momentum=0.9)
schedule = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, config.learning_rate, total_steps=config.epochs * steps
)
checkpoints = runtime.Checkpoints()
first_epoch = 0
if resumed := checkpoints.load(map_location=group.device):
    network.load_state_dict(resumed.state["network"])
    optimizer.load_state_dict(resumed.state["optimizer"])
    schedule.load_state_dict(resumed.state["schedule"])
    first_epoch = resumed.step


def save(epoch: int) -> None:
    state = {
        "network": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
    }
    checkpoints.save(state, epoch)


@torch.no_grad()
def test_accuracy() -> float:
    mine = slice(group.rank, None, group.world_size)
    correct = (network(test_images[mine]).argmax(1) == test_labels[mine]).sum()
    dist.all_reduce(correct)
    return correct.item() / len(test_labels)


for epoch in range(first_epoch, config.epochs):
    order = torch.randperm(
        len(images), generator=torch.Generator().manual_seed(config.seed + epoch)
    )
    mine = order[group.rank :: group.world_size].to(group.device)
    total = torch.zeros((), device=group.device)
    for step in range(steps):
        batch = mine[step * config.batch : (step + 1) * config.batch]
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        total += loss.detach()
    dist.all_reduce(total)
    runtime.report(
        epoch=epoch + 1, loss=total / (steps * group.world_size), test_accuracy=test_accuracy()
    )
    save(epoch + 1)
    if runtime.should_stop() and epoch + 1 < config.epochs:
        runtime.exit_preempted(epoch + 1)

if group.is_main:
    torch.save(network.state_dict(), runtime.model_dir() / "model.pt")
runtime.destroy_process_group()
