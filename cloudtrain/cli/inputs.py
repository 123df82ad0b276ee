"""Conversion of the arguments of a submission to objects of the public API: the job, the target,
the plan."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shlex import split
from typing import TYPE_CHECKING, Any, cast

import cloudtrain as ct
from cloudtrain.api import load_job_file, plan_in
from cloudtrain.cli.terminal import say, writing
from cloudtrain.documents import JsonMapping
from cloudtrain.documents.document import Positions
from cloudtrain.documents.yaml_text import read_scalar, write_yaml
from cloudtrain.errors import (
    JobError,
    NearName,
    PreflightError,
    Problem,
    UsageError,
    did_you_mean,
    shortened,
)
from cloudtrain.job.file import JobFile, anchored, array_of, format_of, parse
from cloudtrain.job.overrides import hint_without_file, override
from cloudtrain.job.script import distribution_of, fields_of_script, syntax_of_script
from cloudtrain.job.training import BUNDLED, Alternative, Capacity, TrainingJob
from cloudtrain.plans.plan import Finding, Plan
from cloudtrain.runtime.hardware import gpu_ids
from cloudtrain.runtime.torchrun_words import is_module, is_python
from cloudtrain.system.files import expand_home
from cloudtrain.system.plugins import DEFAULT_TARGET
from cloudtrain.targets.where import Where, where

if TYPE_CHECKING:
    from cloudtrain.cli.options import SubmitOptions
    from cloudtrain.job.model import Json
    from cloudtrain.targets.settings import TargetSettings

_OF_THE_JOB = {
    "instances": "resources.instance_count",
    "processes_per_instance": "distribution.processes_per_instance",
}
"""Options of the local target, each with the job field that has the same meaning on a cloud."""

_OF_THE_TARGET = (
    "instances", "processes_per_instance", "max_restarts", "launcher", "python",
    "build_environment", "grace_period",
    "emulate", "queue", "priority",
)  # fmt: skip
"""Options of the local target. Each is a setting of the same name, except those in `_SETTINGS`."""

_SETTINGS = {"instances": "instance_count"}
"""Options of the local target, each with the setting of another name."""

_ALSO_ELSEWHERE = ("queue", "priority", "build_environment")
"""The options that also work on another target whose settings have them, such as one that uses
cloudtrain's queue."""


def job_of(options: SubmitOptions) -> JobFile:
    """Return the job of a file, of a bundled script, or of a Python script with its arguments. With
    `--each`, return a sweep that runs the job once for each combination of the values."""
    with worded(options):
        file = _script_job(options) if is_python(options.job) else _file_job(options)
        if options.alternatives:
            file = _with_alternatives(file, options.alternatives)
    if options.each:
        return array_of(file, options.each, parallel=options.parallel or 1)
    if options.parallel is not None:
        hint = (
            "for a sweep, write `--set parallel=4`; for a job, add `--each "
            "hyperparameters.seed=1,2,3`"
        )
        raise UsageError("`--parallel` needs `--each`", hint=hint, code="CT902")
    return file


def _with_alternatives(file: JobFile, texts: Sequence[str]) -> JobFile:
    """Return the job with the alternatives of `--or` after its own."""
    if file.sweep is not None or not isinstance(file.job, TrainingJob):
        message = f"`--or` works only with training jobs, but `{file.file}` holds none"
        raise UsageError(message, hint="remove `--or`", code="CT902")
    alternatives = list(map(_alternative, texts))
    capacity = Capacity(alternatives=alternatives)
    own = file.job.capacity
    if own is not None:
        capacity = own.replace(alternatives=[*own.alternatives, *alternatives])
    return file._replace(job=file.job.model_copy(update={"capacity": capacity}))


