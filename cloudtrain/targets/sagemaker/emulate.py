"""Compile a job, a local target and a context into the plan of an emulated job."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath

from cloudtrain.errors import JobError, Problem
from cloudtrain.job.model import format_duration, overrides_of
from cloudtrain.job.training import TrainingJob
from cloudtrain.plans.plan import CompileContext, Plan
from cloudtrain.plans.processes import Process
from cloudtrain.runtime.errors import SetupError
from cloudtrain.runtime.mpi_options import portable
from cloudtrain.runtime.sagemaker_launcher import CODE_CHANNEL, container_entrypoint
from cloudtrain.runtime.sagemaker_launcher.machine import HostMachine
from cloudtrain.runtime.sagemaker_launcher.network import EMULATION, Network
from cloudtrain.runtime.sagemaker_launcher.plan import MASTER_PORT, LaunchPlan, launch_plan
from cloudtrain.targets.common import launchers
from cloudtrain.targets.common.compiling import Problems
from cloudtrain.targets.common.launch import LocalAccount, LocalSettings, local_plan
from cloudtrain.targets.common.launchers import OPEN_MPI, redirected
from cloudtrain.targets.common.scaling import placed_job, scaled_job, without_echoes
from cloudtrain.targets.common.specification import (
    CodePlace,
    LaunchSpecification,
    Link,
    StartedProcess,
)
from cloudtrain.targets.sagemaker.catalogue.contents import ImageContents
from cloudtrain.targets.sagemaker.compile.machines import FIELD
from cloudtrain.targets.sagemaker.compile.places import place_problems
from cloudtrain.targets.sagemaker.compile.training import TrainingParts, finished_request, parts_of
from cloudtrain.targets.sagemaker.emulate_stage import (
    LOOPBACK,
    LOOPBACK_INTERFACE,
    EmulatedJob,
    HostLaunch,
    local_endpoint,
    local_port,
    local_tf_config,
    local_variables,
    port_name,
    relocate_text,
    with_loopback,
)
from cloudtrain.targets.sagemaker.launch.commands import ToolkitCommand, command
from cloudtrain.targets.sagemaker.launch.container import HostSetup, environment
from cloudtrain.targets.sagemaker.launch.processes import script_of
from cloudtrain.targets.sagemaker.reading import Start
from cloudtrain.targets.sagemaker.request import (
    INTERFACE,
    Host,
    JsonMapping,
    files,
    hyperparameters_file,
    input_data_config,
    is_entrypoint,
    resource_config,
)
from cloudtrain.targets.sagemaker.settings import SageMaker, SageMakerAccount

# Emulate jobs in entrypoint mode: cloudtrain's real launcher runs for every host, with the
# container's argv.


def entrypoint_host(stage: EmulatedJob, host: Host) -> HostLaunch:
    """Return the processes of one host: the launcher and its children."""
    plan = _plan(stage, host)
    first = plan.programs[0].role if plan.programs else ""
    variables = local_variables(stage.variables(host))
    if first == "torchrun":
        variables |= stage.torchrun_variables(host)
    if first == "mpirun":
        folder, path = os.path.dirname(stage.mpirun), variables.get("PATH", "${{env.PATH}}")
        # on which the launcher finds mpirun
        variables = {**OPEN_MPI, **variables, "PATH": f"{folder}:{path}"}
    if plan.endpoints:
        variables[EMULATION] = json.dumps(
            {endpoint: local_endpoint(endpoint) for endpoint in sorted(plan.endpoints)}
        )
    role = "process" if first == "process" else "launcher"
    argv = tuple(container_entrypoint(stage.root(host), stage.python))
    launched = tuple(
        Process(host.index, each.role, each.argv, each.env)
        for each in plan.programs
        if role == "launcher"
    )
    return HostLaunch(
        (Process(host.index, role, argv, variables),),
        (*launched, *_ranks(stage, host, plan)),
        ranks=plan.processes_per_instance if first in _LAUNCHERS else 0,
        endpoints=plan.endpoints,
        unpacks=True,
    )


def _plan(stage: EmulatedJob, host: Host) -> LaunchPlan:
    """Return the launcher's plan with the containers' addresses; ports on this machine are chosen
    at start."""
    request, cpus = stage.request_of(host), stage.account.machine.cpus
    machine = HostMachine(
        python=stage.python, cpus=cpus, gpus=stage.gpus(host), variables=stage.variables(host)
    )
    resource = with_loopback(resource_config(request, host))
    configuration = hyperparameters_file(request), resource, input_data_config(request)
    try:
        return launch_plan(*configuration, machine, root=stage.root(host), network=Network({}))
    except SetupError as error:
        message, path = (
            f"on SageMaker the job would stop at once: {error.message}",
            (FIELD, "HyperParameters"),
        )
        raise JobError([Problem(path, message, error.hint, code="CT039")]) from None


def _ranks(stage: EmulatedJob, host: Host, plan: LaunchPlan) -> Sequence[Process]:
    program = plan.programs[0] if plan.programs else None
    if program is None or program.role not in _LAUNCHERS:
        return ()
    count = plan.processes_per_instance
    if program.role == "mpirun":
        start = (
            program.argv.index(stage.python)
            if stage.python in program.argv
            else len(program.argv) - 1
        )
        return tuple(launchers.mpirun_ranks(program.argv[start:], processes=count))
    own = plan.hosts.index(host.name)
    return _torchrun_ranks(
        host, script_of(program), python=plan.python, hosts=len(plan.hosts), own=own, count=count
    )


def _torchrun_ranks(
    host: Host, script: Sequence[str], *, python: str, hosts: int, own: int, count: int
) -> tuple[Process, ...]:
    """Return the `count` ranks on a host, whose number among torchrun's hosts is `own`."""
    every = launchers.torchrun_ranks(
        script, python=python, instance_count=hosts, processes_per_instance=count
    )
    return tuple(
        replace(every.make(own * count + number), instance=host.index) for number in range(count)
    )


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
    request, root, gpus = stage.request_of(host), stage.root(host), stage.gpus(host)
    setup = HostSetup(
        request, host, stage.container, gpus=gpus, cpus=stage.account.machine.cpus, root=root
    )
    toolkit_command = command(setup)
    if toolkit_command.error is not None:
        message = f"on SageMaker the job would stop at once: {toolkit_command.error}"
        raise JobError(
            [
                Problem(
                    ("distribution", "type"),
                    message,
                    "run it here without `--emulate sagemaker`",
                    code="CT039",
                )
            ]
        )
    env = environment(setup)
    own = stage.variables(host)
    variables = {
        **own,
        **local_variables({**env, **toolkit_command.env}),
        "PYTHONPATH": f"{root}/code:" + own.get("PYTHONPATH", "${{env.PYTHONPATH}}"),
    }
    if (master := env.get("MASTER_ADDR")) is None:
        return _STARTS[toolkit_command.role](stage, host, toolkit_command, variables)
    variables |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": local_port(master, env["MASTER_PORT"])}
    launch = _STARTS[toolkit_command.role](stage, host, toolkit_command, variables)
    return replace(launch, endpoints=(*launch.endpoints, f"{master}:{MASTER_PORT}"))


