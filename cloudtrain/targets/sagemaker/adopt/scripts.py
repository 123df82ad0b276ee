"""Read the request that a script was about to send, and insert the account number of the job's
role."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path as File
from typing import Any

from cloudtrain.documents.document import Unreadable, read_text
from cloudtrain.plans.comparison import ValuePath, overrides_between
from cloudtrain.plans.plan import CompileContext, Plan, map_texts
from cloudtrain.rules.engine import mapping_at, plural, rows_at
from cloudtrain.rules.values import secret_texts
from cloudtrain.system.files import expand_home
from cloudtrain.targets.adoption import UNREAD, Comparable, Original, draft_context
from cloudtrain.targets.sagemaker.adopt.hook import ACCOUNT
from cloudtrain.targets.sagemaker.adopt.jobs import code_uri, drafts_of, is_of_one_run
from cloudtrain.targets.sagemaker.adopt.requests import OF_SEARCH, flat, originals_in
from cloudtrain.targets.sagemaker.adopt.trainers import (
    CODE,
    DRIVERS,
    RENEWED_BY_START,
    START,
    WHY_STARTED,
    Changed,
    Objects,
    below,
    code_of,
    covers,
    filled,
    idle_instances,
    is_trainer,
    lost_in_code,
    place_of,
    started_by_drivers,
    started_by_us,
    with_start,
)
from cloudtrain.targets.sagemaker.compile.places import CHECKPOINT_DIR, CHECKPOINT_VARIABLE
from cloudtrain.targets.sagemaker.export.distributions import SDK_TABLES
from cloudtrain.targets.sagemaker.fields import (
    ALGORITHM,
    CHANNELS,
    CHECKPOINT,
    ENCRYPTION,
    ISOLATION,
    LIMITS,
    MACHINES,
    NAME,
    OUTPUT,
    PARAMETERS,
    SPOT,
    TAGS,
    VARIABLES,
)
from cloudtrain.targets.sagemaker.plan import RUN_TAG
from cloudtrain.targets.sagemaker.reading import DEFAULT_MAX_RUNTIME
from cloudtrain.targets.sagemaker.request import (
    JOB_NAME,
    ROWS,
    RUN_NAME,
    SUBMIT_DIRECTORY,
    JsonMapping,
    JsonObject,
    rows_by_name,
    without,
)
from cloudtrain.targets.sagemaker.settings import (
    REGION,
    SageMaker,
    account_id,
    account_of,
    regions_of_profiles,
)


def with_code(original: Original, objects: Objects) -> tuple[Original, bytes | None]:
    """Return the job and its code, read from S3 objects.

    If version 3's drivers start the job, the returned job also describes the program that they
    start. The code is None if `objects` lack it, or if a driver is missing or changed.
    """
    request = original.request
    if not is_trainer(request):
        return original, objects.get(code_uri(request) or "")
    try:
        start = started_by_drivers(request, objects)
    except Changed as error:
        return replace(original, lost={**original.lost, CHANNELS: f"{error}"}), None
    code = code_of(request, objects)
    lost = {**original.lost, **idle_instances(start, request), **lost_in_code(code, start)}
    return replace(original, start=start, lost=lost), code


_ADDRESS = re.compile(r's3://[^/"\\\s]+/[^"\\\s]+')

_WRITTEN = re.compile(r'"S3OutputPath": "[^"]*"')
"""Matches the places in a request that the job writes to, and does not read."""


def with_uploads(original: Original, objects: Objects) -> Original:
    """Return the job with the uploads of its script, `objects`, besides its code. Uploads that the
    job reads and that no input can hold are lost."""
    request = original.request
    code = [code_uri(request) or ""]
    if is_trainer(request):
        code += [place_of(request, CODE), place_of(request, DRIVERS)]
    uploads = dict(sorted(objects.items()))
    for place in objects:
        if _covered(place, code):
            del uploads[place]
    data_types: dict[str, Any] = {}
    for row in rows_at(request, CHANNELS):
        source = mapping_at(row, "DataSource", "S3DataSource")
        if "S3Uri" in source:
            data_types[source["S3Uri"]] = source.get("S3DataType")
    text = _WRITTEN.sub("", json.dumps(request))

    inputs: dict[str, dict[str, bytes]] = {}
    lost: dict[str, str] = {}
    addresses = dict.fromkeys((*data_types, *_ADDRESS.findall(text)))
    for address in addresses:
        files = below(address, uploads)
        # an input needs the content of every file, and cannot be a manifest
        if files and all(files.values()) and data_types.get(address) == "S3Prefix":
            inputs[address] = files
        elif files:
            lost[address] = (
                f"the script uploads {plural(len(files), 'file')} to it, and the job does not: "
                "copy what it needs there"
            )

    others = [place for place in uploads if not _covered(place, addresses)]
    lost = {**original.lost, **lost}
    return replace(original, uploads=inputs, lost=lost, other_uploads=tuple(others))


def _covered(place: str, addresses: Iterable[str]) -> bool:
    return any(covers(address, place) for address in addresses)


# The SageMaker part of `cloudtrain adopt`.

_CODE = "(the code's own place)"
_DATA = "(data of this machine)"

_KEYS = "aws_access_key_id = AKIAIOSFODNN7EXAMPLE\naws_secret_access_key = none\n"
"""Keys that are not valid, for profiles that a script names."""

_Renewed = Iterator[tuple[str, str]]
"""Fields that a request loses before it is compared, each with the reason."""


class SageMakerAdopter:
    """Adopts CreateTrainingJob requests, and documents that contain such requests."""

    originals = staticmethod(originals_in)
    drafts = staticmethod(drafts_of)

    def context(self, original: Original, settings: SageMaker) -> CompileContext:
        # without the AWS configuration of this machine
        account = account_of(settings, {"HOME": "/nonexistent"})
        return draft_context(original.name, account._replace(overlay=None))

    def comparable(
        self, request: JsonMapping, original: Original, context: CompileContext, plan: Plan | None
    ) -> Comparable:
        """Return the request in a form that can be compared. It omits the run's tag and replaces
        the location of the code with a fixed text. If the drivers of SDK version 3 start the
        original, one description of the program replaces the fields that start the program."""
        is_ours = plan is not None
        training = request
        if "TrainingJobDefinition" in request:
            training = flat(request)
        # a deep copy, because the steps below change it
        form: JsonObject = json.loads(json.dumps(training, default=str))
        if original.search is None:
            form = without(form, OF_SEARCH)

        renewed = [(NAME, "every run gets a name of its own; the original's stands in for it here")]
        renewed += _renew_tags(form, is_ours=is_ours)
        if is_ours:
            renewed += _renew_variables(form)
        renewed += _renew_data(form, original, is_ours=is_ours)
        _drop_defaults(form)

        if original.start is not None:
            start: JsonMapping | None = original.start
            if is_ours:
                start = started_by_us(request, context.account.region)
            form = with_start(form, start)
            renewed += [(name, WHY_STARTED) for name in RENEWED_BY_START]
        parameters = form.get(PARAMETERS, {})
        if original.search is not None and parameters.pop(JOB_NAME, None):
            renewed.append((f"{PARAMETERS}.{JOB_NAME}", "it is the name of the run"))
        renewed += _renew_code(form)

        # the service treats an empty field as missing
        return Comparable(filled(form), tuple(renewed))

    def overrides(self, ours: JsonMapping, theirs: JsonMapping) -> JsonObject:
        """Return the overrides that turn `ours` into `theirs`. None of them removes the run's tag
        or code."""
        overrides = overrides_between(ours, theirs)
        for name, key in ROWS.items():
            our_rows = rows_by_name(ours.get(name), key)
            their_rows = rows_by_name(theirs.get(name), key)
            if name in overrides and our_rows and our_rows.keys() <= their_rows.keys():
                overrides[name] = _changed_rows(our_rows, their_rows, key)
        for name in (TAGS, *OF_SEARCH):
            overrides.pop(name, None)

        channels = json.dumps(overrides.get(CHANNELS))
        by_drivers = overrides.pop(START, None) or START in theirs
        if by_drivers or _CODE in channels or _DATA in channels:
            overrides.pop(CHANNELS, None)
        parameters = overrides.get(PARAMETERS)
        if parameters is not None and parameters.get(SUBMIT_DIRECTORY) == _CODE:
            del parameters[SUBMIT_DIRECTORY]

        name = str(theirs.get(NAME) or RUN_NAME)
        if not is_of_one_run(name):
            return overrides
        named: JsonObject = map_texts(overrides, lambda text: text.replace(name, RUN_NAME))
        return named

    def hook(self) -> str:
        return File(__file__).with_name("hook.py").read_text(encoding="utf-8")

    def home(self, environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
        """Yield the files that the script finds in its home: the AWS profiles and the SDK's
        defaults. Each has a path, a content, and words that say what it is."""
        yield (".aws/config", *_aws_profiles(environ))

        place = _sdk_defaults(environ)
        try:
            text = read_text(place)
        except (OSError, Unreadable):
            return
        clean, has_secrets = _without_secrets(text.splitlines())
        what = f"`{place}`"
        if has_secrets:
            what += " without its secrets"
        yield ".config/sagemaker/config.yaml", clean, what

    def captured(
        self, record: JsonMapping, uploads: Objects
    ) -> tuple[list[Original], bytes | None]:
        """Return the jobs of a script, and their code. If the script asked AWS for its account
        number, the hook answered with a placeholder. The account number of the job's role replaces
        this placeholder."""
        text = json.dumps(record.get("request"))
        role = re.search(r'"RoleArn": "([^"]+)"', text)  # of a tuning job, in its definitions
        owner = account_id(role[1]) if role else None
        if owner is not None and owner != ACCOUNT:
            text = text.replace(ACCOUNT, owner)
            uploads = {place.replace(ACCOUNT, owner): content for place, content in uploads.items()}

        region = record.get("region")
        settings = {"region": region} if isinstance(region, str) else {}
        originals = []
        code = None
        for item in originals_in(json.loads(text), None):
            original, archive = with_code(with_uploads(item, uploads), uploads)
            originals.append(replace(original, settings={**settings, **original.settings}))
            if code is None:
                code = archive
        return originals, code

    def reason(self, path: ValuePath) -> str:
        field = str(path[0]) if path else ""
        return str(SDK_TABLES["reasons"].get(field, "a job cannot say this"))


def _aws_profiles(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return a file with your AWS profiles, whose keys are not valid, and what it is. A profile
    without a region gets one if it is the one in use, because the SDK needs it."""
    regions = regions_of_profiles(environ)
    used = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or regions.get(used)
    what = "your AWS region"
    if not region:
        regions[used] = REGION
        what = f"{REGION}, because you have set no region"

    profiles = []
    for name, own_region in regions.items():
        line = f"region = {own_region}" if own_region else ""
        profiles.append(f'[profile "{name}"]\n{_KEYS}{line}\n')
    return "".join(profiles), what


