from __future__ import annotations

from typing import Annotated

import typer

from cloudtrain.cli import options


def command(
    name: options.RunName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    rank: Annotated[
        int | None, typer.Option("--rank", min=0, metavar="N", help="Only the process of this rank.")
    ] = None,
    instance: Annotated[
        str | None,
        typer.Option(
            "--instance", "--host", metavar="N", help="Only this instance: its number from 0, or its name `algo-1`."
        ),
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", min=0, metavar="N", help="Only the last N lines so far.")
    ] = None,
    prefix: Annotated[
        bool,
        typer.Option("--prefix/--no-prefix", show_default=False, help="With or without the rank before each line."),
    ] = True,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Put the time (UTC) before each line.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Print the output of a run's processes.

    Ctrl-C while following leaves the run alone.

    \b
    Examples:
      cloudtrain logs last -f
      cloudtrain logs digits-ddp-3f9a --rank 1 --tail 50
      cloudtrain logs last --host algo-2
      cloudtrain logs last --no-prefix > run.log
    """
    import cloudtrain as ct
    from cloudtrain.cli import follow as following
    from cloudtrain.cli import inputs
    from cloudtrain.cli.lines import LineFormat

    only = None if instance is None else inputs.instance_number(instance)
    run = ct.run(name)
    form = LineFormat(prefix=prefix, timestamps=timestamps, as_json=json)
    raise typer.Exit(following.print_logs(run, form, follow=follow, rank=rank, instance=only, tail=tail))
