"""Rules about runs on this machine, with codes such as `LO101`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import counted, join_names
from cloudtrain.job.distribution import TensorFlow
from cloudtrain.job.model import format_size
from cloudtrain.plans.plan import Level
from cloudtrain.plans.processes import Processes
from cloudtrain.rules.engine import (
    IMAGE,
    Fault,
    KeysOf,
    Nature,
    Reading,
    Subject,
    ValuePath,
    rule,
)
from cloudtrain.rules.facts import DataPlace, declared_places, read_requirements
from cloudtrain.system.files import why_missing
from cloudtrain.system.plugins import pip_line, target_names
from cloudtrain.targets.common.fields import unsent
from cloudtrain.targets.common.launchers import requested_tasks
from cloudtrain.targets.common.scaling import local_size, requested_size
from cloudtrain.targets.common.specification import LaunchSpecification
from cloudtrain.targets.contract import Contents
from cloudtrain.targets.local import interpreter
from cloudtrain.targets.local.fields import FIELDS
from cloudtrain.targets.registry import target_of

if TYPE_CHECKING:
    from cloudtrain.code.tree import Tree
    from cloudtrain.job.pep508 import Requirement
    from cloudtrain.job.processing import AnyJob
    from cloudtrain.job.training import TrainingJob
    from cloudtrain.targets.common.launch import LocalAccount
    from cloudtrain.targets.local.settings import Local

# How rules read the launch specification of a run on this machine.


@dataclass(frozen=True, eq=False)
class LocalReading(Reading):
    """A launch specification. With `emulate`, the overrides of the emulated service change the
    job's variables and hyperparameters, but not the machines: the emulated job, too, runs on this
    machine."""

    has_image = False
    emulate: str | None = None

    @cached_property
    def specification(self) -> LaunchSpecification:
        return LaunchSpecification.from_json(self.plan.request)

    @cached_property
    def _of_service(self) -> Reading:
        """The reading of the emulated service; without emulation, one that reads the job alone."""
        if self.emulate is None:
            return Reading(self.target, self.job, self.account, self.plan, self.processing)
        return target_of(self.emulate).read(
            self.job, None, self.account, self.plan, self.processing
        )

    @property
    def service(self) -> str:
        return self.emulate or self.target

    @property
    def distribution_key(self) -> str:  # type: ignore[override]  # of the emulated service
        return self._of_service.distribution_key

    @property
    # of the emulated service
    def paths(self) -> Mapping[ValuePath, KeysOf]:  # type: ignore[override]
        return self._of_service.paths

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        return self._of_service.parameters

    @property
    def variables(self) -> Mapping[str, str]:
        return self._of_service.variables

    @cached_property
    def places(self) -> Sequence[DataPlace]:
        """With emulation, outputs are left out, because they are written to the run's own
        folder."""
        return list(declared_places(self.job, self.target, outputs=self.emulate is None))

    def can_import(self, name: str, settings: Local) -> bool | None:
        """An interpreter other than this one is not asked, because starting it takes time."""
        if settings.python not in (None, sys.executable):
            return None
        try:
            return find_spec(name) is not None
        except ValueError:  # a module that a program has made, as in a notebook
            return True

    @cached_property
    def images(self) -> Sequence[tuple[str, ValuePath]]:
        """The images that the job names for any target. A local run uses no image."""
        image = self.job.environment.image
        if image is None:
            return []
        names = [image.of(target) for target in target_names()]
        return [(name, IMAGE) for name in dict.fromkeys(names) if name is not None]


# Find which requirements in a file an interpreter lacks, without network access.
#
# cloudtrain asks the interpreter once for the installed versions of all requirements. For its own
# interpreter it does this in the current process, for any other in a subprocess. A requirement that
# this module cannot read (a URL without a name, an unusual marker, a version that is not numeric)
# counts as installed.

_NAMED = 10
"""Maximum number of missing packages that a message names."""

_PATIENCE = 10.0
"""Seconds to wait for the answer of another interpreter."""

_LARGEST = 1 << 20
"""Bytes of that answer which are read. Not every program that a setting names is a Python."""


def missing_from(
    python: str, requirements: Iterable[Requirement]
) -> list[tuple[Requirement, str | None]]:
    """Return the requirements that the interpreter `python` lacks or has in an unsuitable version,
    each with the installed version or None. Return an empty list if the interpreter does not
    answer."""
    unique = list(dict.fromkeys(requirements))
    if not unique:
        return []
    answer = _ask(python, sorted({requirement.name for requirement in unique}))
    if answer is None:
        return []
    from cloudtrain.job.requirements import Platform

    versions, markers = answer
    machine = Platform(markers["python_full_version"], markers)
    missing = []
    for requirement in unique:
        version = versions[requirement.name]
        if not requirement.is_met_by(version) and machine.meets(requirement.marker):
            missing.append((requirement, version))
    return missing


def _ask(python: str, names: list[str]) -> tuple[dict[str, str | None], dict[str, str]] | None:
    """Return the installed versions of packages, and the values of environment markers; None if the
    interpreter does not answer."""
    if python == sys.executable:
        return interpreter.versions_of(names), interpreter.machine()
    # not isolated, because the job also sees PYTHONPATH and the user's own packages
    argv = [python, interpreter.__file__, json.dumps(names)]
    try:
        with subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            timer = Timer(_PATIENCE, process.kill)
            timer.daemon = True
            timer.start()
            answer = process.stdout.read(_LARGEST)  # type: ignore[union-attr]
            process.kill()  # of a program such as `yes`, which never ends
            timer.cancel()
        versions, machine = json.loads(answer)
    except (OSError, ValueError):  # no Python, or a broken one
        return None
    return versions, machine


def contents_before(job: TrainingJob, settings: Local, account: LocalAccount) -> Contents:
    """Return what the run's interpreter has: its version, and that of PyTorch."""
    answer = _ask(settings.python or account.python, ["torch"])
    if answer is None:
        return Contents(job.environment.python, is_image=False)
    versions, machine = answer
    return Contents(
        machine["python_full_version"], versions["torch"], markers=machine, is_image=False
    )


