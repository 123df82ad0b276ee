"""The locations of data: inputs, outputs and checkpoints of the body, and the texts that replace
the job's references.

Azure ML itself replaces `${{inputs.NAME}}` and `${{outputs.NAME}}` in the command with paths, so
cloudtrain does not.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import shlex
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from cloudtrain.errors import JobError, Problem, did_you_mean
from cloudtrain.job.data import Input, references_in
from cloudtrain.job.distribution import DeepSpeed
from cloudtrain.job.training import Environment, TrainingJob
from cloudtrain.plans.plan import CompileContext, Upload, canonical_json
from cloudtrain.rules.engine import mapping_at
from cloudtrain.runtime.torchrun_words import is_module, is_python, words_of_script
from cloudtrain.targets.azureml.catalogue import CURATED, Curated, curated_environment
from cloudtrain.targets.azureml.fields import (
    ARCHIVED,
    INPUT_MODES,
    LITERAL,
    OUTPUT_MODES,
    JsonMapping,
    JsonObject,
)
from cloudtrain.targets.azureml.parts import (
    LAUNCHER,
    MODELS,
    UNNAMED,
    asset_id,
    asset_meant,
    is_launcher,
)
from cloudtrain.targets.azureml.settings import AzureML, AzureMLAccount
from cloudtrain.targets.common.compiling import arguments_of, hyperparameter_text, resolve_text
from cloudtrain.targets.contract import Contents

MODEL = "model"
CHECKPOINT = "checkpoint"
"""Outputs that a job has without declaring them: the model of a script, and the checkpoints if it
keeps some."""

DEFAULT_STORE = "azureml://datastores/workspaceblobstore/paths"
"""The datastore that every workspace has; jobs without a configured location write there."""

SCHEMES = (
    "azureml://",
    "https://",
    "http://",
    "wasbs://",
    "wasb://",
    "abfss://",
    "abfs://",
    "adl://",
)
"""Schemes that an input can be read from, apart from registered assets."""

_INPUT_MODES = {wish: mode for mode, wish in INPUT_MODES.items()}


LOCAL_UPLOAD = f"{DEFAULT_STORE}/LocalUpload"
"""The folder where azure-ai-ml 1.35.2 uploads data of this machine; its subfolders are named by
content."""


def data_place(
    settings: AzureML,  # noqa: ARG001 - as the other targets
    account: AzureMLAccount,  # noqa: ARG001
    sha256: str,
    name: str,
    *,
    is_file: bool,
) -> tuple[str, str]:
    """Addresses are in the workspace's own datastore. That of a folder ends with a slash, as the
    SDK writes it."""
    root = f"{LOCAL_UPLOAD}/{sha256}"
    place = f"{root}/{name}"
    return (root, place) if is_file else (place, f"{place}/")


def reference_texts(job: TrainingJob) -> dict[str, str]:
    """Map each reference of the job to the `${{...}}` that is written into the command, where Azure
    ML replaces it."""
    texts = {CHECKPOINT: f"${{{{outputs.{CHECKPOINT}}}}}"}
    for name in job.inputs:
        texts[f"inputs.{name}"] = f"${{{{inputs.{name}}}}}"
    for name in (*job.outputs, MODEL):
        texts[f"outputs.{name}"] = f"${{{{outputs.{name}}}}}"
    return texts


def free_texts(job: TrainingJob) -> list[str]:
    """Return the references that the service replaces with text from the user instead of its own
    paths."""
    texts = []
    for name, item in job.inputs.items():
        if item.value is not None or item.mode == "direct":
            texts.append(f"${{{{inputs.{name}}}}}")
    return texts


def inputs_of(job: TrainingJob, account: AzureMLAccount, problems: list[Problem]) -> JsonObject:
    """Inputs that Azure ML cannot read are added to `problems`, and get a placeholder in the
    body."""
    inputs: JsonObject = {}
    for name, item in job.inputs.items():
        uri = _uri(item, account)
        wrong = list(_input_problems(name, item, uri))
        problems += wrong
        inputs[name] = {"jobInputType": item.type, "uri": f"{DEFAULT_STORE}/unknown/{name}"}
        if not wrong:
            inputs[name] = _input(item, uri)
    return inputs


def outputs_of(
    job: TrainingJob, run_name: str, chosen: JsonMapping, problems: list[Problem]
) -> JsonObject:
    """Return the declared outputs, plus those for the model and the checkpoints, which cloudtrain
    adds. `chosen` holds what the table of fields writes for the declared ones."""
    outputs: JsonObject = {}
    for name, item in job.outputs.items():
        outputs[name] = {"jobOutputType": item.type}
        if "mode" in item.model_fields_set:
            outputs[name]["mode"] = OUTPUT_MODES.encode(item.mode)
        outputs[name] |= chosen.get(name, {})

    references = references_in(job.command or "")
    writes_model = job.entry_point is not None or f"outputs.{MODEL}" in references
    if MODEL not in outputs and writes_model:
        outputs[MODEL] = {"jobOutputType": "uri_folder"}

    if job.checkpoint is not None:
        if CHECKPOINT in outputs:
            path = ("outputs", CHECKPOINT)
            message = f"the output name `{CHECKPOINT}` is reserved for the job's checkpoints"
            problems.append(Problem(path, message, "give the output another name", code="CT032"))
        default = f"{DEFAULT_STORE}/cloudtrain/checkpoints/{run_name}/"
        outputs[CHECKPOINT] = {
            "jobOutputType": "uri_folder",
            "mode": "ReadWriteMount",
            "uri": job.checkpoint.azureml or default,
        }
    return outputs


def _input(item: Input, uri: str | None) -> JsonObject:
    """Return an input of the body."""
    if item.value is not None:
        return {"jobInputType": LITERAL, "value": hyperparameter_text(item.value)}
    body: JsonObject = {"jobInputType": item.type, "uri": uri}
    if {"mode", "access"} & item.model_fields_set:
        body["mode"] = _INPUT_MODES[item.mode, item.access]
    return body


def _input_problems(name: str, item: Input, uri: str | None) -> Iterator[Problem]:
    """Yield why Azure ML cannot read an input. `uri` is its address there, if it has one."""
    if item.value is not None:
        return
    path = ("inputs", name)
    if item.azureml is None:
        message = f"input `{name}` has no location on Azure ML"
        hint = (
            f"add `azureml: azureml:NAME:VERSION` or `azureml: {DEFAULT_STORE}/PATH` under "
            f"`inputs.{name}`"
        )
        yield Problem(path, message, hint, code="CT032")
    elif uri is None:
        place = item.azureml
        message = f"Azure ML cannot read from `{place}`, which names no version of a data asset"
        hint = _name_version("data", place)
        if not place.startswith("azureml:"):
            hint = (
                f"use `azureml:NAME:VERSION`, `{DEFAULT_STORE}/PATH` or an `https://`, `wasbs://` "
                f"or `abfss://` address; `./{place.lstrip('/')}` uploads it from this machine"
            )
        yield Problem((*path, "azureml"), message, hint, code="CT032")

    if item.mode == "pipe":
        message = f"input `{name}` is a pipe, which only SageMaker has"
        hint = "use `mount` to read on demand, or `download`"
        yield Problem((*path, "mode"), message, hint, code="CT031")
    elif (item.mode, item.access) not in _INPUT_MODES:
        message = f"input `{name}` cannot be written to with the mode `{item.mode}`"
        hint = "use `mode: mount`, or remove `access: rw`"
        yield Problem((*path, "access"), message, hint, code="CT031")


def _name_version(kind: str, reference: str) -> str:
    """Return the hint to name a version in a reference to an asset that Azure ML's tools list as
    `kind`."""
    name, version = asset_meant(reference)
    return (
        f"write `azureml:{name}:{version}`, or `azureml:{name}@latest`, which is the only label; "
        f"`az ml {kind} list --name {name}` lists the versions"
    )


def _uri(item: Input, account: AzureMLAccount) -> str | None:
    """Return the address of an input, or the id of its asset; None if there is none."""
    place = item.azureml or ""
    if place.startswith(SCHEMES):
        return place
    return asset_id(account.workspace_id, place, "models" if item.type in MODELS else "data")


# The environment of a job: a registered one, a curated one by framework and version, or one made of
# an image.

FOLDER = "${{folder}}"
"""Stands in an environment's definition for the address of its folder (`Upload.folder`)."""


