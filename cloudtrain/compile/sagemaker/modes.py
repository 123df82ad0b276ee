"""Who starts the processes inside the container, and why.

toolkit     the image's training toolkit, told by `sagemaker_*` hyperparameters, as the SageMaker SDK does
entrypoint  our own launcher from the bundle, through ContainerEntrypoint: exact argv, any image with Python
image       the image's own entry point: the job brings no code
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from cloudtrain.compile.common import resolve_hyperparameters
from cloudtrain.compile.sagemaker.images import ChosenImage
from cloudtrain.compile.sagemaker.machines import Machines
from cloudtrain.compile.sagemaker.places import paths_of
from cloudtrain.distribution import SMDDP, SMP, DeepSpeed
from cloudtrain.errors import JobError, Problem
from cloudtrain.job import TrainingJob
from cloudtrain.launch.sagemaker_container import arrives_intact
from cloudtrain.targets import SageMaker

Mode = Literal["toolkit", "entrypoint", "image"]

REQUIREMENTS = "requirements.txt"
"""The one name that the toolkit installs, at the top of the bundle."""


@dataclass(frozen=True)
class Launch:
    """The mode, and one clause that says why."""

    mode: Mode
    reason: str


def uses_mpirun(job: TrainingJob) -> bool:
    """Whether mpirun starts the ranks, which on several instances only the toolkit can set up (it runs sshd)."""
    distribution = job.distribution
    return distribution.type in ("mpi", "horovod") or (
        isinstance(distribution, DeepSpeed) and distribution.launch == "mpi"
    )


def launch_of(job: TrainingJob, target: SageMaker, machines: Machines, image: ChosenImage) -> Launch:
    """The mode that works for the job and its image; the target's own choice where it gives one.

    Raises:
        JobError: the chosen mode cannot start this job.
    """
    if job.entry_point is None and job.command is None:
        return Launch("image", "the job brings no code, so the image's own entry point runs")
    toolkit = next(_only_toolkit(job, machines), None)
    entrypoint = next(_only_entrypoint(job), None)
    if toolkit and entrypoint:
        hint = "write an `entry_point`, and call its requirements file `requirements.txt`"
        raise JobError([Problem(("distribution", "type"), f"{toolkit}; but {entrypoint}", hint)])
    refused = {"toolkit": entrypoint, "entrypoint": toolkit, "auto": None}[target.launch]
    if refused:
        message = f"the job cannot start in `{target.launch}` mode: {refused}"
        raise JobError([Problem((), message, "leave out `launch` in the target's settings")])
    if target.launch != "auto":
        return Launch(target.launch, f'the target says `launch = "{target.launch}"`')
    if toolkit:
        return Launch("toolkit", toolkit)
    better = entrypoint or next(_better_by_entrypoint(job, image), None)
    if better:
        return Launch("entrypoint", better)
    assert image.known is not None
    return Launch("toolkit", f"{image.known.toolkit} or older, whose shell leaves every argument of this job intact")


def _only_toolkit(job: TrainingJob, machines: Machines) -> Iterator[str]:
    distribution = job.distribution
    if isinstance(distribution, SMDDP | SMP):
        yield f"only the image's toolkit starts `{distribution.type}`"
    if uses_mpirun(job) and sum(group.count for group in machines.spanned) > 1:
        yield "only the image's toolkit sets up MPI between instances"


def _only_entrypoint(job: TrainingJob) -> Iterator[str]:
    if job.command is not None:
        yield "the toolkit runs scripts, and this job is a command line"
    if job.environment.requirements not in (None, REQUIREMENTS):
        yield f"the toolkit only installs a file called `{REQUIREMENTS}`"


def _is_shell_script(job: TrainingJob) -> bool:
    return job.entry_point is not None and not job.entry_point.endswith(".py")


def _better_by_entrypoint(job: TrainingJob, image: ChosenImage) -> Iterator[str]:
    if image.known is None:
        yield "nothing is known of a training toolkit in your own image"
        return
    if image.known.toolkit is None:
        yield "nothing is known of a training toolkit in this image"
        return
    if job.distribution.type in ("torch", "deepspeed") and not uses_mpirun(job) and _is_shell_script(job):
        yield "the toolkit starts only Python scripts with torchrun"
    for name, value in resolve_hyperparameters(job, paths_of(job)).items():
        if not arrives_intact(value, image.known.toolkit, script=job.entry_point or "train.py"):
            yield f"the shell of toolkit {image.known.toolkit} would break `{name}`"
