"""Ask an ASGI application without a network."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

HOST = "127.0.0.1:8765"


class Answer(NamedTuple):
    """What an application sent."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The data of the body."""
        is_packed = self.headers.get("content-encoding") == "gzip"
        return json.loads(gzip.decompress(self.body) if is_packed else self.body)


def ask(
    app: Any, target: str, method: str = "GET", body: bytes = b"", /, **headers: str | None
) -> Answer:
    """Send one request. Underscores in names of headers stand for hyphens; None leaves one out."""
    given: Mapping[str, str | None] = {"host": HOST} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [
            (name.encode(), value.encode("latin1"))
            for name, value in given.items()
            if value is not None
        ],
        "server": ("127.0.0.1", 8765),
        "client": ("127.0.0.1", 40000),
    }
    sent: list[Any] = []
    asked = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Any:
        return next(asked, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    head = sent[0]
    names = {name.decode(): value.decode("latin1") for name, value in head["headers"]}
    content = b"".join(message.get("body", b"") for message in sent[1:])
    return Answer(head["status"], names, content)
