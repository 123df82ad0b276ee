from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloudtrain.cli import options

if TYPE_CHECKING:
    from cloudtrain.jobfile import JobFile
    from cloudtrain.plans import Plan


def command(
    job: options.Job,
    target: options.TargetName = None,
    profile: options.Profile = None,
    set_: options.Set = None,
    ignore: options.Ignore = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the whole plan on stdout. Sends and writes nothing.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return as soon as the target has the run.")] = False,
    json: options.Json = False,
    instances: options.Instances = None,
    processes_per_instance: options.ProcessesPerInstance = None,
    max_restarts: options.MaxRestarts = None,
    launcher: options.Launcher = None,
    python: options.Python = None,
    grace_period: options.GracePeriod = None,
    emulate: options.Emulate = None,
) -> None:
    """Check a job, send it, and follow its run.

    The exit code is 0 when the run succeeds and 1 when it does not. Ctrl-C leaves the run alone: it goes on, and
    `cloudtrain logs NAME -f` follows it again.

    \b
    Examples:
      cloudtrain submit bundled:digits_ddp
      cloudtrain submit job.yaml --set hyperparameters.epochs=3
      cloudtrain submit job.yaml --instances 2 --processes-per-instance 1
      cloudtrain submit job.yaml --emulate sagemaker
      cloudtrain submit job.yaml --dry-run
      cloudtrain submit job.yaml --target sagemaker --profile research --detach
    """
    from cloudtrain.cli import inputs

    file = inputs.job_file(job, set_)
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
    if dry_run:
        from cloudtrain.cli.commands.plan import print_plan

        print_plan(inputs.plan_of(file, where, profile=profile, ignore=ignore), "json" if json else "text")
        return
    run = _send(file, where, profile, ignore)
    if detach:
        _sent(run, as_json=json)
        return
    from cloudtrain.cli.follow import follow

    raise typer.Exit(follow(run, as_json=json))


def _send(file: JobFile, where: Any, profile: str | None, ignore: list[str] | None) -> Any:
    import cloudtrain as ct
    from cloudtrain.cli.progress import upload_progress
    from cloudtrain.cli.terminal import say

    try:
        run = ct.submit(
            file.job,
            where,
            profile=profile,
            ignore=list(ignore or ()),
            place_of=file.place_of,
            on_plan=_show_plan,
            on_bytes=upload_progress(),
        )
    except KeyboardInterrupt:
        say("", "interrupted while sending; `cloudtrain recover` says whether the run exists")
        raise
    if run.adopted:
        say(f"`{run.name}` was sent before, by a command that was cut off; this is that run")
    return run


def _show_plan(plan: Plan) -> None:
    """The summary and the findings. Errors are not shown here: they are about to stop the submit, which says them."""
    from cloudtrain.cli.terminal import show

    if not plan.errors:
        show(plan.document(whole=False), sys.stderr)
        sys.stderr.write("\n")


def _sent(run: Any, *, as_json: bool) -> None:
    """The name on stdout; where it cannot be written, on stderr, because the run is there and costs money."""
    from cloudtrain.cli.report import goes_on
    from cloudtrain.cli.streams import OutputError
    from cloudtrain.cli.terminal import print_json, say

    sent = {"name": run.name, "ref": str(run.ref), "target": run.target, "state": str(run.last_status.state)}
    try:
        print_json(sent) if as_json else sys.stdout.write(f"{run.name}\n")
        sys.stdout.flush()
    except (OutputError, BrokenPipeError):
        goes_on(run)
        raise
    if not as_json:
        say(f"follow it with `cloudtrain logs {run.name} -f`, stop it with `cloudtrain stop {run.name}`")
