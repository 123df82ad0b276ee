"""Conversion of a command's arguments to objects of the public API: the job, the target, the run."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.errors import UsageError, did_you_mean
from cloudtrain.system.plugins import DEFAULT_TARGET

if TYPE_CHECKING:
    from cloudtrain.job.file import JobFile
    from cloudtrain.lifecycle.run import Run
    from cloudtrain.plans.plan import Plan
    from cloudtrain.plans.states import LogLine


def job_file(job: str, overrides: Sequence[str] | None) -> JobFile:
    """Return the job of a file or of a bundled script.

    Raises:
        UsageError: the file does not exist.
        JobError: the job has problems; all are listed.
    """
    from cloudtrain.api import load_job_file
    from cloudtrain.job.training import BUNDLED

    if not job.startswith(BUNDLED) and not Path(job).exists():
        from cloudtrain.code.bundled import script_names

        if job in script_names():
            raise UsageError(f"there is no file `{job}`", hint=f"did you mean `{BUNDLED}{job}`?", code="CT903")
    return load_job_file(job, list(overrides or ()))


def job_or_script(
    job: str,
    overrides: Sequence[str] | None,
    arguments: Sequence[str] | None,
    *,
    instances: int | None = None,
    processes_per_instance: int | None = None,
    gpu: str | None = None,
    save_job: Path | None = None,
) -> JobFile:
    """Return the job of a file, of a bundled script, or of a Python script with its arguments.

    Raises:
        UsageError: the file does not exist, or an option for scripts is used with a job file.
        JobError: the job has problems; all are listed.
    """
    if not is_script(job):
        for flag, value in (("--gpu", gpu), ("--save-job", save_job)):
            if value:
                hint = "set the field in the job file, or with `--set`"
                message = f"`{flag}` works only with a script, but `{job}` is a job file"
                raise UsageError(message, hint=hint, code="CT902")
        if arguments:
            first = arguments[0] if re.match(r"[\w.-]+=", arguments[0]) else "hyperparameters.epochs=3"
            hint = f"to change a field of the job, write `--set {first}`"
            raise UsageError(f"`{job}` is a job file, which takes no arguments", hint=hint, code="CT902")
        return job_file(job, overrides)
    from cloudtrain.job.from_script import job_text, load_script

    script = Path(job)
    if not script.is_file():
        beside = sorted(str(file) for file in script.parent.glob("*.py") if file.is_file())[:20]
        hint = did_you_mean(job, beside) or "name a Python file or a job file"
        raise UsageError(f"there is no script `{job}`", hint=hint, code="CT903")
    changes = [*_changes(instances, processes_per_instance, gpu), *(overrides or ())]
    if processes_per_instance is not None and not any(item.startswith("distribution.type=") for item in changes):
        _require_distribution(script)
    found = load_script(script, arguments or (), changes)
    if save_job is not None:
        _save(save_job, job_text(script, arguments or (), changes))
    return found


def as_array(file: JobFile, each: Sequence[str] | None, parallel: int | None) -> JobFile:
    """Return a sweep that runs the job once for each combination of the `--each` values; without `--each`, the file
    itself.

    Raises:
        UsageError: `--parallel` is used without `--each`, or `--each` without a training job.
        JobError: a value does not fit its field.
    """
    if not each:
        if parallel is not None:
            hint = "for a sweep, write `--set parallel=4`; for a job, add `--each hyperparameters.seed=1,2,3`"
            raise UsageError("`--parallel` needs `--each`", hint=hint, code="CT902")
        return file
    from cloudtrain.job.file import array_of

    return array_of(file, each, parallel=parallel or 1)


def is_script(job: str) -> bool:
    """Return whether the argument `job` is a Python script rather than a job file."""
    return job.endswith(".py")


def _require_distribution(script: Path) -> None:
    """Check that a script for several processes imports a library for distributed training.

    Raises:
        UsageError: the script imports no such library.
    """
    from cloudtrain.job.script import distribution_of

    if distribution_of(script) is None:
        message = f"`{script}` imports no library for training with several processes"
        hint = "choose how the processes start, for example with `--set distribution.type=torch`"
        raise UsageError(message, hint=hint, code="CT902")


def _changes(instances: int | None, processes_per_instance: int | None, gpu: str | None) -> list[str]:
    """Convert the values of flags to overrides of fields in the job of a Python script. Flags that are None are left
    out."""
    model, _, count = (gpu or "").partition(":")
    flags = {
        "resources.instance_count": instances,
        "distribution.processes_per_instance": processes_per_instance,
        "resources.gpu": model or None,
        "resources.gpus_per_instance": count or None,
    }
    return [f"{field}={value}" for field, value in flags.items() if value is not None]


def _save(file: Path, text: str) -> None:
    """Write a new job file.

    Raises:
        UsageError: the file already exists, cannot be written, or is not named as a YAML file.
    """
    from cloudtrain.cli.terminal import say
    from cloudtrain.job.file import format_of

    if format_of(file) != "yaml":
        raise UsageError(f"`{file}` is not the name of a YAML file", hint="write for example `--save-job job.yaml`")
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UsageError(f"`{file}` already exists", hint="name another file, or remove this one") from None
    except OSError as error:
        raise UsageError(f"cannot write `{file}`: {error.strerror}", hint="name another file") from None
    say(f"wrote `{file}`")


_OF_A_QUEUE = ("queue", "priority")
"""The flags that also work on another target whose settings have them: one that uses cloudtrain's queue."""


