from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import cloudtrain as ct
from cloudtrain.cli import inputs, options
from cloudtrain.cli.options import SubmitOptions, argument, option, with_submit_options
from cloudtrain.cli.terminal import print_json, say, show
from cloudtrain.errors import UsageError
from cloudtrain.job.file import SUFFIXES
from cloudtrain.job.training import BUNDLED
from cloudtrain.lifecycle.rehearse import Rehearsal, rehearse, run_whole
from cloudtrain.plans.document import Block, Cell, Document, Heading, Notice, Pairs, Span
from cloudtrain.system.plugins import DEFAULT_TARGET
from cloudtrain.system.processes import listening

if TYPE_CHECKING:
    from cloudtrain.lifecycle.runs.run import Run


_OF_THE_RUN = (
    "instances", "processes_per_instance", "launcher", "python", "build_environment",
    "grace_period", "emulate",
)  # fmt: skip


@with_submit_options((), ("profile", "set_", "ignore", *_OF_THE_RUN))
def rehearse_command(
    submission: SubmitOptions,
    what: Annotated[
        str,
        argument(
            "JOB|RUN",
            "A job file or `bundled:NAME`; or a successful run on this machine to compare with.",
            autocompletion=options.jobs,
        ),
    ],
    at_step: Annotated[
        int | None,
        option("--at-step", "N", "Interrupt at this step. Default: about halfway.", min=0),
    ] = None,
    metric: Annotated[
        list[str] | None,
        option("--metric", "NAME", "Compare this metric instead of the losses. Repeatable."),
    ] = None,
    tolerance: Annotated[
        float | None,
        option(
            "--tolerance",
            "X",
            "The largest difference at which two values count as equal. Default: 1e-5.",
            min=0.0,
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Rehearse a preemption locally: interrupt, resume, compare.

    The job runs on this machine three times: without interruption, interrupted by SIGTERM at a step
    (as a spot instance is), and resumed from the checkpoint. The exit code is 0 when the resumed
    losses equal the losses of the uninterrupted run, and 1 if they differ: the report names the
    first step that differs and likely causes. It is 4 if the rehearsal could not be carried out,
    for example because the script failed or ended before the interruption.

    \b
    Examples:
      cloudtrain rehearse bundled:digits_ddp
      cloudtrain rehearse job.yaml --emulate sagemaker --at-step 100
      cloudtrain rehearse last --json
    """
    uninterrupted = _uninterrupted(submission._replace(job=what, target=DEFAULT_TARGET))
    result = rehearse(
        uninterrupted,
        at_step=at_step,
        metrics=metric or (),
        tolerance=tolerance,
        on_stage=_say_stage,
    )
    if json:
        print_json(result.to_dict())
    else:
        show(_document(result), sys.stdout)
    raise typer.Exit(0 if result.verdict.survives else 1)


def _uninterrupted(submission: SubmitOptions) -> Run:
    """Return the uninterrupted run of the rehearsal. If the user names a run, return this run; for
    a job, run it."""
    what = submission.job
    if not _is_job(what):
        for option in (*_OF_THE_RUN, "set_"):
            if getattr(submission, option) is not None:
                flag = "--" + option.rstrip("_").replace("_", "-")
                message = f"`{flag}` works only with a job file, but `{what}` is a run"
                raise UsageError(message, hint="name the job file instead", code="CT905")
        return ct.run(what)

    file = inputs.job_file(what, submission.set_)
    target = inputs.target_of(submission)
    if file.sweep is not None or not isinstance(file.job, ct.TrainingJob):
        message = f"`{what}` is not a training job, so it has no losses to compare"
        raise UsageError(message, hint="rehearse a training job", code="CT905")
    submit = partial(ct.submit, target=target, **inputs.choices(file, submission))
    with listening(say):
        return run_whole(file.job, submit, on_stage=_say_stage)


def _is_job(what: str) -> bool:
    """Return whether the user names a job. Otherwise it is a run, by its name or reference."""
    path = Path(what)
    if what.startswith(BUNDLED) or path.suffix.lower() in SUFFIXES:
        return True
    if "/" in what and "://" not in what:
        return True
    return path.is_file()


_STAGES = {
    "whole": "1 of 3: `{name}` runs without interruption",
    "interrupted": "2 of 3: `{name}` gets SIGTERM at step {step}",
    "resumed": "3 of 3: `{name}` resumes from the checkpoint",
}


def _say_stage(stage: str, run: Run, step: int | None) -> None:
    say(_STAGES[stage].format(name=run.name, step=step))


_LEFT = {
    "saved": "saved at step {saved} and exited after {seconds:.1f} s",
    "exited": "exited after {seconds:.1f} s without reporting a save",
    "killed": "killed when the grace period was over ({seconds:.1f} s)",
}


def _document(result: Rehearsal) -> Document:
    """Return the report: a table of the three runs, and if they differ what to look at."""
    comparison = result.comparison
    verdict = result.verdict
    left = _LEFT[result.left].format(saved=comparison.saved_at, seconds=result.seconds_to_leave)

    resumed = "reported no loss"
    if comparison.resumed_at is not None:
        resumed = f"reports from step {comparison.resumed_at}"
        if comparison.repeated:
            resumed += f", so {comparison.repeated} steps were computed twice"

    words = f"{verdict.kind.replace('_', ' ')}: {verdict.words}"
    first = min(comparison.whole)
    last = max(comparison.whole)
    rows: list[tuple[str, Cell]] = [
        ("whole", f"{result.whole.name}: steps {first} to {last}"),
        ("interrupted", f"{result.interrupted.name}: SIGTERM at step {result.at_step}; {left}"),
        ("resumed", f"{result.resumed.name}: {resumed}"),
        ("compared", f"{comparison.compared} values of {', '.join(comparison.metrics)}"),
        ("verdict", Span(words, "good" if verdict.survives else "bad")),
    ]

    title = Heading(f"Preemption of {result.whole.name}")
    blocks: list[Block] = [title, Pairs(rows)]
    if not verdict.survives:
        message = "an interruption would change this training"
        if verdict.kind == "unrepeatable":
            message = "nothing is known"
        details = [f"look at {item}" for item in verdict.look_at]
        blocks.append(Notice("error", message, details=details))
    return Document(blocks)
