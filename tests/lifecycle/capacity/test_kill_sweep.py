"""Lists of alternatives whose submit commands and watchers are killed at random times: one run each."""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.lifecycle.detached.driven import DrivenFolder
from tests.lifecycle.capacity.conftest import SAGEMAKER, Clouds
from tests.lifecycle.capacity.test_lists import G4, NONE_LEFT
from tests.lifecycle.submission import forking
from tests.targets.places import eventually

pytestmark = [pytest.mark.lifecycle, pytest.mark.slow]

KILLS = int(os.environ.get("CLOUDTRAIN_TEST_KILLS", "4"))
PROGRAM = Path(forking.__file__).parent / "crashing_sagemaker.py"


def live(_: int, job: Any) -> None:
    """The first try of each list finds no capacity."""
    if job.name.endswith("-t001"):
        job.end("Failed", FailureReason=NONE_LEFT)
    else:
        job.enter("Training")


def write_job(source: Path, name: str) -> str:
    """A job file with two alternatives."""
    fields = {
        "name": name,
        "source_dir": str(source),
        "entry_point": "train.py",
        "resources": {"instance_type": "ml.g5.xlarge"},
        "environment": {"framework": "pytorch", "version": "2.8"},
        "max_runtime": "1h",
        "capacity": {"alternatives": [G4]},
    }
    Path(f"{name}.json").write_text(json.dumps(fields))
    return f"{name}.json"


def kill(folder: DrivenFolder) -> bool:
    """Kill the watcher, and return whether there was one."""
    status = folder.read_status()
    if not status or not folder.is_driven:
        return False
    os.kill(status["pid"], signal.SIGKILL)
    eventually(lambda: not folder.is_driven)
    return True


def test_killed_at_random_times(clouds: Clouds, source: Path, state_dir: Path) -> None:
    """Submits are killed and repeated, and then the watcher is killed three times and started again. Each list of which
    the user was told sends each try once."""
    random = Random(int(os.environ.get("CLOUDTRAIN_TEST_SEED", "1")))
    clouds.live = live
    Path("cloudtrain.toml").write_text(
        f'target = "sagemaker"\n[sagemaker]\nregion = "eu-west-1"\nrole = "{SAGEMAKER.role}"\n'
    )
    told = list[str]()
    kills = {"submit": 0, "watcher": 0}

    with forking.start_submitter(PROGRAM) as submitter:

        def runs(name: str) -> bool:
            """Whether a list has its run. One that has lost its watcher continues."""
            state = ct.run(name).status().state
            if state is ct.RunState.LOST:
                again = submitter.submit(words=["continue", name, "--detach"])
                assert again["ended"] == 0, again
            return state is ct.RunState.RUNNING

        whole = submitter.submit(job=write_job(source, "whole"))
        began = time.monotonic()
        told += whole["told"].split()
        eventually(lambda: runs(told[0]))
        life = time.monotonic() - began

        while sum(kills.values()) < KILLS:
            job = write_job(source, f"k{len(told)}")
            names = set[str]()
            for _ in range(2):
                seconds = random.uniform(0.0, 1.1) * whole["seconds"]
                killed = submitter.submit(job=job, killed_after=seconds)
                kills["submit"] += killed["ended"] == -signal.SIGKILL
                names |= {line for line in killed["told"].split("\n")[:-1] if line}
            again = submitter.submit(job=job)
            assert again["ended"] == 0, again
            names |= set(again["told"].split())
            (name,) = again["told"].split()
            for _ in range(3):
                time.sleep(random.uniform(0.0, 1.1) * life)
                kills["watcher"] += kill(DrivenFolder(state_dir, "chain", name))
                runs(name)
            for each in sorted(names):
                eventually(partial(runs, each))
            told += names

    sent = sorted(job.name for job in clouds.created)
    print(f"kills {kills} in {len(told)} lists")
    assert sent == sorted(f"{name}-t00{number}" for name in told for number in (1, 2))
    assert sorted(run.name for run in ct.runs()) == sorted(told)
