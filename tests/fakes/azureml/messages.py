"""Requests as they came, answers, refusals, and the table of who answers what."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

Json = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """One request as it came. Names of headers are lower case; `path` is unquoted, without the query."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    raw: bytes
    short: str
    """The path with `{WS}`, `{SUB}`, `{BLOB}` for the workspace, the subscription and the storage account."""
    target: str
    """Path and query as they were sent."""
    at: float = field(default_factory=time.time)

    @cached_property
    def body(self) -> Json:
        """The JSON that came; {} for none."""
        return json.loads(self.raw) if self.raw else {}

    def __str__(self) -> str:
        return f"{self.method} {self.short}"

    def matches(self, method: str, pattern: str) -> bool:
        """Whether the method is this one (`*` is any) and the regular expression is found in the path."""
        return method in ("*", self.method) and any(
            re.search(pattern, text) for text in (self.short, self.path)
        )


class Reply(NamedTuple):
    """An answer. `length` is that of the body which HEAD leaves out."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})
    length: int | None = None


def answer(body: Any, status: int = 200, **headers: str) -> Reply:
    """JSON; underscores in the names of headers stand for dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(
        status,
        json.dumps(body).encode(),
        {"Content-Type": "application/json; charset=utf-8", **named},
    )


class Refused(Exception):
    """A service says no. `inner` is the code under InnerError that Azure ML gives with a UserError, and `details` are the
    messages in its details, one for each fault of a body.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        inner: str = "",
        details: tuple[str, ...] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.inner, self.details = (
            status,
            code,
            message,
            inner,
            details,
        )
        self.headers = dict(headers or {})

    @property
    def body(self) -> Json:
        """The JSON of ARM and of the workspace's own services."""
        error: Json = {"code": self.code, "message": self.message}
        if self.inner:
            inner = {"code": "BadArgument", "innerError": {"code": self.inner, "innerError": None}}
            error |= {
                "details": [{"message": message} for message in self.details],
                "additionalInfo": [
                    {"type": "ComponentName", "info": {"value": "managementfrontend"}},
                    {"type": "InnerError", "info": {"value": inner}},
                ],
            }
        return {"error": error}

    @property
    def reply(self) -> Reply:
        return Reply(
            self.status,
            json.dumps(self.body).encode(),
            {"Content-Type": "application/json", **self.headers},
        )


Handler = Callable[..., Reply]


@dataclass(frozen=True)
class Route:
    """Who answers a method on a path; `{name}` in the path becomes an argument. `resource` has the api-versions."""

    method: str
    path: str
    resource: str
    handler: Handler

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        escaped = re.sub(r"\\\{([a-z_]+)\\\}", r"(?P<\1>[^/]+)", re.escape(self.path))
        return re.compile(escaped, re.IGNORECASE)


API_VERSIONS = {
    "workspaces": ("2023-08-01-preview", "2024-10-01-preview"),
    "workspaces/codes": ("2023-04-01", "2023-04-01-preview"),
    "workspaces/jobs": (
        "2023-02-01-preview", "2023-04-01-preview", "2024-01-01-preview", "2025-01-01-preview",
    ),
    "workspaces/datastores": ("2024-10-01-preview",),
    "workspaces/computes": ("2023-08-01-preview",),
    "locations/vmSizes": ("2023-08-01-preview",),
    "locations/usages": ("2023-08-01-preview",),
    "locations/quotas": ("2023-08-01-preview",),
    "workspaces/environments": ("2023-04-01-preview",),
    "workspaces/data": ("2023-04-01-preview",),
    "skus": ("2019-04-01", "2021-07-01"),
    "runhistory": ("v1.0",),
    "dataversion": ("1.5.0",),
    "": ("",),
}  # fmt: skip
"""What azure-ai-ml 1.35.2 was seen to send for each resource (and Microsoft's documentation names for skus)."""


def check_version(request: Request, resource: str, location: str) -> None:
    """The words of ARM for a version that is missing or that nobody knows."""
    known = API_VERSIONS[resource]
    given = request.query.get("api-version", "")
    if given in known:
        return
    if not given:
        message = "The api-version query parameter (?api-version=) is required for all requests."
        raise Refused(400, "MissingApiVersionParameter", message)
    supported = ", ".join(known)
    message = (
        f"No registered resource provider found for location '{location}' and API version '{given}' for type "
        f"'{resource}'. The supported api-versions are '{supported}'."
    )
    raise Refused(400, "NoRegisteredProviderFound", message)