def _sdk_defaults(environ: Mapping[str, str]) -> File:
    """Return the file with your defaults for the SDK, where the SDK looks for it."""
    home = expand_home(environ.get("HOME") or "~")
    folder = File(environ.get("XDG_CONFIG_HOME") or home / ".config")
    place = File(environ.get("SAGEMAKER_USER_CONFIG_OVERRIDE") or folder / "sagemaker")
    is_file = place.suffix in (".yaml", ".yml")
    return place if is_file else place / "config.yaml"


def _without_secrets(lines: list[str]) -> tuple[str, bool]:
    """Return the lines of a configuration file that hold no secret, and whether some hold one."""
    values = []
    for line in lines:
        key, _, value = line.partition(":")
        values.append(((key.strip(" -"),), value.strip()))
    hidden = secret_texts(values)
    clean = lines
    for secret in hidden:
        clean = [line for line in clean if secret not in line]
    return "\n".join(clean), bool(hidden)


def _changed_rows(
    ours: Mapping[str, JsonMapping], theirs: Mapping[str, JsonMapping], key: str
) -> list[JsonObject]:
    """Return the overrides of rows that have names, each with its name."""
    rows = []
    for name, row in theirs.items():
        changes = overrides_between(ours.get(name, {}), row)
        if changes:
            rows.append({key: name, **changes})
    return rows