def settle(job: AnyJob, tree: Tree, settings: Local) -> Local:
    """Return the settings of a run whose environment is built if the settings leave that to
    cloudtrain and the interpreter lacks packages of the job."""
    file = job.environment.requirements
    if settings.build_environment is not None or file is None:
        return settings
    python = settings.python or sys.executable
    if not missing_from(python, _lines(tree, file)):
        return settings
    return settings.model_copy(update={"build_environment": True})


# Rules about jobs that run on this machine.


def _specification(subject: Subject) -> LaunchSpecification:
    assert isinstance(subject.reading, LocalReading)
    return subject.reading.specification


@rule("LO101", Level.ERROR, Nature.FACT)
def input_is_missing(subject: Subject) -> Iterator[Fault]:
    """An input does not exist on this machine.

    `inputs.NAME.local` is a path relative to the job file. The script would fail when it opens this
    path.
    """
    run_folders = [f"/runs/{name}/" for name in subject.plan.request.get("after", ())]
    for name, item in subject.job.inputs.items():
        place = item.local
        if place is None or any(folder in place for folder in run_folders):
            continue
        problem = why_missing(place)
        if problem is not None:
            hint = f"create it, or give another path: `--set inputs.{name}.local=PATH`"
            yield Fault(f"the input `{place}` {problem}", hint, ("inputs", name, "local"))


@rule("LO102", Level.ERROR, Nature.FACT, needs_request=False)
def interpreter_is_missing(subject: Subject) -> Iterator[Fault]:
    """The Python interpreter for the run does not exist or cannot be executed.

    `--python` (or `ct.Local(python=...)`) names the interpreter that runs the script: a path,
    `conda:NAME` for a conda environment, or `uv` for the uv environment of the project that
    contains the working directory.
    """
    python = subject.settings.python
    if python is None:
        return
    if python == "uv":
        hint = "`uv sync` creates it, in the folder of the project's `pyproject.toml`"
        yield Fault("the project around this folder has no uv environment", hint)
    elif python.startswith("conda:"):
        name = python.removeprefix("conda:")
        hint = "`conda env list` shows your environments"
        yield Fault(f"the conda environment `{name}` does not exist", hint)
    elif shutil.which(python) is None:
        problem = why_missing(python) or "is not an executable file"
        if os.path.isdir(python):
            problem = "is a folder"
        inside = os.path.join(python, "bin", "python")
        use = inside if shutil.which(inside) else sys.executable
        yield Fault(f"the interpreter `{python}` {problem}", f"use this one: `--python {use}`")


