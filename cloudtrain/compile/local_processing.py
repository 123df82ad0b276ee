"""A processing job on this machine: one process per instance, each with its shard of the data.

The launch specification is that of a job without a distribution, and has two of the keys that emulated jobs have:

    links       one for each instance of each sharded input: a folder with every count-th file of the input
    places      what can be downloaded: the job's outputs

Which instance gets which file is decided at the start, by `cloudtrain.runtime.shards`. What the instances write
goes to one folder per output, as it goes to one prefix in S3.
"""

from __future__ import annotations

from dataclasses import replace

from cloudtrain.compile.local import compile_local
from cloudtrain.errors import JobError, Problem
from cloudtrain.job import TrainingJob
from cloudtrain.plans import CompileContext, Plan, Process
from cloudtrain.processing import ProcessingJob
from cloudtrain.targets import Local

_ONLY_TRAINING = ("distribution", "checkpoint")
"""Lines of the summary that say nothing about a processing job."""


def compile_local_processing(job: ProcessingJob, target: Local, context: CompileContext) -> Plan:
    """The plan of a processing job on this machine. `context.account` is a `LocalAccount`.

    Raises:
        JobError: the job needs something that this machine cannot give, with the alternative.
    """
    if target.emulate is not None:
        message = f"`--emulate {target.emulate}` rehearses training jobs, and this is a processing job"
        raise JobError([Problem(("kind",), message, "leave it out: each instance gets its shard all the same")])
    view = job.as_training()
    whole = compile_local(view, target, context)
    count, run_dir = whole.request["instances"], whole.request["run_dir"]
    sharded = [name for name, item in view.inputs.items() if item.shard]
    plans = [compile_local(_seen_by(view, run_dir, instance), target, context) for instance in range(count)]
    numbered = [_numbered(plan.processes[instance], count) for instance, plan in enumerate(plans)]
    specified = [plan.request["processes"][instance] for instance, plan in enumerate(plans)]
    request = whole.request | {
        "processes": [{**item, "env": process.env} for item, process in zip(specified, numbered, strict=True)],
        "links": [
            {
                "path": _share(run_dir, instance, name),
                "target": view.inputs[name].local,
                "shard": [instance, count],
            }
            for name in sharded
            for instance in range(count)
        ],
        "places": {
            f"outputs/{name}": [whole.processes[0].env[f"CLOUDTRAIN_OUTPUT_{name.upper()}"]] for name in job.outputs
        },
    }
    return replace(whole, request=request, processes=tuple(numbered), summary=_summary(whole, sharded, count))


def _share(run_dir: str, instance: int, name: str) -> str:
    return f"{run_dir}/instances/{instance}/input/{name}"


def _seen_by(view: TrainingJob, run_dir: str, instance: int) -> TrainingJob:
    """The job as one instance sees it: its sharded inputs are its own shares."""
    inputs = {
        name: item.model_copy(update={"local": _share(run_dir, instance, name)}) if item.shard else item
        for name, item in view.inputs.items()
    }
    return view.model_copy(update={"inputs": inputs})


def _numbered(process: Process, count: int) -> Process:
    own = {"CLOUDTRAIN_INSTANCE": str(process.instance), "CLOUDTRAIN_INSTANCE_COUNT": str(count)}
    return replace(process, env=dict(sorted((process.env | own).items())))


def _summary(whole: Plan, sharded: list[str], count: int) -> tuple[tuple[str, str], ...]:
    pairs = [(label, text) for label, text in whole.summary if label not in _ONLY_TRAINING]
    if sharded:
        pairs.append(("shards", f"{', '.join(sharded)}: dealt out by file over {count} instances"))
    return tuple(pairs)