class ChosenEnvironment(NamedTuple):
    """The body's `environmentId`, and the environment that must be created first, if any."""

    id: str
    upload: Upload | None = None


def environment_of(job: TrainingJob, context: CompileContext) -> ChosenEnvironment:
    """Raises `JobError` if the job names no environment, or its fields contradict each other."""
    environment = job.environment
    image = environment.image.of("azureml") if environment.image else None
    reference = environment.of("azureml")
    if reference is not None:
        _refuse_names(environment)
        asset = asset_id(context.account.workspace_id, reference, "environments")
        if asset is None:
            message = f"`{reference}` names no version of an environment"
            raise _wrong("azureml", message, _name_version("environment", reference))
        return ChosenEnvironment(asset)

    if environment.build is not None:
        if image is not None or environment.conda_file is not None:
            message = "an environment is either built from a Dockerfile or made of an image"
            raise _wrong("build", message, "remove one")
        return _asset_from_build(environment, environment.build, context)
    if environment.dockerfile is not None:
        message = "`dockerfile` needs `build`, the folder that contains the file"
        raise _wrong("dockerfile", message, "add the folder, for example `build: ../environment`")

    if image is not None:
        return _asset_from_image(environment, image, context)
    if environment.conda_file is not None:
        base = "mcr.microsoft.com/azureml/openmpi4.1.0-cuda11.8-cudnn8-ubuntu22.04"
        message = "`conda_file` needs an image to build on"
        raise _wrong("conda_file", message, f"add `image: {{azureml: {base}}}`")

    if environment.framework is None:
        message = "the job does not say in which environment it runs on Azure ML"
        hint = (
            'add `environment: {framework: pytorch, version: "2.10"}`, `azureml: '
            "azureml:NAME:VERSION`, or an `image`"
        )
        raise _wrong("framework", message, hint)
    _refuse_names(environment)
    return ChosenEnvironment(_curated_id(environment.framework, environment.version))


