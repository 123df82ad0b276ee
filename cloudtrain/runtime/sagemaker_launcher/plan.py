"""Derive a host's processes from its configuration and machine. The functions are pure, so
`cloudtrain plan` can show these processes on any computer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from cloudtrain.runtime.errors import SetupError
from cloudtrain.runtime.mpi_options import mpirun_options
from cloudtrain.runtime.torchrun_words import guard_program, is_python, words_of_script

from . import CODE_CHANNEL, LAUNCH_KEY, ROOT
from .arguments import argv_of, decode_hyperparameters, split
from .machine import HostMachine
from .network import Network
from .variables import HOMOGENEOUS, RDMA_FAMILIES, instance_groups, text_of

if TYPE_CHECKING:
    from .machine import Config, Variables


@dataclass(frozen=True)
class LaunchSpec:
    """The launch specification: the hyperparameter `cloudtrain_launch`, a JSON object that
    cloudtrain writes into the request. It has an `entry_point`, the script in the bundle or `-m`
    and a module, or a `command`, a line for a shell."""

    launcher: str = "single"
    entry_point: str | None = None
    command: str | None = None
    processes_per_instance: int | None = None
    """Of torchrun and mpirun. Default: the number of GPUs or Neuron cores, else one."""
    instance_groups: tuple[str, ...] = ()
    """The groups of the distribution. Hosts of other groups run the script alone."""
    requirements: str | None = None
    """A pip requirements file in the bundle."""
    interpreter: str | None = None
    """The Python that runs the script. Default: the launcher's own."""
    mpi_options: str = ""
    strategy: str = "multi_worker_mirrored"
    """Of TensorFlow: `multi_worker_mirrored` or `parameter_server`."""
    workers: int | None = None
    """Of TensorFlow, including the chief. Default: one per host."""
    parameter_servers: int | None = None
    """Of TensorFlow. Default: one."""
    arguments: tuple[str, ...] = ()
    bare_flags: bool = False
    """Whether true hyperparameters become `--key` alone, and false ones are left out."""


def read_launch(reserved: Config) -> LaunchSpec:
    """Read the launch specification from `reserved`, the launcher's hyperparameters."""
    value = reserved.get(LAUNCH_KEY)
    if not isinstance(value, dict):
        raise SetupError(
            f"the hyperparameter `{LAUNCH_KEY}` is missing or not a JSON object",
            hint="submit the job with cloudtrain, which adds this hyperparameter",
        )
    unknown = sorted(set(value) - {field.name for field in fields(LaunchSpec)})
    if unknown:
        raise _refusal(f"has the unknown key `{unknown[0]}`")
    groups = tuple(value.get("instance_groups") or ())
    launch = LaunchSpec(**{**value, "instance_groups": groups})
    if launch.launcher not in _LAUNCHERS:
        names = ", ".join(_LAUNCHERS)
        raise _refusal(f"names the launcher `{launch.launcher}`, which is none of {names}")
    if (launch.entry_point is None) == (launch.command is None):
        raise _refusal("must have either an `entry_point` or a `command`")
    return launch


def _refusal(what: str) -> SetupError:
    return SetupError(
        f"the hyperparameter `{LAUNCH_KEY}` {what}",
        hint=(
            "the bundle and the request come from different versions of cloudtrain; submit the "
            "job again"
        ),
    )


MASTER_PORT = 7777
"""The port of sagemaker-pytorch-training."""

WORKER_PORT = 8890
"""The port of TensorFlow's workers in sagemaker-tensorflow-training."""

CHIEF_PORT = 2222
SERVER_PORT = 2223
"""With parameter servers: the port of chief and workers, and that of servers, as in
sagemaker-tensorflow-training."""

WATCH_PORT = 7778
"""The port at which the launcher of the chief's host tells the others that the chief has ended."""


@dataclass(frozen=True)
class HostProgram:
    """One process that a host starts. `env` is added to the host's environment. `signal` says who
    receives SIGTERM: `leader` means the process itself, which passes the signal on; `group` means a
    shell and all processes that it started; `ranks` means the ranks that mpirun started."""

    role: str
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    signal: str = "leader"


