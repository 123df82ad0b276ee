"""Send requests about one workspace to the resource manager and to the workspace's own services.

All requests can be repeated safely: GET requests and requests for secrets change nothing, and a
second PUT of the same content has the same result as the first. The client repeats a request whose
answer was lost, even a POST. (The SDK's own client does not repeat a POST.) Between attempts it
waits as long as Azure asks in `Retry-After`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cloudtrain.documents import JsonMapping, JsonObject
from cloudtrain.errors import TargetError, TargetUnreachable, UsageError
from cloudtrain.plans.plan import canonical_json
from cloudtrain.rules.engine import mapping_at, value_at
from cloudtrain.system.plugins import require
from cloudtrain.targets.azureml.parts import MODELS, Labelled, asset_id, parse_label
from cloudtrain.targets.azureml.service.clouds import Cloud, cloud_of, credential_of, kind_of
from cloudtrain.targets.azureml.service.provider_errors import (
    RefusedCall,
    refusal_error,
    translate_error,
)
from cloudtrain.targets.azureml.settings import AzureMLAccount
from cloudtrain.targets.common.services import Expired, NotThere
from cloudtrain.version import __version__

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob


# The versions of Azure's APIs, one for each kind of object, as azure-ai-ml 1.35.2 sends them.

WORKSPACE = "2024-10-01-preview"
DATASTORE = "2024-10-01-preview"
CODE = "2023-04-01"
ENVIRONMENT = "2023-04-01-preview"
COMPUTE = "2023-08-01-preview"
JOB = "2024-01-01-preview"
"""For reading and listing jobs."""
SUBMIT = "2025-01-01-preview"
"""For making a job. Older versions silently drop fields of a command job."""
SWEEP = "2024-01-01-preview"
"""For making a sweep job."""
CANCEL = "2023-04-01-preview"
HISTORY = "v1.0"
"""For the workspace's run history, which is separate from the resource manager."""


RETRIES = 7
BACKOFF = 0.8
LONGEST = 20.0
"""Retries while Azure is busy: their number, the base of the growing pauses in seconds, and the
longest pause. The second pause is twice the base. All retries take about a minute."""

_RECONNECTS = 3
"""The number of retries if a connection fails or breaks."""

_CONNECT_TIMEOUT = 10
_READ_TIMEOUT = 90
"""Timeouts in seconds. The resource manager itself gives up after 60."""

_REPEATABLE = ("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE")


