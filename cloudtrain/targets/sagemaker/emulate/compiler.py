"""Compile a job, a local target and a context into the plan of an emulated job."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from cloudtrain.core.job import TrainingJob
from cloudtrain.core.per_target import overrides_of
from cloudtrain.core.plan import CompileContext
from cloudtrain.core.processes import Process
from cloudtrain.core.units import format_duration
from cloudtrain.errors import JobError, Problem
from cloudtrain.launch.specification import CodePlace, LaunchSpecification, Link, StartedProcess
from cloudtrain.runtime.sagemaker_launcher import CODE_CHANNEL
from cloudtrain.targets.common.problems import Problems
from cloudtrain.targets.common.scaled import placed_job, scaled_job, without_echoes
from cloudtrain.targets.common.this_machine import LocalAccount, LocalPlan, LocalSettings
from cloudtrain.targets.sagemaker.account import SageMakerAccount
from cloudtrain.targets.sagemaker.compile.compiler import finished_request, parts_of
from cloudtrain.targets.sagemaker.compile.images import contents_of
from cloudtrain.targets.sagemaker.compile.overrides import FIELD
from cloudtrain.targets.sagemaker.compile.places import place_problems
from cloudtrain.targets.sagemaker.compile.request import Parts
from cloudtrain.targets.sagemaker.emulate.entrypoint import entrypoint_host
from cloudtrain.targets.sagemaker.emulate.paths import port_name, with_loopback
from cloudtrain.targets.sagemaker.emulate.stage import HostLaunch, Stage
from cloudtrain.targets.sagemaker.emulate.toolkit import toolkit_host
from cloudtrain.targets.sagemaker.launch.job import Container, Host, files, is_entrypoint
from cloudtrain.targets.sagemaker.settings import SageMaker

ACCOUNT = SageMakerAccount(
    region="us-east-1", role="arn:aws:iam::000000000000:role/emulated", bucket="emulated", missing=()
)
"""A placeholder account, because the request is never sent.

Only settings that the container can see are used: the region, the launch mode, and the mode of the channels.
"""

LAUNCHER_PATIENCE = 60.0
"""Seconds that cloudtrain's launcher gets, after a rank failed, to end the other ranks and write the failure file."""

_REPEATED = ("SM_RESOURCE_CONFIG", "SM_TRAINING_ENV")

_LAUNCHERS = ("torchrun", "mpirun")

_MACHINES = "ResourceConfig"
"""The request fields that describe machines."""


def compile_as_sagemaker(job: TrainingJob, target: LocalSettings, context: CompileContext) -> LocalPlan:
    """Return the plan of a job that runs on this machine as SageMaker would run it.

    `context.account` is a `LocalAccount`.

    Raises:
        JobError: the job cannot run on SageMaker, or cannot be emulated; the message gives an alternative.
    """
    account: LocalAccount = context.account
    problems = Problems()
    scaled = problems.value(lambda: scaled_job(job, target, account), None)
    given = account.emulated or SageMaker()
    there = ACCOUNT._replace(region=given.region or ACCOUNT.region)
    settings = SageMaker(launch=given.launch, input_mode=given.input_mode)
    parts = parts_of(scaled[0] if scaled else job, settings, context._replace(account=there), problems)
    if job.entry_point is None and job.command is None:
        message = "the job runs the image's own program, which is not on this machine"
        problems.append(Problem(("entry_point",), message, "add an `entry_point` or a `command`", code="CT036"))
    problems += place_problems(scaled[0] if scaled else placed_job(job, target))
    if problems or scaled is None or parts is None:
        raise JobError(without_echoes(problems))
    size = scaled[1]
    python = target.python or account.python
    stage = Stage(
        request=finished_request(parts, _without_machines(overrides_of(job, "sagemaker"))),
        container=_container(parts, python),
        account=account,
        python=python,
        run_dir=account.run_dir(context.run_name),
        region=there.region,
        world_size=size.world_size,
        grace_period=target.grace_period,
    )
    start = entrypoint_host if is_entrypoint(stage.request) else toolkit_host
    launches = {host: start(stage, host) for host in stage.hosts}
    started = _assign_ranks(launches)
    specification = _specification(stage, job, context, launches, started)
    return LocalPlan.of(
        specification,
        job.name,
        context,
        processes=tuple(_shown_processes(launches, started)),
        summary=_summary(stage, parts, job, specification.world_size),
        notes=dict.fromkeys(_notes(job, launches)),
    )


