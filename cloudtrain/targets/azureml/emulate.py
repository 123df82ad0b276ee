"""`emulate: azureml`: run the job on this machine as Azure ML would run it.

cloudtrain compiles the job for Azure ML, with its counts scaled down. On Azure ML the service
starts a job's processes; here the supervisor does. Each process has the argv and the environment of
`cloudtrain.targets.azureml.launch`, except for:

    paths         inputs and outputs are in `data` of the run's folder; each instance has a copy of
                  the code at `instances/N/wd`, its working directory
    addresses     hosts with a port become 127.0.0.1 and a free port; lists of hosts become
                  127.0.0.1, 127.0.0.2, ...
    interface     `lo` instead of `eth0`
    interpreter   `python` and `python3` run the local target's interpreter
    requirements  are in the interpreter's environment, which is built before
    counts        instances, processes and GPUs are this machine's
    mpirun        does not run; the ranks get its variables, and MASTER_PORT is a free port instead
                  of 6105
    added         CLOUDTRAIN_RUN_DIR, CUDA_VISIBLE_DEVICES and OMP_NUM_THREADS (each instance's
                  share), PATH, PYTHONUNBUFFERED
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from shlex import quote

from cloudtrain.errors import JobError, Problem
from cloudtrain.job.model import format_duration
from cloudtrain.job.training import TrainingJob
from cloudtrain.plans.plan import CompileContext, Plan
from cloudtrain.plans.processes import Process
from cloudtrain.targets.azureml.compile.job import compile_azureml
from cloudtrain.targets.azureml.compile.places import NAMED_RESULTS
from cloudtrain.targets.azureml.launch import (
    INTERFACE,
    LONG,
    MASTER_PORT,
    JobLayout,
    addresses,
    local_paths,
    processes,
)
from cloudtrain.targets.azureml.parts import pick, present, without
from cloudtrain.targets.azureml.reading import Body
from cloudtrain.targets.azureml.settings import AzureML, AzureMLAccount
from cloudtrain.targets.common.compiling import Problems
from cloudtrain.targets.common.launch import LocalAccount, LocalSettings, local_plan
from cloudtrain.targets.common.launchers import loopback_variables
from cloudtrain.targets.common.scaling import gpu_share, placed_job, scaled_job, without_echoes
from cloudtrain.targets.common.specification import (
    CodePlace,
    LaunchSpecification,
    Link,
    StartedProcess,
)

LOOPBACK = "127.0.0.1"


# One emulated job: the body that Azure ML would get, and this machine.


@dataclass(frozen=True)
class Stage:
    """The inputs of an emulation. `python` is the path of the interpreter."""

    job: TrainingJob
    body: Body
    layout: JobLayout
    account: LocalAccount
    python: str
    run_dir: str

    @property
    def programs(self) -> str:
        """The folder with `python` and `python3`, which replace the image's programs."""
        return f"{self.run_dir}/programs"

    @property
    def outputs(self) -> dict[str, str]:
        """The paths of the outputs, by name."""
        return {name: self.layout.paths[f"outputs.{name}"] for name in self.body.outputs}


# The launch specification of an emulated job: its folders, files, links, processes and the paths of
# its results.

_PORT = r"\$\{\{ports\.(\w+)\}\}"


def specification(
    stage: Stage, context: CompileContext, processes: Sequence[Process], *, grace_period: int
) -> LaunchSpecification:
    layout = stage.layout
    names = (f"{stage.programs}/python", f"{stage.programs}/python3")
    program = f'#!/bin/sh\nexec {quote(stage.python)} "$@"\n'
    has_servers = any(process.role == "ps" for process in processes)
    return LaunchSpecification(
        name=context.run_name,
        run_dir=stage.run_dir,
        emulates="azureml",
        code=CodePlace(
            stage.account.archive(context.bundle),
            context.bundle.sha256,
            layout.code[0],
            layout.code[1:],
        ),
        directories=_folders(stage),
        files=dict.fromkeys(names, program),
        programs=names,
        links=tuple(_links(stage, len(processes))),
        places=_places(stage),
        launcher="processes",
        instances=stage.body.instances,
        world_size=len(processes),
        ports=_ports(processes),
        processes=tuple(_started_process(stage, process) for process in processes),
        finishes=("worker",) if has_servers else (),
        grace_period=grace_period,
        max_runtime=stage.job.max_runtime,
        metrics=dict(stage.job.metrics) or None,
    )


