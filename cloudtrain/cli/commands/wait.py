from __future__ import annotations

from typing import Annotated

import typer

from cloudtrain.cli import options


def command(
    name: options.RunName,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Stop waiting after this time, for example 10m.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Wait until a run has ended.

    The exit code is 0 if the run succeeded, 1 if it failed, was stopped or was lost, and 4 after the timeout. After a
    timeout the run continues.

    \b
    Examples:
      cloudtrain wait last && cloudtrain download last model/
      cloudtrain wait digits-ddp-3f9a --timeout 2h
    """
    from cloudtrain.cli import inputs
    from cloudtrain.cli.report import exit_code, goes_on, report_end, status_json
    from cloudtrain.cli.terminal import print_json

    limit = None if timeout is None else inputs.seconds(timeout)
    run = inputs.run(name)
    try:
        status = run.wait(limit)
    except KeyboardInterrupt:
        goes_on(run)
        raise
    if json:
        print_json(status_json(run, status))
    else:
        report_end(run, status)
    raise typer.Exit(exit_code(status))
