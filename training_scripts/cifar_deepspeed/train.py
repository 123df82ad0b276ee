"""Train a residual network on CIFAR-10 with DeepSpeed: ZeRO 0 to 3, the same losses.

One process, then two at each stage (what the processes share out is in zero.py):
    python train.py
    torchrun --nproc-per-node 2 train.py --zero_stage 3

The same under MPI, and under DeepSpeed's own launcher:
    mpirun -np 2 python train.py --zero_stage 2
    LOCAL_SIZE=2 deepspeed train.py --zero_stage 2

Let DeepSpeed's autotuner look for stage and batch size, then train with what it found:
    LOCAL_SIZE=2 deepspeed --autotuning tune train.py --deepspeed_config ds_config_autotune.json
    torchrun --nproc-per-node 2 train.py --deepspeed_config autotuning_results/ds_config_optimal.json

As a job: this machine, Amazon SageMaker, Azure Machine Learning (the other forms: job_mpi.yaml, job_autotune.yaml):
    cloudtrain submit job.yaml
    cloudtrain submit job.yaml --target sagemaker
    cloudtrain submit job.yaml --target azureml

Without CIFAR-10 in data/cifar it trains on 1,797 scans of handwritten digits in the same format, and says so.

Stop it with SIGTERM and run it again with as many processes: it continues from its last checkpoint.
"""

import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

try:
    from cloudtrain import runtime
# not installed; in a checkout it stands two folders up, and the runtime is plain Python
except ModuleNotFoundError:
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent))
    from cloudtrain import runtime

# In a checkout four of the files below stand only there (.cloudtraininclude); a copy and a bundle
# have them here.
sys.path.append(str(Path(__file__).resolve().parent.parent / "cifar_ddp"))
from batches import Batches
from cifar import Cifar, read_cifar
from make_digits import write_digits
from network import ResNet
from zero import bytes_per_parameter, count_writers, read_settings, settings_for


@dataclass
class Config:
    # 0: nothing is divided; 1: Adam's moments; 2: and gradients; 3: and weights
    zero_stage: int = 2
    epochs: int = 4
    global_batch: int = 64  # images per optimizer step, over all processes
    accumulate: int = 1  # parts into which each process cuts its share
    # peak; rises over the first epoch's half, then falls along a cosine
    learning_rate: float = 0.005
    label_smoothing: float = 0.1
    width: int = 8  # channels of the first stage of the network
    blocks: int = 1  # residual blocks per stage
    deepspeed_config: str = (
        # used as it is, with its own stage and batch; unless given, ds_config.json and the above
        ""
    )
    seed: int = 1
    backend: str = "auto"
    report_every: int = 10  # steps
    checkpoint_every: int = 50  # steps
    step_delay: float = 0.0  # seconds of sleep after each step, to watch or interrupt a run
    local_rank: int = 0  # DeepSpeed's launcher passes it; the environment says the same


AT_LEAST = {
    "epochs": 1, "global_batch": 1, "accumulate": 1, "width": 1, "blocks": 1, "report_every": 1,
    "checkpoint_every": 1, "step_delay": 0,
}  # fmt: skip

config = runtime.arguments(Config, at_least=AT_LEAST)
try:
    import deepspeed
except ModuleNotFoundError:
    raise runtime.SetupError(
        "this script needs DeepSpeed",
        hint="pip install -r requirements.txt, into an environment that has torch",
    ) from None

torch.manual_seed(config.seed)
if not torch.cuda.is_available():
    torch.set_num_threads(1)  # the network is too small to share among cores

