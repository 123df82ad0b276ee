"""Train a small convolutional network on MNIST with Horovod, which averages gradients over MPI.

One process (needs no Horovod), then two, started by MPI or by Horovod's own launcher:
    python train.py
    mpirun -np 2 python train.py
    horovodrun -np 2 python train.py

As a job: this machine, Amazon SageMaker, Azure Machine Learning:
    cloudtrain submit job.yaml
    cloudtrain submit job.yaml --target sagemaker
    cloudtrain submit job.yaml --target azureml

Without MNIST in data/mnist it trains on 1,797 scans of handwritten digits that come with scikit-learn, and says so.

Stop it with SIGTERM and run it again, with any number of processes: it continues from its last checkpoint, and the
losses are those of a run that was never stopped.
"""

import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

try:
    from cloudtrain import runtime
# not installed; in a checkout it stands two folders up, and the runtime is plain Python
except ModuleNotFoundError:
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent))
    from cloudtrain import runtime

from images import read_digits, read_mnist


@dataclass
class Config:
    epochs: int = 4
    global_batch: int = 64  # images per optimizer step, over all processes
    # peak; rises over the first epoch, then falls to zero along a cosine
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    channels: int = 8  # of the first convolution; the second has twice as many
    seed: int = 1
    deterministic: bool = True  # equal runs give equal losses; False: the fastest kernels
    report_every: int = 5  # steps
    checkpoint_every: int = 25  # steps
    step_delay: float = 0.0  # seconds of sleep after each step, to watch or interrupt a run


AT_LEAST = {
    "epochs": 0,
    "global_batch": 1,
    "channels": 1,
    "report_every": 1,
    "checkpoint_every": 1,
    "step_delay": 0,
}

config = runtime.arguments(Config, at_least=AT_LEAST)
started_processes = runtime.detect_environment().world_size  # as mpirun tells; 1 where nobody does
try:
    import horovod.torch as hvd
except ModuleNotFoundError as error:
    if started_processes > 1:
        raise runtime.SetupError(
            f"`{error.name}` is not installed, and {started_processes} processes need it",
            hint="pip install --no-build-isolation -r requirements.txt; "
            "digits_ddp is the same training without Horovod",
        ) from None
    import alone as hvd

    runtime.notice(f"`{error.name}` is not installed: training in one process, without Horovod")

# 1. Horovod asks MPI (or horovodrun) who this process is. A Horovod built without MPI finds itself
#    alone under mpirun,
# and every process would train for itself.
hvd.init()
if started_processes not in (1, hvd.size()):
    raise runtime.SetupError(
        f"{started_processes} processes were started, and Horovod finds {hvd.size()}",
        hint="`horovodrun --check-build` should list MPI, and mpirun should start the processes; "
        "or use `horovodrun -np N`",
    )
# The runtime must agree about ranks, whoever started them: rank 0 alone reports, and writes
# checkpoints.
for name, number in (
    ("RANK", hvd.rank()),
    ("WORLD_SIZE", hvd.size()),
    ("LOCAL_RANK", hvd.local_rank()),
    ("LOCAL_WORLD_SIZE", hvd.local_size()),
):
    os.environ[name] = str(number)
runtime.watch_for_stop()

# 2. One GPU for each process, by its number on the instance.
runtime.use_determinism(config.deterministic)
torch.manual_seed(config.seed)
if torch.cuda.is_available():
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
else:
    device = torch.device("cpu")
    torch.set_num_threads(1)  # the network is too small to share among cores

# The data: the input `mnist`, else data/mnist, else the digits of scikit-learn. All of it fits on
# the device.
nothing = Path()
place = runtime.input_dir(
    "mnist", default=Path("data/mnist") if Path("data/mnist").exists() else nothing
)
if place == nothing:
    runtime.notice("no input `mnist`: training on handwritten digits that come with scikit-learn")
train, test = (
    part.to(device) for part in (read_digits() if place == nothing else read_mnist(place))
)
steps_per_epoch = math.ceil(len(train) / config.global_batch)
last_step = config.epochs * steps_per_epoch
if hvd.rank() == 0:
    height, width = train.pixels.shape[2:]
    print(
        f"processes={hvd.size()} device={device.type} images={len(train)} of {height} x {width} pixels",
        flush=True,
    )


def batch_at(step: int) -> torch.Tensor:
    """Return the training images of one step. They depend only on seed and step, so neither the number of processes nor
    an interruption changes what is learned."""
    epoch, position = divmod(step, steps_per_epoch)
    order = torch.randperm(
        len(train), generator=torch.Generator().manual_seed(config.seed * 100_003 + epoch)
    )
    start = position * config.global_batch
    return order[start : start + config.global_batch].to(device)


