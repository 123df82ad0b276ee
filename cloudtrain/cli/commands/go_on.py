from __future__ import annotations

from typing import Annotated

import typer

from cloudtrain.cli import options


def command(
    name: options.RunName,
    trials: Annotated[int, typer.Option("--trials", min=0, metavar="N", help="Add N trials.", show_default=False)] = 0,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return as soon as the sweep continues.")] = False,
) -> None:
    """Go on with a sweep, with more trials if you like.

    For a sweep that was stopped or has ended, and for one whose driver was killed. Trials that have ended stay as they
    are, and new ones learn from them.

    \b
    Examples:
      cloudtrain continue digits-lr-3f9a --trials 20
      cloudtrain continue last
    """
    from cloudtrain.cli import inputs
    from cloudtrain.cli.terminal import say, typed
    from cloudtrain.sweeps.sweep_run import sweep_of

    run = inputs.run(name)
    inputs.may("continue", run)
    sweep = sweep_of(run)
    sweep.resume(trials)
    if detach:
        say(f"`{sweep.name}` goes on; follow it with {typed('cloudtrain', 'logs', sweep.name, '-f')}")
        return
    from cloudtrain.cli.follow import follow

    raise typer.Exit(follow(sweep))
