"""A processing job on this machine: one process per instance, each with its shard of the data.

The launch specification is the same as for a job without a distribution, with two more fields:

    links       one folder per sharded input and instance: with N instances, each folder links to
                every N-th file
    places      the job's outputs, which can be downloaded

`cloudtrain.runtime.shards` assigns files to instances when the run starts. All instances write to
the same folder of an output, just as they write to the same S3 prefix on SageMaker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import JobError, Problem, QueueTooSmall
from cloudtrain.job.training import TrainingJob
from cloudtrain.plans.plan import CompileContext, Plan
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
    environment = _environment(job, settings, context)
    run_settings = settings
    if environment is not None:
        run_settings = settings.model_copy(update={"python": f"{environment.folder}/bin/python"})

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
    plan = problems.collect_from(lambda: compile_local(_mark_shards(view), settings, context), None)
    problems.raise_if_any()
    assert plan is not None
    specification = LaunchSpecification.from_json(plan.request)
    count = specification.instances
    run_dir = specification.run_dir

    processes = []
    started = []
    for process, item in zip(plan.processes, specification.processes, strict=True):
        shares = {_mark(name): _share(run_dir, process.instance, name) for name in shards}
        placed = _with_paths(process, shares, count)
        processes.append(placed)
        started.append(replace(item, argv=placed.argv, env=placed.env))

    links = []
    for name in shards:
        data = str(view.inputs[name].local)
        for instance in range(count):
            links.append(Link(_share(run_dir, instance, name), data, (instance, count)))

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


def _share(run_dir: str, instance: int, name: str) -> str:
    """Return the folder with an instance's share of the input `name`."""
    return f"{run_dir}/instances/{instance}/input/{name}"


def _mark(name: str) -> str:
    """Return the placeholder for the folder of a sharded input. The job is compiled once with it;
    `_with_paths` replaces it with each instance's folder."""
    return f"${{{{shares.{name}}}}}"


def _mark_shards(view: TrainingJob) -> TrainingJob:
    """Return the job with a placeholder for the folder of each sharded input."""
    inputs = dict(view.inputs)
    for name, item in view.inputs.items():
        if item.shard and item.local is not None:
            inputs[name] = item.model_copy(update={"local": _mark(name)})
    return view.model_copy(update={"inputs": inputs})


def _with_paths(process: Process, shares: Mapping[str, str], count: int) -> Process:
    """Return the process with the folders of its instance. `shares` maps placeholders to the
    folders that replace them; `count` is the number of instances."""

    def fill(text: str) -> str:
        for mark, share in shares.items():
            text = text.replace(mark, share)
        return text

    argv = tuple(map(fill, process.argv))
    env = {name: fill(text) for name, text in process.env.items()}
    env["CLOUDTRAIN_INSTANCE"] = str(process.instance)
    env["CLOUDTRAIN_INSTANCE_COUNT"] = str(count)
    return replace(process, argv=argv, env=dict(sorted(env.items())))


# Plans of runs that wait in this machine's queue for GPUs or CPU slots.


def _queue_plan(plan: Plan, job: AnyJob, settings: Local, account: LocalAccount) -> Plan:
    """Return the plan with the GPUs or CPU slots that the run waits for in the queue.
    CUDA_VISIBLE_DEVICES gets a placeholder, unless the job sets the variable. The supervisor
    replaces it when the queue gives the run its GPUs."""
    specification = LaunchSpecification.from_json(plan.request)
    view = job.view
    own_devices = view.environment.variables.get(VISIBLE)
    need = _need(job, specification, settings, account, own_devices)
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


def _need(
    job: AnyJob,
    specification: LaunchSpecification,
    settings: Local,
    account: LocalAccount,
    own_devices: str | None,
) -> QueueNeed:
    """Return the GPUs or CPU slots that the run must wait for. `own_devices`: the value of
    CUDA_VISIBLE_DEVICES that the job sets; None if it does not set the variable."""
    machine = account.machine
    instances = specification.instances
    gpus = machine.gpu_ids if own_devices is None else visible_ids(own_devices)
    if not gpus or specification.launcher == "fork":  # which works on CPUs only
        return QueueNeed(
            specification.world_size, (), settings.slots or machine.cpus, settings.priority
        )

    share = max(1, len(gpus) // instances)
    count = specification.world_size
    if own_devices is not None:
        count = len(gpus)
    # each host sees its whole share, as its variables show
    elif specification.emulates is not None:
        count = instances * share
    elif isinstance(job, TrainingJob) and job.distribution.type == "none":
        count = instances * min(job.resources.gpus_per_instance or 1, share)
    return QueueNeed(count, gpus, 0, settings.priority)


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

    if need.gpus:
        message = (
            f"{what} need {need.count} GPUs, but this machine has {there}: {', '.join(need.gpus)}"
        )
        hint = f"run it smaller: `{fewer}`, or leave `--queue` out"
    else:
        slots = f"{there} CPU slot{'s' if there > 1 else ''}"
        message = f"{what} need {need.count} CPU slots, but the queue of this machine has {slots}"
        hint = (
            f"run it smaller: `{fewer}`, or write `slots = {need.count}` under `[local]` in "
            "cloudtrain.toml"
        )
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


def _environment(job: AnyJob, settings: Local, context: CompileContext) -> BuiltEnvironment | None:
    """Return the environment to build for the job; None if the job uses the interpreter
    directly."""
    file = job.environment.requirements
    if not settings.build_environment or file is None or context.requirements is None:
        return None
    python, real = context.account.interpreter
    key = environment_key(python, real, context.requirements)
    return BuiltEnvironment(f"{context.account.state_dir}/environments/{key}", python, file)
