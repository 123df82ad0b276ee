"""Rules about time and money on Azure ML: limits, and what a job can cost until they end it."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.catalogue.cost import hourly, over
from cloudtrain.checks.azureml_view import is_spot, machines, mapping, overridden, place, properties
from cloudtrain.checks.rule import Fault, Subject, rule
from cloudtrain.compile.azureml.summary import max_runtime
from cloudtrain.plans import Level
from cloudtrain.units import format_duration

_LIFETIME, _SPOT_LIFETIME = 21 * 86_400, 7 * 86_400
"""Seconds (Azure ML documentation, quotas: job lifetime, and that on a low-priority node)."""

_SHORTEST = 60

_DEAR = 500.0
"""US dollars: what a job that nobody ends may cost without a word."""

_MANY_GPUS = 8


@rule("AZ401", Level.ERROR)
def timeout_unreadable(subject: Subject) -> Iterator[Fault]:
    """The time limit is no duration, or not more than nothing.

    Only the overrides can say so. The SDK sends `-PT5S` for -5 seconds, and drops a limit of 0 (azure-ai-ml 1.35.2).
    The body has an ISO 8601 duration, in which `P1M` is a month and `PT1M` a minute; days, hours, minutes and seconds
    in whole numbers are all that is needed.
    """
    written = mapping(subject, "limits").get("timeout")
    if written is not None and not max_runtime(properties(subject)):
        yield Fault(
            f"`timeout` must be an ISO 8601 duration like `PT2H`, not `{written}`",
            "remove it from the overrides, and write for example `max_runtime: 2h`",
            place(subject, ("limits", "timeout"), ("max_runtime",)),
        )


@rule("AZ402", Level.WARNING)
def timeout_too_short(subject: Subject) -> Iterator[Fault]:
    """The time limit is shorter than a minute.

    The service rounds durations of less than 60 seconds to 60 days: so says a comment in the SDK, which therefore
    never sends a shorter one for a sweep (azure-ai-ml 1.35.2, bug 1335978). For a command it sends what it gets. A job
    that was to end at once would run on, and be billed.
    """
    limit = max_runtime(properties(subject))
    if limit and limit < _SHORTEST:
        yield Fault(
            f"the limit is {format_duration(limit)}, and the service is known to read less than 1m as 60 days",
            "set `max_runtime` to `1m` or more",
            place(subject, ("limits", "timeout"), ("max_runtime",)),
        )


@rule("AZ403", Level.ERROR)
def run_too_long(subject: Subject) -> Iterator[Fault]:
    """The job may run longer than Azure ML allows.

    A job ends after 21 days at the latest, on spot capacity after 7 (documentation, quotas: job lifetime). Data of a
    job that did not end by itself until then cannot be reached any more.
    """
    limit, most = max_runtime(properties(subject)) or 0, _lifetime(subject)
    if limit > most:
        spot = " on spot capacity" if is_spot(subject) else ""
        yield Fault(
            f"`max_runtime` is {format_duration(limit)}, and Azure ML ends a job{spot} after {format_duration(most)}",
            f"set `max_runtime` to at most `{format_duration(most)}`, and resume from a `checkpoint`",
            place(subject, ("limits", "timeout"), ("max_runtime",)),
        )


@rule("AZ411", Level.WARNING)
def no_limit(subject: Subject) -> Iterator[Fault]:
    """An expensive job does not say how long it may run.

    Without `max_runtime` nothing ends a job before 21 days (7 on spot capacity). One that hangs, in a collective that
    one rank never joins for example, is billed until then.
    """
    if mapping(subject, "limits").get("timeout") is not None:
        return
    rate, most, found = _hourly(subject), _lifetime(subject), machines(subject)
    if rate is None and (found.gpus or 0) * found.count < _MANY_GPUS:
        return
    cost = ""
    if rate is not None:
        if over(rate, most) < _DEAR:
            return
        cost = f": ${rate:,.2f} an hour, up to ${over(rate, most):,.2f}"
    message = f"nothing ends the job before Azure ML's limit of {format_duration(most)}{cost}"
    yield Fault(message, "add for example `max_runtime: 4h`", overridden(subject, "limits", "timeout") or ())


@rule("AZ412", Level.ERROR)
def over_budget(subject: Subject) -> Iterator[Fault]:
    """The job could cost more than the budget.

    `max_cost` is compared with the list price of all instances over the whole `max_runtime`, or over 21 days without
    one; spot capacity costs less. Prices are the catalogue's, or those of your own `instances.toml`.
    """
    budget, rate = subject.target.max_cost, _hourly(subject)
    limit = max_runtime(properties(subject)) or _lifetime(subject)
    if budget is None or rate is None or over(rate, limit) <= budget:
        return
    affordable = int(budget / rate * 3600)
    hint = f"set `max_runtime` to at most `{format_duration(affordable)}`, or raise `max_cost`"
    yield Fault(
        f"the job can cost up to ${over(rate, limit):,.2f} in {format_duration(limit)}, and `max_cost` is "
        f"${budget:,.2f}",
        hint if affordable >= _SHORTEST else "use fewer or smaller instances, or raise `max_cost`",
        place(subject, ("limits", "timeout"), ("max_runtime",) if subject.job.max_runtime else ()),
    )


@rule("AZ413", Level.WARNING)
def budget_without_price(subject: Subject) -> Iterator[Fault]:
    """The price is not known, so the budget cannot be kept.

    The catalogue has no price of the instance type, or the job does not say which one it is. Write what you pay into
    `instances.toml`, or ask the workspace: `cloudtrain instances --target azureml --refresh`.
    """
    if subject.target.max_cost is None or _hourly(subject) is not None:
        return
    name = machines(subject).name
    if name is None:
        hint = "name the type with `instance_type` under `resources`, on a cluster too"
        yield Fault("which instance type the job runs on is not known, so `max_cost` cannot be checked", hint)
        return
    hint = f'write `[azureml."{name}"]` and below it `price = 12.34` into `instances.toml`'
    yield Fault(f"the price of `{name}` is not known, so `max_cost` cannot be checked", hint, machines(subject).path)


def _lifetime(subject: Subject) -> int:
    return _SPOT_LIFETIME if is_spot(subject) else _LIFETIME


def _hourly(subject: Subject) -> float | None:
    """US dollars for all instances at list prices; None where nobody knows."""
    found = machines(subject)
    return hourly([(found.known, found.count)])
