"""The locations of data: inputs, outputs and checkpoints of the body, and the texts that replace the job's references.

Azure ML itself replaces `${{inputs.NAME}}` and `${{outputs.NAME}}` in the command with paths, so cloudtrain does not.
"""

from __future__ import annotations

from typing import Any

from cloudtrain.core.data import Input, Output
from cloudtrain.core.job import TrainingJob
from cloudtrain.core.references import references_in
from cloudtrain.errors import Problem
from cloudtrain.targets.azureml.account import AzureMLAccount
from cloudtrain.targets.azureml.compile.identifiers import MODELS, asset_id, asset_meant, is_label
from cloudtrain.targets.common.compiling import hyperparameter_text

MODEL, CHECKPOINT = "model", "checkpoint"
"""Outputs that a job has without declaring them: the model of a script, and the checkpoints if it keeps some."""

DEFAULT_STORE = "azureml://datastores/workspaceblobstore/paths"
"""The datastore that every workspace has; jobs without a configured location write there."""

SCHEMES = ("azureml://", "https://", "http://", "wasbs://", "wasb://", "abfss://", "abfs://", "adl://")
"""Schemes that an input can be read from, apart from registered assets."""

_INPUT_MODES = {
    ("mount", "ro"): "ReadOnlyMount",
    ("mount", "rw"): "ReadWriteMount",
    ("download", "ro"): "Download",
    ("direct", "ro"): "Direct",
    ("eval_mount", "ro"): "EvalMount",
    ("eval_download", "ro"): "EvalDownload",
}

_OUTPUT_MODES = {"mount": "ReadWriteMount", "upload": "Upload", "direct": "Direct"}


LOCAL_UPLOAD = f"{DEFAULT_STORE}/LocalUpload"
"""The folder where azure-ai-ml 1.35.2 uploads data of this machine; its subfolders are named by content."""


def data_place(sha256: str, name: str, *, is_file: bool) -> tuple[str, str]:
    """Return the address of the storage folder for an upload of local data, and the address of the data in it.

    `sha256` is the hash of the data, and `name` the name of the file or folder. The address of a folder ends with a
    slash, as the SDK writes it.
    """
    root = f"{LOCAL_UPLOAD}/{sha256}"
    return (root, f"{root}/{name}") if is_file else (f"{root}/{name}", f"{root}/{name}/")


def reference_texts(job: TrainingJob) -> dict[str, str]:
    """Map each reference of the job to the `${{...}}` that is written into the command, where Azure ML replaces it."""
    names = [*(f"inputs.{name}" for name in job.inputs), *(f"outputs.{name}" for name in {*job.outputs, MODEL})]
    return {name: f"${{{{{name}}}}}" for name in names} | {CHECKPOINT: f"${{{{outputs.{CHECKPOINT}}}}}"}


def free_texts(job: TrainingJob) -> list[str]:
    """Return the references that the service replaces with text from the user instead of its own paths."""
    return [
        f"${{{{inputs.{name}}}}}"
        for name, item in job.inputs.items()
        if item.value is not None or item.mode == "direct"
    ]


def inputs_of(job: TrainingJob, account: AzureMLAccount, problems: list[Problem]) -> dict[str, Any]:
    """Return the body's `inputs`.

    Inputs that Azure ML cannot read are added to `problems`, and get a placeholder in the body.
    """
    found: dict[str, Any] = {}
    for name, item in job.inputs.items():
        wrong: list[Problem] = []
        body = _input(name, item, account, wrong)
        found[name] = {"jobInputType": item.type, "uri": f"{DEFAULT_STORE}/unknown/{name}"} if wrong else body
        problems += wrong
    return found