def _own_places(stage: Stage) -> dict[str, str]:
    """Map the names of outputs to the folders of this machine that the job names for them."""
    places = {name: item.local for name, item in stage.job.outputs.items()}
    if stage.job.checkpoint:
        places["checkpoint"] = stage.job.checkpoint.local
    return present(pick(places, stage.body.outputs))


def _folders(stage: Stage) -> tuple[str, ...]:
    """Return the folders that must exist before the processes start."""
    own = _own_places(stage)
    folders = [stage.layout.data, *own.values()]
    for name, path in stage.outputs.items():
        is_file = stage.body.outputs[name].get("jobOutputType") == "uri_file"
        if name not in own and not is_file:
            folders.append(path)
    return tuple(sorted(folders))


def _links(stage: Stage, count: int) -> Iterator[Link]:
    """Yield the links to inputs, to outputs and to the logs of `count` ranks."""
    for name, item in stage.job.inputs.items():
        if item.local is not None:
            path = stage.layout.paths[f"inputs.{name}"]
            yield Link(path, str(item.local), None)
    for name, place in _own_places(stage).items():
        yield Link(stage.outputs[name], place, None)
    for rank in range(count):
        name = f"{stage.run_dir}/{_log(rank, count)}"
        yield Link(name, f"{stage.run_dir}/logs/rank_{rank}.log", None)


def _places(stage: Stage) -> dict[str, tuple[str, ...]]:
    """Map the results of the run, as `cloudtrain download` names them, to their paths."""
    folders = tuple(f"{code}/outputs" for code in stage.layout.code)
    places = {name: tuple(f"{folder}/{name}" for folder in folders) for name in NAMED_RESULTS}
    places["outputs"] = folders
    places["user_logs"] = (f"{stage.run_dir}/user_logs",)
    for name, path in stage.outputs.items():
        result = name if name in NAMED_RESULTS else f"outputs/{name}"
        places[result] = (path,)
    return places


def _ports(processes: Sequence[Process]) -> tuple[str, ...]:
    """Return the names of the free ports that the processes' variables mention."""
    names: set[str] = set()
    for process in processes:
        for text in process.env.values():
            names.update(re.findall(_PORT, text))
    return tuple(sorted(names))


def _started_process(stage: Stage, process: Process) -> StartedProcess:
    """Signals go to the process's whole group, because the shell does not forward them."""
    role = "process" if process.role == "rank" else process.role
    env = dict(sorted(process.env.items()))
    code = stage.layout.code[process.instance]
    return StartedProcess.of(replace(process, role=role, env=env), "group", code)


def _log(rank: int, count: int) -> str:
    """Return Azure ML's name of the log of one of `count` ranks."""
    if count == 1:
        return "user_logs/std_log.txt"
    digits = len(str(count - 1))
    return f"user_logs/std_log_process_{rank:0{digits}d}.txt"


# Compile a job, a local target and a context into the plan of an emulated job.

ACCOUNT = AzureMLAccount(
    subscription_id="00000000-0000-0000-0000-000000000000",
    resource_group="emulated",
    workspace="emulated",
)
"""Stands in for a workspace, because the request is never sent."""

INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES")


def compile_as_azureml(job: TrainingJob, target: LocalSettings, context: CompileContext) -> Plan:
    """Return the plan of a local run. Raises `JobError` if the job cannot be emulated."""
    stage = _stage(job, target, context)
    started = processes(stage.body, stage.layout)
    if not started:
        path = ("azureml_overrides", "distribution")
        message = (
            f"cloudtrain cannot emulate `{stage.body.kind}`: Azure does not document its processes"
        )
        raise JobError([Problem(path, message, "submit it to Azure ML", code="CT031")])

    local_processes = [_local_process(stage, process, len(started)) for process in started]
    # The plan leaves out what repeats the request.
    shown_processes = []
    for process in local_processes:
        shown_processes.append(replace(process, env=without(process.env, LONG)))
    return local_plan(
        specification(stage, context, local_processes, grace_period=target.grace_period),
        job.name,
        context,
        processes=tuple(shown_processes),
        summary=_summary(stage, len(local_processes)),
        notes=_notes(stage),
    )


