from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cloudtrain.cli import options

if TYPE_CHECKING:
    from cloudtrain.lifecycle.submission import Recovered


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

    def print_found(found: list[Recovered]) -> None:
        if json:
            print_json([item._asdict() for item in found])
        elif found:
            show(Document([Table(("NAME", "OUTCOME", "DETAIL"), found)]), sys.stdout)
        else:
            say("no submission was cut off")
        sys.stdout.flush()

    recover(print_found)
