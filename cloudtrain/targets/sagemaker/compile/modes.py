"""Choose the program that starts the processes inside the container, and give the reason.

toolkit     the image's training toolkit, configured by `sagemaker_*` hyperparameters as by the SageMaker SDK
entrypoint  cloudtrain's launcher from the bundle, through ContainerEntrypoint: exact argv, any image with Python
image       the image's own entry point, for jobs without code
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from cloudtrain.catalogue.machines import Machines
from cloudtrain.core.distribution import SMDDP, SMP, DeepSpeed, launcher_of, no_ray
from cloudtrain.core.job import TrainingJob
from cloudtrain.errors import JobError, Problem
from cloudtrain.runtime.torchrun_words import misread
from cloudtrain.targets.common.compiling import (
    has_bare_flags,
    hyperparameter_argv,
    option_problems,
    resolve_hyperparameters,
)
from cloudtrain.targets.sagemaker.catalogue.images import Image
from cloudtrain.targets.sagemaker.compile.images import ChosenImage
from cloudtrain.targets.sagemaker.compile.places import paths_of
from cloudtrain.targets.sagemaker.launch.job import arrives_intact
from cloudtrain.targets.sagemaker.settings import SageMaker

Mode = Literal["toolkit", "entrypoint", "image"]

REQUIREMENTS = "requirements.txt"
"""The only requirements file that the toolkit installs, in the bundle's top folder."""


_OLDEST_PYTHON = (3, 7)
"""The oldest Python version that cloudtrain's launcher supports."""


_FLAGS = "the toolkit writes `--name True`, and this job has `bare_flags`"


class Launch(NamedTuple):
    """The launch mode, and one clause with the reason for its choice."""

    mode: Mode
    reason: str


def launch_of(
    job: TrainingJob, target: SageMaker, machines: Machines, image: ChosenImage, *, package: bool = False
) -> Launch:
    """Return the launch mode: `launch` in the target's settings, or else the mode that fits the job and its image.

    `package` is true if the bundle's top folder contains a `setup.py`.

    Raises:
        JobError: the mode in the settings cannot start the job, or no mode can.
    """
    if job.entry_point is None and job.command is None:
        return Launch("image", "the job brings no code, so the image's own entry point runs")
    toolkit = next(_only_toolkit(job, machines, image), None)
    entrypoint = next(_only_entrypoint(job), None)
    problems = list(_problems(job, target, toolkit, entrypoint))
    if problems:
        raise JobError(problems)
    if target.launch != "auto":
        return Launch(target.launch, f'the target sets `launch = "{target.launch}"`')
    if toolkit:
        return Launch("toolkit", toolkit)
    better = entrypoint or next(_better_by_entrypoint(job, image, package), None)
    if better:
        return Launch("entrypoint", better)
    assert image.known is not None
    return Launch("toolkit", f"{image.known.toolkit} or older; your arguments survive its shell")


def _problems(job: TrainingJob, target: SageMaker, toolkit: str | None, entrypoint: str | None) -> Iterator[Problem]:
    """Yield the reasons why the job cannot start: wrong options, a launcher that SageMaker cannot run, no suitable
    mode, or an unsuitable mode in the target's settings.

    `toolkit` is the reason why only toolkit mode can start the job, `entrypoint` the reason why only entrypoint mode
    can; None if there is no reason.
    """
    yield from option_problems(job)
    yield from no_ray(job.distribution, "on SageMaker")
    if isinstance(job.distribution, DeepSpeed) and job.distribution.launch == "launcher":
        message = "the `deepspeed` launcher needs a hostfile and ssh between instances, which SageMaker does not offer"
        yield Problem(("distribution", "launch"), message, "use `launch: torch`, or `launch: mpi`", code="CT031")
    refused = {"toolkit": entrypoint, "entrypoint": toolkit, "auto": None}[target.launch]
    if toolkit and entrypoint == _FLAGS:
        hint = "let the script read the value `True`, and remove `bare_flags`"
        yield Problem(("bare_flags",), f"{toolkit}; but {entrypoint}", hint, code="CT031")
    elif toolkit and entrypoint:
        hint = "write an `entry_point`, and call its requirements file `requirements.txt`"
        yield Problem(("distribution", "type"), f"{toolkit}; but {entrypoint}", hint, code="CT031")
    elif refused:
        message = f"the job cannot start in `{target.launch}` mode: {refused}"
        path: tuple[str, ...] = ("distribution", "type")
        if target.launch == "toolkit":
            path = ("command",) if job.command is not None else ("environment", "requirements")
        yield Problem(path, message, "leave out `launch` in the target's settings", code="CT031")


def python_too_old(image: Image | None) -> str | None:
    """Explain why cloudtrain's launcher cannot run in an image; None if it can, or if the Python version is unknown."""
    if image is None or not image.python_version or image.python_version >= _OLDEST_PYTHON:
        return None
    has = ".".join(map(str, image.python_version))
    return f"the image has Python {has}, and cloudtrain's own launcher needs {'.'.join(map(str, _OLDEST_PYTHON))}"


def _only_toolkit(job: TrainingJob, machines: Machines, image: ChosenImage) -> Iterator[str]:
    distribution = job.distribution
    if isinstance(distribution, SMDDP | SMP):
        yield f"only the image's toolkit starts `{distribution.type}`"
    if launcher_of(job.distribution) == "mpirun" and machines.spanned_count > 1:
        yield "only the image's toolkit sets up MPI between instances"
    if old := python_too_old(image.known):
        yield old


def _only_entrypoint(job: TrainingJob) -> Iterator[str]:
    if job.command is not None:
        yield "the toolkit runs scripts, and this job is a command line"
    if job.environment.requirements not in (None, REQUIREMENTS):
        yield f"the toolkit only installs a file called `{REQUIREMENTS}`"
    if has_bare_flags(job):
        yield _FLAGS


def _is_shell_script(job: TrainingJob) -> bool:
    return job.entry_point is not None and not job.entry_point.endswith(".py")


def _better_by_entrypoint(job: TrainingJob, image: ChosenImage, package: bool) -> Iterator[str]:
    if image.known is None:
        yield "your own image may have no training toolkit"
        return
    if image.known.toolkit is None:
        yield "cloudtrain knows no training toolkit in this image"
        return
    if job.environment.secrets:
        yield "cloudtrain's own launcher looks up the job's secrets"
    under_torchrun = launcher_of(job.distribution) == "torchrun"
    if under_torchrun and _is_shell_script(job):
        yield "the toolkit starts only Python scripts with torchrun"
    if under_torchrun and package:
        yield "the toolkit treats code with a `setup.py` as a package, which it cannot start with torchrun"
    parameters = resolve_hyperparameters(job, paths_of(job))
    if under_torchrun and (words := misread(hyperparameter_argv(parameters))):
        yield f"the toolkit's torchrun would take `{words[0]}` for its own option"
    for name, value in parameters.items():
        if not arrives_intact(value, image.known.toolkit, script=job.entry_point or "train.py"):
            yield f"the shell of toolkit {image.known.toolkit} would break `{name}`"
