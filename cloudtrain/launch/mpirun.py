"""mpirun: the command line, and the ranks that it starts. Written for Open MPI 4 and 5.

Each rank sends its own output to files. mpirun's --tag-output would mark every piece that a rank happens to write, not
every line, so that the lines of several ranks come out mixed (seen with Open MPI 4.1 and an unbuffered Python).

On SIGTERM mpirun gives its ranks one second and then kills them, and the setting for that second also delays the
SIGTERM; whoever stops a job has to send SIGTERM to the ranks, after which mpirun ends by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import split

from cloudtrain.plans import Process

_REDIRECT = 'exec "$@" >"$0/rank_$OMPI_COMM_WORLD_RANK.stdout.log" 2>"$0/rank_$OMPI_COMM_WORLD_RANK.stderr.log"'
"""For `sh -c`: runs a program with its output in files of the folder that comes first."""


def mpirun_argv(program: Sequence[str], *, mpirun: str, processes: int, options: str, log_dir: str) -> list[str]:
    """The argv that starts `processes` ranks on this machine, each with its output in files below `log_dir`."""
    return [
        mpirun,
        "--allow-run-as-root",
        "--oversubscribe",
        "--bind-to", "none",
        "-np", str(processes),
        *split(options),
        "sh", "-c", _REDIRECT, log_dir,
        *program,
    ]  # fmt: skip


def ranks(program: Sequence[str], *, processes: int) -> list[Process]:
    """The ranks, with the variables that Open MPI gives each."""
    return [
        Process(
            instance=0,
            role="rank",
            rank=rank,
            local_rank=rank,
            argv=tuple(program),
            env={
                "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
                "OMPI_COMM_WORLD_LOCAL_SIZE": str(processes),
                "OMPI_COMM_WORLD_RANK": str(rank),
                "OMPI_COMM_WORLD_SIZE": str(processes),
            },
        )
        for rank in range(processes)
    ]