# Whoever started the processes, the runtime finds its rank; DeepSpeed joins the group that is
# there. It asks for these variables all the same, and under MPI or alone nobody has set them.
group = runtime.init_process_group(config.backend)
for name, number in (
    ("RANK", group.rank),
    ("WORLD_SIZE", group.world_size),
    ("LOCAL_RANK", group.local_rank),
):
    os.environ[name] = str(number)
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29500")
runtime.watch_for_stop()


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
# a path, or what the autotuner puts there: base64
settings: str | dict[str, Any] = config.deepspeed_config
if not settings:
    steps_per_epoch = Batches(
        train, config.global_batch, config.seed, group.rank, group.world_size
    ).steps_per_epoch
    try:
        settings = settings_for(
            read_settings(Path(__file__).with_name("ds_config.json")),
            stage=config.zero_stage,
            global_batch=config.global_batch,
            processes=group.world_size,
            accumulate=config.accumulate,
            learning_rate=config.learning_rate,
            steps=config.epochs * steps_per_epoch,
            warmup_steps=max(2, steps_per_epoch // 2),
            bf16=runtime.has_bf16(),
        )
    except ValueError as error:
        raise runtime.SetupError(
            str(error), hint="see `--help` for `--zero_stage`, `--global_batch` and `--accumulate`"
        ) from None

network = ResNet(config.width, config.blocks, len(names))
parameter_count = sum(parameter.numel() for parameter in network.parameters())
engine, _, _, _ = deepspeed.initialize(
    model=network, model_parameters=network.parameters(), config=settings
)
dtype = torch.bfloat16 if engine.bfloat16_enabled() else torch.float32
stage, accumulate = engine.zero_optimization_stage(), engine.gradient_accumulation_steps()
batches = Batches(
    train, engine.train_batch_size(), config.seed, group.rank, group.world_size, mirror=is_cifar
)
last_step = config.epochs * batches.steps_per_epoch
if group.is_main:
    print(
        f"processes={group.world_size} device={group.device.type} backend={group.backend} zero={stage} "
        f"batch={engine.train_batch_size()} micro={engine.train_micro_batch_size_per_gpu()} parts={accumulate} "
        f"parameters={parameter_count} "
        f"bytes_per_parameter={bytes_per_parameter(stage, group.world_size, dtype == torch.bfloat16):.1f}",
        flush=True,
    )

mean, spread = train.pixels.float().mean().item(), train.pixels.float().std().item()


def prepared(pixels: torch.Tensor) -> torch.Tensor:
    """Move bytes to the device, with mean 0 and variance 1."""
    return ((pixels.to(engine.device).float() - mean) / spread).to(dtype)


@torch.no_grad()
def accuracy() -> float:
    """Return the accuracy over all test images. All processes make the same number of calls, because at stage 3 each
    call gathers weights from all processes. A process without remaining images computes on one that is not counted.
    """
    engine.eval()
    right = torch.zeros((), dtype=torch.long, device=engine.device)
    for start in range(0, len(test.labels), 100 * group.world_size):
        mine = range(start, min(start + 100 * group.world_size, len(test.labels)))[
            group.rank :: group.world_size
        ]
        numbers = torch.tensor(list(mine) or [0])
        guesses = engine(prepared(test.pixels[numbers])).argmax(1).cpu()
        right += (guesses == test.labels[numbers]).sum().to(engine.device) * bool(mine)
    engine.train()
    dist.all_reduce(right)
    return right.item() / len(test.labels)


# All processes write their parts of a checkpoint into one folder, which gets its name when it is
# whole.
checkpoints = runtime.Checkpoints()
first_step = 0
if saved := checkpoints.agree():
    if (writers := count_writers(saved.path / "parts")) not in (0, group.world_size):
        raise runtime.SetupError(
            f"{writers} processes wrote the checkpoint `{saved.path}`, and DeepSpeed cannot divide it among "
            f"{group.world_size}",
            hint=f"resume with {writers} processes, or remove the checkpoints to start from the beginning",
        )
    _, more = engine.load_checkpoint(str(saved.path), tag="parts")
    runtime.restore_random_states(more.get("random"))
    first_step = saved.step
    runtime.notice(f"resumed from step {first_step}")


def save(step: int) -> None:
    # of all processes, for what a network of yours may draw: dropout
    more = {"random": runtime.random_states()}
    checkpoints.save_sharded(
        lambda path: engine.save_checkpoint(str(path), "parts", more, save_latest=False), step
    )


def gradient_norm() -> torch.Tensor:
    """Return the norm of this process's gradient. At stage 0 this is the whole gradient. Call it between `backward` and
    `step`.
    """
    norms = [
        parameter.grad.norm() for parameter in network.parameters() if parameter.grad is not None
    ]
    return torch.stack(norms).norm() if norms else torch.tensor(0.0)


started = time.perf_counter()
for step in range(first_step, last_step):
    # DeepSpeed averages over the parts and the processes; all have as many images, so it is the
    # mean over the batch.
    pixels, labels = batches[step]
    loss_sum = torch.zeros((), device=engine.device)
    for part, truth in zip(
        pixels.tensor_split(accumulate), labels.tensor_split(accumulate), strict=True
    ):
        logits = engine(prepared(part)).float()
        loss = nn.functional.cross_entropy(
            logits, truth.to(engine.device), label_smoothing=config.label_smoothing
        )
        engine.backward(loss)
        norm = gradient_norm()
        engine.step()
        loss_sum += loss.detach() * len(truth)

    done = step + 1
    if done % config.report_every == 0 or done == first_step + 1:
        dist.all_reduce(loss_sum)
        # before clipping; of fp32 at stage 0 DeepSpeed keeps none
        whole = engine.get_global_grad_norm()
        figures = {
            "loss": loss_sum / batches.global_batch,
            "gradient_norm": norm if whole is None else whole,
        }
        runtime.report(step=done, total=last_step, **figures, learning_rate=engine.get_lr()[0])
    if done % batches.steps_per_epoch == 0:
        runtime.report(step=done, epoch=done // batches.steps_per_epoch, test_accuracy=accuracy())
    if done % config.checkpoint_every == 0 or done == last_step:
        save(done)
    if config.step_delay:
        time.sleep(config.step_delay)
    if runtime.should_stop() and done < last_step:
        save(done)
        runtime.exit_preempted(done)
seconds = time.perf_counter() - started

share = accuracy()
engine.save_16bit_model(str(runtime.model_dir()), "model.pt") if stage == 3 else None
if group.is_main:
    if stage < 3:
        torch.save(network.state_dict(), runtime.model_dir() / "model.pt")
    milliseconds = 1000 * seconds / max(1, last_step - first_step)
    print(
        f"test accuracy {share:.4f} after {last_step} steps, {seconds:.1f} s, {milliseconds:.0f} ms/step",
        flush=True,
    )
runtime.destroy_process_group()
