"""The whole service: which request is for whom, and how a process is led here.

python -m tests.fakes.azureml.server --environ-file FILE      serves until it is ended; FILE gets `environ` as JSON
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tests.fakes.azureml import blobs as blob_service
from tests.fakes.azureml.assets import Assets
from tests.fakes.azureml.blobs import Blobs
from tests.fakes.azureml.certificate import write_certificate
from tests.fakes.azureml.compute import Computes
from tests.fakes.azureml.datastores import Datastores
from tests.fakes.azureml.endpoint import Services, SignIn, serve
from tests.fakes.azureml.faults import Faults
from tests.fakes.azureml.files import Logs, Outputs
from tests.fakes.azureml.history import History
from tests.fakes.azureml.identity import TENANT, Identity, check_bearer
from tests.fakes.azureml.jobs import Jobs
from tests.fakes.azureml.messages import Json, Refused, Reply, Request, Route, answer, check_version

Callback = Callable[[Request], object]
CLOUD = "CloudtrainFakeCloud"


@dataclass
class FakeAzure:
    """One workspace with everything around it. Use it as a context manager, and `environ` to lead a process to it."""

    subscription_id: str = "00000000-0000-0000-0000-000000000000"
    resource_group: str = "rg"
    workspace_name: str = "ws"
    location: str = "eastus"
    requests: list[Request] = field(default_factory=list)
    """Every request as it came, those for tokens apart (`identity.asked`)."""
    faults: Faults = field(default_factory=Faults)
    identity: Identity = field(default_factory=Identity)

    def __post_init__(self) -> None:
        self.blobs = Blobs()
        self.assets = Assets(self.workspace_id, self.blobs)
        self.computes = Computes(self.workspace_id, self.subscription, self.location)
        self.datastores = Datastores(self.workspace_id, self.blobs)
        self.jobs = Jobs(self.workspace_id, self.assets, self.computes)
        self.logs, self.outputs = Logs(self.blobs), Outputs(self.blobs)
        self.history = History(self.jobs, self.logs, self.blobs)
        self._hooks: list[tuple[str, str, str, Callback]] = []

    def __enter__(self) -> FakeAzure:
        self._folder = Path(tempfile.mkdtemp(prefix="fake-azureml-"))
        files = write_certificate(self._folder)
        self.authority = files.authority
        self._services = serve(self, Services, files.chain)
        self._sign_in = serve(self, SignIn)
        self.blobs.host = f"localhost:{self._services.port}"
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self._services, self._sign_in):
            server.close()
        shutil.rmtree(self._folder)

    @property
    def url(self) -> str:
        """Of ARM, run history and the blob store; its certificate is for `localhost` and 127.0.0.1."""
        return f"https://{self.blobs.host}"

    @property
    def subscription(self) -> str:
        return f"/subscriptions/{self.subscription_id}"

    @property
    def workspace_id(self) -> str:
        """The ARM id of the workspace."""
        group = f"{self.subscription}/resourceGroups/{self.resource_group}"
        return (
            f"{group}/providers/Microsoft.MachineLearningServices/workspaces/{self.workspace_name}"
        )

    @property
    def environ(self) -> dict[str, str]:
        """What makes azure-identity, azure-core and azure-ai-ml of a new process talk to this service."""
        return {
            "REQUESTS_CA_BUNDLE": str(self.authority),
            "SSL_CERT_FILE": str(self.authority),
            "ARM_CLOUD_METADATA_URL": f"{self.url}/metadata/endpoints?api-version=2019-05-01",
            "AZUREML_CURRENT_CLOUD": CLOUD,
            "IDENTITY_ENDPOINT": f"http://127.0.0.1:{self._sign_in.port}/msi/token",
            "IDENTITY_HEADER": self.identity.header,
        }

    @property
    def cloud(self) -> Json:
        """This cloud as ARM's metadata describe it."""
        return {
            "name": CLOUD,
            "portal": "https://portal.azure.com",
            "resourceManager": f"{self.url}/",
            "authentication": {
                "loginEndpoint": "https://login.microsoftonline.com/",
                "audiences": ["https://management.core.windows.net/", f"{self.url}/"],
                "tenant": "common",
                "identityProvider": "AAD",
            },
            "suffixes": {"storage": self.blobs.suffix, "keyVaultDns": "vault.azure.net"},
        }

    def before(self, method: str, pattern: str, callback: Callback) -> None:
        """Call this when such a request has come, before anything is done about it."""
        self._hooks.append(("before", method, pattern, callback))

    def after(self, method: str, pattern: str, callback: Callback) -> None:
        """Call this when the work of such a request is done, before its answer goes out."""
        self._hooks.append(("after", method, pattern, callback))

    def clear_hooks(self) -> None:
        self._hooks.clear()

    def calls(self, method: str = "*", pattern: str = "") -> list[str]:
        """`METHOD {WS}/...` of the requests that match, in order."""
        return [str(request) for request in self.received(method, pattern)]

    def received(self, method: str = "*", pattern: str = "") -> list[Request]:
        """The requests that match, in order."""
        return [request for request in list(self.requests) if request.matches(method, pattern)]

    def run_hooks(self, moment: str, request: Request) -> None:
        for when, method, pattern, callback in list(self._hooks):
            if when == moment and request.matches(method, pattern):
                callback(request)

    def handle(self, request: Request, refusal: Refused | None) -> Reply:
        """The answer of whoever the request is for."""
        for_blobs = request.path.startswith(f"{self.blobs.prefix}/")
        try:
            if refusal is not None:
                raise refusal
            return self.blobs.handle(request) if for_blobs else self._arm(request)
        except Refused as refused:
            return blob_service.refused(refused) if for_blobs else refused.reply
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            return Refused(400, "BadRequest", f"{request} cannot be understood: {error!r}").reply

    def _arm(self, request: Request) -> Reply:
        if request.path.startswith("/metadata/"):
            return answer([self.cloud])
        if request.path == "/discovery":
            return answer(
                {
                    "api": self.url,
                    "history": self.url,
                    "catalog": self.url,
                    "experimentation": self.url,
                }
            )
        check_bearer(
            request,
            (self.url, "https://management.azure.com", "https://management.core.windows.net"),
        )
        path = re.sub("/+", "/", request.short)
        for route, pattern in self._table:
            match = pattern.fullmatch(path)
            if match and route.method == request.method:
                check_version(request, route.resource, self.location)
                return route.handler(request, **match.groupdict())
        raise self._nothing_there(request)

    @cached_property
    def _table(self) -> list[tuple[Route, re.Pattern[str]]]:
        services = (self.jobs, self.history, self.assets, self.computes, self.datastores)
        routes = [Route("GET", "{WS}", "workspaces", self._workspace)]
        routes += [route for service in services for route in service.routes]
        return [(route, route.pattern) for route in routes]

    def _nothing_there(self, request: Request) -> Refused:
        """The words of ARM for what is not in this subscription."""
        if not request.path.lower().startswith(("/subscriptions/", "/history/", "/data/")):
            return Refused(404, "NotFound", f"the fake knows no {request}")
        asked = dict(zip(("subscription", "group", "workspace"), _scope(request.path), strict=True))
        if asked["subscription"].lower() != self.subscription_id.lower():
            message = f"The subscription '{asked['subscription']}' could not be found."
            return Refused(404, "SubscriptionNotFound", message)
        if asked["group"] and asked["group"].lower() != self.resource_group.lower():
            return Refused(
                404,
                "ResourceGroupNotFound",
                f"Resource group '{asked['group']}' could not be found.",
            )
        if asked["workspace"] and asked["workspace"].lower() != self.workspace_name.lower():
            kind = "Microsoft.MachineLearningServices/workspaces"
            message = (
                f"The Resource '{kind}/{asked['workspace']}' under resource group '{asked['group']}' was not found. "
                "For more details please go to https://aka.ms/ARMResourceNotFoundFix"
            )
            return Refused(404, "ResourceNotFound", message)
        return Refused(404, "NotFound", f"the fake knows no {request}")

    def _workspace(self, request: Request) -> Reply:
        group = self.workspace_id.split("/providers/")[0]
        return answer(
            {
                "id": self.workspace_id, "name": self.workspace_name, "location": self.location, "tags": {},
                "type": "Microsoft.MachineLearningServices/workspaces", "kind": "Default",
                "identity": {"type": "SystemAssigned", "tenantId": TENANT, "principalId": TENANT},
                "properties": {
                    "friendlyName": self.workspace_name, "workspaceId": "44444444-4444-4444-4444-444444444444",
                    "provisioningState": "Succeeded", "discoveryUrl": f"{self.url}/discovery", "tenantId": TENANT,
                    "mlFlowTrackingUri": f"azureml://{self.blobs.host}/mlflow/v1.0{self.workspace_id}",
                    "storageAccount": f"{group}/providers/Microsoft.Storage/storageAccounts/{self.blobs.account}",
                    "keyVault": f"{group}/providers/Microsoft.Keyvault/vaults/fakevault",
                    "applicationInsights": f"{group}/providers/Microsoft.insights/components/fakeinsights",
                    "publicNetworkAccess": "Enabled", "hbiWorkspace": False,
                },
            }
        )  # fmt: skip

    def shorten(self, path: str) -> str:
        """The path with `{WS}`, `{SUB}` and `{BLOB}` in it; ARM does not look at the case."""
        for name, prefix in (
            ("{WS}", self.workspace_id),
            ("{SUB}", self.subscription),
            ("{BLOB}", self.blobs.prefix),
        ):
            at = path.lower().find(prefix.lower())
            end = at + len(prefix)
            if at >= 0 and path[end : end + 1] in ("", "/"):
                return path[:at] + name + path[end:]
        return path


def _scope(path: str) -> tuple[str, str, str]:
    """Subscription, resource group and workspace in a path; "" where there is none."""
    found = [
        re.search(f"/{word}/([^/]+)", path, re.IGNORECASE)
        for word in ("subscriptions", "resourceGroups", "workspaces")
    ]
    subscription, group, workspace = (match[1] if match else "" for match in found)
    return subscription, group, workspace


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environ-file", type=Path, required=True)
    given = parser.parse_args()
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    with FakeAzure() as fake:
        temporary = given.environ_file.with_suffix(".tmp")
        temporary.write_text(json.dumps(fake.environ))
        temporary.replace(given.environ_file)
        signal.sigwait(ends)


if __name__ == "__main__":
    main()
