"""Rules about time and money on Azure ML: time limits, and the highest cost of a job within them."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.core.plan import Level
from cloudtrain.core.units import format_duration
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.rules.shared import cost as shared
from cloudtrain.targets.azureml.compile.summary import max_runtime
from cloudtrain.targets.azureml.rules.view import is_spot, lifetime, mapping, place, properties

_SHORTEST = 60


@rule("AZ401", Level.ERROR)
def timeout_unreadable(subject: Subject) -> Iterator[Fault]:
    """The time limit is not a duration greater than zero.

    Only overrides can cause this. The SDK sends `-PT5S` for -5 seconds, and drops a limit of 0 (azure-ai-ml 1.35.2).
    The body needs an ISO 8601 duration of whole days, hours, minutes and seconds: `PT1M` is a minute, and `P1M` a
    month, which is not accepted.
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

    The service rounds durations of less than 60 seconds to 60 days, according to a comment in the SDK. For that reason
    the SDK never sends such a limit for a sweep (azure-ai-ml 1.35.2, bug 1335978), but it sends one for a command. A
    job with a limit of seconds could run, and be billed, for 60 days.
    """
    limit = max_runtime(properties(subject))
    if limit and limit < _SHORTEST:
        yield Fault(
            f"the limit is {format_duration(limit)}, but the service turns a limit below 1m into 60 days",
            "set `max_runtime` to `1m` or more",
            place(subject, ("limits", "timeout"), ("max_runtime",)),
        )


@rule("AZ403", Level.ERROR)
def run_too_long(subject: Subject) -> Iterator[Fault]:
    """The job may run longer than Azure ML allows.

    Azure ML ends a job after 21 days, or 7 days on spot capacity (documentation, quotas: job lifetime). You lose access
    to the data of a job that is ended this way.
    """
    what = "a job on spot capacity" if is_spot(subject) else "a job"
    return shared.run_too_long(subject, lifetime(subject), what)


@rule("AZ411", Level.WARNING)
def no_limit(subject: Subject) -> Iterator[Fault]:
    """An expensive job has no time limit.

    Without `max_runtime` a job ends only after 21 days (7 on spot capacity). A job that hangs, for example in a
    collective that one rank never joins, is billed until then.
    """
    if mapping(subject, "limits").get("timeout") is None:  # AZ401 reports an unreadable one
        yield from shared.no_limit(subject, "Azure ML's limit")


@rule("AZ412", Level.ERROR)
def over_budget(subject: Subject) -> Iterator[Fault]:
    """The job could cost more than the budget.

    `max_cost` is compared with the list price of all instances over the whole `max_runtime`, or over 21 days if
    the job has no `max_runtime`; spot capacity costs less. Prices are the catalogue's, or those of your own
    `instances.toml`.
    """
    return shared.over_budget(subject)


@rule("AZ413", Level.WARNING)
def budget_without_price(subject: Subject) -> Iterator[Fault]:
    """cloudtrain cannot check the budget, because it does not know the price.

    The catalogue has no price for the instance type, or the job does not name a type. Write the price that you pay into
    `instances.toml`, or ask the workspace: `cloudtrain instances --target azureml --refresh`.
    """
    return shared.budget_without_price(subject)
