"""The fields of a job on Azure ML: where each stands in the body of `PUT jobs/NAME`, what
azure-ai-ml 1.35.2 calls it in its YAML and its Python objects, and how it is coded.

Compiling, reading, adoption and export all follow the table `FIELDS`. Its order is that of the
body.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.documents import JsonMapping as JsonMapping
from cloudtrain.documents import JsonObject as JsonObject
from cloudtrain.targets.common.fields import (
    ADDED_PROPERTY,
    COUNT,
    FLAG,
    SAME,
    TEXT,
    TEXTS,
    Codec,
    Field,
    Inexpressible,
    NoEffect,
    Refused,
    each,
    only,
    values_set,
    words,
)

if TYPE_CHECKING:
    from cloudtrain.job.training import TrainingJob
    from cloudtrain.rules.engine import Subject, ValuePath
    from cloudtrain.targets.azureml.settings import AzureML

# Keys of the body that other modules name.

JOB_TYPE = "jobType"
CODE = "codeId"
COMPUTE = "computeId"
ENVIRONMENT = "environmentId"
VARIABLES = "environmentVariables"
DISPLAY_NAME = "displayName"
EXPERIMENT = "experimentName"
QUEUE = "queueSettings"
NOTIFICATIONS = "notificationSetting"
ARCHIVED = "isArchived"

# Durations (ISO 8601: days, hours, minutes and whole seconds, such as `PT1M30S`) and sizes.

_UNITS = (86_400, 3_600, 60, 1)
_DURATION = r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?"


def duration_text(seconds: int) -> str:
    """Return an ISO 8601 duration in its largest units: `P1DT2H`."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)

    date = f"{days}D" if days else ""
    text = f"P{date}T"
    for number, unit in ((hour, "H"), (minute, "M"), (second, "S")):
        if number:
            text += f"{number}{unit}"
    return text.removesuffix("T")


def duration_seconds(text: str) -> int | None:
    """Return the seconds of an ISO 8601 duration; None if the text is not one."""
    match = re.fullmatch(_DURATION, text)
    if match is None:
        return None
    numbers = map(int, match.groups(default="0"))
    return sum(number * unit for number, unit in zip(numbers, _UNITS, strict=True))


def _seconds(value: object) -> int:
    seconds = duration_seconds(str(value))
    if seconds is None:
        raise Inexpressible("")
    return seconds


def _size_text(size: int) -> str:
    """Return a size in bytes as docker writes it, in the largest exact unit: `64g`, `512m`,
    `1000b`."""
    for unit, bits in (("g", 30), ("m", 20), ("k", 10)):
        if size % (1 << bits) == 0:
            return f"{size >> bits}{unit}"
    return f"{size}b"


def camel(name: str) -> str:
    """Return `dashboard_port` as the API writes it: `dashboardPort`."""
    return re.sub("_(.)", lambda match: match[1].upper(), name)


# The words of the job and its settings for values of the body.

INPUT_MODES = {
    "ReadOnlyMount": ("mount", "ro"),
    "ReadWriteMount": ("mount", "rw"),
    "Download": ("download", "ro"),
    "Direct": ("direct", "ro"),
    "EvalMount": ("eval_mount", "ro"),
    "EvalDownload": ("eval_download", "ro"),
}
"""Maps each mode of an input to the job's `mode` and `access`."""

_SERVICES = {
    "SSH": "ssh",
    "TensorBoard": "tensor_board",
    "JupyterLab": "jupyter_lab",
    "VSCode": "vs_code",
}
_DISTRIBUTIONS = {"PyTorch": "pytorch", "Mpi": "mpi", "TensorFlow": "tensorflow", "Ray": "ray"}
_DATA = ("uri_file", "uri_folder", "mltable", "mlflow_model", "custom_model", "triton_model")
_EVENTS = {"JobCompleted": "completed", "JobFailed": "failed", "JobCancelled": "cancelled"}
_BODY_EVENTS = {name: event for event, name in _EVENTS.items()}

KINDS = {kind.casefold(): kind for kind in _DISTRIBUTIONS}
"""Maps each type of distribution in lower case to the API's spelling."""

