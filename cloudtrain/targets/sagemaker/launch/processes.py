"""All processes of a job, host by host: launchers and their ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.errors import JobError, Problem
from cloudtrain.machines.table import InstanceType
from cloudtrain.plans.processes import Alike, Process, Processes
from cloudtrain.runtime.errors import SetupError
from cloudtrain.runtime.mpi_options import mpirun_options
from cloudtrain.runtime.sagemaker_launcher import TRN2_CORES
from cloudtrain.runtime.sagemaker_launcher.arguments import decode_hyperparameters
from cloudtrain.targets.common import launchers
from cloudtrain.targets.sagemaker.catalogue.images import ImageContents
from cloudtrain.targets.sagemaker.launch.commands import ToolkitCommand, command
from cloudtrain.targets.sagemaker.launch.container import (
    LONG,
    MASTER_PORT,
    HostSetup,
    environment,
    task_of,
)
from cloudtrain.targets.sagemaker.request import (
    PARAMETER_SERVER,
    Host,
    Request,
    host_groups,
    hosts,
    hyperparameters_file,
    input_data_config,
    is_entrypoint,
    only,
    resource_config,
)

if TYPE_CHECKING:
    from cloudtrain.runtime.sagemaker_launcher.machine import HostMachine
    from cloudtrain.runtime.sagemaker_launcher.plan import HostProgram, LaunchPlan, LaunchSpec

EntryOf = Callable[[str], InstanceType | None]
"""Returns an instance type's catalogue entry with the user's corrections."""

Accelerators = Callable[[str], int]
"""Returns an instance type's number of GPUs or Neuron cores; 0 for types without accelerators."""


def view(
    request: Request,
    container: ImageContents,
    accelerators: Accelerators,
    *,
    entry_of: EntryOf,
    package: bool = False,
) -> Processes:
    """Return the processes that will run, for `Plan.processes`. `instance` 0 is the host `algo-1`.

    If several hosts start the same processes, only the first of them is computed at once. The
    others are computed when their processes are read.

    `package`: whether the bundle's top folder contains a `setup.py`.
    """
    if is_entrypoint(request):
        return Processes(_of_our_launcher(request, accelerators, entry_of))
    if request["AlgorithmSpecification"].get("ContainerEntrypoint"):
        return Processes([_own_entrypoint(request)])

    @lru_cache(maxsize=8)  # the processes of one host are often read one after the other
    def look(host: Host) -> _HostCommand:
        gpus, neurons = devices(host.instance_type, accelerators)
        setup = HostSetup(request, host, container, gpus=gpus, neurons=neurons, package=package)
        return _HostCommand(setup, command(setup))

    return Processes(_of_the_toolkit(request, look))


def devices(instance_type: str, accelerators: Accelerators) -> tuple[int, int]:
    """Return an instance type's number of GPUs and number of logical Neuron cores."""
    if "trn2.48xlarge" in instance_type:
        return 0, TRN2_CORES
    count = accelerators(instance_type)
    return (0, count) if instance_type.startswith(("ml.trn", "ml.inf")) else (count, 0)


def _of_hosts(
    run: Sequence[Host], roles: Iterable[str], process: Callable[[Host, int], Process]
) -> Iterator[Alike]:
    """Yield the processes that the hosts of a run start: one of each role on every host. `process`
    returns the n-th process of a host."""

    def on_each(place: int) -> Callable[[int], Process]:
        return lambda number: process(run[number], place)

    for place, role in enumerate(roles):
        yield Alike(role, _one_on_each(run), on_each(place))


def _one_on_each(run: Iterable[Host]) -> tuple[tuple[int, int], ...]:
    """Return the `Alike.spread` of one process on each host."""
    return tuple((host.index, 1) for host in run)


def _process(
    host: Host, role: str, argv: tuple[str, ...], env: dict[str, str], rank: int | None
) -> Process:
    """Return a process that a host starts, without the variables in `LONG`."""
    for name in LONG:
        env.pop(name, None)
    local_rank = None if rank is None else 0
    return Process(host.index, role, argv, env, rank, local_rank)


class _HostCommand(NamedTuple):
    """One host, and the command that the toolkit starts on this host."""

    setup: HostSetup
    command: ToolkitCommand

    @property
    def roles(self) -> tuple[str, ...]:
        """Return the roles of the processes that the host starts; empty if the toolkit stops with
        an error."""
        if self.command.error is not None:
            return ()
        role = self.command.role
        task = task_of(self.setup)
        if role == "process" and task is not None:
            role = task[0]
        return (role, "ps") if self.setup.key == PARAMETER_SERVER else (role,)

    def process(self, place: int, *, alone: bool) -> Process:
        """Return a process that the host starts: its command, or behind it the parameter server.

        `alone` tells whether all hosts of the job run the script without a launcher. Each script is
        then one rank. The toolkit forks the server and runs no command line: its `argv` only
        describes it.
        """
        setup = self.setup
        host = setup.host
        role = self.roles[place]
        number: int = setup.resource["hosts"].index(host.name)
        env = {**setup.given, **environment(setup, without=LONG), **self.command.env}
        if place == 1:
            env.pop("TF_CONFIG", None)
            argv = ("tf.distribute.Server", "job_name=ps", f"task_index={number}")
            return _process(host, role, argv, env, None)

        rank: int | None = None
        if role != self.command.role:  # a task
            rank = setup.distribution_hosts.index(host.name)
        elif alone:
            rank = number
        return _process(host, role, self.command.argv, env, rank)


