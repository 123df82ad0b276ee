"""Converts a launch line to a job, and compares the machines, processes, script and arguments of both."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath
from typing import Any

from cloudtrain.adoption.comparison import Comparison, Difference, shown_path
from cloudtrain.adoption.launches import Launch
from cloudtrain.adoption.proof import Adoption
from cloudtrain.adoption.writing import job_yaml, settings_toml
from cloudtrain.core.differences import ABSENT, paths_that_differ
from cloudtrain.core.job import TrainingJob
from cloudtrain.core.script import job_name_from, read_hyperparameters
from cloudtrain.jobfile import parse_job
from cloudtrain.targets.common.compiling import hyperparameter_argv


def adopt_launch(launch: Launch, kind: str) -> Adoption:
    """Convert a launch line to a job, and compare the two: machines, processes, script, arguments. `kind` describes the
    source in the job file's first comment.

    Raises:
        JobError: no job can express the line.
    """
    fields, comments = _fields(launch)
    head = [f"Adopted from {kind}."]
    text = job_yaml(fields, comments, head)
    job = parse_job(text, format="yaml", file="job.yaml")
    assert isinstance(job, TrainingJob)
    differences = [
        Difference(shown_path(path), theirs, ours, "a job passes arguments as `--name value`, sorted by name")
        for path, theirs, ours in paths_that_differ(_asked(launch), _started(job))
    ]
    differences += [Difference(name, "", ABSENT, reason) for name, reason in launch.lost.items()]
    settings = settings_toml(launch.target, launch.settings, launch.settings_head) if launch.settings else ""
    return Adoption(launch.target, kind, job, launch.settings, Comparison(tuple(differences)), text, settings, fields)


def _fields(launch: Launch) -> tuple[dict[str, Any], dict[tuple[str | int, ...], str]]:
    comments: dict[tuple[str | int, ...], str] = {}
    program, arguments = launch.program[0], launch.program[1:]
    stem = program.rpartition(".")[2] if launch.is_module else PurePosixPath(program).stem
    job: dict[str, Any] = {"name": job_name_from(launch.name or stem), "source_dir": launch.source_dir or "."}
    hyperparameters = None if launch.is_module else read_hyperparameters(arguments)
    if hyperparameters is not None and [*hyperparameter_argv(hyperparameters)] != arguments:
        hyperparameters = None  # another order or another spelling, which may matter to the script
    if hyperparameters is None:
        job["command"] = shlex.join(["python", *(["-m"] if launch.is_module else []), program, *arguments])
    else:
        job["entry_point"] = program
        job |= {"hyperparameters": hyperparameters} if hyperparameters else {}
    if launch.distribution:
        count = {"processes_per_instance": launch.processes} if launch.processes else {}
        job["distribution"] = {**launch.distribution, **count}
    resources: dict[str, Any] = {"instance_count": launch.instances}
    if launch.gpu:
        resources |= {"gpu": launch.gpu, "gpus_per_instance": launch.gpus or 1}
        comments[("resources",)] = "guessed: `cloudtrain instances` lists the GPUs by name and memory"
    elif launch.gpus:
        resources["gpus_per_instance"] = launch.gpus
    job["resources"] = resources
    environment: dict[str, Any] = {"variables": launch.variables} if launch.variables else {}
    if launch.image:
        environment["image"] = launch.image
    job |= {"environment": environment} if environment else {}
    job |= {"spot": {}} if launch.spot else {}
    job |= {"max_runtime": launch.max_runtime} if launch.max_runtime else {}
    return job, comments


def _asked(launch: Launch) -> dict[str, Any]:
    words = ["python", *(["-m"] if launch.is_module else []), *launch.program]
    return {
        "words": words,
        "instances": launch.instances,
        "processes": launch.processes if launch.distribution else None,
        "variables": launch.variables,
        "max_runtime": launch.max_runtime,
    }


def _started(job: TrainingJob) -> dict[str, Any]:
    words = shlex.split(job.command or "")
    if job.entry_point is not None:
        words = ["python", job.entry_point, *hyperparameter_argv(job.hyperparameters)]
    return {
        "words": words,
        "instances": job.resources.instance_count,
        "processes": getattr(job.distribution, "processes_per_instance", None),
        "variables": dict(job.environment.variables),
        "max_runtime": job.max_runtime,
    }
