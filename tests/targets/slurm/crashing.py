"""Submits jobs to a cluster in forks that die; see `tests/lifecycle/submission/forking.py`.

Points are before and after each step of the store and of the service, before and after the user is told, and before and
after every script that talks to the cluster.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import cloudtrain as ct
from cloudtrain.lifecycle.store.store import Store
from cloudtrain.targets.slurm.runner import Runner
from cloudtrain.targets.slurm.service import SlurmService
from cloudtrain.targets.slurm.settings import Slurm
from tests.lifecycle.submission.forking import around, put_points, serve


@around
def tell(run: ct.Run) -> None:
    """What the command line does: the name on stdout."""
    print(run.name, flush=True)


def submit(order: dict[str, Any]) -> None:
    """One submission by the API."""
    ct.submit(ct.TrainingJob(**order["job"]), Slurm(**order["target"]), on_run=tell)


put_points(
    (Store, ("reserve", "advance")),
    (SlurmService, ("check", "upload", "submit")),
    (Runner, ("run", "send")),
)
serve(submit)
