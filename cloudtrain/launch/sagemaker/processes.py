"""Every process of a job, host by host: the launchers, and the ranks that they start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudtrain.launch import torchrun
from cloudtrain.launch.sagemaker.commands import Command, site_command
from cloudtrain.launch.sagemaker.container import Container
from cloudtrain.launch.sagemaker.hosts import Host, Request, hosts, is_entrypoint
from cloudtrain.launch.sagemaker.ranks import mpi_ranks, on_hosts
from cloudtrain.launch.sagemaker.site import Site
from cloudtrain.launch.sagemaker.tf_config import mirrors, serves_parameters, task_of
from cloudtrain.launch.sagemaker.variables import MASTER_PORT, site_environment
from cloudtrain.plans import Process
from cloudtrain.runtime.sagemaker_launcher import TRN2_CORES

if TYPE_CHECKING:
    from cloudtrain.catalogue.instances import InstanceType

Accelerators = Callable[[str], int]
"""Instance type to its GPUs, or to its Neuron cores where it has those; 0 for neither."""

LONG = ("SM_TRAINING_ENV", "SM_RESOURCE_CONFIG", "SM_NUM_CPUS")
"""Left out of a plan's processes: kilobytes for each host that repeat what the other variables say, and the number of
CPUs, which the request does not tell."""


def view(
    request: Request,
    container: Container,
    accelerators: Accelerators,
    *,
    package: bool = False,
    known: Callable[[str], InstanceType | None] | None = None,
) -> tuple[Process, ...]:
    """What will run, for `Plan.processes`. `instance` 0 is the host `algo-1`.

    Args:
        request: the body of CreateTrainingJob.
        container: what its image contains.
        accelerators: what each instance type has.
        known: its row in the catalogue, with the user's own corrections; the bare catalogue's unless given.
        package: whether a `setup.py` stands at the top of the bundle.

    Raises:
        JobError: the job starts our own launcher with a specification that it refuses.
    """
    if is_entrypoint(request):
        from cloudtrain.launch.sagemaker.own_launcher import launched

        own = {} if known is None else {"known": known}
        return tuple(map(_shortened, launched(request, lambda name: devices(name, accelerators), **own)))
    if request["AlgorithmSpecification"].get("ContainerEntrypoint"):
        return tuple(_own_entrypoint(request))
    found = [_Started(site, site_command(site)) for site in _sites(request, container, accelerators, package)]
    alone = all(started.command.role == "process" for started in found)
    return (*_first(found, alone), *_ranks(found))


def commands(
    request: Request, container: Container, accelerators: Accelerators, *, package: bool = False
) -> tuple[tuple[Host, Command], ...]:
    """What the toolkit starts on each host, `algo-1` first; with what it ignores, and why it stops."""
    return tuple((site.host, site_command(site)) for site in _sites(request, container, accelerators, package))


def devices(instance_type: str, accelerators: Accelerators) -> tuple[int, int]:
    """GPUs, and logical Neuron cores."""
    if "trn2.48xlarge" in instance_type:
        return 0, TRN2_CORES
    count = accelerators(instance_type)
    return (0, count) if instance_type.startswith(("ml.trn", "ml.inf")) else (count, 0)


@dataclass(frozen=True)
class _Started:
    site: Site
    command: Command

    @property
    def host(self) -> Host:
        return self.site.host


def _sites(request: Request, container: Container, accelerators: Accelerators, package: bool) -> Iterator[Site]:
    for host in sorted(hosts(request), key=lambda host: host.index):
        gpus, neurons = devices(host.instance_type, accelerators)
        yield Site(request, host, container, gpus=gpus, neurons=neurons, package=package)


def _first(found: list[_Started], alone: bool) -> Iterator[Process]:
    """What each host starts. A script that runs alone is a rank of its own, where no launcher gives ranks."""
    for started in found:
        site, made = started.site, started.command
        if made.error is not None:
            continue
        role, rank = made.role, site.resource["hosts"].index(started.host.name) if alone else None
        if role == "process" and site.takes_part and (serves_parameters(site) or mirrors(site)):
            role, rank = task_of(site)[0], site.distribution_hosts.index(started.host.name)
        env = {**site.given, **site_environment(site), **made.env}
        local = None if rank is None else 0
        yield _shortened(Process(started.host.index, role, made.argv, env, rank, local))
        if serves_parameters(site):
            yield _shortened(_server(started, env))


def _server(started: _Started, env: dict[str, str]) -> Process:
    """A fork of the toolkit's own process, so it has no argv of its own; shown with the variables of its host."""
    index = started.site.resource["hosts"].index(started.host.name)
    argv = ("tf.distribute.Server", "job_name=ps", f"task_index={index}")
    return Process(started.host.index, "ps", argv, {key: value for key, value in env.items() if key != "TF_CONFIG"})


def _ranks(found: list[_Started]) -> Iterator[Process]:
    """The ranks of every launcher; torchrun's agents that meet are one launcher."""
    indices = {started.host.name: started.host.index for started in found}
    for started in found:
        site, made = started.site, started.command
        where = [indices[name] for name in site.distribution_hosts]
        if made.role == "mpirun" and site.processes:
            yield from mpi_ranks(
                made.program, where, ranks=made.ranks, slots=site.processes, exports=_worth_showing(made.exports)
            )
        elif made.role == "torchrun" and site.is_master:
            ranks = torchrun.ranks(
                made.program[2:],
                python=site.container.python,
                instance_count=len(where),
                processes_per_instance=site.processes,
            )
            meeting = {"MASTER_ADDR": site.master, "MASTER_PORT": MASTER_PORT} if len(where) > 1 else {}
            for rank in on_hosts(ranks, where):
                rank.env.update(meeting)
                yield rank


def _worth_showing(exports: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in exports.items() if name != "LD_PRELOAD"}


def _own_entrypoint(request: Request) -> Iterator[Process]:
    """Some other program in the place of the image's: it starts on every host, and nothing is known of what it does."""
    algorithm = request["AlgorithmSpecification"]
    argv = (*algorithm["ContainerEntrypoint"], *(algorithm.get("ContainerArguments") or ()))
    numbered = sorted(enumerate(hosts(request)), key=lambda item: item[1].index)
    for number, host in numbered:
        yield Process(host.index, "process", argv, dict(request.get("Environment") or {}), number, 0)


def _shortened(process: Process) -> Process:
    for name in LONG:
        process.env.pop(name, None)
    return process
