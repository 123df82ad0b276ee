"""The fake Azure ML as a place where jobs run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.backends.azureml.backend import AzureMLBackend
from cloudtrain.backends.following import Pace
from cloudtrain.bundle.tree import scan
from cloudtrain.plans import CompileContext, Plan
from tests.backends.places import Place, Run
from tests.fakes.azureml import FakeAzure
from tests.fakes.azureml.runner import Runner

QUICK = Pace(every=0.02, per_stream=0.0, settle=0.3, patience=5.0, slowest=0.1)
TARGET = ct.AzureML(
    subscription_id="00000000-0000-0000-0000-000000000000", resource_group="rg", workspace="ws"
)  # fmt: skip
INSTANCE = "Standard_D4s_v3"


@dataclass
class AzureMLPlace(Place):
    """Each process writes a log file of its own, which does not tell its two streams apart."""

    stderr: str = "stdout"

    @property
    def backend(self) -> AzureMLBackend:
        return AzureMLBackend(self.root / "state", environ=self.environ, pace=QUICK)

    def plan(
        self, script: str | dict[str, str] = "", *, name: str = "run-1", target: Any = None, **job: Any
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
        tree, backend = scan(source), self.backend
        context = CompileContext(name, tree.identity, backend.account(where))
        return backend.compile(ct.TrainingJob(name="job", **job), where, context), tree

    def send(self, plan: Plan) -> Run:
        backend = self.backend
        return Run(backend, backend.submit(plan), plan, Path())

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
