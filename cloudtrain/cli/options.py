"""The arguments and options that several commands share, each with one name, help text and completion."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Annotated

import typer

from cloudtrain.system.plugins import DEFAULT_TARGET

# Shell completion: the words offered after TAB. Completion never fails; after an error it offers nothing.
#
# A shell inserts an offered word unquoted. Names with special characters, such as the file `a;reboot.yaml`, are
# therefore not offered; bash then offers files itself, with quotes.

_MOST_RUNS = 50

_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
"""Text that every shell reads as one word without quotes."""

Completion = Callable[[str], list[str]]


def _silent(words: Completion) -> Completion:
    """Return a completion that offers the words of `words` that begin with the typed text, and no words after an error.

    Typer reads the signature of the returned function to find out which arguments to pass.
    """

    def complete(incomplete: str) -> list[str]:
        try:
            with redirect_stderr(StringIO()):
                found = [word for word in words(incomplete) if word.startswith(incomplete)]
            return [word for word in found if _PLAIN.fullmatch(word)]
        except Exception:  # noqa: BLE001 - the user is in the middle of a line; there is nowhere to complain
            return []

    return complete


@_silent
def runs(_: str) -> list[str]:
    """Return `last` and the names of the newest runs in the store. No target is asked, so that TAB answers at once."""
    from cloudtrain.lifecycle.schema import read_store
    from cloudtrain.targets.settings import load_settings

    with read_store(load_settings().state_dir) as store:
        return [] if store is None else ["last", *(row.name for row in store.newest(limit=_MOST_RUNS))]


def runs_and_jobs(incomplete: str) -> list[str]:
    """Return the arguments that `diff` takes: names of runs and job files."""
    return [*runs(incomplete), *jobs(incomplete)]


@_silent
def jobs(incomplete: str) -> list[str]:
    """Return the job files and folders in the folder of the typed path, and the bundled scripts as `bundled:NAME`."""
    from cloudtrain.code.bundled import script_names
    from cloudtrain.job.file import SUFFIXES

    typed = Path(incomplete or ".")
    folder = typed if incomplete.endswith("/") or not incomplete else typed.parent
    start = incomplete[: incomplete.rfind("/") + 1]
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    found = [
        f"{start}{entry.name}/" if entry.is_dir() else f"{start}{entry.name}"
        for entry in entries
        if not entry.name.startswith(".") and (entry.is_dir() or entry.suffix.lower() in SUFFIXES)
    ]
    return [*found, *(f"bundled:{name}" for name in script_names())]


@_silent
def scripts(_: str) -> list[str]:
    """Return the names of the bundled scripts."""
    from cloudtrain.code.bundled import script_names

    return script_names()


@_silent
def codes(_: str) -> list[str]:
    """Return the codes of the preflight rules."""
    from cloudtrain.targets.registry import all_rules

    return [rule.code for rule in all_rules()]


@_silent
def all_codes(_: str) -> list[str]:
    """Return the codes of the preflight rules and of the errors."""
    from cloudtrain.job.codes import ERROR_CODES

    return sorted([*codes(""), *ERROR_CODES])


@_silent
def targets(_: str) -> list[str]:
    """Return the names of the targets."""
    from cloudtrain.system.plugins import target_names

    return [*target_names()]


FORMATS = ("text", "json", "request")
"""The formats in which every plan can be printed."""


@_silent
def formats(_: str) -> list[str]:
    """Return the formats of a plan: the common ones, then those of each target."""
    from cloudtrain.system.plugins import all_targets

    own = dict.fromkeys(form for target in all_targets() for form in target.plan_formats)
    return [*FORMATS, *own]


@_silent
def emulated(_: str) -> list[str]:
    """Return the names of the targets that this machine can emulate."""
    from cloudtrain.targets.local.settings import emulated_targets

    return emulated_targets()


@_silent
def states(_: str) -> list[str]:
    """Return the states that a run can have."""
    from cloudtrain.plans.states import RunState

    return [state.value for state in RunState]


@_silent
def groups(_: str) -> list[str]:
    """Return the values of `cost --by`: `job`, `month`, `target`, and `tag:KEY` for each tag of a run."""
    from cloudtrain.lifecycle.schema import read_store
    from cloudtrain.targets.settings import load_settings

    with read_store(load_settings().state_dir) as store:
        keys = [] if store is None else store.tag_keys()
    return ["job", "month", "target", *(f"tag:{key}" for key in keys)]


@_silent
def parts(_: str) -> list[str]:
    """Return the folders of a run that can be downloaded."""
    return ["model/", "outputs/", "checkpoint/", "logs/", "work/"]


Job = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="A job file (YAML, TOML or JSON), `bundled:NAME`, or a Python script.",
        autocompletion=jobs,
        show_default=False,
    ),
]
ScriptArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ARGS]...", help="With a script: its arguments and options.", show_default=False),
]
Gpu = Annotated[
    str | None,
    typer.Option(
        "--gpu", metavar="MODEL[:N]", help="With a script: the GPU model and the GPUs per instance, for example H100:8."
    ),
]
SaveJob = Annotated[
    Path | None, typer.Option("--save-job", metavar="FILE", help="With a script: also write the job to this file.")
]
Each = Annotated[
    list[str] | None,
    typer.Option(
        "--each",
        metavar="FIELD=VALUES",
        help="Run the job once for each value, for example hyperparameters.seed=1,2,3. Repeat the option to run every "
        "combination.",
        show_default=False,
    ),
]
Parallel = Annotated[
    int | None,
    typer.Option("--parallel", min=1, metavar="N", help="With --each: N runs at a time. Default: 1."),
]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A run: its name, the beginning of its name, its reference, or `last`.",
        autocompletion=runs,
        show_default=False,
    ),
]
TargetName = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        metavar="TARGET",
        help="The target that runs the job; TAB lists the targets. Default: `target` in cloudtrain.toml, or local.",
        autocompletion=targets,
    ),
]
Profile = Annotated[
    str | None, typer.Option("--profile", metavar="NAME", help="A profile in cloudtrain.toml.", show_default=False)
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Change a field of the job, for example hyperparameters.epochs=3. Repeatable.",
        show_default=False,
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        metavar="CODE",
        help="Ignore findings with this code. Repeatable.",
        autocompletion=codes,
        show_default=False,
    ),
]
Pin = Annotated[
    bool,
    typer.Option(
        "--pin", help="Ask the target for the current version of each `NAME@latest`, and write it into the job."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

Instances = Annotated[
    int | None,
    typer.Option(
        "--instances",
        "--nnodes",
        min=1,
        metavar="N",
        help="Local target: simulate N instances. Other targets, with a script: use N instances.",
        show_default=False,
    ),
]
ProcessesPerInstance = Annotated[
    int | None,
    typer.Option(
        "--processes-per-instance",
        "--nproc",
        min=1,
        metavar="N",
        help="Start N processes on each instance. For the local target, or with a script instead of a job file.",
    ),
]
MaxRestarts = Annotated[
    int | None,
    typer.Option("--max-restarts", min=0, metavar="N", help="Local: after a failure, restart all ranks up to N times."),
]
Python = Annotated[
    str | None,
    typer.Option(
        "--python", metavar="PATH", help="Local: the Python interpreter for the script: a path, `conda:NAME` or `uv`."
    ),
]
BuildEnvironment = Annotated[
    bool | None,
    typer.Option(
        "--build-environment",
        help="Local: install the job's requirements into a separate environment, built once.",
        show_default=False,
    ),
]
Launcher = Annotated[
    str | None,
    typer.Option(
        "--launcher",
        metavar="NAME",
        help="Local: `torchrun`, or `fork`, which imports torch only once and starts CPU ranks faster.",
        autocompletion=lambda: ["torchrun", "fork"],
        show_default=False,
    ),
]
GracePeriod = Annotated[
    str | None,
    typer.Option("--grace-period", metavar="TIME", help="Local: time from SIGTERM to SIGKILL, for example 30s or 2m."),
]
Emulate = Annotated[
    str | None,
    typer.Option(
        "--emulate",
        metavar="SERVICE",
        help="Run a local job with the paths, files and command lines of SERVICE, such as `sagemaker`.",
        autocompletion=emulated,
        show_default=False,
    ),
]

Queue = Annotated[
    bool | None,
    typer.Option(
        "--queue/--no-queue",
        help="Local: wait until enough GPUs or CPU slots are free (--queue), or start at once.",
        show_default=False,
    ),
]
Priority = Annotated[
    int | None,
    typer.Option(
        "--priority", metavar="N", help="Local, with --queue: runs with a higher number start first. Default: 0."
    ),
]


def submit_target(emulate: str | None, target: str | None) -> str | None:
    """Return `target` if it is given, else `local` if `emulate` is given. Else return None, which means the target in
    the settings."""
    return target or (DEFAULT_TARGET if emulate else None)
