"""The only error class of the runtime, and its messages. `cloudtrain.errors` is not in the
bundle."""

from __future__ import annotations

import sys
from collections.abc import Sequence

PEER_LOST = (
    r"closed by peer|reset by peer|Connection refused|Broken pipe|remote process exited|"
    r"ncclRemoteError|"
    r"communicator was aborted|Socket Timeout|recvValue failed|connectFullMesh failed|"
    r"failed to recv|"
    r"DistNetworkError|DistStoreError|Some NCCL operations have failed or timed out|"
    r"Timed out waiting \d+ms|collective operation timeout"
)
"""Parts of error messages that report the loss of another rank. Such errors are consequences of the
first failure."""

OTHER_MODEL_HINT = (
    "give the options with which it was saved, or remove the checkpoints to start from the "
    "beginning"
)
"""What to do about a checkpoint of another model."""

_MOST_NAMED = 16
"""The most ranks that a message names."""

_TAG = r"(?:\[\d+,\d+\]<std(?:err|out)>:)?"
"""What mpirun writes before each line."""


class SetupError(Exception):
    """The process cannot train with its environment, arguments or data. `hint` tells the user what
    to type or set. `on_every_rank` is False for an error that one process may meet alone, which
    that process then reports itself."""

    def __init__(
        self, message: str, *, hint: str | None = None, on_every_rank: bool = True
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.on_every_rank = on_every_rank

    def __str__(self) -> str:
        if self.hint is None:
            return self.message
        return f"{self.message}\nhint: {self.hint}"

    def tell(self) -> None:
        """Write message and hint to stderr."""
        text = f"error: {self.message}\n"
        if self.hint:
            text += f"\nhint: {self.hint}\n"
        sys.stderr.write(text)


def tell(text: str) -> None:
    """Write `cloudtrain: text` to stderr at once."""
    sys.stderr.write(f"cloudtrain: {text}\n")
    sys.stderr.flush()


def name_ranks(ranks: Sequence[int]) -> str:
    """Return `rank 3` or `ranks 0, 3` for a message, of many only the first."""
    noun = "rank" if len(ranks) == 1 else "ranks"
    listed = ", ".join(map(str, ranks[:_MOST_NAMED]))
    more = len(ranks) - _MOST_NAMED
    if more > 0:
        listed += f" and {more} more"
    return f"{noun} {listed}"


def find_told(lines: Sequence[str]) -> tuple[int, str] | None:
    """Find the last SetupError with a hint that a process told in the lines of its output. Return
    the index of its first line and its message; None if there is none."""
    import re

    has_hint = False
    for index in reversed(range(len(lines))):
        match = re.match(_TAG + r"(error|hint): (.*)", lines[index])
        if match is None:
            continue
        if match[1] == "error" and has_hint:
            return index, match[2].strip()
        has_hint = match[1] == "hint"
    return None
