from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cloudtrain.cli import options

if TYPE_CHECKING:
    from cloudtrain.lifecycle.submission import Recovered


def command(json: options.Json = False) -> None:
    """Clean up after interrupted submissions.

    If a submit was killed while it was sending a job, this command asks the target whether the run exists. If so, the
    run is kept; otherwise the submission is forgotten. Other commands do the same when they need to; `recover` reports
    the result.

    \b
    Example:
      cloudtrain recover
    """
    from cloudtrain.cli.terminal import print_json, say, show
    from cloudtrain.lookup import recover
    from cloudtrain.render.document import Document, Table

    def print_found(found: list[Recovered]) -> None:
        if json:
            print_json([item._asdict() for item in found])
        elif found:
            show(Document([Table(("NAME", "OUTCOME", "DETAIL"), found)]), sys.stdout)
        else:
            say("no submission was interrupted")
        sys.stdout.flush()

    recover(print_found)
