"""Refresh the catalogue with the prices of training instances in a region, from AWS's price list.

This module has not been tested with real answers of GetProducts. The fields are those of AWS's public price
list, in which the usage type of a training instance is `USE1-Train:ml.g5.2xlarge`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from cloudtrain.catalogue.instances import instance_named
from cloudtrain.catalogue.refreshed import Refreshed, write_refreshed
from cloudtrain.errors import TargetError

_TRAINING = re.compile(r"(?:[A-Z0-9]+-)?Train:(ml\.[a-z0-9-]+\.[a-z0-9-]+)")


def pricing_region(region: str) -> str:
    """Return the region whose API serves the price list of `region`; regions in China have a separate API."""
    return "cn-northwest-1" if region.startswith("cn-") else "us-east-1"


class Reader(Protocol):
    """The part of `clients.Clients` that this module needs."""

    def pages(self, service: str, operation: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        """Yield every page of an operation's response."""
        ...


def refresh(reader: Reader, region: str, *, folder: Path, date: str) -> Refreshed:
    """Download the prices of a region, and write them to a file in `folder`.

    Args:
        folder: the user's configuration folder.
        date: today's date, such as `2026-01-31`, which becomes the date of the prices.

    Raises:
        TargetError: the price list cannot be read, or lists no training instances in the region. No file is written.
        SettingsError: the file cannot be written.
    """
    filters = [
        {"Type": "TERM_MATCH", "Field": "regionCode", "Value": region},
        {"Type": "TERM_MATCH", "Field": "productFamily", "Value": "ML Instance"},
    ]
    pages = reader.pages("pricing", "get_products", ServiceCode="AmazonSageMaker", Filters=filters, MaxResults=100)
    prices = dict(found for page in pages for text in page.get("PriceList", ()) if (found := _price(text)) is not None)
    known = {name: price for name, price in sorted(prices.items()) if instance_named("sagemaker", name) is not None}
    if not known:
        raise TargetError(
            f"AWS's price list has no training instances in `{region}`",
            hint="check `region` under `[sagemaker]` in cloudtrain.toml",
            code="CT941",
        )
    table = {
        name: {"price": price, "price_date": date, "price_source": f"AWS price list, {region}"}
        for name, price in known.items()
    }
    file = write_refreshed(
        folder, "sagemaker", table, about=f"prices of SageMaker training in {region}, asked on {date}"
    )
    unknown = sorted(prices.keys() - known.keys())
    notes = (f"without those that the catalogue does not know: {', '.join(unknown)}",) if unknown else ()
    return Refreshed(file, region, len(table), (), notes)


def _price(text: Any) -> tuple[str, float] | None:
    """Return an instance type and its dollars per hour; None if the entry is not an on-demand training instance."""
    try:
        entry = json.loads(text)
        match = _TRAINING.fullmatch(entry["product"]["attributes"]["usagetype"])
        dimensions = [
            dimension for term in entry["terms"]["OnDemand"].values() for dimension in term["priceDimensions"].values()
        ]
        prices = [float(dimension["pricePerUnit"]["USD"]) for dimension in dimensions if _is_by_the_hour(dimension)]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if match is None or len(prices) != 1 or not isfinite(prices[0]) or prices[0] <= 0:
        return None
    return match[1], prices[0]


def _is_by_the_hour(dimension: Mapping[str, Any]) -> bool:
    return str(dimension.get("unit")).casefold() in ("hrs", "hours", "hour")