def target(name: str | None, profile: str | None, *, job: str | None = None, **flags: Any) -> Any:
    """Return the target with its settings. For a job file, the settings of its project are used instead of those of the
    working directory.

    Raises:
        UsageError: a flag works only on the local target, but the target is another one.
    """
    from cloudtrain.api import target_named

    script = job is not None and is_script(job)
    near = Path(job).parent if job is not None and not script and Path(job).is_file() else None
    given = {key: value for key, value in flags.items() if value is not None}
    if given:
        settings = target_named(name, profile=profile, near=near)
        chosen = settings.type
        if script and chosen != DEFAULT_TARGET:  # the job has them
            given = {key: value for key, value in given.items() if key not in _OF_THE_JOB}
        own = [field for field in _OF_A_QUEUE if field in type(settings).model_fields]
        others = {field: value for field, value in given.items() if field not in own}
        if others and chosen != DEFAULT_TARGET:
            field, value = next(iter(others.items()))
            flag = "--" + _FLAG_OF.get(field, field).replace("_", "-")
            hint = "add `--target local`"
            if field in _OF_THE_JOB:
                hint += f", or change the job with `--set {_OF_THE_JOB[field]}={value}`"
            raise UsageError(
                f"`{flag}` works only on the local target, but the target is `{chosen}`", hint=hint, code="CT902"
            )
    return target_named(name, profile=profile, near=near, **_as_fields(given))


def pinned(file: JobFile, where: Any, *, offline: bool = False) -> JobFile:
    """Return a copy of `file` with every label (`NAME@latest`) replaced by its current version. Writes nothing to disk.

    Raises:
        UsageError: `--offline` forbids asking the target, or the job has no label that the target can resolve.
        TargetError: the target cannot be reached.
    """
    if offline:
        raise UsageError("`--pin` has to ask the target", hint="remove `--offline`", code="CT902")
    import cloudtrain as ct

    found = ct.pin(file.work, where)
    return file._replace(**{"job": found} if file.sweep is None else {"sweep": found})


def plan_of(file: JobFile, where: Any, *, profile: str | None, ignore: Sequence[str] | None) -> Plan:
    """Return the plan of a job file. Its findings have positions in the file."""
    import cloudtrain as ct

    return ct.plan(file.work, where, profile=profile, ignore=list(ignore or ()), place_of=file.place_of)


def checked(
    file: JobFile, where: Any, *, profile: str | None, ignore: Sequence[str] | None, online: bool | None
) -> Plan:
    """Return the plan of a job file, with findings from the target about role, bucket, inputs and quota. With
    `online=None`, the target is asked only if you have credentials; with `online=False`, it is never asked."""
    from cloudtrain.api import check

    return check(file.work, where, profile=profile, ignore=list(ignore or ()), place_of=file.place_of, online=online)


def run(name: str) -> Run:
    """Return the run called `name`. If `last` is a run from another folder, name the run on stderr."""
    import cloudtrain as ct
    from cloudtrain.cli.terminal import say

    found = ct.run(name)
    if found.elsewhere is not None:
        place = f"from `{found.elsewhere}`" if found.elsewhere else "from a folder that is not known"
        say(f"no run was submitted from this folder; `{name}` is `{found.name}`, {place}")
    return found


def may(what: str, run: Run) -> None:
    """If the user wrote `last`, and `last` means a run from another folder, ask whether the command `what` may change
    this run.

    Raises:
        UsageError: stdin is not a terminal, or the user answers no.
    """
    from cloudtrain.cli.terminal import typed

    if run.elsewhere is not None and not confirmed(f"{what} `{run.name}`?"):
        hint = f"to do it, name the run: {typed('cloudtrain', *what.split(), run.name)}"
        raise UsageError(
            f"`{run.name}` was submitted from another folder, so nothing was done", hint=hint, code="CT939"
        )


