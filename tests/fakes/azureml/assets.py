"""Code, environments and data: versions that are made once and never change."""

from __future__ import annotations

import copy
import itertools
import json
import threading
import time
from typing import Any

import yaml

from tests.fakes.azureml.blobs import Blobs
from tests.fakes.azureml.messages import Json, Refused, Reply, Request, Route, answer

_KINDS = {"codes": "code", "environments": "environment", "data": "data"}
_TYPE = "Microsoft.MachineLearningServices/workspaces"


class Assets:
    """The assets of the workspace. `add` makes one; `get` is the body that made it."""

    def __init__(self, workspace: str, blobs: Blobs) -> None:
        self.workspace, self.blobs = workspace, blobs
        self._versions: dict[tuple[str, str, str], Json] = {}
        self._uploads = itertools.count(1)
        self._lock = threading.RLock()

    def add(self, kind: str, name: str, version: str, **properties: Any) -> str:
        """A `codes`, `environments` or `data` asset; its ARM id."""
        self._versions[kind, name, version] = {"properties": properties, "at": time.time()}
        return self._id(kind, name, version)

    def get(self, kind: str, name: str, version: str) -> Json:
        found: Json = self._versions[kind, name, version]["properties"]
        return found

    def names(self, kind: str) -> list[tuple[str, str]]:
        """Name and version of all assets of a kind, in the order in which they were made."""
        return [(name, version) for which, name, version in self._versions if which == kind]

    def exists(self, arm_id: str) -> bool:
        """Whether there is a version, or a name whose latest one is meant."""
        kind, name, word, version = arm_id[len(self.workspace) :].strip("/").split("/")
        if word == "labels":
            return any(key[:2] == (kind, name) for key in self._versions)
        return (kind, name, version) in self._versions

    @property
    def routes(self) -> list[Route]:
        made = []
        for kind in _KINDS:
            resource, versions = f"workspaces/{kind}", f"{{WS}}/{kind}/{{name}}/versions"
            made += [
                Route(
                    "GET", f"{{WS}}/{kind}/{{name}}", resource, self._bound(self._container, kind)
                ),
                Route("GET", versions, resource, self._bound(self._list, kind)),
                Route("GET", f"{versions}/{{version}}", resource, self._bound(self._get, kind)),
                Route("PUT", f"{versions}/{{version}}", resource, self._bound(self._put, kind)),
            ]
        upload = "{WS}/codes/{name}/versions/{version}/startPendingUpload"
        return [*made, Route("POST", upload, "workspaces/codes", self._start_upload)]

    @staticmethod
    def _bound(method: Any, kind: str) -> Any:
        return lambda request, **names: method(request, kind, **names)

    def _list(self, request: Request, kind: str, name: str) -> Reply:
        """All versions in the order that is asked for; code is found by its hash, under whatever name it has."""
        query = request.query
        if "hash" in query:
            keys = [
                key
                for key in self._versions
                if key[0] == kind and _has_hash(self._versions[key], query["hash"])
            ]
        else:
            keys = self._versions_of(kind, name)
        if query.get("$orderBy", "").lower() == "createdtime desc":
            keys.reverse()
        top = int(query.get("$top", len(keys)))
        return answer({"value": [self._describe(*key) for key in keys[:top]]})

    def _versions_of(self, kind: str, name: str) -> list[tuple[str, str, str]]:
        """In the order in which they were made."""
        keys = [key for key in self._versions if key[:2] == (kind, name)]
        if not keys:
            raise Refused(
                404,
                "UserError",
                f"{_KINDS[kind]} container {name} was not found.",
                inner="NotFoundError",
            )
        return keys

    def _container(self, request: Request, kind: str, name: str) -> Reply:
        latest = self._versions_of(kind, name)[-1][2]
        properties: Json = {
            "latestVersion": latest,
            "nextVersion": None,
            "isArchived": False,
            "tags": {},
            "properties": {},
        }
        place = f"{self.workspace}/{kind}/{name}"
        return answer(
            {"id": place, "name": name, "type": f"{_TYPE}/{kind}", "properties": properties}
        )

    def _get(self, request: Request, kind: str, name: str, version: str) -> Reply:
        if (kind, name, version) not in self._versions:
            message = f"Could not find asset with ID: {self._id(kind, name, version)}"
            raise Refused(404, "UserError", message, inner="NotFoundError")
        return answer(self._describe(kind, name, version))

    def _put(self, request: Request, kind: str, name: str, version: str) -> Reply:
        """A version that exists is left as it is: the same content is 200, another 409."""
        key, properties = (kind, name, version), request.body["properties"]
        with self._lock:
            if key in self._versions:
                if _content(self._versions[key]["properties"]) != _content(properties):
                    message = f"Asset with ID {self._id(*key)} already exists, and a version of an asset cannot change."
                    raise Refused(409, "UserError", message, inner="ImmutableVersion")
                return answer(self._describe(*key), 200)
            if kind == "codes":
                self._check_uploaded(properties["codeUri"])
            self._versions[key] = {"properties": properties, "at": time.time()}
        return answer(self._describe(*key), 201)

    def _check_uploaded(self, uri: str) -> None:
        """Code lies in a container that startPendingUpload gave, and there is something there."""
        container, _, prefix = uri.removeprefix(f"{self.blobs.url}/").partition("/")
        names = self.blobs.containers.get(container, {})
        if not any(name.startswith(prefix) for name in names):
            raise Refused(400, "UserError", f"There is nothing at {uri}.", inner="BlobNotFound")

    def _start_upload(self, request: Request, name: str, version: str) -> Reply:
        """A new container each time, opened by a signature. That it is new each time is modelled."""
        number = next(self._uploads)
        container = f"fakews-code-{number:08d}"
        self.blobs.add_container(container)
        uri = f"{self.blobs.url}/{container}"
        signed = self.blobs.sas_url(container, permissions="rcwl")
        place = {
            "blobUri": uri,
            "storageAccountArmId": f"{self.workspace.split('/providers/')[0]}/providers/Microsoft.Storage"
            f"/storageAccounts/{self.blobs.account}",
            "credential": {"credentialType": "SAS", "sasUri": signed},
        }
        kind = request.body.get("pendingUploadType")
        return answer(
            {
                "pendingUploadId": str(number),
                "pendingUploadType": kind,
                "blobReferenceForConsumption": place,
            }
        )

    def _describe(self, kind: str, name: str, version: str) -> Json:
        """As recorded in March 2026: code is never anonymous, and a conda file comes back as JSON."""
        properties = copy.deepcopy(self._versions[kind, name, version]["properties"])
        if kind == "codes":
            properties |= {"isAnonymous": False, "provisioningState": "Succeeded"}
        if kind == "environments":
            conda = properties.get("condaFile")
            properties["condaFile"] = json.dumps(yaml.safe_load(conda), indent=2) if conda else ""
        return {
            "id": self._id(kind, name, version),
            "name": version,
            "type": f"{_TYPE}/{kind}/versions",
            "properties": properties,
            "systemData": {
                "createdAt": "2026-01-01T00:00:00.0000000+00:00",
                "createdByType": "User",
            },
        }

    def _id(self, kind: str, name: str, version: str) -> str:
        return f"{self.workspace}/{kind}/{name}/versions/{version}"


def _has_hash(asset: Json, wanted: str) -> bool:
    properties = asset["properties"].get("properties") or {}
    return bool(properties.get("hash_sha256") == wanted)


def _content(properties: Json) -> Json:
    """What of an asset may not change."""
    return {
        key: value
        for key, value in properties.items()
        if key not in ("tags", "description", "properties")
    }
