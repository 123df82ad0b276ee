"""Train one linear layer on handwritten digits with smddp, SageMaker's data parallel library.

This machine has no smddp; the same script runs here with gloo, or with nccl on GPUs:
    python train.py
    torchrun --nproc-per-node 2 train.py

As a job: with smddp on 16 GPUs of two ml.p4d.24xlarge; on this machine; on Azure Machine Learning with nccl:
    cloudtrain submit job.yaml --target sagemaker
    cloudtrain submit job.yaml
    cloudtrain submit job.yaml --target azureml --set distribution.type=torch
"""

import gzip
import importlib.util
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
    steps: int = 100
    global_batch: int = 256  # images per step, over all processes
    learning_rate: float = 0.5
    seed: int = 1
    # smddp where its library is installed, else nccl where there are GPUs, else gloo
    backend: str = "auto"
    step_delay: float = 0.0  # seconds of sleep after each step, to watch or interrupt a run


AT_LEAST = {"steps": 0, "global_batch": 1, "step_delay": 0}

config = runtime.arguments(Config, at_least=AT_LEAST)
if not torch.cuda.is_available():
    torch.set_num_threads(1)

# The change in the script. Without the runtime it is two lines instead of
# `dist.init_process_group("nccl")`:
#     import smdistributed.dataparallel.torch.torch_smddp  # registers the backend
#     dist.init_process_group("smddp")
group = runtime.init_process_group(config.backend)
runtime.watch_for_stop()
if group.is_main:
    print(
        f"processes={group.world_size} device={group.device.type} backend={group.backend}",
        flush=True,
    )

# The data: 1,797 scans as 64 grey values from 0 to 1, and their digits. The file comes with
# scikit-learn.
package = importlib.util.find_spec("sklearn")
if package is None or package.origin is None:
    raise runtime.SetupError(
        "the digits come with scikit-learn, which is not installed", hint="pip install scikit-learn"
    )
packed = Path(package.origin).with_name("datasets").joinpath("data", "digits.csv.gz").read_bytes()
rows = [[float(cell) for cell in line.split(b",")] for line in gzip.decompress(packed).splitlines()]
table = torch.tensor(rows, device=group.device)[
    torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
]
images, labels = table[:, :64] / 16, table[:, 64].long()
test, train = slice(0, len(rows) // 5), range(len(rows) // 5, len(rows))

# The rest is DistributedDataParallel as everywhere: smddp is a backend, and carries its all-reduce.
torch.manual_seed(config.seed)
layer = nn.Linear(64, 10).to(group.device)
model = DistributedDataParallel(layer, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(layer.parameters(), lr=config.learning_rate)
checkpoints = runtime.Checkpoints()
resumed = checkpoints.load(map_location=group.device)
if resumed:
    layer.load_state_dict(resumed.state["layer"])
    runtime.restore_random_states(resumed.state.get("random"))
    runtime.notice(f"resumed from step {resumed.step}")

for step in range(resumed.step if resumed else 0, config.steps):
    order = torch.randperm(
        len(train), generator=torch.Generator().manual_seed(config.seed * 100_003 + step)
    )
    batch = order[: config.global_batch] + train.start
    mine = batch[group.rank :: group.world_size].to(group.device)
    loss = nn.functional.cross_entropy(model(images[mine]), labels[mine], reduction="sum") / len(
        batch
    )
    # the average over the processes is then the mean over the whole batch
    (loss * group.world_size).backward()
    optimizer.step()
    done = step + 1
    if done % 10 == 0 or done == config.steps:
        dist.all_reduce(loss := loss.detach())
        norm = torch.stack([parameter.grad.norm() for parameter in layer.parameters()]).norm()
        runtime.report(step=done, total=config.steps, loss=loss, gradient_norm=norm)
    optimizer.zero_grad()
    if config.step_delay:
        time.sleep(config.step_delay)
    stop = runtime.should_stop() and done < config.steps
    if stop or done % 50 == 0 or done == config.steps:
        checkpoints.save({"layer": layer.state_dict(), "random": runtime.random_states()}, done)
    if stop:
        runtime.exit_preempted(done)

accuracy = (layer(images[test]).argmax(1) == labels[test]).float().mean()
runtime.report(step=config.steps, test_accuracy=accuracy)
if group.is_main:
    torch.save(layer.state_dict(), runtime.model_dir() / "model.pt")
runtime.destroy_process_group()
