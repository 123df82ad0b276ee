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
from cloudtrain.targets.sagemaker.catalogue.contents import Framework, ImageContents, contents_of
from cloudtrain.targets.sagemaker.catalogue.images import Image, has_other_toolkit, image_of_uri
from cloudtrain.targets.sagemaker.fields import ALGORITHM
from cloudtrain.targets.sagemaker.request import JsonMapping, JsonObject, Request, is_entrypoint
from cloudtrain.targets.sagemaker.settings import SageMakerAccount

DEFAULT_MAX_RUNTIME = 86_400
"""Default limit of a job's run in seconds: one day, the default of the SDK and of the service."""

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
        base: Framework = "tensorflow" if framework == "tensorflow" else "pytorch"
        # for SMP it is there, and false
        needs_base = keys.SMDDP in mapping_at(request, "HyperParameters")
        image = image_of(image_in(request))
        return cls(request, contents_of(image, base if needs_base else None))

    @cached_property
    def by(self) -> Mode:
        """Who starts the processes: the image's toolkit, cloudtrain's launcher, or the image's own
        entry point."""
        entrypoint = value_at(self.request, "AlgorithmSpecification", "ContainerEntrypoint")
        if isinstance(entrypoint, list | tuple) and is_entrypoint(self.request):
            return "entrypoint" if self.launch else "image"
        return "toolkit" if entrypoint is None and keys.PROGRAM in self.values else "image"

    @cached_property
    def values(self) -> JsonObject:
        """All hyperparameters, decoded."""
        return decode_hyperparameters(mapping_at(self.request, "HyperParameters"))

    @cached_property
    def parameters(self) -> JsonObject:
        """The script's hyperparameters, as the toolkit passes them."""
        return {
            name: value
            for name, value in self.values.items()
            if name not in OF_THE_JOB and not name.startswith("sagemaker_")
        }

    @cached_property
    def settings(self) -> JsonObject:
        """The toolkit's hyperparameters for launchers, whose names begin with `sagemaker_`."""
        return {
            name: value
            for name, value in self.values.items()
            if name.startswith("sagemaker_") and name not in OF_THE_JOB
        }

    @property
    def launch(self) -> JsonMapping:
        """The hyperparameter of cloudtrain's launcher; empty without one."""
        return mapping_at(self.values, LAUNCH_KEY)

    @property
    def framework(self) -> Framework:
        """The framework whose toolkit runs. SAGEMAKER_TRAINING_MODULE can select another than the
        image's."""
        module = text_at(self.request, "Environment", TRAINING_MODULE)
        return _FRAMEWORK_OF.get(module.partition(".")[0], self.container.framework)

    @cached_property
    def key(self) -> str | None:
        """The hyperparameter that selects the toolkit's launcher; None if every host runs the
        script alone.

        Parameter servers need several hosts. The toolkit sets up the workers of
        MultiWorkerMirroredStrategy, but each host runs the script without a launcher.
        """
        several = (instances_in(mapping_at(self.request, "ResourceConfig")) or 1) > 1
        candidates = (
            key for key in _ORDER[self.framework] if key != keys.PARAMETER_SERVER or several
        )
        return next((key for key in candidates if self.settings.get(key)), None)

    @property
    def mirrors(self) -> bool:
        """Whether the toolkit sets up the workers of MultiWorkerMirroredStrategy, for MPI's ranks
        too."""
        knows = keys.MIRRORED in _ORDER[self.framework] and self.key != keys.PARAMETER_SERVER
        return knows and bool(self.settings.get(keys.MIRRORED))

    @property
    def asked(self) -> str | None:
        """The hyperparameter that asks for a launcher: the one that counts, or else one that the
        toolkit ignores."""
        return self.key or next((key for key in keys.LAUNCHER_KEYS if self.settings.get(key)), None)

    def starts(self, launcher: str) -> bool:
        """Return whether the toolkit starts processes for this launcher of a job's distribution."""
        needed = {"torchrun": keys.TORCH, "tensorflow": keys.MIRRORED}.get(launcher)
        return needed is None or needed in _ORDER[self.framework]

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the instance groups that the launcher spans; empty if the request lists
        none."""
        groups = self.launch.get("instance_groups") or self.settings.get(keys.GROUPS)
        return tuple(map(str, groups)) if isinstance(groups, list | tuple) else ()

    @property
    def processes(self) -> int | None:
        """The number of processes on each host; None for one on each accelerator."""
        return count_in(
            self.launch.get("processes_per_instance")
            if self.launch
            else self.settings.get(keys.PROCESSES)
        )

    @property
    def options(self) -> str | None:
        """The user's options for mpirun; None if the request has none."""
        if self.launch:
            return text_at(self.launch, "mpi_options") or None
        by_torchrun = self.asked == keys.TORCH and self.settings.get(keys.SMDDP)
        name = _OPTIONS_OF.get(keys.SMDDP if by_torchrun else self.asked)
        options = self.settings.get(name) if name else None
        return options if isinstance(options, str) else None

    @cached_property
    def distribution(self) -> Distribution:
        """The distribution that the request asks for. It is not validated."""
        if self.launch:
            return self._by_our_launcher()
        count, library = self.processes, self.parameters.get(keys.MODEL_PARALLEL)
        parameters = dict(library) if isinstance(library, Mapping) else {}
        if self.asked in (keys.PARAMETER_SERVER, keys.MIRRORED):
            return tensorflow_with(self.asked == keys.PARAMETER_SERVER, None, None)
        if self.asked == keys.MPI and library:
            return SMP.model_construct(
                version=1, processes_per_instance=count, parameters=parameters
            )
        if self.asked in (keys.MPI, keys.PYTORCH_DDP):
            return MPI.model_construct(processes_per_instance=count)
        if self.asked == keys.SMDDP or (self.asked == keys.TORCH and self.settings.get(keys.SMDDP)):
            return SMDDP.model_construct(launch="torch" if self.asked == keys.TORCH else "mpi")
        if self.asked == keys.TORCH and (library or self.settings.get(keys.SMDDP) is False):
            return SMP.model_construct(
                version=2, processes_per_instance=count, parameters=parameters
            )
        return (
            Torch.model_construct(processes_per_instance=count)
            if self.asked == keys.TORCH
            else _NONE
        )

    def _by_our_launcher(self) -> Distribution:
        launcher = self.launch.get("launcher")
        if launcher == "torchrun":
            return Torch.model_construct(processes_per_instance=self.processes)
        if launcher == "mpirun":
            return MPI.model_construct(processes_per_instance=self.processes)
        if launcher == "tensorflow":
            servers, workers = (
                count_in(self.launch.get("parameter_servers")),
                count_in(self.launch.get("workers")),
            )
            return tensorflow_with(
                self.launch.get("strategy") == "parameter_server", servers, workers
            )
        return _NONE


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
    by_hand = "HyperParameters" in overrides_of(job, "sagemaker")
    if not by_hand and not any(name.startswith(RESERVED_PREFIXES) for name in job.hyperparameters):
        return job.distribution
    return as_written(job.distribution, start.distribution, options=start.options)