MODES = {
    "ReadOnlyMount": "ro_mount",
    "ReadWriteMount": "rw_mount",
    "Download": "download",
    "Direct": "direct",
    "EvalMount": "eval_mount",
    "EvalDownload": "eval_download",
}
"""Maps each mode of an input to the SDK's word."""

LITERAL = "literal"
"""The kind of inputs that are plain values."""


def _listed(value: object) -> list[Any]:
    """Encode a tuple of texts. A setting that is one text has a row of its own."""
    if not isinstance(value, tuple):
        raise Inexpressible("")
    return list(value)


def _events(value: Any) -> list[str]:
    """Decode the events of notifications: all of them for an empty list."""
    return [_EVENTS[event] for event in value or _EVENTS if event in _EVENTS]


SECONDS = Codec(_seconds, duration_text)
_LIST = Codec(SAME.decode, _listed)
_FILLED = only(lambda value: type(value) is str and value != "")
_SIZE = Codec(_FILLED.decode, _size_text)
_EVERY = {"nodesValueType": "All"}


def _nodes(word: object) -> Codec:
    """The only choice of instances for a service is all of them; `word` stands for it."""

    def decode(nodes: object) -> object:
        if nodes != _EVERY:
            raise Inexpressible("")
        return word

    def encode(value: object) -> object:
        if value != word:
            raise Inexpressible("")
        return dict(_EVERY)

    return Codec(decode, encode)


_ALL = _nodes(True)
_NODES = _nodes("all")
_TIER_NAMES = words({"Basic": "basic", "Standard": "standard", "Premium": "premium"})
_TIERS = Codec(lambda tier: _TIER_NAMES.decode(str(tier).capitalize()), _TIER_NAMES.encode)
_PRIORITY_NAMES = {1: "low", 2: "medium", 3: "high"}
_PRIORITIES = words(_PRIORITY_NAMES)
OUTPUT_MODES = words(
    {"Mount": "mount", "ReadWriteMount": "mount", "Upload": "upload", "Direct": "direct"}
)
IDENTITIES = words({"UserIdentity": "user", "Managed": "managed", "AMLToken": "aml_token"})
EVENTS = Codec(_events, lambda names: [_BODY_EVENTS[name] for name in names])
SERVICES = Codec(lambda kind: _SERVICES.get(kind, kind), words(_SERVICES).encode)

# The words of azure-ai-ml.


def _names(table: Mapping[Any, str], synonyms: Mapping[str, str] = {}) -> Codec:
    """Look up the SDK's words. In job files, upper and lower case are the same, and there are
    `synonyms`."""
    codec = words(table)

    def encode(word: object) -> object:
        name = str(word).lower()
        return synonyms.get(name) or codec.encode(name)

    return Codec(codec.decode, encode)


def _label(value: object) -> str:
    """Shorten an id with the label `latest` to `mine@latest`."""
    text: str = TEXT.decode(value)
    return re.sub(r"^/subscriptions/.*/(.*)/labels/latest$", r"\1@latest", text)


def _is_id(value: object) -> bool:
    """azure-ai-ml sends complete ids and short names of curated environments unchanged, and
    resolves the label for an asset's newest version as `cloudtrain submit` does. For other texts,
    it would look something up or upload something before it sends the job."""
    starts = ("/subscriptions/", "azureml://", "azureml:AzureML-")
    return type(value) is str and value.startswith(starts)


def _is_timeout(value: object) -> bool:
    """Return whether azure-ai-ml writes the duration in the same way."""
    seconds = duration_seconds(value) if type(value) is str else None
    return bool(seconds and duration_text(seconds) == value)


