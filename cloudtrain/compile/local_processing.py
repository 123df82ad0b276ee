"""A processing job on this machine: one process per instance, each with its shard of the data.

The launch specification is that of a job without a distribution, and says beside it how files are dealt out:

    shards      name: the input; source: the folder or file; directories: one per instance, filled with links
    places      what can be downloaded: the job's outputs

Which instance gets which file is decided at the start, by `cloudtrain.backends.local.shards`. What the instances write
goes to one folder per output, as it goes to one prefix in S3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cloudtrain.compile.local import compile_local
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
    view = job.as_training()
    whole = compile_local(view, target, context)
    count, run_dir = whole.request["instances"], whole.request["run_dir"]
    shards = [
        {
            "name": name,
            "source": item.local,
            "directories": [f"{run_dir}/instances/{instance}/input/{name}" for instance in range(count)],
        }
        for name, item in view.inputs.items()
        if item.shard
    ]
    plans = [compile_local(_seen_by(view, shards, instance), target, context) for instance in range(count)]
    numbered = [_numbered(plan.processes[instance], count) for instance, plan in enumerate(plans)]
    specified = [plan.request["processes"][instance] for instance, plan in enumerate(plans)]
    request = whole.request | {
        "processes": [{**item, "env": process.env} for item, process in zip(specified, numbered, strict=True)],
        "shards": shards,
        "places": {
            f"outputs/{name}": [whole.processes[0].env[f"CLOUDTRAIN_OUTPUT_{name.upper()}"]] for name in job.outputs
        },
    }
    return replace(whole, request=request, processes=tuple(numbered), summary=_summary(whole, shards, count))


def _seen_by(view: TrainingJob, shards: list[dict[str, Any]], instance: int) -> TrainingJob:
    """The job as one instance sees it: its inputs are its own shards."""
    own = {shard["name"]: shard["directories"][instance] for shard in shards}
    inputs = {
        name: item.model_copy(update={"local": own[name]}) if name in own else item
        for name, item in view.inputs.items()
    }
    return view.model_copy(update={"inputs": inputs})


def _numbered(process: Process, count: int) -> Process:
    own = {"CLOUDTRAIN_INSTANCE": str(process.instance), "CLOUDTRAIN_INSTANCE_COUNT": str(count)}
    return replace(process, env=dict(sorted((process.env | own).items())))


def _summary(whole: Plan, shards: list[dict[str, Any]], count: int) -> tuple[tuple[str, str], ...]:
    pairs = [(label, text) for label, text in whole.summary if label not in _ONLY_TRAINING]
    names = ", ".join(shard["name"] for shard in shards)
    return (*pairs, ("shards", f"{names}: dealt out by file over {count} instances")) if shards else tuple(pairs)
