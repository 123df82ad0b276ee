from __future__ import annotations

import os
import sys
from contextlib import suppress
from enum import Enum
from json import dumps, loads
from pathlib import Path
from typing import Annotated

import cloudtrain as ct
from cloudtrain.cli import options
from cloudtrain.cli.app import Command, new_group
from cloudtrain.cli.options import argument, flag, option
from cloudtrain.cli.terminal import print_json, print_lines, say, show_table, typed, writing
from cloudtrain.code.bundled import copy_script, script_files, script_path, script_summaries
from cloudtrain.code.ignore import IGNORE_FILE
from cloudtrain.documents import JsonObject
from cloudtrain.documents.yaml_text import plain_scalar, write_yaml
from cloudtrain.errors import UsageError, quoted
from cloudtrain.job.schema import job_schema
from cloudtrain.job.script import distribution_of, job_name_from, syntax_of_script

_SCHEMA = "job.schema.json"
"""The name of the JSON Schema file for editors, which is written beside the job file."""

_FOLDERS = ("src", "code", "scripts", "training")
"""Folders that usually hold the training script, if it is not beside the job file."""


def init_command(
    path: Annotated[
        Path,
        argument("[FILE]", "The job file to write, or your training script for a `job.yaml`."),
    ] = Path("job.yaml"),
    script: Annotated[
        Path | None,
        option("--script", "FILE", "Your training script. Default: cloudtrain looks for it."),
    ] = None,
    name: Annotated[str | None, option("--name", "NAME", "The job's name.")] = None,
    force: Annotated[bool, flag("--force", "Replace the file if it exists.")] = False,
    json: options.Json = False,
) -> None:
    """Write a first job file.

    The file holds the fields that most jobs need, with comments, and as hyperparameters the options
    that your script adds with argparse. An existing file is replaced only with --force. Also writes
    a JSON Schema, so that editors can complete the file, and a first `.cloudtrainignore`.

    \b
    Examples:
      cloudtrain init
      cloudtrain init train.py
      cloudtrain init jobs/big.yaml --script src/train.py --name big
    """
    if path.suffix == ".py" and script is None:
        script = path
        path = Path("job.yaml")
    _check_files(path, script, force=force)
    training_script = script if script is not None else _script_in(path)

    if name is None:
        name = job_name_from(path.parent.absolute().name)
    else:
        ct.TrainingJob(name=name, entry_point="train.py")  # refuses a name that is not valid

    schema = dumps(job_schema(), indent=1, ensure_ascii=False) + "\n"
    # a project's folder holds packages that the script may import
    source = training_script.parent
    is_inside = training_script.absolute().is_relative_to(path.parent.absolute())
    if is_inside and (path.parent / "pyproject.toml").is_file():
        source = path.parent
    text = _job_text(path, training_script, name, source)
    files = {path: text, path.parent / _SCHEMA: schema}
    ignore_file = source / IGNORE_FILE
    if not ignore_file.exists():
        files[ignore_file] = Path(__file__).with_name("cloudtrainignore.txt").read_text("utf-8")
    for file, text in files.items():
        with writing(file):
            file.write_text(text, encoding="utf-8")

    if json:
        print_json({"files": list(map(str, files))})
        return
    print_lines(map(str, files))
    missing = "" if training_script.is_file() else f"write `{training_script}`, then "
    check = typed("cloudtrain", "check", str(path))
    submit = typed("cloudtrain", "submit", str(path))
    say(f"next: {missing}{check}, {submit}")


def _check_files(path: Path, script: Path | None, *, force: bool) -> None:
    """Raise UsageError if no job file can be written to `path`, or if there is no such script."""
    if path.is_dir():
        command = typed("cloudtrain", "init", str(path / "job.yaml"))
        hint = f"{command} writes a job file there"
        raise UsageError(f"`{path}` is a folder", hint=hint, code="CT903")
    if path.suffix.lower() not in (".yaml", ".yml"):
        command = typed("cloudtrain", "init", str(path.with_suffix(".yaml")))
        hint = f"type {command}"
        if path.suffix == ".ipynb":
            export = typed("jupyter", "nbconvert", "--to", "script", str(path))
            script_command = typed("cloudtrain", "init", str(path.with_suffix(".py")))
            hint = f"export the notebook with {export}, then type {script_command}"
        elif path.suffix in (".sh", ".sbatch"):
            hint = f"type {typed('cloudtrain', 'adopt', str(path))}"
        message = f"`cloudtrain init` writes YAML, but `{path}` does not end in `.yaml`"
        raise UsageError(message, hint=hint, code="CT909")
    if script is not None and not script.is_file():
        hint = "write the script first, or start from a bundled one: `cloudtrain scripts list`"
        raise UsageError(f"there is no file `{script}`", hint=hint, code="CT903")
    if path.exists() and not force:
        words = ["cloudtrain", "init", str(path), "--force"]
        if script is not None:
            words += ["--script", str(script)]
        hint = f"{typed(*words)} replaces it"
        raise UsageError(f"`{path}` already exists", hint=hint, code="CT910")


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