class Client:
    """A client for one workspace, with the credentials that `place` names. This class is
    thread-safe. Methods take a path inside the workspace (`jobs/NAME`; empty for the workspace
    itself), a path of the resource manager (`/subscriptions/...`), or a complete URL."""

    def __init__(self, place: AzureMLAccount, environ: Mapping[str, str]) -> None:
        self.place = place
        self._environ = environ
        self._lock = RLock()
        self._credential: Any = None
        self._pipelines: dict[bool, Any] = {}
        # Azure's warnings are shown only if the user has set up logging.
        logging.getLogger("azure").addHandler(logging.NullHandler())

    def get(
        self, path: str, *, api_version: str | None = None, query: Mapping[str, str] | None = None
    ) -> Any:
        return self.send("GET", path, api_version=api_version, query=query)

    def post(self, path: str, body: object = None, *, api_version: str | None = None) -> Any:
        """Send a POST request, which must be safe to repeat."""
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        return self.send("POST", path, api_version=api_version, content=content)

    def pages(
        self, path: str, *, api_version: str | None = None, query: Mapping[str, str] | None = None
    ) -> Iterator[list[Any]]:
        """Yield the items of a list, page by page; each page is requested when needed."""
        page = self.get(path, api_version=api_version, query=query)
        while True:
            yield page.get("value") or []
            if not page.get("nextLink"):
                return
            page = self.get(page["nextLink"])

    def items(
        self, path: str, *, api_version: str, query: Mapping[str, str] | None = None
    ) -> list[Any]:
        """Return all items of a list."""
        items: list[Any] = []
        for page in self.pages(path, api_version=api_version, query=query):
            items += page
        return items

    def history(self, path: str) -> Any:
        """Return JSON data of the run history at a path such as `runs/NAME/details`."""
        return self.get(self.gateway(f"history/{HISTORY}", path), api_version=HISTORY)

    def gateway(self, service: str, path: str) -> str:
        """Return the URL of `path` in a service of the workspace, such as `history/v1.0`."""
        api = str(self._services["api"]).rstrip("/")
        inside = quote(f"{self.place.workspace_id}/{path}")
        return f"{api}/{service}{inside}"

    def send(
        self,
        method: str,
        path: str,
        *,
        api_version: str | None = None,
        query: Mapping[str, str] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        is_signed: bool = True,
    ) -> Any:
        """Send a request, and return the answer's JSON data; an empty dict if the answer has no
        body, or is `null`, as the answer to a cancel (recorded March 2026). `content` is sent byte
        for byte. `is_signed` is False for public addresses, which get no token. If Azure rejects
        the token, cloudtrain gets a new one and tries once more: the user may have logged in
        meanwhile. Raises the `TargetError`s of `provider_errors`, and `SettingsError` for an
        unknown cloud or kind of credential."""
        parameters = dict(query or {})
        if api_version:
            parameters["api-version"] = api_version
        all_headers = {"Accept": "application/json"}
        if content:
            all_headers["Content-Type"] = "application/json"
        all_headers |= headers or {}

        rest = require("azure.core.rest", extra="azureml")
        url = self._url(path) if is_signed else path
        call = self._call(method, path)

        def request() -> Any:
            """Make a new request for each attempt: the pipeline changes the one that it sends."""
            return rest.HttpRequest(
                method, url, params=parameters, headers=all_headers, content=content
            )

        try:
            return self._answer(request(), is_signed, call)
        except Expired:
            if not is_signed:
                raise
            self.renew()
            return self._answer(request(), is_signed, call)

    def renew(self) -> None:
        """Forget the credentials and tokens, so that the next request gets new ones."""
        with self._lock:
            self._credential = None
            self._pipelines.clear()

    @cached_property
    def cloud(self) -> Cloud:
        return cloud_of(self.place.cloud, self._environ, self._get_public)

    @property
    def credential(self) -> Any:
        with self._lock:
            if self._credential is None:
                self._credential = credential_of(self.place.credential, self.cloud, self._environ)
            return self._credential

    def token(self, scope: str) -> str:
        exceptions = require("azure.core.exceptions", extra="azureml")
        try:
            return str(self.credential.get_token(scope).token)
        except (exceptions.AzureError, OSError) as error:
            raise translate_error(error, self._call("GET", scope)) from error

    def explain(self, error: Exception, about: str) -> Exception:
        """Translate an error of azure-storage-blob to cloudtrain's error. `about` names the
        blob."""
        return translate_error(error, self._call("use", about))

    @cached_property
    def workspace(self) -> JsonObject:
        workspace: JsonObject = self.get("", api_version=WORKSPACE)
        return workspace

    @cached_property
    def _services(self) -> dict[str, str]:
        """Map services of the workspace to their addresses, from a public document
        (`discoveryUrl`)."""
        url = self.workspace["properties"]["discoveryUrl"]
        services: dict[str, str] = self._get_public(url)
        return services

    def _get_public(self, url: str) -> Any:
        return self.send("GET", url, is_signed=False)

    def _answer(self, request: Any, is_signed: bool, call: RefusedCall) -> Any:
        """Send a request, and return its answer as `send` does. `call` is for error messages."""
        exceptions = require("azure.core.exceptions", extra="azureml")
        try:
            result = self._pipeline(is_signed).run(request, retry_on_methods=_REPEATABLE)
            status = result.http_response.status_code
            data = result.http_response.content
        except (exceptions.AzureError, OSError) as error:
            raise translate_error(error, call) from error

        if status >= 300:
            raise refusal_error(status, _decode(data), call)
        answer = {} if data.strip() in (b"", b"null") else _decode(data)
        if answer is None:
            message = f"the answer to `{call.method} {call.about}` is not JSON"
            raise TargetUnreachable(
                message, hint="check the proxy: it may have answered in Azure's place"
            )
        return answer

    def _url(self, path: str) -> str:
        """Return the URL of a path in any of its three forms; see the class."""
        if "://" in path:
            return path
        if not path.startswith("/"):
            path = f"{self.place.workspace_id}/{path}".rstrip("/")
        return self.cloud.resource_manager + quote(path)

    def _call(self, method: str, path: str) -> RefusedCall:
        """Describe a request for error messages, with the path inside the workspace."""
        place = self.place
        about = path.rpartition(f"{place.workspace_id}/")[2] or place.workspace
        return RefusedCall(method, about, place, kind_of(place.credential).login)

    def _pipeline(self, is_signed: bool) -> Any:
        with self._lock:
            if is_signed not in self._pipelines:
                self._pipelines[is_signed] = self._new_pipeline(is_signed)
            return self._pipelines[is_signed]

    def _new_pipeline(self, is_signed: bool) -> Any:
        policies = require("azure.core.pipeline.policies", extra="azureml")
        pipeline = require("azure.core.pipeline", extra="azureml")
        transport = require("azure.core.pipeline.transport", extra="azureml")

        retries = policies.RetryPolicy(
            retry_total=RETRIES,
            retry_status=RETRIES,
            retry_connect=_RECONNECTS,
            retry_read=_RECONNECTS,
            retry_backoff_factor=BACKOFF,
            retry_backoff_max=LONGEST,
        )
        agent = policies.UserAgentPolicy(f"cloudtrain/{__version__}")
        steps = [policies.RequestIdPolicy(), agent, retries]
        if is_signed:
            steps.append(policies.BearerTokenCredentialPolicy(self.credential, self.cloud.scope))

        requests = transport.RequestsTransport(
            connection_timeout=_CONNECT_TIMEOUT, read_timeout=_READ_TIMEOUT
        )
        return pipeline.Pipeline(requests, steps)