def _torchrun(
    stage: EmulatedJob, host: Host, command: ToolkitCommand, variables: dict[str, str]
) -> HostLaunch:
    """Return a host with a torchrun process, which uses a free port.

    For a single host, the toolkit sets no port, and torchrun's default port may be in use on this
    machine.
    """
    script = command.program[2:]
    options = list(command.argv[command.argv.index("torchrun") + 1 : -len(script)])
    master = _option(options, "--master_addr")
    endpoint = f"{master or host.name}:{MASTER_PORT}"
    if master:
        options[options.index("--master_addr") + 1] = LOOPBACK
        options[options.index("--master_port") + 1] = local_port(master, MASTER_PORT)
    else:
        variables = {**variables, "PET_MASTER_PORT": local_port(host.name, MASTER_PORT)}
    argv = (stage.python, "-m", "cloudtrain.runtime.torchrun", *options, *script)
    process = Process(host.index, "torchrun", argv, {**variables, **stage.torchrun_variables(host)})
    count, own = int(_option(options, "--nnodes") or 1), int(_option(options, "--node_rank") or 0)
    ranks = _torchrun_ranks(
        host, script, python=stage.python, hosts=count, own=own, count=command.ranks
    )
    return HostLaunch((process,), ranks, ranks=command.ranks, endpoints=(endpoint,))


