"""The processes of jobs that start cloudtrain's launcher, computed with the launcher's own functions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from cloudtrain.catalogue.instances import InstanceType, instance_named
from cloudtrain.core.processes import Alike, Process
from cloudtrain.errors import JobError, Problem
from cloudtrain.launch import torchrun
from cloudtrain.runtime.errors import SetupError
from cloudtrain.runtime.mpi_options import mpirun_options
from cloudtrain.runtime.sagemaker_launcher.arguments import decode_hyperparameters
from cloudtrain.runtime.sagemaker_launcher.machine import Machine
from cloudtrain.runtime.sagemaker_launcher.plan import LaunchPlan, Program, launch_plan
from cloudtrain.runtime.sagemaker_launcher.spec import Launch, read_launch
from cloudtrain.targets.sagemaker.launch.hosts import (
    Host,
    Request,
    host_groups,
    hosts,
    hyperparameters_file,
    input_data_config,
)
from cloudtrain.targets.sagemaker.launch.hosts import resource_config as resource_config_of
from cloudtrain.targets.sagemaker.launch.ranks import mpi_ranks
from cloudtrain.targets.sagemaker.launch.variables import LONG

Devices = Callable[[str], tuple[int, int]]
"""Returns an instance type's numbers of GPUs and Neuron cores."""

Known = Callable[[str], InstanceType | None]
"""Returns an instance type's catalogue entry with the user's corrections."""


def _in_the_catalogue(name: str) -> InstanceType | None:
    return instance_named("sagemaker", name)


@dataclass(frozen=True)
class PlannedHost:
    """One host, and the launcher's plan for this host."""

    host: Host
    plan: LaunchPlan
    given: dict[str, str]

    def process(self, program: Program, rank: int | None) -> Process:
        """Return a program of the plan as a process with its environment."""
        env = {**self.given, **self.plan.environment, **program.env}
        env = {name: value for name, value in env.items() if name not in LONG}
        return Process(self.host.index, program.role, program.argv, env, rank, None if rank is None else 0)


def launched_processes(request: Request, devices: Devices, known: Known = _in_the_catalogue) -> Iterator[Alike]:
    """Yield all processes of the job: first the processes that the hosts start, then the ranks of their launchers.

    If several hosts start the same processes, only the processes of the first host are computed immediately. Those of
    the other hosts are computed when they are read.

    Args:
        request: the body of CreateTrainingJob.
        devices: returns an instance type's numbers of GPUs and Neuron cores.
        known: returns an instance type's catalogue entry. Default: without the user's corrections.

    Raises:
        JobError: the launcher would stop with an error. The message is the launcher's.
    """
    launch, everyone = _launch(request), hosts(request)
    number = {host.name: place for place, host in enumerate(everyone)}

    @lru_cache(maxsize=8)
    def look(host: Host) -> PlannedHost:
        return _plan_host(request, host, devices, known(host.instance_type))

    def programs(run: Sequence[Host], place: int) -> Alike:
        def process(n: int) -> Process:
            program = look(run[n]).plan.programs[place]
            return look(run[n]).process(program, _rank(launch, program, number[run[n].name]))

        return Alike(look(run[0]).plan.programs[place].role, tuple((host.index, 1) for host in run), process)

    groups = host_groups(request)
    by_name = {host.name: host for host in everyone}
    for run in (run for group in groups for run in _runs(group, look, by_name)):
        for place in range(len(look(run[0]).plan.programs)):
            yield programs(run, place)
    yield from _ranks(launch, [look(group[0]) for group in groups], {host.name: host.index for host in everyone})