_Look = Callable[[Host], _HostCommand]


def _of_the_toolkit(request: Request, look: _Look) -> Iterator[Alike]:
    """Yield the processes that the toolkit starts on the hosts, then the ranks that torchrun or
    mpirun starts."""
    groups = host_groups(request)
    runs: list[tuple[Host, ...]] = []
    for group in groups:
        runs += _runs(group, look, several=len(groups) > 1)
    alone = all(look(run[0]).command.role == "process" for run in runs)

    def process(host: Host, place: int) -> Process:
        return look(host).process(place, alone=alone)

    for run in runs:
        yield from _of_hosts(run, look(run[0]).roles, process)

    by_name = _by_name(hosts(request))
    for group in groups:
        master = by_name[look(group[0]).setup.master]
        if master in group:
            yield from _ranks(look(master), by_name)


def _by_name(all_hosts: Iterable[Host]) -> dict[str, Host]:
    return {host.name: host for host in all_hosts}


def _runs(group: Sequence[Host], look: _Look, *, several: bool) -> Iterator[tuple[Host, ...]]:
    """Split an instance group into runs of neighbouring hosts that start the same processes.

    All hosts of a group start the same processes, except the master. But if the job has several
    groups and parameter servers, each host forms its own run, because the toolkit may fail on some
    hosts.
    """
    setup = look(group[0]).setup
    if several and setup.key == PARAMETER_SERVER:
        for host in group:
            yield (host,)
        return

    master = setup.master
    others = [host for host in group if host.name != master]
    roles_of_others = look(others[0]).roles if others else ()

    def roles_of(host: Host) -> tuple[str, ...]:
        return look(host).roles if host.name == master else roles_of_others

    for _, run in groupby(group, key=roles_of):
        yield tuple(run)


def _ranks(host: _HostCommand, by_name: Mapping[str, Host]) -> Iterator[Alike]:
    """Yield the ranks that torchrun or mpirun starts, from the distribution's master host."""
    setup = host.setup
    command = host.command
    where = [by_name[name].index for name in setup.distribution_hosts]
    if command.role == "mpirun" and setup.processes:
        exports = dict(command.exports)
        exports.pop("LD_PRELOAD", None)
        yield launchers.mpirun_ranks(
            command.program,
            processes=command.ranks,
            where=where,
            slots=setup.processes,
            exports=exports,
            copies=command.copies,
        )
    elif command.role == "torchrun":
        env: dict[str, str] = {}
        if len(where) > 1:
            env = {"MASTER_ADDR": setup.master, "MASTER_PORT": MASTER_PORT}
        yield launchers.torchrun_ranks(
            command.program[2:],
            python=setup.container.python,
            instance_count=len(where),
            processes_per_instance=setup.processes,
            where=where,
            env=env,
        )


def _own_entrypoint(request: Request) -> Alike:
    """Return one process for each host: the program that replaces the image's entry point, without
    its children."""
    algorithm = request["AlgorithmSpecification"]
    arguments = algorithm.get("ContainerArguments") or ()
    argv = (*algorithm["ContainerEntrypoint"], *arguments)
    env = dict(request.get("Environment") or {})
    rank_of = {host: rank for rank, host in enumerate(hosts(request))}
    in_order = sorted(rank_of, key=lambda host: host.index)

    def process(number: int) -> Process:
        host = in_order[number]
        return Process(host.index, "process", argv, env, rank_of[host], 0)

    return Alike("process", _one_on_each(in_order), process)


# The processes of jobs that start cloudtrain's launcher, computed with the launcher's own
# functions.


