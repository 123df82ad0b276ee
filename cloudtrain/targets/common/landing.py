"""Move results into the user's folder: all of them, or none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cloudtrain.errors import TargetError
from cloudtrain.system.staging import Staging, Unsafe

_HINT = "nothing was written; copy a part of it, such as one file, or copy it by hand into an empty folder"


@contextmanager
def landing(destination: Path, *, odd_names: bool = False) -> Iterator[Staging]:
    """Collect files for `destination`, which is created. They appear there with `Staging.move`.

    Raises:
        TargetError: a name is unsafe, or another file is in the way.
    """
    with Staging(destination, odd_names=odd_names) as staging:
        try:
            yield staging
        except Unsafe as error:
            raise TargetError(str(error), hint=_HINT) from None