def _job_text(path: Path, script: Path, name: str, source: Path) -> str:
    """Return the text of the job file `path`, with the code in the folder `source`."""
    folder = os.path.relpath(source.absolute(), path.parent.absolute())
    entry_point = os.path.relpath(script.absolute(), source.absolute())
    template = Path(__file__).with_name("job.yaml.txt").read_text("utf-8")
    return template.format(
        name=plain_scalar(name),
        source_dir=plain_scalar(Path(folder).as_posix()),
        schema=_SCHEMA,
        distribution=_distribution(script),
        hyperparameters=_hyperparameters(script),
        script=plain_scalar(Path(entry_point).as_posix()),
    )


def _hyperparameters(script: Path) -> str:
    """Return the job file's lines about hyperparameters: the script's options with their defaults,
    or without any, comments with an example."""
    with suppress(UsageError):  # the script does not exist yet, or is not valid Python
        options = dict(syntax_of_script(script).options)
        if options:
            return write_yaml({"hyperparameters": options}).rstrip()
    return _NO_HYPERPARAMETERS


_NO_HYPERPARAMETERS = """\
# hyperparameters:            # reach the script as `--epochs 3 --learning_rate 0.01`
#   epochs: 3
#   learning_rate: 0.01"""


def _distribution(script: Path) -> str:
    """Return the job file's line about the distribution. It is for torch if the script cannot be
    read, and a comment if its processes would not work together."""
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


class Kind(str, Enum):
    training = "training"
    processing = "processing"
    sweep = "sweep"


def schema_command(
    kind: Annotated[
        Kind,
        option("--kind", "KIND", "The kind of job file: training (default), processing or sweep."),
    ] = Kind.training,
    output: Annotated[
        str | None,
        option(
            "--output",
            "NAME",
            "Print the schema of what a command prints with `--json`, such as plan, plan-short, "
            "status or error.",
            autocompletion=options.silent(lambda _: [*_outputs()]),
        ),
    ] = None,
    _json: Annotated[
        bool, flag("--json", "The schema is JSON anyway; so is an error then.")
    ] = False,
) -> None:
    """Print the JSON Schema of a job file, for editors.

    \b
    Examples:
      cloudtrain schema > job.schema.json
      cloudtrain schema --kind processing > processing.schema.json
      cloudtrain schema --kind sweep > sweep.schema.json
      cloudtrain schema --output status
      # first line of job.yaml, for editors with the YAML language server:
      # yaml-language-server: $schema=job.schema.json
    """
    if output is None:
        print_json(job_schema(kind.value))
        return
    schemas = _outputs()
    options.require_word("output", output, schemas, "CT929")
    print_json(schemas[output])


def _outputs() -> dict[str, JsonObject]:
    """Return the schema of each output, by its name."""
    file = Path(__file__).parents[1] / "outputs.json"
    schemas: dict[str, JsonObject] = loads(file.read_text("utf-8"))
    return schemas


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
        rows = []
        for folder, summary in scripts:
            rows.append((folder.name, summary))
        show_table(("NAME", "SUMMARY"), rows)


@scripts_command.command("show", cls=Command)
def show_script(
    name: ScriptName,
    file: Annotated[
        str, option("--file", "FILE", "The file to print. Default: train.py.")
    ] = "train.py",
    json: options.Json = False,
) -> None:
    """Print a file of a bundled script.

    \b
    Examples:
      cloudtrain scripts show digits_ddp
      cloudtrain scripts show digits_ddp --file job.yaml
    """
    files = script_files(name)
    options.require_word("file", file, files, "CT903")
    text = files[file].read_text(encoding="utf-8")
    if json:
        print_json({"name": name, "file": file, "text": text})
    else:
        sys.stdout.write(text)


@scripts_command.command(cls=Command)
def copy(
    name: ScriptName,
    destination: Annotated[
        Path | None, argument("[DEST]", "A new or empty folder. Default: NAME.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Copy a bundled script as a start for your own.

    \b
    Example:
      cloudtrain scripts copy digits_ddp my-training
    """
    if destination is None:
        destination = Path(script_path(name).name)
    folder = copy_script(name, destination)
    if json:
        print_json({"folder": str(folder)})
        return
    print_lines([str(folder)])
    submit = typed("cloudtrain", "submit", f"{folder}/job.yaml")
    say(f"edit the files in `{folder}`, then run {submit}")