def _mpirun(
    stage: EmulatedJob, host: Host, command: ToolkitCommand, variables: dict[str, str]
) -> HostLaunch:
    """Return a host with an mpirun process, which starts all ranks; each rank writes its output to
    separate files."""
    options = portable(_mpi_options(command.argv[1 : -len(command.program)]))
    program = redirected(command.program, f"{stage.run_dir}/logs/instance_{host.index}")
    argv = (stage.mpirun, *options, *program)
    process = Process(host.index, "mpirun", argv, {**OPEN_MPI, **variables})
    notes = (
        (
            "the ranks start through mpi4py, as in SageMaker's images: `pip install mpi4py` where "
            "it is missing"
        ),
    )
    return HostLaunch(
        (process,),
        signal="ranks",
        ranks=command.ranks,
        notes=notes if "mpi4py" in command.program else (),
    )


def _mpi_options(options: Sequence[str]) -> list[str]:
    """Translate mpirun's options for this machine.

    Every host becomes this machine, and the interface becomes loopback. The preloaded library that
    sets host names is removed, and `--tag-output` too, because each rank writes its own log.
    """
    local: list[str] = []
    rest = iter(options)
    for option in rest:
        if option == "--host":
            # such as `algo-1:4,algo-2:4`; a host without a number has one slot
            hosts = next(rest, "").split(",")
            local += [
                option,
                f"{LOOPBACK}:{sum(int(host.partition(':')[2] or 1) for host in hosts)}",
            ]
        elif option == "-x":
            local += _local_export(next(rest, ""))
        elif option != "--tag-output":
            local.append(LOOPBACK_INTERFACE if option == INTERFACE else option)
    return local


def _local_export(value: str) -> list[str]:
    name, equals, text = value.partition("=")
    if name == "LD_PRELOAD":
        return []
    return ["-x", f"{name}{equals}{LOOPBACK_INTERFACE}" if text == INTERFACE else value]


def _sshd(
    stage: EmulatedJob,  # noqa: ARG001
    host: Host,
    command: ToolkitCommand,  # noqa: ARG001
    variables: dict[str, str],  # noqa: ARG001
) -> HostLaunch:
    """Return a host without processes, which on SageMaker runs sshd for mpirun. Here all ranks run
    on the first host."""
    return HostLaunch(
        (),
        notes=(f"{host.name} would wait for mpirun's ranks; here they all run on the first host",),
    )


def _script(
    stage: EmulatedJob, host: Host, command: ToolkitCommand, variables: dict[str, str]
) -> HostLaunch:
    """Return a host that runs the script itself, and a parameter server if the job uses them."""
    signal = "leader" if command.argv[0] == stage.python else "group"
    if "TF_CONFIG" not in variables:
        return HostLaunch((Process(host.index, "process", command.argv, variables),), signal=signal)
    text, endpoints = local_tf_config(variables["TF_CONFIG"])
    config = json.loads(text)
    processes = [
        Process(host.index, config["task"]["type"], command.argv, {**variables, "TF_CONFIG": text})
    ]
    if "ps" in config["cluster"]:
        servers = json.loads(variables["TF_CONFIG"])["cluster"]["ps"]
        index = [address.partition(":")[0] for address in servers].index(host.name)
        task = {**config, "task": {"index": index, "type": "ps"}}
        env = {**variables, "TF_CONFIG": json.dumps(task)}
        processes.append(Process(host.index, "ps", (stage.python, "-c", SERVER), env))
    return HostLaunch(tuple(processes), signal=signal, endpoints=endpoints)


_STARTS: dict[str, Callable[[EmulatedJob, Host, ToolkitCommand, dict[str, str]], HostLaunch]] = {
    "torchrun": _torchrun,
    "mpirun": _mpirun,
    "sshd": _sshd,
    "process": _script,
}


def _option(options: Sequence[str], name: str) -> str | None:
    return options[options.index(name) + 1] if name in options else None


