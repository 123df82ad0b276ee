"""Choose the program that starts the processes inside the container, and give the reason.

* `toolkit`: the image's training toolkit, configured by `sagemaker_*` hyperparameters as by the
  SageMaker SDK.
* `entrypoint`: cloudtrain's launcher from the bundle, through ContainerEntrypoint: exact argv, any
  image with Python.
* `image`: the image's own entry point, for jobs without code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cloudtrain.errors import JobError, Problem
from cloudtrain.job.distribution import (
    MPI,
    SMDDP,
    SMP,
    DeepSpeed,
    Distribution,
    Horovod,
    TensorFlow,
    Torch,
    launcher_of,
    no_ray,
)
from cloudtrain.job.training import TrainingJob
from cloudtrain.machines.choose import Machines
from cloudtrain.runtime.sagemaker_launcher import LAUNCH_KEY
from cloudtrain.runtime.torchrun_words import is_module, is_python, misread
from cloudtrain.targets.common.compiling import (
    has_bare_flags,
    hyperparameter_argv,
    option_problems,
    resolve_hyperparameters,
    resolve_text,
)
from cloudtrain.targets.sagemaker import request as keys
from cloudtrain.targets.sagemaker.catalogue.images import Image
from cloudtrain.targets.sagemaker.compile.machines import ChosenImage
from cloudtrain.targets.sagemaker.compile.places import paths_of
from cloudtrain.targets.sagemaker.launch.shell import arrives_intact
from cloudtrain.targets.sagemaker.reading import Mode
from cloudtrain.targets.sagemaker.request import JsonObject, without_nulls
from cloudtrain.targets.sagemaker.settings import SageMaker

REQUIREMENTS = "requirements.txt"
"""The only requirements file that the toolkit installs, in the bundle's top folder."""


_OLDEST_PYTHON = (3, 7)
"""The oldest Python version that cloudtrain's launcher supports."""


_Reason = tuple[tuple[str, ...], str]
"""The path of the field that needs a launch mode, and why."""

_HINTS = {
    "bare_flags": "let the script read the value `True`, and remove `bare_flags`",
    "arguments": "write them as `hyperparameters`: `--name value`, sorted by name",
    "entry_point": "name a script that calls the module",
}
"""What to write in place of a field where only the toolkit can start the job."""


class LaunchChoice(NamedTuple):
    """The launch mode, and one clause with the reason for its choice."""

    mode: Mode
    reason: str


def launch_of(
    job: TrainingJob,
    target: SageMaker,
    machines: Machines,
    image: ChosenImage,
    *,
    package: bool = False,
) -> LaunchChoice:
    """Return the launch mode: `launch` in the target's settings, or else the mode that fits the job
    and its image. Raises a `JobError` if no mode can start the job."""
    if job.entry_point is None and job.command is None:
        return LaunchChoice("image", "the job brings no code, so the image's own entry point runs")

    toolkit = next(_only_toolkit(job, machines, image), None)
    entrypoint = next(_only_entrypoint(job), None)
    problems = list(_problems(job, target, toolkit, entrypoint))
    if problems:
        raise JobError(problems)

    if target.launch != "auto":
        return LaunchChoice(target.launch, f'the target sets `launch = "{target.launch}"`')
    if toolkit:
        return LaunchChoice("toolkit", toolkit)
    if entrypoint:
        return LaunchChoice("entrypoint", entrypoint[1])
    better = next(_better_by_entrypoint(job, image, package), None)
    if better:
        return LaunchChoice("entrypoint", better)
    assert image.entry is not None
    return LaunchChoice(
        "toolkit", f"{image.entry.toolkit} or older; your arguments survive its shell"
    )


def _problems(
    job: TrainingJob, target: SageMaker, toolkit: str | None, entrypoint: _Reason | None
) -> Iterator[Problem]:
    """Yield the reasons why the job cannot start: wrong options, a launcher that SageMaker cannot
    run, no suitable mode, or an unsuitable mode in the target's settings.

    `toolkit` is the reason why only toolkit mode can start the job, `entrypoint` the reason why
    only entrypoint mode can; None if there is no reason.
    """
    yield from option_problems(job)
    yield from no_ray(job.distribution, "on SageMaker")
    if isinstance(job.distribution, DeepSpeed) and job.distribution.launch == "launcher":
        hint = "use `launch: torch`, or `launch: mpi`"
        yield Problem(
            ("distribution", "launch"),
            (
                "the `deepspeed` launcher needs a hostfile and ssh between instances, which "
                "SageMaker does not offer"
            ),
            hint,
            code="CT031",
        )

    if toolkit and entrypoint:
        path, reason = entrypoint
        hint = "write an `entry_point`, and call its requirements file `requirements.txt`"
        if path[0] in _HINTS:
            hint = _HINTS[path[0]]
        else:
            path = ("distribution", "type")
        yield Problem(path, f"{toolkit}; but {reason}", hint, code="CT031")
    elif toolkit and target.launch == "entrypoint":
        yield _unfit(target, ("distribution", "type"), toolkit)
    elif entrypoint and target.launch == "toolkit":
        yield _unfit(target, *entrypoint)


