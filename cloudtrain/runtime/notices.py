"""Messages from the runtime to the user. They go to stderr, one line each, so stdout holds only the script's own output
and metrics.
"""

from __future__ import annotations

import sys

from .environment import detect_environment


def notice(text: str, *, every_rank: bool = False) -> None:
    """Print `cloudtrain: text` on stderr, on rank 0 or on every rank."""
    rank = detect_environment().rank
    if rank == 0 or every_rank:
        who = f"cloudtrain: rank {rank}:" if every_rank else "cloudtrain:"
        sys.stderr.write(f"{who} {text}\n")
        sys.stderr.flush()