ACCOUNT = SageMakerAccount(
    region="us-east-1",
    role="arn:aws:iam::000000000000:role/emulated",
    bucket="emulated",
    missing=(),
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
    """Return the plan of a job that runs on this machine as SageMaker would run it."""
    account: LocalAccount = context.account
    problems = Problems()
    scaled = problems.value(lambda: scaled_job(job, target, account), None)
    sagemaker = account.emulated or SageMaker()
    there = ACCOUNT._replace(region=sagemaker.region or ACCOUNT.region)
    settings = SageMaker(launch=sagemaker.launch, input_mode=sagemaker.input_mode)
    parts = parts_of(
        scaled[0] if scaled else job, settings, context._replace(account=there), problems
    )
    if job.entry_point is None and job.command is None:
        message = "the job runs the image's own program, which is not on this machine"
        problems.append(
            Problem(("entry_point",), message, "add an `entry_point` or a `command`", code="CT036")
        )
    problems += place_problems(scaled[0] if scaled else placed_job(job, target))
    if problems or scaled is None or parts is None:
        raise JobError(without_echoes(problems))
    size = scaled[1]
    python = target.python or account.python
    overrides = {
        key: value for key, value in overrides_of(job, "sagemaker").items() if key != _MACHINES
    }
    request = finished_request(parts, overrides)
    stage = EmulatedJob(
        request=request,
        container=_container(request, parts, python),
        account=account,
        python=python,
        run_dir=account.run_dir(context.run_name),
        region=there.region,
        world_size=size.world_size,
        grace_period=target.grace_period,
    )
    start = entrypoint_host if is_entrypoint(stage.request) else toolkit_host
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
    for launch in launches.values():
        yield from launch.notes


def _container(request: JsonMapping, parts: TrainingParts, python: str) -> ImageContents:
    """Return the known contents of the request's image, or else of the job's, without SageMaker's
    libraries and the PyTorch version: an emulation runs this machine's interpreter, `python`,
    instead of the image's."""
    algorithm = {"TrainingImage": parts.image.uri, **request["AlgorithmSpecification"]}
    contents = Start.of(
        {**request, "AlgorithmSpecification": algorithm}, parts.job.environment.framework
    ).container
    return contents._replace(
        python=python, smddprun=False, smddpmprun=False, torch=None, training_module=None
    )


def _specification(
    stage: EmulatedJob,
    job: TrainingJob,
    context: CompileContext,
    launches: dict[Host, HostLaunch],
    processes: list[tuple[Process, str]],
) -> LaunchSpecification:
    """Return the launch specification: each host's `/opt/ml` folder, the processes, and the result
    folders."""
    archive = stage.account.archive(context.bundle)
    roots = [stage.root(host) for host in stage.hosts]
    # all hosts share the folder that replaces the S3 location
    checkpoint = (job.checkpoint.local if job.checkpoint else None) or f"{stage.run_dir}/checkpoint"
    metrics = stage.request["AlgorithmSpecification"].get("MetricDefinitions", ())
    directories = [
        f"{root}/{folder}" for root in roots for folder in ("model", "output/data", "input/data")
    ]
    synced = stage.request.get("CheckpointConfig", {}).get("LocalPath")
    links = [link for host in stage.hosts for link in _links(stage, job, host)]
    links += [Link(relocate_text(synced, root), checkpoint, None) for root in roots if synced]
    links += [
        Link(f"{stage.root(host)}/input/data/{CODE_CHANNEL}/sourcedir.tar.gz", archive, None)
        for host, launch in launches.items()
        if launch.unpacks
    ]
    roles = {
        process.role
        for launch in launches.values()
        for process in (*launch.processes, *launch.children)
    }
    endpoints = sorted({endpoint for launch in launches.values() for endpoint in launch.endpoints})
    code = CodePlace(archive, context.bundle.sha256, None)
    if folders := tuple(
        f"{stage.root(host)}/code" for host, launch in launches.items() if not launch.unpacks
    ):
        code = replace(code, directory=folders[0], copies=folders[1:])
    if unpacked := tuple(
        f"{stage.root(host)}/code" for host, launch in launches.items() if launch.unpacks
    ):
        code = replace(code, unpacked=unpacked)
    rank_count = sum(launch.ranks for launch in launches.values())
    return LaunchSpecification(
        name=context.run_name,
        run_dir=stage.run_dir,
        emulates="sagemaker",
        code=code,
        directories=tuple(sorted([*directories, checkpoint] if synced else directories)),
        files={path: text for host in stage.hosts for path, text in _files(stage, host)},
        links=tuple(links),
        failure_files=tuple(f"{root}/output/failure" for root in roots),
        places={
            "model": tuple(f"{root}/model" for root in roots),
            "checkpoint": (checkpoint,)
            if synced
            else tuple(f"{root}/code/checkpoint" for root in roots),
            "outputs": tuple(f"{root}/output/data" for root in roots),
            **{
                f"outputs/{name}": tuple(f"{root}/output/data/{name}" for root in roots)
                for name in job.outputs
                if name != "model"
            },
        },
        launcher=next((name for name in _LAUNCHERS if name in roles), "processes"),
        instances=len(stage.hosts),
        world_size=rank_count + sum(process.rank is not None for process, _ in processes),
        ports=tuple(map(port_name, endpoints)),
        processes=tuple(
            _started_process(stage, launches, process, signal) for process, signal in processes
        ),
        finishes=("master",) if "master" in roles and "ps" in roles else (),
        patience=LAUNCHER_PATIENCE if unpacked else LaunchSpecification.patience,
        grace_period=stage.grace_period,
        max_runtime=job.max_runtime,
        metrics={str(row["Name"]): str(row["Regex"]) for row in metrics} or None,
    )


def _files(stage: EmulatedJob, host: Host) -> Iterator[tuple[str, str]]:
    for path, content in files(stage.request_of(host), host, stage.root(host)).items():
        data = with_loopback(content) if path.endswith("/resourceconfig.json") else content
        yield path, json.dumps(data, indent=1, sort_keys=True)


def _links(stage: EmulatedJob, job: TrainingJob, host: Host) -> Iterator[Link]:
    """Yield the links to the input data of one host.

    In a sharded channel, each of n hosts gets every n-th file. Channels of other instance groups
    are left out.
    """
    for name, item in job.inputs.items():
        if item.instance_groups and host.group not in item.instance_groups:
            continue
        folder = f"{stage.root(host)}/input/data/{item.channel or name}"
        assert item.local is not None, "the scaled job was refused otherwise"
        if item.type == "uri_file":
            yield Link(f"{folder}/{PurePath(item.sagemaker or item.local).name}", item.local, None)
        else:
            sharing = [
                each
                for each in stage.hosts
                if not item.instance_groups or each.group in item.instance_groups
            ]
            shard = (sharing.index(host), len(sharing)) if item.shard else None
            yield Link(folder, item.local, shard)


def _assign_ranks(launches: dict[Host, HostLaunch]) -> list[tuple[Process, str]]:
    """Return the processes that the supervisor starts, each with its stop signal.

    Scripts that run without a launcher get ranks: after the ranks of all launchers, in the order of
    host names, with parameter servers last.
    """
    processes = [
        (process, launch.signal) for launch in launches.values() for process in launch.processes
    ]
    first = sum(launch.ranks for launch in launches.values())
    name_of = {host.index: host.name for host in launches}
    direct = [process for process, _ in processes if process.role not in (*_LAUNCHERS, "launcher")]
    direct.sort(key=lambda process: (process.role == "ps", name_of[process.instance]))
    rank_of = {id(process): first + number for number, process in enumerate(direct)}
    return [
        (
            replace(process, rank=rank_of[id(process)], local_rank=0)
            if id(process) in rank_of
            else process,
            signal,
        )
        for process, signal in processes
    ]


def _started_process(
    stage: EmulatedJob, launches: dict[Host, HostLaunch], process: Process, signal: str
) -> StartedProcess:
    host = next(host for host in launches if host.index == process.instance)
    folder = stage.root(host) + ("" if launches[host].unpacks else "/code")
    return StartedProcess.of(
        replace(process, env=dict(sorted(process.env.items()))), signal, folder
    )


def _shown_processes(
    launches: dict[Host, HostLaunch], processes: list[tuple[Process, str]]
) -> Iterator[Process]:
    """Yield the plan's processes: started processes, then their children, without the variables in
    `_REPEATED`."""
    children = [each for launch in launches.values() for each in launch.children]
    for process in [*(each for each, _ in processes), *children]:
        yield replace(
            process,
            env={name: value for name, value in process.env.items() if name not in _REPEATED},
        )


def _summary(
    stage: EmulatedJob, parts: TrainingParts, job: TrainingJob, world_size: int
) -> Iterator[tuple[str, str]]:
    count = len(stage.hosts)
    types = " + ".join(dict.fromkeys(host.instance_type for host in stage.hosts))
    yield "target", f"local ({stage.account.machine}), as SageMaker would run it"
    yield "instances", f"{count} x {types}, simulated" if count > 1 else f"{types}, simulated"
    yield "processes", str(world_size)
    starter = "cloudtrain's own launcher" if is_entrypoint(stage.request) else "the image's toolkit"
    yield "started by", f"{starter}: {parts.launch.reason}"
    image = stage.request["AlgorithmSpecification"].get("TrainingImage")
    if image:
        yield "image", f"{image} (not used here)"
    yield "script", job.entry_point or job.command or ""
    yield "/opt/ml", f"{stage.run_dir}/hosts/algo-N/opt/ml"
    if job.max_runtime:
        yield "max runtime", format_duration(job.max_runtime)