def _unfit(target: SageMaker, path: tuple[str, ...], reason: str) -> Problem:
    """Return the problem of a launch mode in the settings that cannot start the job."""
    message = f"the job cannot start in `{target.launch}` mode: {reason}"
    return Problem(path, message, "leave out `launch` in the target's settings", code="CT031")


def python_too_old(image: Image | None) -> str | None:
    """Explain why cloudtrain's launcher cannot run in an image; None if it can, or if the Python
    version is unknown."""
    if image is None or not image.python_version or image.python_version >= _OLDEST_PYTHON:
        return None
    has = ".".join(map(str, image.python_version))
    return f"the image has Python {has}, and cloudtrain's own launcher needs 3.7"


def _only_toolkit(job: TrainingJob, machines: Machines, image: ChosenImage) -> Iterator[str]:
    if isinstance(job.distribution, SMDDP | SMP):
        yield f"only the image's toolkit starts `{job.distribution.type}`"
    if launcher_of(job.distribution) == "mpirun" and machines.spanned_count > 1:
        yield "only the image's toolkit sets up MPI between instances"
    if old := python_too_old(image.entry):
        yield old


def _only_entrypoint(job: TrainingJob) -> Iterator[_Reason]:
    if job.command is not None:
        yield ("command",), "the toolkit runs scripts, and this job is a command line"
    if job.environment.requirements not in (None, REQUIREMENTS):
        path = ("environment", "requirements")
        yield path, f"the toolkit only installs a file called `{REQUIREMENTS}`"
    if has_bare_flags(job):
        yield ("bare_flags",), "the toolkit writes `--name True`, and this job has `bare_flags`"
    if job.arguments:
        reason = "the toolkit passes only hyperparameters, and this job has `arguments`"
        yield ("arguments",), reason
    if is_module(job.entry_point or ""):
        yield ("entry_point",), "the toolkit runs files, and this job runs a module"


def _better_by_entrypoint(job: TrainingJob, image: ChosenImage, package: bool) -> Iterator[str]:
    if image.entry is None:
        yield "your own image may have no training toolkit"
        return
    if image.entry.toolkit is None:
        yield "cloudtrain knows no training toolkit in this image"
        return
    if job.environment.secrets:
        yield "cloudtrain's own launcher looks up the job's secrets"
    under_torchrun = launcher_of(job.distribution) == "torchrun"
    if under_torchrun and job.entry_point is not None and not is_python(job.entry_point):
        yield "the toolkit starts only Python scripts with torchrun"
    if under_torchrun and package:
        yield (
            "the toolkit treats code with a `setup.py` as a package, which it cannot start "
            "with torchrun"
        )
    parameters = resolve_hyperparameters(job.hyperparameters, paths_of(job))
    if under_torchrun and (words := misread(hyperparameter_argv(parameters))):
        yield f"the toolkit's torchrun would take `{words[0]}` for its own option"
    toolkit = image.entry.toolkit
    script = job.entry_point or "train.py"
    for name, value in parameters.items():
        if not arrives_intact(value, toolkit, script=script):
            yield f"the shell of toolkit {toolkit} would break `{name}`"


# Toolkit mode: write the distribution as `sagemaker_*` hyperparameters, which the containers'
# training toolkit reads.
#
# Keys and values equal those of the SageMaker SDK 2.257.7
# (`Framework._distribution_configuration`), verified by comparing requests. Exceptions are settings
# that the SDK drops or writes wrongly, so that a different job would run:
#
# * With `torch` on a heterogeneous cluster the SDK drops the groups, so each group would run a
#   separate torchrun job.
# * With `smddp` on a heterogeneous cluster the SDK writes the instance type `null`.
# * The SDK cannot express `processes_per_instance` of `torch` and `smddp`. cloudtrain writes MPI's
#   key, which the toolkit reads for every launcher.