image_of = lru_cache(maxsize=8)(image_of_uri)  # many readers ask for the same image


def image_in(request: Request) -> str:
    """Return the address of the image of a training job; empty if the request has none."""
    return text_at(request, ALGORITHM, "TrainingImage")


# The request, in the words of the job.

_CONFIG, _CLUSTER = ("ResourceConfig",), ("ProcessingResources", "ClusterConfig")
_LAUNCH = ("HyperParameters", "cloudtrain_launch")
_PROCESSES = ("HyperParameters", "sagemaker_mpi_num_of_processes_per_host")
_OPTIONS = tuple(
    ("HyperParameters", f"sagemaker_{library}_custom_mpi_options")
    for library in ("mpi", "distributed_dataparallel")
)
_MACHINES = ("InstanceCount", "InstanceGroups", "InstancePreferences")

_OVERRIDDEN: dict[ValuePath, KeysOf] = {
    ("resources", "instance_count"): keys_at(
        *((*at, key) for at in (_CONFIG, _CLUSTER) for key in _MACHINES)
    ),
    ("resources", "instance_groups"): keys_at(*((*_CONFIG, key) for key in _MACHINES[1:])),
    ("environment", "variables"): keys_named("Environment"),
    ("environment", "image"): keys_at(
        ("AlgorithmSpecification", "TrainingImage"), ("AppSpecification", "ImageUri")
    ),
    ("hyperparameters",): keys_named("HyperParameters"),
    ("distribution", "processes_per_instance"): keys_at(_PROCESSES, _LAUNCH),
    ("distribution", "options"): keys_at(*_OPTIONS, _LAUNCH),
    ("distribution", "mpi_options"): keys_at(*_OPTIONS, _LAUNCH),
    ("max_runtime",): keys_at(("StoppingCondition", "MaxRuntimeInSeconds")),
    ("spot",): keys_at(
        ("StoppingCondition", "MaxWaitTimeInSeconds"), ("EnableManagedSpotTraining",)
    ),
    ("checkpoint",): keys_at(("CheckpointConfig",)),
    ("metrics",): keys_at(("AlgorithmSpecification", "MetricDefinitions")),
    ("outputs", "model"): keys_at(("OutputDataConfig", "S3OutputPath")),
}


