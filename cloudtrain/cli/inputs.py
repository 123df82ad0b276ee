"""From arguments to the objects of the public API: the job, the target, the run."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import UsageError

if TYPE_CHECKING:
    from cloudtrain.jobfile import JobFile
    from cloudtrain.plans import Plan


def job_file(job: str, overrides: Sequence[str] | None) -> JobFile:
    """The job of a file or of a bundled script.

    Raises:
        UsageError: there is no such file.
        JobError: the file's problems, all of them.
    """
    from cloudtrain.api import load_job_file
    from cloudtrain.job import BUNDLED

    if not job.startswith(BUNDLED) and not Path(job).exists():
        from cloudtrain.scripts import script_names

        if job in script_names():
            raise UsageError(f"there is no file `{job}`", hint=f"did you mean `{BUNDLED}{job}`?")
    return load_job_file(job, list(overrides or ()))


def target(name: str | None, profile: str | None, *, job: str | None = None, **flags: Any) -> Any:
    """The target with its settings, those of the job file's project first. A flag of the local target that another
    target lacks is an error.

    Raises:
        UsageError: a flag does not belong to the target.
    """
    from cloudtrain.api import target_named

    near = Path(job).parent if job is not None and Path(job).is_file() else None
    given = {key: value for key, value in flags.items() if value is not None}
    if given:
        chosen = target_named(name, profile=profile, near=near).type
        if chosen != "local":
            field, value = next(iter(given.items()))
            flag = "--" + _FLAG_OF.get(field, field).replace("_", "-")
            hint = "add `--target local`"
            if field in _OF_THE_JOB:
                hint += f", or change the job with `--set {_OF_THE_JOB[field]}={value}`"
            raise UsageError(f"`{flag}` is for the local target, and this is `{chosen}`", hint=hint)
    return target_named(name, profile=profile, near=near, **_as_fields(given))


def plan_of(file: JobFile, where: Any, *, profile: str | None, ignore: Sequence[str] | None) -> Plan:
    """The plan of a job file, its findings placed in the file."""
    import cloudtrain as ct

    return ct.plan(file.job, where, profile=profile, ignore=list(ignore or ()), place_of=file.place_of)


def checked(
    file: JobFile, where: Any, *, profile: str | None, ignore: Sequence[str] | None, online: bool | None
) -> Plan:
    """The plan of a job file with what its target says about it, if it is asked."""
    from cloudtrain.api import check

    return check(file.job, where, profile=profile, ignore=list(ignore or ()), place_of=file.place_of, online=online)


def instance_number(text: str) -> int:
    """An instance as a user writes it: its number, counted from 0, or SageMaker's name of its host, `algo-1`.

    Raises:
        UsageError: the text is neither.
    """
    host = text.removeprefix("algo-")
    if re.fullmatch("[0-9]{1,9}", host) and (host == text or int(host) > 0):
        return int(host) - (host != text)
    raise UsageError(f"`{text}` is no instance", hint="a number from 0 on, or `algo-1` for the first one on SageMaker")


def seconds(text: str) -> float:
    """`10m` as seconds.

    Raises:
        UsageError: the text is not a duration.
    """
    from cloudtrain.units import parse_duration

    try:
        return float(parse_duration(text))
    except ValueError as error:
        raise UsageError(str(error), hint="a number with a unit: `90s`, `10m`, `2h`") from None


_FLAG_OF = {"instance_count": "instances"}
_OF_THE_JOB = {
    "instance_count": "resources.instance_count",
    "processes_per_instance": "distribution.processes_per_instance",
}
"""Flags that say for this machine what a job says for a cloud."""


def _as_fields(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags as fields of the target; an interpreter given as a path follows the working directory."""
    python = flags.get("python")
    if python is not None and os.sep in python:
        home = os.path.expanduser(python)  # noqa: PTH111 - `~somebody` whom this machine does not know stays as it is
        flags = flags | {"python": str(Path(home).absolute())}
    return flags
