"""The two datastores that every workspace has, and what opens them: a signature, the account's key, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tests.fakes.azureml.account import KEY
from tests.fakes.azureml.blobs import Blobs
from tests.fakes.azureml.files import ARTIFACTS, OUTPUTS
from tests.fakes.azureml.messages import Json, Refused, Reply, Request, Route, answer

Secrets = Literal["sas", "key", "none"]
_CREDENTIALS = {"sas": "AccountKey", "key": "AccountKey", "none": "None"}


@dataclass
class Datastore:
    """A container. `secrets` is what listSecrets gives; "none" is a datastore based on the caller's identity."""

    name: str
    container: str
    secrets: Secrets
    is_default: bool = False


class Datastores:
    """The service. By default it gives a signature for the blob store, and the key for the artifacts.

    azure-ai-ml 1.35.2 streams logs with the key alone: with a signature or an identity it fails.
    """

    def __init__(self, workspace: str, blobs: Blobs) -> None:
        self.workspace, self.blobs = workspace, blobs
        self.by_name: dict[str, Datastore] = {}
        self.sas_seconds = 3600.0
        self.add(Datastore("workspaceblobstore", OUTPUTS, "sas", is_default=True))
        self.add(Datastore("workspaceartifactstore", ARTIFACTS, "key"))

    def __getitem__(self, name: str) -> Datastore:
        return self.by_name[name]

    def add(self, datastore: Datastore) -> None:
        self.by_name[datastore.name] = datastore
        self.blobs.add_container(datastore.container)

    @property
    def routes(self) -> list[Route]:
        resource = "workspaces/datastores"
        return [
            Route("GET", "{WS}/datastores", resource, self._list),
            Route("GET", "{WS}/datastores/{name}", resource, self._get),
            Route("POST", "{WS}/datastores/{name}/listSecrets", resource, self._list_secrets),
        ]

    def _known(self, name: str) -> Datastore:
        if name not in self.by_name:
            raise Refused(
                404, "UserError", f"Could not find datastore: {name}", inner="NotFoundError"
            )
        return self.by_name[name]

    def _list(self, request: Request) -> Reply:
        found = self.by_name.values()
        if request.query.get("isDefault", "").lower() == "true":
            found = [datastore for datastore in found if datastore.is_default]  # type: ignore[assignment]
        return answer({"value": [self._describe(datastore) for datastore in found]})

    def _get(self, request: Request, name: str) -> Reply:
        return answer(self._describe(self._known(name)))

    def _list_secrets(self, request: Request, name: str) -> Reply:
        datastore = self._known(name)
        if datastore.secrets == "none":
            raise Refused(
                400, "UserError", "No secrets for credentials of type None.", inner="BadArgument"
            )
        if datastore.secrets == "key":
            return answer({"secretsType": "AccountKey", "key": KEY})
        token = self.blobs.sas_token(
            datastore.container, permissions="racwdl", seconds=self.sas_seconds
        )
        return answer({"secretsType": "Sas", "sasToken": f"?{token}"})

    def _describe(self, datastore: Datastore) -> Json:
        return {
            "id": f"{self.workspace}/datastores/{datastore.name}",
            "name": datastore.name,
            "type": "Microsoft.MachineLearningServices/workspaces/datastores",
            "properties": {
                "datastoreType": "AzureBlob", "accountName": self.blobs.account_name,
                "containerName": datastore.container, "endpoint": self.blobs.suffix, "protocol": "https",
                "credentials": {"credentialsType": _CREDENTIALS[datastore.secrets]}, "isDefault": datastore.is_default,
                "serviceDataAccessAuthIdentity": "None", "description": None, "tags": None, "properties": None,
            },
            "systemData": {"createdAt": "2026-01-01T00:00:00.0000000+00:00", "createdByType": "Application"},
        }  # fmt: skip