_PLACE = Codec(_label, SAME.encode)
_ID = Codec(only(_is_id, _PLACE).decode, SAME.encode)
# `local` would start the job on the user's own machine.
_COMPUTE = only(lambda value: type(value) is str and value not in ("", "local"))
_TIMEOUT = only(_is_timeout, SECONDS)
_SDK_TIERS = _names(
    {tier: tier.lower() for tier in ("Spot", "Basic", "Standard", "Premium", "Null")}
)
_SDK_PRIORITIES = _names(_PRIORITY_NAMES)
_SDK_IDENTITIES = _names(
    {"Managed": "managed_identity", "UserIdentity": "user_identity", "AMLToken": "aml_token"},
    {"user": "UserIdentity", "managed": "Managed", "amltoken": "AMLToken"},
)
_MODES_IN_FILES = {word: mode for mode, word in MODES.items()}
_MODES_IN_FILES |= {"mount": "ReadWriteMount", "upload": "Upload"}
_SDK_INPUT_MODES = _names(MODES, _MODES_IN_FILES)
_SDK_OUTPUT_MODES = _names(
    {"ReadWriteMount": "rw_mount", "Upload": "upload", "Direct": "direct"}, _MODES_IN_FILES
)
_KIND_OF_DATA = only(lambda kind: kind in (*_DATA, LITERAL))

# Conditions of effects.


def _has_other_gpus(subject: Subject) -> bool:
    """Return whether the job expects another number of GPUs than its instance type has. The right
    number may be there for targets without instance types."""
    resources = subject.job.resources
    if resources.instance_type is None:
        return False
    known = subject.reading.machines.groups[0].known
    return known is None or known.gpus != resources.gpus_per_instance


def _names_one_instance(subject: Subject) -> bool:
    """Return whether the job names the type of its only instance. For several instances, rules ask
    whether the network is what the job wants."""
    resources = subject.job.resources
    return resources.instance_type is not None and resources.instance_count == 1


def _is_curated(subject: Subject) -> bool:
    environment = subject.job.environment
    return bool(environment.framework) and not environment.requirements


_IN_COMMAND = (
    "entry_point", "hyperparameters", "arguments", "bare_flags", "distribution.launcher_options",
    "environment.requirements", "environment.groups", "environment.extras", "environment.secrets",
)  # fmt: skip
_IN_ENVIRONMENT = (
    "azureml", "framework", "version", "conda_file", "build", "dockerfile", "asset_name",
    "asset_version", "description", "tags",
)  # fmt: skip
_IN_VARIABLES = (
    "distribution.options", "checkpoint.keep", "stop_when_stalled", "tracking.wandb",
    "tracking.tensorboard",
)  # fmt: skip
_OF_SMP = ("mpi_options", "version", "parameters")
"""Fields that share what the request has there, or what reports them."""

ONLY_SAGEMAKER = (
    "shard", "content_type", "compression", "record_wrapper", "attribute_names", "shuffle_seed",
)  # fmt: skip
"""Fields of an input that the body lacks. The rule AZ505 reports them."""