def _of_our_launcher(
    request: Request, accelerators: Accelerators, entry_of: EntryOf
) -> Iterator[Alike]:
    """Yield all processes of the job: first the processes that the hosts start, then the ranks of
    their launchers. Raises a `JobError` for values that the launcher cannot read.

    The processes of hosts like the first one of their kind are computed when they are read.
    """
    # the toolkit's jobs have no launcher of ours
    from cloudtrain.runtime.sagemaker_launcher.machine import HostMachine
    from cloudtrain.runtime.sagemaker_launcher.plan import read_launch

    try:
        launch = read_launch(decode_hyperparameters(hyperparameters_file(request)))
    except SetupError as error:
        raise _problem(error) from None
    given = dict(request.get("Environment") or {})
    by_name = _by_name(hosts(request))
    numbers = {name: number for number, name in enumerate(by_name)}

    @lru_cache(maxsize=8)
    def look(host: Host) -> LaunchPlan:
        gpus, neurons = devices(host.instance_type, accelerators)
        entry = entry_of(host.instance_type)
        machine = HostMachine(
            gpus=gpus,
            neurons=neurons,
            cpus=entry.vcpus if entry else 1,
            efa=bool(entry and entry.interfaces),
            variables={"TRAINING_JOB_NAME": request["TrainingJobName"], **given},
        )
        return _plan_of(request, host, machine)

    def process(host: Host, place: int) -> Process:
        plan = look(host)
        program = plan.programs[place]
        env = {**given, **plan.environment, **program.env}
        rank = _rank(launch, program, numbers[host.name])
        return _process(host, program.role, program.argv, env, rank)

    groups = host_groups(request)
    for group in groups:
        for run in _own_launcher_runs(group, look, by_name):
            roles = [program.role for program in look(run[0]).programs]
            yield from _of_hosts(run, roles, process)

    firsts = [look(group[0]) for group in groups]
    yield from _own_launcher_ranks(launch, firsts, by_name)


def _own_launcher_runs(
    group: tuple[Host, ...], look: Callable[[Host], LaunchPlan], by_name: Mapping[str, Host]
) -> Iterator[tuple[Host, ...]]:
    """Split an instance group into runs of neighbouring hosts that start the same programs.

    The run is usually the whole group. In TensorFlow jobs, hosts differ in the roles of their
    tasks.
    """
    master = by_name[look(group[0]).hosts[0]]
    programs = look(master).programs
    config = programs[0].env.get("TF_CONFIG") if programs else None
    if config is None:
        yield group
        return

    roles: dict[str, list[str]] = {}
    for role, addresses in json.loads(config)["cluster"].items():
        for address in addresses:
            host_name = address.partition(":")[0]
            roles.setdefault(host_name, []).append(role)
    for _, run in groupby(group, key=lambda host: roles.get(host.name)):
        yield tuple(run)


def _plan_of(request: Request, host: Host, machine: HostMachine) -> LaunchPlan:
    """Return what cloudtrain's launcher would start on a host. Raises a `JobError`."""
    from cloudtrain.runtime.sagemaker_launcher.plan import launch_plan

    hyperparameters = hyperparameters_file(request)
    try:
        return launch_plan(
            hyperparameters, resource_config(request, host), input_data_config(request), machine
        )
    except SetupError as error:
        raise _problem(error) from None
    except ValueError as error:  # from shlex, for mpirun options in the overrides
        message = f"the launcher cannot read its options for mpirun: {error}"
        raise JobError([Problem(_WRITTEN, message, "close the quotes", code="CT018")]) from None


def _problem(error: SetupError) -> JobError:
    return JobError([Problem(_WRITTEN, error.message, error.hint, code="CT039")])


_WRITTEN = ("sagemaker_overrides", "HyperParameters")
"""The path of values that the launcher cannot read. Only overrides can contain them, because job
fields are checked."""


def _rank(launch: LaunchSpec, program: HostProgram, number: int) -> int | None:
    """Return the rank of a program; None if the program is not a rank.

    `number` is the host's position in the order of host names. A script that runs without a
    launcher has this rank. In a TensorFlow job, the chief comes before the workers.
    """
    if launch.launcher == "single":
        return number
    if program.role not in ("chief", "worker"):
        return None
    config = json.loads(program.env["TF_CONFIG"])
    index: int = config["task"]["index"]
    if program.role == "worker" and "chief" in config["cluster"]:
        return index + 1
    return index


def _own_launcher_ranks(
    launch: LaunchSpec, firsts: list[LaunchPlan], by_name: Mapping[str, Host]
) -> Iterator[Alike]:
    """Yield the ranks that torchrun or mpirun starts, once for each set of hosts that train
    together."""
    host_sets: set[tuple[str, ...]] = set()
    for plan in firsts:
        if not plan.programs or plan.hosts in host_sets:
            continue
        program = plan.programs[0]
        if program.role not in ("torchrun", "mpirun"):
            continue
        host_sets.add(plan.hosts)

        count = plan.processes_per_instance
        where = [by_name[name].index for name in plan.hosts]
        if program.role == "mpirun":
            options = mpirun_options(count, launch.mpi_options)
            # what stands behind `mpirun` and its options
            ranked = program.argv[1 + len(options) :]
            yield launchers.mpirun_ranks(ranked, processes=count, where=where)
            continue
        yield launchers.torchrun_ranks(
            script_of(program),
            python=plan.python,
            instance_count=len(where),
            processes_per_instance=count,
            where=where,
            env=only(plan.environment, ("MASTER_ADDR", "MASTER_PORT")),
        )


def script_of(program: HostProgram) -> tuple[str, ...]:
    """Return the script and its arguments: the last part of torchrun's argv."""
    port = program.argv.index("--master_port") + 1
    rest = program.argv[port + 1 :]
    return rest[1:] if rest[0] == "--no_python" else rest