@dataclass(frozen=True)
class LaunchPlan:
    """The processes and settings of one host.

    Attributes:
        programs: the processes that the host starts.
        environment: variables for every process of the host, in addition to the container's.
        processes_per_instance: number of ranks that torchrun or mpirun starts on this host; 1
            without them.
        hosts: the hosts of the distribution, in rank order; only this host if it runs the script
            alone.
        requirements: the requirements file that is installed first.
        wait_for: the master's host name, which must resolve before the processes start.
        finishes: roles whose success ends all processes of the host, because parameter servers
            never end by themselves.
        watch: the chief's host, whose launcher reports the chief's end to the other hosts; None if
            they need no report.
        endpoints: `host:port` of every server in the job, including MASTER_PORT.
        python: the interpreter that runs the script and installs its requirements.
    """

    programs: tuple[HostProgram, ...]
    environment: dict[str, str] = field(default_factory=dict)
    processes_per_instance: int = 1
    hosts: tuple[str, ...] = ()
    requirements: str | None = None
    wait_for: str | None = None
    finishes: tuple[str, ...] = ()
    watch: str | None = None
    endpoints: tuple[str, ...] = ()
    python: str = "python3"


def launch_plan(
    hyperparameters: Variables,
    resource_config: Config,
    input_data_config: Config,
    machine: HostMachine,
    *,
    root: str = ROOT,
    network: Network | None = None,
) -> LaunchPlan:
    """Return the plan of the host that `resource_config` (`resourceconfig.json`) describes. `root`
    is `/opt/ml`, or the folder that takes its place under emulation. Without a `network`, hosts are
    reached by their names."""
    user, reserved = split(decode_hyperparameters(hyperparameters))
    launch = read_launch(reserved)
    hosts_of = instance_groups(resource_config)
    groups = launch.instance_groups
    if not groups and launch.launcher != "single":
        groups = tuple(hosts_of)
    hosts: list[str] = []
    for group in groups:
        hosts += hosts_of.get(group, ())
    setup = _HostSetup(
        launch,
        machine,
        root,
        network or Network(),
        user,
        reserved,
        resource_config,
        input_data_config,
        groups,
        hosts,
    )
    environment = {**_defaults(setup), **_sm_variables(setup), **_own(setup)}

    launcher = launch.launcher if setup.host in hosts else "single"
    plan = _LAUNCHERS[launcher](setup)
    endpoints = (*plan.endpoints, f"{setup.master}:{MASTER_PORT}")
    whole = replace(
        plan,
        environment=dict(sorted(environment.items())),
        hosts=(setup.host,) if launcher == "single" else tuple(hosts),
        requirements=launch.requirements,
        endpoints=tuple(dict.fromkeys(endpoints)),
        python=setup.python,
    )
    if launcher == "single" or len(hosts) == 1:
        return whole
    name, _, port = endpoints[0].rpartition(":")
    address, _ = setup.network.place(name, int(port))
    return replace(whole, wait_for=address, watch=hosts[0] if plan.finishes else None)


