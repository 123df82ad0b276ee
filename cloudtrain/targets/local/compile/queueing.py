"""Plans of runs that wait in this machine's queue for GPUs or CPU slots, or that wait for other runs."""

from __future__ import annotations

from dataclasses import replace

from cloudtrain.core.processes import Alike, Process, Processes
from cloudtrain.core.processing import AnyJob, ProcessingJob
from cloudtrain.errors import JobError, Problem
from cloudtrain.launch.specification import LaunchSpecification, QueueNeed, StartedProcess
from cloudtrain.targets.common.gpus import VISIBLE, visible_ids
from cloudtrain.targets.common.this_machine import LocalAccount, LocalPlan
from cloudtrain.targets.local.settings import Local

_OURS = "CLOUDTRAIN_RUN_DIR"
"""An environment variable that only processes started by the supervisor have; ranks below a launcher lack it."""


def queue_plan(plan: LocalPlan, job: AnyJob, settings: Local, account: LocalAccount) -> LocalPlan:
    """Return the plan with the GPUs or CPU slots that the run waits for in the queue. CUDA_VISIBLE_DEVICES gets a
    placeholder, unless the job sets the variable. The supervisor replaces it when the queue gives the run its GPUs.

    Raises:
        JobError: the run needs more than the machine has, so it would wait for ever.
    """
    specification = plan.specification
    given = _own_devices(job)
    need = _need(job, specification, settings, account, given)
    _refuse_too_much(need, specification)
    has_share = bool(need.gpus) and given is None
    processes = plan.processes
    if has_share:
        started = tuple(_with_share(process) for process in specification.processes)
        specification = replace(specification, processes=started)
        processes = Processes(_shown(group) for group in Processes.of(plan.processes).groups)
    specification = replace(specification, queue=need)
    first = f", priority {need.priority}" if need.priority else ""
    summary = (*plan.summary, ("queue", f"waits for {need}{first}"))
    return replace(plan, request=specification.to_json(), processes=processes, summary=summary)


def plan_after(plan: LocalPlan, runs: tuple[str, ...]) -> LocalPlan:
    """Return the plan with `runs` added: runs that must succeed before this run starts."""
    summary = (*plan.summary, ("waits for", ", ".join(runs)))
    return replace(plan, request=replace(plan.specification, after=runs).to_json(), summary=summary)


def _own_devices(job: AnyJob) -> str | None:
    """Return the value of CUDA_VISIBLE_DEVICES that the job sets; None if the job does not set the variable."""
    view = job.as_training() if isinstance(job, ProcessingJob) else job
    return view.environment.variables.get(VISIBLE)


def _need(
    job: AnyJob, specification: LaunchSpecification, settings: Local, account: LocalAccount, given: str | None
) -> QueueNeed:
    machine, instances = account.machine, specification.instances
    gpus = machine.gpu_ids if given is None else visible_ids(given)
    if not gpus or specification.launcher == "fork":
        return QueueNeed(specification.world_size, (), settings.slots or machine.cpus, settings.priority)
    count = specification.world_size
    if given is not None:
        count = len(gpus)
    elif specification.emulates is not None:  # each host sees its whole share, as its variables show
        count = instances * max(1, len(gpus) // instances)
    elif not isinstance(job, ProcessingJob) and job.distribution.type == "none":
        each = min(job.resources.gpus_per_instance or 1, max(1, len(gpus) // instances))
        count = instances * each
    return QueueNeed(count, gpus, 0, settings.priority)


def _refuse_too_much(need: QueueNeed, specification: LaunchSpecification) -> None:
    there = len(need.gpus) or need.slots
    if need.count <= there:
        return
    instances, world = specification.instances, specification.world_size
    what = f"{instances} x {world // instances} (instances x processes)"
    fewer = f"--instances {there}"
    if world > instances:
        fitting = instances if instances <= there else 1
        fewer = f"--instances {fitting} --processes-per-instance {there // fitting}"
    if need.gpus:
        message = f"{what} need {need.count} GPUs, but this machine has {there}: {', '.join(need.gpus)}"
        hint = f"run it smaller: `{fewer}`, or leave `--queue` out"
    else:
        slots = f"{there} CPU slot{'s' if there > 1 else ''}"
        message = f"{what} need {need.count} CPU slots, but the queue of this machine has {slots}"
        hint = f"run it smaller: `{fewer}`, or write `slots = {need.count}` under `[local]` in cloudtrain.toml"
    raise JobError([Problem(("resources",), message, hint, code="CT041")])


def _with_share(process: StartedProcess) -> StartedProcess:
    return replace(process, env=_env(process.env, process.instance))


def _shown(group: Alike) -> Alike:
    """Return the processes as a plan shows them, with a placeholder in CUDA_VISIBLE_DEVICES. Ranks that a launcher
    starts stay unchanged, because they inherit the launcher's variable."""
    if _OURS not in group.first.env:
        return group

    def make(number: int) -> Process:
        process = group.make(number)
        return replace(process, env=_env(process.env, process.instance))

    return replace(group, make=make, uniform=False)


def _env(env: dict[str, str], instance: int) -> dict[str, str]:
    return dict(sorted({**env, VISIBLE: f"${{{{gpus.{instance}}}}}"}.items()))