FIELDS: tuple[Field, ...] = (
    Field("", JOB_TYPE),
    Field("settings.display_name", DISPLAY_NAME, "display_name", _FILLED, tool=TEXT),
    Field("settings.experiment", EXPERIMENT, "experiment_name", _FILLED, tool=TEXT),
    Field("name", EXPERIMENT, codec=None),
    Field("description", "description", "description", tool=TEXT),
    Field("command", "command", "command", tool=TEXT),
    *(Field(name, "command", codec=None) for name in _IN_COMMAND),
    Field("", "parentJobName", "parent_job_name", tool=TEXT),
    Field("source_dir", CODE, "code", None, tool=_ID),
    Field("environment.image", ENVIRONMENT, "environment", None, tool=_ID),
    *(Field(f"environment.{name}", ENVIRONMENT, codec=None) for name in _IN_ENVIRONMENT),
    Field("settings.compute", COMPUTE, "compute", None, tool=_COMPUTE),
    # Who starts the processes.
    Field(
        "distribution.type",
        "distribution.distributionType",
        "distribution.type",
        None,
        tool=_names(_DISTRIBUTIONS),
    ),
    Field(
        "distribution.processes_per_instance",
        "distribution.processCountPerInstance",
        "distribution.process_count_per_instance",
        None,
        tool=COUNT,
    ),
    Field(
        "distribution.parameter_servers",
        "distribution.parameterServerCount",
        "distribution.parameter_server_count",
        None,
        tool=COUNT,
    ),
    Field(
        "distribution.workers",
        "distribution.workerCount",
        "distribution.worker_count",
        None,
        tool=COUNT,
    ),
    Field("distribution.strategy", "distribution.parameterServerCount", codec=None),
    Field("distribution.launch", "distribution.distributionType", codec=None),
    Field("distribution.port", "distribution.port", "distribution.port", tool=COUNT),
    Field("distribution.address", "distribution.address", "distribution.address", tool=TEXT),
    Field(
        "distribution.include_dashboard",
        "distribution.includeDashboard",
        "distribution.include_dashboard",
        tool=FLAG,
    ),
    Field(
        "distribution.dashboard_port",
        "distribution.dashboardPort",
        "distribution.dashboard_port",
        tool=COUNT,
    ),
    Field(
        "distribution.head_node_additional_args",
        "distribution.headNodeAdditionalArgs",
        "distribution.head_node_additional_args",
        tool=TEXT,
    ),
    Field(
        "distribution.worker_node_additional_args",
        "distribution.workerNodeAdditionalArgs",
        "distribution.worker_node_additional_args",
        tool=TEXT,
    ),
    *(Field(f"distribution.{name}", effect=Refused("CT030")) for name in _OF_SMP),
    Field("distribution.added_property", effect=ADDED_PROPERTY),
    # Machines and limits.
    Field(
        "resources.instance_count",
        "resources.instanceCount",
        "resources.instance_count",
        tool=COUNT,
    ),
    Field("", "resources.properties", "resources.properties"),
    Field(
        "resources.instance_type",
        "resources.instanceType",
        "resources.instance_type",
        None,
        tool=TEXT,
    ),
    Field("resources.gpu", "resources.instanceType", codec=None),
    Field("settings.locations", "resources.locations", "resources.locations", _LIST, tool=TEXTS),
    Field(
        "settings.max_instance_count",
        "resources.maxInstanceCount",
        "resources.max_instance_count",
        tool=COUNT,
    ),
    Field("resources.shm_size", "resources.shmSize", "resources.shm_size", _SIZE, tool=TEXT),
    Field("settings.docker_args", "resources.dockerArgs", "resources.docker_args", TEXT, tool=TEXT),
    Field(
        "settings.docker_args",
        "resources.dockerArgsList",
        "resources.docker_args",
        _LIST,
        tool=TEXTS,
    ),
    Field("", "limits.jobLimitsType"),
    Field("max_runtime", "limits.timeout", "limits.timeout", SECONDS, tool=_TIMEOUT),
    Field("capacity.alternatives"),
    Field("capacity.wait"),
    Field("capacity.give_up_after"),
    Field("spot", "queueSettings.jobTier", "queue_settings.job_tier", None, tool=_SDK_TIERS),
    Field("settings.job_tier", "queueSettings.jobTier", codec=_TIERS),
    Field(
        "settings.priority",
        "queueSettings.priority",
        "queue_settings.priority",
        _PRIORITIES,
        tool=_SDK_PRIORITIES,
    ),
    Field(
        "settings.identity",
        "identity.identityType",
        "identity.type",
        IDENTITIES,
        tool=_SDK_IDENTITIES,
    ),
    Field(
        "settings.managed_identity_client_id",
        "identity.clientId",
        "identity.client_id",
        _FILLED,
        tool=TEXT,
    ),
    Field("", "identity.objectId", "identity.object_id", tool=TEXT),
    Field("settings.managed_identity_resource_id", "identity.resourceId", codec=_FILLED),
    Field("settings.notifications.on", "notificationSetting.emailOn", codec=EVENTS),
    Field("settings.notifications.emails", "notificationSetting.emails", codec=_LIST),
    Field(
        "settings.services.*.type",
        "services.*.jobServiceType",
        "services.*.type",
        SERVICES,
        tool=_names(_SERVICES),
    ),
    Field(
        "settings.services.*.all_instances",
        "services.*.nodes",
        "services.*.nodes",
        _ALL,
        tool=_NODES,
    ),
    Field("", "services.*.port", "services.*.port", tool=COUNT),
    Field("", "services.*.properties", "services.*.properties", tool=each(TEXT)),
    Field("settings.services.*.ssh_public_key", "services.*.properties.sshPublicKeys"),
    Field("settings.services.*.log_dir", "services.*.properties.logDir"),
    # The data of the job.
    Field("inputs.*.type", "inputs.*.jobInputType", "inputs.*.type", None, tool=_KIND_OF_DATA),
    Field("inputs.*.azureml", "inputs.*.uri", "inputs.*.path", None, tool=_PLACE),
    Field("inputs.*.mode", "inputs.*.mode", "inputs.*.mode", None, tool=_SDK_INPUT_MODES),
    Field("inputs.*.access", "inputs.*.mode", codec=None),
    Field("inputs.*.value", "inputs.*.value", "inputs.*.value", None, tool=TEXT),
    Field("outputs.*.type", "outputs.*.jobOutputType", "outputs.*.type", tool=_KIND_OF_DATA),
    Field(
        "outputs.*.mode",
        "outputs.*.mode",
        "outputs.*.mode",
        OUTPUT_MODES,
        tool=_SDK_OUTPUT_MODES,
    ),
    Field("outputs.*.azureml", "outputs.*.uri", "outputs.*.path", tool=TEXT),
    Field("outputs.*.asset_name", "outputs.*.assetName", "outputs.*.name", tool=TEXT),
    Field("outputs.*.asset_version", "outputs.*.assetVersion", "outputs.*.version", tool=TEXT),
    Field("checkpoint", "outputs.checkpoint", codec=None),
    Field("checkpoint.azureml", "outputs.checkpoint", codec=None),
    Field("environment.variables.*", f"{VARIABLES}.*", "environment_variables.*", None),
    *(Field(name, VARIABLES, codec=None) for name in _IN_VARIABLES),
    Field("", "properties.*", "properties.*", tool=TEXT),
    Field("tags.*", "tags.*", "tags.*", TEXT, tool=TEXT),
    Field("", ARCHIVED),
    Field("azureml_overrides", codec=None),
    # What Azure ML does not have.
    Field(
        "resources.instance_groups",
        effect=Refused("CT031", "use `instance_type` and `instance_count`"),
    ),
    Field("resources.distribution_groups", effect=Refused("CT031", "remove it")),
    Field(
        "resources.instance_preferences",
        effect=Refused(
            "CT031", "name one `instance_type`, and further regions in the target's `locations`"
        ),
    ),
    Field(
        "resources.volume_size",
        effect=NoEffect(
            "the instance type determines the disk",
            "remove `volume_size`, and use a type with a larger disk or read the data with "
            "`mode: mount`",
        ),
    ),
    Field(
        "resources.gpus_per_instance",
        "resources.instanceType",
        codec=None,
        effect=NoEffect(
            "the instance type determines the number of GPUs",
            "remove `gpus_per_instance`, or name a `gpu` instead of the `instance_type`",
            when=_has_other_gpus,
        ),
    ),
    Field(
        "resources.interconnect",
        "resources.instanceType",
        codec=None,
        effect=NoEffect(
            "the instance type determines the network",
            "remove `interconnect`, or name a `gpu` instead of the `instance_type`",
            when=_names_one_instance,
        ),
    ),
    Field(
        "spot.max_wait",
        effect=NoEffect(
            "Azure ML waits for spot capacity without a limit",
            "stop the job with `cloudtrain stop` if it waits for too long",
        ),
    ),
    Field(
        "stop_when_idle",
        effect=NoEffect("Azure ML does not look at the GPUs of a job", "set `max_runtime`"),
    ),
    Field(
        "tracking.mlflow",
        effect=NoEffect(
            "the service sets the tracking URI of the workspace in every job",
            "log with `mlflow` as it is, or set `MLFLOW_TRACKING_URI` in the script",
        ),
    ),
    Field(
        "metrics",
        effect=NoEffect(
            "Azure ML reads no metrics from the log",
            "log them in the script: `mlflow.log_metric(NAME, VALUE)`",
            so="`{name}` are not sent",
        ),
    ),
    Field(
        "environment.python",
        effect=NoEffect(
            "the curated environment has its own Python",
            "name an environment with `azureml`, or an `image`, to choose the version",
            so="`{name}: {value}` has no effect",
            when=_is_curated,
        ),
    ),
    Field(
        "environment.base",
        effect=NoEffect(
            "Azure ML has no environments for Hugging Face by their base",
            "name an environment with `azureml`, or an `image`, that holds it",
        ),
    ),
    Field(
        "inputs.*.channel",
        effect=NoEffect(
            "Azure ML finds an input by its name",
            "rename the input, if the script needs another name",
        ),
    ),
    Field(
        "inputs.*.data_type",
        effect=NoEffect(
            "Azure ML reads no manifests of S3",
            "name the folder with the data, or an `mltable` that lists it",
        ),
    ),
    Field(
        "inputs.*.instance_groups",
        effect=NoEffect(
            "Azure ML has no instance groups",
            "remove `instance_groups`: every instance gets the input",
        ),
    ),
    *(Field(f"inputs.*.{name}", effect=Refused("AZ505")) for name in ONLY_SAGEMAKER),
)
"""Several rows may have the same request path; the first one says what the request has there."""

