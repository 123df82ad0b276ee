"""mpirun: the command line, and the ranks that it starts. Written for Open MPI 4 and 5."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import split

from cloudtrain.plans import Process


def mpirun_argv(program: Sequence[str], *, mpirun: str, processes: int, options: str) -> list[str]:
    """The argv that starts `processes` ranks on this machine, each line of output tagged with its rank."""
    return [
        mpirun,
        "--allow-run-as-root",
        "--oversubscribe",
        "--tag-output",
        "--bind-to", "none",
        "-np", str(processes),
        *split(options),
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
