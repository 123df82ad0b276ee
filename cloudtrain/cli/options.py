"""The arguments and options that several commands share, so that each has one name, one help and one completion."""

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
    typer.Argument(
        metavar="[ARGS]...", help="Everything after a script goes to the script, options too.", show_default=False
    ),
]
Gpu = Annotated[
    str | None,
    typer.Option("--gpu", metavar="MODEL[:N]", help="With a script: the GPU and the number per instance, H100:8."),
]
SaveJob = Annotated[
    Path | None, typer.Option("--save-job", metavar="FILE", help="With a script: also write its job file.")
]
Each = Annotated[
    list[str] | None,
    typer.Option(
        "--each",
        metavar="FIELD=VALUES",
        help="Run the job once for each value: hyperparameters.seed=1,2,3. Repeatable: then each combination.",
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
        help="A run: its name, the beginning of one, its reference, or `last`.",
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
        help="Where to run it; TAB lists the targets. Default: `target` in cloudtrain.toml, or local.",
        autocompletion=complete.targets,
    ),
]
Profile = Annotated[
    str | None, typer.Option("--profile", metavar="NAME", help="A profile of cloudtrain.toml.", show_default=False)
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
        help="Accept the findings of this code. Repeatable.",
        autocompletion=complete.codes,
        show_default=False,
    ),
]
Pin = Annotated[
    bool,
    typer.Option("--pin", help="Ask the target which versions `NAME@latest` means, and write them into the job."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

Instances = Annotated[
    int | None,
    typer.Option(
        "--instances",
        "--nnodes",
        min=1,
        metavar="N",
        help="Local: simulate N instances. With a script: use N instances.",
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
        help="Local, or with a script: N processes on each instance.",
    ),
]
MaxRestarts = Annotated[
    int | None,
    typer.Option("--max-restarts", min=0, metavar="N", help="Local: start all ranks again up to N times."),
]
Python = Annotated[
    str | None,
    typer.Option("--python", metavar="PATH", help="Local: the interpreter of the script; or `conda:NAME`, or `uv`."),
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
        help="Local: `torchrun`; or `fork`, which imports torch once and starts CPU ranks sooner.",
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
        help="Local: run the job as that target would, for example `sagemaker`: its paths, files and command lines.",
        autocompletion=complete.emulated,
        show_default=False,
    ),
]

Queue = Annotated[
    bool | None,
    typer.Option(
        "--queue/--no-queue",
        help="Local: wait for the GPUs or CPU slots that the run needs, or start at once.",
        show_default=False,
    ),
]
Priority = Annotated[
    int | None,
    typer.Option("--priority", metavar="N", help="Local, with --queue: higher numbers come first. Default: 0."),
]


def submit_target(emulate: str | None, target: str | None) -> str | None:
    """Return the target; an emulation runs on this machine, whatever target the settings name."""
    return target or (DEFAULT_TARGET if emulate else None)
