"""Rules about instance types: they must match the job's description and still be offered."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from cloudtrain.rules.alternatives import fabric, last_day, successor, with_rdma
from cloudtrain.rules.rule import Fault, Subject
from cloudtrain.rules.words import plural


def type_is_not_as_described(subject: Subject) -> Iterator[Fault]:
    """The instance type contradicts the job's description of the machine.

    `gpus_per_instance` and `interconnect` describe a machine. If they contradict the named instance type, either the
    description or the type is wrong. The job would run with fewer processes, or over a slower network, than intended.
    """
    resources = subject.job.resources
    asked = None if resources.instance_groups else resources.gpus_per_instance
    for known in (group.known for group in subject.view.machines(subject).spanned):
        if known is None:
            continue
        if asked is not None and asked != known.gpus:
            message = f"`{known.name}` has {plural(known.gpus, 'GPU') if known.gpus else 'no GPUs'}, not {asked}"
            hint = f"set `gpus_per_instance` to {known.gpus}, or name another type"
            yield Fault(message, hint, ("resources", "gpus_per_instance"))
        if resources.interconnect == "rdma" and known.interconnect != "rdma":
            what = f"{fabric(known)} without SR-IOV" if known.fabric else f"no {fabric(known)}"
            hint = with_rdma(known) or "remove `interconnect`, or name another type"
            yield Fault(f"`{known.name}` has {what}, and the job asks for RDMA", hint, ("resources", "interconnect"))


def retired_type(subject: Subject, *, after: str = "", until: str = "9999") -> Iterator[Fault]:
    """The instance type is no longer offered, or will soon be retired.

    Checks only types whose last day is later than `after` and not later than `until` (ISO dates).
    """
    for group in subject.view.machines(subject).groups:
        last = last_day(group.known) or ""
        if group.known and after < last <= until:
            told = "is retired: it has not been offered since" if last <= str(date.today()) else "will be retired on"
            lists = f"`cloudtrain instances --target {subject.where.name}` lists the others"
            yield Fault(f"`{group.known.name}` {told} {last}", successor(group.known) or lists, group.path)