def learning_rate_at(step: int) -> float:
    warm = min(1.0, (step + 1) / steps_per_epoch)
    return config.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * step / last_step))


@torch.no_grad()
def test_accuracy() -> float:
    """Return the test accuracy. Each process counts its share of the test images; the counts are added up."""
    mine = torch.arange(hvd.rank(), len(test), hvd.size(), device=device)
    correct = torch.zeros((), device=device)
    for part in mine.split(1000):
        correct += (network(test.pixels[part].float() / 255).argmax(1) == test.labels[part]).sum()
    return hvd.allreduce(correct, op=hvd.Sum, name="correct").item() / len(test)


def halved(size: int) -> int:
    return (size + 1) // 2


network = nn.Sequential(
    nn.Conv2d(1, config.channels, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(config.channels, 2 * config.channels, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(
        2 * config.channels * halved(train.pixels.shape[2]) * halved(train.pixels.shape[3]), 10
    ),
).to(device)

# 3. The optimizer's `step` first exchanges gradients, which it began to do during `backward`. They
#    are added up and not
# averaged, because each loss below is a share of the mean over the whole batch.
optimizer = torch.optim.SGD(
    network.parameters(),
    lr=config.learning_rate,
    momentum=config.momentum,
    weight_decay=config.weight_decay,
)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=network.named_parameters(), op=hvd.Sum
)

# 4. Rank 0 alone reads the checkpoint and hands out what it says. A new optimizer has no state to
#    receive, and
# `broadcast_optimizer_state` makes one by a step with zero gradients, which moves the weights by
# their decay. So it is called only where there is a state to hand out, and before the weights are.
checkpoints = runtime.Checkpoints()
first_step, random = 0, None
if hvd.rank() == 0 and (saved := checkpoints.load(map_location=device)):
    network.load_state_dict(saved.state["network"])
    optimizer.load_state_dict(saved.state["optimizer"])
    first_step, random = saved.step, saved.state.get("random")
    runtime.notice(f"resumed from step {first_step}")
first_step, random = hvd.broadcast_object((first_step, random), root_rank=0)
if first_step > 0:
    runtime.restore_random_states(random)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
hvd.broadcast_parameters(network.state_dict(), root_rank=0)


def save(step: int) -> None:
    # of all processes, for what your network may draw: dropout
    random = runtime.random_states(hvd.allgather_object)
    checkpoints.save(
        {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "random": random},
        step,
    )


started = time.perf_counter()
for step in range(first_step, last_step):
    for parameter_group in optimizer.param_groups:
        parameter_group["lr"] = learning_rate_at(step)

    batch = batch_at(step)
    mine = batch[hvd.rank() :: hvd.size()]
    logits = network(train.pixels[mine].float() / 255)
    loss = nn.functional.cross_entropy(logits, train.labels[mine], reduction="sum") / len(batch)
    loss.backward()
    optimizer.step()  # from here on the gradients are those of all processes together

    # One small exchange says what the loss of the whole batch is, and whether any process was asked
    # to stop.
    done = step + 1
    epoch, position = divmod(done, steps_per_epoch)
    said = torch.stack([loss.detach(), torch.tensor(float(runtime.should_stop()), device=device)])
    batch_loss, asked_to_stop = hvd.allreduce(said, op=hvd.Sum, name="said").tolist()
    if done % config.report_every == 0 or done == first_step + 1:
        norm = torch.stack([parameter.grad.norm() for parameter in network.parameters()]).norm()
        runtime.report(
            step=done,
            total=last_step,
            epoch=done / steps_per_epoch,
            loss=batch_loss,
            gradient_norm=norm,
        )
    optimizer.zero_grad()
    if position == 0:
        runtime.report(step=done, epoch=epoch, test_accuracy=test_accuracy())
    if done % config.checkpoint_every == 0 or done == last_step:
        save(done)
    if config.step_delay:
        time.sleep(config.step_delay)
    if asked_to_stop and done < last_step:
        save(done)
        runtime.exit_preempted(done)
seconds = time.perf_counter() - started

accuracy = test_accuracy()
if hvd.rank() == 0:
    torch.save(network.state_dict(), runtime.model_dir() / "model.pt")
    print(f"test accuracy {accuracy:.4f} after {last_step} steps, {seconds:.1f} s", flush=True)
