"""The guard: a process that kills a run's processes if the supervisor is killed.

The guard reads a pipe from the supervisor: `+PID` for each started process, `-PID` for each ended
process, `done` when the run has ended. If the pipe ends without `done`, the supervisor has died.
"""

from __future__ import annotations

import os


def main(arguments: list[str]) -> None:
    """Wait until the run's supervisor ends. If it was killed, stop the run's processes, even if its
    folder is gone. The arguments are `RUN_DIR`, `TOKEN` and `DESCRIPTOR`, the read end of a pipe
    from the supervisor."""
    run_dir = arguments[0]
    token = arguments[1]
    descriptor = int(arguments[2])
    alive: set[int] = set()
    with os.fdopen(descriptor, "r", encoding="ascii") as pipe:
        for line in pipe:
            word = line.strip()
            if word == "done":
                return
            pid = int(word[1:])
            if word[0] == "+":
                alive.add(pid)
            else:
                alive.discard(pid)
    from cloudtrain.targets.local.verdict import finish

    finish(run_dir, token, alive)
