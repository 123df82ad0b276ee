"""Train a small network on MNIST with Horovod, which averages the gradients of processes that mpirun started.

CLOUDTRAIN_INPUT_TRAIN=data/mnist horovodrun -np 2 python train.py
cloudtrain submit ../../horovod_mnist.yaml --target sagemaker
"""

import gzip
from dataclasses import dataclass
from pathlib import Path

import horovod.torch as hvd
import torch
from torch import nn

from cloudtrain import runtime


@dataclass
class Config:
    epochs: int = 10
    batch: int = 256  # images per optimizer step and process
    learning_rate: float = 0.05  # for one process; it grows with their number
    seed: int = 1


config = runtime.arguments(Config)
hvd.init()
device = (
    torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
)
torch.manual_seed(config.seed)
folder = runtime.input_dir("train")


def read_bytes(name: str, header: int) -> torch.Tensor:
    """What follows the header of an idx file: one byte for each pixel or label."""
    content = bytearray(gzip.decompress(Path(folder, name).read_bytes())[header:])
    return torch.frombuffer(content, dtype=torch.uint8).to(device)


train_images = read_bytes("train-images-idx3-ubyte.gz", 16).view(-1, 784).float() / 255
train_labels = read_bytes("train-labels-idx1-ubyte.gz", 8).long()
test_images = read_bytes("t10k-images-idx3-ubyte.gz", 16).view(-1, 784).float() / 255
test_labels = read_bytes("t10k-labels-idx1-ubyte.gz", 8).long()

network = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.SGD(
    network.parameters(), lr=config.learning_rate * hvd.size(), momentum=0.9
)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=network.named_parameters())
hvd.broadcast_parameters(network.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

for epoch in range(config.epochs):
    order = torch.randperm(
        len(train_images), generator=torch.Generator().manual_seed(config.seed + epoch)
    )
    mine = order[hvd.rank() :: hvd.size()].to(device)
    # the same everywhere, or the slowest would wait for ever
    steps = len(train_images) // hvd.size() // config.batch
    total = 0.0
    for step in range(steps):
        batch = mine[step * config.batch : (step + 1) * config.batch]
        loss = nn.functional.cross_entropy(network(train_images[batch]), train_labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    with torch.no_grad():
        accuracy = (network(test_images).argmax(1) == test_labels).float().mean()
    mean = hvd.allreduce(torch.tensor(total / max(1, steps)))
    if hvd.rank() == 0:
        runtime.report(epoch=epoch + 1, loss=mean, test_accuracy=accuracy)

if hvd.rank() == 0:
    torch.save(network.state_dict(), runtime.model_dir() / "model.pt")
