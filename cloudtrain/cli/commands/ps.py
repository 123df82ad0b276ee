from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

import cloudtrain as ct
from cloudtrain.cli import options
from cloudtrain.cli.options import LogLevel, flag, measured, option, require_word
from cloudtrain.cli.runs import (
    moment_of,
    outlived_by,
    require_consent,
    run_named,
    status_json,
    tag_of,
)
from cloudtrain.cli.terminal import has_color, print_json, say, show, typed
from cloudtrain.errors import CloudtrainError
from cloudtrain.job.model import parse_duration
from cloudtrain.plans.states import RunState
from cloudtrain.plans.status import run_document

if TYPE_CHECKING:
    from cloudtrain.lifecycle.runs.run import Run

_WHERE = option(
    "--where",
    "COMPARISON",
    "Only runs whose hyperparameters match: `learning_rate<0.01`. Repeatable.",
    autocompletion=options.hyperparameters,
)


def ps_command(
    everything: Annotated[bool, flag("--all -a", "Show all runs, not only the newest.")] = False,
    count: Annotated[
        int, option("-n --limit", "N", "Show the newest N runs. Default: 20.", min=1)
    ] = 20,
    active: Annotated[bool, flag("--active", "Only runs that have not ended.")] = False,
    state: Annotated[
        str | None,
        option("--state", "STATE", "Only runs in this state.", autocompletion=options.states),
    ] = None,
    job: Annotated[str | None, option("--job", "NAME", "Only runs of this job.")] = None,
    tag: Annotated[
        list[str] | None, option("--tag", "NAME=VALUE", "Only runs with this tag. Repeatable.")
    ] = None,
    where: Annotated[list[str] | None, _WHERE] = None,
    target: options.TargetOfRuns = None,
    profile: options.Profile = None,
    rehearsals: Annotated[
        bool, flag("--rehearsals", "Also show ended rehearsals (included in --all).")
    ] = False,
    trials: Annotated[bool, flag("--trials", "Also show the trials of sweeps.")] = False,
    size: Annotated[
        bool, flag("--size", "Show the size of each run's folder on this machine.")
    ] = False,
    wide: Annotated[bool, flag("--wide", "Show what the machines of active runs do.")] = False,
    shortened: options.Short = False,
    json: options.Json = False,
) -> None:
    """List runs, the newest first.

    Ended rehearsals are left out.

    \b
    Examples:
      cloudtrain ps
      cloudtrain ps --active
      cloudtrain ps --all --state failed
      cloudtrain ps --trials --where "learning_rate<0.01"
      cloudtrain ps --tag team=vision --where "learning_rate<0.01"
      cloudtrain ps --target sagemaker --state running
      cloudtrain ps -n 100 --json | jq -r '.[].name'
    """
    states = [each for each in RunState if active and not each.is_final]
    if state is not None:
        require_word("state", state, list(map(str, RunState)))
        states = [RunState(state)]
    runs = ct.runs(
        limit=None if everything else count,
        states=states,
        job=job,
        target=target,
        profile=profile,
        tags=dict(map(tag_of, tag or ())),
        where=where or (),
        rehearsals=rehearsals or everything or job is not None,
        trials=trials,
    )
    filters = (rehearsals, everything, job, active, state, tag, where, target)

    if json:
        rows = []
        for run in runs:
            row = status_json(run, run.last_status)
            if size:
                row["size"] = run.size
            rows.append(row)
        print_json(rows, short=shortened)
    elif runs:
        show(runs.document(with_size=size, with_machines=wide), sys.stdout)
        for run in runs:
            if run.waits:
                say(f"`{run.name}`: {run.last_status.reason}")
        if len(runs) == count and not everything:
            flag = f" --target {target}" if target else ""
            say(f"the newest {count}; `cloudtrain ps --all{flag}` lists all runs")
    elif any(filters):
        say("no run matches; `cloudtrain ps` lists the newest")
    elif ct.runs(limit=1):
        say("only rehearsals have run; `cloudtrain ps --rehearsals` lists them")
    else:
        say("there is no run yet; start one with `cloudtrain submit bundled:digits_ddp`")


