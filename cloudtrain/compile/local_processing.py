"""A processing job on this machine: one process per instance, each with its shard of the data.

The launch specification is that of a job without a distribution, and has two of the keys that emulated jobs have:

    links       one for each instance of each sharded input: a folder with every count-th file of the input
    places      what can be downloaded: the job's outputs

Which instance gets which file is decided at the start, by `cloudtrain.runtime.shards`. What the instances write
goes to one folder per output, as it goes to one prefix in S3.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    sharded = [name for name, item in view.inputs.items() if item.shard]
    whole = compile_local(_marked(view), target, context)
    count, run_dir = whole.request["instances"], whole.request["run_dir"]
    shares = [{_mark(name): _share(run_dir, instance, name) for name in sharded} for instance in range(count)]
    processes = tuple(_seen(process, shares[process.instance], count) for process in whole.processes)
    specified = zip(whole.request["processes"], processes, strict=True)
    request = whole.request | {
        "processes": [{**item, "argv": list(process.argv), "env": process.env} for item, process in specified],
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
    return replace(whole, request=request, processes=processes, summary=_summary(whole, sharded, count))


def _share(run_dir: str, instance: int, name: str) -> str:
    return f"{run_dir}/instances/{instance}/input/{name}"


def _mark(name: str) -> str:
    """Stands for an instance's share of an input while the job is compiled, once for all instances. No text of a
    compiled job holds a reference any more."""
    return f"${{{{shares.{name}}}}}"


def _marked(view: TrainingJob) -> TrainingJob:
    inputs = {
        name: item.model_copy(update={"local": _mark(name)}) if item.shard and item.local is not None else item
        for name, item in view.inputs.items()
    }
    return view.model_copy(update={"inputs": inputs})


def _seen(process: Process, shares: Mapping[str, str], count: int) -> Process:
    """The process with its instance's own shares and number."""

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