# Prepare requests for a comparison: each function changes a form of the request.


def _renew_tags(form: JsonObject, *, is_ours: bool) -> _Renewed:
    """Remove the tag of the run, and the list of tags if no other is in it."""
    for row in form.pop(TAGS, ()):
        if row.get("Key") != RUN_TAG:
            form.setdefault(TAGS, []).append(row)
    if is_ours:
        yield f"{TAGS}.{RUN_TAG}", "the tag makes the run known to cloudtrain"


def _renew_variables(form: JsonObject) -> _Renewed:
    """Remove the variable with the checkpoint folder, which only cloudtrain's requests have."""
    place = form.get(CHECKPOINT, {}).get("LocalPath")
    variables = form.get(VARIABLES, {})
    if place and variables.get(CHECKPOINT_VARIABLE) == place:
        del variables[CHECKPOINT_VARIABLE]
        why = "the runtime reads the place of checkpoints there"
        yield f"{VARIABLES}.{CHECKPOINT_VARIABLE}", why


def _renew_data(form: JsonObject, original: Original, *, is_ours: bool) -> _Renewed:
    """Replace the places of uploaded data by a fixed text."""
    for channel in form.get(CHANNELS, ()):
        source = channel.get("DataSource", {}).get("S3DataSource", {})
        is_upload = is_ours and f"/data/{UNREAD}" in str(source)
        if is_upload or source.get("S3Uri") in original.data:
            source["S3Uri"] = _DATA
            why = "cloudtrain uploads the data under the hash of its content"
            yield f"{CHANNELS}.{channel.get('ChannelName')}", why


