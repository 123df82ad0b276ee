"""Rules that several targets share. Each target registers them under its own code:
`rule("FO301", Level.ERROR)(more_ranks_than_gpus)`.

The rules check the machines and the time limit that the target's `Reading` finds in the request. If
the documentation of a rule must state facts about one service, that target defines its own rule
with its own docstring, which calls the shared rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import date
from typing import Any

from cloudtrain.errors import InPlace, SettingsError
from cloudtrain.job.distribution import NoDistribution, TensorFlow, launcher_of
from cloudtrain.job.model import OVERRIDES, format_duration
from cloudtrain.machines.choose import MachineGroup
from cloudtrain.machines.overlay import type_named
from cloudtrain.machines.spending import Spending, exceeds
from cloudtrain.machines.table import InstanceType, over
from cloudtrain.plans.processes import Processes
from cloudtrain.rules.engine import (
    Fault,
    Reading,
    Subject,
    ValuePath,
    is_written,
    plural,
    removal,
)
from cloudtrain.rules.facts import describe, fabric, last_day, one_for_all, successor, with_rdma

# Rules about the maximum run time of a job and its maximum cost (hourly price times maximum run
# time).

_DEAR = 500.0
"""Maximum cost in US dollars of a job without a time limit before a rule reports it."""

_MANY_GPUS = 8
"""Number of GPUs from which instances without a known price count as expensive."""

_SHORTEST = 60
"""In seconds. A shorter time limit would not be useful."""


def run_too_long(subject: Subject, most: int, what: str = "a job") -> Iterator[Fault]:
    """The job may run longer than the service allows: `most` seconds for a job of the kind
    `what`."""
    run = subject.reading.max_runtime or 0
    if run > most:
        limit = format_duration(most)
        ends = f"{subject.target.title} ends {what} after {limit}"
        message = f"`max_runtime` is {format_duration(run)}, and {ends}"
        yield Fault(
            message,
            f"set `max_runtime` to at most `{limit}`, and resume from a `checkpoint`",
            ("max_runtime",),
        )


def no_limit(subject: Subject, ends_it: str) -> Iterator[Fault]:
    """An expensive job has no time limit of its own. `ends_it` names the limit that then applies,
    such as SageMaker's default."""
    machines = subject.reading.machines
    run = subject.reading.longest_run
    if run is None or subject.reading.max_runtime is not None:
        return
    cost = ""
    if machines.hourly is None:
        is_dear = any(group.gpus * group.count >= _MANY_GPUS for group in machines.groups)
    else:
        most = over(machines.hourly, run)
        is_dear = most >= _DEAR
        cost = f": ${machines.hourly:,.2f} an hour, up to ${most:,.2f}"
    if is_dear:
        message = f"nothing ends the job before {ends_it} of {format_duration(run)}{cost}"
        path = ("max_runtime",) if subject.job.max_runtime else ()
        yield Fault(message, InPlace("add for example `max_runtime: 4h`"), path)


_OF_THE_PROJECT = (
    "a price in the project's `instances.toml` cannot lower the cost, one in the `instances.toml` "
    "beside your own `cloudtrain.toml` can"
)


def over_budget(subject: Subject) -> Iterator[Fault]:
    """The job could spend more than your cap.

    The rule compares `max_cost` with the list price of all instances for the whole `max_runtime`.
    """
    spending = spending_of(subject.reading, subject.times)
    fault = over_cap(spending, subject.settings)
    if fault is None:
        return
    if spending != Spending.of(subject.reading.uses, subject.times):
        fault = fault._replace(hint=f"{fault.hint}; {_OF_THE_PROJECT}")
    yield fault


def budget_without_price(subject: Subject) -> Iterator[Fault]:
    """The price is unknown, so cloudtrain cannot enforce your cap.

    The catalogue has no price for the instance type. Write the price that you pay into your own
    `instances.toml`, or ask your account with `cloudtrain instances --refresh`.
    """
    spending = spending_of(subject.reading, subject.times)
    return without_price(spending, subject.settings, subject.target.name, is_asked=subject.is_asked)