def status_command(
    name: options.RunName,
    stacks: Annotated[
        bool, flag("--stacks", "Show where each rank is in its code now, and who holds it up.")
    ] = False,
    shortened: options.Short = False,
    json: options.Json = False,
) -> None:
    """Show the state of a run and why it failed.

    The exit code is 0 in every state. `cloudtrain wait` exits with 1 when the run did not succeed.

    \b
    Examples:
      cloudtrain status last
      cloudtrain status digits-ddp-3f9a
      cloudtrain status last --stacks
      cloudtrain status last --json | jq -r .state
    """
    run = run_named(name)
    if stacks:
        # a status without stacks need not wait for this import
        from cloudtrain.signals.stacks import stacks_document, stacks_json

        looks = run.stacks()
        if json:
            print_json(stacks_json(looks))
        else:
            show(stacks_document(looks), sys.stdout)
        return
    status = run.status() if run.is_sweep else run.observe()
    if run.is_sweep:
        from cloudtrain.lifecycle.runs.sweep import sweep_document, sweep_of

        sweep = sweep_of(run)
        trials = sweep.trials()
        if json:
            cost = sweep.cost(status, trials)
            data = status_json(run, status)
            data |= {"cost": None, "cost_left": None}
            if cost is not None:
                data |= {"cost": cost.spent, "cost_left": cost.left}
            print_json(data, short=shortened)
            return

        facts = {"sweep": run.job_name, "continues": sweep.continues, "folder": run.directory}
        rows = {name: str(value) for name, value in facts.items() if value is not None}
        show(sweep_document(sweep, status, trials, rows), sys.stdout)
    elif json:
        print_json(status_json(run, status), short=shortened)
    else:
        more = {"job": run.job_name}
        if run.directory is not None:
            more["folder"] = str(run.directory)
        page = run_document(run.name, str(run.ref), status, more)
        show(page, sys.stdout)
        has_failed = status.state in (RunState.FAILED, RunState.LOST)
        is_known = status.main is not None or status.metrics
        if status.started is not None and not is_known and not has_failed:
            _say_how_to_get_metrics(run)


def _say_how_to_get_metrics(run: Run) -> None:
    """Print on stderr how a run without metrics gets some."""
    with suppress(CloudtrainError):  # such as for a run that another machine submitted
        sent_job = run.show()
        if sent_job.kept.kind == "training" and not sent_job.job.get("metrics"):
            pattern = typed("--set", "metrics.loss=loss[=: ]+([0-9.e+-]+)")
            say(
                "no metrics: call `runtime.report(loss=loss)`, or name a pattern of your "
                f"output: {pattern}"
            )


