"""Measure the network between the processes of a job, then train a small model on 1 to n of them.

Two processes on this machine, then the same beside a loop timed by hand:
    torchrun --nproc-per-node 2 train.py
    torchrun --nproc-per-node 2 train.py --check

As a job, the first one to run on a new cluster: this machine, Amazon SageMaker, Azure Machine Learning:
    cloudtrain submit job.yaml
    cloudtrain submit job_gpu.yaml --target sagemaker
    cloudtrain submit job_gpu.yaml --target azureml
"""

import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

try:
    from cloudtrain import runtime
# not installed; in a checkout it stands two folders up, and the runtime is plain Python
except ModuleNotFoundError:
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent))
    from cloudtrain import runtime

from messages import OPERATIONS, elements, iterations_for, seconds_of, settled, sizes, words
from network import RATES, instance_type, read_logs, sentence
from scaling import NETWORKS, projected, step_seconds

from cloudtrain.runtime.process_group import wait_for_all


@dataclass
class Config:
    smallest: int = 1 << 12  # bytes of a message
    largest: int = 1 << 24
    factor: int = 4  # from one size to the next
    operations: list[Literal["all_reduce", "all_gather", "reduce_scatter", "send"]] = field(
        default_factory=lambda: ["all_reduce", "all_gather", "reduce_scatter", "send"]
    )
    width: int = 1024  # of the small model's layers
    layers: int = 4
    batch: int = 256  # rows of each process
    rounds: int = 10  # steps of the small model that are timed
    instance_type: str = ""  # where the service does not say it, as on Azure ML
    backend: str = "auto"
    check: bool = False  # time an all-reduce by hand, too, and say how far the table is away


AT_LEAST = {
    "smallest": 4,
    "largest": 4,
    "factor": 2,
    "width": 1,
    "layers": 1,
    "batch": 1,
    "rounds": 1,
}

config = runtime.arguments(Config, at_least=AT_LEAST)
if not torch.cuda.is_available():
    torch.set_num_threads(1)  # a process stands for a device
logs = runtime.diagnostics_dir()
os.environ.setdefault("NCCL_DEBUG", "INFO")  # read below, to say what carries the messages
os.environ.setdefault("NCCL_DEBUG_SUBSYS", "INIT,NET,ENV")
os.environ.setdefault("NCCL_DEBUG_FILE", str(logs / "nccl_log_%h_%p"))
group = runtime.init_process_group(config.backend, sends=True)
device = group.device
if device.type == "cuda" and group.backend == "gloo":
    device = torch.device("cpu")  # gloo sends no tensors between GPUs
place = group.environment


def say(text: str = "") -> None:
    if group.is_main:
        print(text, flush=True)


kind = config.instance_type or instance_type()
expected, gigabits = RATES.get(kind, ("", 0.0))
say(
    f"processes={group.world_size} instances={place.node_count} device={device.type} backend={group.backend}"
    + (f" instance_type={kind}" if kind else "")
)
if group.world_size == 1:
    raise runtime.SetupError(
        "the bandwidth test needs at least two processes",
        hint="torchrun --nproc-per-node 2 train.py",
    )

n = group.world_size
say(f"\n{'operation':<15} {'size':>6} {'time us':>10} {'algbw GB/s':>11} {'busbw GB/s':>11}")
rows: list[dict[str, float | str]] = []
latency = best = 0.0
for operation in OPERATIONS:
    if operation.name not in config.operations:
        continue
    for size in sizes(config.smallest, config.largest, config.factor):
        seconds = seconds_of(operation.make(size, device), device, iterations_for(size))
        moved = 4 * elements(size, 1 if operation.name in ("all_reduce", "send") else n)
        algorithm = moved / seconds / 1e9
        bus = algorithm * operation.factor(n)
        say(
            f"{operation.name:<15} {words(size):>6} {seconds * 1e6:>10.1f} {algorithm:>11.3f} {bus:>11.3f}"
        )
        rows.append(
            {
                "operation": operation.name,
                "bytes": moved,
                "seconds": seconds,
                "algbw": algorithm,
                "busbw": bus,
            }
        )
        best = max(best, bus)
        if operation.name == "all_reduce" and size == config.smallest:
            latency = seconds / (2 * (n - 1))

