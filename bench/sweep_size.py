"""Measure how a sweep's size affects `ps`, `status` and `trials`, with 10 and with 1,000 trials.

    python bench/sweep_size.py [--json FILE] [--trials N] [--repeat N] [--reports N]

The sweeps are made up and have ended: each trial is a row of the store and three lines of the journal. The figure is
the least processor time of several turns, so that other load on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cloudtrain as ct
from cloudtrain.lifecycle.detached.driven import DrivenFolder
from cloudtrain.lifecycle.store.schema import open_store
from cloudtrain.lifecycle.store.store import RunRecord
from cloudtrain.lifecycle.sweeps.service import SweepService, trial_key, trial_name
from cloudtrain.lifecycle.sweeps.study import FILE_NAME
from cloudtrain.plans.states import RunState

COMMANDS = (
    ["ps"],
    ["ps", "--trials"],
    ["status", "last"],
    ["trials", "last"],
    ["trials", "last", "--best", "5"],
)


def events(name: str, number: int, reports: int) -> list[dict[str, object]]:
    """Return the journal of a trial."""
    at, values = time.time(), [0.5 + (number * step) % 97 / 1000 for step in range(reports)]
    ended = {
        "state": "succeeded",
        "value": values[-1],
        "reports": values,
        "started": at,
        "ended": at,
    }
    return [
        {
            "at": at,
            "event": "asked",
            "trial": number,
            "values": {"lr": number / 1e5, "width": number % 64},
        },
        {"at": at, "event": "submitted", "trial": number, "run": trial_name(name, number)},
        {"at": at, "event": "told", "trial": number, "stopped_early": False, **ended},
    ]


def make(state_dir: Path, count: int, reports: int) -> None:
    """Make an ended sweep with this number of trials."""

    def start(_: SweepService, folder: DrivenFolder) -> None:
        lines = [
            event
            for number in range(1, count + 1)
            for event in events(folder.name, number, reports)
        ]
        (folder.path / FILE_NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
        metrics = {"trials": count, "ended": count, "running": 0, "best_trial": 1, "score": 0.5}
        folder.write_status(RunState.SUCCEEDED, None, start_time=time.time(), metrics=metrics)

    SweepService._start = start  # type: ignore[method-assign]  # instead of a driver
    os.environ["CLOUDTRAIN_STATE_DIR"] = str(state_dir)
    source = state_dir.parent / "src"
    source.mkdir(exist_ok=True)
    (source / "train.py").write_text("")
    search = {"lr": {"log": [1e-4, 1e-1]}, "width": {"int": [1, 64]}}
    job = {"name": "many", "source_dir": str(source), "entry_point": "train.py"}
    sweep = ct.Sweep(
        name="many", job=job, search=search, objective={"maximize": "score"}, trials=count
    )
    run = ct.submit(sweep, "local")
    run.status()
    with open_store(state_dir) as store:
        store._db.execute("PRAGMA synchronous = OFF")
        for number in range(1, count + 1):
            record = RunRecord(
                name=trial_name(run.name, number), target="local", place=run.ref.place, job_name="many",
                key=trial_key(run.name, number), submitter="me", store=store.salt, counter=1, stage="planned",
                state="succeeded", reason=None, created=time.time(), started=time.time(), ended=time.time(),
            )  # fmt: skip
            lock = store.reserve(record, {"model": f"/nowhere/{number}"})
            assert lock is not None
            store.advance(record.name, "reported")
            lock.release(remove=True)


def processor_time(command: list[str], repeat: int) -> float:
    """Return the seconds of user and system time of a command, the least of several."""
    found = []
    for _ in range(repeat):
        process = subprocess.Popen(
            [sys.executable, "-m", "cloudtrain", *command], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, command
        found.append(used.ru_utime + used.ru_stime)
    return min(found)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--reports", type=int, default=20)
    options = parser.parse_args()
    found = dict[int, dict[str, float]]()
    for count in (10, options.trials):
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder) / "state", count, options.reports)
            found[count] = {
                " ".join(command): processor_time(command, options.repeat) for command in COMMANDS
            }
    for command, least in found[10].items():
        most = found[options.trials][command]
        print(
            f"{command:<24} {least:.3f} s with 10, {most:.3f} s with {options.trials:,}: {most / least:.2f} x"
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
