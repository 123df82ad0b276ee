"""Compile a job, a local target and a context into the plan of an emulated job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cloudtrain.core.job import TrainingJob
from cloudtrain.core.plan import CompileContext
from cloudtrain.core.processes import Process
from cloudtrain.core.units import format_duration
from cloudtrain.errors import JobError, Problem
from cloudtrain.launch.loopback import loopback_variables
from cloudtrain.targets.azureml.account import AzureMLAccount
from cloudtrain.targets.azureml.compile import compile_azureml
from cloudtrain.targets.azureml.emulate.layout import local_layout
from cloudtrain.targets.azureml.emulate.specification import specification
from cloudtrain.targets.azureml.emulate.stage import Stage
from cloudtrain.targets.azureml.launch.job import INTERFACE, LONG, MASTER_PORT, Body, processes
from cloudtrain.targets.azureml.settings import AzureML
from cloudtrain.targets.common.problems import Problems
from cloudtrain.targets.common.scaled import placed_job, scaled_job, without_echoes
from cloudtrain.targets.common.scaling import gpu_share
from cloudtrain.targets.common.this_machine import LocalAccount, LocalPlan, LocalSettings

ACCOUNT = AzureMLAccount(
    subscription_id="00000000-0000-0000-0000-000000000000", resource_group="emulated", workspace="emulated"
)
"""Stands in for a workspace, because the request is never sent."""

INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES")


def compile_as_azureml(job: TrainingJob, target: LocalSettings, context: CompileContext) -> LocalPlan:
    """Return the plan of a job that runs on this machine as on Azure ML. `context.account` must be a `LocalAccount`.

    Raises:
        JobError: the job cannot run on Azure ML, or cannot be emulated; the hint names an alternative.
    """
    account: LocalAccount = context.account
    stage = _stage(job, target, context)
    started = [_here(stage, process) for process in processes(stage.body, stage.layout)]
    if not started:
        message = f"cloudtrain cannot emulate `{stage.body.kind}`: Azure does not document its processes"
        raise JobError([Problem(("azureml_overrides", "distribution"), message, "submit it to Azure ML", code="CT031")])
    for process in started:
        process.env.update(_shares(stage, process.instance, len(started)))
        for name, value in loopback_variables(account.loopback).items():
            process.env.setdefault(name, value)
    return LocalPlan.of(
        specification(stage, context, started, grace_period=target.grace_period),
        job.name,
        context,
        processes=tuple(map(_shorten, started)),
        summary=_summary(stage, len(started)),
        notes=_notes(stage),
    )


def _stage(job: TrainingJob, target: LocalSettings, context: CompileContext) -> Stage:
    """Compile the job for Azure ML, with this machine's counts, and without requirements, which are not installed
    here.
    """
    account: LocalAccount = context.account
    problems = Problems(_horovod_problems(job))
    made = problems.value(lambda: scaled_job(job, target, account), None)
    scaled = made[0] if made else placed_job(job, target)
    scaled = scaled.model_copy(update={"environment": job.environment.model_copy(update={"requirements": None})})
    plan = problems.value(lambda: compile_azureml(scaled, AzureML(), context._replace(account=ACCOUNT)), None)
    if problems or plan is None:
        raise JobError(without_echoes(problems))
    body = Body(plan.request)
    run_dir = account.run_dir(context.run_name)
    layout = local_layout(body, account, run_dir, context.run_name, ACCOUNT.workspace_id)
    return Stage(job, body, layout, account, target.python or account.python, run_dir)


def _horovod_problems(job: TrainingJob) -> Iterator[Problem]:
    """Refuse Horovod, because without mpirun every rank would train alone, without an error."""
    if job.distribution.type == "horovod":
        message = "Horovod's ranks find each other through Azure ML's own mpirun, which is not on this machine"
        yield Problem(("distribution", "type"), message, "run it here without `--emulate azureml`", code="CT030")


def _here(stage: Stage, process: Process) -> Process:
    """Return a copy of the service's process with this machine's network interface and a free MASTER_PORT."""
    env = dict(process.env)
    for name in INTERFACE_VARIABLES:
        if env.get(name) == INTERFACE:
            env[name] = "lo"
    if stage.body.kind == "Mpi":
        env.setdefault("MASTER_PORT", stage.layout.listen(0, MASTER_PORT)[1])
    return replace(process, env=env)


def _shares(stage: Stage, instance: int, world_size: int) -> dict[str, str]:
    """Return the variables that the emulation adds to every process.

    On the PATH, the job's `python` comes first, followed by the other programs in the interpreter's folder.
    """
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


def _shorten(process: Process) -> Process:
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
    yield "data", stage.layout.data
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
        yield "what several instances run without a distribution is not documented; the emulation starts one process"
