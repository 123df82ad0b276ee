"""AWS's price list: GetProducts, with its filters and its pages of JSON texts."""

from __future__ import annotations

import json
from typing import Any

PAGE = 2
"""Products of a page: less than a request may ask for, which is the service's right."""


def product(
    usage_type: str, price: str, *, region: str = "eu-west-1", family: str = "ML Instance"
) -> dict[str, Any]:
    """A product at a price on demand, in US dollars an hour."""
    attributes = {"usagetype": usage_type, "regionCode": region, "operation": "RunInstance"}
    dimension = {
        "unit": "Hrs",
        "beginRange": "0",
        "endRange": "Inf",
        "pricePerUnit": {"USD": price},
    }
    return {
        "product": {"productFamily": family, "attributes": attributes, "sku": usage_type},
        "serviceCode": "AmazonSageMaker",
        "terms": {
            "OnDemand": {
                f"{usage_type}.JRTCKXETXF": {
                    "priceDimensions": {f"{usage_type}.6YS6EN2CT7": dimension}
                }
            }
        },
    }


def price_page(products: list[dict[str, Any]], body: dict[str, Any]) -> dict[str, Any]:
    """One page of the products that all filters match."""
    found = [
        item
        for item in products
        if item["serviceCode"] == body["ServiceCode"]
        and all(
            _value(item, wanted["Field"]) == wanted["Value"] for wanted in body.get("Filters", ())
        )
    ]
    start = int(body.get("NextToken", 0))
    page = {
        "FormatVersion": "aws_v1",
        "PriceList": [json.dumps(item) for item in found[start : start + PAGE]],
    }
    return page | ({"NextToken": str(start + PAGE)} if start + PAGE < len(found) else {})


def _value(item: dict[str, Any], field: str) -> Any:
    return item["product"].get(field) or item["product"]["attributes"].get(field)
