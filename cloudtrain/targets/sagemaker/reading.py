"""What a finished request says: who starts the processes, on which machines, with which image, data
and limits.

Overrides may contain any value. Values of a wrong type count as missing; SM110 reports them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

from cloudtrain.job.data import Checkpoint
from cloudtrain.job.distribution import MPI, SMDDP, SMP, Distribution, NoDistribution, Torch
from cloudtrain.job.model import merged, overrides_of
from cloudtrain.job.training import InstanceGroup, Resources, Spot, TrainingJob
from cloudtrain.machines.choose import MachineGroup, Machines
from cloudtrain.machines.overlay import type_named
from cloudtrain.machines.spending import Use
from cloudtrain.rules.engine import (
    IMAGE,
    KeysOf,
    Reading,
    Subject,
    ValuePath,
    as_written,
    changed_variables,
    checkpoint_at,
    count_in,
    keys_at,
    keys_named,
    mapping_at,
    positive_count,
    rows_at,
    tensorflow_with,
    text_at,
    value_at,
)
from cloudtrain.rules.facts import DataPlace, data_place, split_uri
from cloudtrain.rules.named import framework_of
from cloudtrain.runtime.sagemaker_launcher import LAUNCH_KEY
from cloudtrain.runtime.sagemaker_launcher.arguments import (
    RESERVED_PREFIXES,
    decode_hyperparameters,
)
from cloudtrain.targets.sagemaker import request as keys
from cloudtrain.targets.sagemaker.catalogue.images import (
    Framework,
    Image,
    ImageContents,
    contents_of,
    has_other_toolkit,
    image_of_uri,
)
from cloudtrain.targets.sagemaker.fields import (
    ALGORITHM,
    CHANNELS,
    CHECKPOINT,
    CLUSTER,
    LIMITS,
    MACHINES,
    OUTPUT,
    PARAMETERS,
    SPOT,
    VARIABLES,
    place_of,
)
from cloudtrain.targets.sagemaker.request import JsonMapping, JsonObject, Request, is_entrypoint
from cloudtrain.targets.sagemaker.settings import SageMakerAccount

DEFAULT_MAX_RUNTIME = 86_400
"""Default limit of a job's run in seconds: one day, the default of the SDK and of the service."""

TUNING = "HyperParameterTuningJobConfig"
"""The field that only a tuning job has."""

TUNING_MACHINES = "HyperParameterTuningResourceConfig"

DEFAULT_GROUP = "homogeneousCluster"
"""The service's name for the only group of a job without groups."""

Mode = Literal["toolkit", "entrypoint", "image"]

TRAINING_MODULE = "SAGEMAKER_TRAINING_MODULE"
"""The variable with the function that the toolkit calls:
`sagemaker_pytorch_container.training:main`."""

_FRAMEWORK_OF: dict[str, Framework] = {
    "sagemaker_pytorch_container": "pytorch",
    "sagemaker_tensorflow_container": "tensorflow",
}

OF_THE_JOB = frozenset(
    {
        keys.PROGRAM,
        keys.SUBMIT_DIRECTORY,
        "sagemaker_enable_cloudwatch_metrics",
        keys.REGION,
        keys.LOG_LEVEL,
        keys.JOB_NAME,
        "default_user_module_name",
        "_tuning_objective_metric",
        "sagemaker_s3_output",
    }
)
"""Hyperparameters about the job, which neither the script nor a launcher gets (sagemaker-training's
`params.py`)."""

_ORDER: dict[Framework, tuple[str, ...]] = {
    "pytorch": (keys.MPI, keys.PYTORCH_DDP, keys.TORCH, keys.SMDDP, keys.XLA),
    "tensorflow": (keys.PARAMETER_SERVER, keys.MPI, keys.SMDDP, keys.MIRRORED),
    "generic": (keys.MPI,),
}
"""The hyperparameters that each framework's toolkit reads to choose a launcher, in order of
precedence.

Recorded from sagemaker-training 5.1.1 and 5.1.4, sagemaker-pytorch-training 3.0.0 and
sagemaker-tensorflow-training 20.5.0.
"""


