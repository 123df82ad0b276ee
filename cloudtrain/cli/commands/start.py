from __future__ import annotations

import json
import os
import re
import sys
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Annotated

import cloudtrain as ct
from cloudtrain.cli import options
from cloudtrain.cli.app import Command, new_group
from cloudtrain.cli.options import argument, flag, option
from cloudtrain.cli.terminal import print_json, print_lines, say, show_table, typed
from cloudtrain.code.bundled import copy_script, script_files, script_path, script_summaries
from cloudtrain.code.ignore import IGNORE_FILE
from cloudtrain.errors import UsageError, did_you_mean, quoted
from cloudtrain.job.schema import job_schema

_SCHEMA = "job.schema.json"
"""The name of the JSON Schema file for editors, which is written beside the job file."""

_FOLDERS = ("src", "code", "scripts", "training")
"""Folders that usually hold the training script, if it is not beside the job file."""


def init_command(
    path: Annotated[Path, argument("[FILE]", "The job file to write.")] = Path("job.yaml"),
    script: Annotated[
        Path | None,
        option("--script", "FILE", "Your training script. Default: cloudtrain looks for it."),
    ] = None,
    name: Annotated[str | None, option("--name", "NAME", "The job's name.")] = None,
    force: Annotated[bool, flag("--force", "Replace the file if it exists.")] = False,
) -> None:
    """Write a first job file.

    The file holds the fields that most jobs need, with comments. An existing file is replaced only
    with --force. Also writes a JSON Schema, so that editors can complete the file, and a first
    `.cloudtrainignore`.

    \b
    Examples:
      cloudtrain init
      cloudtrain init --script src/train.py
      cloudtrain init jobs/big.yaml --script src/train.py --name big
    """
    if path.is_dir():
        command = typed("cloudtrain", "init", str(path / "job.yaml"))
        hint = f"{command} writes a job file there"
        raise UsageError(f"`{path}` is a folder", hint=hint)
    if path.suffix.lower() not in (".yaml", ".yml"):
        command = typed("cloudtrain", "init", str(path.with_suffix(".yaml")))
        hint = f"type {command}"
        message = f"`cloudtrain init` writes YAML, but `{path}` does not end in `.yaml`"
        raise UsageError(message, hint=hint)
    if path.exists() and not force:
        hint = f"{typed('cloudtrain', 'init', str(path), '--force')} replaces it"
        raise UsageError(f"`{path}` already exists", hint=hint)

    training_script = script if script is not None else _script_in(path)
    if script is not None and not script.is_file():
        hint = "write the script first, or start from a bundled one: `cloudtrain scripts list`"
        raise UsageError(f"there is no file `{script}`", hint=hint, code="CT903")

    if name is None:
        words = re.findall(r"[a-zA-Z0-9]+", path.parent.absolute().name)
        name = "-".join(words)[:40].rstrip("-") or "training"
    else:
        ct.TrainingJob(name=name, entry_point="train.py")  # refuses a name that is not valid

    schema = json.dumps(job_schema(), indent=1, ensure_ascii=False) + "\n"
    files = {path: _job_text(path, training_script, name), path.parent / _SCHEMA: schema}
    source = training_script.parent if training_script.parent.is_dir() else path.parent
    ignore_file = source / IGNORE_FILE
    if not ignore_file.exists():
        files[ignore_file] = Path(__file__).with_name("cloudtrainignore.txt").read_text("utf-8")
    for file, text in files.items():
        try:
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            message = f"cannot write `{file}`: {error.strerror}"
            raise UsageError(message, hint="name another file") from None

    print_lines(map(str, files))
    missing = "" if training_script.is_file() else f"write `{training_script}`, then "
    check = typed("cloudtrain", "check", str(path))
    submit = typed("cloudtrain", "submit", str(path))
    say(f"next: {missing}{check}, {submit}")


def _script_in(file: Path) -> Path:
    """Return the training script beside a job file: `train.py`, the only Python file, or the only
    one that runs as a program. If there is none, search the subfolders `_FOLDERS` in the same way.
    If no script is found, return the path for a new `train.py`."""
    folder = file.parent
    for name in ("", *_FOLDERS):
        place = folder / name
        scripts = sorted(path for path in place.glob("*.py") if path.is_file())
        if place / "train.py" in scripts:
            return place / "train.py"

        if len(scripts) > 1:
            scripts = [path for path in scripts if "__main__" in path.read_text(errors="replace")]
        if len(scripts) > 1:
            command = typed("cloudtrain", "init", str(file), "--script", str(scripts[0]))
            message = f"several scripts could train: {quoted(scripts)}"
            raise UsageError(message, hint=f"choose one: {command}", code="CT903")
        if scripts:
            return scripts[0]
    return folder / "train.py"


