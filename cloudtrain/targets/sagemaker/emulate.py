"""Compile a job, a local target and a context into the plan of an emulated job."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePath
from shlex import quote

from cloudtrain.errors import JobError, Problem
from cloudtrain.job.model import format_duration, overrides_of
from cloudtrain.job.training import TrainingJob
from cloudtrain.plans.plan import CompileContext, Plan
from cloudtrain.plans.processes import Process
from cloudtrain.runtime.errors import SetupError
from cloudtrain.runtime.mpi_options import portable
from cloudtrain.runtime.sagemaker_launcher import CODE_CHANNEL, ROOT, container_entrypoint
from cloudtrain.runtime.sagemaker_launcher.machine import HostMachine
from cloudtrain.runtime.sagemaker_launcher.network import EMULATION, Network
from cloudtrain.runtime.sagemaker_launcher.plan import MASTER_PORT, LaunchPlan, launch_plan
from cloudtrain.targets.common import launchers
from cloudtrain.targets.common.compiling import Problems
from cloudtrain.targets.common.launch import LocalAccount, LocalSettings, local_plan
from cloudtrain.targets.common.launchers import (
    OPEN_MPI,
    install_mpirun,
    loopback_variables,
    redirected,
)
from cloudtrain.targets.common.scaling import gpu_share, placed_job, scaled_job, without_echoes
from cloudtrain.targets.common.specification import (
    CodePlace,
    LaunchSpecification,
    Link,
    StartedProcess,
)
from cloudtrain.targets.sagemaker.catalogue.images import ImageContents
from cloudtrain.targets.sagemaker.compile.machines import FIELD
from cloudtrain.targets.sagemaker.compile.places import place_problems
from cloudtrain.targets.sagemaker.compile.training import TrainingParts, finished_request, parts_of
from cloudtrain.targets.sagemaker.launch.commands import ToolkitCommand, command
from cloudtrain.targets.sagemaker.launch.container import HostSetup, environment
from cloudtrain.targets.sagemaker.launch.processes import script_of
from cloudtrain.targets.sagemaker.launch.shell import uses_shell, words
from cloudtrain.targets.sagemaker.reading import Start
from cloudtrain.targets.sagemaker.request import (
    INTERFACE,
    Host,
    JsonMapping,
    JsonObject,
    files,
    hosts,
    hyperparameters_file,
    input_data_config,
    is_entrypoint,
    resource_config,
    without,
)
from cloudtrain.targets.sagemaker.settings import SageMaker, SageMakerAccount

# Translate a container's paths and addresses to this machine's.

LOOPBACK = "127.0.0.1"

LOOPBACK_INTERFACE = "lo"

_INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "SM_NETWORK_INTERFACE_NAME")

_ROOT = re.compile(rf"(?<![\w.~/-]){re.escape(ROOT)}(?![\w.-])")
"""Matches `/opt/ml` as a whole path or as its beginning, but not `/data/opt/ml` or
`/opt/mlflow`."""


def relocate_text(text: str, root: str) -> str:
    """Return the text with `root` in place of each path `/opt/ml`."""
    return _ROOT.sub(lambda _: root, text)


def relocate_request(request: JsonMapping, root: str) -> JsonObject:
    """Replace `/opt/ml` in a request's hyperparameters and variables with `root`."""
    texts = request.get("HyperParameters", {})
    values = request.get("Environment", {})
    return {
        **request,
        "HyperParameters": {name: _relocate_json(text, root) for name, text in texts.items()},
        "Environment": {name: relocate_text(text, root) for name, text in values.items()},
    }


def _relocate_json(text: str, root: str) -> str:
    """Replace `/opt/ml` in a text with `root`, which is escaped if the text is JSON."""
    try:
        json.loads(text)
    except ValueError:
        return relocate_text(text, root)
    return relocate_text(text, json.dumps(root)[1:-1])


