"""The arguments and options that several commands share, each with one name, help text and completion."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cloudtrain.cli import complete
from cloudtrain.core.targets import DEFAULT_TARGET

Job = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="A job file (YAML, TOML or JSON), `bundled:NAME`, or a Python script.",
        autocompletion=complete.jobs,
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
        autocompletion=complete.runs,
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
        autocompletion=complete.targets,
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
        autocompletion=complete.codes,
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
        autocompletion=complete.emulated,
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