def spending_of(reading: Reading, times: int = 1) -> Spending:
    """Return what the finished request can spend if it is sent `times` times, at the prices that a
    cap counts. The project's `instances.toml` cannot lower them: whoever submits may edit it."""
    overlay = getattr(reading.account, "overlay", None) or ()
    own = [row for row in overlay if not row.is_of_project]
    if len(own) == len(overlay):
        return Spending.of(reading.uses, times)

    def priced(group: MachineGroup) -> MachineGroup:
        if group.known is None:
            return group
        price = None
        with suppress(SettingsError):  # only the project's file makes a whole type of it
            listed = type_named(reading.target, group.instance_type, own)
            if listed is not None and listed.price is not None:
                price = max(listed.price, group.known.price or 0.0)
        return replace(group, known=replace(group.known, price=price))

    at_own_prices = []
    for use in reading.uses:
        groups = tuple(map(priced, use.machines.groups))
        at_own_prices.append(use._replace(machines=replace(use.machines, groups=groups)))
    return Spending.of(at_own_prices, times)


_CAPS = {"max_cost": "your cap", "max_cost_per_day": "your cap for 24 hours"}
"""The settings that bound what a submission spends, and what messages call them."""


def over_cap(spending: Spending, settings: Any, spent: float = 0.0) -> Fault | None:
    """Return why a submission may not be sent: it can spend more than a cap. Return None if the
    caps of `settings` allow it. `spent` is what the last 24 hours have taken of the cap for them.

    The path is that of the factor to change: `trials`, `max_runtime`, or none for settings.
    """
    most = spending.most
    for name, words in _CAPS.items():
        cap = getattr(settings, name, None)
        before = spent if name == "max_cost_per_day" else 0.0
        if cap is None or most is None or not exceeds(before + most, cap):
            continue

        place = settings.cap_places.get(name)
        where = f"`{name}` in `{place}`" if place else f"`{name}`"
        message = f"this can spend up to ${most:,.2f}"
        if spending.uses:
            message += f" ({_factors(spending)})"
        if before:
            message += f" beside ${before:,.2f} of the last 24 hours"
        message += f", and {words} is ${cap:,.2f} ({where})"
        path, change = change_for(spending, cap - before)
        return Fault(message, f"{change}, or raise `{name}`", path)
    return None


def without_price(
    spending: Spending, settings: Any, target: str, *, is_asked: bool
) -> Iterator[Fault]:
    """Yield why the caps of `settings` cannot be kept: what a submission can spend is not known.
    `is_asked`: the target is asked which machines its computes have."""
    capped = [name for name in _CAPS if getattr(settings, name, None) is not None]
    if not capped:
        return
    unchecked = f"is not known, so `{capped[0]}` cannot be checked"

    computes = {use.compute for use in spending.uses if use.compute}
    for name in () if is_asked else sorted(computes):
        hint = f"{write_price(target, name, is_new=True)}; `submit` and `check --online` ask it"
        yield Fault(f"the type of the machines of the compute `{name}` {unchecked}", hint)
    if spending.most is not None:
        return

    by_name: dict[str, MachineGroup] = {}
    for use in spending.uses:
        for group in use.machines.groups:
            if group.known is None or group.known.price is None:
                by_name[group.instance_type] = group
    for name, group in by_name.items():
        if not name:
            hint = "name the type with `instance_type` under `resources`, on a cluster too"
            yield Fault(f"the instance type of the job {unchecked}", hint)
        else:
            price = write_price(target, name, is_new=group.known is None)
            hint = f"{price}, or type `cloudtrain instances --refresh --target {target}`"
            yield Fault(f"the price of `{name}` {unchecked}", hint, group.path)
    if not by_name:
        hint = "write `max_runtime`, and numbers of instances and trials, that can be read"
        yield Fault(f"what this can spend {unchecked}", hint)


