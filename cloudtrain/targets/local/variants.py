"""A processing job on this machine: one process per instance, each with its shard of the data.

The launch specification is the same as for a job without a distribution, with two more fields:

    links       one folder per sharded input and instance: with N instances, each folder links to
                every N-th file
    places      the job's outputs, which can be downloaded

`cloudtrain.runtime.shards` assigns files to instances when the run starts. All instances write to
the same folder of an output, just as they write to the same S3 prefix on SageMaker.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import JobError, Problem, QueueTooSmall
from cloudtrain.job.training import TrainingJob
from cloudtrain.plans.plan import CompileContext, Plan, map_texts
from cloudtrain.plans.processes import Alike, Process, Processes
from cloudtrain.runtime.hardware import VISIBLE, visible_ids
from cloudtrain.targets.common.compiling import Problems, environment_key
from cloudtrain.targets.common.launch import LocalAccount, local_outputs
from cloudtrain.targets.common.specification import (
    BuiltEnvironment,
    LaunchSpecification,
    Link,
    QueueNeed,
)
from cloudtrain.targets.local.compile import compile_local
from cloudtrain.targets.local.processes import RUN_DIR
from cloudtrain.targets.local.settings import Local

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob, ProcessingJob

_ONLY_TRAINING = ("distribution", "checkpoint")
"""Lines of the summary that do not apply to a processing job."""


def compile_here(job: AnyJob, settings: Local, context: CompileContext) -> Plan:
    """Return the plan of a job on this machine, with the environment to build, and with what the
    run waits for: its place in the queue, and other runs. `context.account` is a `LocalAccount`."""
    environment = None
    run_settings = settings
    file = job.environment.requirements
    if settings.build_environment and file is not None and context.requirements is not None:
        python, real = context.account.interpreter
        key = environment_key(python, real, context.requirements)
        folder = f"{context.account.state_dir}/environments/{key}"
        environment = BuiltEnvironment(folder, python, file)
        run_settings = settings.model_copy(update={"python": f"{folder}/bin/python"})

    if isinstance(job, TrainingJob):
        plan = compile_local(job, run_settings, context)
    else:
        plan = _compile_processing(job, run_settings, context)

    if environment is not None:
        words = (
            f"{environment.folder}\n`{environment.requirements}` on top of what "
            f"`{environment.python}` has"
        )
        request: dict[str, Any] = {**plan.request, "environment": asdict(environment)}
        plan = replace(plan, request=request, summary=(*plan.summary, ("environment", words)))
    if settings.queue:
        plan = _queue_plan(plan, job, settings, context.account)
    if context.after:
        specification = replace(LaunchSpecification.from_json(plan.request), after=context.after)
        summary = (*plan.summary, ("waits for", ", ".join(context.after)))
        plan = replace(plan, request=specification.to_json(), summary=summary)
    return plan


def _compile_processing(job: ProcessingJob, target: Local, context: CompileContext) -> Plan:
    """Return the plan of a processing job: that of the same training job, with the shards of each
    instance in place of the inputs."""
    problems = Problems()
    view = job.view
    if target.emulate is not None:
        message = (
            f"`--emulate {target.emulate}` emulates training jobs only, and this is a "
            "processing job"
        )
        hint = "leave `--emulate` out: each instance gets its shard anyway"
        problems.append(Problem(("kind",), message, hint, code="CT031"))

    shards = [name for name, item in view.inputs.items() if item.shard]
    settings = target.model_copy(update={"emulate": None})
    run_dir = context.account.run_dir(context.run_name)
    sharded = _with_shares(view, run_dir)
    plan = problems.collect_from(lambda: compile_local(sharded, settings, context), None)
    problems.raise_if_any()
    assert plan is not None
    specification = LaunchSpecification.from_json(plan.request)
    count = specification.instances

    processes = []
    started = []
    for process, item in zip(plan.processes, specification.processes, strict=True):
        placed = _on_its_instance(process, count)
        processes.append(placed)
        started.append(replace(item, argv=placed.argv, env=placed.env))

    links = []
    for name in shards:
        data = str(view.inputs[name].local)
        for instance in range(count):
            share = _share(run_dir, name).replace(_INSTANCE, str(instance))
            links.append(Link(share, data, (instance, count)))

    # all instances write to the same folders, so those of the first stand for all
    places: dict[str, tuple[str, ...]] = {}
    for name in job.outputs:
        folder = processes[0].env[f"CLOUDTRAIN_OUTPUT_{name.upper()}"]
        places[f"outputs/{name}"] = (folder,)
    specification = replace(
        specification, processes=tuple(started), links=tuple(links), places=places
    )

    summary = [line for line in plan.summary if line[0] not in _ONLY_TRAINING]
    if shards:
        summary.append(("shards", f"{', '.join(shards)}: dealt out by file over {count} instances"))
    return replace(
        plan,
        request=specification.to_json(),
        processes=tuple(processes),
        summary=tuple(summary),
        outputs=local_outputs(specification),
    )


_INSTANCE = "${{instance}}"
"""Stands for the number of the instance. The job is compiled once with it; `_on_its_instance` puts
each process's number in its place."""