@rule("LO103", Level.ERROR, Nature.FACT)
def torch_is_missing(subject: Subject) -> Iterator[Fault]:
    """PyTorch is not installed for the interpreter that runs the script.

    The job's distribution starts through torchrun, which is a part of PyTorch, or through
    `--launcher fork`, which imports PyTorch.
    """
    roles = {group.role for group in Processes.of(subject.plan.processes).groups}
    if roles.isdisjoint(("torchrun", "fork")) or subject.settings.python is not None:
        return
    file = subject.job.environment.requirements
    if find_spec("torch") is not None:
        return
    if file is not None and subject.settings.build_environment:
        names = {line.name.lower() for line in _lines(subject.tree, file)}
        if "torch" in names:  # it will be installed
            return
    kind = subject.job.distribution.type
    message = f"`{sys.executable}` has no PyTorch, and `{kind}` cannot start without it"
    hint = f"{pip_line('torch')}, or name an interpreter that has it: `--python PATH`"
    yield Fault(message, hint, ("distribution", "type"))


def _lines(tree: Tree, file: str) -> list[Requirement]:
    """Return the packages that a file of the job names, with those of the files that it
    includes."""
    return [line for line in read_requirements(tree, file).asked if line.name]


@rule("LO104", Level.ERROR, Nature.FACT)
def place_is_a_file(subject: Subject) -> Iterator[Fault]:
    """The path of an output or of the checkpoint is a file, not a folder.

    `outputs.NAME.local` and `checkpoint.local` are folders. The run creates missing folders, but
    cannot create a folder where a file exists, or below a file. Choose another path.
    """
    job = subject.job
    folders = _specification(subject).directories
    places: dict[tuple[str, ...], str | None] = {}
    for name, item in job.outputs.items():
        places["outputs", name] = item.local
    if job.checkpoint is not None:
        places["checkpoint",] = job.checkpoint.local

    for path, place in places.items():
        if place is None or place not in folders:
            continue
        file = _file_on_the_way(place)
        problem = why_missing(place)
        hint = f"set a folder: `--set {'.'.join(path)}.local=PATH`"
        if problem not in (None, "does not exist"):
            yield Fault(f"the folder `{place}` {problem}", hint, (*path, "local"))
        elif file is not None:
            message = f"`{file}` is a file, but `{path[-1]}` needs a folder"
            yield Fault(message, hint, (*path, "local"))


def _file_on_the_way(folder: str) -> str | None:
    """Return the file at the folder's path or at one of its parents. A path that cannot be read
    counts as missing."""
    there = str(Path(folder))
    # text, because a `Path` for each of ten thousand parents takes time
    while not os.path.exists(there):
        there = os.path.dirname(there) or "."
    return None if os.path.isdir(there) else there


