from __future__ import annotations

import sys

from cloudtrain.cli import options


def command(json: options.Json = False) -> None:
    """Finish or forget submissions that were cut off.

    A submit writes down each step before it takes it. When it is killed in between, this asks the target whether it
    has the run: if so the run is kept, if not the submission is forgotten. Every other command does the same when
    it must; this one says what became of them.

    \b
    Example:
      cloudtrain recover
    """
    from cloudtrain.api import recover
    from cloudtrain.cli.terminal import print_json, say, show
    from cloudtrain.render.document import Document, Table

    found = recover()
    if json:
        print_json([{"name": item.name, "outcome": item.outcome, "detail": item.detail} for item in found])
    elif found:
        rows = [(item.name, item.outcome, item.detail) for item in found]
        show(Document([Table(("NAME", "OUTCOME", "DETAIL"), rows)]), sys.stdout)
    else:
        say("no submission was cut off")