class SageMakerReading(Reading):
    """A CreateTrainingJob or CreateProcessingJob request."""

    distribution_key = "HyperParameters"
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
        if path := self.override_of("AlgorithmSpecification", "TrainingImage"):
            return path
        environment = self.job.environment
        field = "image" if environment.image else "version" if environment.version else None
        return ("environment", field) if field else ()

    @property
    def variables(self) -> Mapping[str, str]:
        return changed_variables(
            self.job, self.overrides.get("Environment") if self.request else None
        )

    @cached_property
    def parameters(self) -> JsonMapping:
        overrides = self.overrides.get("HyperParameters")
        if not self.request or not isinstance(overrides, Mapping):
            return self.job.hyperparameters
        own = {
            name: text for name, text in overrides.items() if not name.startswith(RESERVED_PREFIXES)
        }
        texts = {
            name: str(text).replace(keys.RUN_NAME, self.plan.run_name) for name, text in own.items()
        }
        values = decode_hyperparameters(
            {name: text for name, text in texts.items() if own[name] is not None}
        )
        return merged(self.job.hyperparameters, {**own, **values})

    @cached_property
    def resources(self) -> Resources:
        if not self.changes("ResourceConfig") and not self.changes("ProcessingResources"):
            return self.job.resources
        config = mapping_at(self.request, "ResourceConfig") or mapping_at(self.request, *_CLUSTER)
        count, groups = instances_in(config), tuple(_groups_of(config))
        update = {"instance_groups": groups} | ({} if count is None else {"instance_count": count})
        return self.job.resources.model_copy(update=update)

    @cached_property
    def distribution(self) -> Distribution:
        return distribution_in(self.job, self.start) if self.request else self.job.distribution

    @property
    def max_runtime(self) -> int | None:
        if not self.changes("StoppingCondition", "MaxRuntimeInSeconds"):
            return self.job.max_runtime
        return positive_count(
            mapping_at(self.request, "StoppingCondition").get("MaxRuntimeInSeconds")
        )

    @property
    def longest_run(self) -> int:
        return self.seconds("MaxRuntimeInSeconds") or DEFAULT_MAX_RUNTIME

    def seconds(self, name: str) -> int | None:
        """Return the duration `name` from `StoppingCondition` or `ResourceConfig`; None if both
        lack it."""
        for section in ("StoppingCondition", "ResourceConfig"):
            value = value_at(self.request, section, name)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        return None

    @property
    def spot(self) -> Spot | None:
        if not self.changes("EnableManagedSpotTraining") and not self.changes("StoppingCondition"):
            return self.job.spot
        if self.request.get("EnableManagedSpotTraining") is not True:
            return None
        wait = mapping_at(self.request, "StoppingCondition").get("MaxWaitTimeInSeconds")
        return Spot.model_construct(max_wait=positive_count(wait))

    @property
    def checkpoint(self) -> Checkpoint | None:
        if not self.changes("CheckpointConfig"):
            return self.job.checkpoint
        return checkpoint_at(self.target, mapping_at(self.request, "CheckpointConfig").get("S3Uri"))

    @property
    def metrics(self) -> Mapping[str, str]:
        if not self.changes("AlgorithmSpecification", "MetricDefinitions"):
            return self.job.metrics
        rows = rows_at(self.request, "AlgorithmSpecification", "MetricDefinitions")
        pairs = ((row.get("Name"), row.get("Regex")) for row in rows)
        return {str(name): pattern for name, pattern in pairs if isinstance(pattern, str)}

    @cached_property
    def machines(self) -> Machines:
        """The machines of the request; no machines for a serverless job."""
        machines = machines_in(self._config, self.account)
        groups = tuple(
            replace(group, path=self._type_path(machines.kind, at))
            for at, group in enumerate(machines.groups)
        )
        spans = self.start.groups
        if self.start.by == "image":  # without a launcher
            spans = self.job.resources.distribution_groups
        return replace(machines, groups=groups, spans=spans if machines.kind == "groups" else ())

    @property
    def _config(self) -> JsonMapping:
        return mapping_at(self.request, *(_CONFIG if self.processing is None else _CLUSTER))

    def _type_path(self, kind: str, index: int) -> ValuePath:
        """Return the path of the job field with an instance type. `index` is that of the group or
        preference."""
        config = _CONFIG if self.processing is None else _CLUSTER
        if kind == "type":
            field = "instance_type" if self.job.resources.instance_type else "gpu"
            return self.override_of(*config, "InstanceType") or ("resources", field)
        key = "InstanceGroups" if kind == "groups" else "InstancePreferences"
        if path := self.override_of(*config, key):
            return (*path, index, "InstanceType")
        if kind == "groups":
            return ("resources", "instance_groups", index, "instance_type")
        return ("resources", "instance_preferences", index)

    @property
    def framework(self) -> str | None:
        """The framework of the image, or for a user's own image the framework in its name; None if
        unknown."""
        uri = image_in(self.request)
        return self.image.engine[0] if self.image else framework_of(uri)

    @cached_property
    def places(self) -> Sequence[DataPlace]:
        return [
            data_place(kind, name, uri, split_uri(uri), path)
            for kind, name, uri, path in self._uris()
            if isinstance(uri, str)
        ]

    def input_of(self, channel: object) -> str | None:
        """Return the name of the job's input for a channel; None if the channel is not from an
        input."""
        return next(
            (name for name, item in self.job.inputs.items() if (item.channel or name) == channel),
            None,
        )

    def _uris(self) -> Iterator[tuple[str, str, object, ValuePath]]:
        """Yield the kind, name, address and path in the job of each place of the request, also of
        missing ones."""
        request = self.request
        for item in rows_at(request, "InputDataConfig") if self.processing is None else ():
            if (key := self.input_of(item.get("ChannelName"))) is not None:
                uri = value_at(item, "DataSource", "S3DataSource", "S3Uri")
                yield "input", key, uri, ("inputs", key, self.target)
        for item in rows_at(request, "ProcessingInputs"):
            if (name := str(item.get("InputName"))) in self.job.inputs:
                yield (
                    "input",
                    name,
                    value_at(item, "S3Input", "S3Uri"),
                    ("inputs", name, self.target),
                )
        for item in rows_at(request, "ProcessingOutputConfig", "Outputs"):
            name = str(item.get("OutputName"))
            yield (
                "output",
                name,
                value_at(item, "S3Output", "S3Uri"),
                ("outputs", name, self.target),
            )
        yield (
            "checkpoint",
            "checkpoint",
            value_at(request, "CheckpointConfig", "S3Uri"),
            ("checkpoint", self.target),
        )
        output = value_at(request, "OutputDataConfig", "S3OutputPath")
        if isinstance(output, str):  # the service makes a folder for each job
            model = self.job.outputs.get("model")
            path = ("outputs", "model", self.target) if model and model.of(self.target) else ()
            yield "output", "model", f"{output.rstrip('/')}/{self.plan.run_name}/output", path

    @cached_property
    def images(self) -> Sequence[tuple[str, ValuePath]]:
        """The request's image and the path of its job field, if the job or the overrides name the
        image."""
        image = self.job.environment.image
        trains = "AlgorithmSpecification" in self.request
        algorithm = mapping_at(
            self.request, "AlgorithmSpecification" if trains else "AppSpecification"
        )
        reference = algorithm.get("TrainingImage", algorithm.get("ImageUri"))
        by_overrides = any(
            isinstance(part, dict) and {"TrainingImage", "ImageUri"} & part.keys()
            for part in self.overrides.values()
        )
        if isinstance(reference, str) and (
            (image is not None and image.of(self.target)) or by_overrides
        ):
            return [(reference, IMAGE)]
        return []