def _alternative(text: str) -> Alternative:
    """Return the alternative in the text of one `--or`."""
    changes = list[str]()
    fields = dict[str, str]()
    settings: dict[str, Json] = {}
    try:
        words = split(text)
    except ValueError:  # a quote is not closed
        words = [text]
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(
                f"`{shortened(word)}` in `--or` has no `=` after the field",
                hint="write for example `--or 'spot=null wait=30m'`",
                code="CT902",
            )
        if name in ("target", "profile", "wait"):
            fields[name] = value
        elif name.startswith("settings."):
            settings[name.removeprefix("settings.")] = cast("Json", read_scalar(value))
        else:
            changes.append(word)
    return Alternative(set=changes, settings=settings, **fields)


@contextmanager
def worded(options: SubmitOptions) -> Iterator[None]:
    """Let the hints of errors say `--set FIELD=VALUE` if the job is a script, because it has no
    file."""
    try:
        yield
    except JobError as error:
        raise JobError([_reworded(problem, options) for problem in error.problems]) from None
    except PreflightError as error:
        error.findings = tuple(_reworded(finding, options) for finding in error.findings)
        raise


def worded_plan(plan: Plan, options: SubmitOptions) -> Plan:
    """Return the plan with the hints of its findings worded as by `worded`."""
    findings = tuple(_reworded(finding, options) for finding in plan.findings)
    return replace(plan, findings=findings)


def _reworded(item: Any, options: SubmitOptions) -> Any:
    """Return a finding or a problem with a hint for a script, if the job is one."""
    hint = item.hint
    if hint and is_python(options.job):
        hint = hint_without_file(hint, item.path)
    if isinstance(item, Finding):
        return item._replace(hint=hint)
    return replace(item, hint=hint)


def _file_job(options: SubmitOptions) -> JobFile:
    """Return the job of a file. Raises UsageError for arguments and options that only a script
    takes."""
    for flag, value in (("--gpu", options.gpu), ("--save-job", options.save_job)):
        if value:
            message = f"`{flag}` works only with a script, but `{options.job}` is a job file"
            raise UsageError(
                message, hint="set the field in the job file, or with `--set`", code="CT902"
            )

    if options.arguments:
        word = options.arguments[0]
        if options.job in ("python", "python3", "torchrun"):
            hint = f"leave out `{options.job}`, and begin with the script"
        elif re.match(r"[\w.-]+=", word):
            hint = f"to change a field, write `--set {word}`"
        else:
            hint = "to change a field, write `--set hyperparameters.epochs=3`"
        raise UsageError(
            f"`{options.job}` is a job file, which takes no arguments", hint=hint, code="CT902"
        )

    return job_file(options.job, options.set_)


def job_file(job: str, overrides: Sequence[str] | None) -> JobFile:
    """Return the job of a file or a bundled script, changed by `overrides` in the form that `--set`
    takes."""
    if not job.startswith(BUNDLED) and not Path(job).exists():
        from cloudtrain.code.bundled import script_names

        if job in script_names():
            hint = NearName.of(f"{BUNDLED}{job}")
            raise UsageError(f"there is no file `{job}`", hint=hint, code="CT903")
    return load_job_file(job, list(overrides or ()))


def _script_job(options: SubmitOptions) -> JobFile:
    """Return the job of a script with its arguments and options, and write it with `--save-job`."""
    script = Path(options.job)
    arguments = options.arguments or ()
    if not (is_module(options.job) or script.is_file()):
        beside = [str(file) for file in script.parent.glob("*.py") if file.is_file()]
        hint = did_you_mean(options.job, sorted(beside)[:20]) or "name a Python file or a job file"
        raise UsageError(f"there is no script `{options.job}`", hint=hint, code="CT903")

    why_alone = _why_alone(script, options)
    overrides = _overrides_of(options, is_alone=bool(why_alone))
    for item in overrides:
        if arguments and re.match(r"\s*(hyperparameters|arguments)\s*=", item):
            message = (
                f"`--set {shortened(item)}` would replace the arguments that follow `{script}`"
            )
            hint = "leave out one of them; `--set hyperparameters.epochs=3` sets one value"
            raise UsageError(message, hint=hint, code="CT902")

    count = options.processes_per_instance
    if why_alone and count != 1:
        message = f"`{script}` {why_alone}, so {count} would all train the same"
        hint = (
            "leave out `--nproc`; or if a library joins them, say how they start: `--set "
            "distribution.type=torch`"
        )
        raise UsageError(message, hint=hint, code="CT902")

    # relative local paths start at the working directory
    here = Path.cwd()
    text = write_yaml(fields_of_script(script, arguments, here))
    try:
        file = parse(text, format="yaml", file=str(script), overrides=overrides)
    except JobError as error:
        raise JobError([_without_line(problem, script) for problem in error.problems]) from None
    job = anchored(file.job, here).from_folder(here)
    if options.save_job is not None:
        _save(options.save_job, job_text(script, arguments, overrides))
    return file._replace(job=job, positions=Positions())


