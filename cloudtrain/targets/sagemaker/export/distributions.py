"""Convert hyperparameters to the `distribution` argument of SDK version 2, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cloudtrain.documents.document import load_table
from cloudtrain.rules.engine import text_at, value_at
from cloudtrain.runtime.sagemaker_launcher import CODE_CHANNEL, LAUNCH_KEY
from cloudtrain.runtime.torchrun_words import is_module
from cloudtrain.targets.common.export import Call, Fields
from cloudtrain.targets.sagemaker import request as keys
from cloudtrain.targets.sagemaker.compile.places import ISOLATED_BUNDLE, code_channel
from cloudtrain.targets.sagemaker.fields import (
    ALGORITHM,
    CHANNEL_FIELDS,
    CHANNELS,
    ISOLATION,
    NAME,
    PARAMETERS,
)
from cloudtrain.targets.sagemaker.reading import Start
from cloudtrain.targets.sagemaker.request import (
    GROUPS,
    INSTANCE_TYPE,
    MIRRORED,
    MODEL_PARALLEL,
    MPI,
    MPI_OPTIONS,
    PARAMETER_SERVER,
    PROCESSES,
    SMDDP,
    SMDDP_OPTIONS,
    TORCH,
    JsonMapping,
    JsonObject,
    only,
    without,
    without_nulls,
)

SDK_TABLES = load_table(__file__, "sdk.toml")
"""The names that both versions of the SDK have for the fields of a request."""

KEYS = (
    TORCH, MPI, PROCESSES, MPI_OPTIONS, SMDDP, SMDDP_OPTIONS, MODEL_PARALLEL, PARAMETER_SERVER,
    MIRRORED, GROUPS,
    INSTANCE_TYPE,
)  # fmt: skip
"""All hyperparameters into which the SDK can turn a `distribution`."""


@dataclass(frozen=True)
class Setting:
    """Properties of a job that influence how the SDK turns a `distribution` into
    hyperparameters."""

    framework: str
    """`pytorch`, `tensorflow` or `huggingface`."""
    instance_type: str | None
    """None for a heterogeneous cluster."""
    groups: Mapping[str, str]
    """Maps each instance group to its type, in the request's order; empty for a homogeneous
    cluster."""
    entry_point: str
    image_uri: str = ""
    """The estimator's argument `image_uri`; empty if the estimator gets a version instead."""
    version: str | None = None
    """The framework's version, if the estimator gets one."""
    debugger: bool = False
    """Whether the request turns the debugger on."""

    @property
    def types(self) -> tuple[str, ...]:
        if self.instance_type is not None:
            return (self.instance_type,)
        return tuple(self.groups.values())


def distribution_of(values: JsonMapping) -> JsonObject:
    """Return the `distribution` that a user would write for these hyperparameters.

    Its item `instance_groups` holds the names of groups instead of the SDK's group objects.
    """
    distribution: JsonObject = {}
    if values.get(TORCH) is True:
        distribution["torch_distributed"] = {"enabled": True}
    if MPI in values:
        options = values.get(MPI_OPTIONS)
        count = values.get(PROCESSES)
        distribution["mpi"] = _without_empty(
            enabled=values[MPI], processes_per_host=count, custom_mpi_options=options
        )
    if values.get(SMDDP) is True:
        options = _without_empty(enabled=True, custom_mpi_options=values.get(SMDDP_OPTIONS))
        distribution["smdistributed"] = {"dataparallel": options}
    elif SMDDP in values and (MODEL_PARALLEL in values or TORCH in values):
        library = _without_empty(enabled=True, parameters=values.get(MODEL_PARALLEL))
        distribution["smdistributed"] = {"modelparallel": library}
    elif SMDDP in values:
        distribution["smdistributed"] = {"dataparallel": {"enabled": False}}
    if PARAMETER_SERVER in values:
        distribution["parameter_server"] = {"enabled": values[PARAMETER_SERVER]}
    if MIRRORED in values:
        distribution["multi_worker_mirrored_strategy"] = {"enabled": values[MIRRORED]}
    if distribution and values.get(GROUPS):  # an empty value counts as missing, as in the toolkit
        distribution["instance_groups"] = list(values[GROUPS])
    return distribution


