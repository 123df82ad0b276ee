"""A real Slurm cluster as a place where jobs run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudtrain.code.tree import scan
from cloudtrain.job.training import TrainingJob
from cloudtrain.plans.plan import CompileContext, Plan
from cloudtrain.targets.slurm.service import SlurmService
from cloudtrain.targets.slurm.settings import Slurm
from tests.targets.places import Place, Run
from tests.targets.slurm.site import QUICK, environ_of, find_cluster


@dataclass
class SlurmPlace(Place):
    """A cluster of three nodes, with a shared folder of its own."""

    @property
    def service(self) -> SlurmService:
        return SlurmService(environ=self.environ, state_dir=self.root / "state", pace=QUICK)

    def plan(
        self,
        script: str | dict[str, str] = "",
        *,
        name: str = "run-1",
        target: Any = None,
        **job: Any,
    ) -> tuple[Plan, Any]:
        """`target` is for other places: jobs here have the counts that they ask for."""
        source = self.write(script, name)
        if "command" not in job:
            job.setdefault("entry_point", "train.py")
        settings = Slurm(
            shared_dir=f"{self.root}/shared", python=sys.executable, rendezvous_host="127.0.0.1"
        )
        tree = scan(source)
        context = CompileContext(name, tree.identity, self.account(settings))
        return self.compile(TrainingJob(name="job", **job), settings, context), tree

    def send(self, plan: Plan, *, again: bool = False) -> Run:
        service = self.service
        run = Run(service, service.submit(plan, again=again), plan, Path(plan.request["folder"]))
        self.submitted.append(run)
        return run

    def clean_up(self) -> None:
        """Whatever a failed test has left."""
        names = ",".join(run.ref.name for run in self.submitted)
        subprocess.run(
            ["scancel", f"--name={names}"], env=self.environ, check=False, capture_output=True
        )


@contextmanager
def slurm(place: Place) -> Iterator[SlurmPlace]:
    """The cluster, in the same temporary folder."""
    found = SlurmPlace(place.root, environ_of(find_cluster(), place.root))
    try:
        yield found
    finally:
        found.clean_up()
