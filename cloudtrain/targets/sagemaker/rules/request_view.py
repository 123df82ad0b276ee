"""Read CreateTrainingJob and CreateProcessingJob requests for the rules that all targets share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cloudtrain.catalogue.machines import Machines
from cloudtrain.core.job import Spot
from cloudtrain.core.merging import merged
from cloudtrain.core.resources import InstanceGroup
from cloudtrain.rules.data_places import DataPlace, data_place, split_uri
from cloudtrain.rules.effective import changed_variables, checkpoint_at
from cloudtrain.rules.image_names import framework_of
from cloudtrain.rules.overridden import KeysOf, Path, is_written, keys_at, keys_named
from cloudtrain.rules.reading import mapping_at, positive_count, rows_at, value_at
from cloudtrain.rules.subject import IMAGE, RequestView, Subject
from cloudtrain.runtime.sagemaker_launcher.arguments import RESERVED_PREFIXES, decode_hyperparameters
from cloudtrain.targets.sagemaker.compile.request import DEFAULT_MAX_RUNTIME
from cloudtrain.targets.sagemaker.rules.request_distribution import distribution_in
from cloudtrain.targets.sagemaker.rules.view import cluster, image, input_named, seconds, text

_CONFIG, _CLUSTER = ("ResourceConfig",), ("ProcessingResources", "ClusterConfig")
_LAUNCH = ("HyperParameters", "cloudtrain_launch")
_PROCESSES = ("HyperParameters", "sagemaker_mpi_num_of_processes_per_host")
_OPTIONS = tuple(
    ("HyperParameters", f"sagemaker_{library}_custom_mpi_options") for library in ("mpi", "distributed_dataparallel")
)
_MACHINES = ("InstanceCount", "InstanceGroups", "InstancePreferences")

_OVERRIDDEN: dict[Path, KeysOf] = {
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


class SageMakerView(RequestView):
    """Reads SageMaker's requests, for the rules that all targets share."""

    distribution_key = "HyperParameters"
    overridden_by = _OVERRIDDEN

    def change_script(self, subject: Subject) -> dict[str, Any]:
        """Return the job's environment and hyperparameters with the overrides applied."""
        environment = changed_variables(subject.job, self.overrides(subject).get("Environment"))
        return {"hyperparameters": self.parameters(subject), "environment": environment}

    def parameters(self, subject: Subject) -> dict[str, Any]:
        """Return the script's hyperparameters with the overrides applied, without those for launchers."""
        written = self.overrides(subject).get("HyperParameters")
        if not isinstance(written, Mapping):
            return subject.job.hyperparameters
        own = {name: text for name, text in written.items() if not name.startswith(RESERVED_PREFIXES)}
        given = decode_hyperparameters({name: str(text) for name, text in own.items() if text is not None})
        return merged(subject.job.hyperparameters, {**own, **given})

    def change(self, subject: Subject) -> dict[str, Any]:
        """Return the job's fields that overrides change, with their new values."""
        request, written = subject.plan.request, self.overrides(subject)
        found = self.change_script(subject)
        config = mapping_at(request, "ResourceConfig") or mapping_at(request, "ProcessingResources", "ClusterConfig")
        if is_written(written, "ResourceConfig") or is_written(written, "ProcessingResources"):
            count, groups = _count_of(config), tuple(_groups_of(config))
            machines = {"instance_groups": groups} | ({} if count is None else {"instance_count": count})
            found["resources"] = subject.job.resources.model_copy(update=machines)
        if is_written(written, "HyperParameters"):
            found["distribution"] = distribution_in(
                subject.job.distribution, decode_hyperparameters(mapping_at(request, "HyperParameters"))
            )
        if is_written(written, "StoppingCondition", "MaxRuntimeInSeconds"):
            found["max_runtime"] = positive_count(mapping_at(request, "StoppingCondition").get("MaxRuntimeInSeconds"))
        if is_written(written, "EnableManagedSpotTraining") or is_written(written, "StoppingCondition"):
            wait = positive_count(mapping_at(request, "StoppingCondition").get("MaxWaitTimeInSeconds"))
            found["spot"] = (
                Spot.model_construct(max_wait=wait) if request.get("EnableManagedSpotTraining") is True else None
            )
        if is_written(written, "CheckpointConfig"):
            found["checkpoint"] = checkpoint_at(self.target, mapping_at(request, "CheckpointConfig").get("S3Uri"))
        if is_written(written, "AlgorithmSpecification", "MetricDefinitions"):
            rows = mapping_at(request, "AlgorithmSpecification").get("MetricDefinitions")
            pairs = (
                (row.get("Name"), row.get("Regex"))
                for row in (rows if isinstance(rows, list) else [])
                if _is_mapping(row)
            )
            found["metrics"] = {str(name): pattern for name, pattern in pairs if isinstance(pattern, str)}
        return found

    def machines(self, subject: Subject) -> Machines:
        """Return the machines of the request; no machines for a serverless job."""
        return Machines(()) if "ServerlessJobConfig" in subject.plan.request else cluster(subject)

    def longest_run(self, subject: Subject) -> int:
        """Return the job's time limit in seconds: `MaxRuntimeInSeconds`, or the service's default."""
        return seconds(subject, "MaxRuntimeInSeconds") or DEFAULT_MAX_RUNTIME

    def framework(self, subject: Subject) -> str | None:
        """Return the framework of the image, or for a user's own image the framework in its name; None if unknown."""
        found = image(subject)
        return found.engine[0] if found else framework_of(text(subject, "AlgorithmSpecification", "TrainingImage"))

    def places(self, subject: Subject) -> Iterator[DataPlace]:
        """Yield the locations that the request reads and writes."""
        request = subject.plan.request
        for item in rows_at(request, "InputDataConfig") if subject.processing is None else ():
            name = input_named(subject, item.get("ChannelName"))
            source = item.get("DataSource")
            uri = value_at(source, "S3DataSource", "S3Uri")
            if name is not None and isinstance(uri, str):
                yield data_place("input", name, uri, split_uri(uri), ("inputs", name, self.target))
        for item in rows_at(request, "ProcessingInputs"):
            name, uri = str(item.get("InputName")), value_at(item, "S3Input", "S3Uri")
            if name in subject.job.inputs and isinstance(uri, str):
                yield data_place("input", name, uri, split_uri(uri), ("inputs", name, self.target))
        for item in rows_at(request, "ProcessingOutputConfig", "Outputs"):
            name, uri = str(item.get("OutputName")), value_at(item, "S3Output", "S3Uri")
            if isinstance(uri, str):
                yield data_place("output", name, uri, split_uri(uri), ("outputs", name, self.target))
        kept, output = (
            value_at(request, "CheckpointConfig", "S3Uri"),
            value_at(request, "OutputDataConfig", "S3OutputPath"),
        )
        if isinstance(kept, str):
            yield data_place("checkpoint", "checkpoint", kept, split_uri(kept), ("checkpoint", self.target))
        if isinstance(output, str):  # the service makes a folder for each job
            model = subject.job.outputs.get("model")
            path = ("outputs", "model", self.target) if model and model.of(self.target) else ()
            whole = f"{output.rstrip('/')}/{subject.plan.run_name}/output"
            yield data_place("output", "model", whole, split_uri(whole), path)

    def images(self, subject: Subject) -> Iterator[tuple[str, Path]]:
        """Yield the request's image and the path of its job field, if the job or the overrides name the image."""
        given = subject.job.environment.image
        algorithm = subject.plan.request.get("AlgorithmSpecification", subject.plan.request.get("AppSpecification"))
        found = algorithm if isinstance(algorithm, dict) else {}
        reference = found.get("TrainingImage", found.get("ImageUri"))
        by_overrides = any(
            isinstance(part, dict) and {"TrainingImage", "ImageUri"} & part.keys()
            for part in self.overrides(subject).values()
        )
        if isinstance(reference, str) and ((given is not None and given.of(self.target)) or by_overrides):
            yield reference, IMAGE


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
