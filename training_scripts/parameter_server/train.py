"""Train on handwritten digits with an asynchronous parameter server and any number of workers.

One process, which is server and worker; then a server and one worker, which gives the same losses; then three workers:
    python train.py
    torchrun --nproc-per-node 2 train.py
    torchrun --nproc-per-node 4 train.py

The same where each gradient takes 5 ms, or 20 ms on worker 1; then no worker may be more than 2 gradients ahead:
    torchrun --nproc-per-node 4 train.py --step_seconds 0.005 --slow_worker 1
    torchrun --nproc-per-node 4 train.py --step_seconds 0.005 --slow_worker 1 --max_staleness 2

Against ring all-reduce, as a table and as a picture:
    torchrun --nproc-per-node 4 train.py --experiment

By arithmetic: the ring and servers against the number of processes, and servers that hold unequal parts:
    python train.py --costs

As a job: this machine, Amazon SageMaker, Azure Machine Learning:
    cloudtrain submit job.yaml
    cloudtrain submit job.yaml --target sagemaker
    cloudtrain submit job.yaml --target azureml

Stop it with SIGTERM (or lose the spot instance) and run it again, with any number of workers: it continues from its
last checkpoint, and every batch is still used once.
"""

import os
import queue
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc

try:
    from cloudtrain import runtime
# not installed; in a checkout it stands two folders up, and the runtime is plain Python
except ModuleNotFoundError:
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent))
    from cloudtrain import runtime

from server import Server, exchange, serving, summary
from worker import Digits, learning_rate_at, work


@dataclass
class Config:
    epochs: int = 10
    batch: int = 32  # images of one gradient
    # peak; rises over the first epoch, then falls to zero along a cosine
    learning_rate: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 1e-4
    hidden: int = 128
    seed: int = 1
    # gradients that a worker may be ahead of the slowest one; None: no limit
    max_staleness: int | None = None

    step_seconds: float = 0.0  # seconds that a gradient takes at least; sleep fills it up
    slow_worker: int = 0  # this worker takes `slow_factor` times as long; 0 for none
    # share of all gradients that take `slow_factor` times as long, on whichever worker
    hiccups: float = 0.0
    slow_factor: float = 4.0

    report_every: int = 20  # updates
    checkpoint_every: int = 100  # updates
    # do not train; compare with ring all-reduce, print a table and draw a picture
    experiment: bool = False
    picture: str = "parameter_server.png"
    costs: bool = False  # do not train; what exchanges would cost, for a network of these figures:
    gigabits: float = 25.0  # per second, each way, for each process
    latency: float = 2e-5  # seconds for a message


AT_LEAST = {
    "epochs": 0, "batch": 1, "hidden": 1, "max_staleness": 0, "step_seconds": 0, "slow_worker": 0, "hiccups": 0,
    "slow_factor": 0, "report_every": 1, "checkpoint_every": 1, "gigabits": 1e-3, "latency": 0,
}  # fmt: skip

config = runtime.arguments(Config, at_least=AT_LEAST)
place = runtime.detect_environment()
workers = max(1, place.world_size - 1)
problems = {
    f"`--slow_worker` is {config.slow_worker}, and the workers are 1 to {workers}": config.slow_worker
    > workers,
    "`--experiment` needs a server and two workers, so 3 processes": config.experiment
    and place.world_size < 3,
    "`--experiment` needs an epoch": config.experiment and config.epochs < 1,
}
if wrong := [text for text, found in problems.items() if found]:
    raise runtime.SetupError("; ".join(wrong))

torch.set_num_threads(1)  # the network is too small to share among cores
device = torch.device("cpu")
# the server needs no GPU, so the workers beside it start with the first
if torch.cuda.is_available():
    device = torch.device(
        "cuda", max(0, place.local_rank - (place.node_rank == 0)) % torch.cuda.device_count()
    )
digits = Digits(hidden=config.hidden, batch=config.batch, seed=config.seed, device=device)
if config.costs:
    from costs import tables

    print(
        tables(
            [parameter.nbytes for parameter in digits.network.parameters()],
            config.gigabits,
            config.latency,
        )
    )
    sys.exit()
last_update = config.epochs * digits.batches_per_epoch