@dataclass(frozen=True)
class _HostSetup:
    """What a host's plan depends on. `root` is `/opt/ml`, or the folder that takes its place under
    emulation. `user` and `reserved` are the hyperparameters of the script, decoded from JSON, and
    of the launcher; `resource` is `resourceconfig.json`, `channels` is `inputdataconfig.json`.
    `groups` and `hosts` are the instance groups and the hosts of the distribution."""

    launch: LaunchSpec
    machine: HostMachine
    root: str
    network: Network
    user: Config
    reserved: Config
    resource: Config
    channels: Config
    groups: Sequence[str]
    hosts: Sequence[str]

    @property
    def host(self) -> str:
        return str(self.resource["current_host"])

    @property
    def master(self) -> str:
        """Return the host of rank 0."""
        return str((self.hosts or self.resource["hosts"])[0])

    @property
    def arguments(self) -> list[str]:
        """Return the arguments of the script."""
        own = argv_of(self.user, bare_flags=self.launch.bare_flags)
        return [*self.launch.arguments, *own]

    @property
    def python(self) -> str:
        return self.launch.interpreter or self.machine.python

    @property
    def processes(self) -> int:
        return self.launch.processes_per_instance or self.machine.gpus or self.machine.neurons or 1

    @property
    def is_python(self) -> bool:
        return self.launch.entry_point is not None and is_python(self.launch.entry_point)

    def program(self) -> list[str]:
        """Return the argv of the script or the command. For a shell script or a command, it begins
        with the shell; for a Python script, it begins with the script itself, without Python."""
        if self.launch.command is not None:
            return [self.machine.shell, "-c", self.launch.command]
        assert self.launch.entry_point is not None
        words = [*words_of_script(self.launch.entry_point), *self.arguments]
        if self.launch.entry_point.endswith(".sh"):
            return [self.machine.shell, *words]
        return words

    def direct(self) -> tuple[str, ...]:
        """Return the argv that starts the script without a launcher."""
        interpreter = [self.python] if self.is_python else []
        return (*interpreter, *self.program())

    @property
    def signal(self) -> str:
        """Return who receives SIGTERM: `leader` for a Python script, else `group`, because a shell
        does not pass signals on."""
        return "leader" if self.is_python else "group"


# For each launcher, the part of the plan that depends on it: programs, ranks, endpoints and
# `finishes`.


def _torchrun(setup: _HostSetup) -> LaunchPlan:
    """Return the torchrun process of this host. Its options are written with underscores, which
    every torch since 1.9 accepts."""
    module = "torch.distributed.run"
    if setup.network.is_emulated:
        module = "cloudtrain.runtime.torchrun"
    address, port = setup.network.place(setup.master, MASTER_PORT)
    if len(setup.hosts) == 1:
        address = "127.0.0.1"
    argv = [
        setup.python, "-m", module,
        "--nnodes", str(len(setup.hosts)),
        "--nproc_per_node", str(setup.processes),
        "--node_rank", str(setup.hosts.index(setup.host)),
        "--master_addr", address,
        "--master_port", str(port),
    ]  # fmt: skip
    if not setup.is_python:
        argv.append("--no_python")
    argv += guard_program(setup.program())
    endpoint = f"{setup.hosts[0]}:{MASTER_PORT}"
    program = HostProgram("torchrun", tuple(argv))
    return LaunchPlan((program,), processes_per_instance=setup.processes, endpoints=(endpoint,))


def _mpirun(setup: _HostSetup) -> LaunchPlan:
    if len(setup.hosts) > 1:
        raise SetupError(
            (
                "this launcher can start mpirun on one instance only, but the job has "
                f"{len(setup.hosts)}"
            ),
            hint="use an image with sagemaker-training, or `distribution: {type: torch}`",
        )
    options = mpirun_options(setup.processes, setup.launch.mpi_options)
    program = HostProgram("mpirun", ("mpirun", *options, *setup.direct()), signal="ranks")
    return LaunchPlan((program,), processes_per_instance=setup.processes)


def _tensorflow(setup: _HostSetup) -> LaunchPlan:
    """Return this host's processes, one for each TensorFlow task. The tasks find each other through
    TF_CONFIG. Parameter servers run the script, too."""
    tasks = _tasks(setup.launch, setup.hosts)
    cluster: dict[str, list[str]] = {}
    endpoints = []
    for role, places in tasks.items():
        cluster[role] = []
        for host, port in places:
            address, number = setup.network.place(host, port)
            cluster[role].append(f"{address}:{number}")
            endpoints.append(f"{host}:{port}")

    programs = []
    for role, places in tasks.items():
        for index, (host, _) in enumerate(places):
            if host == setup.host:
                variables = _task_variables(cluster, role, index)
                programs.append(HostProgram(role, setup.direct(), variables, setup.signal))

    finishes: tuple[str, ...] = ()
    if "ps" in tasks:
        endpoints.append(f"{setup.hosts[0]}:{WATCH_PORT}")
        finishes = ("chief",)
    return LaunchPlan(tuple(programs), endpoints=tuple(endpoints), finishes=finishes)


