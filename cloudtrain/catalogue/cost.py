"""The cost of instances, from their prices per hour, their number, and their running time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cloudtrain.catalogue.instances import InstanceType

Counted = tuple[InstanceType | None, int]
"""A type (None if the catalogue does not have it) and the number of its instances."""


class Price(NamedTuple):
    """A list price per hour in US dollars."""

    hourly: float
    exact: bool = True
    """False if the price of a bare machine replaces an unknown price. The true price is then higher."""

    def over(self, seconds: float) -> float:
        """Return the cost of `seconds` seconds in US dollars."""
        return over(self.hourly, seconds)


def hourly(instances: Iterable[Counted], *, any_of: bool = False) -> float | None:
    """Return the list price per hour of all instances in US dollars; None if a price is unknown.

    With `any_of`, only one element of `instances` will be used, and the price of the most expensive one is returned.
    """
    price = price_of(instances, any_of=any_of)
    return price.hourly if price is not None and price.exact else None


def price_of(instances: Iterable[Counted], *, any_of: bool = False) -> Price | None:
    """Return the total price per hour of `instances`. With `any_of`, only one element of `instances` will be used, and
    the price of the most expensive one is returned.

    If the price of a type is unknown, use its price without the training service. Return None if that price is unknown
    too.
    """
    prices = [_price(known, count) for known, count in instances]
    found = [price for price in prices if price is not None]
    if not found or len(found) < len(prices):
        return None
    rates = [price.hourly for price in found]
    return Price(max(rates) if any_of else sum(rates), all(price.exact for price in found))


def over(hourly: float, seconds: float) -> float:
    """Return the cost of `seconds` seconds at the price `hourly` per hour."""
    return hourly * seconds / 3600


def _price(known: InstanceType | None, count: int) -> Price | None:
    price = None if known is None else known.machine_price if known.price is None else known.price
    return None if price is None or known is None else Price(price * count, known.price is not None)
