"""Shared access signatures of the blob service, made and checked as its REST documentation says.

The text that is signed is that of service signatures from version 2020-12-06 on; azure-storage-blob 12.31.1 signs the
same.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from urllib.parse import urlencode

VERSION = "2021-08-06"
_AFTER_RESOURCE = (
    "si",
    "sip",
    "spr",
    "sv",
    "sr",
    "snapshot",
    "ses",
    "rscc",
    "rscd",
    "rsce",
    "rscl",
    "rsct",
)


def sign(query: Mapping[str, str], resource: str, key: str) -> str:
    """The value of `sig`; the resource is `/blob/account/container[/blob]`, the key in base64."""
    head = [query.get(name, "") for name in ("sp", "st", "se")]
    text = "\n".join([*head, resource, *(query.get(name, "") for name in _AFTER_RESOURCE)])
    digest = hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


def make_token(
    account: str, container: str, blob: str, key: str, *, permissions: str, expires: float
) -> str:
    """The query that opens a container, or one blob of it, until that time (seconds since the epoch)."""
    until = datetime.fromtimestamp(expires, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    query = {
        "sv": VERSION,
        "sr": "b" if blob else "c",
        "se": until,
        "sp": permissions,
        "spr": "https",
    }
    resource = f"/blob/{account}/{container}" + (f"/{blob}" if blob else "")
    return urlencode(query | {"sig": sign(query, resource, key)})


def expires_at(query: Mapping[str, str]) -> float:
    """Seconds since the epoch; 0 where the time is missing or malformed."""
    for form in ("%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%MZ", "%Y-%m-%d"):
        try:
            return (
                datetime.strptime(query.get("se", ""), form)
                .replace(tzinfo=timezone.utc)
                .timestamp()
            )
        except ValueError:
            continue
    return 0.0


def refusal(
    query: Mapping[str, str], accounts: tuple[str, ...], container: str, blob: str, key: str
) -> str:
    """Why a signature does not open this blob: "" when it does. An account may go by several names here."""
    if expires_at(query) <= time.time():
        return f"Signature not valid in the specified time frame: Expiry [{query.get('se', '')}]"
    path = f"{container}/{blob}" if query.get("sr") == "b" else container
    signatures = [sign(query, f"/blob/{account}/{path}", key) for account in accounts]
    if not any(hmac.compare_digest(query.get("sig", ""), signature) for signature in signatures):
        return "Signature did not match."
    return ""
