from __future__ import annotations

from typing import Annotated

import typer

from cloudtrain.cli import complete


def command(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="Runs: names, beginnings of names, references, or `last`.",
            autocompletion=complete.runs,
            show_default=False,
        ),
    ],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the runs have ended.")] = False,
) -> None:
    """Stop runs gracefully.

    The processes get SIGTERM, so that they can save, and SIGKILL after the grace period. Ended runs are not changed.
    If `last` is a run from another folder, the command asks first.

    \b
    Examples:
      cloudtrain stop last
      cloudtrain stop digits-ddp-3f9a --wait
    """
    from cloudtrain.cli import inputs
    from cloudtrain.cli.terminal import say

    runs = [inputs.run(name) for name in names]
    for run in runs:
        if run.can_stop:
            inputs.may("stop", run)
    for run in runs:
        if run.can_stop:
            run.stop()
            say(f"`{run.name}` was asked to stop")
        else:
            say(f"`{run.name}` has already ended: {run.state}")
    for run in runs if wait else ():
        say(f"`{run.name}` is {run.wait().state}")
