from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

_TEMPLATE = """\
# yaml-language-server: $schema={schema}

name: {name}
source_dir: {source_dir}                 # the folder with your code, from this file
entry_point: {script}

# hyperparameters:            # reach the script as `--epochs 3 --learning_rate 0.01`
#   epochs: 3
#   learning_rate: 0.01

{distribution}

resources:
  instance_count: 1
  # instance_type: {{sagemaker: ml.p4d.24xlarge, azureml: Standard_ND96asr_v4}}

# inputs:                     # a hyperparameter `data: "${{{{inputs.train}}}}"` tells the script where it is
#   train: {{local: data/train, sagemaker: "s3://bucket/train", azureml: "azureml:train:1"}}

# environment:
#   secrets: {{HF_TOKEN: {{local: "env:HF_TOKEN", sagemaker: "secretsmanager:NAME", azureml: "keyvault:VAULT/NAME"}}}}

# checkpoint: {{local: checkpoints}}   # a run that finds checkpoints there resumes
# max_runtime: 2h
"""

_SCHEMA = "job.schema.json"
"""The name of the JSON Schema file for editors, which is written beside the job file."""

_IGNORED = f"""\
# Files here that are not code, so that they stay out of what a job uploads. The rules are those of .gitignore.
# Left out anyway: the inputs, outputs and checkpoints of the job, .git, environments, caches and credentials.
{_SCHEMA}
*.log
wandb/
mlruns/
lightning_logs/
"""

_FOLDERS = ("src", "code", "scripts", "training")
"""Folders that usually hold the training script, if it is not beside the job file."""


def command(
    path: Annotated[Path, typer.Argument(metavar="[FILE]", help="The job file to write.")] = Path("job.yaml"),
    script: Annotated[
        Path | None,
        typer.Option("--script", metavar="FILE", help="Your training script. Default: cloudtrain looks for it."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="The job's name.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a first job file.

    The file holds the fields that most jobs need, with comments. An existing file is replaced only with --force.
    Also writes a JSON Schema, so that editors can complete the file, and a first `.cloudtrainignore`.

    \b
    Examples:
      cloudtrain init
      cloudtrain init --script src/train.py
      cloudtrain init jobs/big.yaml --script src/train.py --name big
    """
    from cloudtrain.bundle.ignore import IGNORE_FILE
    from cloudtrain.cli.terminal import print_lines, say, typed
    from cloudtrain.errors import UsageError

    if path.is_dir():
        hint = f"{typed('cloudtrain', 'init', str(path / 'job.yaml'))} writes a job file there"
        raise UsageError(f"`{path}` is a folder", hint=hint)
    if path.suffix.lower() not in (".yaml", ".yml"):
        hint = f"type {typed('cloudtrain', 'init', str(path.with_suffix('.yaml')))}"
        raise UsageError(f"`cloudtrain init` writes YAML, but `{path}` does not end in `.yaml`", hint=hint)
    if path.exists() and not force:
        raise UsageError(
            f"`{path}` already exists", hint=f"{typed('cloudtrain', 'init', str(path), '--force')} replaces it"
        )
    found = script if script is not None else _script_in(path.parent)
    if script is not None and not script.is_file():
        raise UsageError(
            f"there is no file `{script}`",
            hint="write the script first, or start from a bundled one: `cloudtrain scripts list`",
            code="CT903",
        )
    given = _check_name(name) if name is not None else _name_from(path.parent.absolute().name)
    source = found.parent if found.parent.is_dir() else path.parent
    files = {path: _job_text(path, found, given), path.parent / _SCHEMA: _schema()}
    if not (source / IGNORE_FILE).exists():
        files[source / IGNORE_FILE] = _IGNORED
    for file, text in files.items():
        try:
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write `{file}`: {error.strerror}", hint="name another file") from None
    print_lines([str(file) for file in files])
    missing = "" if found.is_file() else f"write `{found}`, then "
    check, submit = typed("cloudtrain", "check", str(path)), typed("cloudtrain", "submit", str(path))
    say(f"next: {missing}{check}, {submit}")


def _script_in(folder: Path) -> Path:
    """Return the training script in a folder: `train.py`, or the only Python file. If the folder has neither, search
    its subfolders `_FOLDERS` in the same way. If no script is found, return the path for a new `train.py`."""
    for place in (folder, *(folder / name for name in _FOLDERS)):
        scripts = sorted(place.glob("*.py"))
        if place / "train.py" in scripts:
            return place / "train.py"
        if len(scripts) == 1:
            return scripts[0]
    return folder / "train.py"


def _schema() -> str:
    import json

    from cloudtrain.jobfile.schema import job_schema

    return json.dumps(job_schema(), indent=1, ensure_ascii=False) + "\n"


def _check_name(name: str) -> str:
    """Return `name` if it is a valid name of a job.

    Raises:
        JobError: the name is not valid.
    """
    import cloudtrain as ct

    return ct.TrainingJob(name=name, entry_point="train.py").name


def _job_text(path: Path, script: Path, name: str) -> str:
    import os

    here = path.parent.absolute()
    folder = os.path.relpath(script.parent.absolute(), here)
    return _TEMPLATE.format(
        name=_yaml(name),
        source_dir=_yaml(Path(folder).as_posix()),
        schema=_SCHEMA,
        distribution=_distribution(script),
        script=_yaml(script.name),
    )


def _distribution(script: Path) -> str:
    """Return the `distribution` line of the job file, chosen by the script's imports.

    The line is for torch if the script cannot be read, and a comment if the script imports no library for distributed
    training.
    """
    from cloudtrain.core.script import distribution_of
    from cloudtrain.errors import UsageError

    try:
        found = distribution_of(script) if script.is_file() and script.suffix == ".py" else "torch"
    except UsageError:  # `check` says it
        found = "torch"
    if found == "torch":
        return "distribution: {type: torch}   # torchrun starts the processes: DDP, FSDP, tensor and pipeline parallel"
    if found is None:
        return "# distribution: {type: torch}   # torchrun starts the processes; without it one process runs the script"
    return f"distribution: {{type: {found}}}"


def _name_from(folder: str) -> str:
    """Make a job name of letters, digits and hyphens from a folder's name."""
    words = re.findall(r"[a-zA-Z0-9]+", folder)
    return "-".join(words)[:40].rstrip("-") or "training"


def _yaml(text: str) -> str:
    """Return `text` as a YAML scalar, quoted as in JSON if YAML would read the plain text as something else."""
    import json

    from cloudtrain.documents.scalars import read_scalar

    plain = re.fullmatch(r"[A-Za-z0-9_./][A-Za-z0-9_./-]*", text) and read_scalar(text) == text
    return text if plain else json.dumps(text, ensure_ascii=False)
