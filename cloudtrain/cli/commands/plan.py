from __future__ import annotations

import sys
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from cloudtrain.cli import options

if TYPE_CHECKING:
    from cloudtrain.plans import Plan


class Format(str, Enum):
    text = "text"
    json = "json"
    request = "request"
    aws_cli = "aws-cli"
    az_cli = "az-cli"
    python = "python"


def command(
    job: options.Job,
    target: options.TargetName = None,
    profile: options.Profile = None,
    set_: options.Set = None,
    ignore: options.Ignore = None,
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            show_default=False,
            help="text for reading, json for the whole plan, request for the exact body, aws-cli for "
            "`aws sagemaker create-training-job --cli-input-json`, az-cli for `az ml job create --file`, "
            "python for the code of the SDK's object.",
        ),
    ] = Format.text,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    instances: options.Instances = None,
    processes_per_instance: options.ProcessesPerInstance = None,
    max_restarts: options.MaxRestarts = None,
    launcher: options.Launcher = None,
    python: options.Python = None,
    grace_period: options.GracePeriod = None,
    emulate: options.Emulate = None,
) -> None:
    """Show exactly what a submit would send. Sends nothing.

    Needs no network and no account, writes nothing, and prints the same bytes every time: the request, the uploads,
    every process with its command line and variables, and what the checks found. `cloudtrain submit --dry-run` is
    the same.

    \b
    Examples:
      cloudtrain plan job.yaml
      cloudtrain plan job.yaml --format request > request.json
      cloudtrain plan bundled:digits_ddp --instances 2 --json | jq .processes
    """
    from cloudtrain.cli import inputs

    where = inputs.target(
        options.here_if(emulate, target),
        profile,
        job=job,
        instance_count=instances,
        processes_per_instance=processes_per_instance,
        max_restarts=max_restarts,
        launcher=launcher,
        python=python,
        grace_period=grace_period,
        emulate=emulate,
    )
    file = inputs.job_file(job, set_)
    plan = inputs.plan_of(file, where, profile=profile, ignore=ignore)
    print_plan(plan, "json" if json else form.value)


def print_plan(plan: Plan, form: str) -> None:
    """The plan on stdout. A plan that a submit would refuse is printed all the same, with its errors at the end.

    Raises:
        typer.Exit: with code 2, when a check found an error.
    """
    if form == "json":
        sys.stdout.write(plan.to_json())
    elif form == "request":
        sys.stdout.write(plan.request_json + "\n")
    elif form in ("aws-cli", "az-cli", "python"):
        sys.stdout.write(_for_the_sdk(plan, form))
    else:
        from cloudtrain.cli.terminal import show

        show(plan.document(), sys.stdout, width=_FILE_WIDTH)
    if plan.errors:
        raise typer.Exit(2)


def _for_the_sdk(plan: Plan, form: str) -> str:
    """The request in the form of another tool.

    Raises:
        UsageError: the plan's target does not have that form.
    """
    from cloudtrain.errors import UsageError

    forms = plan.forms()
    if form not in forms:
        hint = ", ".join(f"`{name}`" for name in ("text", "json", "request", *forms))
        raise UsageError(f"the target `{plan.target}` has no format `{form}`", hint=f"use one of {hint}")
    return forms[form]()


_FILE_WIDTH = 100
"""Where stdout is no terminal: long command lines are still easier to read, and to compare, in several lines."""
