"""The launchers torchrun and mpirun, and TensorFlow's tasks: what the plans of several targets have
in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.job.distribution import TensorFlow
from cloudtrain.plans.processes import Alike, Process
from cloudtrain.runtime.torchrun_words import is_python
from cloudtrain.system.plugins import pip_line

if TYPE_CHECKING:
    from cloudtrain.job.training import TrainingJob


def direct_argv(program: Sequence[str], python: str) -> list[str]:
    """Return the command line that starts a program without a launcher."""
    interpreter = [python, "-u"] if is_python(program[0]) else []
    return [*interpreter, *program]


# Variables that keep the libraries of a local run's ranks from listening on the network.

OPEN_MPI = {"OMPI_MCA_btl": "^tcp"}
"""For ranks of mpirun, which communicate through shared memory. With TCP they would listen on every
interface, whatever `btl_tcp_if_include` says (seen with Open MPI 4.1 and 5.0)."""


def loopback_variables(interface: str) -> dict[str, str]:
    """Return the variables that make gloo, NCCL and torch's RPC (TensorPipe) use the network
    interface `interface`."""
    return {
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
        "TP_SOCKET_IFNAME": interface,
    }


# The launcher `mpirun`: its command line, and the ranks that it starts. Supports Open MPI 4 and 5.
#
# Each rank writes its output to its own files. mpirun's --tag-output would mark every write instead
# of every line, so lines of several ranks would be mixed (seen with Open MPI 4.1 and an unbuffered
# Python).
#
# On SIGTERM, mpirun kills its ranks after one second (Open MPI 4) or a fifth of a second (Open MPI
# 5). The setting for a longer time also delays the SIGTERM to the ranks. So cloudtrain stops a job
# by sending SIGTERM to the ranks, and mpirun then ends by itself.


def install_mpirun() -> str:
    """Return the hint for machines without mpirun."""
    commands = (
        "`apt install openmpi-bin`, `brew install open-mpi`, `conda install -c conda-forge openmpi`"
    )
    return f"`{pip_line('mpi')}`, or install Open MPI: {commands}"


_REDIRECT = (
    'exec "$@" >"$0/rank_$OMPI_COMM_WORLD_RANK.stdout.log" '
    '2>"$0/rank_$OMPI_COMM_WORLD_RANK.stderr.log"'
)
"""For `sh -c`: runs a program with its output in files of a folder, which is the first argument."""


def redirected(program: Sequence[str], log_dir: str) -> list[str]:
    """Return the command line of a rank that writes to `rank_N.stdout.log` and `rank_N.stderr.log`
    in `log_dir`."""
    return ["sh", "-c", _REDIRECT, log_dir, *program]


def mpirun_ranks(
    program: Sequence[str],
    *,
    processes: int,
    where: Sequence[int] = (0,),
    slots: int | None = None,
    exports: Mapping[str, str] = {},
    copies: Mapping[str, str] = {},
) -> Alike:
    """Return mpirun's ranks. They fill the slots of one instance after the other; surplus ranks go
    to the last one.

    User options that change mpirun's mapping are not considered.

    Args:
        processes: number of ranks.
        where: the instances.
        slots: number of slots of each instance. Default: all ranks fit on one.
        exports: additional variables for all ranks.
        copies: additional variables of each rank, each with mpirun's variable of the same value.
    """
    size = slots or processes
    # positions in `where`: the last instance with ranks gets the rest of them
    last = min((processes - 1) // size, len(where) - 1) if processes else 0
    rest = processes - last * size

    def rank(number: int) -> Process:
        place = min(number // size, last)
        local_rank = number - place * size
        local_size = rest if place == len(where) - 1 else size
        variables = {
            **exports,
            "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size),
            "OMPI_COMM_WORLD_RANK": str(number),
            "OMPI_COMM_WORLD_SIZE": str(processes),
        }
        for name, original in copies.items():
            variables[name] = variables[original]
        return Process(where[place], "rank", tuple(program), variables, number, local_rank)

    counts = [(where[place], size) for place in range(last)]
    if rest:
        counts.append((where[last], rest))
    return Alike("rank", tuple(counts), rank)


class Tasks(NamedTuple):
    """The numbers of workers and parameter servers of a TensorFlow job. The chief counts as a
    worker."""

    workers: int
    servers: int

    @classmethod
    def of(cls, workers: int, servers: int) -> Tasks:
        """With parameter servers the chief only coordinates, so there are at least two workers:
        another one must train."""
        return cls(max(workers, 2) if servers else workers, servers)


def requested_tasks(job: TrainingJob) -> Tasks:
    """Return the tasks that a TensorFlow job asks for. Default: one worker per instance."""
    distribution = job.distribution
    assert isinstance(distribution, TensorFlow)
    servers = 0
    if distribution.strategy == "parameter_server":
        servers = distribution.parameter_servers or 1
    return Tasks.of(distribution.workers or job.resources.instance_count, servers)


def tasks(workers: int, parameter_servers: int) -> list[tuple[str, int]]:
    """Return the type and index of each task of tf.distribute in rank order: all workers; or if
    there are parameter servers, the chief, the other workers and the servers."""
    if not parameter_servers:
        return _numbered("worker", workers)
    servers = _numbered("ps", parameter_servers)
    return [("chief", 0), *_numbered("worker", workers - 1), *servers]


def _numbered(kind: str, count: int) -> list[tuple[str, int]]:
    return [(kind, index) for index in range(count)]


def torchrun_ranks(
    program: Sequence[str],
    *,
    python: str,
    instance_count: int,
    processes_per_instance: int,
    where: Sequence[int] | None = None,
    env: Mapping[str, str] = {},
) -> Alike:
    """Return the processes that the agents start, with the variables that a script can rely on.

    `program`: the script and its arguments, or any other command. `where`: the instance of each
    agent; by default agent N is on instance N.
    """
    argv = tuple(direct_argv(program, python))
    places = range(instance_count) if where is None else where
    world_size = instance_count * processes_per_instance

    def rank(number: int) -> Process:
        agent, local_rank = divmod(number, processes_per_instance)
        variables = {
            "GROUP_RANK": str(agent),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(processes_per_instance),
            "RANK": str(number),
            "WORLD_SIZE": str(world_size),
            **env,
        }
        return Process(places[agent], "rank", argv, variables, number, local_rank)

    return Alike("rank", tuple((place, processes_per_instance) for place in places), rank)