USUAL: JsonMapping = {
    JOB_TYPE: "Command",
    "limits.jobLimitsType": "Command",
    "resources.properties": {},
    "inputs": {},
    "outputs": {},
    VARIABLES: {},
    "properties": {},
    "tags": {},
    ARCHIVED: False,
}
"""What azure-ai-ml writes by itself, where its YAML says nothing."""

_REQUIRED = (
    DISPLAY_NAME, EXPERIMENT, "command", ENVIRONMENT, "limits.timeout", "inputs.*.uri",
    "inputs.*.value", "distribution.parameterServerCount", *USUAL,
)  # fmt: skip
"""What azure-ai-ml requires, or fills in if it is missing."""

_KEYS_OF_KIND: Mapping[str, tuple[str, ...]] = {
    "PyTorch": ("processCountPerInstance",),
    "Mpi": ("processCountPerInstance",),
    "TensorFlow": ("parameterServerCount", "workerCount"),
    "Ray": (
        "port", "dashboardPort", "address", "headNodeAdditionalArgs", "workerNodeAdditionalArgs",
        "includeDashboard",
    ),
    "Managed": ("clientId", "objectId"),
    "UserIdentity": (),
    "AMLToken": (),
    **dict.fromkeys(_DATA, ("uri", "mode", "assetName", "assetVersion")),
    LITERAL: ("value",),
}  # fmt: skip
"""The fields that the SDK's class for a kind has. The services of all kinds have the same."""


