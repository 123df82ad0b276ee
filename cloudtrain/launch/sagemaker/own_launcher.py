"""Jobs in entrypoint mode: what cloudtrain's own launcher starts, from the launcher's own plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from shlex import split

from cloudtrain.catalogue.instances import InstanceType, instance_named
from cloudtrain.errors import JobError, Problem
from cloudtrain.launch import torchrun
from cloudtrain.launch.sagemaker.hosts import Host, Request, hosts, hyperparameters_file, input_data_config
from cloudtrain.launch.sagemaker.hosts import resource_config as resource_config_of
from cloudtrain.launch.sagemaker.ranks import mpi_ranks, on_hosts
from cloudtrain.plans import Process
from cloudtrain.runtime.errors import SetupError
from cloudtrain.runtime.sagemaker_launcher.arguments import decoded
from cloudtrain.runtime.sagemaker_launcher.machine import Machine
from cloudtrain.runtime.sagemaker_launcher.plan import LaunchPlan, Program, launch_plan
from cloudtrain.runtime.sagemaker_launcher.spec import Launch, read_launch

Devices = Callable[[str], tuple[int, int]]
"""Instance type to its GPUs and Neuron cores."""

Known = Callable[[str], InstanceType | None]
"""Instance type to its row in the catalogue, with the user's own corrections."""


def _in_the_catalogue(name: str) -> InstanceType | None:
    return instance_named("sagemaker", name)


@dataclass(frozen=True)
class Started:
    """One host with its plan."""

    host: Host
    plan: LaunchPlan
    given: dict[str, str]

    def process(self, program: Program, rank: int | None) -> Process:
        """A program of the plan, with the whole environment that it finds."""
        env = {**self.given, **self.plan.environment, **program.env}
        return Process(self.host.index, program.role, program.argv, env, rank, None if rank is None else 0)


def launched(request: Request, devices: Devices, known: Known = _in_the_catalogue) -> tuple[Process, ...]:
    """All processes of the job: those that each host starts, then the ranks of its launchers.

    Raises:
        JobError: the launcher would stop, with its own words.
    """
    launch = _launch(request)
    found = [
        _started(request, host, devices, known(host.instance_type))
        for host in sorted(hosts(request), key=lambda host: host.index)
    ]
    number = {host.name: place for place, host in enumerate(hosts(request))}
    first = [
        started.process(program, _rank(launch, program, number[started.host.name]))
        for started in found
        for program in started.plan.programs
    ]
    return (*first, *_ranks(launch, found))


def _launch(request: Request) -> Launch:
    try:
        return read_launch(decoded(hyperparameters_file(request)))
    except SetupError as error:
        raise _problem(error) from None


def _started(request: Request, host: Host, devices: Devices, known: InstanceType | None) -> Started:
    gpus, neurons = devices(host.instance_type)
    given = dict(request.get("Environment") or {})
    variables = {"TRAINING_JOB_NAME": request["TrainingJobName"], **given}
    efa = bool(known and known.interfaces)
    machine = Machine(gpus=gpus, neurons=neurons, cpus=known.vcpus if known else 1, efa=efa, variables=variables)
    files = hyperparameters_file(request), resource_config_of(request, host), input_data_config(request)
    try:
        return Started(host, launch_plan(*files, machine), given)
    except SetupError as error:
        raise _problem(error) from None


def _problem(error: SetupError) -> JobError:
    return JobError([Problem((), error.message, error.hint)])


def _rank(launch: Launch, program: Program, number: int) -> int | None:
    """Of a script alone its host's number, of a task of TensorFlow its own, the chief first; None where it is none."""
    if launch.launcher == "single":
        return number
    if program.role not in ("chief", "worker"):
        return None
    config = json.loads(program.env["TF_CONFIG"])
    index: int = config["task"]["index"]
    return index + 1 if program.role == "worker" and "chief" in config["cluster"] else index


def _ranks(launch: Launch, found: list[Started]) -> Iterator[Process]:
    """The ranks of every launcher, once for each set of hosts that work together."""
    indices = {started.host.name: started.host.index for started in found}
    done: set[tuple[str, ...]] = set()
    for started in found:
        program, hosts_of = next(iter(started.plan.programs), None), started.plan.hosts
        if program is None or program.role not in ("torchrun", "mpirun") or hosts_of in done:
            continue
        done.add(hosts_of)
        count = started.plan.processes_per_instance
        where = [indices[name] for name in hosts_of]
        if program.role == "mpirun":
            yield from mpi_ranks(_mpi_program(program, launch), where, ranks=count, slots=count)
            continue
        ranks = torchrun.ranks(
            _torch_program(program),
            python=started.plan.python,
            instance_count=len(where),
            processes_per_instance=count,
        )
        meeting = {name: started.plan.environment[name] for name in ("MASTER_ADDR", "MASTER_PORT")}
        yield from on_hosts([replace(rank, env=rank.env | meeting) for rank in ranks], where)


def _torch_program(program: Program) -> tuple[str, ...]:
    """What torchrun's argv ends with."""
    rest = program.argv[program.argv.index("--master_port") + 2 :]
    return rest[1:] if rest[0] == "--no_python" else rest


def _mpi_program(program: Program, launch: Launch) -> tuple[str, ...]:
    """What mpirun's argv ends with: behind the number of ranks come the user's options."""
    return program.argv[program.argv.index("-np") + 2 + len(split(launch.mpi_options)) :]
