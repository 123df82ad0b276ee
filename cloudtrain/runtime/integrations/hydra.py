"""Convert the arguments that cloudtrain and the clouds pass to a script into Hydra's overrides."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

_AS_IT_IS = re.compile(r"[\w.+/:@%-]*|[\[{].*")
"""Values that Hydra reads without quotes."""


def pass_to_hydra() -> None:
    """Change `--optimizer.lr 0.2` in `sys.argv` to `optimizer.lr=0.2`. Call it before the function
    decorated with `@hydra.main`."""
    sys.argv[1:] = overrides_of(sys.argv[1:])


def overrides_of(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with each `--name value` and `--name=value` changed to Hydra's
    `name=value`. Hydra's own options are kept."""
    overrides: list[str] = []
    waiting = list(arguments)
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.partition("=")
        has_value = equals or (waiting and not waiting[0].startswith("--"))
        if not name.startswith("--") or not has_value:
            overrides.append(word)
            continue
        if not equals:
            value = waiting.pop(0)
        if not _AS_IT_IS.fullmatch(value):
            # between single quotes, each quote gets a backslash, and the backslashes directly
            # before a quote or at the end are doubled
            doubled = re.sub(r"(\\+)(?='|$)", r"\1\1", value)
            value = "'" + doubled.replace("'", "\\'") + "'"
        overrides.append(f"{name[2:]}={value}")
    return overrides