def _without_machines(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides without SageMaker's machines, because the job runs on this machine."""
    return {key: value for key, value in overrides.items() if key != _MACHINES}


def _notes(job: TrainingJob, launches: dict[Host, HostLaunch]) -> Iterator[str]:
    if _MACHINES in overrides_of(job, "sagemaker"):
        yield f"`{FIELD}.{_MACHINES}` does not count here: the machines are this one's"
    for made in launches.values():
        yield from made.notes


def _container(parts: Parts, python: str) -> Container:
    """Return the known contents of the image, without SageMaker's libraries and the PyTorch version.

    They are left out because an emulation runs this machine's interpreter, `python`, instead of the image's.
    """
    known = contents_of(parts.image.known)
    return known._replace(python=python, smddprun=False, smddpmprun=False, torch=None, training_module=None)


def _specification(
    stage: Stage,
    job: TrainingJob,
    context: CompileContext,
    launches: dict[Host, HostLaunch],
    started: list[tuple[Process, str]],
) -> LaunchSpecification:
    """Return the launch specification: each host's `/opt/ml` folder, the processes, and the result folders."""
    archive = stage.account.archive(context.bundle)
    roots = [stage.root(host) for host in stage.hosts]
    checkpoint = _checkpoint(stage, job)
    written = [f"{root}/{folder}" for root in roots for folder in ("model", "output/data", "input/data")]
    synced = stage.request.get("CheckpointConfig", {}).get("LocalPath")
    links = [link for host in stage.hosts for link in _links(stage, job, host)]
    links += [Link(stage.path(host, synced), checkpoint, None) for host in stage.hosts if synced]
    links += [
        Link(f"{stage.root(host)}/input/data/{CODE_CHANNEL}/sourcedir.tar.gz", archive, None)
        for host, made in launches.items()
        if made.unpacks
    ]
    roles = {process.role for made in launches.values() for process in (*made.processes, *made.shown)}
    endpoints = sorted({endpoint for made in launches.values() for endpoint in made.endpoints})
    code = CodePlace(archive, context.bundle.sha256, None)
    if folders := tuple(f"{stage.root(host)}/code" for host, made in launches.items() if not made.unpacks):
        code = replace(code, directory=folders[0], copies=folders[1:])
    unpacks, launched = any(made.unpacks for made in launches.values()), sum(made.ranks for made in launches.values())
    return LaunchSpecification(
        name=context.run_name,
        run_dir=stage.run_dir,
        emulates="sagemaker",
        code=code,
        directories=tuple(sorted([*written, checkpoint] if synced else written)),
        files={path: text for host in stage.hosts for path, text in _files(stage, host)},
        links=tuple(links),
        failure_files=tuple(f"{root}/output/failure" for root in roots),
        places={
            "model": tuple(f"{root}/model" for root in roots),
            "checkpoint": (checkpoint,) if synced else tuple(f"{root}/code/checkpoint" for root in roots),
            "outputs": tuple(f"{root}/output/data" for root in roots),
            **{
                f"outputs/{name}": tuple(f"{root}/output/data/{name}" for root in roots)
                for name in job.outputs
                if name != "model"
            },
        },
        launcher=next((name for name in _LAUNCHERS if name in roles), "processes"),
        instances=len(stage.hosts),
        world_size=launched + sum(process.rank is not None for process, _ in started),
        ports=tuple(map(port_name, endpoints)),
        processes=tuple(_started_process(stage, launches, process, signal) for process, signal in started),
        finishes=("master",) if "master" in roles and "ps" in roles else (),
        patience=LAUNCHER_PATIENCE if unpacks else LaunchSpecification.patience,
        grace_period=stage.grace_period,
        max_runtime=job.max_runtime,
        metrics=_metrics(stage.request) or None,
    )


def _metrics(request: Mapping[str, Any]) -> dict[str, str]:
    """Return the regular expressions with which SageMaker would read metrics from the log, by metric name."""
    pairs = request["AlgorithmSpecification"].get("MetricDefinitions", ())
    return {str(pair["Name"]): str(pair["Regex"]) for pair in pairs}


def _checkpoint(stage: Stage, job: TrainingJob) -> str:
    """Return the local folder that replaces the S3 checkpoint location. All hosts share it."""
    given = job.checkpoint.local if job.checkpoint else None
    return given or f"{stage.run_dir}/checkpoint"


def _files(stage: Stage, host: Host) -> Iterator[tuple[str, str]]:
    for path, content in files(stage.request_of(host), host, stage.root(host)).items():
        shown = with_loopback(content) if path.endswith("/resourceconfig.json") else content
        yield path, json.dumps(shown, indent=1, sort_keys=True)


def _links(stage: Stage, job: TrainingJob, host: Host) -> Iterator[Link]:
    """Yield the links to the input data of one host.

    In a sharded channel, each of n hosts gets every n-th file. Channels of other instance groups are left out.
    """
    for name, item in job.inputs.items():
        if item.instance_groups and host.group not in item.instance_groups:
            continue
        folder = f"{stage.root(host)}/input/data/{item.channel or name}"
        assert item.local is not None, "the scaled job was refused otherwise"
        if item.type == "uri_file":
            yield Link(f"{folder}/{PurePath(item.sagemaker or item.local).name}", item.local, None)
        else:
            sharing = [each for each in stage.hosts if not item.instance_groups or each.group in item.instance_groups]
            shard = (sharing.index(host), len(sharing)) if item.shard else None
            yield Link(folder, item.local, shard)


def _assign_ranks(launches: dict[Host, HostLaunch]) -> list[tuple[Process, str]]:
    """Return the processes that the supervisor starts, each with its stop signal.

    Scripts that run without a launcher get ranks: after the ranks of all launchers, in the order of host names, with
    parameter servers last.
    """
    started = [(process, made.signal) for made in launches.values() for process in made.processes]
    first = sum(made.ranks for made in launches.values())
    name_of = {host.index: host.name for host in launches}
    direct = [process for process, _ in started if process.role not in (*_LAUNCHERS, "launcher")]
    direct.sort(key=lambda process: (process.role == "ps", name_of[process.instance]))
    rank_of = {id(process): first + number for number, process in enumerate(direct)}
    return [
        (replace(process, rank=rank_of[id(process)], local_rank=0) if id(process) in rank_of else process, signal)
        for process, signal in started
    ]


def _started_process(stage: Stage, launches: dict[Host, HostLaunch], process: Process, signal: str) -> StartedProcess:
    host = next(host for host in launches if host.index == process.instance)
    folder = stage.root(host) + ("" if launches[host].unpacks else "/code")
    return StartedProcess.of(replace(process, env=dict(sorted(process.env.items()))), signal, folder)


def _shown_processes(launches: dict[Host, HostLaunch], started: list[tuple[Process, str]]) -> Iterator[Process]:
    """Yield the plan's processes: started processes, then their children, without the variables in `_REPEATED`."""
    for process in (*(each for each, _ in started), *(each for made in launches.values() for each in made.shown)):
        yield replace(process, env={name: value for name, value in process.env.items() if name not in _REPEATED})


def _summary(stage: Stage, parts: Parts, job: TrainingJob, world_size: int) -> Iterator[tuple[str, str]]:
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
