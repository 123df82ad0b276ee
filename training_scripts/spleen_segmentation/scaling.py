"""Show how preparation and training scale: measure one and two processes on this machine, and project the result with a
model.

    python scaling.py                                     # measures for some minutes, then projects
    python scaling.py --rounds 0 --prepare_efficiency 0.97 --train_efficiency 0.9        # only projects
    python scaling.py --prepare_hours 80 --train_hours 10 --volumes 500

Processes are those of a job on this machine: for preparation each with its share of the scans, as links; for training
started by torchrun, with one global batch for all of them. Each computes in one thread.
"""

import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

try:
    from cloudtrain import runtime
# not installed; in a checkout it stands two folders up, and the runtime is plain Python
except ModuleNotFoundError:
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent))
    from cloudtrain import runtime

from cloudtrain.runtime.shards import link_share

HERE = Path(__file__).resolve().parent


@dataclass
class Config:
    rounds: int = 3  # each figure is the median of so many, taken in turn; 0: measure nothing
    count: int = 16  # synthetic volumes to measure with
    voxel: float = 2.0  # their mm
    steps: int = 40  # of training to measure with
    # The work to project: what one process needs for it, and the machines.
    prepare_hours: float = 45.0
    train_hours: float = 45.0
    volumes: int = 4000
    train_steps: int = 20_000
    global_batch: int = 32  # patches: no more processes than that can take part
    parameters: float = 4.8e6  # of a UNet with channels 16,32,64,128,256 and two residual units
    gigabits: float = 10.0  # between instances, per second
    # until instances are there, with image and requirements; for each of the two jobs
    start_minutes: float = 6.0
    prepare_efficiency: float = 1.0  # with several processes, where nothing is measured
    train_efficiency: float = 1.0


AT_LEAST = {
    "rounds": 0, "count": 1, "voxel": 0.1, "steps": 1, "volumes": 1, "train_steps": 0, "global_batch": 1,
    "gigabits": 0.001, "prepare_efficiency": 0.01, "train_efficiency": 0.01,
}  # fmt: skip


# Measuring.


def in_turn(
    rounds: int, count: int, voxel: float, steps: int
) -> tuple[dict[int, float], dict[int, float]]:
    """Return median seconds by number of processes, of a preparation and of a training step."""
    prepared: dict[int, list[float]] = {1: [], 2: []}
    trained: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python(
            "make_volumes.py",
            "--folder",
            folder / "raw",
            "--count",
            count,
            "--voxel",
            voxel,
            cwd=folder,
        )
        for turn in range(rounds):
            for processes in (1, 2):
                prepared[processes].append(
                    preparation(folder / f"prepare-{turn}-{processes}", folder / "raw", processes)
                )
                trained[processes].append(
                    training_step(folder / f"train-{turn}-{processes}", processes, steps)
                )
    return tuple(
        {n: statistics.median(times) for n, times in kind.items()} for kind in (prepared, trained)
    )  # type: ignore[return-value]


def preparation(folder: Path, raw: Path, processes: int) -> float:
    """Return the seconds from the start of all processes to the end of the last one."""
    shares = [folder / str(number) for number in range(processes)]
    for number, share in enumerate(shares):
        link_share(str(share), str(raw / "imagesTr"), number, processes)
    started = time.perf_counter()
    running = [
        subprocess.Popen(
            [sys.executable, HERE / "prepare.py", "--raw", raw, "--workers", "1"],
            cwd=folder,
            env=environment(
                CLOUDTRAIN_INPUT_IMAGES=str(share),
                CLOUDTRAIN_INSTANCE=str(number),
                CLOUDTRAIN_INSTANCE_COUNT=str(processes),
            ),
            stdout=subprocess.DEVNULL,
        )
        for number, share in enumerate(shares)
    ]
    exit_codes = [process.wait() for process in running]
    seconds = time.perf_counter() - started
    if any(exit_codes):
        sys.exit("error: a preparation failed")
    return seconds


def training_step(folder: Path, processes: int, steps: int) -> float:
    """Return the seconds of a step of the whole global batch, without start and evaluation."""
    folder.mkdir()
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes)
    schedule = ("--steps", steps, "--evaluate_every", steps, "--checkpoint_every", steps)
    said = python(*launcher, HERE / "train.py", *schedule, cwd=folder)
    seconds = re.search(rf"after {steps} steps, ([0-9.]+) s", said)
    assert seconds is not None, said
    return float(seconds[1]) / steps


