"""Rules about the maximum cost of a SageMaker job: its hourly price for its whole time limit."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.core.plan import Level
from cloudtrain.core.units import format_duration
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.rules.shared import cost as shared
from cloudtrain.targets.sagemaker.rules.view import seconds


@rule("SM411", Level.WARNING)
def default_runtime(subject: Subject) -> Iterator[Fault]:
    """An expensive job has no time limit.

    Without `max_runtime` a job may run for a day, the service's default. A job that hangs, for example in a collective
    that one rank never joins, is billed until then.
    """
    return shared.no_limit(subject, "SageMaker's default")


@rule("SM412", Level.ERROR)
def over_budget(subject: Subject) -> Iterator[Fault]:
    """The job could cost more than the budget.

    `max_cost` is compared with the list price of all instances over the whole `max_runtime`; spot capacity costs less.
    If SageMaker's price is unknown, cloudtrain uses the lower price of the EC2 machine. Prices come from the catalogue
    or from your own `instances.toml`.
    """
    return shared.over_budget(subject)


rule("SM413", Level.WARNING)(shared.budget_without_price)


@rule("SM414", Level.NOTICE)
def warm_pool_costs(subject: Subject) -> Iterator[Fault]:
    """The warm pool is billed.

    Instances that wait for the next job cost as much as instances that train. You pay until another job uses them or
    `keep_alive` ends.
    """
    keep, price = seconds(subject, "KeepAlivePeriodInSeconds"), subject.view.machines(subject).price
    if keep and price is not None:
        yield Fault(
            f"after the job, the warm pool costs {shared.cost_text(price, keep)} in {format_duration(keep)}",
            "remove `keep_alive` from the target's settings if no other job follows",
        )