def _decode(data: bytes) -> Any:
    """Return None if `data` is not JSON."""
    try:
        return json.loads(data)
    except ValueError:
        return None


# Find the current version of assets with the label `latest`.
#
# As azure-ai-ml 1.35.2 does, cloudtrain sends the version instead of the label. The latest version
# of an environment is the one created last; for data and models, the service reports the latest
# version.

_NEWEST = {"$orderBy": "createdtime desc", "$top": "1"}


class Labels:
    """The labels of one workspace. A submit uses the versions that its check reported."""

    def __init__(self) -> None:
        self._versions: dict[str, str] = {}

    def ask(self, client: Client, label: Labelled) -> str:
        """Return the current version of a labelled asset. Raises `NotThere` if it does not exist or
        has no version."""
        if label.kind == "environments":
            page = client.get(f"{label.thing}/versions", api_version=ENVIRONMENT, query=_NEWEST)
            newest = page.get("value") or [{}]
            version = newest[0].get("name")
        else:
            asset = client.get(label.thing, api_version=ENVIRONMENT)
            version = value_at(asset, "properties", "latestVersion")
        if not version:
            raise NotThere(
                f"`{label.name}` has no version", hint="register a version, or name another asset"
            )
        self._versions[label.thing] = str(version)
        return str(version)

    def body(self, client: Client, request: JsonMapping) -> str:
        """Return the JSON text of the request to send, with versions instead of labels."""
        properties = dict(request["properties"])
        if label := parse_label(properties.get("environmentId")):
            properties["environmentId"] = self._version_id(client, label)
        for name, item in mapping_at(properties, "inputs").items():
            if label := parse_label(value_at(item, "uri")):
                uri = self._version_id(client, label)
                properties["inputs"] = {**properties["inputs"], name: {**item, "uri": uri}}
        return canonical_json({**request, "properties": properties})

    def pinned(self, client: Client, job: AnyJob) -> AnyJob:
        """Return the job with versions instead of labels; the same job if it has no label."""
        changes: JsonObject = {}
        environment = self._version_of(client, job.environment.of("azureml"), "environments")
        if environment is not None:
            changes["environment"] = job.environment.model_copy(update={"azureml": environment})

        inputs = dict(job.inputs)
        for name, item in job.inputs.items():
            kind = "models" if item.type in MODELS else "data"
            place = self._version_of(client, item.of("azureml"), kind)
            if place is not None:
                inputs[name] = item.model_copy(update={"azureml": place})
                changes["inputs"] = inputs
        return job.model_copy(update=changes) if changes else job

    def _version_of(self, client: Client, place: str | None, kind: str) -> str | None:
        """Return a reference to the current version of a labelled asset; None if `place` has no
        label."""
        if place is None:
            return None

        asset = asset_id(client.place.workspace_id, place, kind) or place
        label = parse_label(asset)
        if label is not None:
            version_id = self._version_id(client, label)
            version = version_id.rpartition("/")[2]
            return version_id if "/" in place else f"azureml:{label.name}:{version}"
        if asset.endswith(("@latest", "/labels/latest")):
            message = f"cloudtrain cannot look up `{place}`, a label in a registry"
            hint = "write a version instead; the registry's page in the studio lists the versions"
            raise UsageError(message, hint=hint, code="CT987")
        return None

    def _version_id(self, client: Client, label: Labelled) -> str:
        """Return the id of the version that the check reported, or else of the current one."""
        try:
            version = self._versions.get(label.thing) or self.ask(client, label)
        except NotThere as error:
            message = f"the workspace has no `{label.name}`, so `latest` means no version"
            raise TargetError(message, hint=f"name a version: `azureml:{label.name}:1`") from error
        return f"{label.thing}/versions/{version}"
