from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

import cloudtrain as ct
from cloudtrain.cli import options
from cloudtrain.cli.app import Command, new_group, refuse_flags
from cloudtrain.cli.inputs import job_file
from cloudtrain.cli.options import argument, flag, option
from cloudtrain.cli.terminal import (
    command_line,
    print_json,
    print_lines,
    say,
    show_table,
    typed,
    writing,
)
from cloudtrain.documents import JsonMapping
from cloudtrain.errors import UsageError
from cloudtrain.job.file import SUFFIXES, anchored
from cloudtrain.job.model import format_duration, format_size
from cloudtrain.job.processing import AnyJob
from cloudtrain.lifecycle.preparing.locking import lock as resolve
from cloudtrain.lifecycle.runs.cleaning import (
    environment_links,
    kept_environments,
    remove_environments,
)
from cloudtrain.targets.settings import read_environment
from cloudtrain.targets.where import where

environments_command = new_group()

_LOCK = "requirements.lock.txt"


@environments_command.callback()
def environments(ctx: typer.Context, json: options.Json = False) -> None:
    """List and remove environments; lock requirements.

    The list has the environments that `cloudtrain submit --build-environment` has built on this
    machine, the last used first. `cloudtrain prune` removes those that no submit has used for two
    weeks.

    \b
    Examples:
      cloudtrain environments
      cloudtrain environments --json | jq -r '.[].key'
      cloudtrain environments remove 3f9a7c21d04e5b68
      cloudtrain environments lock requirements.txt --target sagemaker
    """
    if ctx.invoked_subcommand is not None:
        refuse_flags(ctx.invoked_subcommand, {"--json": json})
        return
    found = kept_environments(read_environment().state_dir)
    if json:
        print_json(found)
    elif found:
        show_table(("KEY", "SIZE", "USED", "PYTHON", "REQUIREMENTS", "RUNS"), map(_row, found))
    else:
        say(
            "cloudtrain has built no environment; `cloudtrain submit job.yaml "
            "--build-environment` builds one"
        )


def _row(environment: JsonMapping) -> tuple[str, ...]:
    """Return the row of an environment in the list."""
    size = format_size(environment["size"])
    seconds = int(max(0, time.time() - environment["used"]))
    age = f"{format_duration(seconds)} ago"
    requirements = ""
    if environment["requirements"] is not None:
        requirements = f"{environment['requirements']} ({environment['packages']})"
    runs = environment["runs"]
    users = "".join(runs[:1])
    if len(runs) > 1:
        users += f" and {len(runs) - 1} more"
    return environment["key"], size, age, environment["python"] or "", requirements, users


@options.silent
def _keys(_: str) -> list[str]:
    return [link.name for link in environment_links(read_environment().state_dir)]


@environments_command.command(cls=Command)
def remove(
    keys: Annotated[list[str], argument("KEY...", "Keys of the list.", autocompletion=_keys)],
    json: options.Json = False,
) -> None:
    """Remove environments that no unfinished run uses.

    The next submit that needs one builds it again. Prints the removed keys.

    \b
    Example:
      cloudtrain environments remove 3f9a7c21d04e5b68
    """
    remove_environments(keys, read_environment().state_dir)
    if json:
        print_json({"removed": keys})
    else:
        print_lines(keys)


@environments_command.command(cls=Command)
def lock(
    source: Annotated[
        str,
        argument("FILE", "A requirements file, a project, a script or a job."),
    ],
    target: options.TargetName = None,
    python: Annotated[
        str | None, option("--python", "VERSION", "Default: that of the image or machine.")
    ] = None,
    output: Annotated[
        Path | None, option("--output -o", "OUT", f"Default: {_LOCK} beside FILE.")
    ] = None,
    force: Annotated[bool, flag("--force", "Replace the file if it exists.")] = False,
    json: options.Json = False,
) -> None:
    """Pin requirements for the image of a target.

    uv chooses a version of every package and writes it with its hashes. PyTorch keeps the version
    of the image, and what only PyTorch needs is left out, because the image has it. A job file says
    which image; without one, it is the target's newest with PyTorch. Asks the package index; `plan`
    and `submit` never do.

    \b
    Examples:
      cloudtrain environments lock job.yaml --target sagemaker
      cloudtrain environments lock pyproject.toml --target slurm --python 3.12
      cloudtrain environments lock train.py -o locks/train.txt --force
    """
    path = Path(source)
    folder = path.parent
    file = path.name
    place = where(target, near=folder)

    # without a job file, of the newest image with PyTorch
    newest = ct.Environment(framework="pytorch")
    gpu = ct.Resources(gpu="A10G")
    job: AnyJob = ct.TrainingJob(name="lock", entry_point="x.py", environment=newest, resources=gpu)
    is_job = path.suffix.lower() in SUFFIXES and file not in ("pyproject.toml", "pylock.toml")
    if is_job:
        read = job_file(source, None)
        own_job = read.job if read.sweep is None else read.sweep.job
        job = anchored(own_job, Path.cwd())
        folder = Path(job.source_dir or folder)
        file = job.environment.requirements or "requirements.txt"

    if not (folder / file).is_file():
        hint = (
            "name a requirements file, a `pyproject.toml`, a script, or a job that has requirements"
        )
        raise UsageError(f"there is no file `{folder / file}`", hint=hint, code="CT903")
    requirements = Path(os.path.relpath(folder / file))
    destination = output or requirements.with_name(_LOCK)

    # the file names the command that writes it again
    words = ["cloudtrain", "environments", "lock", source]
    for option_name, value in {"--target": target, "--python": python, "-o": output}.items():
        if value:
            words += [option_name, str(value)]
    if destination.exists() and not force:
        hint = f"{typed(*words, '--force')} replaces it"
        raise UsageError(f"`{destination}` already exists", hint=hint, code="CT910")

    text, facts = resolve(folder, file, job, place, python, command_line(*words))
    with writing(destination, "name another file: `-o`"):
        destination.write_text(text, encoding="utf-8")

    if json:
        print_json({"file": str(destination), "facts": facts})
        return
    print_lines([str(destination)])
    # a job names the file relative to its code
    start = folder if is_job else destination.parent
    name = Path(os.path.relpath(destination, start)).as_posix()
    say("; ".join(facts), f"in the job: `environment: {{requirements: {name}}}`")