def confirmed(question: str) -> bool:
    """Ask a yes-or-no question and return whether the answer is yes. Without a terminal on stdin, return False."""
    import sys

    import typer

    return sys.stdin.isatty() and typer.confirm(question, err=True)


def instance_number(text: str) -> int:
    """Return the number of an instance, counted from 0. The text is that number, or a host name of SageMaker such as
    `algo-1`, which is instance 0.

    Raises:
        UsageError: the text is neither a number nor a host name.
    """
    host = text.removeprefix("algo-")
    if re.fullmatch("[0-9]{1,9}", host) and (host == text or int(host) > 0):
        return int(host) - (host != text)
    raise UsageError(
        f"`{text}` is not a valid instance",
        hint="write the instance's number, counted from 0, or on SageMaker its host name, such as `algo-1`",
    )


def seconds(text: str) -> float:
    """Convert a duration such as `10m` to seconds.

    Raises:
        UsageError: the text is not a duration.
    """
    from cloudtrain.job.model import parse_duration

    try:
        return float(parse_duration(text))
    except ValueError as error:
        raise UsageError(str(error), hint="write a number with a unit: `90s`, `10m`, `2h`") from None


_FLAG_OF = {"instance_count": "instances"}
_OF_THE_JOB = {
    "instance_count": "resources.instance_count",
    "processes_per_instance": "distribution.processes_per_instance",
}
"""Flags of the local target, each with the job field that has the same meaning on a cloud."""


def _as_fields(flags: dict[str, Any]) -> dict[str, Any]:
    """Convert flags to settings of the target. A relative path of an interpreter is made absolute."""
    python = flags.get("python")
    if python is not None and os.sep in python and not python.startswith("conda:"):
        from cloudtrain.system.files import expand_home

        flags = flags | {"python": str(expand_home(python).absolute())}
    return flags


# Selection of the printed lines of a run's output, by pattern, time or level.


class LogLevel(str, Enum):
    """The lowest severity of printed lines."""

    warning = "warning"
    error = "error"


_WORDS = {
    LogLevel.warning: re.compile(r"\b(?:WARN|WARNING|ERROR|CRITICAL|FATAL)\b|\b\w*(?:Warning|Error|Exception)\b:"),
    LogLevel.error: re.compile(r"\b(?:ERROR|CRITICAL|FATAL)\b|\b\w*(?:Error|Exception)\b:"),
}
"""The levels as Python's logging, warnings and exceptions write them."""

_TRACEBACK = "Traceback (most recent call last)"


class Selection(NamedTuple):
    """The conditions that a line must meet to be printed. Default: no condition."""

    pattern: re.Pattern[str] | None = None
    since: float | None = None
    """Seconds since the epoch."""
    level: LogLevel | None = None

    def of(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        """Yield the lines that meet all conditions. All lines of a traceback count as an error."""
        open_tracebacks: set[tuple[int, int | None, str]] = set()
        for line in lines:
            if (
                (self.since is None or line.time >= self.since)
                and (self.pattern is None or self.pattern.search(line.text))
                and (self.level is None or _is_grave(line, self.level, open_tracebacks))
            ):
                yield line


EVERY_LINE = Selection()


def _is_grave(line: LogLine, level: LogLevel, open_tracebacks: set[tuple[int, int | None, str]]) -> bool:
    source = (line.instance, line.rank, line.stream)
    if _TRACEBACK in line.text:
        open_tracebacks.add(source)
        return True
    if source in open_tracebacks:
        if line.text[:1] not in (" ", "\t", ""):  # the exception itself ends it
            open_tracebacks.discard(source)
        return True
    return _WORDS[level].search(line.text) is not None


def pattern_of(text: str) -> re.Pattern[str]:
    """Compile a regular expression that the user typed.

    Raises:
        UsageError: the text is not a regular expression.
    """
    from cloudtrain.errors import UsageError

    try:
        return re.compile(text)
    except re.error as error:
        hint = f"to search for the text itself, put a backslash before special characters: `{re.escape(text)}`"
        raise UsageError(f"`{text}` is not a regular expression: {error}", hint=hint, code="CT901") from None


def moment_of(text: str) -> float:
    """Convert a time that the user typed to seconds since the epoch: `10m` (ago), or `2026-11-22T10:00` (local time,
    unless the text contains a time zone).

    Raises:
        UsageError: the text is not a time.
    """
    from cloudtrain.errors import UsageError
    from cloudtrain.job.model import parse_duration

    try:
        return time.time() - parse_duration(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc).timestamp()
    except (ValueError, OverflowError, OSError):
        hint = "write how long ago, for example `10m`, or a time, for example `2026-11-22T10:00`"
        raise UsageError(f"`{text}` is not a time", hint=hint, code="CT901") from None
