from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

_TEMPLATE = """\
# For completion in an editor: `cloudtrain schema > job.schema.json`, and make this the first line:
#   # yaml-language-server: $schema=job.schema.json

name: {name}
source_dir: {source_dir}                 # the folder with your code, from this file
entry_point: {script}

# hyperparameters:            # reach the script as `--epochs 3 --learning_rate 0.01`
#   epochs: 3
#   learning_rate: 0.01

distribution: {{type: torch}}   # torchrun starts the processes: DDP, FSDP, tensor and pipeline parallel

resources:
  instance_count: 1
  # instance_type: {{sagemaker: ml.p4d.24xlarge, azureml: Standard_ND96asr_v4}}

# inputs:                     # a hyperparameter `data: "${{{{inputs.train}}}}"` tells the script where it is
#   train: {{local: data/train, sagemaker: "s3://bucket/train", azureml: "azureml:train:1"}}

# checkpoint: {{local: checkpoints}}   # a run that finds checkpoints there resumes
# max_runtime: 2h
"""


def command(
    path: Annotated[Path, typer.Argument(metavar="[FILE]", help="The job file to write.")] = Path("job.yaml"),
    script: Annotated[
        Path | None, typer.Option("--script", metavar="FILE", help="Your training script; found unless given.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="The job's name.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a first job file.

    The file holds the fields that most jobs need, with comments. An existing file is never touched without --force.

    \b
    Examples:
      cloudtrain init
      cloudtrain init --script src/train.py
      cloudtrain init jobs/big.yaml --script src/train.py --name big
    """
    from cloudtrain.cli.terminal import say
    from cloudtrain.errors import UsageError

    if path.exists() and not force:
        raise UsageError(f"`{path}` exists already", hint=f"`cloudtrain init {path} --force` replaces it")
    found = script if script is not None else _script_in(path.parent)
    if script is not None and not script.is_file():
        raise UsageError(
            f"there is no file `{script}`",
            hint="write the script first, or start from a bundled one: `cloudtrain scripts list`",
        )
    text = _job_text(path, found, _checked(name) if name is not None else _name_from(found.parent.absolute().name))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write `{path}`: {error.strerror}", hint="name another file") from None
    sys.stdout.write(f"{path}\n")
    missing = "" if found.is_file() else f"write `{found}`, then "
    say(f"next: {missing}`cloudtrain check {path}`, `cloudtrain submit {path}`")


def _script_in(folder: Path) -> Path:
    """The training script of a folder: `train.py`, else its only Python file, else the `train.py` to be written."""
    scripts = sorted(folder.glob("*.py"))
    usual = folder / "train.py"
    return scripts[0] if len(scripts) == 1 and usual not in scripts else usual


def _checked(name: str) -> str:
    """`name`, if a job may have it.

    Raises:
        JobError: it may not.
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
        script=_yaml(script.name),
    )


def _name_from(folder: str) -> str:
    """A job name out of a folder's name: letters, digits and hyphens."""
    words = re.findall(r"[a-zA-Z0-9]+", folder)
    return "-".join(words)[:40].rstrip("-") or "training"


def _yaml(text: str) -> str:
    """`text` as a YAML scalar that is read as text, whatever it looks like; JSON's strings are YAML."""
    import json

    from cloudtrain.jobfile.scalars import read_scalar

    plain = re.fullmatch(r"[A-Za-z0-9_./][A-Za-z0-9_./-]*", text) and read_scalar(text) == text
    return text if plain else json.dumps(text, ensure_ascii=False)
