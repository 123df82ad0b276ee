"""Train a small residual network on CIFAR-10, data parallel.

    torchrun --nproc-per-node 2 train.py --epochs 1
    cloudtrain submit ../../torch_cifar10.yaml --target sagemaker

The data is the folder of the python version (data_batch_1 to 5, test_batch), as it comes out of its archive.
"""

import io
import pickle
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cloudtrain import runtime

MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
SPREAD = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)


@dataclass
class Config:
    epochs: int = 30
    batch: int = 128  # images per optimizer step and process
    learning_rate: float = 0.1
    width: int = 64  # channels of the first stage
    seed: int = 1


class Numbers(pickle.Unpickler):
    """Reads the batches, which are pickled numpy arrays, and nothing else that a pickle could run."""

    def find_class(self, module: str, name: str) -> object:
        known = module.startswith("numpy") and name in (
            "_reconstruct",
            "ndarray",
            "dtype",
            "scalar",
            "_frombuffer",
        )
        if known or (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"`{module}.{name}` does not belong into a CIFAR-10 batch")


def read_batches(folder: Path, pattern: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images, (N, 3, 32, 32), bytes, and labels, (N,), of all files that match."""
    files = sorted(path for path in folder.rglob(pattern) if path.is_file())
    if not files:
        raise SystemExit(
            f"error: there is no `{pattern}` in `{folder}`\n\nhint: unpack the python version of CIFAR-10"
        )
    batches = [Numbers(io.BytesIO(path.read_bytes()), encoding="bytes").load() for path in files]
    images = torch.cat(
        [torch.as_tensor(batch[b"data"]).reshape(-1, 3, 32, 32) for batch in batches]
    )
    return images, torch.cat([torch.as_tensor(batch[b"labels"]) for batch in batches])


class Block(nn.Module):
    """Two convolutions with a shortcut around them."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        same = stride == 1 and inside == outside
        self.shortcut = nn.Identity() if same else nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.body(x) + self.shortcut(x))


config = runtime.arguments(Config)
torch.manual_seed(config.seed)
group = runtime.init_process_group()
runtime.watch_for_stop()
folder = runtime.input_dir("cifar")
images, labels = (part.to(group.device) for part in read_batches(folder, "data_batch_*"))
test_images, test_labels = (part.to(group.device) for part in read_batches(folder, "test_batch"))
mean, spread = MEAN.to(group.device), SPREAD.to(group.device)
steps = max(1, len(images) // (config.batch * group.world_size))

width = config.width
network = nn.Sequential(
    nn.Conv2d(3, width, 3, 1, 1, bias=False),
    nn.BatchNorm2d(width),
    nn.ReLU(),
    Block(width, width, 1),
    Block(width, 2 * width, 2),
    Block(2 * width, 4 * width, 2),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(4 * width, 10),
).to(group.device)
model = DistributedDataParallel(network, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(
    network.parameters(), lr=config.learning_rate, momentum=0.9, weight_decay=5e-4
)
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


def prepared(batch: torch.Tensor) -> torch.Tensor:
    return (batch.float() / 255 - mean) / spread


def augmented(batch: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Each image mirrored half of the time, and shifted by up to four pixels."""
    mirror = torch.rand(len(batch), generator=random).to(batch.device) < 0.5
    batch = torch.where(mirror.view(-1, 1, 1, 1), batch.flip(3), batch)
    down, right = torch.randint(0, 9, (2, len(batch), 1), generator=random).to(batch.device)
    pixels = torch.arange(32, device=batch.device)
    each = torch.arange(len(batch), device=batch.device)[:, None, None]
    padded = nn.functional.pad(batch, (4, 4, 4, 4)).permute(0, 2, 3, 1)
    return padded[each, (down + pixels)[:, :, None], (right + pixels)[:, None, :]].permute(
        0, 3, 1, 2
    )


@torch.no_grad()
def test_accuracy() -> float:
    network.eval()
    mine = slice(group.rank, None, group.world_size)
    pairs = zip(test_images[mine].split(500), test_labels[mine].split(500), strict=True)
    correct = sum((network(prepared(x)).argmax(1) == y).sum() for x, y in pairs)
    correct = torch.as_tensor(correct, device=group.device)
    dist.all_reduce(correct)
    network.train()
    return correct.item() / len(test_labels)


for epoch in range(first_epoch, config.epochs):
    order = torch.randperm(
        len(images), generator=torch.Generator().manual_seed(config.seed + epoch)
    )
    mine = order[group.rank :: group.world_size].to(group.device)
    random = torch.Generator().manual_seed((config.seed + epoch) * 10_007 + group.rank)
    total = torch.zeros((), device=group.device)
    for step in range(steps):
        batch = mine[step * config.batch : (step + 1) * config.batch]
        with torch.autocast(group.device.type, torch.bfloat16, enabled=group.device.type == "cuda"):
            scores = model(augmented(prepared(images[batch]), random))
        loss = nn.functional.cross_entropy(scores.float(), labels[batch], label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        total += loss.detach()
    dist.all_reduce(total)
    runtime.report(
        epoch=epoch + 1, loss=total / (steps * group.world_size), test_accuracy=test_accuracy()
    )
    state = {
        "network": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
    }
    checkpoints.save(state, epoch + 1)
    if runtime.should_stop() and epoch + 1 < config.epochs:
        runtime.exit_preempted(epoch + 1)

if group.is_main:
    torch.save(network.state_dict(), runtime.model_dir() / "model.pt")
runtime.destroy_process_group()