ASSET_FIELDS = ("asset_name", "asset_version", "description", "tags")
"""What a definition of an environment says of the asset, under the names of the job's fields."""


def _refuse_names(environment: Environment) -> None:
    """Raise `JobError` if a job with an existing environment describes a new one."""
    for field in ASSET_FIELDS:
        if getattr(environment, field):
            raise _wrong(
                field,
                f"`{field}` applies only to an environment that cloudtrain registers; "
                "this job's already exists",
                "remove it, or define the environment with `image` or `build`",
            )


def _asset_from_image(
    environment: Environment, image: str, context: CompileContext
) -> ChosenEnvironment:
    properties: JsonObject = {"image": image}
    if environment.conda_file is not None:
        if context.conda is None:
            raise _wrong(
                "conda_file",
                f"the bundle has no file `{environment.conda_file}`",
                "write the path relative to `source_dir`, and check that no ignore file "
                "excludes the file",
            )
        properties["condaFile"] = context.conda
    return _asset(environment, properties, context)


def _asset_from_build(
    environment: Environment, folder: str, context: CompileContext
) -> ChosenEnvironment:
    """Return the environment that Azure ML builds from `folder`, a folder of the bundle."""
    dockerfile = posixpath.normpath(environment.dockerfile or "Dockerfile")
    if context.build is None:  # the folder has no Dockerfile
        file = posixpath.normpath(f"{folder}/{dockerfile}")
        raise _wrong(
            "build",
            f"the bundle has no file `{file}`",
            "write the folder's path relative to `source_dir`, and the file's name in `dockerfile`",
        )
    # The folder's address is known only after its upload, which replaces the placeholder.
    build = {"contextUri": FOLDER, "dockerfilePath": dockerfile}
    return _asset(environment, {"build": build}, context)