@dataclass(frozen=True, eq=False)
class Start:
    """How a CreateTrainingJob request starts its processes, as the container reads it.

    `container` is the content of the request's image.
    """

    request: Request
    container: ImageContents

    @classmethod
    def of(cls, request: Request, framework: str | None = None) -> Start:
        """Return how a request starts its processes.

        A user's own image is assumed to have the generic toolkit, which supports MPI and single
        processes. For SMDDP or SMP it must be derived from an AWS image: the one of `framework`,
        which is the job's.
        """
        base: Framework | None = None
        if keys.SMDDP in mapping_at(request, PARAMETERS):  # false for SMP
            base = "tensorflow" if framework == "tensorflow" else "pytorch"
        return cls(request, contents_of(image_of(image_in(request)), base))

    @cached_property
    def by(self) -> Mode:
        """Who starts the processes: the image's toolkit, cloudtrain's launcher, or the image's own
        entry point."""
        entrypoint = value_at(self.request, ALGORITHM, "ContainerEntrypoint")
        if entrypoint is None and keys.PROGRAM in self.values:
            return "toolkit"
        if isinstance(entrypoint, list | tuple) and self.launch and is_entrypoint(self.request):
            return "entrypoint"
        return "image"

    @cached_property
    def values(self) -> JsonObject:
        """All hyperparameters, decoded."""
        return decode_hyperparameters(mapping_at(self.request, PARAMETERS))

    @cached_property
    def parameters(self) -> JsonObject:
        """The script's hyperparameters, as the toolkit passes them."""
        own = keys.without(self.values, OF_THE_JOB)
        return {name: value for name, value in own.items() if not name.startswith("sagemaker_")}

    @cached_property
    def settings(self) -> JsonObject:
        """The toolkit's hyperparameters for launchers, whose names begin with `sagemaker_`."""
        return keys.without(self.values, {*self.parameters, *OF_THE_JOB})

    @property
    def launch(self) -> JsonMapping:
        """The hyperparameter of cloudtrain's launcher; empty without one."""
        return mapping_at(self.values, LAUNCH_KEY)

    @property
    def framework(self) -> Framework:
        """The framework whose toolkit runs. SAGEMAKER_TRAINING_MODULE can select another than the
        image's."""
        module = text_at(self.request, VARIABLES, TRAINING_MODULE)
        return _FRAMEWORK_OF.get(module.partition(".")[0], self.container.framework)

    @cached_property
    def key(self) -> str | None:
        """The hyperparameter that selects the toolkit's launcher; None if every host runs the
        script alone.

        Parameter servers need several hosts. The toolkit sets up the workers of
        MultiWorkerMirroredStrategy, but each host runs the script without a launcher.
        """
        hosts = instances_in(mapping_at(self.request, MACHINES)) or 1
        for key in _ORDER[self.framework]:
            if key == keys.PARAMETER_SERVER and hosts == 1:
                continue
            if self.settings.get(key):
                return key
        return None

    @property
    def asked(self) -> str | None:
        """The hyperparameter that asks for a launcher: the one that counts, or else one that the
        toolkit ignores."""
        if self.key is not None:
            return self.key
        return next(filter(self.settings.get, keys.LAUNCHER_KEYS), None)

    def starts(self, launcher: str) -> bool:
        """Return whether the toolkit starts processes for this launcher of a job's distribution."""
        needed = {"torchrun": keys.TORCH, "tensorflow": keys.MIRRORED}.get(launcher)
        return needed is None or needed in _ORDER[self.framework]

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the instance groups that the launcher spans; empty if the request lists
        none."""
        groups = self.launch.get("instance_groups") or self.settings.get(keys.GROUPS)
        if not isinstance(groups, list | tuple):
            return ()
        return tuple(map(str, groups))

    @property
    def processes(self) -> int | None:
        """The number of processes on each host; None for one on each accelerator."""
        if self.launch:
            return count_in(self.launch.get("processes_per_instance"))
        return count_in(self.settings.get(keys.PROCESSES))

    @property
    def options(self) -> str | None:
        """The user's options for mpirun; None if the request has none."""
        if self.launch:
            return text_at(self.launch, "mpi_options") or None
        launcher = self.asked
        if launcher == keys.TORCH and self.settings.get(keys.SMDDP):
            launcher = keys.SMDDP
        options = self.settings.get(_OPTIONS_OF.get(launcher, ""))
        return options if isinstance(options, str) else None

    @cached_property
    def distribution(self) -> Distribution:
        """The distribution that the request asks for. It is not validated."""
        if self.launch:
            return self._by_our_launcher()
        asked = self.asked
        if asked in (keys.PARAMETER_SERVER, keys.MIRRORED):
            return tensorflow_with(asked == keys.PARAMETER_SERVER, None, None)

        library = self.parameters.get(keys.MODEL_PARALLEL)
        count = self.processes
        data_parallel = self.settings.get(keys.SMDDP)
        if asked == keys.MPI and library:
            return _smp(1, count, library)
        if asked in (keys.MPI, keys.PYTORCH_DDP):
            return MPI.model_construct(processes_per_instance=count)
        if asked == keys.SMDDP:
            return SMDDP.model_construct(launch="mpi", processes_per_instance=count)
        if asked != keys.TORCH:
            return _NONE
        if data_parallel:
            return SMDDP.model_construct(launch="torch", processes_per_instance=count)
        if library or data_parallel is False:
            return _smp(2, count, library)
        return Torch.model_construct(processes_per_instance=count)

    def _by_our_launcher(self) -> Distribution:
        """Return the distribution that cloudtrain's launcher starts."""
        launcher = self.launch.get("launcher")
        if launcher == "torchrun":
            return Torch.model_construct(processes_per_instance=self.processes)
        if launcher == "mpirun":
            return MPI.model_construct(processes_per_instance=self.processes)
        if launcher == "tensorflow":
            return tensorflow_with(
                self.launch.get("strategy") == "parameter_server",
                count_in(self.launch.get("parameter_servers")),
                count_in(self.launch.get("workers")),
            )
        return _NONE


