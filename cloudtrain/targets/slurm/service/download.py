"""Copy the outputs of a run as one tar stream."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from cloudtrain.errors import TargetError, TargetUnreachable, UsageError, did_you_mean
from cloudtrain.system.staging import Staging
from cloudtrain.targets.common.landing import landing
from cloudtrain.targets.slurm.layout import RunFolder
from cloudtrain.targets.slurm.service import scripts
from cloudtrain.targets.slurm.service.runner import CommandFailed, Runner

_NOTHING = 3
"""The script's exit code for a missing file or folder."""


def download(runner: Runner, folder: RunFolder, path: str, destination: Path) -> list[Path]:
    """Copy an output, such as `model`, or a part of it, such as `model/weights.pt`, into `destination`. With an empty
    `path`, copy each output to its own folder.

    Raises:
        UsageError: the run has no such output; the hint names its outputs.
        TargetError: the run wrote no files to the output.
    """
    known = {**_outputs(runner, folder), "logs": f"{folder.path}/logs"}
    wanted = path.strip("/")
    with landing(destination, odd_names=True) as staging:
        if wanted:
            source = _find(wanted, known)
            if not _copy(runner, source, staging, ""):
                hint = f"the run's outputs: {', '.join(f'`{name}/`' for name in known)}"
                raise TargetError(f"the run wrote nothing to `{wanted}`", hint=hint)
        for name, source in known.items() if not wanted else ():
            _copy(runner, source, staging, f"{name}/")
        return staging.move()


def fetch(runner: Runner, source: str, target: Path) -> bool:
    """Copy the file `source` of the cluster to `target`. Return False if the file does not exist."""
    with landing(target.parent, odd_names=True) as staging:
        found = _copy(runner, source, staging, "")
        staging.move()
    return found and target.exists()


def _outputs(runner: Runner, folder: RunFolder) -> dict[str, str]:
    """Return the folders that the run writes to, by name. A run of `--format sbatch` has no list of them: then they are
    those in the run's own folder."""
    answer = runner.run(scripts.OUTPUTS, folder.path).decode("utf-8", "surrogateescape")
    if answer.startswith("{"):
        found: dict[str, str] = json.loads(answer)
        return found
    return {name: f"{folder.path}/{name}" for name in answer.splitlines()}


def _find(wanted: str, known: Mapping[str, str]) -> str:
    parts = wanted.split("/")
    for length in (2, 1):  # an output's name can have two parts, as `outputs/scores`
        name, rest = "/".join(parts[:length]), parts[length:]
        if name in known and ".." not in rest:
            return "/".join([known[name], *rest])
    if wanted == "outputs":
        names = [name for name in known if name.startswith("outputs/")]
        raise UsageError(
            "`outputs` is not the name of an output", hint=f"name one: {', '.join(names) or '`model`'}", code="CT935"
        )
    raise UsageError(f"`{wanted}` is not a result of the run", hint=did_you_mean(wanted, known), code="CT935")


def _copy(runner: Runner, source: str, staging: Staging, below: str) -> bool:
    """Copy the file or folder `source` of the cluster to `staging`. Return False if it does not exist. The name of
    each copied file begins with `below`.

    Raises:
        TargetUnreachable: the stream ended in the middle of the archive.
    """
    broken: list[str] = []

    def take(stream: IO[bytes]) -> None:
        try:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    content = archive.extractfile(member) if member.isfile() else None
                    if content is not None:
                        with staging.place(below + member.name.removeprefix("./")).open("wb") as file:
                            shutil.copyfileobj(content, file)
        except tarfile.ReadError as error:  # the script's exit code may say why
            broken.append(str(error))

    try:
        runner.read(scripts.TAR, source, take=take)
    except CommandFailed as error:
        if error.exit_status == _NOTHING:
            return False
        raise
    if broken:
        raise TargetUnreachable(f"the download of `{source}` was interrupted: {broken[0]}", hint="download it again")
    return True