def sdk_hyperparameters(distribution: JsonMapping, setting: Setting) -> JsonObject:
    """Return the hyperparameters that the SDK (2.257.7) would send for a distribution."""
    torch = distribution.get("torch_distributed", {}).get("enabled", False)
    if setting.framework == "tensorflow" or not torch:
        return _basic(distribution, setting)
    with_library = setting.framework == "pytorch" and "smdistributed" in distribution
    hyperparameters = _basic(distribution, setting) if with_library else {}
    hyperparameters[TORCH] = True
    if setting.instance_type is not None:
        hyperparameters[INSTANCE_TYPE] = setting.instance_type
    return hyperparameters


def _basic(distribution: JsonMapping, setting: Setting) -> JsonObject:
    """Return the hyperparameters that the SDK's `Framework._distribution_configuration` returns."""
    hyperparameters: JsonObject = {}
    groups = _groups(distribution, setting)
    if groups:
        hyperparameters[GROUPS] = groups
    if "parameter_server" in distribution:
        hyperparameters[PARAMETER_SERVER] = distribution["parameter_server"]["enabled"]
    if "mpi" in distribution:
        mpi = distribution["mpi"]
        hyperparameters[MPI] = mpi["enabled"]
        if mpi.get("processes_per_host"):
            hyperparameters[PROCESSES] = mpi["processes_per_host"]
        hyperparameters[MPI_OPTIONS] = mpi.get("custom_mpi_options", "")
    if "smdistributed" in distribution:
        hyperparameters |= _library(distribution["smdistributed"], setting)
    if "multi_worker_mirrored_strategy" in distribution:
        hyperparameters[MIRRORED] = distribution["multi_worker_mirrored_strategy"]["enabled"]
    return hyperparameters


def _library(library: JsonMapping, setting: Setting) -> JsonObject:
    """Return the hyperparameters that the SDK sends for `smdistributed`."""
    hyperparameters: JsonObject = {}
    parameters = library.get("modelparallel", {}).get("parameters")
    if parameters:
        hyperparameters[MODEL_PARALLEL] = parameters
    data_parallel = library.get("dataparallel", {})
    enabled = data_parallel.get("enabled", False)
    hyperparameters[SMDDP] = enabled
    hyperparameters[INSTANCE_TYPE] = setting.instance_type
    if enabled:
        hyperparameters[SMDDP_OPTIONS] = data_parallel.get("custom_mpi_options", "")
    return hyperparameters


def _groups(distribution: JsonMapping, setting: Setting) -> list[str]:
    """Return the names of the instance groups that the SDK uses for a distribution.

    If the cluster has a single group, this is always that group, even if the distribution does not
    name it.
    """
    if distribution and len(setting.groups) == 1:
        return list(setting.groups)
    return list(distribution.get("instance_groups", ()))


VERSIONS = {name: frozenset(versions.split()) for name, versions in SDK_TABLES["versions"].items()}
"""Versions of a framework for which the SDK accepts a distribution if no image is given."""

_NO_SMDISTRIBUTED = "2.0.1-gpu-py310-cu121"
"""Part of the only image URI that the SDK refuses for smdistributed without torch_distributed."""


def objection(distribution: JsonMapping, values: JsonMapping, setting: Setting) -> str | None:
    """Explain why the SDK refuses a distribution or does not send exactly `values`; None if it
    sends them."""
    for reason in _REFUSALS:
        refusal = reason(distribution, setting)
        if refusal is not None:
            return refusal
    for name, value in sdk_hyperparameters(distribution, setting).items():
        if name not in values:
            return f"it would add `{name}`"
        if values[name] != value:
            return f"it would set `{name}` to `{json.dumps(value)}`"
    return None


