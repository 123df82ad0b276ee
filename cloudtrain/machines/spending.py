"""The most that a request can spend: its machines, how long each is billed, and how often."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from cloudtrain.machines.choose import Machines
from cloudtrain.machines.table import over


class Use(NamedTuple):
    """Machines that a request pays for.

    Attributes:
        machines: the machines of one start.
        seconds: the longest billed time of one start; None if nothing limits it.
        times: how often they start, such as the number of trials; None if unknown.
        is_pool: whether they only wait for another job, after this one has ended.
        compute: the compute of the user's account that has its own machines, whatever the request
            says of them; empty where the request decides, or where the user gave the price.
    """

    machines: Machines
    seconds: int | None
    times: int | None = 1
    is_pool: bool = False
    compute: str = ""

    @property
    def cost(self) -> float | None:
        """The most US dollars at list prices; None if unknown."""
        try:
            hourly = self.machines.hourly
            if hourly is None or self.times is None or self.seconds is None or self.seconds < 0:
                return None
            cost = over(hourly, self.seconds) * self.times
            return cost if cost < inf else None
        except OverflowError:  # an override may hold a number of any length
            return None


class Spending(NamedTuple):
    """Everything that a submission pays for, in US dollars at list prices.

    Attributes:
        most: the most that it can spend; None if unknown.
        pool: the part of `most` that is spent after the end of its jobs, which no bill of a job
            contains.
    """

    uses: tuple[Use, ...]
    most: float | None
    pool: float

    @classmethod
    def of(cls, uses: Iterable[Use], times: int = 1) -> Spending:
        """Return the sum of `times` equal requests. Without machines the price is unknown
        for."""
        counted = []
        for use in uses:
            if use.times is not None:
                use = use._replace(times=use.times * times)
            counted.append(use)

        most: float | None = 0.0 if counted else None
        pool = 0.0
        for use in counted:
            cost = use.cost
            most = None if most is None or cost is None else most + cost
            if use.is_pool:
                pool += cost or 0.0
        return cls(tuple(counted), most, pool)

    @property
    def hourly(self) -> float:
        """What the machines of the jobs cost per hour; 0 if a price is unknown."""
        total = 0.0
        for use in self.uses:
            if not use.is_pool:
                total += use.machines.hourly or 0.0
        return total

    def text(self, *, is_spot: bool) -> str:
        """Return the line of a plan about its cost."""
        if self.most is None:
            return "unknown: the catalogue has no price of this type"
        spot = ", less on spot capacity" if is_spot else ""
        pool = f", of it ${self.pool:,.2f} for the warm pool" if self.pool else ""
        return f"at most ${self.most:,.2f} at list prices{spot}{pool}"


FREE = Spending((), 0.0, 0.0)
"""The spending on a target that costs nothing."""

_ROUNDING = 1e-9


def exceeds(amount: float, cap: float) -> bool:
    """Return whether an amount is above a cap by more than the sums are rounded."""
    return amount > cap * (1 + _ROUNDING)