def machines_in(config: JsonMapping, account: SageMakerAccount) -> Machines:
    """Return the machines of a finished request's `ResourceConfig` or `ClusterConfig`, including
    the user's overrides.

    Entries without a name or a number are skipped, because SM110 reports them.
    """
    groups, preferences = rows_at(config, "InstanceGroups"), rows_at(config, "InstancePreferences")
    members = []
    for row in groups or preferences or [config]:
        name, count = (
            row.get("InstanceType"),
            row.get("InstanceCount", config.get("InstanceCount", 1)),
        )
        if isinstance(name, str) and isinstance(count, int):
            members.append(
                machine_group(
                    name, count, account, str(row.get("InstanceGroupName") or DEFAULT_GROUP)
                )
            )
    return Machines(
        tuple(members), "groups" if groups else "preferences" if preferences else "type"
    )


def machine_group(
    instance_type: str, count: int, account: SageMakerAccount, name: str = DEFAULT_GROUP
) -> MachineGroup:
    entry = type_named("sagemaker", instance_type, account.overlay)
    return MachineGroup(instance_type, count, entry, name)


def read(subject: Subject) -> SageMakerReading:
    """Return the reading of a request for SageMaker."""
    assert isinstance(subject.reading, SageMakerReading)
    return subject.reading


def instances_in(config: JsonMapping) -> int | None:
    """Return the total number of instances; with preferred types, the number for the first type."""
    for key in ("InstanceGroups", "InstancePreferences"):
        counts = [positive_count(row.get("InstanceCount")) for row in rows_at(config, key)]
        if counts:
            return sum(count or 0 for count in counts) if key == "InstanceGroups" else counts[0]
    return positive_count(config.get("InstanceCount"))


def _groups_of(config: JsonMapping) -> Iterator[InstanceGroup]:
    for row in rows_at(config, "InstanceGroups"):
        name, kind = str(row.get("InstanceGroupName", "")), str(row.get("InstanceType", ""))
        count = positive_count(row.get("InstanceCount")) or 1
        yield InstanceGroup.model_construct(name=name, instance_type=kind, instance_count=count)