def port_name(endpoint: str) -> str:
    """Return the name of the local port that replaces `host:port`, such as `algo-1_7777`."""
    return endpoint.replace(":", "_")


def local_endpoint(endpoint: str) -> str:
    """Return the local address that replaces an endpoint such as `algo-1:7777`; its port is chosen
    at start."""
    return LOOPBACK + ":${{ports." + port_name(endpoint) + "}}"


def local_port(host: str, port: int | str) -> str:
    """Return a placeholder for the local port that replaces `port` of `host`; it is filled in at
    start."""
    return local_endpoint(f"{host}:{port}").partition(":")[2]


@dataclass(frozen=True)
class HostLaunch:
    """The processes that one host starts.

    Attributes:
        processes: the processes that the supervisor starts.
        children: children of `processes`, which appear only in the plan.
        signal: the processes that get SIGTERM first (see
            `cloudtrain.targets.common.specification`).
        ranks: number of ranks that a launcher starts.
        endpoints: every `host:port` at which a process listens, on any host.
        wrappers: programs that take the place of those in the image, by their paths.
        notes: sentences that the plan shows.
    """

    processes: tuple[Process, ...]
    children: tuple[Process, ...] = ()
    signal: str = "leader"
    ranks: int = 0
    endpoints: tuple[str, ...] = ()
    wrappers: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class EmulatedJob:
    """An emulated job. `request` is the one that SageMaker would get. It names no number of
    processes where the toolkit would count the GPUs of the real instance, so each host starts
    `processes_per_instance`. `world_size` is the number of all ranks, among which the CPUs are
    divided."""

    request: JsonObject
    container: ImageContents
    account: LocalAccount
    python: str
    run_dir: str
    region: str
    processes_per_instance: int
    world_size: int
    grace_period: int

    @cached_property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(sorted(hosts(self.request), key=lambda host: host.index))

    def root(self, host: Host) -> str:
        """Return the folder that replaces the host's `/opt/ml`."""
        return f"{self.run_dir}/hosts/{host.name}/opt/ml"

    def request_of(self, host: Host) -> JsonObject:
        return relocate_request(self.request, self.root(host))

    def gpu_share(self, host: Host) -> tuple[str, ...]:
        return gpu_share(self.account.machine.gpu_ids, len(self.hosts), host.index)

    def variables(self, host: Host) -> dict[str, str]:
        """Return the variables with which a host's toolkit or launcher starts: the request's and
        the emulation's."""
        threads = max(1, self.account.machine.cpus // self.world_size)
        variables = {
            "AWS_REGION": self.region,
            "CLOUDTRAIN_RUN_DIR": self.run_dir,
            **loopback_variables(self.account.loopback),
            "OMP_NUM_THREADS": str(threads),
            "PYTHONUNBUFFERED": "1",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(self.grace_period),
            "TRAINING_JOB_NAME": self.request["TrainingJobName"],
        }
        share = self.gpu_share(host)
        if share and len(self.hosts) > 1:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(share)
        return {**variables, **self.request_of(host)["Environment"]}

    @property
    def mpirun(self) -> str:
        """Return the path of mpirun. Raises a `JobError` if this machine has none."""
        if self.account.mpirun is None:
            message = (
                "the container would start `mpirun`, which is neither beside "
                f"`{self.python}` nor on the PATH"
            )
            path = ("distribution", "type")
            raise JobError([Problem(path, message, install_mpirun(), code="CT038")])
        return self.account.mpirun

    def torchrun_variables(self, host: Host) -> dict[str, str]:
        """Return variables that make torchrun write each rank's output to a file; torchrun's argv
        stays unchanged."""
        return {"PET_LOG_DIR": f"{self.run_dir}/logs/instance_{host.index}", "PET_REDIRECTS": "3"}


# Emulate jobs in entrypoint mode: cloudtrain's real launcher runs for every host, with the
# container's argv.


def entrypoint_host(stage: EmulatedJob, host: Host) -> HostLaunch:
    """Return the processes of one host: the launcher and its children."""
    plan = _plan(stage, host)
    first = plan.programs[0].role if plan.programs else ""
    variables = stage.variables(host)
    for name in _INTERFACE_VARIABLES:
        if variables.get(name) == INTERFACE:  # of the request
            variables[name] = LOOPBACK_INTERFACE
    ranks: Sequence[Process] = ()
    count = plan.processes_per_instance
    if first == "torchrun":
        variables |= stage.torchrun_variables(host)
        script = script_of(plan.programs[0])
        ranks = _torchrun_ranks(host, plan.hosts, script, python=plan.python, count=count)
    elif first == "mpirun":
        # the launcher looks for mpirun on the PATH
        folder = os.path.dirname(stage.mpirun)
        path = variables.get("PATH", "${{env.PATH}}")
        variables = {**OPEN_MPI, **variables, "PATH": f"{folder}:{path}"}
        # behind mpirun's options: the script's interpreter with its arguments, or another program
        argv = plan.programs[0].argv
        start = len(argv) - 1
        if stage.python in argv:
            start = argv.index(stage.python)
        ranks = tuple(launchers.mpirun_ranks(argv[start:], processes=count))
    if plan.endpoints:
        addresses = {endpoint: local_endpoint(endpoint) for endpoint in sorted(plan.endpoints)}
        variables[EMULATION] = json.dumps(addresses)

    children: list[Process] = []
    role = "process"
    if first != "process":
        role = "launcher"
        for program in plan.programs:
            children.append(Process(host.index, program.role, program.argv, program.env))
    entrypoint = tuple(container_entrypoint(stage.root(host), stage.python))
    return HostLaunch(
        (Process(host.index, role, entrypoint, variables),),
        (*children, *ranks),
        ranks=len(ranks),
        endpoints=plan.endpoints,
    )


def _plan(stage: EmulatedJob, host: Host) -> LaunchPlan:
    """Return the launcher's plan with the containers' addresses; ports on this machine are chosen
    at start."""
    request = stage.request_of(host)
    machine = HostMachine(
        python=stage.python,
        cpus=stage.account.machine.cpus,
        gpus=len(stage.gpu_share(host)),
        variables=stage.variables(host),
    )
    try:
        return launch_plan(
            hyperparameters_file(request),
            resource_config(request, host, LOOPBACK_INTERFACE),
            input_data_config(request),
            machine,
            root=stage.root(host),
            network=Network({}),
        )
    except SetupError as error:
        message = f"on SageMaker the job would stop at once: {error.message}"
        path = (FIELD, "HyperParameters")
        raise JobError([Problem(path, message, error.hint, code="CT039")]) from None


def _torchrun_ranks(
    host: Host, hosts: Sequence[str], script: Sequence[str], *, python: str, count: int
) -> tuple[Process, ...]:
    """Return the `count` ranks on a host. `hosts` are the names of torchrun's hosts."""
    all_ranks = launchers.torchrun_ranks(
        script, python=python, instance_count=len(hosts), processes_per_instance=count
    )
    first = hosts.index(host.name) * count
    own_ranks = map(all_ranks.make, range(first, first + count))
    return tuple(replace(rank, instance=host.index) for rank in own_ranks)


# The processes that the image's toolkit starts on a host, with this machine's interpreter,
# addresses and mpirun.

SERVER = (
    "import json, os, tensorflow as tf\n"
    "config = json.loads(os.environ['TF_CONFIG'])\n"
    "task = config['task']\n"
    "settings = tf.compat.v1.ConfigProto(device_count={'GPU': 0})\n"
    "cluster = tf.train.ClusterSpec(config['cluster'])\n"
    "tf.distribute.Server(cluster, job_name='ps', task_index=task['index'], "
    "config=settings).join()\n"
)
"""A program that acts as the parameter server, which sagemaker-tensorflow-training forks from its
own process."""


def toolkit_host(stage: EmulatedJob, host: Host) -> HostLaunch:
    """Return the processes of one host. Raises a `JobError` if the toolkit would refuse the job."""
    root = stage.root(host)
    setup = HostSetup(
        stage.request_of(host),
        host,
        stage.container,
        gpus=len(stage.gpu_share(host)),
        cpus=stage.account.machine.cpus,
        root=root,
        interface=LOOPBACK_INTERFACE,
        default_processes=stage.processes_per_instance,
    )
    toolkit_command = command(setup)
    if stage.container.framework != "generic" and uses_shell(stage.container.toolkit):
        toolkit_command = _after_shell(toolkit_command, stage.python, root)
    if toolkit_command.error is not None:
        message = f"on SageMaker the job would stop at once: {toolkit_command.error}"
        hint = "run it here without `--emulate sagemaker`"
        raise JobError([Problem(("distribution", "type"), message, hint, code="CT039")])

    env = environment(setup)
    own = stage.variables(host)
    python_path = own.get("PYTHONPATH", "${{env.PYTHONPATH}}")
    variables = {
        **own,
        **env,
        **toolkit_command.env,
        "PYTHONPATH": f"{root}/code:{python_path}",
    }
    if toolkit_command.role == "sshd":
        note = f"{host.name} would wait for mpirun's ranks; here they all run on the first host"
        return HostLaunch((), notes=(note,))

    start = _STARTS[toolkit_command.role]
    master = env.get("MASTER_ADDR")
    if master is None:
        return start(stage, setup, toolkit_command, variables)
    variables["MASTER_ADDR"] = LOOPBACK
    variables["MASTER_PORT"] = local_port(master, env["MASTER_PORT"])
    launch = start(stage, setup, toolkit_command, variables)
    endpoint = f"{master}:{MASTER_PORT}"
    return replace(launch, endpoints=(*launch.endpoints, endpoint))


def _after_shell(command: ToolkitCommand, python: str, root: str) -> ToolkitCommand:
    """Return the command as it arrives through the shell of old toolkits. The shell sees the paths
    of the container, not `python` and `root`. What it would do besides removing quotes and
    splitting words is left undone."""
    script = command.program[2:] if command.role == "torchrun" else command.program
    line = " ".join(script).replace(root, ROOT).replace(python, quote(python))
    arrived = tuple(relocate_text(word, root) for word in words(line) or ())
    if not arrived:
        return command
    argv = command.argv[: -len(script)] + arrived
    return command._replace(argv=argv, program=command.program[: -len(script)] + arrived)


def _torchrun(
    stage: EmulatedJob, setup: HostSetup, command: ToolkitCommand, variables: dict[str, str]
) -> HostLaunch:
    """Return a host with a torchrun process, which uses a free port.

    For a single host, the toolkit sets no port, and torchrun's default port may be in use on this
    machine.
    """
    host = setup.host
    script = command.program[2:]
    first_option = command.argv.index("torchrun") + 1
    options = list(command.argv[first_option : -len(script)])
    port = local_port(setup.master, MASTER_PORT)
    if "--master_addr" in options:
        options[options.index("--master_addr") + 1] = LOOPBACK
        options[options.index("--master_port") + 1] = port
    else:
        variables = {**variables, "PET_MASTER_PORT": port}
    variables = {**variables, **stage.torchrun_variables(host)}

    argv = (stage.python, "-m", "cloudtrain.runtime.torchrun", *options, *script)
    process = Process(host.index, "torchrun", argv, variables)
    count = command.ranks
    ranks = _torchrun_ranks(
        host, setup.distribution_hosts, script, python=stage.python, count=count
    )
    endpoint = f"{setup.master}:{MASTER_PORT}"
    return HostLaunch((process,), ranks, ranks=count, endpoints=(endpoint,))


def _mpirun(
    stage: EmulatedJob, setup: HostSetup, command: ToolkitCommand, variables: dict[str, str]
) -> HostLaunch:
    """Return a host with an mpirun process, which starts all ranks; each rank writes its output to
    separate files."""
    given = command.argv[1 : -len(command.program)]
    options = portable(_mpi_options(given))
    ranked = list(command.program)
    wrappers: dict[str, str] = {}
    if command.copies:
        ranked[0] = f"{stage.run_dir}/programs/{ranked[0]}"
        wrappers[ranked[0]] = _wrapper(command.copies, stage.processes_per_instance)

    program = redirected(ranked, f"{stage.run_dir}/logs/instance_{setup.host.index}")
    argv = (stage.mpirun, *options, *program)
    process = Process(setup.host.index, "mpirun", argv, {**OPEN_MPI, **variables})
    notes: tuple[str, ...] = ()
    if "mpi4py" in command.program:
        notes = (
            "the ranks start through mpi4py, as in SageMaker's images: `pip install mpi4py` where "
            "it is missing",
        )
    return HostLaunch(
        (process,), signal="ranks", ranks=command.ranks, wrappers=wrappers, notes=notes
    )


def _wrapper(copies: Mapping[str, str], slots: int) -> str:
    """Return a program that takes the place of a wrapper in the image: it copies mpirun's variables
    and starts the script. mpirun sees one host here, so the local rank on a host with `slots` is
    computed."""
    lines = ["#!/bin/sh", f"OMPI_COMM_WORLD_LOCAL_RANK=$((OMPI_COMM_WORLD_RANK % {slots}))"]
    lines += [f'export {name}="${original}"' for name, original in copies.items()]
    return "\n".join([*lines, 'exec "$@"', ""])


def _mpi_options(options: Sequence[str]) -> list[str]:
    """Translate mpirun's options for this machine.

    Every host becomes this machine, and the interface becomes loopback. The preloaded library that
    sets host names is removed, and `--tag-output` too, because each rank writes its own log.
    """
    local: list[str] = []
    rest = iter(options)
    for option in rest:
        if option == "--host":
            slots = _slots_in(next(rest, ""))
            local += [option, f"{LOOPBACK}:{slots}"]
        elif option == "-x":
            name, equals, text = next(rest, "").partition("=")
            if text == INTERFACE:
                text = LOOPBACK_INTERFACE
            if name != "LD_PRELOAD":
                local += [option, f"{name}{equals}{text}"]
        elif option == INTERFACE:
            local.append(LOOPBACK_INTERFACE)
        elif option != "--tag-output":
            local.append(option)
    return local


def _slots_in(hosts: str) -> int:
    """Return the number of slots of hosts such as `algo-1:4,algo-2:4`; a host without a number has
    one slot."""
    numbers = [host.partition(":")[2] or 1 for host in hosts.split(",")]
    return sum(map(int, numbers))


def _script(
    stage: EmulatedJob, setup: HostSetup, command: ToolkitCommand, variables: dict[str, str]
) -> HostLaunch:
    """Return a host that runs the script itself, and a parameter server if the job uses them."""
    host = setup.host
    signal = "leader" if command.argv[0] == stage.python else "group"
    given = variables.get("TF_CONFIG")
    if given is None:
        process = Process(host.index, "process", command.argv, variables)
        return HostLaunch((process,), signal=signal)

    config = json.loads(given)
    cluster = config["cluster"]
    endpoints: list[str] = []
    config["cluster"] = {}
    for kind, members in cluster.items():
        endpoints += members
        config["cluster"][kind] = list(map(local_endpoint, members))
    role = config["task"]["type"]
    env = {**variables, "TF_CONFIG": json.dumps(config)}
    processes = [Process(host.index, role, command.argv, env)]
    if "ps" in cluster:
        names = [address.partition(":")[0] for address in cluster["ps"]]
        config["task"] = {"index": names.index(host.name), "type": "ps"}
        env = {**variables, "TF_CONFIG": json.dumps(config)}
        argv = (stage.python, "-c", SERVER)
        processes.append(Process(host.index, "ps", argv, env))
    return HostLaunch(tuple(processes), signal=signal, endpoints=tuple(endpoints))


_STARTS: dict[
    str, Callable[[EmulatedJob, HostSetup, ToolkitCommand, dict[str, str]], HostLaunch]
] = {
    "torchrun": _torchrun,
    "mpirun": _mpirun,
    "process": _script,
}


ACCOUNT = SageMakerAccount(
    region="us-east-1",
    role="arn:aws:iam::000000000000:role/emulated",
    bucket="emulated",
)
"""A placeholder account, because the request is never sent.

Only settings that the container can see are used: the region, the launch mode, and the mode of the
channels.
"""

LAUNCHER_PATIENCE = 60.0
"""Seconds that cloudtrain's launcher gets, after a rank failed, to end the other ranks and write
the failure file."""

_REPEATED = ("SM_RESOURCE_CONFIG", "SM_TRAINING_ENV")

_LAUNCHERS = ("torchrun", "mpirun")

_MACHINES = "ResourceConfig"
"""The request fields that describe machines."""


def compile_as_sagemaker(job: TrainingJob, target: LocalSettings, context: CompileContext) -> Plan:
    """Return the plan of a job that runs on this machine as SageMaker would run it. Raises a
    `JobError` with what neither this machine nor SageMaker can run."""
    account: LocalAccount = context.account
    problems = Problems()
    scaled = problems.collect_from(lambda: scaled_job(job, target, account), None)

    sagemaker = account.emulated or SageMaker()
    there = ACCOUNT._replace(region=sagemaker.region or ACCOUNT.region)
    parts = parts_of(
        scaled[0] if scaled else job,
        SageMaker(launch=sagemaker.launch, input_mode=sagemaker.input_mode),
        context._replace(account=there),
        problems,
    )
    if job.entry_point is None and job.command is None:
        message = "the job runs the image's own program, which is not on this machine"
        problems.append(
            Problem(("entry_point",), message, "add an `entry_point` or a `command`", code="CT036")
        )
    problems += place_problems(scaled[0] if scaled else placed_job(job, target))
    if problems or scaled is None or parts is None:
        raise JobError(without_echoes(problems))

    python = target.python or account.python
    overrides = dict(overrides_of(job, "sagemaker"))
    overrides.pop(_MACHINES, None)  # the machines were scaled to this one
    request = finished_request(parts, overrides)
    stage = EmulatedJob(
        request=request,
        container=_container(request, parts, python),
        account=account,
        python=python,
        run_dir=account.run_dir(context.run_name),
        region=there.region,
        processes_per_instance=scaled[1].processes_per_instance,
        world_size=scaled[1].world_size,
        grace_period=target.grace_period,
    )

    start = entrypoint_host if is_entrypoint(request) else toolkit_host
    launches = {host: start(stage, host) for host in stage.hosts}
    processes = _assign_ranks(launches)
    specification = _specification(stage, job, context, launches, processes)
    return local_plan(
        specification,
        job.name,
        context,
        processes=tuple(_shown_processes(launches, processes)),
        summary=_summary(stage, parts, job, specification.world_size),
        notes=dict.fromkeys(_notes(job, launches)),
    )


def _notes(job: TrainingJob, launches: dict[Host, HostLaunch]) -> Iterator[str]:
    if _MACHINES in overrides_of(job, "sagemaker"):
        yield f"`{FIELD}.{_MACHINES}` does not count here: the machines are this one's"
    kind = job.distribution.type
    if kind in ("smddp", "smp"):
        yield (
            f"the library of `{kind}` is only in SageMaker's images: a script that imports it "
            "needs a module of the same name in its code"
        )
    for launch in launches.values():
        yield from launch.notes


def _container(request: JsonMapping, parts: TrainingParts, python: str) -> ImageContents:
    """Return the known contents of the request's image, or else of the job's, without the
    model-parallel library's wrapper and the PyTorch version: an emulation runs this machine's
    interpreter, `python`, instead of the image's."""
    algorithm = {"TrainingImage": parts.image.uri, **request["AlgorithmSpecification"]}
    with_image = {**request, "AlgorithmSpecification": algorithm}
    start = Start.of(with_image, parts.job.environment.framework)
    return start.container._replace(
        python=python, smddpmprun=False, torch=None, training_module=None
    )


def _specification(
    stage: EmulatedJob,
    job: TrainingJob,
    context: CompileContext,
    launches: dict[Host, HostLaunch],
    processes: list[Process],
) -> LaunchSpecification:
    """Return the launch specification: each host's `/opt/ml` folder, the processes, and the result
    folders."""
    roots = [stage.root(host) for host in stage.hosts]

    def on_each_host(folder: str) -> tuple[str, ...]:
        return tuple(f"{root}/{folder}" for root in roots)

    # all hosts share the folder that replaces the S3 location
    checkpoint = f"{stage.run_dir}/checkpoint"
    if job.checkpoint and job.checkpoint.local:
        checkpoint = job.checkpoint.local
    synced = stage.request.get("CheckpointConfig", {}).get("LocalPath")

    directories: list[str] = []
    for folder in ("model", "output/data", "input/data"):
        directories += on_each_host(folder)
    places = {
        "model": on_each_host("model"),
        "checkpoint": on_each_host("code/checkpoint"),
        "outputs": on_each_host("output/data"),
    }
    for name in job.outputs:
        if name != "model":
            places[f"outputs/{name}"] = on_each_host(f"output/data/{name}")

    files: dict[str, str] = {}
    links: list[Link] = []
    for host in stage.hosts:
        files.update(_files(stage, host))
        links += _links(stage, job, host)
    if synced:
        directories.append(checkpoint)
        places["checkpoint"] = (checkpoint,)
        for root in roots:
            links.append(Link(relocate_text(synced, root), checkpoint, None))

    archive = stage.account.archive(context.bundle)
    sha256 = context.bundle.sha256
    unpacks = is_entrypoint(stage.request)  # by our launchers
    if unpacks:
        code = CodePlace(archive, sha256, None, unpacked=on_each_host("code"))
        for path in on_each_host(f"input/data/{CODE_CHANNEL}/sourcedir.tar.gz"):
            links.append(Link(path, archive, None))
    else:
        first, *others = on_each_host("code")
        code = CodePlace(archive, sha256, first, tuple(others))

    roles: set[str] = set()
    endpoints: set[str] = set()
    wrappers: dict[str, str] = {}
    ranks = sum(process.rank is not None for process in processes)
    for launch in launches.values():
        ranks += launch.ranks
        wrappers.update(launch.wrappers)
        endpoints.update(launch.endpoints)
        for process in (*launch.processes, *launch.children):
            roles.add(process.role)

    launcher = next((name for name in _LAUNCHERS if name in roles), "processes")
    metrics = stage.request["AlgorithmSpecification"].get("MetricDefinitions", ())
    return LaunchSpecification(
        name=context.run_name,
        run_dir=stage.run_dir,
        emulates="sagemaker",
        code=code,
        directories=tuple(sorted(directories)),
        files={**files, **wrappers},
        programs=tuple(wrappers),
        links=tuple(links),
        failure_files=on_each_host("output/failure"),
        places=places,
        launcher=launcher,
        instances=len(stage.hosts),
        world_size=ranks,
        ports=tuple(map(port_name, sorted(endpoints))),
        processes=tuple(_started_process(stage, launches, process) for process in processes),
        finishes=("master",) if roles.issuperset(("master", "ps")) else (),
        patience=LAUNCHER_PATIENCE if unpacks else LaunchSpecification.patience,
        grace_period=stage.grace_period,
        max_runtime=job.max_runtime,
        metrics={str(row["Name"]): str(row["Regex"]) for row in metrics} or None,
    )


def _files(stage: EmulatedJob, host: Host) -> Iterator[tuple[str, str]]:
    """Yield path and text of the configuration files of one host."""
    contents = files(stage.request_of(host), host, stage.root(host), LOOPBACK_INTERFACE)
    for path, content in contents.items():
        yield path, json.dumps(content, indent=1, sort_keys=True)


def _links(stage: EmulatedJob, job: TrainingJob, host: Host) -> Iterator[Link]:
    """Yield the links to the input data of one host.

    In a sharded channel, each of n hosts gets every n-th file. Channels of other instance groups
    are left out.
    """
    for name, item in job.inputs.items():
        sharing = list(stage.hosts)
        if item.instance_groups:
            sharing = [other for other in sharing if other.group in item.instance_groups]
        if host not in sharing:
            continue
        assert item.local is not None, "the scaled job was refused otherwise"
        path = f"{stage.root(host)}/input/data/{item.channel or name}"
        shard = None
        if item.type == "uri_file":
            file_name = PurePath(item.sagemaker or item.local).name
            path += f"/{file_name}"
        elif item.shard:
            shard = (sharing.index(host), len(sharing))
        yield Link(path, item.local, shard)


def _assign_ranks(launches: dict[Host, HostLaunch]) -> list[Process]:
    """Return the processes that the supervisor starts.

    Scripts that run without a launcher get ranks: after the ranks of all launchers, in the order of
    host names, with parameter servers last.
    """
    processes: list[Process] = []
    rank = 0
    for launch in launches.values():
        processes += launch.processes
        rank += launch.ranks
    name_of = {host.index: host.name for host in launches}

    def position(place: int) -> tuple[bool, str]:
        process = processes[place]
        return process.role == "ps", name_of[process.instance]

    for place in sorted(range(len(processes)), key=position):
        process = processes[place]
        if process.role not in (*_LAUNCHERS, "launcher"):
            processes[place] = replace(process, rank=rank, local_rank=0)
            rank += 1
    return processes


def _started_process(
    stage: EmulatedJob, launches: dict[Host, HostLaunch], process: Process
) -> StartedProcess:
    """Return a process as the supervisor starts it. Its working directory holds the code; a
    launcher that unpacks the code starts in the host's `/opt/ml`."""
    host = stage.hosts[process.instance]
    folder = stage.root(host)
    if not is_entrypoint(stage.request):
        folder += "/code"
    env = dict(sorted(process.env.items()))
    return StartedProcess.of(replace(process, env=env), launches[host].signal, folder)


def _shown_processes(
    launches: dict[Host, HostLaunch], processes: list[Process]
) -> Iterator[Process]:
    """Yield the plan's processes: started processes, then their children, without the variables in
    `_REPEATED`."""
    shown = list(processes)
    for launch in launches.values():
        shown += launch.children
    for process in shown:
        yield replace(process, env=without(process.env, _REPEATED))


def _summary(
    stage: EmulatedJob, parts: TrainingParts, job: TrainingJob, world_size: int
) -> Iterator[tuple[str, str]]:
    count = len(stage.hosts)
    instances = " + ".join(dict.fromkeys(host.instance_type for host in stage.hosts))
    if count > 1:
        instances = f"{count} x {instances}"
    starter = "the image's toolkit"
    if is_entrypoint(stage.request):
        starter = "cloudtrain's own launcher"
    yield "target", f"local ({stage.account.machine}), as SageMaker would run it"
    yield "instances", f"{instances}, simulated"
    yield "processes", str(world_size)
    yield "started by", f"{starter}: {parts.launch.reason}"
    image = stage.request["AlgorithmSpecification"].get("TrainingImage")
    if image:
        yield "image", f"{image} (not used here)"
    yield "script", job.entry_point or job.command or ""
    yield "/opt/ml", f"{stage.run_dir}/hosts/algo-N/opt/ml"
    if job.max_runtime:
        yield "max runtime", format_duration(job.max_runtime)
