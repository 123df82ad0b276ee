"""Read calls of azure-ai-ml from a script's source, and draft a job from them.

The arguments of `command(...)` have nearly the same names as the keys of a job file, so they are
converted to a job file first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from cloudtrain.targets.adoption import FILL_IN, Draft, Original, StaticCall, said
from cloudtrain.targets.azureml.adopt.job_files import TABLES, body_of
from cloudtrain.targets.azureml.adopt.requests import drafts_of
from cloudtrain.targets.azureml.parts import present

_CLASSES: dict[str, dict[str, str]] = {
    **{name.rpartition(".")[2]: {"type": kind} for kind, name in TABLES["classes"].items()},
    **{
        name: {}
        for name in (
            "Input",
            "Output",
            "Environment",
            "BuildContext",
            "CommandJobLimits",
            "QueueSettings",
        )
    },
}
"""Maps classes of the SDK to what a job file says beside their arguments."""

_RESOURCES = (
    "instance_count instance_type shm_size docker_args locations max_instance_count".split()
)
_WORKSPACE: dict[str, str] = TABLES["workspace"]


def draft_of_calls(calls: Sequence[StaticCall]) -> tuple[Draft, dict[str, str]] | None:
    """Draft a job from the script's first `command(...)`; also return the values that the source
    does not determine. Returns None if the script has no such call."""
    for call in calls:
        is_job = (
            "command" in call.keywords and {"environment", "compute", "code"} & call.keywords.keys()
        )
        if call.name.rpartition(".")[2] in ("command", "CommandJob") and is_job:
            later = {one.name.removeprefix(f"{call.name}()."): one.keywords for one in calls}
            unknown: dict[str, str] = {}
            values = {
                name: said(value, f"[azureml] {name}", unknown)
                for name, value in _workspace(calls).items()
            }
            return _draft(call, later, present(values), unknown), unknown
    return None


def _draft(
    call: StaticCall,
    later: Mapping[str, dict[str, Any]],
    workspace: dict[str, Any],
    unknown: dict[str, str],
) -> Draft:
    """`later` has the arguments of the calls of the job's methods, by name."""
    fields = {
        name: _plain(value) for name, value in call.keywords.items() if name not in _RESOURCES
    }
    sizes = {name: call.keywords[name] for name in _RESOURCES if name in call.keywords}
    sizes |= later.get("set_resources", {})
    limits = later.get("set_limits")
    if sizes:
        own_resources = fields.get("resources")
        fields["resources"] = {
            **(own_resources if isinstance(own_resources, dict) else {}),
            **sizes,
        }
    data = said(fields | ({"limits": limits} if limits else {}), "", unknown)
    data.setdefault("command", FILL_IN)
    inputs = fields.get("inputs")
    for name in inputs if isinstance(inputs, dict) else ():
        item = data["inputs"].setdefault(name, FILL_IN)
        if isinstance(item, dict) and not {"path", "value"} & item.keys():
            item["path"] = f"azureml:{FILL_IN}:1"
    environment, conda = data.get("environment"), None
    if isinstance(environment, dict):
        conda = environment.pop("conda_file", None)
        environment |= {
            f"asset_{name}": environment.pop(name)
            for name in ("name", "version")
            if name in environment
        }
    body = body_of(data, None, {})
    draft = next(
        drafts_of(
            Original("azureml", {"properties": body}, str(data.get("name", "")), "", workspace)
        )
    )
    if "experiment_name" not in data:
        del draft.settings["experiment"]
    if isinstance(conda, str):
        draft.job["environment"]["conda_file"] = os.path.relpath(
            conda, draft.job["source_dir"] or "."
        )
    elif conda is not None:
        unknown["environment.conda_file"] = repr(conda)
    return draft


def _plain(value: Any) -> Any:
    if isinstance(value, StaticCall):
        kind = value.name.rpartition(".")[2]
        words = {} if kind.endswith("ResourceConfiguration") else _CLASSES.get(kind)
        return (
            value
            if words is None
            else words | {name: _plain(inner) for name, inner in value.keywords.items()}
        )
    return (
        {name: _plain(inner) for name, inner in value.items()} if isinstance(value, dict) else value
    )


def _workspace(calls: Sequence[StaticCall]) -> dict[str, Any]:
    client = next((call for call in calls if call.name.rpartition(".")[2] == "MLClient"), None)
    if client is None:
        return {}
    fields = dict(zip(_WORKSPACE, client.arguments[1:], strict=False)) | client.keywords
    return {ours: fields[theirs] for theirs, ours in _WORKSPACE.items() if theirs in fields}
