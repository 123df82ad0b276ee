"""Count how often a forked job hangs or fails, by running `--launcher fork`'s own launcher repeatedly.

    python bench/fork_soak.py [--runs N] [--processes N] [--deadline SECONDS] [--also runpy]

Each run forks as many ranks as asked for, which train a small model with DistributedDataParallel and leave in one of
three ways, in turn: without a word, through torch's `destroy_process_group`, and through the runtime's. A run that is
not over by the deadline hangs. `--also runpy` runs a launcher that differs in one thing: its ranks run the script with
`runpy` and leave as an interpreter does. Prints a line per launcher and way of leaving; exit code 1 when a run of ours
hung or failed.
"""

from __future__ import annotations

import argparse
import collections
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from cloudtrain import runtime

torch.set_num_threads(1)
runtime.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    model(torch.randn(4, 64)).sum().backward()
    optimizer.step()
    dist.all_reduce(torch.zeros(1))
if sys.argv[1] == "torch":
    dist.destroy_process_group()
elif sys.argv[1] == "runtime":
    runtime.destroy_process_group()
"""

WAYS = ("nothing", "torch", "runtime")

OURS = "from cloudtrain.runtime import fork_launcher; fork_launcher.main()"

WITH_RUNPY = """
import runpy, sys
from cloudtrain.runtime import fork_launcher
def as_an_interpreter_does(environment, folder, program):
    import os
    os.environ.update(environment)
    sys.argv[:] = program
    runpy.run_path(program[0], run_name="__main__")
    sys.exit(0)
fork_launcher._become = as_an_interpreter_does
fork_launcher.main()
"""


def free_port() -> str:
    """Return a port of this machine on which nothing listens now."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return str(held.getsockname()[1])


def outcome(launcher: str, way: str, script: Path, processes: int, deadline: float) -> str:
    """Run once. Return `ok`, `hung`, or the exit code of the ranks that failed."""
    arguments = [
        "--processes-per-instance",
        str(processes),
        "--master-port",
        free_port(),
        str(script),
        way,
    ]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", launcher, *arguments],
        env=env, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        _, said = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "hung"
    codes = [
        line.rpartition(" ")[2] for line in said.splitlines() if "ended with exit code" in line
    ]
    return (
        "ok"
        if process.returncode == 0
        else f"exit code {codes[-1] if codes else process.returncode}"
    )


def main() -> int:
    """Run all ways of leaving in turn, with both launchers, so that the machine's load is the same for all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--deadline", type=float, default=60.0)
    parser.add_argument("--also", choices=["runpy"])
    options = parser.parse_args()
    launchers = {"fork": OURS} | ({"runpy": WITH_RUNPY} if options.also else {})
    found = {(name, way): collections.Counter[str]() for name in launchers for way in WAYS}
    seconds: dict[str, list[float]] = {name: [] for name in launchers}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)
        for number in range(options.runs):
            way = WAYS[number % len(WAYS)]
            for name, launcher in launchers.items():
                started = time.perf_counter()
                found[name, way][
                    outcome(launcher, way, script, options.processes, options.deadline)
                ] += 1
                seconds[name].append(time.perf_counter() - started)
    for (name, way), outcomes in found.items():
        bad = "; ".join(f"{count} x {how}" for how, count in outcomes.items() if how != "ok")
        print(
            f"{name:6} leaving with {way:8} {outcomes['ok']:4} of {outcomes.total()} runs ended well {bad}".rstrip()
        )
    for name, taken in seconds.items():
        print(f"{name:6} median {statistics.median(taken):.1f} s, longest {max(taken):.1f} s")
    return (
        0
        if all(outcomes.keys() <= {"ok"} for (name, _), outcomes in found.items() if name == "fork")
        else 1
    )


if __name__ == "__main__":
    sys.exit(main())
