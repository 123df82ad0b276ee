"""Rules about what a training script shows by its syntax."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.job.syntax import ScriptSyntax, read_syntax
from cloudtrain.plans.plan import Level
from cloudtrain.plans.processes import Processes
from cloudtrain.rules.engine import Fault, Subject, rule


def syntax_of(subject: Subject) -> ScriptSyntax:
    script, tree = subject.job.entry_point or "", subject.tree
    if not script.endswith(".py"):
        return ScriptSyntax()
    paths = {entry.path for entry in tree.entries if entry.path.endswith(".py")}
    return read_syntax(script, lambda path: tree.read_text(path) if path in paths else None)


@rule("CT507", Level.WARNING)
def copies_of_one_training(subject: Subject) -> Iterator[Fault]:
    """Several processes would all train the same model.

    The distribution starts several processes, but the script uses no library that joins them and reads no rank. So each
    process runs the whole training, and all of them write the same files. The rule reads the script and the modules
    beside it that it imports. Join the processes in the script, for example with `runtime.init_process_group()` and
    DistributedDataParallel, or start one process.
    """
    kind, count = subject.reading.distribution.type, sum(Processes.of(subject.plan.processes).ranks.values())
    if kind != "none" and count > 1 and syntax_of(subject).is_alone:
        message = f"`{subject.job.entry_point}` joins no other process, so {count} processes would all train the same"
        hint = "start one process with `distribution: {type: none}`, or join them in the script with "
        yield Fault(message, f"{hint}`torch.distributed`", ("distribution",))


@rule("CT508", Level.NOTICE)
def one_process(subject: Subject) -> Iterator[Fault]:
    """The job sets no distribution, and the script does not work with other processes.

    The script imports torch, but uses no library that joins processes and reads no rank. So one process runs it. If
    several shall train together, join them in the script, and set a `distribution`.
    """
    distribution = subject.reading.distribution.type
    if distribution == "none" and "distribution" not in subject.job.model_fields_set and syntax_of(subject).is_alone:
        message = f"one process runs `{subject.job.entry_point}`, because it joins no other process"
        yield Fault(message, "for several, join them in the script, and add `distribution: {type: torch}`")