def _tasks(launch: LaunchSpec, hosts: Sequence[str]) -> dict[str, list[tuple[str, int]]]:
    """Return host and port of every task, by role and in the order of the tasks' indices."""
    count = launch.workers or len(hosts)
    if launch.strategy == "multi_worker_mirrored":
        return {"worker": _places(hosts, count, WORKER_PORT, 1)}
    # the chief only coordinates; one more must work
    trainers = _places(hosts, max(count, 2), CHIEF_PORT, 2)
    servers = _places(hosts, launch.parameter_servers or 1, SERVER_PORT, 2)
    return {"chief": trainers[:1], "worker": trainers[1:], "ps": servers}


def _places(hosts: Sequence[str], count: int, port: int, distance: int) -> list[tuple[str, int]]:
    """Assign `count` tasks to the hosts in turn. Return host and port of each task. The ports on
    one host begin with `port` and lie `distance` apart."""
    places = []
    for number in range(count):
        before, index = divmod(number, len(hosts))
        places.append((hosts[index], port + distance * before))
    return places


def _task_variables(cluster: Mapping[str, Sequence[str]], role: str, index: int) -> dict[str, str]:
    """Return the variables of a task. Parameter servers see no GPU, because TensorFlow would
    reserve all GPU memory and leave none to the host's workers."""
    config = {"cluster": cluster, "environment": "cloud", "task": {"index": index, "type": role}}
    variables = {"TF_CONFIG": json.dumps(config, sort_keys=True)}
    if role == "ps":
        variables["CUDA_VISIBLE_DEVICES"] = "-1"
    return variables


def _single(setup: _HostSetup) -> LaunchPlan:
    return LaunchPlan((HostProgram("process", setup.direct(), signal=setup.signal),))


_LAUNCHERS = {
    "torchrun": _torchrun,
    "mpirun": _mpirun,
    "tensorflow": _tensorflow,
    "single": _single,
}


def _sm_variables(setup: _HostSetup) -> dict[str, str]:
    """Return every `SM_` variable of one host, with the names and values that sagemaker-training
    5.1 gives a script.

    `SM_FRAMEWORK_PARAMS` holds the launcher's own hyperparameters. `SM_MODULE_DIR` is always the
    path of the code archive in the container. The toolkit sets this path only under network
    isolation, otherwise the archive's S3 URI. The input channel that holds the code has no
    variable.
    """
    resource = setup.resource
    machine = setup.machine
    root = setup.root
    program = setup.launch.entry_point or ""
    channels = dict(setup.channels)
    channels.pop(CODE_CHANNEL, None)
    folders = {name: f"{root}/input/data/{name}" for name in channels}
    hosts_of = instance_groups(resource)
    own_group = resource.get("current_group_name", HOMOGENEOUS)
    described = resource.get("instance_groups") or []
    groups_dict = {group["instance_group_name"]: group for group in described}
    values = {
        "current_host": setup.host,
        "current_instance_group": own_group,
        "current_instance_group_hosts": hosts_of.get(own_group, []),
        "current_instance_type": resource.get("current_instance_type", "local"),
        "distribution_instance_groups": setup.groups,
        "framework_module": None,
        "hosts": resource["hosts"],
        "input_config_dir": f"{root}/input/config",
        "input_data_config": channels,
        "input_dir": f"{root}/input",
        "instance_groups": list(hosts_of),
        "instance_groups_dict": groups_dict,
        "is_hetero": len(hosts_of) > 1,
        "log_level": 20,
        "model_dir": f"{root}/model",
        "module_dir": f"{root}/input/data/{CODE_CHANNEL}/sourcedir.tar.gz",
        "module_name": program[:-3] if program.endswith(".py") else program,
        "network_interface_name": resource.get("network_interface_name", "eth0"),
        "num_cpus": machine.cpus,
        "num_gpus": machine.gpus,
        "num_neurons": machine.neurons,
        "output_data_dir": f"{root}/output/data",
        "output_dir": f"{root}/output",
        "output_intermediate_dir": f"{root}/output/intermediate",
        "resource_config": resource,
        "user_entry_point": program,
    }
    training_env = {
        **values,
        "additional_framework_parameters": setup.reserved,
        "channel_input_dirs": folders,
        "distribution_hosts": setup.hosts,
        "hyperparameters": setup.user,
        "is_master": setup.host == setup.master,
        "is_modelparallel_enabled": None,
        "is_smddpmprun_installed": False,
        "is_smddprun_installed": False,
        "job_name": machine.variables.get("TRAINING_JOB_NAME", ""),
        "master_hostname": setup.master,
        "topology": resource.get("topology", []),
    }

    values["hps"] = setup.user
    values["framework_params"] = setup.reserved
    values["channels"] = sorted(channels)
    values["training_env"] = training_env
    values["user_args"] = setup.arguments
    if resource.get("topology"):
        values["topology"] = resource["topology"]
    for name, folder in folders.items():
        values[f"channel_{name}"] = folder
    for key, value in setup.user.items():
        if "=" not in key:
            values[f"hp_{key}"] = value
    return {f"SM_{name.upper()}": text_of(value) for name, value in values.items()}


