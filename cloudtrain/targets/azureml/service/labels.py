"""Find the version that the label `latest` means now.

A job is sent with the version instead of the label, as azure-ai-ml 1.35.2 does. For environments it is the one created
last; for data and models, the container names its latest version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cloudtrain.core.plan import canonical_json
from cloudtrain.errors import TargetError
from cloudtrain.targets.azureml.compile.identifiers import Labelled, parse_label
from cloudtrain.targets.azureml.service.client import Client
from cloudtrain.targets.azureml.service.versions import ENVIRONMENT
from cloudtrain.targets.common.provider_errors import NotThere

_NEWEST = {"$orderBy": "createdtime desc", "$top": "1"}


class Labels:
    """The labels of one workspace. A check and a submit of the same service use the same versions."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def ask(self, client: Client, label: Labelled) -> str:
        """Return the version that the label means now.

        Raises:
            NotThere: there is no such asset.
            TargetError: the asset may not be read.
        """
        if label.kind == "environments":
            page = client.get(f"{label.thing}/versions", api_version=ENVIRONMENT, query=_NEWEST).get("value") or []
            version = page[0].get("name") if page else None
        else:
            container = client.get(label.thing, api_version=ENVIRONMENT)
            version = (container.get("properties") or {}).get("latestVersion")
        if not version:
            raise NotThere(f"`{label.name}` has no version", hint="register one, or name another asset")
        self._said[label.thing] = str(version)
        return str(version)

    def body(self, client: Client, request: Mapping[str, Any], text: str) -> str:
        """Return the request as it is sent: `text`, its canonical JSON, with versions in place of labels.

        Raises:
            TargetError: a label has no version, or may not be read.
        """
        properties = dict(request["properties"])
        found = dict(_labels(properties))
        if not found:
            return text
        ids = {written: self._id(client, label) for written, label in found.items()}
        if properties.get("environmentId") in ids:
            properties["environmentId"] = ids[properties["environmentId"]]
        properties["inputs"] = {
            name: {**item, "uri": ids[item["uri"]]} if isinstance(item, Mapping) and item.get("uri") in ids else item
            for name, item in (properties.get("inputs") or {}).items()
        }
        return canonical_json({**request, "properties": properties})

    def _id(self, client: Client, label: Labelled) -> str:
        try:
            version = self._said.get(label.thing) or self.ask(client, label)
        except NotThere as error:
            hint = f"name a version: `azureml:{label.name}:1`"
            raise TargetError(f"the workspace has no `{label.name}`, so `latest` means nothing", hint=hint) from error
        return f"{label.thing}/versions/{version}"


def _labels(properties: Mapping[str, Any]) -> Iterator[tuple[str, Labelled]]:
    inputs = (properties.get("inputs") or {}).values()
    uris = (item.get("uri") for item in inputs if isinstance(item, Mapping))
    for written in (properties.get("environmentId"), *uris):
        if isinstance(written, str) and (label := parse_label(written)):
            yield written, label
