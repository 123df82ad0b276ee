from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cloudtrain.cli import options

if TYPE_CHECKING:
    from cloudtrain.lifecycle.run import Run


def command(
    run: options.RunName,
    set_: options.Set = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Rename the job.", show_default=False)
    ] = None,
    ignore: options.Ignore = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="With --set: do not check role, bucket and quota with the target first.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return as soon as the target has accepted the run.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Submit a run again with the same code and request.

    The source folder is not needed, because the sent code is used again. Only the run's name is new. With `--set`
    the job is compiled and checked again, with the same code. The exit codes are the same as for `cloudtrain submit`.

    For a sweep, the failed and interrupted trials run again with their values, under the sweep's name.

    \b
    Examples:
      cloudtrain rerun last
      cloudtrain rerun digits-ddp-3f9a --set hyperparameters.seed=2
      cloudtrain rerun digits-ddp-3f9a --name digits-again --detach
      cloudtrain rerun digits-lr-3f9a
    """
    from cloudtrain.cli import inputs
    from cloudtrain.cli.commands.submit import print_detached, print_followed, show_plan
    from cloudtrain.cli.follow import follow, lines_so_far
    from cloudtrain.cli.progress import upload_progress
    from cloudtrain.cli.terminal import say

    found = inputs.run(run)
    inputs.may("rerun", found)
    skip = 0 if detach else lines_so_far(found)
    try:
        sent = found.rerun(
            list(set_ or ()),
            name=name,
            ignore=list(ignore or ()),
            online=not offline,
            on_plan=show_plan,
            on_bytes=upload_progress(),
            on_run=print_detached(json) if detach else _print_goes_on if found.is_sweep else print_followed,
        )
    except KeyboardInterrupt:
        say("", "interrupted while sending; `cloudtrain recover` reports whether the run exists")
        raise
    if not detach:
        raise typer.Exit(follow(sent, as_json=json, skip=skip))


def _print_goes_on(sweep: Run) -> None:
    from cloudtrain.cli.terminal import say

    say(f"`{sweep.name}` continues with its failed trials; Ctrl-C leaves it running", "")