def join_rpc() -> None:
    """Join rpc; rank 0 is `server`. env:// is the only rendezvous that works under torchrun, whose agent owns the
    store. Each attempt uses its own part of the store, because restarted processes would otherwise read the addresses
    of dead ones. On several instances, whose agents count separately, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 makes
    torchrun use a new store."""

    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if place.node_count == 1 else "0"

    def rendezvous(_url: str, **_options: object):
        store, rank, world_size = next(dist.rendezvous("env://", place.rank, place.world_size))
        yield dist.PrefixStore(f"attempt_{attempt}", store), rank, world_size

    dist.register_rendezvous_handler("attempt", rendezvous)
    # torch.distributed.rpc about itself
    warnings.filterwarnings("ignore", "You are using a Backend")
    # seconds; waiting is normal
    options = rpc.TensorPipeRpcBackendOptions(init_method="attempt://", rpc_timeout=1800)
    name = f"worker{place.rank}" if place.rank else "server"
    rpc.init_rpc(name, rank=place.rank, world_size=place.world_size, rpc_backend_options=options)


def call_server(*args):
    return rpc.rpc_sync("server", exchange, args)


if config.experiment:
    from experiment import run_experiment

    group = runtime.init_process_group("gloo")
    join_rpc()
    run_experiment(config, digits, group, call_server)
    rpc.shutdown()
    runtime.destroy_process_group()
    sys.exit()

runtime.watch_for_stop()
if not place.is_main:
    join_rpc()
    work(config, digits, place.rank, call_server, runtime.should_stop)
    rpc.shutdown()
    sys.exit()

# From here on this is the server. Its rpc threads take gradients and hand out tasks; its main
# thread does what is slow.
server = Server(
    digits.weights(),
    workers=workers,
    last_update=last_update,
    learning_rate_at=lambda update: learning_rate_at(config, digits, update),
    max_staleness=config.max_staleness,
    report_every=config.report_every,
    evaluate_every=digits.batches_per_epoch,
    save_every=config.checkpoint_every,
    momentum=config.momentum,
    weight_decay=config.weight_decay,
)
checkpoints = runtime.Checkpoints()
if resumed := checkpoints.load():
    server.load_state_dict(resumed.state)
    runtime.notice(
        f"resumed from update {server.updates}; {len(server.again)} batches under way then are done again"
    )
serving.append(server)
print(
    f"processes={place.world_size} workers={workers} max_staleness={config.max_staleness}",
    flush=True,
)
if place.world_size > 1:
    join_rpc()
else:  # the same worker, in a thread of this process
    alone = Digits(hidden=config.hidden, batch=config.batch, seed=config.seed, device=device)
    arguments = (config, alone, 1, lambda *args: server.exchange(*args).wait(), runtime.should_stop)
    # it must not go unseen
    threading.excepthook = lambda failure: (sys.__excepthook__(*failure[:3]), os._exit(1))
    threading.Thread(target=work, args=arguments, daemon=True).start()

handle = {
    "report": lambda step, content: runtime.report(
        step=step, total=last_update, epoch=step / digits.batches_per_epoch, **content
    ),
    "evaluate": lambda step, weights: runtime.report(
        step=step, test_accuracy=digits.accuracy(weights)
    ),
    "save": lambda step, state: checkpoints.save(state, step),
}


def give_up(worker: int) -> None:
    """Save, and exit without waiting for the workers, because a dead worker is a failure and not a clean stop."""
    with server.lock:
        checkpoints.save(server.state_dict(), server.updates)
    print(f"error: worker {worker} has died", file=sys.stderr, flush=True)
    os._exit(1)


def see_who_is_gone() -> None:
    """Find dead workers. torchrun sends SIGTERM both for a user's stop and for another process's death. Dead workers do
    not answer."""
    for worker in server.here if place.world_size > 1 else ():
        try:
            rpc.rpc_sync(f"worker{worker}", time.time, timeout=120)
        except RuntimeError:
            give_up(worker)


started = time.perf_counter()
while server.here or not server.events.empty():
    try:
        event = server.events.get(timeout=0.05)
        handle[event.kind](event.updates, event.content)
    except queue.Empty:
        pass
    if runtime.should_stop() and server.here:
        server.stop()
        see_who_is_gone()
seconds = time.perf_counter() - started

if place.world_size > 1:
    rpc.shutdown()
if server.updates < last_update:
    checkpoints.save(server.state_dict(), server.updates)
    runtime.exit_preempted(server.updates)

if server.seen:
    print("", *summary(server), "", sep="\n")
accuracy = digits.accuracy(server.weights.detach())  # the network has these weights now
torch.save(digits.network.state_dict(), runtime.model_dir() / "model.pt")
print(f"test accuracy {accuracy:.4f} after {server.updates} updates, {seconds:.1f} s", flush=True)