def write_price(target: str, name: str, *, is_new: bool) -> str:
    """Return how to give the price of a type or compute. One that is new also needs its size."""
    size = "`vcpus = 4`, `memory_gib = 16` and " if is_new else ""
    row = f'`[{target}."{name}"]`'
    file = "`instances.toml` beside your own `cloudtrain.toml`"
    return f"write {row} and below it {size}`price = 12.34` into {file}"


def _factors(spending: Spending) -> str:
    """Return what is paid for: `10 x 2 x ml.g5.xlarge for 1h`."""
    words = []
    for use in spending.uses:
        types = [f"{group.count} x {group.instance_type}" for group in use.machines.groups]
        separator = " or " if use.machines.kind == "preferences" else " and "
        text = f"{separator.join(types)} for {format_duration(use.seconds or 0)}"
        if use.times and use.times > 1:
            text = f"{use.times:,} x {text}"
        words.append(f"{text} in the warm pool" if use.is_pool else text)
    return ", ".join(words)


def change_for(spending: Spending, left: float) -> tuple[ValuePath, str]:
    """Return what to change so that a submission spends at most `left` dollars: the path of the
    largest factor, and what to type."""
    if not spending.uses:
        return ("trials",), "start fewer trials"
    most = spending.most or 0.0
    first = spending.uses[0]
    times = first.times or 1
    trials = int(left / (most / times))
    if times > 1 and trials > 0:
        at_most = f"write `trials: {trials}`, or at most as many values after `--each`"
        return ("trials",), f"{at_most}, shorten `max_runtime`"
    if spending.pool > most / 2:
        return (), "shorten or remove `keep_alive`"

    seconds = int((left - spending.pool) / most * (first.seconds or 0))
    if spending.pool == 0 and times == 1 and seconds >= _SHORTEST:
        return ("max_runtime",), f"set `max_runtime` to at most `{format_duration(seconds)}`"
    return ("max_runtime",), "use fewer or smaller instances, a shorter `max_runtime`"


# Rules about instance types: they must match the job's description and still be offered.


def type_is_not_as_described(subject: Subject) -> Iterator[Fault]:
    """The instance type contradicts the job's description of the machine.

    `gpus_per_instance` and `interconnect` describe a machine. If they contradict the named instance
    type, either the description or the type is wrong. The job would run with fewer processes, or
    over a slower network, than intended.
    """
    resources = subject.job.resources
    gpus = None if resources.instance_groups else resources.gpus_per_instance
    for group in subject.reading.machines.spanned:
        entry = group.known
        if entry is None:
            continue

        if gpus is not None and gpus != entry.gpus:
            actual = plural(entry.gpus, "GPU") if entry.gpus else "no GPUs"
            message = f"`{entry.name}` has {actual}, not {gpus}"
            hint = f"set `gpus_per_instance` to {entry.gpus}, or name another type"
            yield Fault(message, hint, ("resources", "gpus_per_instance"))

        if resources.interconnect == "rdma" and entry.interconnect != "rdma":
            message = f"`{entry.name}` has no RDMA, and the job asks for it"
            hint = with_rdma(entry) or "remove `interconnect`, or name another type"
            yield Fault(message, hint, ("resources", "interconnect"))


def retired_type(subject: Subject, *, after: str = "", until: str = "9999") -> Iterator[Fault]:
    """The instance type is no longer offered, or will soon be retired.

    Checks only types whose last day is later than `after` and not later than `until` (ISO dates).
    """
    lists = f"`cloudtrain instances --target {subject.target.name}` lists the others"
    for group in subject.reading.machines.groups:
        last = last_day(group.known) or ""
        if group.known and after < last <= until:
            words = "will be retired on"
            if last <= str(date.today()):
                words = "is retired: it has not been offered since"
            message = f"`{group.known.name}` {words} {last}"
            yield Fault(message, successor(group.known) or lists, group.path)


# Rules about the network between instances that work together.


