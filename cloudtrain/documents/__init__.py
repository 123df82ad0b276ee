"""JSON, TOML and YAML: the data, and the documents that hold them."""

from collections.abc import Mapping
from typing import Any

JsonObject = dict[str, Any]
JsonMapping = Mapping[str, Any]
"""A JSON object that is only read."""