def outputs_of(job: TrainingJob, run_name: str, problems: list[Problem]) -> dict[str, Any]:
    """Return the body's `outputs`: the declared ones, plus the model and checkpoint outputs that cloudtrain adds.

    If a declared output has the checkpoint output's name, a problem is added to `problems`.
    """
    found = {name: _output(item) for name, item in job.outputs.items()}
    if MODEL not in found and (job.entry_point is not None or f"outputs.{MODEL}" in references_in(job.command or "")):
        found[MODEL] = _output(Output.model_construct())
    if job.checkpoint is not None:
        if CHECKPOINT in found:
            message = f"the output name `{CHECKPOINT}` is reserved for the job's checkpoints"
            problems.append(Problem(("outputs", CHECKPOINT), message, "give the output another name", code="CT032"))
        place = job.checkpoint.azureml or f"{DEFAULT_STORE}/cloudtrain/checkpoints/{run_name}/"
        found[CHECKPOINT] = {"jobOutputType": "uri_folder", "mode": "ReadWriteMount", "uri": place}
    return found


def _input(name: str, item: Input, account: AzureMLAccount, problems: list[Problem]) -> dict[str, Any]:
    if item.value is not None:
        return {"jobInputType": "literal", "value": hyperparameter_text(item.value)}
    uri = _uri(name, item, account, problems)
    body: dict[str, Any] = {"jobInputType": item.type, "uri": uri}
    if {"mode", "access"} & item.model_fields_set:
        mode = _INPUT_MODES.get((item.mode, item.access))
        if mode is None:
            problems.append(_no_mode(name, item))
        body["mode"] = mode
    return body


def _no_mode(name: str, item: Input) -> Problem:
    if item.mode == "pipe":
        message = f"input `{name}` is a pipe, which only SageMaker has"
        return Problem(("inputs", name, "mode"), message, "use `mount` to read on demand, or `download`", code="CT031")
    message = f"input `{name}` cannot be written to with the mode `{item.mode}`"
    return Problem(("inputs", name, "access"), message, "use `mode: mount`, or remove `access: rw`", code="CT031")


def _uri(name: str, item: Input, account: AzureMLAccount, problems: list[Problem]) -> str | None:
    path: tuple[str | int, ...] = ("inputs", name, "azureml")
    if item.azureml is None:
        hint = f"add `azureml: azureml:NAME:VERSION` or `azureml: {DEFAULT_STORE}/PATH` under `inputs.{name}`"
        problems.append(Problem(path[:2], f"input `{name}` has no location on Azure ML", hint, code="CT032"))
        return None
    if item.azureml.startswith(SCHEMES):
        return item.azureml
    found = asset_id(account.workspace_id, item.azureml, "models" if item.type in MODELS else "data")
    if found is None and is_label(item.azureml):
        message = f"`{item.azureml}`: `latest` is the only label that Azure ML's tools look up"
        name = item.azureml.partition("@")[0]
        problems.append(Problem(path, message, f"name a version: `{name}:1`, or write `{name}@latest`", code="CT032"))
    elif found is None and (meant := asset_meant(item.azureml)) is not None:
        asset, version = meant
        message = f"`{item.azureml}` names no version of a data asset"
        hint = f"name one: `azureml:{asset}:1`; `az ml data list --name {asset}` lists them"
        problems.append(
            Problem(path, message, hint if version is None else f"write `azureml:{asset}:{version}`", code="CT032")
        )
    elif found is None:
        message = f"Azure ML cannot read from `{item.azureml}`"
        hint = (
            f"use `azureml:NAME:VERSION`, `{DEFAULT_STORE}/PATH` or an `https://`, `wasbs://` or `abfss://` address; "
            f"`./{item.azureml.lstrip('/')}` uploads it from this machine"
        )
        problems.append(Problem(path, message, hint, code="CT032"))
    return found


def _output(item: Output) -> dict[str, Any]:
    body: dict[str, Any] = {"jobOutputType": item.type}
    if "mode" in item.model_fields_set:
        body["mode"] = _OUTPUT_MODES[item.mode]
    optional = {"uri": item.azureml, "assetName": item.asset_name, "assetVersion": item.asset_version}
    return body | {key: value for key, value in optional.items() if value is not None}