def distribution_pairs(job: TrainingJob, machines: Machines) -> JsonObject:
    """Return the hyperparameters that tell the toolkit how to start the processes."""
    pairs: JsonObject = {}
    if machines.spans and job.distribution.type != "tensorflow":
        pairs[keys.GROUPS] = list(machines.spans)
    return pairs | _pairs_of(job.distribution, machines)


def _pairs_of(distribution: Distribution, machines: Machines) -> JsonObject:
    """Return the hyperparameters of a distribution; empty for scripts without a launcher."""
    if isinstance(distribution, SMDDP):
        return _smddp(distribution, machines)
    if isinstance(distribution, SMP):
        return _smp(distribution, machines)
    if isinstance(distribution, TensorFlow):
        has_servers = distribution.strategy == "parameter_server"
        return {keys.PARAMETER_SERVER if has_servers else keys.MIRRORED: True}
    if isinstance(distribution, MPI | Horovod):
        return _mpi(distribution.processes_per_instance, distribution.options)
    if isinstance(distribution, DeepSpeed) and distribution.launch == "mpi":
        return _mpi(distribution.processes_per_instance, "")
    if isinstance(distribution, Torch | DeepSpeed):
        pairs: JsonObject = {keys.TORCH: True}
        if machines.kind != "groups":
            pairs[keys.INSTANCE_TYPE] = machines.first.instance_type
        return pairs | _processes(distribution.processes_per_instance, machines)
    return {}


def _processes(count: int | None, machines: Machines) -> JsonObject:
    """Return the number of torchrun's processes, unless it is the toolkit's default."""
    if count is None or count == machines.first.accelerators:
        return {}
    return {keys.PROCESSES: count}


def _mpi(processes: int | None, options: str) -> JsonObject:
    pairs: JsonObject = {keys.MPI: True}
    if processes is not None:  # by default, one for each GPU
        pairs[keys.PROCESSES] = processes
    return pairs | {keys.MPI_OPTIONS: options}


def _smddp(distribution: SMDDP, machines: Machines) -> JsonObject:
    pairs: JsonObject = {
        keys.SMDDP: True,
        keys.INSTANCE_TYPE: machines.first.instance_type,
        keys.SMDDP_OPTIONS: distribution.mpi_options,
    }
    if distribution.launch == "torch":
        pairs[keys.TORCH] = True
    return pairs | _processes(distribution.processes_per_instance, machines)


def _smp(distribution: SMP, machines: Machines) -> JsonObject:
    library: JsonObject = {}
    if distribution.parameters:
        library[keys.MODEL_PARALLEL] = distribution.parameters
    library[keys.SMDDP] = False
    library[keys.INSTANCE_TYPE] = machines.first.instance_type
    count = distribution.processes_per_instance
    if distribution.version == 2:
        return library | {keys.TORCH: True} | _processes(count, machines)
    return _mpi(count or machines.first.gpus, distribution.mpi_options) | library


# Entrypoint mode: one hyperparameter tells cloudtrain's launcher, which is in the bundle, what to
# start.


def launch_pairs(job: TrainingJob, machines: Machines, paths: dict[str, str]) -> JsonObject:
    """Return the hyperparameter that cloudtrain's launcher reads (see
    `cloudtrain.runtime.sagemaker_launcher`)."""
    distribution = job.distribution
    launcher = launcher_of(distribution)
    launch: JsonObject = {"launcher": "single" if launcher == "none" else launcher}
    if job.command is not None:
        launch["command"] = resolve_text(job.command, paths)
    else:
        launch["entry_point"] = job.entry_point
    optional: JsonObject = {
        "processes_per_instance": getattr(distribution, "processes_per_instance", None),
        "instance_groups": list(machines.spans) or None,
        "requirements": job.environment.requirements,
        "arguments": [resolve_text(word, paths) for word in job.arguments] or None,
        "bare_flags": has_bare_flags(job) or None,
    }
    if isinstance(distribution, MPI | Horovod):
        optional["mpi_options"] = distribution.options or None
    if isinstance(distribution, TensorFlow):
        optional["strategy"] = distribution.strategy
        optional["parameter_servers"] = distribution.parameter_servers
        optional["workers"] = distribution.workers
    return {LAUNCH_KEY: launch | without_nulls(optional)}
