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
        str | None, typer.Option("--name", metavar="NAME", help="Give the job another name.", show_default=False)
    ] = None,
    ignore: options.Ignore = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="With --set: do not ask the target about role, bucket and quota first.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return as soon as the target has the run.")] = False,
    json: options.Json = False,
) -> None:
    """Send a run once more: the same code, the same request.

    The source folder is not needed: the code comes from where it was uploaded to, or from the run's own folder. Only
    the run's name is new. With `--set` the job is compiled and checked again, for the same code. The exit code is as
    of `cloudtrain submit`.

    Of a sweep, the trials that failed or were cut off run again, with their values, under the sweep's name.

    \b
    Examples:
      cloudtrain rerun last
      cloudtrain rerun digits-ddp-3f9a --set hyperparameters.seed=2
      cloudtrain rerun digits-ddp-3f9a --name digits-again --detach
      cloudtrain rerun digits-lr-3f9a
    """
    from cloudtrain.cli import inputs
    from cloudtrain.cli.commands.submit import print_detached, print_followed, show_plan
    from cloudtrain.cli.progress import upload_progress
    from cloudtrain.cli.terminal import say

    found = inputs.run(run)
    inputs.may("rerun", found)
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
        say("", "interrupted while sending; `cloudtrain recover` says whether the run exists")
        raise
    if not detach:
        from cloudtrain.cli.follow import follow

        raise typer.Exit(follow(sent, as_json=json))


def _print_goes_on(sweep: Run) -> None:
    from cloudtrain.cli.terminal import say

    say(f"`{sweep.name}` goes on with its failed trials; Ctrl-C leaves it running", "")