def _smp(version: Literal[1, 2], count: int | None, parameters: object) -> SMP:
    """Return the distribution `smp`, without parameters if those of the request are no mapping."""
    return SMP.model_construct(
        version=version,
        processes_per_instance=count,
        parameters=dict(parameters) if isinstance(parameters, Mapping) else {},
    )


_NONE = NoDistribution.model_construct()
_OPTIONS_OF: dict[str | None, str] = {
    keys.MPI: keys.MPI_OPTIONS,
    keys.SMDDP: keys.SMDDP_OPTIONS,
    keys.PYTORCH_DDP: keys.SMDDP_OPTIONS,
}
"""Maps each hyperparameter whose launcher is mpirun to the one with the user's options."""


def distribution_in(job: TrainingJob, start: Start) -> Distribution:
    """Return the distribution that the request starts, close to the job's own wording.

    It is the job's, unless launcher hyperparameters are written by hand: in the overrides or in the
    job.
    """
    by_hand = any(name.startswith(RESERVED_PREFIXES) for name in job.hyperparameters)
    if not by_hand and PARAMETERS not in overrides_of(job, "sagemaker"):
        return job.distribution
    return as_written(job.distribution, start.distribution, options=start.options)


image_of = lru_cache(maxsize=8)(image_of_uri)  # many readers ask for the same image


def image_in(request: Request) -> str:
    """Return the address of the image of a training job; empty if the request has none."""
    return text_at(request, ALGORITHM, "TrainingImage")


# The request, in the words of the job.

_IMAGE = place_of("environment.image")
_MAX_RUNTIME = place_of("max_runtime")
_MAX_WAIT = place_of("spot.max_wait")
_METRICS = place_of("metrics")
_LAUNCH = (PARAMETERS, LAUNCH_KEY)
_OPTIONS = ((PARAMETERS, keys.MPI_OPTIONS), (PARAMETERS, keys.SMDDP_OPTIONS), _LAUNCH)

_OVERRIDDEN: dict[ValuePath, KeysOf] = {
    ("resources", "instance_count"): keys_at(
        (MACHINES, "InstanceCount"),
        (MACHINES, "InstanceGroups"),
        (MACHINES, "InstancePreferences"),
        (*CLUSTER, "InstanceCount"),
        (*CLUSTER, "InstanceGroups"),
        (*CLUSTER, "InstancePreferences"),
    ),
    ("resources", "instance_groups"): keys_at(
        place_of("resources.instance_groups"), place_of("resources.instance_preferences")
    ),
    ("environment", "variables"): keys_named(VARIABLES),
    ("environment", "image"): keys_at(_IMAGE, ("AppSpecification", "ImageUri")),
    ("hyperparameters",): keys_named(PARAMETERS),
    ("distribution", "processes_per_instance"): keys_at((PARAMETERS, keys.PROCESSES), _LAUNCH),
    ("distribution", "options"): keys_at(*_OPTIONS),
    ("distribution", "mpi_options"): keys_at(*_OPTIONS),
    ("max_runtime",): keys_at(_MAX_RUNTIME),
    ("spot",): keys_at(_MAX_WAIT, (SPOT,)),
    ("checkpoint",): keys_at((CHECKPOINT,)),
    ("metrics",): keys_at(_METRICS),
    ("outputs", "model"): keys_at(place_of("settings.output")),
}


