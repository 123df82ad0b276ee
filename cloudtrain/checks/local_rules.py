"""Rules about running on this machine."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from cloudtrain.checks.rule import Fault, Subject, rule
from cloudtrain.compile.scaling import local_shape, requested_shape, requested_tasks
from cloudtrain.distribution import TensorFlow
from cloudtrain.plans import Level

_TORCHRUN = ("torch", "smddp", "deepspeed")


@rule("LO101", Level.ERROR)
def input_is_missing(subject: Subject) -> Iterator[Fault]:
    """An input does not exist on this machine.

    `inputs.NAME.local` is a path relative to the job file. The script would fail when it opens it.
    """
    for name, item in subject.job.inputs.items():
        if item.local is not None and not Path(item.local).exists():
            hint = f"create it, or give another path: `--set inputs.{name}.local=PATH`"
            yield Fault(f"the input `{item.local}` does not exist", hint, ("inputs", name, "local"))


@rule("LO102", Level.ERROR)
def interpreter_is_missing(subject: Subject) -> Iterator[Fault]:
    """The Python interpreter for the run does not exist.

    `--python` (or `ct.Local(python=...)`) names the interpreter that runs the script.
    """
    python = subject.target.python
    if python is not None and shutil.which(python) is None:
        yield Fault(f"there is no interpreter `{python}`", f"use this one: `--python {sys.executable}`")


@rule("LO103", Level.ERROR)
def torch_is_missing(subject: Subject) -> Iterator[Fault]:
    """PyTorch is not installed for the interpreter that runs the script.

    The launcher of this distribution is torchrun, a part of PyTorch, or with `--launcher fork` imports it.
    """
    needs_torch = any(process.role in ("torchrun", "fork") for process in subject.plan.processes)
    if needs_torch and subject.target.python is None and find_spec("torch") is None:
        yield Fault(
            f"`{sys.executable}` has no PyTorch, and `{subject.job.distribution.type}` cannot start without it",
            "pip install 'cloudtrain[torch]', or name an interpreter that has it: `--python PATH`",
            ("distribution", "type"),
        )


@rule("LO104", Level.ERROR)
def place_is_a_file(subject: Subject) -> Iterator[Fault]:
    """An output or the checkpoint is to be written to a file.

    `outputs.NAME.local` and `checkpoint.local` are folders, which the run makes where they are missing. It cannot make
    one where a file lies, or below a file.
    """
    job, folders = subject.job, subject.plan.request["directories"]
    places: dict[tuple[str, ...], str | None] = {("outputs", name): item.local for name, item in job.outputs.items()}
    places["checkpoint",] = job.checkpoint.local if job.checkpoint else None
    for path, place in places.items():
        file = _file_on_the_way(place) if place is not None and place in folders else None
        if file is not None:
            hint = f"name a folder: `--set {'.'.join(path)}.local=PATH`"
            yield Fault(f"`{file}` is a file, and `{path[-1]}` needs a folder", hint, (*path, "local"))


def _file_on_the_way(folder: str) -> str | None:
    """The file that lies where the folder is to be, or above; what cannot be looked at counts as not there."""
    there = next(name for place in (Path(folder), *Path(folder).parents) if os.path.exists(name := str(place)))  # noqa: PTH110
    return None if Path(there).is_dir() else there


@rule("LO201", Level.NOTICE)
def scaled_down(subject: Subject) -> Iterator[Fault]:
    """The job is smaller here than it asks for.

    Instances and processes are scaled down to the GPUs of this machine, or to its CPUs where there is no GPU, so
    that a job for sixteen GPUs can be rehearsed on a laptop. `--instances` and `--processes-per-instance` override.
    """
    job, target, machine = subject.job, subject.target, subject.account.machine
    if isinstance(job.distribution, TensorFlow):
        yield from _fewer_tasks(subject)
        return
    asked, here = requested_shape(job, machine), local_shape(job, target, machine)
    if asked != here and not (target.instance_count or target.processes_per_instance):
        yield Fault(
            f"scaled down to this machine ({machine}): {here} processes instead of {asked} (instances x processes)",
            f"run it at full size with `--instances {asked.instances} "
            f"--processes-per-instance {asked.processes_per_instance}`",
            ("resources",),
        )


def _fewer_tasks(subject: Subject) -> Iterator[Fault]:
    """The same for TensorFlow, whose emulated hosts have a task each."""
    asked, request = requested_tasks(subject.job), subject.plan.request
    instances, tasks, here = asked.workers, sum(asked), request["world_size"]
    if subject.target.emulate is not None:
        instances = tasks = subject.job.resources.instance_count
        here = request["instances"]
    if here < tasks and subject.target.instance_count is None:
        message = f"scaled down to this machine ({subject.account.machine}): {here} tasks instead of {tasks}"
        yield Fault(message, f"run it at full size with `--instances {instances}`", ("resources",))


@rule("LO202", Level.WARNING)
def more_ranks_than_gpus(subject: Subject) -> Iterator[Fault]:
    """More processes than this machine has GPUs.

    The processes share GPUs. NCCL refuses two ranks on one GPU ("Duplicate GPU detected"); gloo works, slowly.
    """
    gpus, ranks = subject.account.machine.gpus, subject.plan.request["world_size"]
    if gpus and ranks > gpus:
        yield Fault(
            f"{ranks} processes share {gpus} GPU{'s' if gpus > 1 else ''}",
            f"use at most {gpus}, or hide the GPUs with `CUDA_VISIBLE_DEVICES=` to run on the CPU",
        )


@rule("LO203", Level.NOTICE)
def restarts_without_torchrun(subject: Subject) -> Iterator[Fault]:
    """Restarts are asked for, and this launcher has none.

    Only torchrun and `--launcher fork` start the ranks again after one of them died. A job without them ends with its
    first failure.
    """
    if subject.target.max_restarts and subject.plan.request["launcher"] not in ("torchrun", "fork"):
        yield Fault(
            f"`--max-restarts {subject.target.max_restarts}` has no effect: `{subject.job.distribution.type}` "
            "does not start through torchrun"
        )


@rule("LO204", Level.NOTICE)
def mpi_on_one_instance(subject: Subject) -> Iterator[Fault]:
    """Several MPI instances run as one here.

    mpirun reaches other instances through ssh, so on this machine all ranks belong to one instance: their local
    rank equals their rank.
    """
    if subject.plan.request["launcher"] == "mpirun" and subject.job.resources.instance_count > 1:
        yield Fault(f"all {subject.plan.request['world_size']} ranks run as one instance here")


@rule("LO205", Level.NOTICE)
def other_library_here(subject: Subject) -> Iterator[Fault]:
    """The job's own library is replaced on this machine.

    SMDDP exists only in SageMaker's images; here torchrun starts the script and `cloudtrain.runtime` picks nccl or
    gloo. DeepSpeed's own launcher needs ssh; here torchrun starts the script.
    """
    distribution = subject.job.distribution
    if distribution.type == "smddp" and subject.target.emulate is None:
        yield Fault("`smddp` runs through torchrun here, with nccl on GPUs and gloo on CPUs", None, ("distribution",))
    if getattr(distribution, "launch", None) == "launcher" and subject.target.emulate != "azureml":
        yield Fault("the `deepspeed` launcher is replaced by torchrun here", None, ("distribution", "launch"))


@rule("LO206", Level.NOTICE)
def checkpoint_stays_with_run(subject: Subject) -> Iterator[Fault]:
    """The job keeps checkpoints, but not at a place on this machine.

    Without `checkpoint.local` every run has its own checkpoint folder, so a run that was stopped is not resumed by
    the next one.
    """
    checkpoint = subject.job.checkpoint
    if checkpoint is not None and checkpoint.local is None:
        yield Fault(
            "this run keeps its checkpoints to itself, so the next one will not resume from them",
            "give them a place: `--set checkpoint.local=checkpoints`",
            ("checkpoint",),
        )