_SERVICE_SETTINGS = {"sshPublicKeys": "ssh_public_keys", "logDir": "log_dir"}
"""Maps the properties of services to the SDK's words, which exist for one property of a kind."""

_SETTING_OF_SERVICE = {"ssh": "sshPublicKeys", "tensor_board": "logDir"}

_RENAMED = {
    "aisupercomputer": "AISuperComputer",
    "singularity": "AISuperComputer",
    "itp": "itp",
    "target_selector": "target_selector",
}
"""Properties of resources that the SDK rewrites in its own spelling."""


# Write a body from a job, and read a job from a body.


def sent(job: TrainingJob, settings: AzureML) -> JsonObject:
    """Return the `properties` of a body as far as the table makes them."""
    body = _usual_of("")
    for field, codec in _coded_fields():
        source = field.job.removeprefix("settings.")
        model = job if field.job == source else settings
        for path, value in values_set(model, source):
            with suppress(Inexpressible):
                _put(body, _renamed(path, source, field.request), codec.encode(value))
    return body


def _coded_fields() -> Iterator[tuple[Field, Codec]]:
    """Yield the rows whose values the table alone turns into the request's, and back."""
    for field in FIELDS:
        if field.job and field.request and field.codec is not None:
            yield field, field.codec


def in_order(body: JsonMapping) -> JsonObject:
    """Return the `properties` of a body in the order of the table, without those that are None."""
    ordered: JsonObject = {}
    for field in FIELDS:
        key = field.request.partition(".")[0]
        if body.get(key) is not None:
            ordered[key] = body[key]
    return ordered


