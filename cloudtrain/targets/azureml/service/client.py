"""Send requests about one workspace to the resource manager and to the workspace's own services.

All requests can be repeated safely: GET requests and requests for secrets change nothing, and a second PUT of the same
content has the same result as the first. The client repeats a request whose answer was lost, even a POST. (The SDK's
own client does not repeat a POST.) Between attempts it waits as long as Azure asks in `Retry-After`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from functools import cached_property
from threading import RLock
from typing import Any
from urllib.parse import quote

import cloudtrain
from cloudtrain.errors import TargetUnreachable
from cloudtrain.system.extras import require
from cloudtrain.targets.azureml.account_ref import AccountRef
from cloudtrain.targets.azureml.service.clouds import Cloud, cloud_of
from cloudtrain.targets.azureml.service.credentials import credential_of, kind_of
from cloudtrain.targets.azureml.service.provider_errors import Call, refusal_error, translate_error
from cloudtrain.targets.azureml.service.versions import HISTORY, WORKSPACE
from cloudtrain.targets.common.provider_errors import Expired

RETRIES, BACKOFF, LONGEST = 7, 0.8, 20.0
"""Retries while Azure is busy: their number, the base of the growing pauses in seconds, and the longest pause.

The second pause is twice the base. All retries take about a minute.
"""

_RECONNECTS = 3
"""The number of retries if a connection fails or breaks."""

_CONNECT_TIMEOUT, _READ_TIMEOUT = 10, 90
"""Timeouts in seconds. The resource manager itself gives up after 60."""

_REPEATABLE = ("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE")


class Client:
    """A client for one workspace, with the credentials that `place` names. This class is thread-safe.

    Methods take a path inside the workspace (`jobs/NAME`; empty for the workspace itself), a path of the resource
    manager (`/subscriptions/...`), or a complete URL.
    """

    def __init__(self, place: AccountRef, environ: Mapping[str, str]) -> None:
        self.place = place
        self._environ = environ
        self._lock = RLock()
        self._credential: Any = None
        self._pipelines: dict[bool, Any] = {}

    def get(self, path: str, *, api_version: str | None = None, query: Mapping[str, str] | None = None) -> Any:
        """Return the JSON data at a path. Raises: see `send`."""
        return self.send("GET", path, api_version=api_version, query=query)

    def put(self, path: str, body: Any, *, api_version: str | None = None) -> Any:
        """Create or replace a resource. Raises: see `send`."""
        return self.send("PUT", path, api_version=api_version, content=_encode(body))

    def post(self, path: str, body: Any = None, *, api_version: str | None = None) -> Any:
        """Send a POST request that is safe to repeat. Raises: see `send`."""
        return self.send("POST", path, api_version=api_version, content=None if body is None else _encode(body))

    def pages(
        self, path: str, *, api_version: str | None = None, query: Mapping[str, str] | None = None
    ) -> Iterator[list[Any]]:
        """Yield the items of a list, page by page; each page is requested when needed. Raises: see `send`."""
        page = self.get(path, api_version=api_version, query=query)
        while True:
            yield page.get("value") or []
            if not page.get("nextLink"):
                return
            page = self.get(page["nextLink"])

    def history(self, path: str) -> Any:
        """Return JSON data of the run history at a path such as `runs/NAME/details`. Raises: see `send`."""
        return self.get(self._history_url(path), api_version=HISTORY)

    def history_pages(self, path: str) -> Iterator[list[Any]]:
        """Yield the items of a list in the run history, page by page. Raises: see `send`."""
        return self.pages(self._history_url(path), api_version=HISTORY)

    def service(self, name: str) -> str:
        """Return the URL of a service of the workspace. The service named `api` is the gateway to most others."""
        return str(self._services[name]).rstrip("/")

    def send(
        self,
        method: str,
        path: str,
        *,
        api_version: str | None = None,
        query: Mapping[str, str] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        signed: bool = True,
    ) -> Any:
        """Send a request, and return the answer's JSON data; an empty dict if the answer has no body.

        If Azure rejects the token, cloudtrain gets a new one and tries once more, because the user may have logged in
        meanwhile.

        Args:
            content: the body, sent byte for byte.
            signed: whether the request contains a token; False for public addresses.

        Raises:
            TargetError: see `provider_errors`.
            SettingsError: the settings name an unknown cloud or kind of credential.
        """
        parameters = {**(query or {}), **({"api-version": api_version} if api_version else {})}
        kind = {"Content-Type": "application/json"} if content else {}
        given = {"Accept": "application/json", **kind, **(headers or {})}
        rest = require("azure.core.rest", extra="azureml")
        url, call = self._url(path) if signed else path, self._call(method, path)

        def request() -> Any:
            return rest.HttpRequest(method, url, params=parameters, headers=given, content=content)

        try:
            return self._answer(request(), signed, call)
        except Expired:
            if not signed:
                raise
            self.renew()
            return self._answer(request(), signed, call)

    def renew(self) -> None:
        """Forget the credentials and tokens, so that the next request gets new ones."""
        with self._lock:
            self._credential = None
            self._pipelines.clear()

    @cached_property
    def cloud(self) -> Cloud:
        """Return the workspace's cloud. Raises: see `send`."""
        return cloud_of(self.place.cloud, self._environ, lambda url: self.send("GET", url, signed=False))

    @property
    def credential(self) -> Any:
        """Return a credential of azure-identity, for storage that accepts identities. Raises: SettingsError."""
        with self._lock:
            if self._credential is None:
                self._credential = credential_of(self.place.credential, self.cloud, self._environ)
            return self._credential

    def token(self, scope: str) -> str:
        """Return a token for a service other than the resource manager. Raises: see `send`."""
        exceptions = require("azure.core.exceptions", extra="azureml")
        try:
            return str(self.credential.get_token(scope).token)
        except (exceptions.AzureError, OSError) as error:
            raise translate_error(error, self._call("GET", scope)) from error

    def explain(self, error: Exception, about: str) -> Exception:
        """Translate an error of azure-storage-blob to cloudtrain's error. `about` names the blob."""
        return translate_error(error, self._call("use", about))

    @cached_property
    def workspace(self) -> dict[str, Any]:
        """Return the resource manager's description of the workspace. Raises: see `send`."""
        found: dict[str, Any] = self.get("", api_version=WORKSPACE)
        return found

    @cached_property
    def _services(self) -> dict[str, str]:
        """Map services of the workspace to their addresses, from a public document (`discoveryUrl`)."""
        found: dict[str, str] = self.send("GET", self.workspace["properties"]["discoveryUrl"], signed=False)
        return found

    def _answer(self, request: Any, signed: bool, call: Call) -> Any:
        exceptions = require("azure.core.exceptions", extra="azureml")
        try:
            response = self._pipeline(signed).run(request, retry_on_methods=_REPEATABLE).http_response
            status, data = response.status_code, response.content
        except (exceptions.AzureError, OSError) as error:
            raise translate_error(error, call) from error
        if status >= 300:
            raise refusal_error(status, _decode(data), call)
        answer = _decode(data) if data else {}
        if answer is None:
            hint = "check the proxy: it may have answered in Azure's place"
            raise TargetUnreachable(f"the answer to `{call.method} {call.about}` is not JSON", hint=hint)
        return answer

    def _history_url(self, path: str) -> str:
        return f"{self.service('api')}/history/v1.0{quote(f'{self.place.workspace_id}/{path}')}"

    def _url(self, path: str) -> str:
        if "://" in path:
            return path
        inside = path if path.startswith("/") else f"{self.place.workspace_id}/{path}".rstrip("/")
        return self.cloud.resource_manager + quote(inside)

    def _call(self, method: str, path: str) -> Call:
        place = self.place
        return Call(
            method,
            path.rpartition(f"{place.workspace_id}/")[2] or place.workspace,
            workspace=place.workspace,
            resource_group=place.resource_group,
            subscription=place.subscription_id,
            login=kind_of(place.credential).login,
        )

    def _pipeline(self, signed: bool) -> Any:
        with self._lock:
            if signed not in self._pipelines:
                self._pipelines[signed] = self._new_pipeline(signed)
            return self._pipelines[signed]

    def _new_pipeline(self, signed: bool) -> Any:
        policies = require("azure.core.pipeline.policies", extra="azureml")
        pipeline = require("azure.core.pipeline", extra="azureml")
        transport = require("azure.core.pipeline.transport", extra="azureml")
        # Azure's warnings are shown only if the user has set up logging.
        logging.getLogger("azure").addHandler(logging.NullHandler())
        steps = [
            policies.RequestIdPolicy(),
            policies.UserAgentPolicy(f"cloudtrain/{cloudtrain.__version__}"),
            policies.RetryPolicy(
                retry_total=RETRIES,
                retry_status=RETRIES,
                retry_connect=_RECONNECTS,
                retry_read=_RECONNECTS,
                retry_backoff_factor=BACKOFF,
                retry_backoff_max=LONGEST,
            ),
        ]
        if signed:
            steps.append(policies.BearerTokenCredentialPolicy(self.credential, self.cloud.scope))
        return pipeline.Pipeline(
            transport.RequestsTransport(connection_timeout=_CONNECT_TIMEOUT, read_timeout=_READ_TIMEOUT), steps
        )


def _encode(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()


def _decode(data: bytes) -> Any:
    """Parse JSON data; return None if `data` is not JSON."""
    try:
        return json.loads(data)
    except ValueError:
        return None