class SageMakerReading(Reading):
    """A CreateTrainingJob or CreateProcessingJob request."""

    distribution_key = PARAMETERS
    paths = _OVERRIDDEN

    @cached_property
    def start(self) -> Start:
        return Start.of(self.request, self.job.environment.framework)

    @property
    def image(self) -> Image | None:
        """The image's entry in the catalogue; None for a user's own image."""
        return image_of(image_in(self.request))

    @property
    def has_other_toolkit(self) -> bool:
        """Whether the image is one of AWS's whose toolkit's launchers are not in the catalogue."""
        return has_other_toolkit(image_in(self.request))

    @property
    def image_path(self) -> ValuePath:
        """The path of the job field that names the image, or else its version; empty if the job
        sets neither."""
        path = self.override_of(*_IMAGE)
        if path:
            return path
        for field in ("image", "version"):
            if getattr(self.job.environment, field):
                return ("environment", field)
        return ()

    @property
    def variables(self) -> Mapping[str, str]:
        overrides = self.overrides.get(VARIABLES) if self.request else None
        return changed_variables(self.job, overrides)

    @cached_property
    def parameters(self) -> JsonMapping:
        overrides = self.overrides.get(PARAMETERS)
        if not self.request or not isinstance(overrides, Mapping):
            return self.job.hyperparameters

        # None stays as it is: it removes a hyperparameter
        changes: JsonObject = {}
        texts: dict[str, str] = {}
        for name, value in overrides.items():
            if name.startswith(RESERVED_PREFIXES):
                continue
            changes[name] = value
            if value is not None:
                texts[name] = str(value).replace(keys.RUN_NAME, self.plan.run_name)
        return merged(self.job.hyperparameters, {**changes, **decode_hyperparameters(texts)})

    @cached_property
    def resources(self) -> Resources:
        if not self.changes(MACHINES) and not self.changes(CLUSTER[0]):
            return self.job.resources

        config = mapping_at(self.request, MACHINES) or mapping_at(self.request, *CLUSTER)
        update: JsonObject = {"instance_groups": tuple(_groups_of(config))}
        count = instances_in(config)
        if count is not None:
            update["instance_count"] = count
        return self.job.resources.model_copy(update=update)

    @cached_property
    def distribution(self) -> Distribution:
        if not self.request:
            return self.job.distribution
        return distribution_in(self.job, self.start)

    @property
    def max_runtime(self) -> int | None:
        if not self.changes(*_MAX_RUNTIME):
            return self.job.max_runtime
        return positive_count(value_at(self.request, *_MAX_RUNTIME))

    @property
    def longest_run(self) -> int:
        """The time limit in seconds, which is the service's default if the request has none."""
        return self.seconds("MaxRuntimeInSeconds") or DEFAULT_MAX_RUNTIME

    @cached_property
    def uses(self) -> Sequence[Use]:
        own = self.machines  # which know where the job names them
        bare = tuple(replace(group, path=()) for group in own.groups)
        uses = []
        for use in uses_in(self.request, self.account):
            is_own = use.machines.groups == bare
            uses.append(use._replace(machines=own) if is_own else use)
        return uses

    def seconds(self, name: str) -> int | None:
        """Return the duration `name` from `StoppingCondition` or `ResourceConfig`; None if both
        lack it."""
        for section in (LIMITS, MACHINES):
            value = value_at(self.request, section, name)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        return None

    @property
    def spot(self) -> Spot | None:
        if not self.changes(SPOT) and not self.changes(LIMITS):
            return self.job.spot
        if self.request.get(SPOT) is not True:
            return None
        return Spot.model_construct(max_wait=positive_count(value_at(self.request, *_MAX_WAIT)))

    @property
    def checkpoint(self) -> Checkpoint | None:
        if not self.changes(CHECKPOINT):
            return self.job.checkpoint
        return checkpoint_at(self.target, value_at(self.request, CHECKPOINT, "S3Uri"))

    @property
    def metrics(self) -> Mapping[str, str]:
        if not self.changes(*_METRICS):
            return self.job.metrics
        metrics = {}
        for row in rows_at(self.request, *_METRICS):
            pattern = row.get("Regex")
            if isinstance(pattern, str):
                metrics[str(row.get("Name"))] = pattern
        return metrics

    @cached_property
    def machines(self) -> Machines:
        """The machines of the request; no machines for a serverless job."""
        machines = machines_in(mapping_at(self.request, *self._config), self.account)
        groups = []
        for index, group in enumerate(machines.groups):
            groups.append(replace(group, path=self._type_path(machines.kind, index)))

        spans: tuple[str, ...] = ()
        if machines.kind == "groups":
            spans = self.start.groups
            if self.start.by == "image":  # the request names no groups for a launcher
                spans = self.job.resources.distribution_groups
        return replace(machines, groups=tuple(groups), spans=spans)

    @property
    def _config(self) -> tuple[str, ...]:
        """The path of the machines in the request."""
        return (MACHINES,) if self.processing is None else CLUSTER

    def _type_path(self, kind: str, index: int) -> ValuePath:
        """Return the path of the job field with an instance type. `index` is that of the group or
        preference."""
        if kind == "type":
            field = "instance_type" if self.job.resources.instance_type else "gpu"
            return self.override_of(*self._config, "InstanceType") or ("resources", field)
        key = "InstanceGroups" if kind == "groups" else "InstancePreferences"
        if path := self.override_of(*self._config, key):
            return (*path, index, "InstanceType")
        if kind == "groups":
            return ("resources", "instance_groups", index, "instance_type")
        return ("resources", "instance_preferences", index)

    @property
    def framework(self) -> str | None:
        """The framework of the image, or for a user's own image the framework in its name; None if
        unknown."""
        if self.image is None:
            return framework_of(image_in(self.request))
        return self.image.engine[0]

    @cached_property
    def places(self) -> Sequence[DataPlace]:
        places = []
        uris = self._uris_of_training()
        if self.processing is not None:
            uris = self._uris_of_processing()
        for kind, name, uri, path in uris:
            if isinstance(uri, str):
                places.append(data_place(kind, name, uri, split_uri(uri), path))
        return places

    def input_of(self, channel: object) -> str | None:
        """Return the name of the job's input for a channel; None if the channel is not from an
        input."""
        for name, item in self.job.inputs.items():
            if (item.channel or name) == channel:
                return name
        return None

    def _uris_of_processing(self) -> Iterator[tuple[str, str, object, ValuePath]]:
        """Yield the kind, name, address and path in the job of each place of the request, also of
        missing ones."""
        for item in rows_at(self.request, "ProcessingInputs"):
            name = str(item.get("InputName"))
            if name in self.job.inputs:
                uri = value_at(item, "S3Input", "S3Uri")
                yield "input", name, uri, ("inputs", name, self.target)
        for item in rows_at(self.request, "ProcessingOutputConfig", "Outputs"):
            name = str(item.get("OutputName"))
            uri = value_at(item, "S3Output", "S3Uri")
            yield "output", name, uri, ("outputs", name, self.target)

    def _uris_of_training(self) -> Iterator[tuple[str, str, object, ValuePath]]:
        for item in rows_at(self.request, CHANNELS):
            input_name = self.input_of(item.get("ChannelName"))
            if input_name is not None:
                uri = value_at(item, "DataSource", "S3DataSource", "S3Uri")
                yield "input", input_name, uri, ("inputs", input_name, self.target)

        checkpoint = value_at(self.request, CHECKPOINT, "S3Uri")
        yield "checkpoint", "checkpoint", checkpoint, ("checkpoint", self.target)

        output = value_at(self.request, OUTPUT, "S3OutputPath")
        if isinstance(output, str):  # the service makes a folder for each job
            uri = f"{output.rstrip('/')}/{self.plan.run_name}/output"
            path: ValuePath = ()
            model = self.job.outputs.get("model")
            if model is not None and model.of(self.target):
                path = ("outputs", "model", self.target)
            yield "output", "model", uri, path

    @cached_property
    def images(self) -> Sequence[tuple[str, ValuePath]]:
        """The request's image and the path of its job field, if the job or the overrides name the
        image."""
        place = ("AppSpecification", "ImageUri")
        if ALGORITHM in self.request:
            place = (ALGORITHM, "TrainingImage")
        address = value_at(self.request, *place)
        image = self.job.environment.image
        by_job = image is not None and image.of(self.target)
        if isinstance(address, str) and (by_job or self.override_of(*place)):
            return [(address, IMAGE)]
        return []


