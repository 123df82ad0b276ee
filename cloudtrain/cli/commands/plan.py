from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from textwrap import dedent
from typing import Annotated, NamedTuple

import typer

from cloudtrain.cli import options
from cloudtrain.cli.failures import finding_json, problem_json
from cloudtrain.cli.options import (
    OF_THE_JOB,
    OF_THE_RUN,
    SubmitOptions,
    argument,
    flag,
    option,
    with_submit_options,
)
from cloudtrain.cli.terminal import (
    json_text,
    print_json,
    print_text,
    say,
    show,
    show_table,
    typed,
)
from cloudtrain.documents import JsonObject
from cloudtrain.errors import (
    JobError,
    NearName,
    UsageError,
    counted,
    did_you_mean,
    quoted,
    shortened,
)
from cloudtrain.plans.document import (
    Block,
    Cell,
    Document,
    Heading,
    Lines,
    Span,
    Text,
    visible_json,
)
from cloudtrain.plans.plan import Level, Plan
from cloudtrain.rules.engine import all_rules
from cloudtrain.targets.registry import target_of

_PARTS = (
    "summary", "numbers", "request", "uploads", "processes", "findings", "notes", "settings",
    "environment",
)  # fmt: skip
"""The parts of a plan that are printed alone."""


@with_submit_options(OF_THE_JOB, OF_THE_RUN, several=True)
def plan_command(
    submission: SubmitOptions,
    targets: list[str],
    form: Annotated[
        str,
        option(
            "--format -f",
            "FORMAT",
            "text (default); json: the whole plan; request: the exact request; or a format of the "
            "target's own tools: python for SDK code, sbatch for a batch script, az-cli for `az "
            "ml job create --file`, aws-cli for `aws sagemaker create-training-job "
            "--cli-input-json`.",
            autocompletion=options.formats,
        ),
    ] = "text",
    json: Annotated[bool, flag("--json", "Same as --format json.")] = False,
    short: Annotated[
        bool,
        flag("--short", "Print only the summary and the findings, without processes and request."),
    ] = False,
    part: Annotated[
        str | None,
        option(
            "--part",
            "PART",
            f"Print one part as JSON: {', '.join(_PARTS)}.",
            autocompletion=lambda: [*_PARTS],
        ),
    ] = None,
    instance: Annotated[
        int | None,
        option("--instance", "N", "With --part processes: those on this instance, from 0.", min=0),
    ] = None,
) -> None:
    """Show exactly what `submit` would send, without sending it.

    Same as `cloudtrain submit --dry-run`. Prints the request, the uploads, every process with its
    command line and variables, and the findings of the checks. Uses no network and no account,
    writes no file, and prints the same text every time.

    With several targets, prints one table that compares them.

    \b
    Examples:
      cloudtrain plan job.yaml
      cloudtrain plan job.yaml -t sagemaker -t azureml
      cloudtrain plan job.yaml --short
      cloudtrain plan job.yaml --json --short
      cloudtrain plan job.yaml --part processes --instance 0
      cloudtrain plan job.yaml --format request > request.json
      cloudtrain plan bundled:digits_ddp --instances 2 --json | jq .processes
    """
    from cloudtrain.cli import inputs

    if instance is not None and part != "processes":
        raise UsageError(
            "`--instance` selects processes", hint="add `--part processes`", code="CT902"
        )
    target = inputs.target_of(submission)
    form = "json" if json or part else _known_format(form, target.target.name)
    if len(targets) > 1:
        _compare(submission, targets, form, whole=not short)
        return

    file = inputs.job_of(submission)
    if submission.pin:
        file = inputs.pinned(file, target)
    plan = inputs.plan_of(file, target, submission)
    if part is not None:
        _print_part(plan, part, instance)
        return
    print_plan(plan, form, whole=not short)
    # the target's own tools upload nothing
    if form not in ("text", "json", "request") and plan.uploads:
        _say_upload(plan, submission)


