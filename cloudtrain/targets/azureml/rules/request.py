"""The fields that the body of a command job can have, and the accepted values of each field.

The fields come from the models of the REST API in azure-ai-ml 1.35.2 (version 2025-01-01-preview),
plus fields that the SDK's code sends: `parentJobName`, `priority`, `locations`, `maxInstanceCount`
and Ray's fields. The field names are those of the API.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache

from cloudtrain.errors import did_you_mean
from cloudtrain.job.model import overrides_of, value_text
from cloudtrain.plans.plan import Level
from cloudtrain.rules.engine import Fault, Subject, ValuePath, rule
from cloudtrain.targets.azureml.catalogue import DATA
from cloudtrain.targets.azureml.compile.job import RUN_PROPERTY
from cloudtrain.targets.azureml.fields import FIELDS
from cloudtrain.targets.azureml.reading import OVERRIDES, read
from cloudtrain.targets.common.fields import notices

Schema = Mapping[str, "Schema"] | list[str] | str
"""The schema of a value: of a mapping with fixed keys, or with keys that the user chooses (`*`),
such as `tags`; the texts that it can be, in upper or lower case; or a kind of plain values, as
messages name it. Another rule checks `""`.
"""

_TEXT = "a text"
_WHOLE = "a whole number"
_MATCHES = {_TEXT: str, _WHOLE: int, "`true` or `false`": bool, "a list": list | tuple}


@cache
def body_schema() -> Mapping[str, Schema]:
    schema: Mapping[str, Schema] = json.loads((DATA / "body.json").read_text("utf-8"))
    return schema


def violations(
    value: object, schema: Schema, path: ValuePath = (OVERRIDES,)
) -> Iterator[tuple[bool, Fault]]:
    """Yield the fields and values that the API does not accept, in the order of the fields of
    `value`, each with whether the API has no such field. `path` is the path of the override that
    can set `value`."""
    shown = f"`{'.'.join(map(str, path[1:]))}`"
    if isinstance(schema, Mapping) and isinstance(value, Mapping):
        for name, item in value.items():
            inner = schema.get("*", schema.get(name))
            if inner is not None:
                yield from violations(item, inner, (*path, name))
            else:
                where = shown if path[1:] else "a job"
                message = f"{where} has no field `{name}` in Azure ML's API"
                near = did_you_mean(name.replace("_", ""), schema)
                # the service may read `Limits` as `limits`: another value than was checked
                is_spelt_otherwise = name.casefold() in map(str.casefold, schema)
                yield not is_spelt_otherwise, Fault(message, near, (*path, name))
    elif isinstance(schema, list):
        if not isinstance(value, str) or value.casefold() not in map(str.casefold, schema):
            message = f"{shown} cannot be `{value}`"
            yield False, Fault(message, did_you_mean(str(value), schema), path)
    elif schema and not _matches(value, schema):
        kind = "a mapping `{FIELD: VALUE}`" if isinstance(schema, Mapping) else schema
        is_number = kind == _TEXT and isinstance(value, int | float)
        text = value_text(value)
        hint = f'write `"{text}"`' if is_number else f"write {kind}"
        yield False, Fault(f"{shown} must be {kind}, not `{text}`", hint, path)


def _matches(value: object, kind: object) -> bool:
    if kind == _WHOLE and isinstance(value, bool):
        return False
    return isinstance(kind, str) and isinstance(value, _MATCHES[kind])


# Rules about the body of an Azure ML job as a whole: fields and values that the API lacks, and its
# limits.

_MOST_TAGS = 50
_LONGEST_KEY = 100
_LONGEST_VALUE = 1000


_LENGTHS = {
    "displayName": (256, "display_name", ()),
    "experimentName": (256, "experiment", ("name",)),
    "description": (5000, "description", ("description",)),
}
"""Maps each field of the body to its limit, the name that users know, and the job's field."""

_EXPERIMENT = r"[a-zA-Z0-9][a-zA-Z0-9_-]*"

_MOST_FILES = 2000


@rule("AZ111", Level.ERROR)
def refused_by_service(subject: Subject) -> Iterator[Fault]:
    """`azureml_overrides` sets a value that Azure ML's API does not accept.

    Examples are a number instead of a string, or an unknown distribution, mode or identity. The SDK
    sends most such values unchecked, for example numbers in `tags` (azure-ai-ml 1.35.2), and the
    service answers with `UserError`. cloudtrain checks the values against the REST API's models
    (2025-01-01-preview).
    """
    yield from _violations(subject, unknown=False)


@rule("AZ112", Level.WARNING)
def unknown_field(subject: Subject) -> Iterator[Fault]:
    """`azureml_overrides` sets a field that Azure ML's API does not have.

    Fields of the body have the names of the REST API: `shmSize`, not `shm_size`. The SDK silently
    drops an unknown field of a distribution (azure-ai-ml 1.35.2). This is a warning, because the
    field may be newer than the API version that cloudtrain knows (2025-01-01-preview).
    """
    yield from _violations(subject, unknown=True)


def _violations(subject: Subject, *, unknown: bool) -> Iterator[Fault]:
    if overrides_of(subject.job, "azureml"):  # without overrides, typed models write every field
        found = violations(read(subject).body.properties, body_schema())
        yield from (fault for is_unknown, fault in found if is_unknown is unknown)


