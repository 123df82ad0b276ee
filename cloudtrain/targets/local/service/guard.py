"""The guard: outlives a killed supervisor just long enough to kill its processes.

The guard reads a pipe that the supervisor holds open: `+PID` for each started process, `-PID` for each ended process,
`done` when the run has ended. The end of the file without `done` means that the supervisor is gone.
"""

from __future__ import annotations

import os


def main(arguments: list[str]) -> None:
    """Guard the run until its supervisor is done or dead. The arguments are `RUN_DIR DESCRIPTOR`."""
    run_dir, descriptor = arguments[0], int(arguments[1])
    known: set[int] = set()
    with os.fdopen(descriptor, "r", encoding="ascii") as pipe:
        for line in pipe:
            word = line.strip()
            if word == "done":
                return
            (known.add if word[0] == "+" else known.discard)(int(word[1:]))
    from cloudtrain.targets.local.service.lost import finish

    finish(run_dir, known)
