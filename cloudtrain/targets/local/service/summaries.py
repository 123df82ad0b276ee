"""Read from the launchers' stderr which ranks failed, and with which exit codes."""

from __future__ import annotations

import re

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Sequence

_TORCHRUN_RANK = re.compile(r"\s*rank\s*: (\d+) \(local_rank: \d+\)")
_TORCHRUN_CODE = re.compile(r"\s*exitcode\s*: (-?\d+) \(pid: \d+\)")
_MPIRUN_NAME = re.compile(r"\s*Process name: \[.*,(\d+)\]")
_MPIRUN_CODE = re.compile(r"\s*Exit code:\s+(\d+)")
_MPIRUN_SIGNAL = re.compile(
    r"noticed that process rank (\d+) with PID \d+ on node \S+ exited on signal (\d+)".replace(" ", r"\s+")
)
"""Open MPI 5 wraps this sentence at its line width, so any white space may stand between two words."""

_FORK = re.compile(r"cloudtrain: rank (\d+) ended with exit code (-?\d+)$")

_PAIRS = ((_TORCHRUN_RANK, _TORCHRUN_CODE), (_MPIRUN_NAME, _MPIRUN_CODE))


def failed_ranks(lines: Sequence[str]) -> dict[int, int]:
    """Map each failed rank to its exit code, which is negative for a signal. Read the reports of torchrun (2.x), mpirun
    (Open MPI 4 and 5) and cloudtrain's own launcher."""
    found: dict[int, int] = {}
    rank = None
    for line in lines:
        for rank_of, code_of in _PAIRS:
            if match := rank_of.match(line):
                rank = int(match[1])
            elif (match := code_of.match(line)) and rank is not None:
                found[rank], rank = int(match[1]), None
        if match := _FORK.match(line):
            found[int(match[1])] = int(match[2])
    return found | {int(rank): -int(number) for rank, number in _MPIRUN_SIGNAL.findall("\n".join(lines))}