@rule("AZ113", Level.ERROR)
def identity_overridden(subject: Subject) -> Iterator[Fault]:
    """`azureml_overrides` changes or removes the property by which cloudtrain recognises its own
    job.

    The property `cloudtrain.run` contains the run's name. Without it, cloudtrain could not
    distinguish an interrupted submission from another job of the same name, and you could not
    follow, stop or download the run.
    """
    reading = read(subject)
    value = reading.body.mapping("properties").get(RUN_PROPERTY)
    if value != subject.plan.run_name:
        message = (
            f"the overrides change the property `{RUN_PROPERTY}`, by which cloudtrain "
            "recognises its own job"
        )
        hint = f"remove `{RUN_PROPERTY}` from `azureml_overrides.properties`"
        path = reading.place(("properties", RUN_PROPERTY), (OVERRIDES, "properties"))
        yield Fault(message, hint, path)


@rule("AZ114", Level.ERROR)
def tags_over_limit(subject: Subject) -> Iterator[Fault]:
    """The job has too many tags or properties, or a key or value is too long.

    A job has at most 50 tags and 50 properties; a key has at most 100 characters and a value 1,000
    (Azure ML documentation, service limits, 2025-02-05).
    """
    reading = read(subject)
    for field in ("tags", "properties"):
        pairs = reading.body.mapping(field)
        if len(pairs) > _MOST_TAGS:
            message = f"the job has {len(pairs)} {field}, but Azure ML accepts at most {_MOST_TAGS}"
            hint = f"remove {len(pairs) - _MOST_TAGS} of them"
            yield Fault(message, hint, reading.place((field,), (field,)))
        for key, value in pairs.items():
            path = reading.place((field, key), (field, key))
            if not 0 < len(key) <= _LONGEST_KEY:
                message = (
                    f"the key `{key[:20]}` of the {field} has {len(key)} characters; a key has 1 "
                    f"to {_LONGEST_KEY}"
                )
                yield Fault(message, "write another key", path)
            if isinstance(value, str) and len(value) > _LONGEST_VALUE:
                message = (
                    f"`{key[:40]}` of the {field} has {len(value):,} characters; the limit is "
                    f"{_LONGEST_VALUE:,}"
                )
                hint = "shorten it, or write it into a file in the source folder"
                yield Fault(message, hint, path)


@rule("AZ115", Level.ERROR)
def text_too_long(subject: Subject) -> Iterator[Fault]:
    """A name or the description is too long.

    Display name and experiment have at most 256 characters, the description 5,000 (Azure ML
    documentation, service limits, 2025-02-05).
    """
    reading = read(subject)
    for name, (most, word, field) in _LENGTHS.items():
        length = len(reading.body.text(name))
        if length > most:
            is_setting = word == "experiment" and subject.settings.experiment
            path = reading.place((name,), () if is_setting else field)
            message = f"`{word}` has {length:,} characters, but Azure ML accepts at most {most:,}"
            yield Fault(message, f"shorten it to {most:,} characters", path)


@rule("AZ116", Level.WARNING)
def experiment_name(subject: Subject) -> Iterator[Fault]:
    """The experiment's name has characters that Azure ML may refuse.

    Names of experiments are letters, digits, `_` and `-`, with a letter or a digit first
    (azureml-core, `Experiment`; version 2 of the SDK does not check them). Without `experiment`,
    cloudtrain uses the job's name, which is always valid.
    """
    reading = read(subject)
    name = reading.body.text("experimentName")
    if name and not re.fullmatch(_EXPERIMENT, name):
        better = re.sub(r"[^a-zA-Z0-9_-]+", "-", name).strip("-_") or "NAME"
        message = f"Azure ML may not take `{name}` as the name of an experiment"
        hint = f'write `experiment = "{better}"` under `[azureml]`'
        yield Fault(message, hint, reading.place(("experimentName",)))


@rule("AZ117", Level.NOTICE)
def without_effect(subject: Subject) -> Iterator[Fault]:
    """A field of the job has no effect on Azure ML.

    `volume_size`: the VM size determines the disk. `max_wait`: nothing limits how long a serverless
    job waits for spot capacity. `metrics`: Azure ML reads no metrics from the log; record them with
    MLflow, which is set up in every job. `python`: a curated environment has a fixed Python
    version. `gpus_per_instance` and `interconnect`: an instance type that the job names determines
    them. `base`, and the inputs' `channel`, `data_type` and `instance_groups`: only SageMaker has
    them.
    """
    yield from notices(subject, FIELDS)


@rule("AZ118", Level.WARNING)
def many_files(subject: Subject) -> Iterator[Fault]:
    """The bundle has more files than Azure ML's documented limit for a job's code.

    The documented limit of a code snapshot is 2,000 files and 300 MB (Azure ML documentation,
    version 1; the documentation of version 2 names no limit). Each file is uploaded separately, and
    copied to every instance. CT302 checks the size.
    """
    count = sum(upload.file_count for upload in subject.plan.uploads if upload.kind == "code")
    if count > _MOST_FILES:
        message = (
            f"the bundle has {count:,} files; Azure ML's documented limit for a job's code is "
            f"{_MOST_FILES:,}"
        )
        hint = "leave out what the script does not need, with `.cloudtrainignore`"
        yield Fault(message, hint, ("source_dir",))


@rule("AZ119", Level.ERROR)
def too_many_places(subject: Subject) -> Iterator[Fault]:
    """The job has more inputs or outputs than Azure ML allows.

    A job has at most 200 inputs and 20 outputs (Azure ML documentation, service limits, 2025-02-05:
    input and output data sets of a run).
    """
    for field, most in (("inputs", 200), ("outputs", 20)):
        count = len(read(subject).body.mapping(field))
        if count > most:
            message = f"the job has {count} {field}, but Azure ML accepts at most {most}"
            hint = "put several into one folder, and name only the folder in the job"
            yield Fault(message, hint, (field,))
