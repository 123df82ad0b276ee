"""The launcher that the toolkit starts on a host, and its argv."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cloudtrain.runtime.sagemaker_launcher import ROOT
from cloudtrain.runtime.sagemaker_launcher.arguments import argv_of
from cloudtrain.targets.sagemaker.launch import mpirun
from cloudtrain.targets.sagemaker.launch.container import Container
from cloudtrain.targets.sagemaker.launch.host_setup import HostSetup
from cloudtrain.targets.sagemaker.launch.hosts import INTERFACE, Host, Request
from cloudtrain.targets.sagemaker.launch.keys import (
    GROUPS,
    LAUNCHER_KEYS,
    MIRRORED,
    MODEL_PARALLEL,
    MPI,
    NATIVE_LAUNCHER,
    PARAMETER_SERVER,
    PYTORCH_DDP,
    SMDDP,
    TORCH,
    XLA,
)
from cloudtrain.targets.sagemaker.launch.program import kind_of, name_refusal, program
from cloudtrain.targets.sagemaker.launch.tf_config import mirrors, server_cluster, serves_parameters
from cloudtrain.targets.sagemaker.launch.variables import MASTER_PORT, host_environment


@dataclass(frozen=True)
class Command:
    """The command that the toolkit starts on one host.

    Attributes:
        role: `torchrun`, `mpirun`, `process` for the script itself, or `sshd` if the host waits for mpirun's ranks.
        argv: the command line; empty if `error` is set.
        env: variables that the launcher sets in addition to the toolkit's.
        captured: whether the toolkit reads stderr. Toolkits up to 5.1.2 then use a shell (see `shell_tokens`).
        program: the program of each rank; the script itself if no launcher starts ranks.
        ranks: number of ranks that this command starts: on all hosts for mpirun, otherwise on this host.
        exports: variables that `mpirun -x NAME=VALUE` sets for every rank.
        ignored: hyperparameters for other launchers or libraries that have no effect on this host.
        error: why the toolkit stops before it starts anything; None if it starts the command.
        notes: descriptions of processes that the toolkit starts in addition, such as a parameter server.
    """

    role: str
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    captured: bool = True
    program: tuple[str, ...] = ()
    ranks: int = 1
    exports: dict[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    error: str | None = None
    notes: tuple[str, ...] = ()


def command(
    request: Request,
    host: Host,
    container: Container,
    *,
    gpus: int,
    neurons: int = 0,
    root: str = ROOT,
    package: bool = False,
) -> Command:
    """Return the command that the toolkit starts on a host.

    Args:
        request: the body of CreateTrainingJob.
        host: one of `hosts(request)`.
        container: the contents of the image.
        gpus: GPUs of the host.
        neurons: logical Neuron cores of the host.
        root: the folder that replaces `/opt/ml`.
        package: whether the bundle's top folder contains a `setup.py`.
    """
    return host_command(HostSetup(request, host, container, gpus=gpus, neurons=neurons, root=root, package=package))


def host_command(setup: HostSetup) -> Command:
    """Return the command that the toolkit starts on a host, from the host's setup."""
    key = _launcher_key(setup)
    error = name_refusal(setup)
    if error is None:
        try:
            made = _LAUNCHERS[key](setup)
        except ValueError as refusal:
            error = str(refusal)
    if error is not None:
        made = Command("process", (), error=error, ranks=0)
    return replace(made, captured=key == TORCH or _is_captured(setup), ignored=_ignored_keys(setup, key))


def overwritten(
    request: Request, host: Host, container: Container, *, gpus: int, neurons: int = 0
) -> dict[str, tuple[str, str]]:
    """Return the variables of the request that the toolkit overwrites, each with the request's and the toolkit's
    value."""
    setup = HostSetup(request, host, container, gpus=gpus, neurons=neurons)
    made = host_command(setup)
    real = {**host_environment(setup), **made.env, **made.exports}
    return {name: (value, real[name]) for name, value in setup.given.items() if real.get(name, value) != value}


_ORDER = {
    "pytorch": (MPI, PYTORCH_DDP, TORCH, SMDDP, XLA),
    "tensorflow": (MPI, SMDDP),
    "generic": (MPI,),
}
"""The launchers of each framework's toolkit, in order of precedence."""


def _launcher_key(setup: HostSetup) -> str | None:
    """Return the hyperparameter that selects the launcher on this host; None if the script runs without a launcher."""
    if serves_parameters(setup):
        return PARAMETER_SERVER
    if not setup.takes_part:
        return None
    return next((key for key in _ORDER[setup.framework] if setup.settings.get(key)), None)