runtime.report(step=1, busbw=best)
if place.node_count > 1 and gigabits:
    each = gigabits / 8 / place.local_world_size
    say(
        f"\nbest bus bandwidth {best:.2f} GB/s; {kind} has {gigabits:g} Gb/s of {expected}, {gigabits / 8:g} GB/s for "
        f"an instance: {best / (gigabits / 8):.0%} (a process has {each:.2f} GB/s of it)"
    )
else:
    say(
        f"\nbest bus bandwidth {best:.2f} GB/s"
        + ("" if kind else "; the instance type is not known here")
    )
wait_for_all()
verdict = sentence(read_logs(logs), expected, group.backend, place.node_count)
say(verdict)

if config.check:
    tensor = torch.ones(elements(config.largest, 1), device=device)
    turns = 3 * iterations_for(config.largest)
    ours, by_hand = [], []
    for _ in range(5):  # in turn, so that what else the machine does disturbs both
        ours.append(seconds_of(lambda: dist.all_reduce(tensor), device, turns, batches=1))
        settled(device)
        begun = time.perf_counter()
        for _ in range(turns):
            dist.all_reduce(tensor)
        if device.type == "cuda":
            torch.cuda.synchronize()
        by_hand.append((time.perf_counter() - begun) / turns)
    off = sorted(ours)[2] / sorted(by_hand)[2] - 1
    say(
        f"an all-reduce of {words(config.largest)} timed by hand: {sorted(by_hand)[2] * 1e6:.1f} us; ours {off:+.1%}"
    )

say(
    f"\na model of {config.layers} layers, width {config.width}, {config.batch} rows on each process"
)
say(f"{'processes':>9} {'step ms':>9} {'rows/s':>10} {'speed-up':>9} {'efficiency':>11}")
alone, undivided, gradients = 0.0, 0.0, 0
for count, seconds, size in step_seconds(
    device, config.width, config.layers, config.batch, config.rounds, is_divided=False
):
    alone, gradients = alone or seconds, size
    speed_up = count * alone / seconds
    say(
        f"{count:>9} {seconds * 1e3:>9.2f} {count * config.batch / seconds:>10,.0f} {speed_up:>8.2f}x "
        f"{speed_up / count:>11.1%}"
    )
    runtime.report(step=count, efficiency=speed_up / count)

whole_batch = config.batch * n
say(f"\nthe same work for all: {whole_batch} rows, divided among the processes")
say(f"{'processes':>9} {'step ms':>9} {'speed-up':>9} {'a job of 100 s takes':>21} {'at best':>9}")
for count, seconds, _ in step_seconds(
    device, config.width, config.layers, whole_batch, config.rounds, is_divided=True
):
    if count == 1:
        undivided = seconds
    say(
        f"{count:>9} {seconds * 1e3:>9.2f} {undivided / seconds:>8.2f}x "
        f"{100 * seconds / undivided:>19.1f} s {100 / count:>7.4g} s"
    )
    runtime.report(step=count, strong_efficiency=undivided / seconds / count)

if latency:  # else no all-reduce was measured
    say(
        f"\nprojected: {gradients / 1e6:.1f} MB of gradients, {latency * 1e6:.0f} us for a message, nothing hidden"
    )
    say(f"{'processes':>9} " + " ".join(f"{rate:>6g} Gb/s" for rate in NETWORKS))
    for count, efficiencies in projected(alone, gradients, latency, [2, 8, 32, 128]):
        say(f"{count:>9} " + " ".join(f"{efficiency:>11.1%}" for efficiency in efficiencies))

if group.is_main:
    result = {
        "processes": n,
        "instances": place.node_count,
        "backend": group.backend,
        "network": verdict,
        "rows": rows,
    }
    (runtime.output_dir("bandwidth") / "bandwidth.json").write_text(
        json.dumps(result, indent=1) + "\n"
    )
runtime.destroy_process_group()
