"""Read fields of the finished request for the SageMaker rules, including the user's overrides.

Overrides may contain any value. These functions ignore values of a wrong type, which SM110 reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, Literal

from cloudtrain.job.data import Checkpoint
from cloudtrain.job.distribution import (
    MPI,
    SMDDP,
    SMP,
    Distribution,
    Launcher,
    NoDistribution,
    TensorFlow,
    Torch,
    launcher_of,
)
from cloudtrain.job.model import merged, overrides_of
from cloudtrain.job.training import InstanceGroup, Resources, Spot
from cloudtrain.machines.choose import Machines
from cloudtrain.rules.engine import (
    IMAGE,
    KeysOf,
    Reading,
    Subject,
    as_written,
    changed_variables,
    checkpoint_at,
    count_in,
    is_written,
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
from cloudtrain.rules.named import TITLES, framework_of
from cloudtrain.runtime.sagemaker_launcher import CONTAINER_ENTRYPOINT, LAUNCH_KEY
from cloudtrain.runtime.sagemaker_launcher.arguments import RESERVED_PREFIXES, decode_hyperparameters
from cloudtrain.targets.sagemaker import request as keys
from cloudtrain.targets.sagemaker.catalogue.images import Image, image_of_uri
from cloudtrain.targets.sagemaker.compile.launch import python_too_old
from cloudtrain.targets.sagemaker.compile.machines import base_framework, machines_in
from cloudtrain.targets.sagemaker.compile.training import DEFAULT_MAX_RUNTIME
from cloudtrain.targets.sagemaker.request import GROUPS, PROGRAM

ValuePath = tuple[str | int, ...]
Mode = Literal["toolkit", "entrypoint", "image"]
Toolkit = Literal["pytorch", "tensorflow", "generic"]

TRAINING_MODULE = "SAGEMAKER_TRAINING_MODULE"
"""The variable that makes the generic toolkit start a framework's toolkit."""


def mapping(subject: Subject | Reading, *keys: str) -> Mapping[str, Any]:
    """Return the mapping at `keys` in the request; empty if it is missing."""
    return mapping_at(subject.plan.request, *keys)


def mappings(subject: Subject | Reading, *keys: str) -> list[Mapping[str, Any]]:
    """Return the list of mappings at `keys` in the request; empty if it is missing."""
    return rows_at(subject.plan.request, *keys)


def text(subject: Subject | Reading, *keys: str) -> str:
    """Return the text at `keys` in the request; empty if it is missing."""
    return text_at(subject.plan.request, *keys)