def python(*words: object, cwd: Path) -> str:
    """Run a script of this folder, or a module, to its end. Return its output."""
    words = (HERE / str(words[0]), *words[1:]) if words[0] != "-m" else words
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, cwd=cwd, env=environment(), check=True, text=True, stdout=subprocess.PIPE
    ).stdout


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **more}


def efficiency(seconds: dict[int, float]) -> float:
    """Return the efficiency of two processes: 1 if they need half the time of one process."""
    return seconds[1] / (2 * seconds[2])


# Projecting.

MODEL = """
hours of n processes  =  start + preparation + start + training
  start               =  {start_minutes:g} minutes (an assumption), for n > 1
  preparation         =  ceil(volumes / n) x hours of a volume / efficiency ({prepare_efficiency:.2f}), for
                         {volumes} volumes
  training            =  hours of one process / n / efficiency ({train_efficiency:.2f}) + steps x exchange, for
                         {train_steps} steps; n is at most the batch, {global_batch} patches
  exchange            =  2 (n - 1) / n x {megabytes:.1f} MB of gradients at {gigabits:g} Gbit/s, none of it hidden
The efficiencies are those of two processes{here}.
"""


def efficiency_with(n: int, of_two: float) -> float:
    """Return the efficiency of more processes. It equals that of two, because a process disturbs its neighbours no more
    when there are many."""
    return of_two if n > 1 else 1.0


def hours_of_preparation(n: int, config: Config) -> float:
    """Return the hours of a preparation. The largest share decides."""
    share = math.ceil(config.volumes / n) / config.volumes
    return config.prepare_hours * share / efficiency_with(n, config.prepare_efficiency)


def hours_of_training(n: int, config: Config) -> float:
    """Return the hours of a training. The batch is the same for any number of processes; gradients go round a ring once
    per step."""
    n = min(n, config.global_batch)
    exchange = 2 * (n - 1) / n * config.parameters * 4 / (config.gigabits * 1e9 / 8)
    return (
        config.train_hours / n / efficiency_with(n, config.train_efficiency)
        + config.train_steps * exchange / 3600
    )


def hours(n: int, config: Config) -> float:
    starts = 2 * config.start_minutes / 60 if n > 1 else 0.0
    return starts + hours_of_preparation(n, config) + hours_of_training(n, config)


def enough(limit: float, config: Config) -> int | None:
    """Return the fewest processes that need at most the given hours; None when no number below 4,096 does."""
    return next((n for n in range(1, 4096) if hours(n, config) <= limit), None)


def main() -> None:
    config = runtime.arguments(Config, at_least=AT_LEAST)
    if config.rounds:
        prepared, trained = in_turn(config.rounds, config.count, config.voxel, config.steps)
        print(f"measured here, medians of {config.rounds}")
        heads = f"{config.count} volumes, s", "speed-up", "a training step, ms", "speed-up"
        print("processes" + "".join(f"{head:>22}" for head in heads))
        for n in (1, 2):
            print(
                f"{n:<9}{prepared[n]:>22.2f}{prepared[1] / prepared[n]:>22.2f}"
                f"{trained[n] * 1e3:>22.1f}{trained[1] / trained[n]:>22.2f}"
            )
        if max(efficiency(prepared), efficiency(trained)) > 1:
            print(
                "\ntwo processes did more than twice as much: the machine was busy; an efficiency over 1 is taken as 1"
            )
        config.prepare_efficiency = min(1.0, efficiency(prepared))
        config.train_efficiency = min(1.0, efficiency(trained))
    here = " here, side by side on one machine" if config.rounds else ", as given"
    print(MODEL.format(**vars(config), megabytes=config.parameters * 4 / 1e6, here=here))
    print(
        f"{'processes':>9} {'preparation, h':>15} {'training, h':>12} {'all, h':>8} {'speed-up':>9}"
    )
    for n in (1, 2, 4, 8, 16, 32, 64, 128):
        total = hours(n, config)
        parts = f"{hours_of_preparation(n, config):>15.1f} {hours_of_training(n, config):>12.1f}"
        print(f"{n:>9} {parts} {total:>8.1f} {hours(1, config) / total:>9.1f}")
    least = enough(4.0, config)
    print(
        f"\n{hours(1, config):.0f} hours "
        + (f"become 4 with {least} processes" if least else "never become 4")
    )


if __name__ == "__main__":
    main()
