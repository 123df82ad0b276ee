"""Find the current version of assets with the label `latest`.

As azure-ai-ml 1.35.2 does, cloudtrain sends the version instead of the label. The latest version of an environment is
the one created last; for data and models, the service reports the latest version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.core.plan import canonical_json
from cloudtrain.errors import TargetError, UsageError
from cloudtrain.targets.azureml.compile.identifiers import MODELS, Labelled, asset_id, parse_label
from cloudtrain.targets.azureml.service.client import Client
from cloudtrain.targets.azureml.service.versions import ENVIRONMENT
from cloudtrain.targets.common.provider_errors import NotThere

if TYPE_CHECKING:
    from cloudtrain.core.processing import AnyJob

_NEWEST = {"$orderBy": "createdtime desc", "$top": "1"}


class Labels:
    """The labels of one workspace. Their versions are stored, so that a submit uses the versions that its check
    reported.
    """

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def ask(self, client: Client, label: Labelled) -> str:
        """Ask the workspace for the current version of a labelled asset, and return it.

        Raises:
            NotThere: the asset does not exist or has no version.
            TargetError: the user may not read the asset.
        """
        if label.kind == "environments":
            page = client.get(f"{label.thing}/versions", api_version=ENVIRONMENT, query=_NEWEST).get("value") or []
            version = page[0].get("name") if page else None
        else:
            container = client.get(label.thing, api_version=ENVIRONMENT)
            version = (container.get("properties") or {}).get("latestVersion")
        if not version:
            raise NotThere(f"`{label.name}` has no version", hint="register a version, or name another asset")
        self._said[label.thing] = str(version)
        return str(version)

    def body(self, client: Client, request: Mapping[str, Any], text: str) -> str:
        """Return the JSON text of the request to send: `text`, with versions instead of labels.

        Raises:
            TargetError: a labelled asset has no version, or the user may not read it.
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

    def pinned(self, client: Client, job: AnyJob) -> AnyJob:
        """Return the job with versions instead of labels.

        Raises:
            TargetError: a labelled asset has no version, or the user may not read it.
            UsageError: a label belongs to a registry, in which cloudtrain does not look up labels.
        """
        environment = self._version_of(client, job.environment.of("azureml"), "environments")
        inputs = {
            name: self._version_of(client, item.of("azureml"), "models" if item.type in MODELS else "data")
            for name, item in job.inputs.items()
        }
        changes: dict[str, Any] = {}
        if environment is not None:
            changes["environment"] = job.environment.model_copy(update={"azureml": environment})
        if any(inputs.values()):
            changes["inputs"] = {
                name: item.model_copy(update={"azureml": inputs[name]}) if inputs[name] else item
                for name, item in job.inputs.items()
            }
        return job.model_copy(update=changes) if changes else job

    def _version_of(self, client: Client, written: Any, kind: str) -> str | None:
        """Return a reference to the current version of a labelled asset; None if `written` has no label."""
        if not isinstance(written, str):
            return None
        found = asset_id(client.place.workspace_id, written, kind) or written
        label = parse_label(found)
        if label is not None:
            whole = self._id(client, label)
            return whole if "/" in written else f"azureml:{label.name}:{whole.rpartition('/')[2]}"
        if found.endswith(("@latest", "/labels/latest")):
            hint = "write a version instead; the registry's page in the studio lists the versions"
            raise UsageError(f"cloudtrain cannot look up `{written}`, a label in a registry", hint=hint, code="CT987")
        return None

    def _id(self, client: Client, label: Labelled) -> str:
        try:
            version = self._said.get(label.thing) or self.ask(client, label)
        except NotThere as error:
            hint = f"name a version: `azureml:{label.name}:1`"
            raise TargetError(
                f"the workspace has no `{label.name}`, so `latest` means no version", hint=hint
            ) from error
        return f"{label.thing}/versions/{version}"


def _labels(properties: Mapping[str, Any]) -> Iterator[tuple[str, Labelled]]:
    inputs = (properties.get("inputs") or {}).values()
    uris = (item.get("uri") for item in inputs if isinstance(item, Mapping))
    for written in (properties.get("environmentId"), *uris):
        if isinstance(written, str) and (label := parse_label(written)):
            yield written, label
