"""The arguments and options that `submit`, `plan`, `check` and `rehearse` share."""

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from cloudtrain.cli import options

_Function = Callable[..., None]


class SubmitOptions(NamedTuple):
    """The job, where it runs and how, as the user typed it. The fields declare arguments and options of commands."""

    job: Annotated[
        str,
        options.argument(
            "JOB",
            "A job file (YAML, TOML or JSON), `bundled:NAME`, a Python script, or `-m MODULE`.",
            autocompletion=options.jobs,
        ),
    ]
    arguments: Annotated[
        list[str] | None,
        options.argument("[ARGS]...", "With a script: its arguments and options."),
    ] = None
    target: options.TargetName = None
    profile: options.Profile = None
    set_: options.Set = None
    ignore: options.Ignore = None
    pin: Annotated[
        bool,
        options.flag(
            "--pin", "Ask the target for the current version of each `NAME@latest`, and write it into the job."
        ),
    ] = False
    instances: Annotated[
        int | None,
        options.option(
            "--instances --nnodes",
            "N",
            "Local target: simulate N instances. Other targets, with a script: use N instances.",
            min=1,
        ),
    ] = None
    processes_per_instance: Annotated[
        int | None,
        options.option(
            "--processes-per-instance --nproc",
            "N",
            "Start N processes on each instance. For the local target, or with a script instead of a job file.",
            min=1,
        ),
    ] = None
    max_restarts: Annotated[
        int | None,
        options.option("--max-restarts", "N", "Local: after a failure, restart all ranks up to N times.", min=0),
    ] = None
    launcher: Annotated[
        str | None,
        options.option(
            "--launcher",
            "NAME",
            "Local: `torchrun`; `fork`, which imports torch only once and starts CPU ranks faster; or `python`, "
            "one process, the default for a script that does not need torchrun on a machine without a GPU.",
            autocompletion=lambda: ["torchrun", "fork", "python"],
        ),
    ] = None
    python: Annotated[
        str | None,
        options.option(
            "--python", "PATH", "Local: the Python interpreter for the script: a path, `conda:NAME` or `uv`."
        ),
    ] = None
    build_environment: Annotated[
        bool | None,
        options.flag(
            "--build-environment/--no-build-environment",
            "Install the requirements into an environment of their own, or never. Default: if packages are missing.",
        ),
    ] = None
    grace_period: Annotated[
        str | None,
        options.option("--grace-period", "TIME", "Local: time from SIGTERM to SIGKILL, for example 30s or 2m."),
    ] = None
    emulate: Annotated[
        str | None,
        options.option(
            "--emulate",
            "SERVICE",
            "Run a local job with the paths, files and command lines of SERVICE, such as `sagemaker`.",
            autocompletion=options.emulated,
        ),
    ] = None
    queue: Annotated[
        bool | None,
        options.flag(
            "--queue/--no-queue", "Local: wait until enough GPUs or CPU slots are free (--queue), or start at once."
        ),
    ] = None
    priority: Annotated[
        int | None,
        options.option("--priority", "N", "Local, with --queue: runs with a higher number start first. Default: 0."),
    ] = None
    gpu: Annotated[
        str | None,
        options.option(
            "--gpu", "MODEL[:N]", "With a script: the GPU model and the GPUs per instance, for example H100:8."
        ),
    ] = None
    save_job: Annotated[
        Path | None, options.option("--save-job", "FILE", "With a script: also write the job to this file.")
    ] = None
    each: Annotated[
        list[str] | None,
        options.option(
            "--each",
            "FIELD=VALUES",
            "Run the job once for each value, for example hyperparameters.seed=1,2,3. Repeat the option to run "
            "every combination.",
            autocompletion=options.fields,
        ),
    ] = None
    parallel: Annotated[
        int | None, options.option("--parallel", "N", "With --each: N runs at a time. Default: 1.", min=1)
    ] = None


OF_THE_JOB = ("job", "arguments", "target", "profile", "set_", "ignore", "pin")
OF_THE_RUN = SubmitOptions._fields[len(OF_THE_JOB) :]


def with_submit_options(
    before: Sequence[str], after: Sequence[str]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take a `SubmitOptions` as its first parameter. The command line gets the fields `before` and
    `after` of `SubmitOptions`. The help shows them in this order, before and after the command's own options."""

    def expand(command: _Function) -> _Function:
        @wraps(command)
        def expanded(**values: Any) -> None:
            fields = {name: values.pop(name) for name in (*before, *after)}
            command(SubmitOptions(**({"job": ""} | fields)), **values)

        own = list(signature(command, eval_str=True).parameters.values())[1:]
        every = [*map(_parameter, before), *own, *map(_parameter, after)]
        expanded.__signature__ = Signature([item.replace(kind=Parameter.KEYWORD_ONLY) for item in every])  # type: ignore[attr-defined]  # read by Typer
        expanded.__annotations__ = {}
        return expanded

    return expand


def _parameter(name: str) -> Parameter:
    default = SubmitOptions._field_defaults.get(name, Parameter.empty)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=SubmitOptions.__annotations__[name])
