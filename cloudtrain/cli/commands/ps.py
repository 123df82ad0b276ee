from __future__ import annotations

import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import cloudtrain as ct
from cloudtrain.cli import options
from cloudtrain.cli.options import LogLevel, argument, flag, option
from cloudtrain.cli.runs import (
    moment_of,
    outlived_by,
    require_consent,
    run_named,
    seconds_of,
    status_json,
)
from cloudtrain.cli.terminal import (
    first_quoted,
    has_color,
    print_json,
    print_lines,
    say,
    show,
    typed,
)
from cloudtrain.errors import CloudtrainError, NothingWritten, UsageError, did_you_mean
from cloudtrain.lifecycle.runs.run import bundled, is_new, leave_out, source_of
from cloudtrain.plans.states import Metrics, RunState
from cloudtrain.system.processes import listening

if TYPE_CHECKING:
    from cloudtrain.lifecycle.runs.run import Run
    from cloudtrain.plans.states import RunStatus

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
    runs = ct.runs(
        limit=None if everything else count,
        states=_states_of(active, state),
        job=job,
        target=target,
        profile=profile,
        tags=dict(map(_tag, tag or ())),
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
        print_json(rows)
    elif runs:
        show(runs.document(with_size=size), sys.stdout)
        for run in runs:
            if run.waits:
                say(f"`{run.name}`: {run.last_status.reason}")
        if len(runs) == count and not everything:
            flag = f" --target {target}" if target else ""
            say(f"the newest {count}; `cloudtrain ps --all{flag}` lists all runs")
    elif not any(filters) and ct.runs(limit=1):
        say("only rehearsals have run; `cloudtrain ps --rehearsals` lists them")
    else:
        has_labels = bool(tag or where)
        say(_nothing(active, state, job, has_labels=has_labels))


def _states_of(active: bool, state: str | None) -> list[RunState]:
    """Return the states of the listed runs; none if every state is listed."""
    if state is None:
        return [run_state for run_state in RunState if active and not run_state.is_final]
    try:
        return [RunState(state)]
    except ValueError:
        hint = did_you_mean(state, list(map(str, RunState)))
        raise UsageError(f"there is no state `{state}`", hint=hint) from None


def _tag(text: str) -> tuple[str, str]:
    """Split a tag such as `team=vision` into key and value."""
    key, equals, value = text.partition("=")
    if not equals:
        hint = f"write name and value: `--tag {text}=VALUE`"
        raise UsageError(f"`{text}` is not a tag", hint=hint, code="CT901")
    return key, value


def _nothing(active: bool, state: str | None, job: str | None, *, has_labels: bool) -> str:
    """Return why the list is empty, and what to type instead."""
    of_job = f" of job `{job}`" if job else ""
    if has_labels:
        return f"no run{of_job} has these tags or hyperparameters; `cloudtrain ps` lists the newest"
    if active or state:
        return f"no run{of_job} is {state or 'active'}; `cloudtrain ps` lists the newest"
    return f"there is no run{of_job} yet; start one with `cloudtrain submit bundled:digits_ddp`"


def status_command(name: options.RunName, json: options.Json = False) -> None:
    """Show the state of a run and why it failed.

    The exit code is 0 in every state. `cloudtrain wait` exits with 1 when the run did not succeed.

    \b
    Examples:
      cloudtrain status last
      cloudtrain status digits-ddp-3f9a
      cloudtrain status last --json | jq -r .state
    """
    run = run_named(name)
    status = run.status()
    if run.is_sweep:
        _print_sweep(run, status, as_json=json)
    elif json:
        print_json(status_json(run, status))
    else:
        from cloudtrain.plans.status import run_document

        more = {"job": run.job_name}
        if run.directory is not None:
            more["folder"] = str(run.directory)
        page = run_document(run.name, str(run.ref), status, more)
        show(page, sys.stdout)
        has_failed = status.state in (RunState.FAILED, RunState.LOST)
        if status.started is not None and not status.metrics and not has_failed:
            _say_how_to_get_metrics(run)


_READ = 2000
"""Lines of output in which a status looks for metrics, because the states of some targets do not
have them."""


def _say_how_to_get_metrics(run: Run) -> None:
    """Print on stderr how a run without metrics gets some; nothing if its first lines have some or
    cannot be read."""
    with suppress(CloudtrainError):  # such as for a run that another machine submitted
        sent_job = run.show()
        if sent_job.kept.kind != "training" or sent_job.job.get("metrics"):
            return

        metrics = Metrics()
        lines = list(islice(run.logs(), _READ))
        has_metrics = any(metrics.of(line) for line in lines)
        if len(lines) < _READ and not has_metrics:
            pattern = typed("--set", "metrics.loss=loss[=: ]+([0-9.e+-]+)")
            say(
                "no metrics: call `runtime.report(loss=loss)`, or name a pattern of your "
                f"output: {pattern}"
            )


def _print_sweep(run: Run, status: RunStatus, *, as_json: bool) -> None:
    """Print the status of a sweep, with its trials or as JSON with its cost."""
    from cloudtrain.lifecycle.runs.sweep import sweep_document, sweep_of

    sweep = sweep_of(run)
    trials = sweep.trials()
    cost = sweep.cost(status, trials)
    if as_json:
        data = status_json(run, status)
        data |= {"cost": None, "cost_left": None}
        if cost is not None:
            data |= {"cost": cost.spent, "cost_left": cost.left}
        print_json(data)
        return

    more = {"sweep": run.job_name, "continues": sweep.continues, "folder": run.directory}
    rows = {name: str(value) for name, value in more.items() if value is not None}
    page = sweep_document(run.name, str(run.ref), status, trials, sweep.objective, rows, cost)
    show(page, sys.stdout)


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

    limit = None if timeout is None else seconds_of(timeout)
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
    for run in runs:
        if run.can_stop:
            run.stop()
            say(f"`{run.name}` was asked to stop")
        else:
            reason = f", {run.last_status.reason}" if run.state is RunState.LOST else ""
            say(f"`{run.name}` has already ended: {run.state}{reason}")
    if wait:
        for run in runs:
            say(f"`{run.name}` is {run.wait().state}")


def logs_command(
    name: options.RunName,
    follow: Annotated[bool, flag("--follow -f", "Follow until the run ends.")] = False,
    trial: Annotated[
        int | None, option("--trial", "N", "For a sweep: show the output of this trial.", min=1)
    ] = None,
    rank: Annotated[
        int | None, option("--rank", "N", "Only the process of this rank.", min=0)
    ] = None,
    instance: Annotated[
        str | None,
        option(
            "--instance --host",
            "N",
            "Only this instance: its number from 0, or its name, such as `algo-1`.",
        ),
    ] = None,
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


_NAMED = 5
"""Maximum number of lines for the ignore file that the notice shows."""


def download_command(
    name: options.RunName,
    path: Annotated[
        str,
        argument(
            "[PATH]",
            "`model/`, `outputs/NAME`, `checkpoint/` or `logs/`; a local run also has `outputs/` "
            "(all outputs) and `work/`. Default: everything.",
            autocompletion=options.parts,
        ),
    ] = "",
    to: Annotated[
        Path | None,
        option("--to", "DIR", "The folder to copy into. Default: a folder with the run's name."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Copy what a run wrote: model, outputs, checkpoint, logs.

    `work/` holds the files that the script of a local run wrote into its working folder.

    Later bundles of code leave the copies out: a new folder inside your project gets a
    `.cloudtrainignore`.

    Prints the path of each copied file on stdout. The exit code is 1 when there is nothing to copy.

    \b
    Examples:
      cloudtrain download last model/
      cloudtrain download last work/
      cloudtrain download digits-ddp-3f9a --to results
    """
    run = run_named(name)
    folder = to or Path(run.name)
    source = source_of(run)
    is_new_folder = is_new(folder)
    try:
        with listening(say):
            files = run.download(path, folder)
    except NothingWritten:
        files = []
    finally:
        # also after an error, which may leave some files there
        if is_new_folder:
            leave_out(folder, (source, Path()))
    if json:
        print_json(list(map(str, files)))
    else:
        print_lines(map(str, files))

    if not files:
        _say_nothing_written(run, path)
        raise typer.Exit(1)
    lines = [] if source is None else bundled(files, folder, source)
    if lines:
        named = first_quoted(lines, _NAMED)
        say(
            f"the next submit of `{run.job_name}` bundles these copies as code; if they are "
            f"data, add to `{source}/.cloudtrainignore`: {named}"
        )


def _say_nothing_written(run: Run, path: str) -> None:
    """Say that there is nothing to download, and where the files may be instead."""
    words = f"`{run.name}` wrote no files"
    if path:
        words += f" to `{path}`"
    yet = "" if run.state.is_final else " yet"
    say(words + yet)

    if path and run.working_files:
        command = typed("cloudtrain", "download", run.name, "work/")
        say(f"the files in its working folder: {command}")
    elif path.strip("/") == "model" and not yet:
        say("save the model in `runtime.model_dir()`, the folder that $CLOUDTRAIN_MODEL_DIR names")
