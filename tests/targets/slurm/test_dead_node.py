"""A node of a real cluster that is gone while its ranks train: what is said about it until Slurm knows, and afterwards."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil  # noqa: TID253 - tests may start slowly
import pytest

from cloudtrain.plans.states import RunState
from tests.targets.slurm.site import (
    REPOSITORY,
    Run,
    Site,
    environ_of,
    eventually,
    find_cluster,
    processes_on,
)
from tests.targets.slurm.test_training import revive

pytestmark = [pytest.mark.lifecycle, pytest.mark.slurm, pytest.mark.slow]

COLLECTIVE = "import time\ndef all_reduce():\n    time.sleep(600)\n"
SCRIPT = """
import os, time
from cloudtrain.runtime.taking_part import take_part
from torch.distributed.distributed_c10d import all_reduce
take_part(timeout=16.0)
print("ready", flush=True)
if "SLURM_RESTART_COUNT" in os.environ:
    time.sleep(12)  # it goes on
else:
    all_reduce()
"""


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Site]:
    """A cluster of its own, whose controller waits for a minute for a node that does not answer."""
    cluster = find_cluster("--patient")
    found = Site(tmp_path, environ_of(cluster, tmp_path))
    yield found
    revive(cluster, "n2")
    found.clean_up()


def freeze(cluster: Path, node: str) -> list[psutil.Process]:
    """A machine that is gone: it neither answers nor closes a connection. Return its processes."""
    daemon = psutil.Process(int((cluster / f"slurmd.{node}.pid").read_text()))
    frozen = [daemon, *processes_on(cluster, node)]
    for process in frozen:
        process.send_signal(signal.SIGSTOP)
    return frozen


def shown(run: Run) -> dict[str, Any]:
    """What `cloudtrain status` says."""
    own = {"PYTHONPATH": str(REPOSITORY), "CLOUDTRAIN_STATE_DIR": str(run.site.root / "state")}
    command = [sys.executable, "-m", "cloudtrain", "status", str(run.ref), "--json"]
    environ = {**run.site.environ, **own}
    answer = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def open_hangs(run: Run) -> list[dict[str, Any]]:
    """The notices that somebody waits, and that are not over."""
    notices = shown(run)["notices"]
    return [
        one for one in notices if one["ended"] is None and one["kind"] in ("waiting", "stalled")
    ]


def test_the_node_is_named_before_slurm_knows(patient: Site) -> None:
    """The machines that are left name the one that does not answer. Slurm then starts the job again on nodes that are
    there, and the notice is over."""
    source = patient.root / "src"
    package = source / "torch" / "distributed"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "distributed_c10d.py").write_text(COLLECTIVE)
    (source / "train.py").write_text(SCRIPT)
    run = patient.submit(
        name="gone-1",
        source=source,
        distribution={"type": "none"},
        resources={"instance_count": 2},
        settings={"grace_period": 5},
    )
    ranks = Path(patient.shared, "runs", run.ref.name, "ranks")
    for rank in (0, 1):
        eventually((ranks / f"{rank}.json").exists, f"rank {rank} has registered")
    cluster = Path(patient.environ["SLURM_CONF"]).parent
    frozen = freeze(cluster, "n2")
    try:
        (notice, *_) = eventually(lambda: open_hangs(run), "the node is named")
        assert run.status.state is RunState.RUNNING
        assert "no answer from its machine `n2`" in notice["text"]
        assert notice["rank"] == 1
    finally:
        for process in frozen:
            with suppress(psutil.Error):
                process.kill()
    eventually(lambda: run.status.restarts == 1, "the job starts again")
    status = run.wait()
    assert status.state is RunState.SUCCEEDED
    assert open_hangs(run) == []
