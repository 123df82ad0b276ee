from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

import cloudtrain as ct
from cloudtrain.cli import inputs, options
from cloudtrain.cli.app import refuse_flags
from cloudtrain.cli.follow import follow, lines_so_far, upload_progress
from cloudtrain.cli.options import (
    OF_THE_JOB,
    OF_THE_RUN,
    SubmitOptions,
    flag,
    option,
    with_submit_options,
)
from cloudtrain.cli.runs import approved, outlived_by, require_consent, run_named
from cloudtrain.cli.terminal import (
    OutputError,
    print_json,
    print_lines,
    say,
    show,
    show_table,
    typed,
    width_of,
)
from cloudtrain.job.model import format_duration
from cloudtrain.plans.document import on_one_line
from cloudtrain.system.processes import listening

if TYPE_CHECKING:
    from cloudtrain.lifecycle.past.differences import Changes
    from cloudtrain.lifecycle.runs.run import Run
    from cloudtrain.lifecycle.submission.once import Recovered
    from cloudtrain.plans.plan import Plan


@with_submit_options(OF_THE_JOB, OF_THE_RUN)
def submit_command(
    submission: SubmitOptions,
    dry_run: Annotated[
        bool,
        flag("--dry-run", "Print the whole plan on stdout, without sending or writing anything."),
    ] = False,
    upload_only: Annotated[
        bool,
        flag(
            "--upload-only",
            (
                "Upload code and data for use with the target's own tools, and print their paths. "
                "Submits nothing."
            ),
        ),
    ] = False,
    offline: Annotated[
        bool,
        flag("--offline", "Do not check role, bucket, inputs and quota with the target first."),
    ] = False,
    plan: options.PlanHash = None,
    detach: options.Detach = False,
    quiet: Annotated[
        bool, flag("--quiet -q", "Do not show what changed since the job's last run.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Check a job, send it, and follow its run.

    The exit code is 0 when the run succeeds and 1 when it does not. Ctrl-C stops following; the run
    continues, and `cloudtrain logs NAME -f` follows it again.

    \b
    Examples:
      cloudtrain submit bundled:digits_ddp
      cloudtrain submit --nproc 2 train.py --epochs 3
      cloudtrain submit job.yaml --set hyperparameters.epochs=3
      cloudtrain submit job.yaml --instances 2 --processes-per-instance 1
      cloudtrain submit job.yaml --emulate sagemaker
      cloudtrain submit job.yaml --queue --detach
      cloudtrain submit sweep.yaml
      cloudtrain submit job.yaml --each hyperparameters.seed=1,2,3
      cloudtrain submit job.yaml --dry-run
      cloudtrain submit job.yaml --target sagemaker --upload-only
      cloudtrain submit job.yaml --target sagemaker --profile research --detach
      cloudtrain submit job.yaml --target sagemaker --plan 3f9a7c21d04e
    """
    if plan is not None:
        refuse_flags("--plan", {"--dry-run": dry_run, "--upload-only": upload_only})
    if upload_only:
        flags = {"--dry-run": dry_run, "--detach": detach, "--queue": submission.queue is not None}
        refuse_flags("--upload-only", flags)

    file = inputs.job_of(submission)
    target = inputs.target_of(submission)
    if submission.pin:
        file = inputs.pinned(file, target, offline=offline)

    if dry_run:
        from cloudtrain.cli.commands.plan import print_plan

        print_plan(inputs.plan_of(file, target, submission), "json" if json else "text")
        return
    if upload_only:
        choices = inputs.choices(file, submission)
        with listening(say):
            uploaded = ct.upload(file.work, target, **choices, on_bytes=upload_progress())
        if json:
            print_json({"uploads": uploaded.to_dict()["uploads"]})
            return
        print_lines(item.destination for item in uploaded.uploads)
        if uploaded.uploads:
            say("everything is uploaded; nothing was submitted")
        else:
            say("the job has nothing to upload")
        return

    exactly = inputs.expected_plan(plan)
    has_plan = exactly is not None
    is_quiet = quiet or not sys.stderr.isatty()

    def send() -> Run:
        with listening(say), inputs.worded(submission):
            return ct.submit(
                file.work,
                target,
                **inputs.choices(file, submission),
                online=not offline,
                file=file,
                exactly=exactly,
                on_plan=lambda plan: show_plan(inputs.worded_plan(plan, submission)),
                on_changes=None if is_quiet else show_changes,
                on_bytes=upload_progress(),
                on_run=partial(announce, detach=detach, as_json=json, has_plan=has_plan),
            )

    with _interruptible():
        run = approved(send, may_ask=not json)
    if not detach:
        raise typer.Exit(follow(run, as_json=json))


@contextmanager
def _interruptible() -> Iterator[None]:
    """Say after Ctrl-C that the run may exist nevertheless."""
    try:
        yield
    except KeyboardInterrupt:
        say("", "interrupted while sending; `cloudtrain recover` reports whether the run exists")
        raise


def show_plan(plan: Plan) -> None:
    """Show a plan on stderr. One with errors is not shown, because the error message lists its
    findings."""
    if not plan.errors:
        show(plan.document(whole=False), sys.stderr)
        sys.stderr.write("\n")


def show_changes(changes: Changes | None) -> None:
    """Show on stderr what changed since the job's last run, in at most `_MOST_LINES` lines."""
    if changes is None or not changes.items:
        return

    width = width_of(sys.stderr) or 80
    items = list(map(on_one_line, changes.items))
    # as many of the first changes as fit; of a very long one, the first lines
    lines: list[str] = []
    for count in range(len(items), 0, -1):
        shown = items[:count]
        if count < len(items):
            shown.append(f"{len(items) - count} more: cloudtrain diff {changes.run} last")
        text = f"since {changes.run}: {'; '.join(shown)}"
        lines = wrap(text, width, break_on_hyphens=False)
        if len(lines) <= _MOST_LINES:
            break
    for line in [*lines[:_MOST_LINES], ""]:
        sys.stderr.write(f"{line}\n")


_MOST_LINES = 3


def announce(
    run: Run,
    *,
    detach: bool,
    as_json: bool,
    has_plan: bool = False,
    verb: str = "was submitted",
) -> None:
    """Say that a run is followed, or with `detach`, print its name on stdout. If stdout cannot be
    written, print the name on stderr, because the run exists and costs money. `has_plan`: only one
    plan may be sent. `verb`: what happened to the run."""
    _say_history(run, has_plan=has_plan)
    if not detach:
        say(f"`{run.name}` {verb}; Ctrl-C leaves it running", "")
        return

    reply = {
        "name": run.name,
        "ref": str(run.ref),
        "target": run.target,
        "state": str(run.last_status.state),
        "adopted": run.adopted,
    }
    with outlived_by(run, OutputError, BrokenPipeError):
        if as_json:
            print_json(reply)
        else:
            print_lines([run.name])
        sys.stdout.flush()
    if not as_json:
        follow = typed("cloudtrain", "logs", run.name, "-f")
        stop = typed("cloudtrain", "stop", run.name)
        say(f"follow it with {follow}, stop it with {stop}")


def _say_history(run: Run, *, has_plan: bool) -> None:
    """Report whether an earlier command submitted `run`, and whether `run` waits for another run.
    Also report other runs that interrupted commands submitted without reporting them."""
    if run.adopted and has_plan:
        say(f"this plan was sent already, as `{run.name}`")
    elif run.adopted:
        age = format_duration(int(max(0, time.time() - run.created)))
        say(
            f"`{run.name}` was submitted {age} ago by a command that was interrupted before it "
            "could report the run; this is the same run",
            "run the same command again to start another one",
        )
    if run.waits:
        say(f"`{run.name}` {run.last_status.reason}, and is sent afterwards")
    for name in run.unreported:
        look = typed("cloudtrain", "status", name)
        say(f"`{name}` was submitted by an interrupted command, which could not report it: {look}")


def rerun_command(
    run: options.RunName,
    set_: options.Set = None,
    name: Annotated[str | None, option("--name", "NAME", "Rename the job.")] = None,
    plan: options.PlanHash = None,
    ignore: options.Ignore = None,
    offline: Annotated[
        bool,
        flag("--offline", "With --set: do not check role, bucket and quota with the target first."),
    ] = False,
    detach: options.Detach = False,
    json: options.Json = False,
) -> None:
    """Submit a run again with the same code and request.

    The source folder is not needed, because the sent code is used again. Only the run's name is
    new. With `--set` the job is compiled and checked again, with the same code. The exit codes are
    the same as for `cloudtrain submit`.

    For a sweep, the failed and interrupted trials run again with their values, under the sweep's
    name.

    \b
    Examples:
      cloudtrain rerun last
      cloudtrain rerun digits-ddp-3f9a --set hyperparameters.seed=2
      cloudtrain rerun digits-ddp-3f9a --name digits-again --detach
      cloudtrain rerun digits-lr-3f9a
    """
    earlier = run_named(run)
    require_consent("rerun", earlier)
    skip = 0 if detach else lines_so_far(earlier)  # a sweep lists these lines again
    exactly = inputs.expected_plan(plan)
    has_plan = exactly is not None
    verb = "continues with its failed trials" if earlier.is_sweep else "was submitted"

    def send() -> Run:
        return earlier.rerun(
            list(set_ or ()),
            name=name,
            ignore=list(ignore or ()),
            online=not offline,
            exactly=exactly,
            on_plan=show_plan,
            on_bytes=upload_progress(),
            on_run=partial(announce, detach=detach, as_json=json, has_plan=has_plan, verb=verb),
        )

    with _interruptible():
        again = approved(send, may_ask=not json)
    if not detach:
        raise typer.Exit(follow(again, as_json=json, skip=skip))


def continue_command(
    name: options.RunName,
    trials: Annotated[int, option("--trials", "N", "Add N trials.", min=0)] = 0,
    detach: Annotated[bool, flag("--detach -d", "Return as soon as the sweep continues.")] = False,
    json: options.Json = False,
) -> None:
    """Continue a sweep, with more trials if you like.

    This also continues a sweep that was stopped or whose driver was killed. Ended trials are not
    repeated, and new trials learn from them.

    If a run waits for another run and its waiting process has died, for example in a reboot,
    `continue` restarts that process.

    On SageMaker's own tuner the sweep continues as a new tuning job with another name and a warm
    start. The new sweep lists the trials of both sweeps. Azure ML's tuner cannot continue a sweep.

    \b
    Examples:
      cloudtrain continue digits-lr-3f9a --trials 20
      cloudtrain continue last
    """
    from cloudtrain.lifecycle.runs.run import ChainedRun
    from cloudtrain.lifecycle.runs.sweep import sweep_of

    run = run_named(name)
    require_consent("continue", run)
    skip = 0 if detach else lines_so_far(run)  # a new tuning job lists these lines first

    def tell(sweep: Run) -> None:
        if sweep.name != run.name:
            say(f"`{sweep.name}` continues `{run.name}`")
        announce(sweep, detach=detach, as_json=json, verb="continues")

    if isinstance(run, ChainedRun) and not trials:
        run.resume()
        tell(run)
    else:
        sweep = sweep_of(run)
        run = approved(lambda: sweep.resume(trials, on_run=tell), may_ask=not json)
    if not detach:
        raise typer.Exit(follow(run, as_json=json, skip=skip))


def recover_command(json: options.Json = False) -> None:
    """Clean up after interrupted submissions.

    If a submit was killed while it was sending a job, this command asks the target whether the run
    exists. If so, the run is kept; otherwise the submission is forgotten. Other commands do the
    same when they need to; `recover` reports the result.

    \b
    Example:
      cloudtrain recover
    """
    from cloudtrain.lifecycle.runs.find import recover

    def report(outcomes: list[Recovered]) -> None:
        if json:
            print_json([outcome._asdict() for outcome in outcomes])
        elif outcomes:
            show_table(("NAME", "OUTCOME", "DETAIL"), outcomes)
        else:
            say("no submission was interrupted")
        sys.stdout.flush()

    recover(report)
