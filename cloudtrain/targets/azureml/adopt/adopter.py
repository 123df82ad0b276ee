"""The Azure ML part of `cloudtrain adopt`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path as File
from typing import Any

from cloudtrain.core.adoption import UNREAD, Comparable, Draft, Original
from cloudtrain.core.differences import Path, overrides_between
from cloudtrain.core.plan import Bundle, CompileContext, Plan
from cloudtrain.targets.azureml.account import account_of
from cloudtrain.targets.azureml.adopt.documents import originals_in
from cloudtrain.targets.azureml.adopt.jobs import (
    DEFAULT_EXPERIMENT,
    ENVIRONMENT_WORDS,
    drafts_of,
    is_local,
    with_prefix,
)
from cloudtrain.targets.azureml.compile.durations import duration_seconds
from cloudtrain.targets.azureml.compile.identifiers import MODELS, UNNAMED, asset_id, compute_id
from cloudtrain.targets.azureml.compile.places import LOCAL_UPLOAD
from cloudtrain.targets.azureml.compile.request import RUN_PROPERTY
from cloudtrain.targets.azureml.settings import AzureML

_CODE = "(the code's own place)"
_DATA = "(the data's own place)"
_BUNDLE = Bundle("0" * 64, 0, 0)
_NOBODY = "job"


class AzureMLAdopter:
    """Adopts command jobs, from their request bodies or from documents that contain them."""

    def originals(self, data: Any, folder: str | None) -> list[Original]:
        """Return the command jobs of a document."""
        return originals_in(data, folder)

    def drafts(self, original: Original) -> Iterator[Draft]:
        """Yield jobs that compile to the original's body."""
        return drafts_of(original)

    def context(self, original: Original, settings: AzureML) -> CompileContext:
        """Return a compile context with the original job's name and the workspace in `settings`.

        The workspace that is configured on this machine is ignored.
        """
        account = account_of(settings, {"AZURE_CONFIG_DIR": "/nonexistent"}, File("/nonexistent"))
        environment = original.request["properties"].get("environmentId")
        conda = environment.get("condaFile") if isinstance(environment, Mapping) else None
        built = "0" * 64 if isinstance(environment, Mapping) and "build" in environment else None
        return CompileContext(original.name or _NOBODY, _BUNDLE, account, conda=conda, build=built)

    def comparable(
        self, request: Mapping[str, Any], original: Original, context: CompileContext, plan: Plan | None
    ) -> Comparable:
        """Return the body `request` in a form that can be compared with another body. Also return the fields that are
        different in each submission, so they are not compared. `plan` is the plan that contains the body; None for the
        original body.

        Short ids become the full ids that the SDK sends. The property that marks cloudtrain's runs is left out, and a
        fixed text replaces the code's id.
        """
        body: dict[str, Any] = json.loads(json.dumps(request["properties"]))
        renewed = [("name", "every run gets a name of its own")]
        properties = body.get("properties") or {}
        properties.pop(RUN_PROPERTY, None)
        if plan is not None:
            renewed.append((f"properties.{RUN_PROPERTY}", "the property makes the run known to cloudtrain"))
        if body.get("codeId") is not None:
            body["codeId"] = _CODE
            renewed.append(("codeId", "cloudtrain uploads the code under the hash of its content"))
        if body.get("displayName") in (None, context.run_name):
            body.pop("displayName", None)
            renewed.append(("displayName", "the run's name is used if the job has no display name"))
        body.setdefault("experimentName", DEFAULT_EXPERIMENT)
        body["environmentId"] = self._environment(body.get("environmentId"), context, plan, renewed)
        workspace = context.account.workspace_id
        if body.get("computeId"):
            body["computeId"] = compute_id(workspace, body["computeId"])
        for item in (body.get("inputs") or {}).values():
            if isinstance(item, dict) and item.get("uri"):
                item["uri"] = with_prefix(item["uri"])
                kind = "models" if item.get("jobInputType") in MODELS else "data"
                if is_local(item["uri"]) or item["uri"].startswith(f"{LOCAL_UPLOAD}/{UNREAD}/"):
                    item["uri"] = _DATA
                    renewed.append(("inputs", "data of this machine is uploaded under the hash of its content"))
                item["uri"] = asset_id(workspace, item["uri"], kind) or item["uri"]
        timeout = (body.get("limits") or {}).get("timeout")
        if timeout is not None and duration_seconds(timeout) is not None:
            body["limits"] = {**body["limits"], "timeout": f"PT{duration_seconds(timeout)}S"}
        return Comparable({"properties": _without_empty(body)}, tuple(renewed))

    def _environment(
        self, given: Any, context: CompileContext, plan: Plan | None, renewed: list[tuple[str, str]]
    ) -> Any:
        """Return the definition of an environment that is not registered yet, or the complete id of a registered
        environment. If the id is different in each submission, add its field to `renewed`."""
        if isinstance(given, Mapping):
            if not given.get("asset_version"):
                renewed.append(("environmentId", _WHY_ENVIRONMENT))
            return {"defined as": _definition(given)}
        upload = next((item for item in plan.uploads if item.destination == given), None) if plan else None
        if upload is not None and upload.content is not None:
            made = json.loads(upload.content)["properties"]
            if upload.folder is not None:
                made["build"]["path"] = upload.folder
            *_, name, _, version = str(given).split("/")
            if name != UNNAMED:
                made |= {"asset_name": name, "asset_version": None if version == upload.sha256[:32] else version}
            return {"defined as": _definition(made)}
        text = str(given or "")
        return asset_id(context.account.workspace_id, text, "environments") or text

    def overrides(self, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
        """Return overrides that turn the body `ours` into `theirs`. The code's id, and an environment that is not
        registered yet, are left out.
        """
        wanted = {name: {} for name in _MAPPINGS if name in ours["properties"]} | theirs["properties"]
        found = overrides_between(ours["properties"], wanted)
        if isinstance(found.get("environmentId"), Mapping):
            del found["environmentId"]
        if found.get("codeId") == _CODE:
            del found["codeId"]
        return found

    def hook(self) -> str:
        """Return the code that captures the job of a script that uses azure-ai-ml."""
        return File(__file__).with_name("hook.py").read_text(encoding="utf-8")

    def captured(self, record: Mapping[str, Any], uploads: Mapping[str, bytes]) -> tuple[list[Original], None]:
        """Return the job that a script was about to create, with the workspace of the script's client. The second
        value, an archive of the code, is always None."""
        workspace = {str(name): str(value) for name, value in (record.get("workspace") or {}).items()}
        found = originals_in(record.get("job"), None)
        return [replace(item, settings={**workspace, **item.settings}) for item in found], None

    def reason(self, path: Path) -> str:
        """Explain why the adopted job cannot reproduce the field at `path`, even with overrides."""
        field = str(path[1]) if len(path) > 1 else ""
        return _REASONS.get(field, "a job has no field for this")


def _definition(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return an environment's definition, with the parsed content of its conda file instead of the file's text."""
    found: dict[str, Any] = {key: given[key] for key in ("image", *ENVIRONMENT_WORDS) if given.get(key)}
    if given.get("condaFile"):
        import yaml

        found["condaFile"] = json.loads(json.dumps(yaml.safe_load(given["condaFile"]), default=str))
    build = given.get("build")
    if isinstance(build, Mapping):
        found["build"] = {"path": build.get("path"), "dockerfilePath": build.get("dockerfilePath") or "Dockerfile"}
    return found


def _without_empty(value: Any) -> Any:
    """Return the value without null and empty fields and `isArchived: false`, which the service treats as missing."""
    if not isinstance(value, Mapping):
        return value
    kept = {key: _without_empty(item) for key, item in value.items() if not (key == "isArchived" and item is False)}
    return {key: item for key, item in kept.items() if item not in (None, {}, [])}


_MAPPINGS = ("environmentVariables", "inputs", "outputs", "tags", "properties")
"""Fields that must stay mappings in a body: their entries are removed one by one."""

_WHY_ENVIRONMENT = "cloudtrain names the environment by a hash of its definition; the SDK uses another hash"

_REASONS = {
    "environmentId": "the environment has no version or definition that a job can contain",
    "searchSpace": "a job is one training",
}
