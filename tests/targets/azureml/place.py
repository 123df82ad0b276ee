"""The fake Azure ML as a place where jobs run."""

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
from cloudtrain.targets.azureml.service.service import AzureMLService
from cloudtrain.targets.common.services import Pace
from tests.deadlines import DEADLINE
from tests.fakes.azureml import FakeAzure
from tests.fakes.azureml.runner import Runner
from tests.targets.places import Place, Run

QUICK = Pace(every=0.02, per_stream=0.0, settle=0.3, patience=DEADLINE, slowest=0.1)
TARGET = ct.AzureML(
    subscription_id="00000000-0000-0000-0000-000000000000", resource_group="rg", workspace="ws"
)  # fmt: skip
INSTANCE = "Standard_D4s_v3"


@dataclass
class AzureMLPlace(Place):
    """Each process writes a log file of its own, which does not tell its two streams apart."""

    stderr: str = "stdout"

    @property
    def service(self) -> AzureMLService:
        return AzureMLService(self.environ, QUICK)

    def plan(
        self,
        script: str | dict[str, str] = "",
        *,
        name: str = "run-1",
        target: Any = None,
        **job: Any,
    ) -> tuple[Plan, Any]:
        source = self.write(script, name)
        where = target if isinstance(target, ct.AzureML) else TARGET
        resources = job.pop("resources", ct.Resources())
        job = {
            "entry_point": "train.py",
            "environment": ct.Environment(framework="pytorch", version="2.8"),
            "distribution": ct.Torch(processes_per_instance=1),
            "resources": resources.replace(instance_type={"azureml": INSTANCE}),
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
def azureml(local: Place) -> Iterator[Place]:
    """A fake of our own whose jobs really run."""
    with FakeAzure() as fake, pytest.MonkeyPatch.context() as patch:
        for name, value in fake.environ.items():
            patch.setenv(name, value)
        runner = Runner(fake, local.root / "service")
        yield AzureMLPlace(local.root, {**local.environ, **fake.environ})
        runner.clean_up()
