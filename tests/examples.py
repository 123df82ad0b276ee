"""How many examples a property test tries, and from which seed.

CLOUDTRAIN_TEST_EXAMPLES unset: at most 20, always the same ones, so that a result can be had again.
CLOUDTRAIN_TEST_EXAMPLES=20: at most 20, other ones each time, or those of `--hypothesis-seed`.
CLOUDTRAIN_TEST_EXAMPLES=full: as many as the test says, likewise.
"""

from __future__ import annotations

import os

ASKED = os.environ.get("CLOUDTRAIN_TEST_EXAMPLES", "")

QUICK = 20


def examples(full: int, quick: int = QUICK) -> int:
    """The number of examples of a test that has `full` in `make test-all`, and `quick` in `make test`: less than others
    where each example starts a process."""
    return full if ASKED == "full" else min(full, int(ASKED or quick))
