"""Portable rules about processing jobs: the instances should share the work."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.core.plan import Level
from cloudtrain.rules.portable.job import instance_count
from cloudtrain.rules.rule import Fault, Subject, rule


@rule("CT521", Level.WARNING)
def instances_do_the_same(subject: Subject) -> Iterator[Fault]:
    """A processing job has several instances and no sharded input.

    Every instance runs the whole script. Unless an input has `shard: true`, all of them read the same data, do the same
    work, and write files of the same names to the same location, where only the last one remains. Ignore this rule if
    the script divides the work itself by `CLOUDTRAIN_INSTANCE`.
    """
    job = subject.processing
    count = instance_count(subject)
    if job is None or count == 1 or any(item.shard for item in job.inputs.values()):
        return
    name = next(iter(job.inputs), None)
    hint = f"add `shard: true` under `inputs.{name}`" if name else "use one instance, or shard an input"
    yield Fault(
        f"all {count} instances would do the same work",
        f"{hint}; `--ignore CT521` if the script divides the work itself",
        ("inputs", name) if name else ("resources", "instance_count"),
    )


@rule("CT522", Level.NOTICE)
def shard_of_one(subject: Subject) -> Iterator[Fault]:
    """An input is sharded, but the job has only one instance.

    With one instance, the shard contains all of the data, so `shard: true` has no effect.
    """
    job = subject.processing
    if job is None or instance_count(subject) > 1:
        return
    for name, item in job.inputs.items():
        if item.shard:
            yield Fault(
                f"input `{name}` is sharded over a single instance, which gets all of the data",
                "set `resources.instance_count` to 2 or more",
                ("inputs", name, "shard"),
            )