def _compare(submission: SubmitOptions, targets: list[str], form: str, *, whole: bool) -> None:
    """Print one row for each target, as JSON the plans. The exit code is 2 if an error would stop
    one of them."""
    from cloudtrain.cli import inputs

    if form not in ("text", "json"):
        hint = f"leave out `--target {targets[1]}`, or print the table or `--json`"
        raise UsageError(
            f"`--format {form}` prints the request of one target", hint=hint, code="CT902"
        )

    places = [inputs.target_of(submission._replace(target=name)) for name in targets]
    file = inputs.job_of(submission)
    rows = list[tuple[Cell, ...]]()
    data = list[JsonObject]()
    has_failed = False
    for name, place in zip(targets, places, strict=True):
        summary = dict[str, str]()
        try:
            of_place = inputs.pinned(file, place) if submission.pin else file
            plan = inputs.plan_of(of_place, place, submission)
        except JobError as error:  # the job cannot be compiled for this target, but for another
            findings = [(Level.ERROR, problem.code) for problem in error.problems]
            problems = list(map(problem_json, error.problems))
            data.append({"target": name, "findings": problems})
        else:
            findings = [(finding.level, finding.code) for finding in plan.findings]
            data.append(plan.to_dict() if whole else plan.short())
            summary = dict(plan.summary)
        has_failed |= _has_error(findings)
        machines = re.sub(r" (\(|on this machine).*", "", summary.get("instances", "-"))
        processes = summary.get("processes", "-").split()[0]
        dollars = re.search(r"\$[0-9.,]+[0-9]", summary.get("cost", ""))
        cost = dollars[0] if dollars else "-"
        rows.append((name, machines, processes, cost, _counted(findings)))

    if form == "json":
        print_json(data)
    else:
        show_table(("TARGET", "INSTANCES", "PROCESSES", "COST", "CHECKS"), rows)
        command = typed("cloudtrain", "plan", submission.job, "-t", targets[0])
        say(f"{command} prints the whole plan of one target")
    if has_failed:
        raise typer.Exit(2)


def _has_error(findings: Sequence[tuple[Level, str]]) -> bool:
    return any(level is Level.ERROR for level, _ in findings)


def _counted(findings: Sequence[tuple[Level, str]]) -> Span:
    """Return the errors and warnings by their codes: `2 errors: SM101, SM332; 1 warning: SM204`."""
    words = []
    for level in (Level.ERROR, Level.WARNING):
        codes = [code for its_level, code in findings if its_level is level]
        if codes:
            names = ", ".join(dict.fromkeys(codes))
            words.append(f"{counted(len(codes), str(level))}: {names}")
    if not words:
        return Span("no problems", "good")
    return Span("; ".join(words), "bad" if _has_error(findings) else "warn")


def print_plan(plan: Plan, form: str, *, whole: bool = True) -> None:
    """Print the plan on stdout. The text format includes the processes and the request only with
    `whole`. A plan with errors is also printed, and the exit code is 2. A last line on stderr
    repeats the codes of the errors, which may be far above."""
    if form == "json" and whole:
        print_json({**plan.to_dict(), "numbers": plan.to_numbers()})
    elif form == "json":
        sys.stdout.write(json_text(plan.short()) + "\n")
    elif form == "request":
        sys.stdout.write(visible_json(plan.request_json) + "\n")
    elif form != "text":
        print_text(_for_the_tool(plan, form))
    else:
        show(plan.document(whole=whole, once=True), sys.stdout, width=_FILE_WIDTH)
    if plan.errors:
        sys.stdout.flush()
        codes = quoted(dict.fromkeys(error.code for error in plan.errors))
        count = counted(len(plan.errors), "error")
        if form == "text" and whole:  # they may have scrolled off the screen
            count += ", above the request"
        say(
            f"{count}: {codes}. A submit would send nothing; `--short` shows only "
            "the summary and the findings"
        )
        raise typer.Exit(2)


def _print_part(plan: Plan, name: str, instance: int | None) -> None:
    """Print one part of the plan as JSON. Raises UsageError if there is no such part or
    instance."""
    options.require_word("part", name, _PARTS)
    if instance is not None:
        chosen = [process for process in plan.processes if process.instance == instance]
        if not chosen:
            message = f"no process runs on instance {instance}"
            raise UsageError(message, hint="the instances are numbered from 0", code="CT909")
        plan = replace(plan, processes=chosen)
    content = {**plan.to_dict(), "numbers": plan.to_numbers()}
    print_json(content.get(name))


def _say_upload(plan: Plan, submission: SubmitOptions) -> None:
    """Print on stderr the command that uploads the code of this plan."""
    words = []
    if submission.profile:
        words += ["--profile", submission.profile]
    for change in submission.set_ or ():
        words += ["--set", change]
    words += [submission.job, *(submission.arguments or ())]
    command = typed("cloudtrain", "submit", "--upload-only", "--target", plan.target, *words)
    sys.stdout.flush()  # so that this line is below the plan
    say(f"the code has to be uploaded first: {command}")


def _known_format(form: str, target: str) -> str:
    """Return `form` if it is a format of any target. `target` is tried first, so that the others
    need not be loaded."""
    if form in options.FORMATS or form in target_of(target).facts.plan_formats:
        return form
    names = options.formats("")
    if form in names:
        return form
    message = f"invalid value for `--format` / `-f`: `{form}` is not one of {quoted(names)}"
    raise UsageError(message, hint=did_you_mean(form, names), code="CT909")


