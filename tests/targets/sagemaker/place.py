"""The fake SageMaker as a place where jobs run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.code.tree import scan
from cloudtrain.plans.plan import CompileContext, Plan
from cloudtrain.targets.common.services import Pace
from cloudtrain.targets.sagemaker.service.service import SageMakerService
from tests.deadlines import DEADLINE
from tests.fakes.sagemaker.runner import Runner
from tests.fakes.sagemaker.server import FakeAws
from tests.targets.places import Place, Run

QUICK = Pace(every=0.02, per_stream=0.0, settle=0.3, patience=DEADLINE, slowest=0.1)
ROLE = "arn:aws:iam::123456789012:role/SageMakerRole"


@dataclass
class SageMakerPlace(Place):
    """Jobs start under mpirun, whose tags tell rank and stream of each line apart, which CloudWatch does not."""

    @property
    def service(self) -> SageMakerService:
        return SageMakerService(self.environ, QUICK)

    def plan(
        self,
        script: str | dict[str, str] = "",
        *,
        name: str = "run-1",
        target: Any = None,
        **job: Any,
    ) -> tuple[Plan, Any]:
        source = self.write(script, name)
        where = (
            target
            if isinstance(target, ct.SageMaker)
            else ct.SageMaker(role=ROLE, region="eu-west-1")
        )
        resources = job.pop("resources", ct.Resources())
        job = {
            "entry_point": "train.py",
            "environment": ct.Environment(framework="pytorch", version="2.8"),
            "distribution": ct.MPI(processes_per_instance=1),
            "resources": resources.replace(instance_type={"sagemaker": "ml.m5.xlarge"}),
            **job,
        }
        tree = scan(source)
        context = CompileContext(name, tree.identity, self.account(where))
        return self.compile(ct.TrainingJob(name="job", **job), where, context), tree

    def send(self, plan: Plan) -> Run:
        service = self.service
        return Run(service, service.submit(plan), plan, Path())

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