def over_ethernet(subject: Subject, code: str) -> Iterator[Fault]:
    """Several instances with GPUs work together without the target's fast network. `code` is the
    code of the rule."""
    if not needs_network(subject):
        return
    machines = subject.reading.machines
    for group in machines.spanned:
        entry = group.known
        if entry is not None and group.accelerators and not entry.fabric:
            count = plural(machines.spanned_count, "instance")
            message = f"`{entry.name}` has no {fabric(entry)}, and this job runs on {count}"
            yield Fault(message, instead(subject, entry, code), group.path)


def instead(subject: Subject, entry: InstanceType, code: str) -> str:
    """Return the hint for instances of the type `entry`, which has no fast network: to use a single
    instance with all their GPUs, or else a type with a fast network. If the overrides set the
    instance count, a hint to use a single instance also says to remove that override. The hint says
    how to accept Ethernet as well: with `--ignore` and the rule's `code`."""
    accept = f"or accept Ethernet with `--ignore {code}`"
    single = one_for_all(entry, subject.reading.machines.spanned_count)
    if single is None:
        better = with_rdma(entry) or f"use a type with {fabric(entry)}"
        return f"{better}, {accept}"

    hint = f"use one `{single.name}` ({describe(single)}), which needs no network, {accept}"
    field = ("resources", "instance_count")
    path = subject.reading.locate(field)
    return hint if path == field else f"{removal(path)}, and {hint}"


def needs_network(subject: Subject) -> bool:
    """Return whether several instances work together and the job does not accept Ethernet."""
    if subject.job.resources.interconnect == "ethernet":
        return False
    return subject.reading.machines.spanned_count > 1 and works_together(subject)


def works_together(subject: Subject) -> bool:
    """Return whether the speed of the network matters to the job's processes. It does not matter
    for processing jobs, for jobs without a distribution, and for parameter servers, which always
    use TCP."""
    distribution = subject.reading.distribution
    if isinstance(distribution, TensorFlow) and distribution.strategy == "parameter_server":
        return False
    return subject.processing is None and not isinstance(distribution, NoDistribution)


# Rules that compare the number of processes with the number of GPUs.

_COUNT: ValuePath = ("distribution", "processes_per_instance")


def fewer_processes_than_gpus(subject: Subject) -> Iterator[Fault]:
    """An instance has more GPUs than processes.

    One process uses one GPU, unless the script itself uses more. You would pay for the idle GPUs.
    """
    distribution = subject.reading.distribution
    if subject.processing is not None or subject.job.resources.gpus_per_instance:
        return  # CT502 compares the two numbers in the job
    # One process of TensorFlow uses all GPUs, and a launcher starts processes itself.
    is_tensorflow = distribution.type == "none" and subject.reading.framework == "tensorflow"
    if is_tensorflow or distribution.type == "tensorflow":
        return
    if getattr(distribution, "launch", None) == "launcher":
        return
    if any(map(_uses_several_gpus, subject.syntax.words)):
        return

    for group, count in _ranks_by_group(subject):
        if count < group.accelerators:
            hint, path = _hint_for_more(subject, group.accelerators)
            yield Fault(_counts_text(group, count), hint, path)


_OF_SEVERAL_GPUS = ("DataParallel", "device_map", "spawn", "start_processes")
"""Names with which one process of a script uses several GPUs."""


def _uses_several_gpus(word: object) -> bool:
    """Return whether a word of the script names a second GPU, or what uses several of them."""
    name = getattr(word, "attr", getattr(word, "arg", getattr(word, "id", None)))
    return name in _OF_SEVERAL_GPUS or getattr(word, "value", None) == "cuda:1"


def more_processes_than_gpus(subject: Subject) -> Iterator[Fault]:
    """An instance has more processes than GPUs.

    If two ranks share a GPU, NCCL fails at start ("Duplicate GPU detected"), when you already pay
    for the machines.
    """
    if subject.reading.distribution.type != "mpi":
        yield from _too_many(subject)