def _for_the_tool(plan: Plan, form: str) -> str:
    """Return the plan in a format of the target's own tools. Raises UsageError if the target does
    not have it."""
    forms = plan.forms()
    if form not in forms:
        names = quoted([*options.FORMATS, *forms])
        message = f"the target `{plan.target}` has no format `{form}`"
        raise UsageError(message, hint=f"use one of {names}", code="CT904")
    return forms[form]()


_FILE_WIDTH = 100
"""The width if stdout is not a terminal. Long command lines are easier to read and compare if they
are wrapped."""


_OF_A_CHECK = (
    "instances",
    "processes_per_instance",
    "python",
    "build_environment",
    "emulate",
    "gpu",
    "save_job",
    "alternatives",
)
"""The options of a run that can change what a check finds."""


@with_submit_options(OF_THE_JOB, _OF_A_CHECK)
def check_command(
    submission: SubmitOptions,
    online: Annotated[
        bool | None,
        flag(
            "--online/--offline",
            (
                "Also ask the target about role, bucket, inputs and quota. Default: only if you "
                "have credentials."
            ),
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Check a job for mistakes before it costs money.

    The exit code is 2 when a check finds an error, and 0 otherwise. Warnings and notices do not
    stop a submit. `--json` prints a list with the code, level, message, hint and line of each
    finding, also for an invalid job file.

    \b
    Examples:
      cloudtrain check job.yaml
      cloudtrain check job.yaml --target sagemaker --ignore CT104
      cloudtrain check job.yaml --target sagemaker --offline
      cloudtrain check job.yaml --json
    """
    from cloudtrain.cli import inputs

    try:
        file = inputs.job_of(submission)
        target = inputs.target_of(submission)
        if submission.pin:
            file = inputs.pinned(file, target, offline=online is False)
        plan = inputs.plan_of(file, target, submission, online=online)
    except JobError as error:
        if not json:
            raise
        print_json(list(map(problem_json, error.problems)))
        raise typer.Exit(error.exit_code) from None
    if json:
        print_json(list(map(finding_json, plan.findings)))
    elif plan.findings:
        notices = [finding.notice() for finding in plan.findings]
        show(Document(notices), sys.stdout)
    else:
        say(f"{submission.job}: no problems found for {plan.target}")
    if plan.errors:
        raise typer.Exit(2)


class Explanation(NamedTuple):
    """The explanation of the code of a rule or of an error."""

    code: str
    level: str
    summary: str
    explanation: str
    can_be_ignored: bool = False


def explain_command(
    code: Annotated[
        str | None,
        argument(
            "[CODE]",
            "The code of a finding or an error. Default: list all of them.",
            autocompletion=options.all_codes,
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Explain a finding or an error by its code.

    \b
    Examples:
      cloudtrain explain            # every rule and error, one per line
      cloudtrain explain CT101
    """
    from cloudtrain.job.problems import error_codes

    explanations = {}
    for rule in all_rules():
        level = str(rule.level)
        explanations[rule.code] = Explanation(
            rule.code, level, rule.summary, rule.explanation, rule.can_be_ignored
        )
    for name, error in error_codes().items():
        explanations[name] = Explanation(name, "error", error.summary, error.explanation)
    if code is None:
        in_order = sorted(explanations.values())
        if json:
            print_json([item._asdict() for item in in_order])
        else:
            rows = [(item.code, item.level, item.summary) for item in in_order]
            show_table(("CODE", "LEVEL", "WHAT IT FINDS"), rows)
        return

    explanation = explanations.get(code.upper())
    if explanation is None:
        near = did_you_mean(code.upper(), explanations)
        hint = near if isinstance(near, NearName) else "`cloudtrain explain` lists all codes"
        raise UsageError(
            f"no rule and no error has the code `{shortened(code)}`", hint=hint, code="CT929"
        )
    if json:
        print_json(explanation._asdict())
    else:
        show(_page_of(explanation), sys.stdout)


def _page_of(item: Explanation) -> Document:
    """Return the page of a code. Indented paragraphs of its explanation are code."""
    title = Heading(f"{item.code} ({item.level})")
    blocks: list[Block] = [title, Text(item.summary)]
    for paragraph in item.explanation.split("\n\n"):
        if paragraph.startswith("    "):
            blocks.append(Lines(dedent(paragraph).splitlines()))
        else:
            blocks.append(Text(" ".join(paragraph.split())))
    if item.can_be_ignored:
        blocks.append(Text(f"Accept it in one job with `--ignore {item.code}`."))
    return Document(blocks)