def _stage(job: TrainingJob, target: LocalSettings, context: CompileContext) -> Stage:
    """Compile the job for Azure ML with this machine's counts, without requirements, which the
    interpreter has."""
    account: LocalAccount = context.account
    problems = Problems()
    # without mpirun every rank would train alone, without an error
    if job.distribution.type == "horovod":
        message = (
            "Horovod's ranks find each other through Azure ML's own mpirun, which is not "
            "on this machine"
        )
        hint = "run it here without `--emulate azureml`"
        problems.append(Problem(("distribution", "type"), message, hint, code="CT030"))

    local_job, _ = problems.collect_from(
        lambda: scaled_job(job, target, account), (placed_job(job, target), None)
    )
    environment = job.environment.model_copy(update={"requirements": None})
    local_job = local_job.model_copy(update={"environment": environment})
    azureml_context = context._replace(account=ACCOUNT)
    plan = problems.collect_from(
        lambda: compile_azureml(local_job, AzureML(), azureml_context), None
    )
    if problems or plan is None:
        raise JobError(without_echoes(problems))

    body = Body(plan.request)
    run_dir = account.run_dir(context.run_name)
    data = f"{run_dir}/data"
    gpus = account.machine.gpus
    layout = JobLayout(
        run_name=context.run_name,
        workspace_id=ACCOUNT.workspace_id,
        # each instance has a different address, because some tools count hosts
        hosts=addresses("127.0", 1, body.instances),
        # all processes listen on free ports that are chosen when the job starts
        endpoint=lambda instance, port: (LOOPBACK, f"${{{{ports.instance_{instance}_{port}}}}}"),
        data=data,
        code=tuple(f"{run_dir}/instances/{number}/wd" for number in range(body.instances)),
        paths=local_paths(body, data),
        gpus=gpus and max(1, gpus // body.instances),
    )
    return Stage(job, body, layout, account, target.python or account.python, run_dir)


def _local_process(stage: Stage, process: Process, world_size: int) -> Process:
    """Return a process with the variables that it has on this machine."""
    env = dict(process.env)
    for name in INTERFACE_VARIABLES:
        if env.get(name) == INTERFACE:
            env[name] = "lo"

    # The service sets no MASTER_PORT for MPI, and the ranks use its port 6105. Another program of
    # this machine may use that port.
    if stage.body.kind == "Mpi":
        _, port = stage.layout.endpoint(0, MASTER_PORT)
        env.setdefault("MASTER_PORT", port)

    # This machine's share replaces what the job says. Its network is only a default: the job may
    # name another one.
    machine = stage.account.machine
    beside = stage.python.rpartition("/")[0]
    env |= {
        "CLOUDTRAIN_RUN_DIR": stage.run_dir,
        "OMP_NUM_THREADS": str(max(1, machine.cpus // world_size)),
        # the job's `python` first, then the other programs in the interpreter's folder
        "PATH": f"{stage.programs}:{beside}:${{{{env.PATH}}}}",
        "PYTHONUNBUFFERED": "1",
    }
    share = gpu_share(machine.gpu_ids, stage.body.instances, process.instance)
    if share and stage.body.instances > 1:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(share)
    return replace(process, env=loopback_variables(stage.account.loopback) | env)


def _summary(stage: Stage, world_size: int) -> Iterator[tuple[str, str]]:
    """Yield the first lines of the plan, as pairs of label and text."""
    body = stage.body
    job = stage.job
    count = f"{body.instances} x " if body.instances > 1 else ""
    yield "target", f"local ({stage.account.machine}), as Azure ML would run it"
    yield "instances", f"{count}{body.instance_type or 'of any type'}, simulated"
    yield "processes", str(world_size)
    yield "started by", f"the service itself ({body.kind or 'no distribution'})"
    yield "image", f"{body.environment} (not used here)"
    yield "script", job.entry_point or job.command or ""
    yield "data", stage.layout.data
    yield "run folder", stage.run_dir
    if job.max_runtime:
        yield "max runtime", format_duration(job.max_runtime)


def _notes(stage: Stage) -> Iterator[str]:
    body = stage.body
    if body.kind == "Mpi":
        yield (
            "Azure ML's mpirun is not run here: ranks have its variables, but a script that "
            "calls MPI itself (mpi4py) "
            "finds itself alone"
        )
    if not body.kind and body.instances > 1:
        yield (
            "what several instances run without a distribution is not documented; the "
            "emulation starts one process"
        )