def wait_command(
    name: options.RunName,
    timeout: Annotated[
        str | None, option("--timeout", "TIME", "Stop waiting after this time, for example 10m.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Wait until a run has ended.

    The exit code is 0 if the run succeeded, 1 if it failed, was stopped or was lost, and 4 after
    the timeout. After a timeout the run continues.

    \b
    Examples:
      cloudtrain wait last && cloudtrain download last model/
      cloudtrain wait digits-ddp-3f9a --timeout 2h
    """
    from cloudtrain.cli.follow import exit_code, report_end

    limit = None if timeout is None else measured(parse_duration, timeout, "10m")
    run = run_named(name)
    with outlived_by(run, KeyboardInterrupt):
        status = run.wait(limit)
    if json:
        print_json(status_json(run, status))
    else:
        report_end(run, status)
    raise typer.Exit(exit_code(status))


def stop_command(
    names: Annotated[list[str], options.run_names("Runs")],
    wait: Annotated[bool, flag("--wait", "Wait until the runs have ended.")] = False,
    json: options.Json = False,
) -> None:
    """Stop runs gracefully.

    The processes get SIGTERM, so that they can save, and SIGKILL after the grace period. Ended runs
    are not changed. If `last` is a run from another folder, the command asks first.

    \b
    Examples:
      cloudtrain stop last
      cloudtrain stop digits-ddp-3f9a --wait
    """
    runs = list(map(run_named, names))
    for run in runs:
        if run.can_stop:
            require_consent("stop", run)
    asked = list[bool]()
    for run in runs:
        asked.append(run.can_stop)
        if run.can_stop:
            run.stop()
            say(f"`{run.name}` was asked to stop")
        else:
            reason = f", {run.last_status.reason}" if run.state is RunState.LOST else ""
            say(f"`{run.name}` has already ended: {run.state}{reason}")
    if wait:
        for run in runs:
            say(f"`{run.name}` is {run.wait().state}")
    if json:
        data = []
        for run, was_asked in zip(runs, asked, strict=True):
            state = str(run.last_status.state)
            data.append({"name": run.name, "asked_to_stop": was_asked, "state": state})
        print_json(data)


def logs_command(
    name: options.RunName,
    follow: Annotated[bool, flag("--follow -f", "Follow until the run ends.")] = False,
    trial: options.Trial = None,
    rank: options.Rank = None,
    instance: options.Instance = None,
    tail: Annotated[
        int | None,
        option(
            "--tail", "N", "Only the newest N lines; with --follow, new lines after them.", min=0
        ),
    ] = None,
    grep: Annotated[
        str | None, option("--grep", "REGEX", "Only lines that this regular expression matches.")
    ] = None,
    since: Annotated[
        str | None,
        option("--since", "TIME", "Only lines since a time: `2026-11-22T10:00`, or `10m` ago."),
    ] = None,
    level: Annotated[
        LogLevel | None,
        option(
            "--level",
            "LEVEL",
            "Only warnings and errors (`warning`), or only errors and tracebacks (`error`).",
        ),
    ] = None,
    prefix: Annotated[
        bool,
        flag("--prefix/--no-prefix", "Print the rank before each line, or not. Default: print it."),
    ] = True,
    timestamps: Annotated[
        bool, flag("--timestamps", "Print the time (UTC) before each line.")
    ] = False,
    raw: Annotated[
        bool, flag("--raw", "Print the output unchanged, with its control characters.")
    ] = False,
    json: Annotated[bool, flag("--json", "Print one JSON object per line.")] = False,
) -> None:
    """Print the output of a run's processes.

    Ctrl-C stops following; the run continues. `-f` leaves out the C++ frames of PyTorch's errors.
    Control characters are shown as text (`\\x1b`), except colours on a terminal. Of a progress bar,
    only the last state is shown.

    \b
    Examples:
      cloudtrain logs last -f
      cloudtrain logs digits-ddp-3f9a --rank 1 --tail 50
      cloudtrain logs last --host algo-2
      cloudtrain logs digits-lr-3f9a --trial 7
      cloudtrain logs last --level error --since 10m
      cloudtrain logs last --no-prefix > run.log
    """
    from cloudtrain.cli.follow import Selection, instance_number, pattern_of, print_logs
    from cloudtrain.cli.live import LineFormat

    selection = Selection(pattern_of(grep), moment_of(since), level)
    number = instance_number(instance)
    run = run_named(name)
    if trial is not None:
        from cloudtrain.lifecycle.runs.sweep import sweep_of

        run = sweep_of(run).trial(trial)

    prefix = prefix and not run.is_sweep
    color = has_color(sys.stdout)
    form = LineFormat(prefix, timestamps=timestamps, as_json=json, raw=raw, color=color)
    code = print_logs(
        run, form, follow=follow, rank=rank, instance=number, tail=tail, selection=selection
    )
    raise typer.Exit(code)