def _share(run_dir: str, name: str) -> str:
    """Return the folder with the share of the input `name` of the instance `_INSTANCE`."""
    return f"{run_dir}/instances/{_INSTANCE}/input/{name}"


def _with_shares(view: TrainingJob, run_dir: str) -> TrainingJob:
    """Return the job with an instance's share in the place of each sharded input."""
    inputs = dict(view.inputs)
    for name, item in view.inputs.items():
        if item.shard and item.local is not None:
            inputs[name] = item.model_copy(update={"local": _share(run_dir, name)})
    return view.model_copy(update={"inputs": inputs})


def _on_its_instance(process: Process, count: int) -> Process:
    """Return the process with the folders of its instance, of which there are `count`."""
    instance = str(process.instance)

    def fill(text: str) -> str:
        return text.replace(_INSTANCE, instance)

    env = map_texts(process.env, fill)
    env["CLOUDTRAIN_INSTANCE"] = instance
    env["CLOUDTRAIN_INSTANCE_COUNT"] = str(count)
    argv = map_texts(process.argv, fill)
    return replace(process, argv=argv, env=dict(sorted(env.items())))


# Plans of runs that wait in this machine's queue for GPUs or CPU slots.


def _queue_plan(plan: Plan, job: AnyJob, settings: Local, account: LocalAccount) -> Plan:
    """Return the plan with the GPUs or CPU slots that the run waits for in the queue.
    CUDA_VISIBLE_DEVICES gets a placeholder, unless the job sets the variable. The supervisor
    replaces it when the queue gives the run its GPUs."""
    specification = LaunchSpecification.from_json(plan.request)
    own_devices = job.view.environment.variables.get(VISIBLE)
    instances = specification.instances
    gpus = account.machine.gpu_ids if own_devices is None else visible_ids(own_devices)
    count = specification.world_size
    if not gpus or specification.launcher == "fork":  # which works on CPUs only
        slots = settings.slots or account.machine.cpus
        need = QueueNeed(count, (), slots, settings.priority)
    else:
        share = max(1, len(gpus) // instances)
        if own_devices is not None:
            count = len(gpus)
        # each host sees its whole share, as its variables show
        elif specification.emulates is not None:
            count = instances * share
        elif isinstance(job, TrainingJob) and job.distribution.type == "none":
            count = instances * min(job.resources.gpus_per_instance or 1, share)
        need = QueueNeed(count, gpus, 0, settings.priority)
    _refuse_too_much(need, specification)

    processes = plan.processes
    if need.gpus and own_devices is None:
        launches = tuple(
            replace(item, env=_with_share(item.env, item.instance))
            for item in specification.processes
        )
        specification = replace(specification, processes=launches)
        processes = Processes(
            _with_placeholder(group) for group in Processes.of(plan.processes).groups
        )

    specification = replace(specification, queue=need)
    first = f", priority {need.priority}" if need.priority else ""
    summary = (*plan.summary, ("queue", f"waits for {need}{first}"))
    return replace(plan, request=specification.to_json(), processes=processes, summary=summary)


def _refuse_too_much(need: QueueNeed, specification: LaunchSpecification) -> None:
    """Raise a `JobError` if the run needs more than this machine has, because it would wait for
    ever."""
    there = len(need.gpus) or need.slots
    if need.count <= there:
        return

    instances = specification.instances
    world = specification.world_size
    what = f"{instances} x {world // instances} (instances x processes)"
    fewer = f"--instances {there}"
    if world > instances:
        fitting = instances if instances <= there else 1
        fewer = f"--instances {fitting} --processes-per-instance {there // fitting}"

    hint = f"run it smaller: `{fewer}`, or leave `--queue` out"
    if need.gpus:
        needs = f"{need.count} GPUs"
        has = f"this machine has {there}: {', '.join(need.gpus)}"
    else:
        needs = f"{need.count} CPU slots"
        has = f"the queue of this machine has {there}"
        hint += f", or write `slots = {need.count}` under `[local]` in cloudtrain.toml"
    message = f"{what} need {needs}, but {has}"
    raise JobError([QueueTooSmall(("resources",), message, hint, code="CT041")])


def _with_placeholder(group: Alike) -> Alike:
    """Return the processes with a placeholder for their GPUs. Ranks that a launcher starts stay
    unchanged, because they inherit the launcher's variable."""
    if RUN_DIR not in group.first.env:
        return group

    def make(number: int) -> Process:
        process = group.make(number)
        return replace(process, env=_with_share(process.env, process.instance))

    return replace(group, make=make, uniform=False)


def _with_share(env: dict[str, str], instance: int) -> dict[str, str]:
    return dict(sorted({**env, VISIBLE: f"${{{{gpus.{instance}}}}}"}.items()))