def machines_in(config: JsonMapping, account: SageMakerAccount) -> Machines:
    """Return the machines of a finished request's `ResourceConfig` or `ClusterConfig`, including
    the user's overrides.

    Entries without a name or a number are skipped, because SM110 reports them.
    """
    kind, rows = _rows_of(config)
    members = []
    for row in rows:
        instance_type = row.get("InstanceType")
        count = row.get("InstanceCount", config.get("InstanceCount", 1))
        if isinstance(instance_type, str) and isinstance(count, int):
            name = str(row.get("InstanceGroupName") or DEFAULT_GROUP)
            members.append(machine_group(instance_type, count, account, name))
    return Machines(tuple(members), kind)


def _rows_of(
    config: JsonMapping,
) -> tuple[Literal["type", "groups", "preferences"], Sequence[JsonMapping]]:
    """Return the kind of machines and their rows: of groups or preferences, or else `config`."""
    groups = rows_at(config, "InstanceGroups")
    if groups:
        return "groups", groups
    preferences = rows_at(config, "InstancePreferences")
    return ("preferences", preferences) if preferences else ("type", [config])


_RULES = ("DebugRuleConfigurations", "ProfilerRuleConfigurations")
"""Each rule with an instance type runs in a processing job of its own."""


def uses_in(request: JsonMapping, account: SageMakerAccount) -> Iterator[Use]:
    """Yield the machines that a finished request pays for: of a job, of the trials of a tuning job,
    of the warm pool after them, and of the rules that watch them.

    The time limit holds for all attempts of a job together (`RetryStrategy`), and the time that a
    job waits for spot capacity is not billed.
    """
    bodies = [request]
    times: int | None = 1
    if TUNING in request:
        limits = mapping_at(request, TUNING, "ResourceLimits")
        times = positive_count(limits.get("MaxNumberOfTrainingJobs"))
        bodies = rows_at(request, "TrainingJobDefinitions")
        bodies.append(mapping_at(request, "TrainingJobDefinition"))

    for body in bodies:
        limit = positive_count(value_at(body, LIMITS, "MaxRuntimeInSeconds")) or DEFAULT_MAX_RUNTIME
        for place in ((MACHINES,), (TUNING_MACHINES,), CLUSTER):
            config = mapping_at(body, *place)
            if not config:
                continue
            machines = machines_in(config, account)
            yield Use(machines, limit, times)
            keep = config.get("KeepAlivePeriodInSeconds")
            if keep:
                yield Use(machines, positive_count(keep), times, is_pool=True)

        for rules in _RULES:
            for row in rows_at(body, rules):
                name = row.get("InstanceType")
                if isinstance(name, str):
                    yield Use(Machines((machine_group(name, 1, account),)), limit, times)


def machine_group(
    instance_type: str, count: int, account: SageMakerAccount, name: str = DEFAULT_GROUP
) -> MachineGroup:
    """Return equal instances with their catalogue entry, which the user may have corrected."""
    return MachineGroup(
        instance_type, count, type_named("sagemaker", instance_type, account.overlay), name
    )


def read(subject: Subject) -> SageMakerReading:
    """Return the reading of a request for SageMaker."""
    assert isinstance(subject.reading, SageMakerReading)
    return subject.reading


def instances_in(config: JsonMapping) -> int | None:
    """Return the total number of instances; with preferred types, the number for the first type."""
    kind, rows = _rows_of(config)
    counts = [positive_count(row.get("InstanceCount")) for row in rows]
    return sum(filter(None, counts)) if kind == "groups" else counts[0]


def _groups_of(config: JsonMapping) -> Iterator[InstanceGroup]:
    for row in rows_at(config, "InstanceGroups"):
        yield InstanceGroup.model_construct(
            name=str(row.get("InstanceGroupName", "")),
            instance_type=str(row.get("InstanceType", "")),
            instance_count=positive_count(row.get("InstanceCount")) or 1,
        )
