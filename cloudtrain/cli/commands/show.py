from __future__ import annotations

import sys
from typing import Annotated

import typer

from cloudtrain.cli import options


def command(
    name: options.RunName,
    job: Annotated[
        bool, typer.Option("--job", help="Print a job file that you can submit again from any folder.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Show what was sent: the job, the request and the source.

    The source shows the git commit of the code, whether the code had uncommitted changes, and the hash of the bundle.
    Secrets are not stored; they appear as `***`.

    \b
    Examples:
      cloudtrain show last
      cloudtrain show digits-ddp-3f9a --job > again.yaml
      cloudtrain show last --json | jq .git.commit
    """
    from cloudtrain.cli import inputs
    from cloudtrain.cli.terminal import print_json, show
    from cloudtrain.render.escape import visible

    sent = inputs.run(name).show()
    if job:
        text = sent.to_job_file()
        sys.stdout.write(visible(text) if sys.stdout.isatty() else text)  # a file gets every byte
    elif json:
        print_json(sent.to_dict())
    else:
        show(sent.document(), sys.stdout)
