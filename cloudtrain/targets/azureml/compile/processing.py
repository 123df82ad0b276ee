"""A processing job on Azure ML: a command job that starts one process on each instance.

The distribution is PyTorch's with one process per instance, because the service documents how such
a process gets its rank and the number of processes. On each instance
`cloudtrain.runtime.azureml_processing` takes that instance's share of the files.

By default outputs are mounted, so that several instances can write into one folder, as on other
targets. Microsoft's examples for two instances do the same (azureml-examples, deepspeed-training).
Azure does not document what `upload` does when several instances upload.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cloudtrain.errors import Problem, quoted
from cloudtrain.job.distribution import Torch
from cloudtrain.job.processing import ProcessingJob
from cloudtrain.job.training import TrainingJob
from cloudtrain.plans.plan import Plan
from cloudtrain.runtime.azureml_processing import MODULE
from cloudtrain.targets.azureml.compile.places import (
    free_texts,
    quote_word,
    reference_texts,
    words_of,
)
from cloudtrain.targets.azureml.parts import without
from cloudtrain.targets.common.compiling import (
    hyperparameter_text,
    resolve_text,
)

_ONLY_TRAINING = ("processes", "distribution", "checkpoint")
"""Lines of the summary that do not apply to a processing job."""


def as_command_job(job: ProcessingJob) -> TrainingJob:
    """Return the training job that runs a processing job's program."""
    view = job.view
    outputs = {}
    for name, item in job.outputs.items():
        outputs[name] = item
        if "mode" not in item.model_fields_set:
            outputs[name] = item.model_copy(update={"mode": "mount"})

    changes = {
        "command": _command(job, view),
        "entry_point": None,
        "hyperparameters": {},
        "distribution": Torch(processes_per_instance=1),
        "outputs": outputs,
    }
    return view.model_copy(update=changes)


def as_processing_plan(job: ProcessingJob, plan: Plan) -> Plan:
    """Return the plan of the command job with what a reader needs to know of a processing job."""
    summary = without(dict(plan.summary), _ONLY_TRAINING)
    if "script" in summary:
        summary["script"] = job.entry_point or job.command or ""
    shards = _shards(job)
    if shards:
        count = job.resources.instance_count
        summary["shards"] = f"{', '.join(shards)}: dealt out by file over {count} instances"
    notes = (*plan.notes, *_notes(job))
    return replace(plan, summary=tuple(summary.items()), notes=notes)


def _shards(job: ProcessingJob) -> list[str]:
    """Return the names of the inputs whose files are distributed."""
    return [name for name, item in job.inputs.items() if item.shard]


def _command(job: ProcessingJob, view: TrainingJob) -> str | None:
    """Return the command that takes the instance's share and starts the program; None if the job
    names no program."""
    texts = reference_texts(view)
    for name, item in job.inputs.items():
        if item.value is not None:
            texts[f"inputs.{name}"] = hyperparameter_text(item.value)

    if job.command is not None:
        program = ["bash", "-c", resolve_text(job.command, texts)]
    elif job.entry_point is not None:
        program = [*words_of(view, texts)]
    else:
        return None

    words = ["python", "-m", MODULE]
    for name in _shards(job):
        words += ["--shard", f"{name}=${{{{inputs.{name}}}}}"]
    free = free_texts(view)
    return " ".join(quote_word(word, free) for word in [*words, "--", *program])


def shard_problems(job: ProcessingJob) -> Iterator[Problem]:
    """Only a folder of separate files can be sharded, and it must be there when the script
    starts."""
    for name in _shards(job):
        item = job.inputs[name]
        hint = "remove `shard: true`; every instance then gets the whole input"
        if item.value is not None:
            why = "is a plain value"
        elif item.mode == "direct":
            why = "is only an address (`mode: direct`)"
            hint = "use `mode: mount`"
        elif item.type not in ("uri_folder", "uri_file"):
            why = f"is of the type `{item.type}`, whose files belong together"
        else:
            continue
        message = f"input `{name}` {why}, so cloudtrain cannot distribute its files"
        yield Problem(("inputs", name, "shard"), message, hint, code="CT031")


def _notes(job: ProcessingJob) -> Iterator[str]:
    copies = [name for name in _shards(job) if job.inputs[name].mode == "download"]
    if copies and job.resources.instance_count > 1:
        names = quoted(copies)
        yield (
            f"every instance downloads all of {names} before it takes its share; `mode: "
            "mount` reads its share only"
        )
    places = [*job.inputs.items(), *job.outputs.items()]
    paths = [name for name, item in places if item.path is not None]
    if paths:
        yield (
            f"`path` has no effect on Azure ML, which itself chooses the path of {quoted(paths)}"
        )
