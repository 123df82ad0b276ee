"""Rules about the inputs and outputs of an Azure ML job, and the references to them in the
command."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from cloudtrain.documents import JsonMapping
from cloudtrain.errors import InPlace, did_you_mean
from cloudtrain.job.data import find_references, references_in
from cloudtrain.job.nodes import PLACE_NAME, mend_name
from cloudtrain.job.training import TrainingJob
from cloudtrain.plans.plan import Level
from cloudtrain.rules.engine import Fault, Nature, Subject, ValuePath, rule, text_at
from cloudtrain.targets.azureml.compile.places import CHECKPOINT, DEFAULT_STORE, SCHEMES
from cloudtrain.targets.azureml.fields import ONLY_SAGEMAKER
from cloudtrain.targets.azureml.launch import is_literal, open_quote
from cloudtrain.targets.azureml.parts import asset_id, asset_meant, parse_label
from cloudtrain.targets.azureml.reading import Body, read

_ASSET_NAME = r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,254}"

_DATASTORE = (
    r"azureml://(subscriptions/[^/]+/resource[gG]roups/[^/]+/(providers/[^/]+/)?workspaces/[^/]+/)?"
    # the service fills in `${{default_datastore}}`
    r"datastores/([a-zA-Z0-9_]+|\$\{\{default_datastore\}\})(/paths/.*)?"
)

_OTHER_URI = (
    "azureml://registries/",
    "azureml://jobs/",
    "azureml://locations/",
    "azureml://subscriptions/",
)
"""Beginnings of valid addresses outside datastores."""

_SIGNATURE = r"(?i)[?&]sig="
"""Matches the part of an address that contains a key (a shared access signature)."""

_REFUSED = {
    "assetVersion": "asset_version",
    "pathOnCompute": "pathOnCompute",
    "autoDeleteSetting": "autoDeleteSetting",
}
"""Maps fields of an output that the service refuses to the names that users know."""


@rule("AZ501", Level.ERROR, Nature.FACT)
def reference_to_nothing(subject: Subject) -> Iterator[Fault]:
    """The command names an input or output that the job does not have.

    The service replaces only `${{inputs.NAME}}` and `${{outputs.NAME}}` in the command. cloudtrain
    checks the job's own references when it reads the job; this rule checks the body after the
    overrides. The SDK's validation does not find this mistake (azure-ai-ml 1.35.2).
    """
    reading = read(subject)
    body = reading.body
    candidates = [f"{kind}.{name}" for kind, name in _names(body)]
    for reference in find_references(body.command):
        if reference.inner in candidates:
            continue
        message = (
            f"`{reference.text}` in the command refers to nothing: the job has no such "
            "input or output"
        )
        hint = did_you_mean(reference.inner, candidates)
        field = "command" if subject.job.command else "entry_point"
        yield Fault(
            message,
            hint or "write the value itself, or add an input",
            reading.place(("command",), (field,)),
        )


def _names(source: Body | TrainingJob) -> Iterator[tuple[str, str]]:
    """Yield the kind and the name of each input and output."""
    for name in source.inputs:
        yield "inputs", name
    for name in source.outputs:
        yield "outputs", name


@rule("AZ502", Level.ERROR)
def name_of_place(subject: Subject) -> Iterator[Fault]:
    """The name of an input or output has characters that Azure ML does not accept.

    Names are letters, digits and underscores, and begin with a letter or underscore:
    `^[a-zA-Z_]+[a-zA-Z0-9_]*$` (azure-ai-ml 1.35.2, which checks names only when it sends the job).
    """
    reading = read(subject)
    for kind, name in _names(reading.body):
        if not re.fullmatch(PLACE_NAME, name):
            better = mend_name(name, PLACE_NAME, 64)
            message = f"`{name}` cannot be the name of one of the {kind}"
            hint = f"write `{better}`" if better else "use letters, digits and underscores"
            yield Fault(message, hint, reading.place((kind, name)))


@rule("AZ503", Level.NOTICE)
def not_in_command(subject: Subject) -> Iterator[Fault]:
    """The job's command does not use an input or output.

    A `command` must name its inputs and outputs: `python prep.py --data ${{inputs.train}}`. Azure
    ML also mounts inputs and outputs that the command does not name, but only a program that reads
    `AZURE_ML_INPUT_NAME` or `AZURE_ML_OUTPUT_NAME` finds them. (An `entry_point` gets the paths
    from cloudtrain's runtime.)
    """
    job = subject.job
    if job.command is None or subject.processing is not None:
        return
    references = set(references_in(read(subject).body.command))
    for kind, name in _names(job):
        word = kind[:-1]
        variable = f"azure_ml_{word}_{name}".casefold()
        if f"{kind}.{name}" not in references and variable not in job.command.casefold():
            message = f"the command does not name the {word} `{name}`"
            hint = f"write `${{{{{kind}.{name}}}}}` where its path belongs, or remove it"
            yield Fault(message, hint, (kind, name))


@rule("AZ504", Level.ERROR)
def value_breaks_command(subject: Subject) -> Iterator[Fault]:
    """The value of an input breaks the quotes of the command.

    The service copies the value of a literal input, or the address of an input with `mode: direct`,
    into the shell command. A quote in the value ends the quotes around it, so the script gets
    another value, or the shell finds an unclosed quote.
    """
    reading = read(subject)
    command = reading.body.command
    for name, value in _written_values(subject).items():
        reference = re.compile(rf"\$\{{\{{\s*inputs\.{re.escape(name)}\s*\}}\}}")
        if not reference.search(command):
            continue
        if _survives(reference, value, command, subject.job.command is None):
            continue
        field = "value" if is_literal(reading.body.inputs[name]) else "azureml"
        message = f"the value of input `{name}` breaks the quotes of the command: `{value}`"
        hint = "write it without quotes, or put it into a file in the source folder"
        yield Fault(message, hint, reading.place(("inputs", name), ("inputs", name, field)))


@rule("AZ505", Level.WARNING)
def only_on_sagemaker(subject: Subject) -> Iterator[Fault]:
    """A field of an input has no effect on Azure ML.

    `shard`, `compression` and the fields for records belong to SageMaker. On Azure ML every
    instance of a training job reads the whole input. Select each instance's part by the rank in the
    script, or use a processing job, which distributes the input.
    """
    if subject.processing is not None:
        return
    for name, item in subject.job.inputs.items():
        for field in ONLY_SAGEMAKER:
            if getattr(item, field):
                message = (
                    f"`{field}` of input `{name}` has no effect on Azure ML: every instance reads "
                    "all of the input, unchanged"
                )
                hint = f"remove `{field}`; the script can take a part by `RANK` and `WORLD_SIZE`"
                yield Fault(message, hint, ("inputs", name, field))


@rule("AZ506", Level.ERROR)
def place_of_output(subject: Subject) -> Iterator[Fault]:
    """Azure ML cannot write to the address of an output.

    Write outputs and checkpoints to a datastore of the workspace
    (`azureml://datastores/NAME/paths/PATH`) or to a blob address. To register the written files as
    an asset, use `asset_name`.
    """
    for name, item in read(subject).body.outputs.items():
        uri = item.get("uri")
        if isinstance(uri, str) and not uri.startswith(SCHEMES):
            hint = f"use `{DEFAULT_STORE}/{name}`"
            if uri.startswith("azureml:"):
                hint += f", and `asset_name: {uri.split(':')[1]}` to register what was written"
            message = f"Azure ML cannot write to `{uri}`"
            yield Fault(message, InPlace(hint), _output_path(subject, name))


@rule("AZ507", Level.ERROR)
def datastore_misspelt(subject: Subject) -> Iterator[Fault]:
    """An `azureml:` address is not valid.

    Write a path in a datastore as `azureml://datastores/NAME/paths/PATH`; the name has letters,
    digits and underscores. Other addresses begin with `azureml://subscriptions/`,
    `azureml://registries/` or `azureml://jobs/`. Write a data asset with its name and version:
    `azureml:NAME:VERSION`.
    """
    body = read(subject).body
    for kind, name in _names(body):
        path: ValuePath = ("inputs", name, "azureml")
        if kind == "outputs":
            path = _output_path(subject, name)
        uri = text_at(body.mapping(kind, name), "uri")
        if uri.startswith("azureml://"):
            if not re.fullmatch(_DATASTORE, uri) and not uri.startswith(_OTHER_URI):
                message = f"`{uri}` is not the address of a datastore"
                yield Fault(message, InPlace(f"write `{DEFAULT_STORE}/PATH`"), path)
        elif kind == "inputs" and uri.startswith("azureml:") and not asset_id("", uri, "data"):
            asset, version = asset_meant(uri)
            hint = InPlace(f"write `azureml:{asset}:{version}`")
            yield Fault(f"`{uri}` names no version of a data asset", hint, path)


@rule("AZ509", Level.ERROR)
def asset_of_output(subject: Subject) -> Iterator[Fault]:
    """An output cannot be registered under its name.

    Names of assets have at most 255 letters, digits, `_`, `-` and `.`, with a letter or digit
    first.
    """
    reading = read(subject)
    for name, item in reading.body.outputs.items():
        asset = item.get("assetName")
        if isinstance(asset, str) and not re.fullmatch(_ASSET_NAME, asset):
            better = re.sub(r"[^a-zA-Z0-9_.-]+", "-", asset).strip("-_.") or "NAME"
            path = reading.place(("outputs", name, "assetName"), ("outputs", name, "asset_name"))
            message = f"`{asset}` cannot be the name of an asset"
            yield Fault(message, f"write `asset_name: {better}`", path)


@rule("AZ510", Level.WARNING)
def input_mounted_for_writing(subject: Subject) -> Iterator[Fault]:
    """An input has the mode `rw_mount`.

    The SDK accepts `rw_mount` for an input, but the documentation names only `ro_mount`, `download`
    and `direct`. Files that the job writes into an input may be lost, and Azure ML does not record
    them. Use an output instead.
    """
    reading = read(subject)
    for name, item in reading.body.inputs.items():
        if item.get("mode") == "ReadWriteMount":
            message = f"input `{name}` is mounted for writing, which is not documented for inputs"
            hint = (
                "remove `access: rw`, add an output with the same `azureml` address, and "
                "write to it"
            )
            path = reading.place(("inputs", name, "mode"), ("inputs", name, "access"))
            yield Fault(message, hint, path)


@rule("AZ511", Level.WARNING)
def upload_lost_on_spot(subject: Subject) -> Iterator[Fault]:
    """An output on spot capacity is uploaded only after the script has ended.

    With `mode: upload`, all files of the output are lost if Azure reclaims the machine. Use `mode:
    mount`, which saves the files while the script runs.
    """
    reading = read(subject)
    if not reading.body.is_spot:
        return
    for name, item in reading.body.outputs.items():
        if item.get("mode") == "Upload":
            message = f"output `{name}` is lost if Azure reclaims the spot capacity"
            path = ("outputs", name, "mode")
            yield Fault(message, "use `mode: mount`", reading.place(path, path))


@rule("AZ512", Level.ERROR)
def key_in_output(subject: Subject) -> Iterator[Fault]:
    """The address of an output or of the checkpoint contains a key (`?sig=...`, a SAS).

    The address is part of the request: the service stores it, and everyone who may read the job can
    write to this address while the key is valid. Use a datastore, which keeps its key secret.
    """
    for name in _with_key(read(subject).body.outputs):
        message = (
            f"the address of `{name}` holds a key, with which everyone who may read the "
            "job can write there"
        )
        hint = InPlace(f"write `{DEFAULT_STORE}/{name}`, or another datastore")
        yield Fault(message, hint, _output_path(subject, name))


@rule("AZ513", Level.WARNING)
def key_in_input(subject: Subject) -> Iterator[Fault]:
    """The address of an input contains a key (`?sig=...`, a SAS).

    The address is part of the request, so everyone who may read the job can read the data while the
    key is valid. After the key has expired, the same job finds no data. Use a datastore, which
    keeps its key secret.
    """
    for name in _with_key(read(subject).body.inputs):
        message = (
            f"the address of input `{name}` holds a key, which the request shows to "
            "everyone who may read the job"
        )
        hint = InPlace(
            "`az ml datastore create` keeps the key; then write "
            "`azureml://datastores/NAME/paths/PATH`"
        )
        yield Fault(message, hint, ("inputs", name, "azureml"))


def _with_key(entries: Mapping[str, JsonMapping]) -> Iterator[str]:
    """Yield the names of the entries whose address contains a key."""
    for name, item in entries.items():
        if re.search(_SIGNATURE, str(item.get("uri"))):
            yield name


def _written_values(subject: Subject) -> Mapping[str, str]:
    """Map inputs to the texts that the service copies unchanged into the command: the values of
    literal inputs, and the addresses of `Direct` inputs."""
    texts = {}
    for name, item in read(subject).body.inputs.items():
        if is_literal(item):
            texts[name] = text_at(item, "value")
        elif item.get("mode") == "Direct":
            texts[name] = text_at(item, "uri")
    return texts


def _survives(reference: re.Pattern[str], value: str, command: str, is_quoted_by_us: bool) -> bool:
    """Return whether the command's quotes stay intact when `value` replaces `reference`.
    `is_quoted_by_us`: cloudtrain wrote the command, and put single quotes around the value. In a
    user's own command, the value may contain several arguments on purpose. A command that was
    already broken has no quotes to lose."""
    if is_quoted_by_us:
        return "'" not in value
    if open_quote(reference.sub("x", command)):
        return True
    return not open_quote(reference.sub(lambda _: value, command))


def _output_path(subject: Subject, name: str) -> ValuePath:
    """Return the path of the field that sets an output's address."""
    if name == CHECKPOINT and subject.job.checkpoint is not None:
        return ("checkpoint", "azureml")
    return ("outputs", name, "azureml")


@rule("AZ514", Level.NOTICE)
def data_changes(subject: Subject) -> Iterator[Fault]:
    """An input uses the label `latest`, which can mean another version tomorrow.

    As soon as a new version is registered, a job with `NAME@latest` reads other data. `cloudtrain
    submit` asks the workspace for the current version, reports it (AZ916), and sends that version,
    as the SDK does. Write the version into the job to keep it.
    """
    reading = read(subject)
    for name, item in reading.body.inputs.items():
        label = parse_label(item.get("uri"))
        if label:
            message = (
                f"input `{name}` uses `{label.name}@latest`, whose version can change; a submit "
                "sends the version of that moment"
            )
            hint = InPlace(f"add `--pin`, or write `azureml:{label.name}:VERSION`")
            path = reading.place(("inputs", name, "uri"), ("inputs", name, "azureml"))
            yield Fault(message, hint, path)


@rule("AZ515", Level.ERROR)
def output_field_refused(subject: Subject) -> Iterator[Fault]:
    """An output has a field that Azure ML refuses, such as `asset_version`.

    The service answers `Could not find member 'assetVersion'` (recorded March 2026): the API
    version that azure-ai-ml 1.35.2 and cloudtrain send, 2025-01-01-preview, has no such field.
    Remove it: Azure ML numbers the versions of an asset itself. `pathOnCompute` and
    `autoDeleteSetting` of an output come from the same older version.
    """
    reading = read(subject)
    for name, item in reading.body.outputs.items():
        for field, ours in _REFUSED.items():
            if item.get(field) is not None:
                path = reading.place(("outputs", name, field), ("outputs", name, ours))
                message = f"Azure ML refuses `{ours}` of the output `{name}`"
                yield Fault(message, f"remove `{ours}`", path)