def _is_on(distribution: JsonMapping, *names: str) -> bool:
    """Return whether a strategy, such as `mpi` or `smdistributed` `dataparallel`, is enabled."""
    return bool(value_at(distribution, *names, "enabled"))


def _groups_refusal(distribution: JsonMapping, setting: Setting) -> str | None:
    """Return why the SDK refuses a distribution, as all functions in `_REFUSALS` do; None if it
    accepts this part of it."""
    names = distribution.get("instance_groups", ())
    for name in names:
        if name not in setting.groups:
            return f"the job has no instance group `{name}`"
    if len(setting.groups) > 1 and len(names) != 1:
        count = len(names) or "all"
        return f"it takes exactly one instance group for a distribution, and here are {count}"

    is_only_torch = "torch_distributed" in distribution and "smdistributed" not in distribution
    by_mpi = _is_on(distribution, "mpi")
    by_smddp = _is_on(distribution, "smdistributed", "dataparallel")
    if setting.groups and not (is_only_torch or by_mpi or by_smddp):
        return "it takes instance groups only with `mpi` and `smdistributed.dataparallel`"
    return None


def _types(distribution: JsonMapping, setting: Setting) -> Iterable[str]:
    """Return the instance types that a distribution spans."""
    if setting.instance_type is not None:
        return (setting.instance_type,)
    names = _groups(distribution, setting)
    return [setting.groups[name] for name in names if name in setting.groups]


def _torch_refusal(distribution: JsonMapping, setting: Setting) -> str | None:
    if "torch_distributed" not in distribution or setting.framework == "tensorflow":
        return None
    if not setting.entry_point.endswith(".py"):
        return "it takes `torch_distributed` only with a Python entry point"
    if setting.image_uri:
        return None
    for name in _types(distribution, setting):
        if not name.startswith(("ml.p", "ml.g")):
            return "it takes `torch_distributed` without an image only on GPU instances"
    if setting.version not in VERSIONS["torch_distributed"]:
        return f"it does not take `torch_distributed` with version {setting.version}"
    return None


def _library_refusal(distribution: JsonMapping, setting: Setting) -> str | None:
    if "smdistributed" not in distribution:
        return None
    of_tensorflow = setting.framework == "tensorflow"
    if "torch_distributed" in distribution and not of_tensorflow:
        return None
    if any("p5.48xlarge" in name for name in setting.types):
        return "it refuses smdistributed on p5 instances"
    if _NO_SMDISTRIBUTED in setting.image_uri:
        return "it refuses smdistributed with this image"
    if setting.image_uri or not _is_on(distribution, "smdistributed", "dataparallel"):
        return None
    if setting.version in VERSIONS["smddp_tensorflow" if of_tensorflow else "smddp_pytorch"]:
        return None
    return f"it does not take `smdistributed.dataparallel` with version {setting.version}"


def _mirrored_refusal(distribution: JsonMapping, setting: Setting) -> str | None:
    if not _is_on(distribution, "multi_worker_mirrored_strategy"):
        return None
    if setting.framework != "tensorflow":
        return "it takes `multi_worker_mirrored_strategy` only for TensorFlow"
    version = (setting.version or "0").split(".")
    if tuple(map(int, version[:2])) < (2, 9):
        return "it takes `multi_worker_mirrored_strategy` only with a version from 2.9 on"
    if distribution.keys() & {"smdistributed", "parameter_server"}:
        return "it does not take `multi_worker_mirrored_strategy` together with another strategy"
    return None


def _job_refusal(distribution: JsonMapping, setting: Setting) -> str | None:
    has_trainium = any(name.startswith("ml.trn") for name in _types(distribution, setting))
    if has_trainium and list(distribution) != ["torch_distributed"]:
        return "it takes only `torch_distributed` on Trainium"
    of_tensorflow = setting.framework == "tensorflow"
    if of_tensorflow and setting.debugger and _is_on(distribution, "parameter_server"):
        return "it turns the debugger off beside parameter servers"
    return None