def more_ranks_than_gpus(subject: Subject) -> Iterator[Fault]:
    """An instance has more MPI processes than GPUs.

    With more ranks than GPUs, some ranks would share a GPU, which NCCL refuses. Ranks that use only
    the CPU are not limited.
    """
    if subject.reading.distribution.type == "mpi":
        yield from _too_many(subject)


def mpi_with_one_process(subject: Subject) -> Iterator[Fault]:
    """mpirun starts a single process.

    With one process on one instance, the job is not distributed.
    """
    machines = subject.reading.machines
    distribution = subject.reading.distribution
    if launcher_of(distribution) != "mpirun" or machines.spanned_count != 1:
        return
    group = machines.first
    requested = _requested_processes(subject)
    processes = requested
    if not requested and group.known:
        processes = group.known.devices
    if processes != 1:
        return

    hint = "set `distribution.processes_per_instance` to 2 or more, or use more instances"
    if group.accelerators:
        hint = "use more instances, or a type with more GPUs"  # two ranks cannot share a GPU
    path = _COUNT if requested else ("distribution",)
    where = f"one `{group.instance_type}`" if group.instance_type else "one instance"
    yield Fault(f"`{distribution.type}` starts a single process on {where}", hint, path)


def _too_many(subject: Subject) -> Iterator[Fault]:
    """Yield a fault for each instance group with fewer GPUs than the processes that the job
    requests."""
    processes = _requested_processes(subject)
    if processes is None or subject.job.resources.gpus_per_instance:
        return  # CT503 compares the two numbers in the job
    for group in subject.reading.machines.spanned:
        most = group.accelerators
        if most and processes > most:
            yield Fault(
                _counts_text(group, processes),
                f"set `distribution.processes_per_instance` to {most}, or leave it out",
                _COUNT,
            )


def _ranks_by_group(subject: Subject) -> Iterator[tuple[MachineGroup, int]]:
    """Yield each instance group that takes part in the distribution, with the number of ranks on
    the group's first machine. If the groups are alternatives, in order of preference, yield only
    the first."""
    processes = Processes.of(subject.plan.processes)
    ranks = processes.ranks
    started = processes.started
    machines = subject.reading.machines
    is_alone = subject.reading.distribution.type == "none"
    first = 0  # the number of the group's first machine
    for group in machines.groups:
        count = ranks[first] or min(started[first], 1)
        if count and (is_alone or group in machines.spanned):
            yield group, count
        if machines.kind == "preferences":
            return
        first += group.count


def _hint_for_more(subject: Subject, accelerators: int) -> tuple[str, ValuePath]:
    """Return the hint to start more processes, up to `accelerators` per instance, and the path of
    the value to change. The path is in the overrides if they set the number of processes, otherwise
    in the job."""
    reading = subject.reading
    if reading.distribution.type == "none" and subject.job.distribution.type == "none":
        hint = (
            "use `distribution: {type: torch}` for one process on each, or an instance type "
            "with fewer of them"
        )
        if subject.syntax.why_alone:
            hint = (
                "use an instance type with fewer of them, or join several processes in the script"
            )
        return hint, ("distribution",)

    key = reading.distribution_key
    if _requested_processes(subject) is None and is_written(reading.overrides, key):
        path = (reading.service + OVERRIDES, key)
        return removal(path), path
    return f"set `distribution.processes_per_instance` to {accelerators}, or leave it out", _COUNT


def _requested_processes(subject: Subject) -> int | None:
    """Return the number of processes per instance that the job or its overrides set; None without
    one."""
    processes: int | None = getattr(subject.reading.distribution, "processes_per_instance", None)
    return processes


def _counts_text(group: MachineGroup, processes: int) -> str:
    """Return a text such as ``8 processes on `ml.p4d.24xlarge`, which has 4 GPUs``."""
    what = plural(group.accelerators, "GPU" if group.gpus else "Neuron core")
    return f"{plural(processes, 'process')} on `{group.instance_type}`, which has {what}"