def read_fields(properties: JsonMapping) -> JsonObject:
    """Return what the table reads from the `properties` of a body: the fields of a job, and under
    `settings` those of the target. Values that a job cannot express are left out."""
    job: JsonObject = {"settings": {}}
    for field, codec in _coded_fields():
        for path, value in _values_at(properties, field.request):
            with suppress(Inexpressible):
                _put(job, _renamed(path, field.request, field.job), codec.decode(value))
    return job


def _values_at(value: object, dotted: str) -> Iterator[tuple[ValuePath, Any]]:
    """Yield path and value of what a body has at a path of the table, other than None."""
    if not dotted:
        if value is not None:
            yield (), value
        return
    if not isinstance(value, Mapping):
        return
    name, _, rest = dotted.partition(".")
    keys = value if name == "*" else (name,)
    for key in keys:
        for path, inner in _values_at(value.get(key), rest):
            yield (key, *path), inner


def _renamed(path: ValuePath, source: str, target: str) -> list[str]:
    """Return the path at `target` for the `path` at `source`, with the same name for the `*`."""
    names = target.split(".")
    for part, name in zip(source.split("."), path, strict=True):
        if part == "*":
            names[names.index("*")] = str(name)
    return names


def _put(target: JsonObject, path: Sequence[str], value: object) -> None:
    """Set the value at a path, and make the mappings above it that are missing."""
    *parents, name = path
    for parent in parents:
        target = target.setdefault(parent, {})
    target[name] = value


def _usual_of(path: str) -> JsonObject:
    """Return what azure-ai-ml itself writes into the part of a body at `path`."""
    usual = {}
    for request, value in USUAL.items():
        key = request.removeprefix(path)
        if request.startswith(path) and "." not in key:
            usual[key] = copy(value)
    return usual


# The body in the words of azure-ai-ml. Its parts are coded as the rows below them say.


@cache
def tool_codec() -> Codec:
    """Return the codec between the `properties` of a body and the fields that azure-ai-ml's YAML
    and Python objects share.

    Decoding raises `Inexpressible` for a body that azure-ai-ml cannot express. Encoding is lenient:
    words and values that the table does not know are sent as they are.
    """
    return _part("")


def _part(path: str) -> Codec:
    """Return the codec of the part of a body at `path`, which is empty or ends with a dot."""
    depth = path.count(".")
    rows: dict[str, _Row] = {}
    for field in FIELDS:
        key, dot, _ = field.request.removeprefix(path).partition(".")
        if field.word and field.request.startswith(path) and key not in rows:
            codec = _part(f"{path}{key}.") if dot else field.tool
            rows[key] = _Row(field.word.split(".")[depth], codec)

    if "*" in rows:
        # azure-ai-ml would leave an empty mapping out
        return only(lambda value: value != {}, each(rows["*"].codec))
    record = _Record(path, rows)
    codec = Codec(record.decode, record.encode)
    if path in _EXTENSIONS:
        codec = _EXTENSIONS[path](codec)
    return codec


class _Row(NamedTuple):
    """The SDK's word for a key of the body, and the codec of the value."""

    word: str
    codec: Codec


_UNKNOWN = _Row("", only(lambda _: False))


