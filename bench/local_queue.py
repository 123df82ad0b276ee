"""Measure the queue of this machine: what waiting costs, and how soon the next run starts.

    python bench/local_queue.py [--json FILE] [--runs N] [--seconds S] [--watch S]

It queues N runs of S seconds behind a run that holds the only slot, and measures the processor time that their
supervisors take while they wait. Then the first run ends, and the supervisor of the third is killed with -9 meanwhile.
A gap is the time from the last line of one script to the first line of the next, including Python's start.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

import cloudtrain as ct

SCRIPT = """\
import os, time
with open(os.environ["TIMES"], "a") as times:
    times.write(f"start {time.time()} {os.environ['CLOUDTRAIN_RUN_NAME']}\\n")
    times.flush()
    end = time.monotonic() + float(os.environ["SECONDS"])
    while time.monotonic() < end or (os.environ.get("HOLD") and not os.path.exists(os.environ["HOLD"])):
        time.sleep(0.005)
    times.write(f"end {time.time()} {os.environ['CLOUDTRAIN_RUN_NAME']}\\n")
"""


def job(name: str, folder: Path, **variables: str) -> ct.TrainingJob:
    """Return a job of the script above."""
    given = {"TIMES": str(folder / "times"), **variables}
    environment = ct.Environment(variables=given)
    return ct.TrainingJob(
        name=name, source_dir=str(folder / "src"), entry_point="train.py", environment=environment
    )


def processor_time(pids: list[int]) -> float:
    """Return the seconds that processes have run so far, in nanoseconds' resolution where the kernel gives it."""
    total = 0.0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
        except (OSError, ValueError):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


def measure(count: int, seconds: float, watch: float) -> dict[str, Any]:
    """Queue the runs, watch them, let them start."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["CLOUDTRAIN_STATE_DIR"] = str(folder / "state")
        (folder / "src").mkdir()
        (folder / "src/train.py").write_text(SCRIPT)
        target = ct.Local(queue=True, slots=1)
        first = ct.submit(job("first", folder, SECONDS="0", HOLD=str(folder / "go")), target)
        started = time.perf_counter()
        runs = [
            ct.submit(job(f"job{number}", folder, SECONDS=str(seconds)), target)
            for number in range(count)
        ]
        submitting = time.perf_counter() - started
        time.sleep(3)
        pids = [
            json.loads((run.directory / "status.json").read_text())["pid"]
            for run in runs
            if run.directory
        ]
        before = processor_time(pids)
        time.sleep(watch)
        waiting = processor_time(pids) - before
        memory = [psutil.Process(pid).memory_full_info() for pid in pids]
        (folder / "go").touch()
        os.kill(pids[1], signal.SIGKILL)  # the third of all
        states = [str(run.wait().state) for run in (first, *runs)]
        lines = [line.split() for line in (folder / "times").read_text().splitlines()]
        names = [name for word, _, name in lines if word == "start"]
        times = [float(moment) for _, moment, _ in lines]
        gaps = [times[index + 1] - times[index] for index in range(1, len(times) - 1, 2)]
        expected = [run.name for run in (first, *runs) if run is not runs[1]]
        return {
            "runs": count,
            "submit_s": submitting / count,
            "waiting_processor_s": waiting,
            "waiting_watched_s": watch,
            "waiting_memory_mb_each": statistics.median(item.uss for item in memory) / 1e6,
            "in_order": names == expected,
            "lost": states.count("lost"),
            "succeeded": states.count("succeeded"),
            "gap_median_s": statistics.median(gaps),
            "gap_largest_s": max(gaps),
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--watch", type=float, default=60.0)
    options = parser.parse_args()
    found = measure(options.runs, options.seconds, options.watch)
    for name, value in found.items():
        print(f"{name:<24} {value:.4f}" if isinstance(value, float) else f"{name:<24} {value}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
