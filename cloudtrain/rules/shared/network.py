"""Rules about the network between instances that work together."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.catalogue.instances import InstanceType
from cloudtrain.core.distribution import NoDistribution, TensorFlow
from cloudtrain.rules.alternatives import better_network, fabric
from cloudtrain.rules.rule import Fault, Subject
from cloudtrain.rules.words import plural


def over_ethernet(subject: Subject, code: str) -> Iterator[Fault]:
    """Several instances with GPUs work together without the target's fast network. `code` is the code of the rule."""
    machines = subject.view.machines(subject)
    for group in machines.spanned if needs_network(subject) else ():
        known = group.known
        if known is not None and group.accelerators and not known.fabric:
            count = plural(machines.spanned_count, "instance")
            message = f"`{known.name}` has no {fabric(known)}, and this job runs on {count}"
            yield Fault(message, instead(subject, known, code), group.path)


def instead(subject: Subject, known: InstanceType, code: str) -> str:
    """Return the hint to use a better network or a single instance in place of instances of the type `known`. If the
    overrides set the instance count, a hint to use a single instance also says to remove that override.
    """
    count, field = subject.view.machines(subject).spanned_count, ("resources", "instance_count")
    hint, path = better_network(known, count, code), subject.view.locate(subject, field)
    if hint.startswith("use one ") and path != field:
        return f"remove `{'.'.join(map(str, path[1:]))}` from `{path[0]}`, and {hint}"
    return hint


def needs_network(subject: Subject) -> bool:
    """Return whether several instances work together and the job does not accept Ethernet."""
    if subject.job.resources.interconnect == "ethernet":
        return False
    return subject.view.machines(subject).spanned_count > 1 and works_together(subject)


def works_together(subject: Subject) -> bool:
    """Return whether the speed of the network matters to the job's processes. It does not matter for processing jobs,
    for jobs without a distribution, and for parameter servers, which always use TCP.
    """
    distribution = subject.effective.distribution
    if isinstance(distribution, TensorFlow) and distribution.strategy == "parameter_server":
        return False
    return subject.processing is None and not isinstance(distribution, NoDistribution)
