"""The environment of a job: a registered one, a curated one by framework and version, or one made of an image."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Mapping
from typing import Any, NamedTuple

from cloudtrain.core.job import Environment, TrainingJob
from cloudtrain.core.plan import CompileContext, Upload, canonical_json
from cloudtrain.errors import JobError, Problem, did_you_mean
from cloudtrain.targets.azureml.catalogue.curated import CURATED, curated_environment
from cloudtrain.targets.azureml.compile.identifiers import UNNAMED, asset_id, asset_meant, environment_id, is_label

FOLDER = "${{folder}}"
"""Stands in an environment's definition for the address of its folder (`Upload.folder`)."""


class ChosenEnvironment(NamedTuple):
    """The body's `environmentId`, and the environment that must be created first, if any."""

    id: str
    upload: Upload | None = None


def environment_of(job: TrainingJob, context: CompileContext) -> ChosenEnvironment:
    """Return the environment that the job names.

    Raises:
        JobError: the job names no environment, an environment without a version, or a framework for which there is no
            curated environment.
    """
    given = job.environment
    image = given.image.of("azureml") if given.image else None
    registered = given.of("azureml")
    if registered is not None:
        _refuse_names(given)
        return ChosenEnvironment(_registered_id(registered, context.account.workspace_id))
    if given.build is not None:
        if image is not None or given.conda_file is not None:
            raise _wrong("build", "an environment is either built from a Dockerfile or made of an image", "remove one")
        return _asset_from_build(given, given.build, posixpath.normpath(given.dockerfile or "Dockerfile"), context)
    if given.dockerfile is not None:
        hint = "add the folder, for example `build: ../environment`"
        raise _wrong("dockerfile", "`dockerfile` needs `build`, the folder that contains the file", hint)
    if image is not None:
        return _asset_from_image(given, image, context)
    if given.conda_file is not None:
        message = "`conda_file` needs an image to build on"
        hint = "add `image: {azureml: mcr.microsoft.com/azureml/openmpi4.1.0-cuda11.8-cudnn8-ubuntu22.04}`"
        raise _wrong("conda_file", message, hint)
    if given.framework is None:
        hint = 'add `environment: {framework: pytorch, version: "2.8"}`, `azureml: azureml:NAME:VERSION`, or an `image`'
        raise _wrong("framework", "the job does not say in which environment it runs on Azure ML", hint)
    _refuse_names(given)
    return ChosenEnvironment(_curated_id(given.framework, given.version))


def _registered_id(written: str, workspace_id: str) -> str:
    found = asset_id(workspace_id, written, "environments")
    if found is not None:
        return found
    name, version = asset_meant(written) or (written.removeprefix("azureml:").partition("@")[0], None)
    if is_label(written):
        message = f"`{written}`: `latest` is the only label that Azure ML's tools look up"
    else:
        message = f"`{written}` names no version of an environment"
    hint = f"name one: `azureml:{name}:1`; `az ml environment list -n {name}` lists them, and `@latest` is the newest"
    raise _wrong("azureml", message, hint if version is None else f"write `azureml:{name}:{version}`")


def _refuse_names(given: Environment) -> None:
    """Raise JobError if the job gives a name, a description or tags to an environment that already exists."""
    for field in ("asset_name", "asset_version", "description", "tags"):
        if getattr(given, field):
            message = f"`{field}` applies only to an environment that cloudtrain registers; this job's already exists"
            raise _wrong(field, message, "remove it, or define the environment with `image` or `build`")


def _asset_from_image(given: Environment, image: str, context: CompileContext) -> ChosenEnvironment:
    properties: dict[str, Any] = {"image": image}
    if given.conda_file is not None:
        if context.conda is None:
            hint = "write the path relative to `source_dir`, and check that no ignore file excludes the file"
            raise _wrong("conda_file", f"the bundle has no file `{given.conda_file}`", hint)
        properties["condaFile"] = context.conda
    return _asset(given, properties, context)


def _asset_from_build(given: Environment, folder: str, dockerfile: str, context: CompileContext) -> ChosenEnvironment:
    """Return an environment that is built from a folder.

    By default a hash of the folder's content identifies the environment, because the folder's address is known only
    after the upload.
    """
    if context.build is None:
        hint = "write the folder's path relative to `source_dir`, and the file's name in `dockerfile`"
        raise _wrong("build", f"the bundle has no file `{posixpath.normpath(f'{folder}/{dockerfile}')}`", hint)
    build = {"contextUri": FOLDER, "dockerfilePath": dockerfile}
    return _asset(given, {"build": build}, context, folder=posixpath.normpath(folder), sha256=context.build)


def _asset(
    given: Environment,
    definition: Mapping[str, Any],
    context: CompileContext,
    *,
    folder: str | None = None,
    sha256: str = "",
) -> ChosenEnvironment:
    if given.asset_version is not None and given.asset_name is None:
        raise _wrong("asset_version", "`asset_version` needs an `asset_name`", "add `asset_name`, or remove it")
    words = {name: value for name in ("description", "tags") if (value := getattr(given, name))}
    properties = {"isAnonymous": given.asset_name is None, "isArchived": False, **definition}
    hashed = properties if given.asset_name else properties | words
    digest = hashlib.sha256((canonical_json({"properties": hashed}) + sha256).encode()).hexdigest()
    content = canonical_json({"properties": properties | words})
    version = given.asset_version or digest[:32]
    destination = environment_id(context.account.workspace_id, given.asset_name or UNNAMED, version)
    size = len(content.encode())
    return ChosenEnvironment(
        destination, Upload("environment", digest, destination, size, 1, content=content, folder=folder)
    )


def _curated_id(framework: str, version: str | None) -> str:
    found = curated_environment(framework, version)
    if found is not None:
        return found.id
    versions = [row.version for row in CURATED if row.framework == framework]
    if not versions:
        message = f"Azure ML has no curated environment for `{framework}`"
        hint = "name one: `azureml: azureml:NAME:VERSION`, or use `framework: pytorch` with `requirements`"
        raise _wrong("framework", message, hint)
    message = f"no curated environment of `{framework}` {version} is known"
    hint = did_you_mean(version or "", versions) or f"use `{versions[0]}`"
    raise _wrong(
        "version",
        message,
        f"{hint}, or name any environment by id: `azureml: azureml://registries/azureml/environments/...`",
    )


def _wrong(field: str, message: str, hint: str) -> JobError:
    return JobError([Problem(("environment", field), message, hint, code="CT034")])