def _asset(
    environment: Environment, definition: JsonMapping, context: CompileContext
) -> ChosenEnvironment:
    """Return an environment that is registered with `definition` before the job. By default its
    version is a hash of the definition and of the content of the folder that it is built from."""
    if environment.asset_version is not None and environment.asset_name is None:
        message = "`asset_version` needs an `asset_name`"
        raise _wrong("asset_version", message, "add `asset_name`, or remove it")
    folder = None
    folder_hash = ""
    if environment.build is not None:
        folder = posixpath.normpath(environment.build)
        folder_hash = context.build or ""

    properties = {"isAnonymous": environment.asset_name is None, ARCHIVED: False, **definition}
    labelled = dict(properties)
    for name in ("description", "tags"):
        if value := getattr(environment, name):
            labelled[name] = value
    # Azure ML can update the description and the tags of an environment with a name.
    identity = properties if environment.asset_name else labelled
    text = canonical_json({"properties": identity}) + folder_hash
    digest = hashlib.sha256(text.encode()).hexdigest()
    content = canonical_json({"properties": labelled})

    name = environment.asset_name or UNNAMED
    version = environment.asset_version or digest[:32]
    place = f"{context.account.workspace_id}/environments/{name}/versions/{version}"
    size = len(content.encode())
    upload = Upload("environment", digest, place, size, 1, content=content, folder=folder)
    return ChosenEnvironment(place, upload)


def curated_of(environment: Environment) -> Curated | None:
    """Return the curated environment that the job's framework and version select, if they do."""
    own = environment.of("azureml") or environment.image or environment.build
    if own or not environment.framework:
        return None
    return curated_environment(environment.framework, environment.version)


def contents_before(job: TrainingJob, _settings: object, _account: object) -> Contents:
    """Return what the job's image has. Of a curated environment, only the framework's version is
    known."""
    python = job.environment.python
    row = curated_of(job.environment)
    if row is None:
        return Contents(python)
    if row.framework == "pytorch":
        return Contents(python, row.version)
    return Contents(python, None, {row.framework: row.version})


def _curated_id(framework: str, version: str | None) -> str:
    """Return the id of a curated environment. Raises `JobError` if there is none."""
    environment = curated_environment(framework, version)
    if environment is not None:
        return environment.id

    versions = [row.version for row in CURATED if row.framework == framework]
    by_id = "name any environment by id: `azureml: azureml://registries/azureml/environments/...`"
    if not versions:
        message = f"Azure ML has no curated environment for `{framework}`"
        raise _wrong(
            "framework", message, f"use `framework: pytorch` with `requirements`, or {by_id}"
        )
    message = f"no curated environment of `{framework}` {version} is known"
    raise _wrong("version", message, f"{did_you_mean(version or '', versions)}, or {by_id}")


def _wrong(field: str, message: str, hint: str) -> JobError:
    return JobError([Problem(("environment", field), message, hint, code="CT034")])


# The command line: one shell string, which every process of the job runs with `bash -c`.
#
# The user's arguments reach the script unchanged, with spaces, quotes, `$`, `;`, newlines and any
# other character.

_REFERENCE = r"\$\{\{(?:inputs|outputs)\.\w+\}\}"

_INSTALL = "python -m cloudtrain.runtime.install"
"""Installs the requirements. Every process of an instance runs the command; only the first installs
anything."""

_SECRETS = (
    'secrets="$(PYTHONPATH="$PWD" python -m cloudtrain.runtime.secret_values)" || exit; '
    'eval "$secrets"; unset secrets'
)
"""Reads the secrets as lines for the shell, which keeps their values out of command lines and
files."""

_WITH_CODE = 'PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"'
"""Adds the bundle's folder to Python's path. For a script in a subfolder, Python would search only
that folder, and the runtime is above it."""


def command_of(job: TrainingJob) -> str:
    """Return the body's command. Raises `JobError` for a job that names nothing to run."""
    texts = reference_texts(job)
    if job.command is not None:
        line = resolve_text(job.command, texts)
    elif job.entry_point is not None:
        free = free_texts(job)
        line = " ".join(quote_word(word, free) for word in words_of(job, texts))
        if "/" in job.entry_point:
            line = f"{_WITH_CODE} {line}"
    else:
        message = (
            "a job on Azure ML needs something to run: an image's own entry point is never started"
        )
        hint = "add for example `entry_point: train.py`"
        raise JobError([Problem(("entry_point",), message, hint, code="CT036")])
    if job.environment.secrets:
        line = f"{_SECRETS}; {line}"
    if job.environment.requirements is not None:
        # `&&` would bind only to the first command of a line with several.
        line = f"{_INSTALL} {quote_word(job.environment.requirements)} || exit; {line}"
    return line


