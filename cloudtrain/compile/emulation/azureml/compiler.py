"""Job, local target and context in; the plan of an emulated job out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from cloudtrain.compile.azureml import compile_azureml
from cloudtrain.compile.emulation.azureml.site import local_site
from cloudtrain.compile.emulation.azureml.stage import Stage
from cloudtrain.compile.emulation.azureml.surroundings import surroundings
from cloudtrain.compile.emulation.scaled import scaled_job
from cloudtrain.compile.scaling import gpu_share
from cloudtrain.errors import JobError, Problem
from cloudtrain.job import TrainingJob
from cloudtrain.launch.azureml_node import INTERFACE, LONG, MASTER_PORT, Body, processes
from cloudtrain.plans import AzureMLAccount, CompileContext, LocalAccount, Plan, Process, Upload
from cloudtrain.targets import AzureML, Local
from cloudtrain.units import format_duration

ACCOUNT = AzureMLAccount(
    subscription_id="00000000-0000-0000-0000-000000000000", resource_group="emulated", workspace="emulated"
)
"""Stands for a workspace: the request is not sent."""

INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES")

_PORT = re.compile(r"\$\{\{ports\.(\w+)\}\}")


def compile_as_azureml(job: TrainingJob, target: Local, context: CompileContext) -> Plan:
    """The plan of a job that runs here as Azure ML would run it. `context.account` is a `LocalAccount`.

    Raises:
        JobError: the job cannot run on Azure ML, or cannot be emulated here, with the alternative.
    """
    account: LocalAccount = context.account
    stage = _stage(job, target, context)
    started = [_here(stage, process) for process in processes(stage.body, stage.site)]
    if not started:
        message = f"what Azure ML starts for `{stage.body.kind}` is not known, so it cannot be emulated"
        raise JobError([Problem(("azureml_overrides", "distribution"), message, "submit it to Azure ML")])
    for process in started:
        process.env.update(_shares(stage, process.instance, len(started)))
    archive = f"{account.state_dir}/bundles/{context.bundle.sha256}/sourcedir.tar.gz"
    first, *copies = stage.site.code
    bundle = context.bundle
    return Plan(
        target="local",
        run_name=context.run_name,
        job_name=job.name,
        request={
            "version": 1,
            "name": context.run_name,
            "run_dir": stage.run_dir,
            "emulates": "azureml",
            "code": {"archive": archive, "sha256": bundle.sha256, "directory": first, "copies": copies},
            **surroundings(stage, len(started)),
            "launcher": "processes",
            "instances": stage.body.instances,
            "world_size": len(started),
            "ports": _ports(started),
            "processes": [_process_json(stage, process) for process in started],
            "finishes": ["worker"] if any(process.role == "ps" for process in started) else [],
            "grace_period": target.grace_period,
            "max_runtime": job.max_runtime,
        },
        uploads=(Upload("code", bundle.sha256, archive, bundle.size, bundle.file_count),),
        processes=tuple(map(_shown, started)),
        summary=tuple(_summary(stage, len(started))),
        notes=tuple(_notes(stage)),
        place=account.place,
    )


def _stage(job: TrainingJob, target: Local, context: CompileContext) -> Stage:
    """The body of the job with the counts of this machine. Its requirements are left out: they would be installed."""
    account: LocalAccount = context.account
    _refuse_horovod(job)
    scaled, _ = scaled_job(job, target, account)
    scaled = scaled.model_copy(update={"environment": job.environment.model_copy(update={"requirements": None})})
    body = Body(compile_azureml(scaled, AzureML(), replace(context, account=ACCOUNT)).request)
    run_dir = f"{account.state_dir}/runs/{context.run_name}"
    site = local_site(body, account, run_dir, context.run_name, ACCOUNT.workspace_id)
    return Stage(job, body, site, account, target.python or account.python, run_dir)


def _refuse_horovod(job: TrainingJob) -> None:
    """Without mpirun every rank of Horovod would train alone, and seem to work."""
    if job.distribution.type == "horovod":
        message = "Horovod's ranks find each other through Azure ML's own mpirun, which is not on this machine"
        raise JobError([Problem(("distribution", "type"), message, "run it here without `--emulate azureml`")])


def _here(stage: Stage, process: Process) -> Process:
    """A process of the service, with this machine's interpreter and interface."""
    env = dict(process.env)
    for name in INTERFACE_VARIABLES:
        if env.get(name) == INTERFACE:
            env[name] = "lo"
    if stage.body.kind == "Mpi":
        env.setdefault("MASTER_PORT", stage.site.listen(0, MASTER_PORT)[1])
    return replace(process, env=env)


def _shares(stage: Stage, instance: int, world_size: int) -> dict[str, str]:
    """What this machine adds. The script's `python` comes first on the PATH, then what is installed beside it."""
    beside = stage.python.rpartition("/")[0]
    variables = {
        "CLOUDTRAIN_RUN_DIR": stage.run_dir,
        "OMP_NUM_THREADS": str(max(1, stage.account.machine.cpus // world_size)),
        "PATH": ":".join((stage.programs, beside, "${{env.PATH}}")),
        "PYTHONUNBUFFERED": "1",
    }
    share = gpu_share(stage.account.machine.gpu_ids, stage.body.instances, instance)
    if share and stage.body.instances > 1:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(share)
    return variables


def _ports(started: Iterable[Process]) -> list[str]:
    """Every port that a variable names."""
    return sorted({name for process in started for text in process.env.values() for name in _PORT.findall(text)})


def _process_json(stage: Stage, process: Process) -> dict[str, Any]:
    """The shell does not pass signals on, so the whole group gets them."""
    return {
        "instance": process.instance,
        "role": "process" if process.role == "rank" else process.role,
        "rank": process.rank,
        "argv": list(process.argv),
        "env": dict(sorted(process.env.items())),
        "signal": "group",
        "directory": stage.site.code[process.instance],
    }


def _shown(process: Process) -> Process:
    return replace(process, env={name: value for name, value in process.env.items() if name not in LONG})


def _summary(stage: Stage, world_size: int) -> Iterator[tuple[str, str]]:
    body, job = stage.body, stage.job
    machine = body.instance_type or "of any type"
    yield "target", f"local ({stage.account.machine}), as Azure ML would run it"
    yield "instances", f"{body.instances} x {machine}, simulated" if body.instances > 1 else f"{machine}, simulated"
    yield "processes", str(world_size)
    yield "started by", f"the service itself ({body.kind or 'no distribution'})"
    yield "environment", f"{body.environment} (not used here)"
    yield "script", job.entry_point or job.command or ""
    yield "data", stage.site.data
    yield "run folder", stage.run_dir
    if job.max_runtime:
        yield "max runtime", format_duration(job.max_runtime)


def _notes(stage: Stage) -> Iterator[str]:
    job, body = stage.job, stage.body
    if job.environment.requirements is not None:
        yield f"`{job.environment.requirements}` is not installed here"
    if body.kind == "Mpi":
        yield (
            "Azure ML's mpirun is not run here: ranks have its variables, but a script that calls MPI itself (mpi4py) "
            "finds itself alone"
        )
    if not body.kind and body.instances > 1:
        yield "what Azure ML starts on several instances without a distribution is not documented; here one process"