def _own(setup: _HostSetup) -> dict[str, str]:
    """Return the variables that the launcher sets in addition to the `SM_` variables."""
    variables = setup.machine.variables
    address, port = setup.network.place(setup.master, MASTER_PORT)
    path = f"{setup.root}/code"
    if variables.get("PYTHONPATH"):
        path += f":{variables['PYTHONPATH']}"
    return {
        "CURRENT_HOST": setup.host,
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "PYTHONPATH": path,
        "SAGEMAKER_JOB_NAME": variables.get("TRAINING_JOB_NAME", ""),
        "SAGEMAKER_REGION": variables.get("AWS_REGION", ""),
    }


_RANK_OUTPUT = ("PET_TEE", "PET_REDIRECTS", "PET_LOG_DIR")
"""torchrun's settings for the output of ranks. With PET_TEE torchrun marks each line with its rank,
`[default3]:`. So the log of a host, which is all that SageMaker keeps, can be read rank by rank."""


def _defaults(setup: _HostSetup) -> dict[str, str]:
    """Return the default environment variables of the host's processes. The job's own environment
    overrides them.

    GLOO_SOCKET_IFNAME names gloo's network interface. Without it, gloo looks up the host's own
    name, which images without SageMaker's hostname shim cannot resolve, and then uses loopback.
    TORCH_ELASTIC_SHUTDOWN_TIMEOUT replaces torchrun's default of 30 s, because ranks have 120 s
    after SIGTERM.
    """
    resource = setup.resource
    interface = resource.get("network_interface_name", "eth0")
    defaults = {
        "NCCL_SOCKET_IFNAME": interface,
        "PYTHONUNBUFFERED": "1",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "110",
    }
    if len(setup.hosts) > 1:
        defaults["GLOO_SOCKET_IFNAME"] = interface
    variables = setup.machine.variables
    is_free = variables.keys().isdisjoint(_RANK_OUTPUT)
    if setup.launch.launcher == "torchrun" and is_free:
        defaults.update(PET_TEE="3", PET_LOG_DIR=f"{setup.root}/logs")
    if setup.machine.efa:
        defaults["FI_PROVIDER"] = "efa"
        words = str(resource.get("current_instance_type", "")).split(".")
        if not RDMA_FAMILIES.isdisjoint(words):
            defaults.update(FI_EFA_USE_DEVICE_RDMA="1", RDMAV_FORK_SAFE="1")
    return {name: value for name, value in defaults.items() if name not in variables}