def quote_word(word: str, free: Collection[str] = ()) -> str:
    """References such as `${{inputs.data}}` stay unchanged. A word with a reference in `free` is
    always quoted: the service puts text there that the shell could split or interpret."""
    other_text = re.sub(_REFERENCE, "x", word)
    if shlex.quote(other_text) != other_text or any(text in word for text in free):
        return shlex.quote(word)
    return word


def words_of(job: TrainingJob, texts: dict[str, str]) -> Iterable[str]:
    """Return the command line of a job with an `entry_point`, word by word."""
    assert job.entry_point is not None
    script = resolve_text(job.entry_point, texts)
    arguments = arguments_of(job, texts)
    script_words = words_of_script(script)
    if is_launcher(job.distribution):
        program = ["--module", *script_words[1:]] if is_module(script) else [script]
        return ["python", "-m", LAUNCHER, *_options(job.distribution), *program, *arguments]
    # Azure ML's copy of the code has no executable files.
    return ["python" if is_python(script) else "bash", *script_words, *arguments]


def _options(distribution: DeepSpeed) -> list[str]:
    """Return the options of DeepSpeed's launcher."""
    options = []
    if distribution.processes_per_instance is not None:
        options = ["--num_gpus", str(distribution.processes_per_instance)]
    try:
        return options + shlex.split(distribution.launcher_options)
    except ValueError as error:
        path = ("distribution", "launcher_options")
        message = f"`launcher_options` is not valid shell syntax: {str(error).lower()}"
        raise JobError([Problem(path, message, "close the quotes", code="CT037")]) from None


# The addresses of a job's results: from the job's body, or the service's defaults.
#
# By default an output goes to `azureml/RUN/OUTPUT/` in the workspace's default datastore, which is
# `workspaceblobstore` if the workspace has not chosen another. Once the job has begun, the run
# history has the real address.

NAMED_RESULTS = (MODEL, CHECKPOINT)
"""Outputs with their own top-level name among a run's results; the others are `outputs/NAME`."""

_SERVICES_OUTPUT = "default"
_SHORT = re.compile(r"azureml://(?=datastores/)", re.IGNORECASE)


def places_of(body: JsonMapping, run_name: str, workspace: str) -> dict[str, str]:
    """Map a job's results (`model`, `checkpoint`, `outputs/NAME`) to their addresses, which include
    the workspace. `body` is that of the PUT, or of the answer that describes the job; `workspace`
    is an ARM id."""
    outputs = body["properties"].get("outputs") or {}
    scope = workspace.replace("/providers/Microsoft.MachineLearningServices", "").strip("/")
    places = {}
    for name, output in outputs.items():
        if name == _SERVICES_OUTPUT or not mapping_at(output):
            continue
        default = f"{DEFAULT_STORE}/azureml/{run_name}/{name}/"
        uri = str(output.get("uri") or default)
        result = name if name in NAMED_RESULTS else f"outputs/{name}"
        places[result] = _SHORT.sub(lambda _: f"azureml://{scope}/", uri)
    return places


# Check whether a bundle's files can be stored as blobs under the same names.

_LONGEST_BLOB = 1000
"""In characters. Azure allows 1,024 for a name, and our own folder needs some of them."""

_LONGEST_PART = 254

_CONTROL = "[\x00-\x1f\x7f-\x9f\ufffe\uffff]"


def refuse_blob_name(path: str) -> str | None:
    """Explain why a file cannot be stored as a blob; None if it can. Blob names are text without
    control characters."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return "whose name is not UTF-8"

    parts = path.split("/")
    if re.search(_CONTROL, path):
        return "whose name has a control character in it"
    if re.search(r"\.(?:/|$)", path):
        return "whose name ends with a dot"
    if len(path) > _LONGEST_BLOB or max(map(len, parts)) > _LONGEST_PART:
        return "whose path is too long"
    return None
