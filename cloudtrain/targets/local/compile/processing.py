"""A processing job on this machine: one process per instance, each with its shard of the data.

The launch specification is the same as for a job without a distribution, with two more fields:

    links       one folder per sharded input and instance: with N instances, each folder links to every N-th file
    places      the job's outputs, which can be downloaded

`cloudtrain.runtime.shards` assigns files to instances when the run starts. All instances write to the same
folder of an output, just as they write to the same S3 prefix on SageMaker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cloudtrain.core.job import TrainingJob
from cloudtrain.core.plan import CompileContext, Plan
from cloudtrain.core.processes import Process
from cloudtrain.core.processing import ProcessingJob
from cloudtrain.errors import Problem
from cloudtrain.launch.specification import Link
from cloudtrain.targets.common.problems import Problems
from cloudtrain.targets.common.this_machine import LocalPlan
from cloudtrain.targets.local.compile.training import compile_local
from cloudtrain.targets.local.settings import Local

_ONLY_TRAINING = ("distribution", "checkpoint")
"""Lines of the summary that do not apply to a processing job."""


def compile_local_processing(job: ProcessingJob, target: Local, context: CompileContext) -> LocalPlan:
    """Return the plan of a processing job on this machine. `context.account` is a `LocalAccount`.

    Raises:
        JobError: this machine lacks something that the job needs; the hint names an alternative.
    """
    problems, view = Problems(), job.as_training()
    if target.emulate is not None:
        message = f"`--emulate {target.emulate}` emulates training jobs only, and this is a processing job"
        problems.append(
            Problem(("kind",), message, "leave `--emulate` out: each instance gets its shard anyway", code="CT031")
        )
    sharded = [name for name, item in view.inputs.items() if item.shard]
    plain = target.model_copy(update={"emulate": None})
    whole = problems.value(lambda: compile_local(_mark_shards(view), plain, context), None)
    problems.refuse()
    assert whole is not None
    specification = whole.specification
    count, run_dir = specification.instances, specification.run_dir
    shares = [{_mark(name): _share(run_dir, instance, name) for name in sharded} for instance in range(count)]
    processes = tuple(_seen(process, shares[process.instance], count) for process in whole.processes)
    specified = zip(specification.processes, processes, strict=True)
    env = processes[0].env
    specification = replace(
        specification,
        processes=tuple(replace(item, argv=process.argv, env=process.env) for item, process in specified),
        links=tuple(
            Link(_share(run_dir, instance, name), str(view.inputs[name].local), (instance, count))
            for name in sharded
            for instance in range(count)
        ),
        places={f"outputs/{name}": (env[f"CLOUDTRAIN_OUTPUT_{name.upper()}"],) for name in job.outputs},
    )
    summary = _summary(whole, sharded, count)
    return replace(whole, request=specification.to_json(), processes=processes, summary=summary)


def _share(run_dir: str, instance: int, name: str) -> str:
    return f"{run_dir}/instances/{instance}/input/{name}"


def _mark(name: str) -> str:
    """Return a placeholder for the folder with an instance's shard of the input `name`. The job is compiled once for
    all instances; then `_seen` replaces the placeholder with each instance's folder."""
    return f"${{{{shares.{name}}}}}"


def _mark_shards(view: TrainingJob) -> TrainingJob:
    inputs = {
        name: item.model_copy(update={"local": _mark(name)}) if item.shard and item.local is not None else item
        for name, item in view.inputs.items()
    }
    return view.model_copy(update={"inputs": inputs})


def _seen(process: Process, shares: Mapping[str, str], count: int) -> Process:
    """Return the process with its own paths: `shares` maps placeholders to the folders that replace them. Add the
    variables with the number of its instance and the number of all instances (`count`)."""

    def filled(text: str) -> str:
        for mark, share in shares.items():
            text = text.replace(mark, share)
        return text

    env = {name: filled(text) for name, text in process.env.items()}
    env |= {"CLOUDTRAIN_INSTANCE": str(process.instance), "CLOUDTRAIN_INSTANCE_COUNT": str(count)}
    return replace(process, argv=tuple(map(filled, process.argv)), env=dict(sorted(env.items())))


def _summary(whole: Plan, sharded: list[str], count: int) -> tuple[tuple[str, str], ...]:
    pairs = [(label, text) for label, text in whole.summary if label not in _ONLY_TRAINING]
    if sharded:
        pairs.append(("shards", f"{', '.join(sharded)}: dealt out by file over {count} instances"))
    return tuple(pairs)
