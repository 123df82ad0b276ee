"""All processes of a job, host by host: launchers and their ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.core.processes import Alike, Process, Processes
from cloudtrain.launch import torchrun
from cloudtrain.runtime.sagemaker_launcher import TRN2_CORES
from cloudtrain.targets.sagemaker.launch.commands import Command, host_command
from cloudtrain.targets.sagemaker.launch.container import Container
from cloudtrain.targets.sagemaker.launch.host_setup import HostSetup
from cloudtrain.targets.sagemaker.launch.hosts import Host, Request, host_groups, hosts, is_entrypoint
from cloudtrain.targets.sagemaker.launch.ranks import mpi_ranks
from cloudtrain.targets.sagemaker.launch.tf_config import mirrors, serves_parameters, task_of
from cloudtrain.targets.sagemaker.launch.variables import LONG, MASTER_PORT, host_environment

if TYPE_CHECKING:
    from cloudtrain.catalogue.instances import InstanceType

Accelerators = Callable[[str], int]
"""Returns an instance type's number of GPUs or Neuron cores; 0 for types without accelerators."""


def view(
    request: Request,
    container: Container,
    accelerators: Accelerators,
    *,
    package: bool = False,
    known: Callable[[str], InstanceType | None] | None = None,
) -> Processes:
    """Return the processes that will run, for `Plan.processes`. `instance` 0 is the host `algo-1`.

    If several hosts start the same processes, only the first of them is computed at once. The others are computed when
    their processes are read.

    Args:
        request: the body of CreateTrainingJob.
        container: the contents of the request's image.
        accelerators: returns the number of accelerators of an instance type.
        known: returns a type's catalogue entry with the user's corrections. Default: without corrections.
        package: whether the bundle's top folder contains a `setup.py`.

    Raises:
        JobError: cloudtrain's own launcher would refuse its hyperparameter.
    """
    if is_entrypoint(request):
        from cloudtrain.targets.sagemaker.launch.own_launcher import launched_processes

        own = {} if known is None else {"known": known}
        return Processes(launched_processes(request, lambda name: devices(name, accelerators), **own))
    if request["AlgorithmSpecification"].get("ContainerEntrypoint"):
        return Processes([_own_entrypoint(request)])
    return Processes(_of_the_toolkit(request, _look(request, container, accelerators, package)))


def commands(
    request: Request, container: Container, accelerators: Accelerators, *, package: bool = False
) -> tuple[tuple[Host, Command], ...]:
    """Return each host with the command that the toolkit starts there, `algo-1` first."""
    look = _look(request, container, accelerators, package)
    return tuple((host, look(host).command) for group in host_groups(request) for host in group)


def devices(instance_type: str, accelerators: Accelerators) -> tuple[int, int]:
    """Return an instance type's number of GPUs and number of logical Neuron cores."""
    if "trn2.48xlarge" in instance_type:
        return 0, TRN2_CORES
    count = accelerators(instance_type)
    return (0, count) if instance_type.startswith(("ml.trn", "ml.inf")) else (count, 0)


class _HostCommand(NamedTuple):
    """One host, and the command that the toolkit starts on this host."""

    setup: HostSetup
    command: Command

    @property
    def host(self) -> Host:
        return self.setup.host

    @property
    def roles(self) -> tuple[str, ...]:
        """Return the roles of the processes that the host starts; empty if the toolkit stops with an error."""
        setup = self.setup
        if self.command.error is not None:
            return ()
        task = self.command.role == "process" and setup.takes_part and (serves_parameters(setup) or mirrors(setup))
        role = task_of(setup)[0] if task else self.command.role
        return (role, "ps") if serves_parameters(setup) else (role,)

    @property
    def env(self) -> dict[str, str]:
        """Return the environment of the process that the host starts, without the variables in `LONG`."""
        env = {**self.setup.given, **host_environment(self.setup, without=LONG), **self.command.env}
        return {name: value for name, value in env.items() if name not in LONG}

    def first(self, *, alone: bool) -> Process:
        """Return the process that the host starts.

        `alone` tells whether all hosts of the job run the script without a launcher. Each script is then one rank.
        """
        role, rank = self.roles[0], None
        if role != self.command.role:  # a task
            rank = self.setup.distribution_hosts.index(self.host.name)
        elif alone:
            rank = self.setup.resource["hosts"].index(self.host.name)
        return Process(self.host.index, role, self.command.argv, self.env, rank, None if rank is None else 0)

    def server(self) -> Process:
        """Return the parameter server of this host as a process.

        The toolkit forks the server and runs no command line. The `argv` of the result only describes the server.
        """
        index = self.setup.resource["hosts"].index(self.host.name)
        argv = ("tf.distribute.Server", "job_name=ps", f"task_index={index}")
        return Process(
            self.host.index, "ps", argv, {key: value for key, value in self.env.items() if key != "TF_CONFIG"}
        )


