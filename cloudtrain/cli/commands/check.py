from __future__ import annotations

import re
import sys
from typing import Annotated, Any

import typer

from cloudtrain.cli import options


def command(
    job: options.Job,
    arguments: options.ScriptArguments = None,
    target: options.TargetName = None,
    profile: options.Profile = None,
    set_: options.Set = None,
    ignore: options.Ignore = None,
    pin: options.Pin = False,
    online: Annotated[
        bool | None,
        typer.Option(
            "--online/--offline",
            show_default=False,
            help="Also ask the target about role, bucket, inputs and quota. Default: only if you have credentials.",
        ),
    ] = None,
    json: options.Json = False,
    instances: options.Instances = None,
    processes_per_instance: options.ProcessesPerInstance = None,
    python: options.Python = None,
    build_environment: options.BuildEnvironment = None,
    emulate: options.Emulate = None,
    gpu: options.Gpu = None,
    save_job: options.SaveJob = None,
) -> None:
    """Check a job for mistakes before it costs money.

    The exit code is 2 when a check finds an error, and 0 otherwise. Warnings and notices do not stop a submit.
    `--json` prints a list with the code, level, message, hint and line of each finding, also for an invalid job file.

    \b
    Examples:
      cloudtrain check job.yaml
      cloudtrain check job.yaml --target sagemaker --ignore CT104
      cloudtrain check job.yaml --target sagemaker --offline
      cloudtrain check job.yaml --json
    """
    from cloudtrain.cli import inputs
    from cloudtrain.cli.terminal import print_json, say, show
    from cloudtrain.errors import CloudtrainError
    from cloudtrain.render.document import Document

    try:
        file = inputs.job_or_script(
            job,
            set_,
            arguments,
            instances=instances,
            processes_per_instance=processes_per_instance,
            gpu=gpu,
            save_job=save_job,
        )
        where = inputs.target(
            options.submit_target(emulate, target),
            profile,
            job=job,
            instance_count=instances,
            processes_per_instance=processes_per_instance,
            python=python,
            build_environment=build_environment,
            emulate=emulate,
        )
        if pin:
            file = inputs.pinned(file, where, offline=online is False)
        plan = inputs.checked(file, where, profile=profile, ignore=ignore, online=online)
    except CloudtrainError as error:
        if not json:
            raise
        print_json([_problem_json(problem) for problem in error.problems])
        raise typer.Exit(error.exit_code) from None
    if json:
        print_json([_finding_json(finding) for finding in plan.findings])
    elif plan.findings:
        show(Document([finding.notice() for finding in plan.findings]), sys.stdout)
    else:
        say(f"{job}: no problems found for {plan.target}")
    if plan.errors:
        raise typer.Exit(2)


def _finding_json(finding: Any) -> dict[str, Any]:
    """Convert a finding to JSON data. `line` is LINE of its position `FILE:LINE:COLUMN`; null without a
    position."""
    line = re.search(r":([0-9]+):[0-9]+$", finding.place or "")
    return dict(finding._asdict()) | {"level": finding.level.value, "line": int(line[1]) if line else None}


def _problem_json(problem: Any) -> dict[str, Any]:
    """Convert a problem of an invalid job file to JSON data with the same fields as a finding."""
    from cloudtrain.errors import more_about

    place = problem.file if problem.line is None else f"{problem.file}:{problem.line}:{problem.column}"
    return {
        "code": problem.code,
        "level": "error",
        "message": problem.message,
        "hint": problem.hint or more_about(problem.code),
        "path": problem.path,
        "place": place,
        "details": (),
        "line": problem.line,
    }
