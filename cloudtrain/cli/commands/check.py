from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from cloudtrain.cli import options


def command(
    job: options.Job,
    target: options.TargetName = None,
    profile: options.Profile = None,
    set_: options.Set = None,
    ignore: options.Ignore = None,
    online: Annotated[
        bool | None,
        typer.Option(
            "--online/--offline",
            show_default=False,
            help="Ask the target too: role, bucket, inputs, quota. Unless given: when there are credentials for it.",
        ),
    ] = None,
    json: options.Json = False,
    emulate: options.Emulate = None,
) -> None:
    """Look for mistakes in a job before it costs money.

    Exit code 2 when a check finds an error, 0 otherwise; warnings and notices do not stop a submit.

    \b
    Examples:
      cloudtrain check job.yaml
      cloudtrain check job.yaml --target sagemaker --ignore CT104
      cloudtrain check job.yaml --target sagemaker --offline
      cloudtrain check job.yaml --json
    """
    from cloudtrain.cli import inputs
    from cloudtrain.cli.terminal import print_json, say, show
    from cloudtrain.render.document import Document

    file = inputs.job_file(job, set_)
    where = inputs.target(options.here_if(emulate, target), profile, job=job, emulate=emulate)
    plan = inputs.checked(file, where, profile=profile, ignore=ignore, online=online)
    if json:
        print_json([_finding_json(finding) for finding in plan.findings])
    elif plan.findings:
        show(Document([finding.notice() for finding in plan.findings]), sys.stdout)
    else:
        say(f"nothing to complain about: `{job}` on {plan.target}")
    if plan.errors:
        raise typer.Exit(2)


def _finding_json(finding: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(finding) | {"level": finding.level.value}