def _without_line(problem: Problem, script: Path) -> Problem:
    """Return the problem without its position in the text of the job, which is not a file."""
    if problem.file != str(script):
        return problem
    return replace(problem, file=None, line=None, column=None)


def job_text(script: Path, arguments: Sequence[str], overrides: Sequence[str] = ()) -> str:
    """Return the text of a job file for the job of a script. The file must be saved in the
    working directory."""
    data, _ = override(fields_of_script(script, arguments, Path.cwd()), overrides, TrainingJob)
    return write_yaml(data)


def _why_alone(script: Path, options: SubmitOptions) -> str:
    """Return why one process runs a script for which you ask for a number of processes, as the end
    of a sentence about it; empty if several may."""
    if options.processes_per_instance is None or _sets(options, "distribution.type="):
        return ""
    if distribution_of(script) is not None:
        return ""
    return syntax_of_script(script).why_alone or "joins no other process"


def _sets(options: SubmitOptions, *fields: str) -> bool:
    """Return whether `--set` changes a field whose name begins with one of `fields`."""
    return any(item.startswith(fields) for item in options.set_ or ())


def _overrides_of(options: SubmitOptions, *, is_alone: bool) -> list[str]:
    """Return the options that set a field of a script's job, in the form that `--set` takes.
    The changes of `--set` itself follow."""
    model, _, gpus = (options.gpu or "").partition(":")
    count = options.processes_per_instance
    if is_alone and count == 1:  # as without `--nproc`
        count = None
    fields = {
        _OF_THE_JOB["instances"]: options.instances,
        _OF_THE_JOB["processes_per_instance"]: count,
        "resources.gpu": model or None,
        "resources.gpus_per_instance": gpus or None,
    }
    overrides = [f"{field}={value}" for field, value in fields.items() if value is not None]
    return overrides + (options.set_ or [])


def _save(file: Path, text: str) -> None:
    """Write a new job file. Raises UsageError if the file exists or cannot be written."""
    if format_of(file) != "yaml":
        hint = "write for example `--save-job job.yaml`"
        raise UsageError(f"`{file}` is not the name of a YAML file", hint=hint, code="CT909")
    if file.exists():
        hint = "name another file, or remove this one"
        raise UsageError(f"`{file}` already exists", hint=hint, code="CT910")
    with writing(file), file.open("x", encoding="utf-8") as stream:
        stream.write(text)
    say(f"wrote `{file}`")


def target_of(options: SubmitOptions) -> Where:
    """Return the target with its settings, changed by the options that are settings. For a job
    file, the settings of its project are used instead of those of the working directory."""
    is_script = is_python(options.job)
    name = options.target or None
    if name is None and options.emulate:  # only this target emulates another one
        name = DEFAULT_TARGET
    is_file = not is_script and Path(options.job).is_file()
    near = Path(options.job).parent if is_file else None
    place = where(name, near=near, profile=options.profile)
    target = place.settings

    typed = _typed_settings(options, target, is_script)
    if is_script and _needs_no_launcher(options, target):
        typed["launcher"] = "python"
        say(
            f"`{options.job}` runs as with `python`, in one process: there is no GPU; `--nproc "
            "2` starts two processes"
        )
    if not typed:
        return place

    python = typed.get("python")
    if isinstance(python, str) and os.sep in python and not python.startswith("conda:"):
        typed["python"] = str(expand_home(python).absolute())
    flags = {_SETTINGS.get(option, option): value for option, value in typed.items()}
    settings = place.here.target(name, profile=options.profile, **flags)
    return Where.of(settings, place.here, profile=options.profile)


