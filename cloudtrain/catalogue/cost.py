"""What instances cost: their prices an hour, how many there are, and for how long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cloudtrain.catalogue.instances import InstanceType

Counted = tuple[InstanceType | None, int]
"""A type, or None for one that the catalogue does not have, and how many of it there are."""


class Price(NamedTuple):
    """US dollars an hour, at list prices."""

    hourly: float
    exact: bool = True
    """False: that of a bare machine stands in for a price that is not known, so the true one is higher."""

    def over(self, seconds: float) -> float:
        """US dollars for so long."""
        return over(self.hourly, seconds)


def hourly(instances: Iterable[Counted], *, any_of: bool = False) -> float | None:
    """US dollars an hour for all instances, at list prices; None where one is not known.

    `any_of`: not all of them run, but any one row may; the dearest counts.
    """
    price = price_of(instances, any_of=any_of)
    return price.hourly if price is not None and price.exact else None


def price_of(instances: Iterable[Counted], *, any_of: bool = False) -> Price | None:
    """The same, with the price of the bare machine where that is all that is known; None where not even that is."""
    prices = [_price(known, count) for known, count in instances]
    found = [price for price in prices if price is not None]
    if not found or len(found) < len(prices):
        return None
    rates = [price.hourly for price in found]
    return Price(max(rates) if any_of else sum(rates), all(price.exact for price in found))


def over(hourly: float, seconds: float) -> float:
    """US dollars for so many seconds at that price an hour."""
    return hourly * seconds / 3600


def _price(known: InstanceType | None, count: int) -> Price | None:
    price = None if known is None else known.machine_price if known.price is None else known.price
    return None if price is None or known is None else Price(price * count, known.price is not None)