_Look = Callable[[Host], _HostCommand]


def _look(request: Request, container: Container, accelerators: Accelerators, package: bool) -> _Look:
    @lru_cache(maxsize=8)
    def look(host: Host) -> _HostCommand:
        gpus, neurons = devices(host.instance_type, accelerators)
        setup = HostSetup(request, host, container, gpus=gpus, neurons=neurons, package=package)
        return _HostCommand(setup, host_command(setup))

    return look


def _of_the_toolkit(request: Request, look: _Look) -> Iterator[Alike]:
    """Yield the processes that the toolkit starts on the hosts, then the ranks that torchrun or mpirun starts."""
    groups = host_groups(request)
    runs = [run for group in groups for run in _runs(group, look, several=len(groups) > 1)]
    alone = all(look(run[0]).command.role == "process" for run in runs)
    for run in runs:
        yield from _hosts(run, look, alone)
    indices = {host.name: host.index for host in hosts(request)}
    for group in groups:
        master = look(group[0]).setup.master
        for host in (host for host in group if host.name == master):
            yield from _ranks(look(host), indices)


def _runs(group: Sequence[Host], look: _Look, *, several: bool) -> Iterator[tuple[Host, ...]]:
    """Split an instance group into runs of neighbouring hosts that start the same processes.

    All hosts of a group start the same processes, except the master. But if the job has several groups and parameter
    servers, each host forms its own run, because the toolkit may fail on some hosts.
    """
    first = look(group[0])
    if several and serves_parameters(first.setup):
        yield from ((host,) for host in group)
        return
    other = next((host for host in group if host.name != first.setup.master), None)
    roles = look(other).roles if other else ()
    for _, run in groupby(group, key=lambda host: look(host).roles if host.name == first.setup.master else roles):
        yield tuple(run)


def _hosts(run: Sequence[Host], look: _Look, alone: bool) -> Iterator[Alike]:
    roles, spread = look(run[0]).roles, tuple((host.index, 1) for host in run)
    if roles:
        yield Alike(roles[0], spread, lambda number: look(run[number]).first(alone=alone))
    if roles[1:]:
        yield Alike("ps", spread, lambda number: look(run[number]).server())


def _ranks(started: _HostCommand, indices: Mapping[str, int]) -> Iterator[Alike]:
    """Yield the ranks that torchrun or mpirun starts on all hosts of the distribution.

    `started` is the distribution's master host; `indices` maps host names to host indices.
    """
    setup, made = started.setup, started.command
    where = [indices[name] for name in setup.distribution_hosts]
    if made.role == "mpirun" and setup.processes:
        exports = _worth_showing(made.exports)
        yield mpi_ranks(made.program, where, ranks=made.ranks, slots=setup.processes, exports=exports)
    elif made.role == "torchrun":
        yield torchrun.ranks(
            made.program[2:],
            python=setup.container.python,
            instance_count=len(where),
            processes_per_instance=setup.processes,
            where=where,
            env={"MASTER_ADDR": setup.master, "MASTER_PORT": MASTER_PORT} if len(where) > 1 else {},
        )


def _worth_showing(exports: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in exports.items() if name != "LD_PRELOAD"}


def _own_entrypoint(request: Request) -> Alike:
    """Return one process for each host: the program that replaces the image's entry point.

    The child processes of this program are unknown.
    """
    algorithm = request["AlgorithmSpecification"]
    argv = (*algorithm["ContainerEntrypoint"], *(algorithm.get("ContainerArguments") or ()))
    numbered = sorted(enumerate(hosts(request)), key=lambda item: item[1].index)
    env = dict(request.get("Environment") or {})

    def process(number: int) -> Process:
        place, host = numbered[number]
        return Process(host.index, "process", argv, env, place, 0)

    return Alike("process", tuple((host.index, 1) for _, host in numbered), process)