def _job_text(path: Path, script: Path, name: str) -> str:
    """Return the text of the job file `path`."""
    folder = os.path.relpath(script.parent.absolute(), path.parent.absolute())
    template = Path(__file__).with_name("job.yaml.txt").read_text("utf-8")
    return template.format(
        name=_yaml(name),
        source_dir=_yaml(Path(folder).as_posix()),
        schema=_SCHEMA,
        distribution=_distribution(script),
        script=_yaml(script.name),
    )


def _distribution(script: Path) -> str:
    """Return the job file's line about the distribution. It is for torch if the script cannot be
    read, and a comment if its processes would not work together."""
    from cloudtrain.job.script import distribution_of

    kind: str | None = "torch"
    if script.is_file() and script.suffix == ".py":
        with suppress(UsageError):  # the script is not valid Python, which `check` reports
            kind = distribution_of(script)
    if kind == "torch":
        return (
            "distribution: {type: torch}   # torchrun starts the processes: DDP, FSDP, "
            "tensor and pipeline parallel"
        )
    if kind is None:
        return (
            "# distribution: {type: torch}   # torchrun starts the processes; without it one "
            "process runs the script"
        )
    return f"distribution: {{type: {kind}}}"


def _yaml(text: str) -> str:
    """Return `text` as a YAML scalar, quoted as in JSON if YAML would read the plain text as
    something else."""
    from cloudtrain.documents.yaml_text import read_scalar

    if re.fullmatch(r"[A-Za-z0-9_./][A-Za-z0-9_./-]*", text) and read_scalar(text) == text:
        return text
    return json.dumps(text, ensure_ascii=False)


class Kind(str, Enum):
    training = "training"
    processing = "processing"
    sweep = "sweep"


def schema_command(
    kind: Annotated[
        Kind,
        option("--kind", "KIND", "The kind of job file: training (default), processing or sweep."),
    ] = Kind.training,
) -> None:
    """Print the JSON Schema of a job file, for editors.

    \b
    Examples:
      cloudtrain schema > job.schema.json
      cloudtrain schema --kind processing > processing.schema.json
      cloudtrain schema --kind sweep > sweep.schema.json
      # first line of job.yaml, for editors with the YAML language server:
      # yaml-language-server: $schema=job.schema.json
    """
    print_json(job_schema(kind.value))


scripts_command = new_group(needs_command=True)

ScriptName = Annotated[
    str,
    argument("NAME", "The name of a bundled script.", autocompletion=options.scripts),
]


@scripts_command.callback()
def scripts_root() -> None:
    """List, show and copy the bundled training scripts.

    \b
    Examples:
      cloudtrain scripts list
      cloudtrain scripts show digits_ddp
      cloudtrain scripts copy digits_ddp my-training
      cloudtrain submit bundled:digits_ddp
    """


@scripts_command.command("list", cls=Command)
def list_all_scripts(json: options.Json = False) -> None:
    """List the bundled scripts."""
    scripts = script_summaries().items()
    if json:
        data = []
        for folder, summary in scripts:
            data.append({"name": folder.name, "path": str(folder), "summary": summary})
        print_json(data)
    else:
        rows = [(folder.name, summary) for folder, summary in scripts]
        show_table(("NAME", "SUMMARY"), rows)


@scripts_command.command("show", cls=Command)
def show_script(
    name: ScriptName,
    file: Annotated[
        str, option("--file", "FILE", "The file to print. Default: train.py.")
    ] = "train.py",
) -> None:
    """Print a file of a bundled script.

    \b
    Examples:
      cloudtrain scripts show digits_ddp
      cloudtrain scripts show digits_ddp --file job.yaml
    """
    files = script_files(name)
    if file not in files:
        owner = script_path(name).name
        hint = did_you_mean(file, files)
        raise UsageError(f"`{owner}` has no file `{file}`", hint=hint, code="CT903")
    sys.stdout.write(files[file].read_text(encoding="utf-8"))


@scripts_command.command(cls=Command)
def copy(
    name: ScriptName,
    destination: Annotated[
        Path | None, argument("[DEST]", "A new or empty folder. Default: NAME.")
    ] = None,
) -> None:
    """Copy a bundled script as a start for your own.

    \b
    Example:
      cloudtrain scripts copy digits_ddp my-training
    """
    if destination is None:
        destination = Path(script_path(name).name)
    folder = copy_script(name, destination)
    print_lines([str(folder)])
    submit = typed("cloudtrain", "submit", f"{folder}/job.yaml")
    say(f"edit the files in `{folder}`, then run {submit}")
