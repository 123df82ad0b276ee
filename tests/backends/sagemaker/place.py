"""The fake SageMaker as a place where jobs run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.backends.following import Pace
from cloudtrain.backends.sagemaker.backend import SageMakerBackend
from cloudtrain.bundle.tree import scan
from cloudtrain.plans import CompileContext, Plan
from tests.backends.places import Place, Run
from tests.fakes.sagemaker.runner import Runner
from tests.fakes.sagemaker.server import FakeAws

QUICK = Pace(every=0.02, per_stream=0.0, settle=0.3, patience=5.0, slowest=0.1)
ROLE = "arn:aws:iam::123456789012:role/SageMakerRole"


@dataclass
class SageMakerPlace(Place):
    """Jobs start under mpirun, whose tags tell rank and stream of each line apart, which CloudWatch does not."""

    @property
    def backend(self) -> SageMakerBackend:
        return SageMakerBackend(self.root / "state", environ=self.environ, pace=QUICK)

    def plan(
        self, script: str | dict[str, str] = "", *, name: str = "run-1", target: Any = None, **job: Any
    ) -> tuple[Plan, Any]:
        source = self.write(script, name)
        where = target if isinstance(target, ct.SageMaker) else ct.SageMaker(role=ROLE, region="eu-west-1")
        resources = job.pop("resources", ct.Resources())
        job = {
            "entry_point": "train.py",
            "environment": ct.Environment(framework="pytorch", version="2.8"),
            "distribution": ct.MPI(processes_per_instance=1),
            "resources": resources.replace(instance_type={"sagemaker": "ml.m5.xlarge"}),
            **job,
        }
        tree, backend = scan(source), self.backend
        context = CompileContext(name, tree.identity, backend.account(where))
        return backend.compile(ct.TrainingJob(name="job", **job), where, context), tree

    def send(self, plan: Plan) -> Run:
        backend = self.backend
        return Run(backend, backend.submit(plan), plan, Path())

    def clean_up(self) -> None:
        """The runner does it."""


@contextmanager
def sagemaker(local: Place) -> Iterator[Place]:
    """A fake of our own whose jobs really run."""
    with FakeAws() as fake, pytest.MonkeyPatch.context() as patch:
        for name, value in fake.environ.items():
            patch.setenv(name, value)
        runner = Runner(fake, local.root / "service")
        yield SageMakerPlace(local.root, {**local.environ, **fake.environ})
        runner.clean_up()
