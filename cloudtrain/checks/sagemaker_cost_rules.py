"""Rules about what a SageMaker job can cost: at most its price an hour, for as long as it may run."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.catalogue.cost import Price, price_of
from cloudtrain.checks.rule import Fault, Subject, rule
from cloudtrain.checks.sagemaker_view import Entry, cluster, mapping, seconds
from cloudtrain.compile.sagemaker.request import DEFAULT_MAX_RUNTIME
from cloudtrain.plans import Level
from cloudtrain.units import format_duration

_DEAR = 500.0
"""US dollars: what a day that nobody asked for may cost without a word."""

_MANY_GPUS = 8


@rule("SM411", Level.WARNING)
def default_runtime(subject: Subject) -> Iterator[Fault]:
    """An expensive job does not say how long it may run.

    Without `max_runtime` a job may run for a day, the service's default. A job that hangs, in a collective that one
    rank never joins for example, is billed until then.
    """
    job, run = subject.job, _limit(subject)
    written = "MaxRuntimeInSeconds" in (job.sagemaker_overrides.get("StoppingCondition") or {})  # type: ignore[operator]
    if job.max_runtime is not None or written:
        return
    price = _price(subject)
    large = any(entry.group.gpus >= _MANY_GPUS for entry in cluster(subject).entries)
    if price is None and not large:
        return
    if price is not None and price.over(run) < _DEAR:
        return
    cost = f": {_text(price, run)}" if price else ""
    message = f"nothing limits the job but SageMaker's default of {format_duration(run)}{cost}"
    yield Fault(message, "add for example `max_runtime: 4h`", ())


@rule("SM412", Level.ERROR)
def over_budget(subject: Subject) -> Iterator[Fault]:
    """The job could cost more than the budget.

    `max_cost` is compared with the list price of all instances over the whole `max_runtime`; spot capacity costs less.
    Where SageMaker's price is not known, the lower price of the bare machine counts. Prices are the catalogue's, or
    those of your own `instances.toml`.
    """
    budget, run, price = subject.target.max_cost, _limit(subject), _price(subject)
    if budget is None or price is None or price.over(run) <= budget:
        return
    affordable = int(budget / price.hourly * 3600)
    hint = f"set `max_runtime` to at most `{format_duration(affordable)}`, or raise `max_cost`"
    yield Fault(
        f"the job can cost {_text(price, run)} in {format_duration(run)}, and `max_cost` is ${budget:,.2f}",
        hint if affordable >= 60 else "use fewer or smaller instances, or raise `max_cost`",
        ("max_runtime",) if subject.job.max_runtime else (),
    )


@rule("SM413", Level.WARNING)
def budget_without_price(subject: Subject) -> Iterator[Fault]:
    """The price is not known, so the budget cannot be kept.

    The catalogue has no price of the instance type. Write what you pay into `instances.toml`.
    """
    if subject.target.max_cost is None:
        return
    price = _price(subject)
    if price is not None and (price.exact or price.over(_limit(subject)) > subject.target.max_cost):
        return
    unpriced = {entry.group.instance_type: entry for entry in cluster(subject).entries if _unpriced(entry)}
    for name, entry in unpriced.items():
        size = "" if entry.known else "`vcpus = 4`, `memory_gib = 16` and "
        yield Fault(
            f"the price of `{name}` is not known, so `max_cost` cannot be checked",
            f'write `[sagemaker."{name}"]` and below it {size}`price = 12.34` into `instances.toml`',
            (),
        )


@rule("SM414", Level.NOTICE)
def warm_pool_costs(subject: Subject) -> Iterator[Fault]:
    """The warm pool is billed.

    Instances that wait for the next job cost as much as instances that train, until another job takes them over or
    the time is up.
    """
    keep, price = seconds(subject, "KeepAlivePeriodInSeconds"), _price(subject)
    if keep and price is not None:
        yield Fault(
            f"after the job, the warm pool costs {_text(price, keep)} in {format_duration(keep)}",
            "leave out `keep_alive` if no other job follows",
        )


def _price(subject: Subject) -> Price | None:
    """Of all instances; of preferences the dearest, because any may be taken. None where one has no price at all."""
    machines = cluster(subject)
    if mapping(subject, "ServerlessJobConfig"):
        return None
    counted = [(entry.known, entry.group.count) for entry in machines.entries]
    return price_of(counted, any_of=machines.kind == "preferences")


def _text(price: Price, duration: int) -> str:
    """`up to $1,234.56`."""
    return f"{'up to' if price.exact else 'more than'} ${price.over(duration):,.2f}"


def _unpriced(entry: Entry) -> bool:
    return entry.known is None or entry.known.price is None


def _limit(subject: Subject) -> int:
    """Seconds that the job may run."""
    return seconds(subject, "MaxRuntimeInSeconds") or DEFAULT_MAX_RUNTIME
