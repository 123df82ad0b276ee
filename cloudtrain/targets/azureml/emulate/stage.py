"""One emulated job: the body that Azure ML would get, and this machine."""

from __future__ import annotations

from dataclasses import dataclass

from cloudtrain.core.job import TrainingJob
from cloudtrain.targets.azureml.launch.job import Body, JobLayout
from cloudtrain.targets.common.this_machine import LocalAccount


@dataclass(frozen=True)
class Stage:
    """The inputs of an emulation. `python` is the path of the interpreter."""

    job: TrainingJob
    body: Body
    layout: JobLayout
    account: LocalAccount
    python: str
    run_dir: str

    @property
    def programs(self) -> str:
        """Return the folder with `python` and `python3`, which replace the image's programs."""
        return f"{self.run_dir}/programs"
