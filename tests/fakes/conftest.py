"""A fake Azure ML, and the barest of clients for it: http.client, which retries and hides nothing."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest

from tests.deadlines import DEADLINE
from tests.fakes.azureml import FakeAzure
from tests.fakes.azureml.identity import make_token


@dataclass
class Answer:
    """What came back. Names of headers are lower case."""

    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    @property
    def error(self) -> dict[str, Any]:
        """The error of ARM and of the workspace's services."""
        error: dict[str, Any] = self.body["error"]
        return error

    @property
    def inner(self) -> str:
        """The code under InnerError."""
        return str(self.error["additionalInfo"][1]["info"]["value"]["innerError"]["code"])


@dataclass
class Caller:
    """Sends requests. Paths may begin with `{WS}` or `{SUB}`, or be whole addresses of the fake."""

    fake: FakeAzure

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        version: str | None = "2024-01-01-preview",
        headers: dict[str, str] | None = None,
        token: str | None = "",
    ) -> Answer:
        """One request with a token for ARM, unless another (or None) is given; `version` None leaves it out."""
        raw = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        path = path.replace("{WS}", self.fake.workspace_id).replace("{SUB}", self.fake.subscription)
        path = path.removeprefix(self.fake.url)
        if version is not None:
            path += f"{'&' if '?' in path else '?'}api-version={version}"
        sent = {} if token is None else {"Authorization": f"Bearer {token or self.token()}"}
        connection = http.client.HTTPSConnection(
            self.fake.blobs.host, context=self._trust, timeout=DEADLINE
        )
        try:
            connection.request(method, path, raw, {**sent, **(headers or {})})
            response = connection.getresponse()
            got = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, got, response.read())
        finally:
            connection.close()

    def token(self, audience: str = "", *, seconds: float = 600) -> str:
        """For ARM unless another audience is named."""
        return make_token(audience or self.fake.url, time.time() + seconds)

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.fake.authority))
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context


@pytest.fixture
def fake() -> Iterator[FakeAzure]:
    """A workspace."""
    with FakeAzure() as service:
        yield service


@pytest.fixture
def call(fake: FakeAzure) -> Caller:
    return Caller(fake)


SUBMIT = "2025-01-01-preview"


@pytest.fixture
def submit(call: Caller) -> Callable[..., Answer]:
    """PUT of a job; keyword arguments are properties."""

    def send(name: str, **properties: Any) -> Answer:
        given = {
            "jobType": "Command",
            "command": "python train.py",
            "experimentName": "exp",
            **properties,
        }
        return call("PUT", f"{{WS}}/jobs/{name}", {"properties": given}, version=SUBMIT)

    return send
