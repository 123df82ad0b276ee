"""Find the line of a program's output that names the error."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LONGEST = 400
_NAMED_ERROR = re.compile(r"^\s*(?:\[\w+\d*\]:\s*)?([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b.*)$")

PEER_LOST = re.compile(
    r"closed by peer|reset by peer|Connection refused|Broken pipe|remote process exited|ncclRemoteError|"
    r"communicator was aborted|Socket Timeout|recvValue failed|connectFullMesh failed|failed to recv|"
    r"DistNetworkError|DistStoreError|Some NCCL operations have failed or timed out"
)
"""Parts of error messages that report the loss of another rank. Such errors are consequences of the first failure."""


def error_in(lines: Sequence[str]) -> str | None:
    """Return the last line that names an exception; None without such a line."""
    found = [match[1] for line in lines if (match := _NAMED_ERROR.match(line))]
    return shorten_line(found[-1]) if found else None


def shorten_line(text: str) -> str:
    """Shorten a line of output to a readable length."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