def seconds(subject: Subject | Reading, name: str) -> int | None:
    """Return the duration `name` from `StoppingCondition` or `ResourceConfig`; None if both lack it."""
    for section in ("StoppingCondition", "ResourceConfig"):
        value = value_at(subject.plan.request, section, name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def overridden(subject: Subject | Reading, *keys: str) -> ValuePath | None:
    """Return the path under `sagemaker_overrides` that sets the request's field at `keys`; None if no override does."""
    return ("sagemaker_overrides", *keys) if is_written(overrides_of(subject.job, "sagemaker"), *keys) else None


def cluster(subject: Subject | Reading) -> Machines:
    """Return the machines of the request, each with the path of its field in the job."""
    found = machines_in(mapping(subject, *_config(subject)), subject.account)
    groups = tuple(replace(group, path=_type_path(subject, found.kind, at)) for at, group in enumerate(found.groups))
    return replace(found, groups=groups, spans=_spans(subject) if found.kind == "groups" else ())


def _spans(subject: Subject | Reading) -> tuple[str, ...]:
    """Return the names of the instance groups that the request's launcher spans; empty if the request lists none.

    If the image's own entry point runs, there is no launcher. The result is then the job's `distribution_groups`.
    """
    parameters = decode_hyperparameters({name: str(text) for name, text in mapping(subject, "HyperParameters").items()})
    found = value_at(parameters, LAUNCH_KEY, "instance_groups") or parameters.get(GROUPS)
    if mode(subject) == "image":
        found = subject.job.resources.distribution_groups
    return tuple(map(str, found)) if isinstance(found, list | tuple) else ()


def _config(subject: Subject | Reading) -> tuple[str, ...]:
    """Return the path of the machines in the request of a training job or processing job."""
    return ("ResourceConfig",) if subject.processing is None else ("ProcessingResources", "ClusterConfig")


def _type_path(subject: Subject | Reading, kind: str, index: int) -> ValuePath:
    """Return the path of the job field with an instance type.

    `kind` is `type`, `groups` or `preferences`, and `index` is the index of the group or preference.
    """
    if kind == "type":
        field = "instance_type" if subject.job.resources.instance_type else "gpu"
        return overridden(subject, *_config(subject), "InstanceType") or ("resources", field)
    written = "InstanceGroups" if kind == "groups" else "InstancePreferences"
    if path := overridden(subject, *_config(subject), written):
        return (*path, index, "InstanceType")
    if kind == "groups":
        return ("resources", "instance_groups", index, "instance_type")
    return ("resources", "instance_preferences", index)


def input_named(subject: Subject | Reading, channel: object) -> str | None:
    """Return the name of the job's input for a channel; None if the channel is not from an input."""
    return next((name for name, item in subject.job.inputs.items() if (item.channel or name) == channel), None)


def mode(subject: Subject | Reading) -> Mode:
    """Return the launch mode of the request (see `cloudtrain.targets.sagemaker.compile.launch`)."""
    entrypoint = value_at(subject.plan.request, "AlgorithmSpecification", "ContainerEntrypoint")
    parameters = mapping(subject, "HyperParameters")
    if LAUNCH_KEY in parameters and entrypoint == list(CONTAINER_ENTRYPOINT):
        return "entrypoint"
    return "toolkit" if entrypoint is None and PROGRAM in parameters else "image"


def image(subject: Subject | Reading) -> Image | None:
    """Return the image's entry in the catalogue; None for a user's own image."""
    return _image_of(text(subject, "AlgorithmSpecification", "TrainingImage"))


_image_of = lru_cache(maxsize=8)(image_of_uri)  # many rules read the same image


def image_path(subject: Subject) -> ValuePath:
    """Return the path of the job field that names the image, or else its version; empty if the job sets neither."""
    if path := overridden(subject, "AlgorithmSpecification", "TrainingImage"):
        return path
    environment = subject.job.environment
    field = "image" if environment.image else "version" if environment.version else None
    return ("environment", field) if field else ()


def image_name(found: Image) -> str:
    """Return the image's name for messages: `PyTorch 2.8.0`."""
    return f"{TITLES[found.framework]} {found.version}"


def toolkit(subject: Subject) -> Toolkit:
    """Return the training toolkit that will read the request.

    The variable SAGEMAKER_TRAINING_MODULE overrides the image's toolkit. Without it, a user's own image for SMDDP or
    SMP is assumed to be derived from an AWS image. Any other user's own image is assumed to have the generic toolkit,
    which supports MPI and single processes.
    """
    module = mapping(subject, "Environment").get(TRAINING_MODULE)
    if isinstance(module, str):
        return "pytorch" if "pytorch" in module else "tensorflow" if "tensorflow" in module else "generic"
    found = image(subject)
    if found is None:
        return base_framework(subject.reading.distribution, subject.job.environment.framework) or "generic"
    if found.engine[0] not in ("pytorch", "tensorflow"):
        return "generic"
    return "pytorch" if found.engine[0] == "pytorch" else "tensorflow"


def launcher(subject: Subject) -> Launcher:
    """Return the launcher that the job's distribution needs."""
    return launcher_of(subject.reading.distribution)


def add_entrypoint_hint(subject: Subject, hint: str) -> str:
    """Add to `hint` how to run the job without the image's toolkit.

    Returns `hint` unchanged if the job needs the toolkit: for SMDDP, SMP, MPI on several instances, or an image whose
    Python is too old for cloudtrain's launcher.
    """
    bound = subject.reading.distribution.type in ("smddp", "smp") or python_too_old(image(subject)) is not None
    if bound or (launcher(subject) == "mpirun" and cluster(subject).spanned_count > 1):
        return hint
    return f'{hint}; or write `launch = "entrypoint"` under `[sagemaker]`, and cloudtrain starts the script itself'


# The distribution that a CreateTrainingJob request asks for.


def distribution_in(written: Distribution, parameters: Mapping[str, Any]) -> Distribution:
    """Return the distribution that the request's hyperparameters ask for.

    The result is the job's distribution `written` with the changes that the hyperparameters make. It is not validated,
    because overrides may contain any value.
    """
    launch = parameters.get(LAUNCH_KEY)
    if isinstance(launch, Mapping):
        return as_written(written, _of_our_launcher(launch))
    processes, options = count_in(parameters.get(keys.PROCESSES)), parameters.get(keys.MPI_OPTIONS)
    if parameters.get(keys.PARAMETER_SERVER):
        return as_written(written, TensorFlow.model_construct(strategy="parameter_server"))
    if parameters.get(keys.MIRRORED):
        return as_written(written, TensorFlow.model_construct())
    if parameters.get(keys.MPI):
        if parameters.get(keys.MODEL_PARALLEL):
            return as_written(
                written, SMP.model_construct(version=1, processes_per_instance=processes), options=options
            )
        return as_written(written, MPI.model_construct(processes_per_instance=processes), options=options)
    if parameters.get(keys.SMDDP):
        by_torch, by_mpi = SMDDP.model_construct(launch="torch"), SMDDP.model_construct(launch="mpi")
        made_by = by_torch if parameters.get(keys.TORCH) else by_mpi
        return as_written(written, made_by, options=parameters.get(keys.SMDDP_OPTIONS))
    if parameters.get(keys.TORCH):
        if parameters.get(keys.MODEL_PARALLEL):
            return as_written(written, SMP.model_construct(version=2, processes_per_instance=processes))
        return as_written(written, Torch.model_construct(processes_per_instance=processes))
    return written if isinstance(written, NoDistribution) else NoDistribution.model_construct()


def _of_our_launcher(launch: Mapping[str, Any]) -> Distribution:
    count = count_in(launch.get("processes_per_instance"))
    if launch.get("launcher") == "torchrun":
        return Torch.model_construct(processes_per_instance=count)
    if launch.get("launcher") == "mpirun":
        return MPI.model_construct(processes_per_instance=count, options=str(launch.get("mpi_options") or ""))
    if launch.get("launcher") == "tensorflow":
        servers, workers = count_in(launch.get("parameter_servers")), count_in(launch.get("workers"))
        return tensorflow_with(launch.get("strategy") == "parameter_server", servers, workers)
    return NoDistribution.model_construct()


# Read CreateTrainingJob and CreateProcessingJob requests for the rules that all targets share.

_CONFIG, _CLUSTER = ("ResourceConfig",), ("ProcessingResources", "ClusterConfig")
_LAUNCH = ("HyperParameters", "cloudtrain_launch")
_PROCESSES = ("HyperParameters", "sagemaker_mpi_num_of_processes_per_host")
_OPTIONS = tuple(
    ("HyperParameters", f"sagemaker_{library}_custom_mpi_options") for library in ("mpi", "distributed_dataparallel")
)
_MACHINES = ("InstanceCount", "InstanceGroups", "InstancePreferences")

_OVERRIDDEN: dict[ValuePath, KeysOf] = {
    ("resources", "instance_count"): keys_at(*((*at, key) for at in (_CONFIG, _CLUSTER) for key in _MACHINES)),
    ("resources", "instance_groups"): keys_at(*((*_CONFIG, key) for key in _MACHINES[1:])),
    ("environment", "variables"): keys_named("Environment"),
    ("environment", "image"): keys_at(("AlgorithmSpecification", "TrainingImage"), ("AppSpecification", "ImageUri")),
    ("hyperparameters",): keys_named("HyperParameters"),
    ("distribution", "processes_per_instance"): keys_at(_PROCESSES, _LAUNCH),
    ("distribution", "options"): keys_at(*_OPTIONS, _LAUNCH),
    ("distribution", "mpi_options"): keys_at(*_OPTIONS, _LAUNCH),
    ("max_runtime",): keys_at(("StoppingCondition", "MaxRuntimeInSeconds")),
    ("spot",): keys_at(("StoppingCondition", "MaxWaitTimeInSeconds"), ("EnableManagedSpotTraining",)),
    ("checkpoint",): keys_at(("CheckpointConfig",)),
    ("metrics",): keys_at(("AlgorithmSpecification", "MetricDefinitions")),
    ("outputs", "model"): keys_at(("OutputDataConfig", "S3OutputPath")),
}


class SageMakerReading(Reading):
    """A CreateTrainingJob or CreateProcessingJob request."""

    distribution_key = "HyperParameters"
    paths = _OVERRIDDEN

    @property
    def variables(self) -> Mapping[str, str]:
        return changed_variables(self.job, self.overrides.get("Environment") if self.request else None)

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        written = self.overrides.get("HyperParameters")
        if not self.request or not isinstance(written, Mapping):
            return self.job.hyperparameters
        own = {name: text for name, text in written.items() if not name.startswith(RESERVED_PREFIXES)}
        given = decode_hyperparameters({name: str(text) for name, text in own.items() if text is not None})
        return merged(self.job.hyperparameters, {**own, **given})

    @cached_property
    def resources(self) -> Resources:
        if not self.changes("ResourceConfig") and not self.changes("ProcessingResources"):
            return self.job.resources
        config = mapping_at(self.request, "ResourceConfig") or mapping_at(self.request, *_CLUSTER)
        count, groups = _count_of(config), tuple(_groups_of(config))
        update = {"instance_groups": groups} | ({} if count is None else {"instance_count": count})
        return self.job.resources.model_copy(update=update)

    @cached_property
    def distribution(self) -> Distribution:
        if not self.changes("HyperParameters"):
            return self.job.distribution
        return distribution_in(
            self.job.distribution, decode_hyperparameters(mapping_at(self.request, "HyperParameters"))
        )

    @property
    def max_runtime(self) -> int | None:
        if not self.changes("StoppingCondition", "MaxRuntimeInSeconds"):
            return self.job.max_runtime
        return positive_count(mapping_at(self.request, "StoppingCondition").get("MaxRuntimeInSeconds"))

    @property
    def longest_run(self) -> int:
        return seconds(self, "MaxRuntimeInSeconds") or DEFAULT_MAX_RUNTIME

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
        return Machines(()) if "ServerlessJobConfig" in self.request else cluster(self)

    @property
    def framework(self) -> str | None:
        """The framework of the image, or for a user's own image the framework in its name; None if unknown."""
        found = image(self)
        return found.engine[0] if found else framework_of(text(self, "AlgorithmSpecification", "TrainingImage"))

    @cached_property
    def places(self) -> Sequence[DataPlace]:
        return list(self._places())

    def _places(self) -> Iterator[DataPlace]:
        request = self.request
        for item in rows_at(request, "InputDataConfig") if self.processing is None else ():
            name = input_named(self, item.get("ChannelName"))
            source = item.get("DataSource")
            uri = value_at(source, "S3DataSource", "S3Uri")
            if name is not None and isinstance(uri, str):
                yield data_place("input", name, uri, split_uri(uri), ("inputs", name, self.target))
        for item in rows_at(request, "ProcessingInputs"):
            name, uri = str(item.get("InputName")), value_at(item, "S3Input", "S3Uri")
            if name in self.job.inputs and isinstance(uri, str):
                yield data_place("input", name, uri, split_uri(uri), ("inputs", name, self.target))
        for item in rows_at(request, "ProcessingOutputConfig", "Outputs"):
            name, uri = str(item.get("OutputName")), value_at(item, "S3Output", "S3Uri")
            if isinstance(uri, str):
                yield data_place("output", name, uri, split_uri(uri), ("outputs", name, self.target))
        checkpoint = value_at(request, "CheckpointConfig", "S3Uri")
        if isinstance(checkpoint, str):
            yield data_place("checkpoint", "checkpoint", checkpoint, split_uri(checkpoint), ("checkpoint", self.target))
        output = value_at(request, "OutputDataConfig", "S3OutputPath")
        if isinstance(output, str):  # the service makes a folder for each job
            model = self.job.outputs.get("model")
            path = ("outputs", "model", self.target) if model and model.of(self.target) else ()
            whole = f"{output.rstrip('/')}/{self.plan.run_name}/output"
            yield data_place("output", "model", whole, split_uri(whole), path)

    @cached_property
    def images(self) -> Sequence[tuple[str, ValuePath]]:
        """The request's image and the path of its job field, if the job or the overrides name the image."""
        image = self.job.environment.image
        trains = "AlgorithmSpecification" in self.request
        algorithm = mapping_at(self.request, "AlgorithmSpecification" if trains else "AppSpecification")
        reference = algorithm.get("TrainingImage", algorithm.get("ImageUri"))
        by_overrides = any(
            isinstance(part, dict) and {"TrainingImage", "ImageUri"} & part.keys() for part in self.overrides.values()
        )
        if isinstance(reference, str) and ((image is not None and image.of(self.target)) or by_overrides):
            return [(reference, IMAGE)]
        return []


def _count_of(config: Mapping[str, Any]) -> int | None:
    """Return the total number of instances; with preferred types, the number for the first type."""
    for key in ("InstanceGroups", "InstancePreferences"):
        rows = config.get(key)
        counts = [
            positive_count(row.get("InstanceCount"))
            for row in (rows if isinstance(rows, list) else [])
            if _is_mapping(row)
        ]
        if counts:
            return sum(count or 0 for count in counts) if key == "InstanceGroups" else counts[0]
    return positive_count(config.get("InstanceCount"))


def _groups_of(config: Mapping[str, Any]) -> Iterator[InstanceGroup]:
    rows = config.get("InstanceGroups")
    for row in filter(_is_mapping, rows if isinstance(rows, list) else []):
        name, kind = str(row.get("InstanceGroupName", "")), str(row.get("InstanceType", ""))
        count = positive_count(row.get("InstanceCount")) or 1
        yield InstanceGroup.model_construct(name=name, instance_type=kind, instance_count=count)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)
