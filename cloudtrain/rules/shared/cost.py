"""Rules about the maximum run time of a job and its maximum cost (hourly price times maximum run time)."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.catalogue.cost import Price
from cloudtrain.core.units import format_duration
from cloudtrain.rules.overridden import Path
from cloudtrain.rules.rule import Fault, Subject

_DEAR = 500.0
"""Maximum cost in US dollars of a job without a time limit before a rule reports it."""

_MANY_GPUS = 8
"""Number of GPUs from which instances without a known price count as expensive."""

_SHORTEST = 60
"""In seconds. A shorter time limit would not be useful."""


def run_too_long(subject: Subject, most: int, what: str = "a job") -> Iterator[Fault]:
    """The job may run longer than the service allows: `most` seconds for a job of the kind `what`."""
    run = subject.effective.max_runtime or 0
    if run > most:
        message = f"`max_runtime` is {format_duration(run)}, and {subject.where.title} ends {what} after "
        hint = f"set `max_runtime` to at most `{format_duration(most)}`, and resume from a `checkpoint`"
        yield Fault(message + format_duration(most), hint, ("max_runtime",))


def no_limit(subject: Subject, ends_it: str) -> Iterator[Fault]:
    """An expensive job has no time limit of its own. `ends_it` names the limit that then applies, such as SageMaker's
    default.
    """
    machines, run = subject.view.machines(subject), subject.view.longest_run(subject)
    if run is None or subject.effective.max_runtime is not None:
        return
    price, cost = machines.price, ""
    if price is not None:
        cost = f": {_dollars(price, 3600)} an hour, {cost_text(price, run)}"
    many = any(group.gpus * group.count >= _MANY_GPUS for group in machines.groups)
    if many if price is None else price.over(run) >= _DEAR:
        message = f"nothing ends the job before {ends_it} of {format_duration(run)}{cost}"
        yield Fault(message, "add for example `max_runtime: 4h`", _limit(subject))


def over_budget(subject: Subject) -> Iterator[Fault]:
    """The job could cost more than the budget.

    The rule compares `max_cost` with the list price of all instances for the whole `max_runtime`.
    """
    budget, run = _budget(subject), subject.view.longest_run(subject)
    price = subject.view.machines(subject).price
    if budget is None or price is None or run is None or price.over(run) <= budget:
        return
    affordable = int(budget / price.hourly * 3600)
    hint = f"set `max_runtime` to at most `{format_duration(affordable)}`, or raise `max_cost`"
    yield Fault(
        f"the job can cost {cost_text(price, run)} in {format_duration(run)}, and `max_cost` is ${budget:,.2f}",
        hint if affordable >= _SHORTEST else "use fewer or smaller instances, or raise `max_cost`",
        _limit(subject),
    )


def budget_without_price(subject: Subject) -> Iterator[Fault]:
    """The price is unknown, so cloudtrain cannot enforce the budget.

    The catalogue has no price for the instance type. Write the price that you pay into `instances.toml`.
    """
    budget, machines, run = _budget(subject), subject.view.machines(subject), subject.view.longest_run(subject)
    price = machines.price
    if budget is None or (price is not None and (price.exact or price.over(run or 0) > budget)):
        return
    for name, group in {group.instance_type: group for group in machines.groups}.items():
        if not name:
            hint = "name the type with `instance_type` under `resources`, on a cluster too"
            yield Fault("the instance type of the job is not known, so `max_cost` cannot be checked", hint)
        elif group.known is None or group.known.price is None:
            size = "" if group.known else "`vcpus = 4`, `memory_gib = 16` and "
            row = f'`[{subject.where.name}."{name}"]`'
            hint = f"write {row} and below it {size}`price = 12.34` into `instances.toml`"
            yield Fault(f"the price of `{name}` is not known, so `max_cost` cannot be checked", hint, group.path)


def _budget(subject: Subject) -> float | None:
    """Return the setting `max_cost`; None if it is not set, or the target's settings have no such field."""
    budget: float | None = getattr(subject.target, "max_cost", None)
    return budget


def _limit(subject: Subject) -> Path:
    """Return the path of `max_runtime` if the job or its overrides set a time limit, otherwise an empty path."""
    return ("max_runtime",) if subject.job.max_runtime or subject.effective.max_runtime else ()


def cost_text(price: Price, seconds: int) -> str:
    """Return the cost as text: `up to $1,234.56`."""
    return f"up to {_dollars(price, seconds)}" if price.exact else _dollars(price, seconds)


def _dollars(price: Price, seconds: int) -> str:
    return f"{'' if price.exact else 'more than '}${price.over(seconds):,.2f}"
