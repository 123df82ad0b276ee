from __future__ import annotations

import sys
from typing import Annotated

import typer

from cloudtrain.cli import complete, options

_HELP = "A run, a job file, or a plan's JSON file."


def command(
    before: Annotated[
        str, typer.Argument(metavar="A", help=_HELP, autocompletion=complete.runs_and_jobs, show_default=False)
    ],
    after: Annotated[
        str, typer.Argument(metavar="B", help=_HELP, autocompletion=complete.runs_and_jobs, show_default=False)
    ],
    target: options.TargetName = None,
    profile: options.Profile = None,
    json: options.Json = False,
) -> None:
    """Compare two runs, jobs or plans: fields, request and code.

    A job is compiled for the target of the run or plan that it is compared with, unless you name a `--target`. The
    exit code is 0 when nothing differs and 1 otherwise. The names of runs are not compared.

    \b
    Examples:
      cloudtrain diff digits-ddp-3f9a6c1e-1 digits-ddp-77ab02d4-1
      cloudtrain diff last job.yaml
      cloudtrain diff old.yaml new.yaml --target sagemaker
      cloudtrain plan job.yaml --json > plan.json; cloudtrain diff plan.json last
    """
    import cloudtrain as ct
    from cloudtrain.cli.terminal import print_json, show

    found = ct.diff(before, after, target, profile=profile)
    if json:
        print_json(found.to_dict())
    elif not found.equal:
        show(found.document(), sys.stdout)
    if not found.equal:
        raise typer.Exit(1)
