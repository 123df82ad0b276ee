"""Senders that die. For each line `STATE_DIR POINT` of stdin, a fork of this process serves that state folder and kills
itself at that point, a step of the sender; at none where it is 0. Its home is the parent of the state folder. The answer
is its process id, and to the line `wait`, its exit code, which is negative for a signal."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from cloudtrain.lifecycle.sender import serve
from cloudtrain.targets.settings import read_environment


def _serve(state_dir: str, point: int) -> None:
    os.environ["HOME"] = str(Path(state_dir).parent)
    numbers = count(1)

    def moment(_: str) -> None:
        if next(numbers) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        serve(read_environment()._replace(state_dir=Path(state_dir)), moment)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(0)


if __name__ == "__main__":
    child = 0
    for line in sys.stdin:
        if line == "wait\n":
            _, status = os.waitpid(child, 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        state_dir, point = line.rsplit(maxsplit=1)
        child = os.fork()
        if child == 0:
            _serve(state_dir, int(point))
        print(child, flush=True)
