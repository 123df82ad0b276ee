from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cloudtrain.cli import options

if TYPE_CHECKING:
    from cloudtrain.lifecycle.run import Run


def command(
    name: options.RunName,
    trials: Annotated[int, typer.Option("--trials", min=0, metavar="N", help="Add N trials.", show_default=False)] = 0,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return as soon as the sweep continues.")] = False,
) -> None:
    """Continue a sweep, with more trials if you like.

    This also continues a sweep that was stopped or whose driver was killed. Ended trials are not repeated, and new
    trials learn from them.

    If a run waits for another run and its waiting process has died, for example in a reboot, `continue` restarts that
    process.

    On SageMaker's own tuner the sweep continues as a new tuning job with another name and a warm start. The new sweep
    lists the trials of both sweeps. Azure ML's tuner cannot continue a sweep.

    \b
    Examples:
      cloudtrain continue digits-lr-3f9a --trials 20
      cloudtrain continue last
    """
    from cloudtrain.chains.run import ChainedRun
    from cloudtrain.cli import inputs
    from cloudtrain.cli.commands.submit import print_detached
    from cloudtrain.cli.follow import follow, lines_so_far
    from cloudtrain.cli.terminal import say
    from cloudtrain.sweeps.sweep_run import sweep_of

    run = inputs.run(name)
    inputs.may("continue", run)
    skip = 0 if detach else lines_so_far(run)  # a new tuning job lists these lines first

    def tell(sweep: Run) -> None:
        if sweep.name != run.name:
            say(f"`{sweep.name}` continues `{run.name}`")
        if detach:
            print_detached(as_json=False)(sweep)
        else:
            say(f"`{sweep.name}` continues; Ctrl-C leaves it running", "")

    if isinstance(run, ChainedRun) and not trials:
        run.resume()
        tell(run)
    else:
        run = sweep_of(run).resume(trials, on_run=tell)
    if not detach:
        raise typer.Exit(follow(run, skip=skip))