def _typed_settings(
    options: SubmitOptions, target: TargetSettings, is_script: bool
) -> dict[str, object]:
    """Return the options that are settings of the target, by their names. Raises UsageError for one
    that is given twice, or that the target does not have."""
    typed = dict[str, object]()
    for option in _OF_THE_TARGET:
        value = getattr(options, option)
        if value is None:
            continue
        flag = "--" + option.replace("_", "-")
        field = _OF_THE_JOB.get(option, "")
        if not is_script and field and _sets(options, f"{field}="):
            message = f"`{flag} {value}` and `--set {field}` both set this number"
            raise UsageError(message, hint="remove one of the two", code="CT069")
        if target.type != DEFAULT_TARGET:
            if is_script and field:  # the job has it
                continue
            if option not in _ALSO_ELSEWHERE or option not in type(target).model_fields:
                hint = "add `--target local`"
                if field:
                    hint += f", or change the job with `--set {field}={value}`"
                message = f"`{flag}` works only on the local target, but the target is "
                message += f"`{target.type}`"
                raise UsageError(message, hint=hint, code="CT902")
        typed[option] = value
    return typed


def _needs_no_launcher(options: SubmitOptions, target: TargetSettings) -> bool:
    """Return whether one process shall run a script here that torchrun could start too: this
    machine has no GPU, and you do not ask for several processes."""
    script = Path(options.job)
    # the options and settings with which the user chooses how processes start
    names = {"instances", "processes_per_instance", "max_restarts", "launcher", "emulate", "gpu"}
    if target.type != DEFAULT_TARGET:
        return False
    if names & target.model_fields_set or any(getattr(options, name) for name in names):
        return False
    if _sets(options, "distribution", "resources"):
        return False
    if gpu_ids(os.environ) or distribution_of(script) != "torch":
        return False
    return syntax_of_script(script).needs_no_launcher


def pinned(file: JobFile, target: Where, *, offline: bool = False) -> JobFile:
    """Return a copy of `file` with each label (`NAME@latest`) replaced by its current version.
    Writes no file."""
    if offline:
        raise UsageError("`--pin` has to ask the target", hint="remove `--offline`", code="CT902")
    work = ct.pin(file.work, target)
    kind = "job" if file.sweep is None else "sweep"
    return file._replace(**{kind: work})


def plan_of(
    file: JobFile, target: Where, options: SubmitOptions, *, online: bool | None = False
) -> Plan:
    """Return the plan with its findings. With `online`, the target is asked too; with None, only if
    you have credentials."""
    with worded(options):
        plan = ct.check(file.work, target, online=online, **choices(file, options))
        return worded_plan(plan, options)


def expected_plan(text: str | None) -> str | JsonMapping | None:
    """Return the plan that `--plan` names: a hash, or the content of a plan's JSON file."""
    if text is None or not text.endswith(".json"):
        return text
    plan = plan_in(Path(text))
    if plan is None:
        hint = "write it with `cloudtrain plan job.yaml --json > plan.json`"
        raise UsageError(f"`{text}` is not the file of a plan", hint=hint, code="CT903")
    return plan


def choices(file: JobFile, options: SubmitOptions) -> dict[str, Any]:
    """Return the arguments that all functions of the API take that plan a job."""
    return {
        "profile": options.profile,
        "ignore": list(options.ignore or ()),
        "place_of": file.place_of,
    }