@rule("LO105", Level.ERROR)
def memory_is_too_small(subject: Subject) -> Iterator[Fault]:
    """The processes need more memory than this machine has.

    Each process that torchrun starts imports PyTorch, which takes 200 MiB before any data or model
    is loaded (measured with torch 2.13 on Linux). The ranks of `--launcher fork` share that memory,
    so they are not counted.
    """
    specification = _specification(subject)
    if specification.launcher != "torchrun":
        return
    memory = subject.account.machine.memory
    need = specification.world_size * _OF_TORCH
    if 0 < memory < need:
        most = max(1, memory // _OF_TORCH)
        message = (
            f"{specification.world_size} processes with PyTorch need {format_size(need)} of "
            f"memory or more, and this machine has {format_size(memory)}"
        )
        yield Fault(
            message, f"start at most {most}: `--instances 1 --processes-per-instance {most}`"
        )


_OF_TORCH = 200 * 2**20
"""Bytes that a process with PyTorch does not share with others."""


@rule("LO208", Level.NOTICE)
def more_processes_than_cpus(subject: Subject) -> Iterator[Fault]:
    """The run has two or more processes for each CPU of this machine.

    Without a GPU the processes compute on the CPUs, so more of them make the run slower, and each
    needs its own memory.
    """
    machine = subject.account.machine
    count = _specification(subject).world_size
    if machine.gpus or count < max(2, 2 * machine.cpus):
        return
    hint = (
        f"for a fast run start at most {machine.cpus}: `--instances 1 "
        f"--processes-per-instance {machine.cpus}`"
    )
    yield Fault(f"{count} processes share {machine}", hint)


@rule("LO201", Level.NOTICE)
def scaled_down(subject: Subject) -> Iterator[Fault]:
    """The job runs here with fewer instances or processes than it asks for.

    cloudtrain reduces instances and processes to the GPUs of this machine, or to its CPUs if it has
    no GPU. So you can rehearse a job for sixteen GPUs on a laptop. An emulation starts as many
    processes as the emulated service would, if they fit. `--instances` and
    `--processes-per-instance` set exact numbers.
    """
    job = subject.job
    target = subject.settings
    if isinstance(job.distribution, TensorFlow):
        yield from _fewer_tasks(subject)
        return
    if target.instance_count or target.processes_per_instance:
        return
    machine = subject.account.machine
    full_size = requested_size(job, machine, target.emulate)
    actual = local_size(job, target, machine)
    if full_size != actual:
        message = (
            f"scaled down to this machine ({machine}): {actual} processes instead of {full_size} "
            "(instances x processes)"
        )
        hint = (
            f"run it at full size with `--instances {full_size.instances} "
            f"--processes-per-instance {full_size.processes_per_instance}`"
        )
        yield Fault(message, hint, ("resources",))


def _fewer_tasks(subject: Subject) -> Iterator[Fault]:
    """Report a TensorFlow job that runs on this machine with fewer tasks than it asks for. With
    `emulate`, hosts are counted instead of tasks."""
    specification = _specification(subject)
    if subject.settings.emulate is None:
        counts = requested_tasks(subject.job)
        instances = counts.workers
        tasks = sum(counts)
        tasks_here = specification.world_size
    else:
        instances = tasks = subject.job.resources.instance_count
        tasks_here = specification.instances
    if tasks_here < tasks and subject.settings.instance_count is None:
        message = (
            f"scaled down to this machine ({subject.account.machine}): {tasks_here} tasks "
            f"instead of {tasks}"
        )
        yield Fault(message, f"run it at full size with `--instances {instances}`", ("resources",))


@rule("LO202", Level.WARNING)
def more_ranks_than_gpus(subject: Subject) -> Iterator[Fault]:
    """The run has more processes than this machine has GPUs.

    The processes share GPUs. NCCL refuses two ranks on one GPU ("Duplicate GPU detected"); gloo
    works, slowly.
    """
    gpus = subject.account.machine.gpus
    ranks = _specification(subject).world_size
    if gpus and ranks > gpus:
        hint = (
            f"run one process per GPU with `--instances 1 --processes-per-instance {gpus}`, or "
            "hide the GPUs with `CUDA_VISIBLE_DEVICES=` to run on the CPU"
        )
        yield Fault(f"{ranks} processes share {counted(gpus, 'GPU')}", hint)


@rule("LO203", Level.NOTICE)
def option_without_effect(subject: Subject) -> Iterator[Fault]:
    """`--max-restarts` or `--processes-per-instance` has no effect with the job's distribution.

    Only torchrun and `--launcher fork` restart the ranks after one of them fails. With another
    launcher, the job ends with its first failure. The distribution `none` starts one process on
    each instance.
    """
    kind = subject.job.distribution.type
    restarts = subject.settings.max_restarts
    if restarts and _specification(subject).launcher not in ("torchrun", "fork"):
        message = (
            f"`--max-restarts {restarts}` has no effect: `{kind}` does not start through torchrun"
        )
        yield Fault(message, "leave out `--max-restarts`")
    count = subject.settings.processes_per_instance or 1
    if count > 1 and kind == "none":
        message = (
            f"`--processes-per-instance {count}` has no effect: `none` starts one process on "
            "each instance"
        )
        yield Fault(message, "start them through torchrun: `--set distribution.type=torch`")


@rule("LO209", Level.NOTICE)
def fields_without_effect(subject: Subject) -> Iterator[Fault]:
    """Fields of the job have no effect on this machine.

    A job describes machines, containers and data of every target. On this machine the script runs
    without a container, reads its data where it is, and shares the disk and `/dev/shm` with all
    programs. The details give the reason for each field. The job keeps the fields for the other
    targets; an emulation (`--emulate`) uses those that the emulated target would use.
    """
    if subject.settings.emulate is not None:
        return
    reasons: dict[str, str] = {}
    places: list[ValuePath] = []
    for path, _, effect in unsent(subject, FIELDS):
        reasons[".".join(map(str, path))] = effect.why
        places.append(path)
    if not reasons:
        return
    names = join_names(list(reasons))
    verb = "has" if len(reasons) == 1 else "have"
    details = tuple(f"`{name}`: {why}" for name, why in reasons.items())
    yield Fault(f"{names} {verb} no effect on this machine", None, places[0], details)


@rule("LO204", Level.NOTICE)
def mpi_on_one_instance(subject: Subject) -> Iterator[Fault]:
    """The instances of an MPI job run as one instance here.

    mpirun reaches other instances through ssh. So on this machine all ranks belong to one instance,
    and each rank's local rank equals its global rank.
    """
    specification = _specification(subject)
    if specification.launcher == "mpirun" and subject.job.resources.instance_count > 1:
        yield Fault(f"all {specification.world_size} ranks run as one instance here")


@rule("LO205", Level.NOTICE)
def other_library_here(subject: Subject) -> Iterator[Fault]:
    """The job's communication library or launcher is replaced on this machine.

    SMDDP exists only in SageMaker's images. Here torchrun starts the script, and
    `cloudtrain.runtime` picks nccl or gloo. DeepSpeed's own launcher needs ssh. Here torchrun
    starts the script instead.
    """
    distribution = subject.job.distribution
    emulate = subject.settings.emulate
    if distribution.type == "smddp" and emulate is None:
        message = "`smddp` runs through torchrun here, with nccl on GPUs and gloo on CPUs"
        yield Fault(message, None, ("distribution",))
    if getattr(distribution, "launch", None) == "launcher" and emulate != "azureml":
        yield Fault(
            "torchrun replaces the `deepspeed` launcher here", None, ("distribution", "launch")
        )


@rule("LO206", Level.NOTICE)
def checkpoint_stays_with_run(subject: Subject) -> Iterator[Fault]:
    """The job writes checkpoints, but sets no `checkpoint.local`.

    Without `checkpoint.local` every run has its own checkpoint folder, so the next run does not
    resume from the checkpoint of a stopped run.
    """
    checkpoint = subject.job.checkpoint
    if checkpoint is not None and checkpoint.local is None:
        message = (
            "the checkpoints stay in this run's folder, so the next run will not resume from them"
        )
        yield Fault(
            message, "set a folder for them: `--set checkpoint.local=checkpoints`", ("checkpoint",)
        )


@rule("LO207", Level.WARNING)
def requirements_are_missing(subject: Subject) -> Iterator[Fault]:
    """The run's interpreter lacks packages of the job's requirements.

    By default cloudtrain then installs `environment.requirements` into a separate environment. With
    `--no-build-environment` the script runs with the packages of the interpreter that `--python`
    names (default: the one that runs cloudtrain). This rule compares its installed versions with
    the requirements file and the files that it includes, without network access. For packages that
    only a cloud has, such as SageMaker's libraries, use an environment marker or `--ignore LO207`.
    """
    file = subject.job.environment.requirements
    # otherwise `settle` has asked
    if file is None or subject.settings.build_environment is not False:
        return
    python = subject.settings.python or subject.account.python
    missing = missing_from(python, _lines(subject.tree, file))
    if not missing:
        return

    words = []
    for requirement, version in missing[:_NAMED]:
        word = f"`{requirement}`"
        if version:
            word += f" (it has {version})"
        words.append(word)
    names = ", ".join(words)
    if len(missing) > _NAMED:
        names += f" and {len(missing) - _NAMED} more"
    lacking = [str(requirement) for requirement, _ in missing]
    command = shlex.join([python, "-m", "pip", "install", *lacking])
    message = f"`{python}` lacks packages that `{file}` requires: {names}"
    hint = (
        f"`{command}`, or name an interpreter that has it: `--python PATH`, or install them "
        "for this job only: `--build-environment`"
    )
    yield Fault(message, hint, ("environment", "requirements"))