def _renew_code(form: JsonObject) -> _Renewed:
    """Replace the place of the code by a fixed text: in the toolkit's hyperparameter, or in the
    code channel of a container without network."""
    why = "cloudtrain uploads the code under the hash of its content"
    parameters = form.get(PARAMETERS, {})
    place = str(parameters.get(SUBMIT_DIRECTORY, "")).strip('"')
    if place.startswith("s3://"):
        parameters[SUBMIT_DIRECTORY] = _CODE
        yield f"{PARAMETERS}.{SUBMIT_DIRECTORY}", why
    elif place:
        for channel in form.get(CHANNELS, ()):
            source = channel.get("DataSource", {}).get("S3DataSource")
            if channel.get("ChannelName") == "code" and source is not None:
                source["S3Uri"] = _CODE
                yield f"{CHANNELS}.code", why


def _drop_defaults(request: JsonObject) -> None:
    """Drop fields that only repeat a default.

    A channel's mode is redundant if it equals the mode of the whole job: version 3 of the SDK
    writes it, version 2 does not. The service's default checkpoint folder is redundant too (API
    reference, CheckpointConfig). One count for all preferred instance types is copied to each type,
    which means the same (ResourceConfig). Descriptions of jobs name the service's defaults, which
    requests leave out (recorded answers of DescribeTrainingJob, API reference).
    """
    _drop(request, dict.fromkeys((SPOT, ISOLATION, ENCRYPTION), False))
    for section, defaults in _DEFAULTS.items():
        _drop(request.get(section, {}), defaults)

    config = request.get(MACHINES, {})
    if config.get("InstancePreferences") and "InstanceCount" in config:
        count = config.pop("InstanceCount")
        config["InstancePreferences"] = [
            {"InstanceCount": count, **row} for row in config["InstancePreferences"]
        ]

    mode = request.get(ALGORITHM, {}).get("TrainingInputMode")
    of_channel = {"InputMode": mode, "CompressionType": "None", "RecordWrapperType": "None"}
    for channel in request.get(CHANNELS, ()):
        _drop(channel, of_channel)
        source = channel.get("DataSource", {}).get("S3DataSource", {})
        _drop(source, {"S3DataDistributionType": "FullyReplicated"})

    for name, key in ROWS.items():  # whose order has no meaning
        request[name] = sorted(request.get(name, ()), key=lambda row: str(row.get(key)))


def _drop(holder: JsonObject, defaults: JsonMapping) -> None:
    """Remove the fields of `holder` that have their default."""
    for name, default in defaults.items():
        if name in holder and holder[name] == default:
            del holder[name]


_DEFAULTS: Mapping[str, JsonMapping] = {
    OUTPUT: {"KmsKeyId": "", "CompressionType": "GZIP"},
    MACHINES: {"VolumeKmsKeyId": ""},
    LIMITS: {"MaxRuntimeInSeconds": DEFAULT_MAX_RUNTIME},
    CHECKPOINT: {"LocalPath": CHECKPOINT_DIR},
}
"""The defaults of the sections of a request."""
