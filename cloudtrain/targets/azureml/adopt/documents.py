"""Find command jobs in documents: the body of a PUT, the service's answer, a job file of `az ml`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cloudtrain.core.adoption import Original
from cloudtrain.targets.azureml.adopt.job_files import (
    not_a_command,
    originals_in_job_file,
    search_left_out,
    why_left_out,
    workspace_in,
)
from cloudtrain.targets.azureml.compile.distributions import camel

_READ_ONLY = frozenset({"status", "jobStatus", "creationContext", "logFiles", "parameters", "componentId", "warnings"})
"""Fields that the service adds to a body in its answer."""

_ADDED: Mapping[str, Callable[[str, Any], bool]] = {
    "services": lambda name, _: name in ("Tracking", "Studio"),
    "properties": lambda name, _: name.startswith(
        ("_azureml.", "ContentSnapshotId", "ProcessInfoFile", "ProcessStatus")
    ),
    "outputs": lambda name, item: name == "default" and "/ExperimentRun/dcid." in str(item),
}
"""What the service adds to fields of a body: names and values."""


def originals_in(data: Any, folder: str | None) -> list[Original]:
    """Return the command jobs of a document; empty if the document does not come from Azure ML.

    Raises:
        UsageError: the document comes from Azure ML but contains no command job.
    """
    if isinstance(data, list):
        return [found for item in data for found in originals_in(item, folder)]
    if not isinstance(data, Mapping):
        return []
    properties = data.get("properties")
    if isinstance(properties, Mapping) and "jobType" in properties:
        return list(_from_body(data, properties, folder))
    return originals_in_job_file(data, folder)


def _from_body(data: Mapping[str, Any], properties: Mapping[str, Any], folder: str | None) -> Iterator[Original]:
    kind = str(properties["jobType"]).lower()
    identity = str(data.get("id", ""))
    name = str(data.get("name") or identity.rpartition("/")[2] or "")
    settings = workspace_in(data)
    answered = "id" in data or "status" in properties or "systemData" in data
    words = "what the service says of a command job" if answered else "the body of a command job"
    if kind == "command":
        body = {key: value for key, value in properties.items() if key not in _READ_ONLY}
        if answered:
            body |= {
                field: {key: value for key, value in body[field].items() if not is_added(key, value)} or None
                for field, is_added in _ADDED.items()
                if isinstance(body.get(field), Mapping)
            }
        yield Original("azureml", {"properties": body}, name, words, settings, folder=folder)
    elif kind == "sweep":
        yield _trial(properties, name, settings, folder)
    elif kind == "pipeline":
        yield from _steps(properties, name, settings, folder)
    else:
        raise not_a_command(kind)


def _trial(properties: Mapping[str, Any], name: str, settings: Mapping[str, Any], folder: str | None) -> Original:
    """Return a sweep's trial as a command job; the parameters that the sweep searches become inputs."""
    trial = properties.get("trial") or {}
    kept = ("inputs", "outputs", "computeId", "experimentName", "displayName", "description", "tags", "identity")
    body = {"jobType": "Command", **{key: properties[key] for key in kept if key in properties}, **trial}
    searched = sorted(properties.get("searchSpace") or {})
    inputs = dict(body.get("inputs") or {})
    command = str(trial.get("command", ""))
    for parameter in searched:
        command = command.replace(f"${{{{search_space.{parameter}}}}}", f"${{{{inputs.{parameter}}}}}")
        inputs[parameter] = {"jobInputType": "literal", "value": "0"}
    body |= {"command": command, "inputs": inputs}
    timeout = (properties.get("limits") or {}).get("trialTimeout")
    if timeout is not None:
        body["limits"] = {"jobLimitsType": "Command", "timeout": timeout}
    lost = search_left_out(properties, camel)
    return Original("azureml", {"properties": body}, name, "the trial of a sweep", settings, folder=folder, lost=lost)


def _steps(
    properties: Mapping[str, Any], name: str, settings: Mapping[str, Any], folder: str | None
) -> Iterator[Original]:
    jobs = properties.get("jobs") or {}
    inline = {step: job for step, job in jobs.items() if isinstance(job, Mapping) and "command" in job}
    lost = {f"jobs.{step}": why_left_out(job) for step, job in jobs.items() if step not in inline}
    for step, job in inline.items():
        body = {"jobType": "Command", **{key: value for key, value in job.items() if key != "type"}}
        kind = f"step {step} of the pipeline {name}".rstrip()
        yield Original("azureml", {"properties": body}, step, kind, settings, folder=folder, lost=lost)