class _Record(NamedTuple):
    """A part of the body with fixed keys."""

    path: str
    """Where it stands in the body: empty, or ending with a dot."""
    rows: Mapping[str, _Row]

    def decode(self, value: Any) -> JsonObject:
        """What azure-ai-ml writes by itself is left out. Raises `Inexpressible` with all fields
        that it would drop, add or change."""
        fields = _mapping(value)
        usual = _usual_of(self.path)
        known = self.rows.keys() | usual.keys()
        result: JsonObject = {}
        kind_key = self.keys_of_words().get("type")
        if kind_key is not None:
            kind = fields.get(kind_key)
            result["type"] = _decode_at(kind_key, self.rows[kind_key].codec, kind)
            known &= {*_KEYS_OF_KIND.get(kind, known)}  # an object of a kind has fewer fields

        wrong: list[str] = []
        absent = known - fields.keys()
        for request in _REQUIRED:
            key = request.removeprefix(self.path)
            if request.startswith(self.path) and key in absent:
                wrong.append(f"{key} left out")

        for key, item in fields.items():
            if key == kind_key or (key in usual and _is_same(item, usual[key])):
                continue
            row = self.rows.get(key, _UNKNOWN) if key in known else _UNKNOWN
            try:
                result[row.word] = _decode_at(key, row.codec, item)
            except Inexpressible as error:
                wrong += error.paths

        if wrong:
            raise Inexpressible(*wrong)
        if not fields:  # the SDK would leave it out
            raise Inexpressible("")
        return result

    def encode(self, value: Any) -> JsonObject:
        """Words and values without an equivalent are sent as they are."""
        body = _usual_of(self.path)
        key_of = self.keys_of_words()
        for word, item in _mapping(value).items():
            key = key_of.get(word) or camel(str(word))
            row = self.rows.get(key, _UNKNOWN)
            body[key] = item
            with suppress(Inexpressible):
                body[key] = row.codec.encode(item)
        return body

    def keys_of_words(self) -> dict[str, str]:
        """Map each word to the first key that has it."""
        keys: dict[str, str] = {}
        for key, row in self.rows.items():
            keys.setdefault(row.word, key)
        return keys


def _is_same(value: object, usual: object) -> bool:
    return type(value) is type(usual) and bool(value == usual)


def _decode_at(key: str, codec: Codec, value: object) -> object:
    try:
        return codec.decode(value)
    except Inexpressible as error:
        raise Inexpressible(*error.below(key)) from None


_mapping = only(lambda value: isinstance(value, Mapping)).decode


def _literals(part: Codec) -> Codec:
    """An input that is a plain value has no fields in the SDK's words."""

    def decode(value: object) -> object:
        fields = part.decode(value)
        return fields["value"] if fields["type"] == LITERAL else fields

    def encode(value: object) -> object:
        is_literal = not isinstance(value, Mapping)
        return part.encode({"type": LITERAL, "value": value} if is_literal else value)

    return Codec(decode, encode)


def _services(part: Codec) -> Codec:
    """The SDK has a word of its own for the only property of some kinds of services."""

    def decode(value: object) -> object:
        service = part.decode(value)
        properties = service.get("properties", {})
        setting = _SETTING_OF_SERVICE.get(service["type"], "")
        if list(properties) == [setting] and properties[setting]:
            del service["properties"]
            service[_SERVICE_SETTINGS[setting]] = properties[setting]
        return service

    def encode(value: object) -> object:
        fields = {**_mapping(value)}
        properties = {**_mapping(fields.pop("properties", {}))}
        for setting, word in _SERVICE_SETTINGS.items():
            if word in fields:
                properties.setdefault(setting, fields.pop(word))
        if properties:
            fields["properties"] = properties
        return part.encode(fields)

    return Codec(decode, encode)


def _resources(part: Codec) -> Codec:
    """The SDK loses two fields beside a list of docker arguments, and renames properties."""

    def decode(value: Any) -> object:
        resources = part.decode(value)
        wrong: list[str] = []
        for name in ("locations", "maxInstanceCount"):
            if "dockerArgsList" in value and name in value:
                wrong.append(f"{name} beside dockerArgsList")
        for name in _mapping(value["properties"]):
            if _RENAMED.get(name.lower(), name) != name:
                wrong.append(f"properties.{name}")
        if wrong:
            raise Inexpressible(*wrong)
        return resources

    def encode(value: object) -> object:
        body = part.encode(value)
        if isinstance(body.get("dockerArgs"), list):
            body["dockerArgsList"] = body.pop("dockerArgs")
        properties = {}
        for name, item in _mapping(body["properties"]).items():
            properties[_RENAMED.get(name.lower(), name)] = item
        return {**body, "properties": properties}

    return Codec(decode, encode)


_EXTENSIONS = {"inputs.*.": _literals, "services.*.": _services, "resources.": _resources}