def _runs(
    group: tuple[Host, ...], look: Callable[[Host], PlannedHost], by_name: Mapping[str, Host]
) -> Iterator[tuple[Host, ...]]:
    """Split an instance group into runs of neighbouring hosts that start the same programs.

    The run is usually the whole group. In TensorFlow jobs, hosts differ in the roles of their tasks. `look` returns
    the plan of a host, and `by_name` maps names to hosts.
    """
    master = by_name[look(group[0]).plan.hosts[0]]
    config = next((program.env.get("TF_CONFIG") for program in look(master).plan.programs), None)
    if config is None:
        yield group
        return
    tasks: dict[str, list[str]] = {}
    for role, addresses in json.loads(config)["cluster"].items():
        for address in addresses:
            tasks.setdefault(address.partition(":")[0], []).append(role)
    for _, run in groupby(group, key=lambda host: tasks.get(host.name)):
        yield tuple(run)


def _launch(request: Request) -> Launch:
    try:
        return read_launch(decode_hyperparameters(hyperparameters_file(request)))
    except SetupError as error:
        raise _problem(error) from None


def _plan_host(request: Request, host: Host, devices: Devices, known: InstanceType | None) -> PlannedHost:
    gpus, neurons = devices(host.instance_type)
    given = dict(request.get("Environment") or {})
    variables = {"TRAINING_JOB_NAME": request["TrainingJobName"], **given}
    efa = bool(known and known.interfaces)
    machine = Machine(gpus=gpus, neurons=neurons, cpus=known.vcpus if known else 1, efa=efa, variables=variables)
    files = hyperparameters_file(request), resource_config_of(request, host), input_data_config(request)
    try:
        return PlannedHost(host, launch_plan(*files, machine), given)
    except SetupError as error:
        raise _problem(error) from None
    except ValueError as error:  # from shlex, for mpirun options in the overrides
        message = f"the launcher cannot read its options for mpirun: {error}"
        raise JobError([Problem(_WRITTEN, message, "close the quotes", code="CT018")]) from None


def _problem(error: SetupError) -> JobError:
    return JobError([Problem(_WRITTEN, error.message, error.hint, code="CT039")])


_WRITTEN = ("sagemaker_overrides", "HyperParameters")
"""The path of values that the launcher cannot read. Only overrides can contain them, because job fields are checked."""


def _rank(launch: Launch, program: Program, number: int) -> int | None:
    """Return the rank of a program; None if the program is not a rank.

    `number` is the host's position in the order of host names. A script that runs without a launcher has this rank. In
    a TensorFlow job, the chief comes before the workers.
    """
    if launch.launcher == "single":
        return number
    if program.role not in ("chief", "worker"):
        return None
    config = json.loads(program.env["TF_CONFIG"])
    index: int = config["task"]["index"]
    return index + 1 if program.role == "worker" and "chief" in config["cluster"] else index


def _ranks(launch: Launch, found: list[PlannedHost], indices: Mapping[str, int]) -> Iterator[Alike]:
    """Yield the ranks that torchrun or mpirun starts, once for each set of hosts that train together.

    `found` contains the first host of each instance group; `indices` maps host names to host indices.
    """
    done: set[tuple[str, ...]] = set()
    for started in found:
        program, hosts_of = next(iter(started.plan.programs), None), started.plan.hosts
        if program is None or program.role not in ("torchrun", "mpirun") or hosts_of in done:
            continue
        done.add(hosts_of)
        count = started.plan.processes_per_instance
        where = [indices[name] for name in hosts_of]
        if program.role == "mpirun":
            options = mpirun_options(count, launch.mpi_options)
            yield mpi_ranks(program.argv[1 + len(options) :], where, ranks=count, slots=count)
            continue
        yield torchrun.ranks(
            _torch_program(program),
            python=started.plan.python,
            instance_count=len(where),
            processes_per_instance=count,
            where=where,
            env={name: started.plan.environment[name] for name in ("MASTER_ADDR", "MASTER_PORT")},
        )


def _torch_program(program: Program) -> tuple[str, ...]:
    """Return the program and its arguments: the last part of torchrun's argv."""
    rest = program.argv[program.argv.index("--master_port") + 2 :]
    return rest[1:] if rest[0] == "--no_python" else rest
