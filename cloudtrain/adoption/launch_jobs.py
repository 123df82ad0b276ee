"""Converts a launch line to a job, and compares the machines, processes, script and arguments of both."""

from __future__ import annotations

import os
import shlex
from pathlib import Path, PurePosixPath
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

FILL_IN = "FILL-IN"
"""Stands for a value that the user adds."""

SECRET = "it looks like a secret, so it is not copied: write its location into `environment.secrets`"


def adopt_launch(launch: Launch, kind: str, place: Path) -> Adoption:
    """Convert a launch line to a job, and compare the two: machines, processes, script, arguments. `kind` describes the
    source in the job file's first comment. `place` is the folder that the job file will be in.

    Raises:
        JobError: no job can express the line.
    """
    _take_secrets_out(launch, _parsed(*_fields(launch, place)))
    fields, comments = _fields(launch, place)
    head = [f"Adopted from {kind}.", *launch.notes]
    text = job_yaml(fields, comments, head)
    job = _parsed(fields, comments)
    differences = [
        Difference(shown_path(path), theirs, ours, "a job passes arguments as `--name value`, sorted by name")
        for path, theirs, ours in paths_that_differ(_asked(launch), _started(job))
    ]
    differences += [Difference(name, "", ABSENT, reason) for name, reason in launch.lost.items()]
    settings = settings_toml(launch.target, launch.settings, launch.settings_head) if launch.settings else ""
    return Adoption(launch.target, kind, job, launch.settings, Comparison(tuple(differences)), text, settings, fields)


def _parsed(fields: dict[str, Any], comments: dict[tuple[str | int, ...], str]) -> TrainingJob:
    job = parse_job(job_yaml(fields, comments), format="yaml", file="job.yaml")
    assert isinstance(job, TrainingJob)
    return job


def _take_secrets_out(launch: Launch, job: TrainingJob) -> None:
    """Replace what looks like a secret in the launch, and list it without its value."""
    from cloudtrain.rules.portable.value import secret_values

    for found in secret_values(job):
        launch.lost[shown_path(found.path)] = SECRET
        if found.path[:2] == ("environment", "variables"):
            del launch.variables[str(found.path[2])]
        launch.program = [word.replace(found.value, FILL_IN) for word in launch.program]


def _source_dir(launch: Launch, place: Path) -> str:
    """Return the folder of the code, relative to the job file. A launch line and a batch script start in the folder
    where the user types them, which may be another folder than the script's."""
    source, program = launch.source_dir or ".", launch.program[0]
    here = os.path.exists(os.path.join(source, program))  # noqa: PTH110, PTH118
    path = os.path.join("." if here else launch.folder, source)  # noqa: PTH118
    moved = os.path.relpath(path, place)
    return source if os.path.isabs(source) or moved == os.path.normpath(source) else moved  # noqa: PTH117


def _fields(launch: Launch, place: Path) -> tuple[dict[str, Any], dict[tuple[str | int, ...], str]]:
    comments: dict[tuple[str | int, ...], str] = {}
    program, arguments = launch.program[0], launch.program[1:]
    stem = program.rpartition(".")[2] if launch.is_module else PurePosixPath(program).stem
    job: dict[str, Any] = {"name": job_name_from(launch.name or stem), "source_dir": _source_dir(launch, place)}
    hyperparameters = None if launch.is_module or launch.is_command else read_hyperparameters(arguments)
    if hyperparameters is not None and [*hyperparameter_argv(hyperparameters)] != arguments:
        hyperparameters = None  # another order or another spelling, which may matter to the script
    if hyperparameters is None:
        job["command"] = shlex.join(_words(launch))
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
    return {
        "words": _words(launch),
        "instances": launch.instances,
        "processes": launch.processes if launch.distribution else None,
        "variables": launch.variables,
        "max_runtime": launch.max_runtime,
    }


def _words(launch: Launch) -> list[str]:
    return [*([] if launch.is_command else ["python"]), *(["-m"] if launch.is_module else []), *launch.program]


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
