"""The processes that the image's toolkit starts on a host, with this machine's interpreter, addresses and mpirun."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from cloudtrain.core.processes import Process
from cloudtrain.errors import JobError, Problem
from cloudtrain.launch.loopback import OPEN_MPI
from cloudtrain.launch.mpirun import redirected
from cloudtrain.launch.torchrun import ranks
from cloudtrain.runtime.mpi_options import portable
from cloudtrain.runtime.sagemaker_launcher.plan import MASTER_PORT
from cloudtrain.targets.sagemaker.emulate.paths import (
    LOOPBACK,
    LOOPBACK_INTERFACE,
    local_master,
    local_port,
    local_tf_config,
    local_variables,
)
from cloudtrain.targets.sagemaker.emulate.stage import HostLaunch, Stage
from cloudtrain.targets.sagemaker.launch.hosts import INTERFACE
from cloudtrain.targets.sagemaker.launch.job import Command, Host, command, environment

SERVER = (
    "import json, os, tensorflow as tf\n"
    "config = json.loads(os.environ['TF_CONFIG'])\n"
    "task = config['task']\n"
    "settings = tf.compat.v1.ConfigProto(device_count={'GPU': 0})\n"
    "cluster = tf.train.ClusterSpec(config['cluster'])\n"
    "tf.distribute.Server(cluster, job_name='ps', task_index=task['index'], config=settings).join()\n"
)
"""A program that acts as the parameter server, which sagemaker-tensorflow-training forks from its own process."""


def toolkit_host(stage: Stage, host: Host) -> HostLaunch:
    """Return the processes that the host starts.

    Raises:
        JobError: the toolkit would stop before it starts anything, or the job needs mpirun, which this machine lacks.
    """
    request, root, gpus = stage.request_of(host), stage.root(host), stage.gpus(host)
    made = command(request, host, stage.container, gpus=gpus, root=root)
    if made.error is not None:
        message = f"on SageMaker the job would stop at once: {made.error}"
        raise JobError(
            [Problem(("distribution", "type"), message, "run it here without `--emulate sagemaker`", code="CT039")]
        )
    env = environment(request, host, stage.container, gpus=gpus, cpus=stage.account.machine.cpus, root=root)
    own = stage.variables(host)
    variables = {
        **own,
        **local_variables({**env, **made.env}),
        "PYTHONPATH": f"{root}/code:" + own.get("PYTHONPATH", "${{env.PYTHONPATH}}"),
        **local_master(env),
    }
    launch = _STARTS[made.role](stage, host, made, variables)
    master = (f"{env['MASTER_ADDR']}:{MASTER_PORT}",) if "MASTER_ADDR" in env else ()
    return replace(launch, endpoints=launch.endpoints + master)


def _torchrun(stage: Stage, host: Host, made: Command, variables: dict[str, str]) -> HostLaunch:
    """Return a host with a torchrun process, which uses a free port.

    For a single host, the toolkit sets no port, and torchrun's default port may be in use on this machine.
    """
    script = made.program[2:]
    options = list(made.argv[made.argv.index("torchrun") + 1 : -len(script)])
    master = _option(options, "--master_addr")
    endpoint = f"{master or host.name}:{MASTER_PORT}"
    if master:
        options[options.index("--master_addr") + 1] = LOOPBACK
        options[options.index("--master_port") + 1] = local_port(master, MASTER_PORT)
    else:
        variables = {**variables, "PET_MASTER_PORT": local_port(host.name, MASTER_PORT)}
    argv = (stage.python, "-m", "cloudtrain.runtime.torchrun", *options, *script)
    process = Process(host.index, "torchrun", argv, {**variables, **stage.torchrun_variables(host)})
    count = int(_option(options, "--nnodes") or 1)
    shown = ranks(script, python=stage.python, instance_count=count, processes_per_instance=made.ranks)
    own = int(_option(options, "--node_rank") or 0)
    mine = (shown.make(own * made.ranks + number) for number in range(made.ranks))
    moved = tuple(replace(rank, instance=host.index) for rank in mine)
    return HostLaunch((process,), moved, ranks=made.ranks, endpoints=(endpoint,))


def _mpirun(stage: Stage, host: Host, made: Command, variables: dict[str, str]) -> HostLaunch:
    """Return a host with an mpirun process, which starts all ranks; each rank writes its output to separate files."""
    options = portable(_mpi_options(made.argv[1 : -len(made.program)]))
    program = redirected(made.program, f"{stage.run_dir}/logs/instance_{host.index}")
    argv = (stage.mpirun, *options, *program)
    process = Process(host.index, "mpirun", argv, {**OPEN_MPI, **variables})
    notes = ("the ranks start through mpi4py, as in SageMaker's images: `pip install mpi4py` where it is missing",)
    return HostLaunch((process,), signal="ranks", ranks=made.ranks, notes=notes if "mpi4py" in made.program else ())


def _mpi_options(options: Sequence[str]) -> list[str]:
    """Translate mpirun's options for this machine.

    Every host becomes this machine, and the interface becomes loopback. The preloaded library that sets host names is
    removed, and `--tag-output` too, because each rank writes its own log.
    """
    local: list[str] = []
    rest = iter(options)
    for option in rest:
        if option == "--host":
            local += [option, f"{LOOPBACK}:{_slots(next(rest, ''))}"]
        elif option == "-x":
            local += _local_export(next(rest, ""))
        elif option != "--tag-output":
            local.append(LOOPBACK_INTERFACE if option == INTERFACE else option)
    return local


def _slots(hosts: str) -> int:
    """Return the number of slots: 8 for `algo-1:4,algo-2:4`. A host without a number has one slot."""
    return sum(int(host.partition(":")[2] or 1) for host in hosts.split(","))


def _local_export(value: str) -> list[str]:
    name, equals, text = value.partition("=")
    if name == "LD_PRELOAD":
        return []
    return ["-x", f"{name}{equals}{LOOPBACK_INTERFACE}" if text == INTERFACE else value]


def _sshd(stage: Stage, host: Host, made: Command, variables: dict[str, str]) -> HostLaunch:  # noqa: ARG001
    """Return a host without processes, which on SageMaker runs sshd for mpirun. Here all ranks run on the first
    host."""
    return HostLaunch((), notes=(f"{host.name} would wait for mpirun's ranks; here they all run on the first host",))


def _script(stage: Stage, host: Host, made: Command, variables: dict[str, str]) -> HostLaunch:
    """Return a host that runs the script itself, and a parameter server if the job uses them."""
    signal = "leader" if made.argv[0] == stage.python else "group"
    if "TF_CONFIG" not in variables:
        return HostLaunch((Process(host.index, "process", made.argv, variables),), signal=signal)
    text, endpoints = local_tf_config(variables["TF_CONFIG"])
    config = json.loads(text)
    processes = [Process(host.index, config["task"]["type"], made.argv, {**variables, "TF_CONFIG": text})]
    if "ps" in config["cluster"]:
        servers = json.loads(variables["TF_CONFIG"])["cluster"]["ps"]
        index = [address.partition(":")[0] for address in servers].index(host.name)
        task = {**config, "task": {"index": index, "type": "ps"}}
        env = {**variables, "TF_CONFIG": json.dumps(task)}
        processes.append(Process(host.index, "ps", (stage.python, "-c", SERVER), env))
    return HostLaunch(tuple(processes), signal=signal, endpoints=endpoints)


_STARTS: dict[str, Callable[[Stage, Host, Command, dict[str, str]], HostLaunch]] = {
    "torchrun": _torchrun,
    "mpirun": _mpirun,
    "sshd": _sshd,
    "process": _script,
}


def _option(options: Sequence[str], name: str) -> str | None:
    return options[options.index(name) + 1] if name in options else None
