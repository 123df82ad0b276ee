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
    """Yield a `Staging`, which creates the folder `destination` and collects files for it. `Staging.move` moves all
    these files into the folder, or none of them.

    `odd_names`: allow control characters in file names.

    Raises:
        TargetError: a file name is unsafe, or another file blocks a file's path.
    """
    with Staging(destination, odd_names=odd_names) as staging:
        try:
            yield staging
        except Unsafe as error:
            raise TargetError(str(error), hint=_HINT) from None
