from __future__ import annotations

import sys
from typing import Annotated

import typer

from cloudtrain.cli import options
from cloudtrain.cli.selection import LogLevel


def command(
    name: options.RunName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the run ends.")] = False,
    trial: Annotated[
        int | None, typer.Option("--trial", min=1, metavar="N", help="For a sweep: show the output of this trial.")
    ] = None,
    rank: Annotated[
        int | None, typer.Option("--rank", min=0, metavar="N", help="Only the process of this rank.")
    ] = None,
    instance: Annotated[
        str | None,
        typer.Option(
            "--instance",
            "--host",
            metavar="N",
            help="Only this instance: its number from 0, or its name, such as `algo-1`.",
        ),
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail",
            min=0,
            metavar="N",
            help="Only the newest N lines; with --follow, new lines after them.",
        ),
    ] = None,
    grep: Annotated[
        str | None,
        typer.Option("--grep", metavar="REGEX", help="Only lines that this regular expression matches."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only lines since a time: `2026-11-22T10:00`, or `10m` ago."),
    ] = None,
    level: Annotated[
        LogLevel | None,
        typer.Option(
            "--level",
            metavar="LEVEL",
            help="Only warnings and errors (`warning`), or only errors and tracebacks (`error`).",
        ),
    ] = None,
    prefix: Annotated[
        bool,
        typer.Option(
            "--prefix/--no-prefix",
            show_default=False,
            help="Print the rank before each line, or not. Default: print it.",
        ),
    ] = True,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Print the time (UTC) before each line.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print the output unchanged, with its control characters.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Print the output of a run's processes.

    Ctrl-C stops following; the run continues. Control characters are shown as text (`\\x1b`), except colours on
    a terminal. Of a progress bar, only the last state is shown.

    \b
    Examples:
      cloudtrain logs last -f
      cloudtrain logs digits-ddp-3f9a --rank 1 --tail 50
      cloudtrain logs last --host algo-2
      cloudtrain logs digits-lr-3f9a --trial 7
      cloudtrain logs last --level error --since 10m
      cloudtrain logs last --no-prefix > run.log
    """
    from cloudtrain.cli import follow as following
    from cloudtrain.cli import inputs
    from cloudtrain.cli.lines import LineFormat
    from cloudtrain.cli.selection import Selection, moment_of, pattern_of
    from cloudtrain.cli.terminal import has_color

    selection = Selection(
        None if grep is None else pattern_of(grep), None if since is None else moment_of(since), level
    )
    only = None if instance is None else inputs.instance_number(instance)
    run = inputs.run(name)
    if trial is not None:
        from cloudtrain.sweeps.sweep_run import sweep_of

        run = sweep_of(run).trial(trial)
    prefix = prefix and not run.is_sweep
    form = LineFormat(prefix=prefix, timestamps=timestamps, as_json=json, raw=raw, color=has_color(sys.stdout))
    code = following.print_logs(run, form, follow=follow, rank=rank, instance=only, tail=tail, selection=selection)
    raise typer.Exit(code)
