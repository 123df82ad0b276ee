"""Train a small network on real handwritten digits with DistributedDataParallel.

One process:
    python train.py

Two processes on this machine, then the same with two accumulated micro-batches per step:
    torchrun --nproc-per-node 2 train.py
    torchrun --nproc-per-node 2 train.py --accumulate 2

Two machines, here both simulated on one (run each line in its own terminal):
    torchrun --nnodes 2 --node-rank 0 --master-addr 127.0.0.1 --master-port 29400 train.py
    torchrun --nnodes 2 --node-rank 1 --master-addr 127.0.0.1 --master-port 29400 train.py

As a job: this machine, Amazon SageMaker, Azure Machine Learning:
    cloudtrain submit job.yaml
    cloudtrain submit job.yaml --target sagemaker
    cloudtrain submit job.yaml --target azureml

Stop it with SIGTERM (or lose the spot instance) and run it again, with any number of processes: it continues from its
last checkpoint, and the losses are those of a run that was never stopped.
"""

import contextlib
import gzip
import importlib.util
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

try:
    from cloudtrain import runtime
# not installed; in a checkout it stands two folders up, and the runtime is plain Python
except ModuleNotFoundError:
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent))
    from cloudtrain import runtime


@dataclass
class Config:
    epochs: int = 20
    global_batch: int = 64  # images per optimizer step, over all processes
    # micro-batches per step and process; gradients are exchanged after the last one
    accumulate: int = 1
    # peak; rises over the first epoch, then falls to zero along a cosine
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    hidden: int = 128
    seed: int = 1
    deterministic: bool = True  # equal runs give equal losses; False: the fastest kernels
    compile: bool = False  # fuse operations into kernels (torch.compile): GPUs, long runs
    backend: str = "auto"  # smddp, nccl, gloo, or auto for the best that runs here
    report_every: int = 10  # steps
    checkpoint_every: int = 50  # steps
    step_delay: float = 0.0  # seconds of sleep after each step, to watch or interrupt a run


AT_LEAST = {
    "epochs": 0, "global_batch": 1, "accumulate": 1, "hidden": 1, "report_every": 1, "checkpoint_every": 1,
    "step_delay": 0,
}  # fmt: skip

config = runtime.arguments(Config, at_least=AT_LEAST)
runtime.use_determinism(config.deterministic)
torch.manual_seed(config.seed)  # the same initial weights everywhere
if not torch.cuda.is_available():
    torch.set_num_threads(1)  # the network is too small to share among cores

group = runtime.init_process_group(config.backend)
runtime.watch_for_stop()
if group.is_main:
    print(
        f"processes={group.world_size} device={group.device.type} backend={group.backend}",
        flush=True,
    )


def load_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return 1,797 scans as 64 grey values from 0 to 1, and their digits. The file comes with scikit-learn, which is
    not imported because that takes a second."""
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise runtime.SetupError(
            "the digits come with scikit-learn, which is not installed",
            hint="pip install scikit-learn",
        )
    path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    rows = [line.split(b",") for line in gzip.decompress(path.read_bytes()).splitlines()]
    table = torch.tensor([[float(cell) for cell in row] for row in rows])
    return table[:, :64] / 16, table[:, 64].long()


# The data: a fixed fifth is the test set, whatever the seed. All of it fits on the device.
images, labels = (part.to(group.device) for part in load_digits())
shuffled = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).to(group.device)
test, train = shuffled[: len(images) // 5], shuffled[len(images) // 5 :]
steps_per_epoch = math.ceil(len(train) / config.global_batch)
last_step = config.epochs * steps_per_epoch


def batch_at(step: int) -> torch.Tensor:
    """Return the training images of one step. They depend only on seed and step, so neither the number of processes nor
    an interruption changes what is learned."""
    epoch, position = divmod(step, steps_per_epoch)
    order = torch.randperm(
        len(train), generator=torch.Generator().manual_seed(config.seed * 100_003 + epoch)
    )
    start = position * config.global_batch
    return train[order[start : start + config.global_batch].to(train.device)]


def learning_rate_at(step: int) -> float:
    warm = min(1.0, (step + 1) / steps_per_epoch)
    return config.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * step / last_step))


@torch.no_grad()
def test_accuracy() -> float:
    """Return the test accuracy. Each process counts its share of the test images; the counts are added up."""
    mine = test[group.rank :: group.world_size]
    correct = (network(images[mine]).argmax(1) == labels[mine]).sum()
    dist.all_reduce(correct)
    return correct.item() / len(test)


def gradient_norm() -> torch.Tensor:
    """Return the norm of the whole gradient. All processes get the same value, which shows that it was averaged
    correctly."""
    return torch.stack([parameter.grad.norm() for parameter in network.parameters()]).norm()


network = nn.Sequential(
    nn.Linear(64, config.hidden),
    nn.GELU(),
    nn.Linear(config.hidden, config.hidden),
    nn.GELU(),
    nn.Linear(config.hidden, 10),
).to(group.device)
if config.compile:
    network.compile()
model = DistributedDataParallel(network, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(
    network.parameters(),
    lr=config.learning_rate,
    momentum=config.momentum,
    weight_decay=config.weight_decay,
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


started = time.perf_counter()
for step in range(first_step, last_step):
    for parameter_group in optimizer.param_groups:
        parameter_group["lr"] = learning_rate_at(step)

    # Every process takes its share of the batch, in micro-batches. DistributedDataParallel averages
    # gradients over the processes, so each loss is a sum, scaled such that this average is the mean
    # over the whole batch.
    batch = batch_at(step)
    micro_batches = batch[group.rank :: group.world_size].tensor_split(config.accumulate)
    loss_sum = torch.zeros((), device=group.device)
    for number, micro_batch in enumerate(micro_batches, start=1):
        is_last = number == config.accumulate
        with contextlib.nullcontext() if is_last else model.no_sync():
            loss = nn.functional.cross_entropy(
                model(images[micro_batch]), labels[micro_batch], reduction="sum"
            )
            (loss * group.world_size / len(batch)).backward()
        loss_sum += loss.detach()
    optimizer.step()

    done = step + 1
    epoch, position = divmod(done, steps_per_epoch)
    if done % config.report_every == 0 or done == first_step + 1:
        dist.all_reduce(loss_sum)
        figures = {"loss": loss_sum / len(batch), "gradient_norm": gradient_norm()}
        runtime.report(step=done, total=last_step, epoch=done / steps_per_epoch, **figures)
    optimizer.zero_grad()
    if position == 0:
        runtime.report(step=done, epoch=epoch, test_accuracy=test_accuracy())
    if done % config.checkpoint_every == 0 or done == last_step:
        save(done)
    if config.step_delay:
        time.sleep(config.step_delay)
    if runtime.should_stop() and done < last_step:
        save(done)
        runtime.exit_preempted(done)

accuracy = test_accuracy()
if group.is_main:
    torch.save(network.state_dict(), runtime.model_dir() / "model.pt")
    seconds = time.perf_counter() - started
    print(f"test accuracy {accuracy:.4f} after {last_step} steps, {seconds:.1f} s", flush=True)
runtime.destroy_process_group()