_REFUSALS: tuple[Callable[[JsonMapping, Setting], str | None], ...] = (
    _groups_refusal,
    _torch_refusal,
    _library_refusal,
    _mirrored_refusal,
    _job_refusal,
)


def _without_empty(**values: Any) -> JsonObject:
    return {name: value for name, value in values.items() if value not in (None, "", {})}


# Turn the channels of a request into the argument `inputs` of `fit`, a method of SDK version 2's
# estimators.

_DEFAULTS = {"distribution": "FullyReplicated", "s3_data_type": "S3Prefix"}
_OF_FILE_SYSTEM = ("FileSystemId", "FileSystemType", "DirectoryPath", "FileSystemAccessMode")


def fit_inputs(channels: list[JsonObject]) -> tuple[JsonObject, list[str]]:
    """Return the argument `inputs` of `fit`, by channel name, and the paths of fields that `fit`
    cannot express."""
    inputs: JsonObject = {}
    left: list[str] = []
    for number, channel in enumerate(channels):
        fields = Fields(channel)
        name = fields.take("ChannelName")
        if "FileSystemDataSource" in channel["DataSource"]:
            inputs[name] = _file_system(fields)
        else:
            inputs[name] = _s3(fields)
        for path in fields.remaining_paths():
            left.append(f"{CHANNELS}[{number}].{path}")
    return inputs, left


def _file_system(fields: Fields) -> Call:
    """Return the SDK's object for a channel from a file system, and take its fields."""
    arguments = {}
    for name in _OF_FILE_SYSTEM:
        arguments[snake_case(name)] = fields.take(f"DataSource.FileSystemDataSource.{name}")
    arguments["content_type"] = fields.take("ContentType")
    return Call("sagemaker.inputs.FileSystemInput", without_nulls(arguments))


def _s3(fields: Fields) -> Call | str:
    """Return the SDK's object for a channel from S3, or its address alone, and take its fields."""
    arguments = {}
    for field in CHANNEL_FIELDS:
        value = fields.take(field.request) if field.word else None
        if value is not None:
            arguments[field.word] = value
    seed = fields.take("ShuffleConfig.Seed")
    if seed is not None:
        arguments["shuffle_config"] = Call("sagemaker.inputs.ShuffleConfig", {"seed": seed})
    # the SDK would add a missing one: `left` reports it
    if "distribution" in arguments:
        for name, default in _DEFAULTS.items():
            if arguments.get(name) == default:
                del arguments[name]
    if set(arguments) == {"s3_data"}:
        return str(arguments["s3_data"])
    return Call("sagemaker.inputs.TrainingInput", arguments)


_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
"""Where a name in camel case such as `S3Uri` has an underscore in snake case, `s3_uri`."""


def snake_case(name: str) -> str:
    return _WORD_START.sub("_", name).lower()


# Split a request's hyperparameters into two groups: those that the SDK adds to run a script, and
# the user's own.


@dataclass(frozen=True)
class ToolkitScript:
    """The script that the container's toolkit starts, the address of its code, and the other
    hyperparameters.

    `channels` are the user's channels, without the code channel that the SDK adds to a
    network-isolated job.
    """

    entry_point: str
    source_dir: str
    log_level: int
    values: JsonObject
    channels: list[JsonObject]


def script_of(request: JsonObject, region: str) -> ToolkitScript | None:
    """Return the script of a request; None if the SDK's estimator for scripts would not send this
    request."""
    if "ContainerEntrypoint" in request[ALGORITHM]:
        return None
    values: JsonObject = {}
    for name, text in request.get(PARAMETERS, {}).items():
        try:
            values[name] = json.loads(text)
        except ValueError:
            return None
        # the SDK's encoder would write it differently
        if json.dumps(values[name]) != text:
            return None

    channels = list(request.get(CHANNELS, ()))
    program = values.pop(keys.PROGRAM, None)
    place = values.pop(keys.SUBMIT_DIRECTORY, None)
    level = values.pop(keys.LOG_LEVEL, None)
    job_name = values.pop(keys.JOB_NAME, None)
    if job_name != request[NAME] or values.pop(keys.REGION, None) != region:
        return None
    if not isinstance(program, str) or not isinstance(level, int):
        return None

    if request.get(ISOLATION) is not True:
        if not isinstance(place, str) or not place.startswith("s3://"):
            return None
        return ToolkitScript(program, place, level, values, channels)

    # the code must be in the channel that the SDK adds to a network-isolated job
    last = channels.pop() if channels else {}
    archive = text_at(last, "DataSource", "S3DataSource", "S3Uri")
    if place != ISOLATED_BUNDLE or last != code_channel(archive, (), "download"):
        return None
    return ToolkitScript(program, archive, level, values, channels)


