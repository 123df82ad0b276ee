"""Count how often a process aborts at its exit, after its training is done, with torch's own shutdown and with the
runtime's.

    python bench/leaving.py [--runs N] [--processes N]

gloo's threads drop their references to tensors some time after a collective returned. An interpreter that leaves
meanwhile ends in SIGABRT. Each run starts as many processes as asked for under torchrun, makes a few collectives and
leaves; a busy machine shows the abort more often. Prints one line per way of leaving: failed runs, and how they failed.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from cloudtrain import runtime

runtime.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 10))
for _ in range(20):
    model(torch.randn(4, 64)).sum().backward()
    dist.all_reduce(torch.zeros(1))
if sys.argv[1] == "torch":
    dist.barrier()
    dist.destroy_process_group()
else:
    runtime.destroy_process_group()
"""


def failure(way: str, script: Path, processes: int) -> str | None:
    """Run once. Return how it failed, or None."""
    argv = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(processes),
    ]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [*argv, str(script), way], capture_output=True, text=True, check=False, env=env
    )
    if result.returncode == 0:
        return None
    aborted = "terminate called without an active exception" in result.stderr
    codes = re.findall(r"exitcode +: (-?\d+)", result.stderr)
    return f"exit code {codes[-1] if codes else result.returncode}" + (
        ", terminate called" if aborted else ""
    )


def main() -> int:
    """Run both ways in turn, so that the machine's load is the same for both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--processes", type=int, default=4)
    options = parser.parse_args()
    failures: dict[str, collections.Counter[str]] = {
        way: collections.Counter() for way in ("torch", "runtime")
    }
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "leave.py"
        script.write_text(SCRIPT)
        for _ in range(options.runs):
            for way, found in failures.items():
                if how := failure(way, script, options.processes):
                    found[how] += 1
    for way, found in failures.items():
        details = "; ".join(f"{count} x {how}" for how, count in found.items())
        print(
            f"{way:8} {found.total()} of {options.runs} runs failed"
            + (f": {details}" if details else "")
        )
    return 0 if not failures["runtime"] else 1


if __name__ == "__main__":
    sys.exit(main())
