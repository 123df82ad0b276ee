"""Lose an instance in the middle of a training, continue without it, and take it back: torchrun's `--nnodes 1:N`.

Two simulated instances on this machine, each an agent of torchrun with one process:
    python elastic.py
    cloudtrain submit job_elastic.yaml

By hand you would run, on each of up to N machines that may come and go:
    torchrun --nnodes 1:N --max-restarts 9 --rdzv-backend c10d --rdzv-endpoint HOST:29400 train.py --checkpoint_every 10

The batch is global and follows from the step, so the losses are those of a run that never lost an instance.
"""

import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

try:
    from cloudtrain import runtime
# not installed; in a checkout it stands two folders up, and the runtime is plain Python
except ModuleNotFoundError:
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent))
    from cloudtrain import runtime


@dataclass
class Config:
    epochs: int = 10
    lose_at: int = 40  # the step at which instance 1 is lost
    alone_for: int = 40  # steps that instance 0 then makes before it comes back
    # seconds of sleep after each step, so that there is time to lose somebody
    step_delay: float = 0.05


AT_LEAST = {"epochs": 1, "lose_at": 1, "alone_for": 1, "step_delay": 0}
PATIENCE = 300.0
"""Seconds without a line of output, after which this script gives up."""


class Instance:
    """An agent of torchrun with one process, in its own session: killing the session stands for losing the machine."""

    def __init__(
        self, number: int, port: int, config: Config, lines: "queue.Queue[tuple[int, str]]"
    ) -> None:
        options = [
            "--nnodes",
            "1:2",
            "--nproc-per-node",
            "1",
            "--max-restarts",
            "9",
            "--rdzv-id",
            "digits",
        ]
        options += [
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            f"127.0.0.1:{port}",
            "--rdzv-conf",
            f"is_host={number == 0}",
        ]
        script = ["--epochs", str(config.epochs), "--step_delay", str(config.step_delay)]
        script += ["--checkpoint_every", "10", "--report_every", "5"]
        usual = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("TORCHELASTIC", "RANK", "WORLD"))
        }
        self.number = number
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *options, Path(__file__).with_name("train.py"), *script],
            env={
                **usual, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
                "CLOUDTRAIN_PATIENCE": "60",
            },
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: "queue.Queue[tuple[int, str]]") -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            lines.put((self.number, line.rstrip("\n")))
        lines.put((self.number, ""))

    def lose(self) -> None:
        """Kill the instance as in a power cut, without notice and without saving. Its processes are in their own
        groups.
        """
        for pid in [*children(self.process.pid), self.process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def children(pid: int) -> list[int]:
    """Return the processes that a process started."""
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    direct = [int(word) for word in listed.stdout.split()]
    return [*direct, *(below for child in direct for below in children(child))]


def main() -> int:
    config = runtime.arguments(Config, at_least=AT_LEAST)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    lines: queue.Queue[tuple[int, str]] = queue.Queue()
    here = {number: Instance(number, port, config, lines) for number in (0, 1)}
    lost_at = back_at = None
    sizes: list[int] = []
    losses: dict[int, float] = {}
    heard = time.monotonic()
    while here[0].process.poll() is None or not lines.empty():
        try:
            number, line = lines.get(timeout=1)  # instance 0 may end without another line
        except queue.Empty:
            if time.monotonic() - heard > PATIENCE:
                break
            continue
        heard = time.monotonic()
        if found := re.search(r"processes=(\d+) ", line):
            sizes.append(int(found[1]))
            print(f"instance {number}: {line}", flush=True)
        values = runtime.parse_metrics(line)
        if values is None or "loss" not in values:
            if "resumed from" in line or "test accuracy" in line:
                print(f"instance {number}: {line}", flush=True)
            continue
        step = int(values["step"])
        losses[step] = values["loss"]
        runtime.report(**values)
        if lost_at is None and step >= config.lose_at and len(sizes) and sizes[-1] == 2:
            here[1].lose()
            lost_at = step
            print(f"instance 1 is lost at step {step}", flush=True)
        elif lost_at and back_at is None and sizes[-1] == 1 and step >= lost_at + config.alone_for:
            here[1] = Instance(1, port, config, lines)
            back_at = step
            print(f"instance 1 comes back at step {step}", flush=True)
    exit_codes = [instance.process.wait(timeout=60) for instance in here.values()]
    result = {
        "sizes": sizes,
        "lost_at": lost_at,
        "back_at": back_at,
        "losses": losses,
        "exit_codes": exit_codes,
    }
    (runtime.output_dir("elastic") / "elastic.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"processes of each attempt: {sizes}; exit codes {exit_codes}", flush=True)
    return 0 if exit_codes[0] == 0 and back_at is not None else 1


if __name__ == "__main__":
    sys.exit(main())