# Read the started program from the hyperparameters of the training toolkit or of cloudtrain's
# launcher.


@dataclass(frozen=True)
class StartedScript:
    """The program that a request starts."""

    launcher: str
    """`torchrun`, `mpirun`, `single`, or the name of the hyperparameter that selects another
    launcher."""
    archive: str
    channels: list[JsonObject]
    """All channels except the code channel."""
    hyperparameters: dict[str, str]
    """The script's hyperparameters, as text from the request."""
    entry_point: str | None = None
    """The script; None for a command."""
    command: str | None = None
    processes: int | None = None
    """The processes of each instance; None for one per GPU."""
    mpi_options: str = ""
    model_parallel: JsonObject | None = None
    requirements: str | None = None
    groups: tuple[str, ...] = ()


def start_of(request: JsonObject, region: str) -> StartedScript | None:
    """Return the program that a request starts; None without code that the toolkit or cloudtrain's
    launcher starts."""
    if LAUNCH_KEY in request.get(PARAMETERS, {}):
        return _by_our_launcher(request)
    script = script_of(request, region)
    if script is None:
        return None
    values = script.values
    return StartedScript(
        launcher=_launcher(request, values),
        archive=script.source_dir,
        channels=script.channels,
        hyperparameters=only(request[PARAMETERS], without(values, KEYS)),
        entry_point=script.entry_point,
        processes=values.get(keys.PROCESSES),
        mpi_options=values.get(keys.MPI_OPTIONS, ""),
        model_parallel=values.get(keys.MODEL_PARALLEL),
        groups=tuple(values.get(keys.GROUPS, ())),
    )


def _launcher(request: JsonObject, values: JsonObject) -> str:
    """Return the toolkit's launcher; one that only the toolkit supports, as the name of its
    hyperparameter."""
    launcher = Start.of(request).asked
    if launcher == keys.TORCH:
        return "torchrun"
    if launcher in (None, keys.MPI) and (keys.MODEL_PARALLEL in values or keys.SMDDP in values):
        return keys.MODEL_PARALLEL
    return {None: "single", keys.MPI: "mpirun"}.get(launcher, str(launcher))


def _by_our_launcher(request: JsonObject) -> StartedScript | None:
    """Return the program that cloudtrain's launcher starts; None without a code channel."""
    launch = json.loads(request[PARAMETERS][LAUNCH_KEY])
    channels = {channel["ChannelName"]: channel for channel in request.get(CHANNELS, [])}
    code = channels.pop(CODE_CHANNEL, None)
    if code is None:
        return None

    launcher = launch["launcher"]
    # version 3's drivers pass only hyperparameters, and start only files
    needs_our_launcher = "arguments" in launch or is_module(launch.get("entry_point") or "")
    if needs_our_launcher or launcher not in ("torchrun", "mpirun", "single"):
        launcher = LAUNCH_KEY
    return StartedScript(
        launcher=launcher,
        archive=code["DataSource"]["S3DataSource"]["S3Uri"],
        channels=list(channels.values()),
        hyperparameters=without(request[PARAMETERS], {LAUNCH_KEY}),
        processes=launch.get("processes_per_instance"),
        groups=tuple(launch.get("instance_groups", ())),
        **only(launch, ("entry_point", "command", "mpi_options", "requirements")),
    )
