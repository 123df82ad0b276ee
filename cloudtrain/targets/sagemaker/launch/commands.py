"""Which launcher starts on a host, and with which argv."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cloudtrain.runtime.sagemaker_launcher import ROOT
from cloudtrain.runtime.sagemaker_launcher.arguments import argv_of
from cloudtrain.targets.sagemaker.launch import mpirun
from cloudtrain.targets.sagemaker.launch.container import Container
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
from cloudtrain.targets.sagemaker.launch.program import kind_of, program, refused_name
from cloudtrain.targets.sagemaker.launch.site import Site
from cloudtrain.targets.sagemaker.launch.tf_config import mirrors, server_cluster, serves_parameters
from cloudtrain.targets.sagemaker.launch.variables import MASTER_PORT, site_environment


@dataclass(frozen=True)
class Command:
    """What the toolkit starts on one host.

    Attributes:
        role: `torchrun`, `mpirun`, `process` for the script itself, `sshd` where a host waits for mpirun's ranks.
        argv: empty where `error` says that nothing starts.
        env: what the launcher sets beside the toolkit's variables.
        captured: whether the toolkit reads stderr, which up to 5.1.2 it does through a shell (see `shell_tokens`).
        program: what each rank runs; the script itself where no launcher starts ranks.
        ranks: how many ranks this command starts, on all hosts of an mpirun and on this host otherwise.
        exports: what `mpirun -x NAME=VALUE` sets for every rank.
        ignored: hyperparameters that ask for another launcher or its library, and have no effect here.
        error: why the toolkit stops before it starts anything.
        notes: what else starts.
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
    """What the toolkit starts on a host, in the code folder.

    Args:
        request: the body of CreateTrainingJob.
        host: one of `hosts(request)`.
        container: what the image contains.
        gpus: GPUs of the host.
        neurons: its logical Neuron cores.
        root: where `/opt/ml` is.
        package: whether a `setup.py` stands at the top of the bundle.
    """
    return site_command(Site(request, host, container, gpus=gpus, neurons=neurons, root=root, package=package))


def site_command(site: Site) -> Command:
    """The same for a host that is already looked at."""
    key = _launcher_key(site)
    error = refused_name(site)
    if error is None:
        try:
            made = _LAUNCHERS[key](site)
        except ValueError as refusal:
            error = str(refusal)
    if error is not None:
        made = Command("process", (), error=error, ranks=0)
    return replace(made, captured=key == TORCH or _captured(site), ignored=_ignored(site, key))


def overwritten(
    request: Request, host: Host, container: Container, *, gpus: int, neurons: int = 0
) -> dict[str, tuple[str, str]]:
    """Variables of the request's environment that do not reach the script: name to the given and the real value."""
    site = Site(request, host, container, gpus=gpus, neurons=neurons)
    made = site_command(site)
    real = {**site_environment(site), **made.env, **made.exports}
    return {name: (value, real[name]) for name, value in site.given.items() if real.get(name, value) != value}


_ORDER = {
    "pytorch": (MPI, PYTORCH_DDP, TORCH, SMDDP, XLA),
    "tensorflow": (MPI, SMDDP),
    "generic": (MPI,),
}
"""The launchers that each framework's toolkit knows; the first one that is asked for acts."""


def _launcher_key(site: Site) -> str | None:
    """The hyperparameter that acts on this host; None where the script runs alone."""
    if serves_parameters(site):
        return PARAMETER_SERVER
    if not site.takes_part:
        return None
    return next((key for key in _ORDER[site.framework] if site.settings.get(key)), None)


def _captured(site: Site) -> bool:
    if site.framework == "pytorch":
        return not site.settings.get(NATIVE_LAUNCHER)
    return site.framework == "tensorflow"


def _ignored(site: Site, acting: str | None) -> tuple[str, ...]:
    """Groups that a distribution leaves out run the script alone on purpose; there nothing counts as ignored."""
    if GROUPS in site.settings and not site.takes_part:
        return ()
    effective = {acting, MIRRORED if mirrors(site) else None}
    asked = [key for key in LAUNCHER_KEYS if site.settings.get(key) and key not in effective]
    if site.user.get(MODEL_PARALLEL) and acting not in (MPI, TORCH):
        asked.append(MODEL_PARALLEL)
    return tuple(asked)


def _alone(site: Site) -> Command:
    argv = program(site)
    return Command("process", argv, program=argv)


def _torchrun(site: Site) -> Command:
    kind, container = kind_of(site.entry_point, package=site.package), site.container
    if kind != "python":
        what = "Python packages" if kind == "package" else "scripts other than Python's"
        raise ValueError(f"the toolkit does not start {what} with torchrun")
    hosts, script = site.distribution_hosts, (site.entry_point, *argv_of(site.user))
    several = (
        "--master_addr", site.master,
        "--master_port", MASTER_PORT,
        "--node_rank", str(hosts.index(site.host.name)),
    )  # fmt: skip
    argv = (
        *(("neuron_parallel_compile",) if site.given.get("RUN_NEURON_PARALLEL_COMPILE") == "1" else ()),
        "torchrun",
        "--nnodes", str(len(hosts)),
        "--nproc_per_node", str(site.processes),
        *(several if len(hosts) > 1 else ()),
        *script,
    )  # fmt: skip
    efa = {"FI_PROVIDER": "efa"} if container.sets_efa(site.host.instance_type) else {}
    rdma = {"FI_EFA_USE_DEVICE_RDMA": "1", "RDMAV_FORK_SAFE": "1"}
    env = {
        **efa,
        **(rdma if container.sets_rdma(site.host.instance_type) else {}),
        "NCCL_SOCKET_IFNAME": INTERFACE,
        "NCCL_PROTO": "simple",
    }
    return Command("torchrun", argv, env, program=(container.python, "-u", *script), ranks=site.processes)


def _mpi(site: Site, make: Callable[[Site], mpirun.MpiRun] = mpirun.mpi) -> Command:
    """mpirun on the master; all others start sshd and wait for its ranks."""
    if not site.is_master:
        return Command("sshd", ("/usr/sbin/sshd", "-D"), ranks=0)
    run = make(site)
    return Command("mpirun", run.argv, program=run.program, ranks=run.ranks, exports=run.exports)


def _smddp(site: Site) -> Command:
    return _mpi(site, mpirun.smddp)


def _parameter_server(site: Site) -> Command:
    """The script, and beside it a server that the toolkit forks from itself."""
    cluster = server_cluster(site) if site.takes_part else {}
    index = site.resource["hosts"].index(site.host.name)
    if index >= len(cluster.get("ps", ())):
        group = site.host.group
        raise ValueError(f"the toolkit numbers parameter servers by host of the job, and has no {index} in `{group}`")
    note = (
        f"ps process: tf.distribute.Server(cluster_spec, job_name='ps', task_index={index}) "
        f"cluster={json.dumps(cluster)}"
    )
    return replace(_alone(site), notes=(note,))


def _xla(site: Site) -> Command:  # noqa: ARG001 - as the other launchers
    raise ValueError("SageMaker Training Compiler, which ended with PyTorch 1.13, is not known here")


_LAUNCHERS: dict[str | None, Callable[[Site], Command]] = {
    None: _alone,
    TORCH: _torchrun,
    MPI: _mpi,
    SMDDP: _smddp,
    PYTORCH_DDP: _smddp,
    PARAMETER_SERVER: _parameter_server,
    XLA: _xla,
}