def _is_captured(setup: HostSetup) -> bool:
    if setup.framework == "pytorch":
        return not setup.settings.get(NATIVE_LAUNCHER)
    return setup.framework == "tensorflow"


def _ignored_keys(setup: HostSetup, acting: str | None) -> tuple[str, ...]:
    """Return the launcher hyperparameters that the job sets but that have no effect on this host.

    `acting` is the hyperparameter that selects this host's launcher. If the job lists instance groups for its
    distribution, the result is empty for hosts outside these groups.
    """
    if GROUPS in setup.settings and not setup.takes_part:
        return ()
    effective = {acting, MIRRORED if mirrors(setup) else None}
    asked = [key for key in LAUNCHER_KEYS if setup.settings.get(key) and key not in effective]
    if setup.user.get(MODEL_PARALLEL) and acting not in (MPI, TORCH):
        asked.append(MODEL_PARALLEL)
    return tuple(asked)


def _alone(setup: HostSetup) -> Command:
    argv = program(setup)
    return Command("process", argv, program=argv)


def _torchrun(setup: HostSetup) -> Command:
    kind, container = kind_of(setup.entry_point, package=setup.package), setup.container
    if kind != "python":
        what = "Python packages" if kind == "package" else "scripts other than Python's"
        raise ValueError(f"the toolkit does not start {what} with torchrun")
    hosts, script = setup.distribution_hosts, (setup.entry_point, *argv_of(setup.user))
    several = (
        "--master_addr", setup.master,
        "--master_port", MASTER_PORT,
        "--node_rank", str(hosts.index(setup.host.name)),
    )  # fmt: skip
    argv = (
        *(("neuron_parallel_compile",) if setup.given.get("RUN_NEURON_PARALLEL_COMPILE") == "1" else ()),
        "torchrun",
        "--nnodes", str(len(hosts)),
        "--nproc_per_node", str(setup.processes),
        *(several if len(hosts) > 1 else ()),
        *script,
    )  # fmt: skip
    efa = {"FI_PROVIDER": "efa"} if container.sets_efa(setup.host.instance_type) else {}
    rdma = {"FI_EFA_USE_DEVICE_RDMA": "1", "RDMAV_FORK_SAFE": "1"}
    env = {
        **efa,
        **(rdma if container.sets_rdma(setup.host.instance_type) else {}),
        "NCCL_SOCKET_IFNAME": INTERFACE,
        "NCCL_PROTO": "simple",
    }
    return Command("torchrun", argv, env, program=(container.python, "-u", *script), ranks=setup.processes)


def _mpi(setup: HostSetup, make: Callable[[HostSetup], mpirun.MpiRun] = mpirun.mpi) -> Command:
    """Return the host's command: mpirun on the master, and sshd on every other host. `make` returns the mpirun call."""
    if not setup.is_master:
        return Command("sshd", ("/usr/sbin/sshd", "-D"), ranks=0)
    run = make(setup)
    return Command("mpirun", run.argv, program=run.program, ranks=run.ranks, exports=run.exports)


def _smddp(setup: HostSetup) -> Command:
    return _mpi(setup, mpirun.smddp)


def _parameter_server(setup: HostSetup) -> Command:
    """Return the command that starts the script on a host with a parameter server.

    `Command.notes` describes the parameter server, which the toolkit starts as a fork of its own process.
    """
    cluster = server_cluster(setup) if setup.takes_part else {}
    index = setup.resource["hosts"].index(setup.host.name)
    if index >= len(cluster.get("ps", ())):
        group = setup.host.group
        raise ValueError(
            f"the toolkit would start parameter server {index} in `{group}`, but its cluster has no server {index}"
        )
    note = (
        f"ps process: tf.distribute.Server(cluster_spec, job_name='ps', task_index={index}) "
        f"cluster={json.dumps(cluster)}"
    )
    return replace(_alone(setup), notes=(note,))


def _xla(setup: HostSetup) -> Command:  # noqa: ARG001 - as the other launchers
    raise ValueError("cloudtrain does not support SageMaker Training Compiler, which ended with PyTorch 1.13")


_LAUNCHERS: dict[str | None, Callable[[HostSetup], Command]] = {
    None: _alone,
    TORCH: _torchrun,
    MPI: _mpi,
    SMDDP: _smddp,
    PYTORCH_DDP: _smddp,
    PARAMETER_SERVER: _parameter_server,
    XLA: _xla,
}
