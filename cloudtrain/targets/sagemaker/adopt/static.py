"""Read estimators, trainers and requests from the text of a script, as a draft of a job."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cloudtrain.core.adoption import Draft, Original, StaticCall, Unknown, said
from cloudtrain.core.script import job_name_from
from cloudtrain.targets.sagemaker.adopt.jobs import drafts_of

_FRAMEWORKS = {"PyTorch": "pytorch", "TensorFlow": "tensorflow", "HuggingFace": "huggingface"}
_VERSIONS = {"pytorch": "framework_version", "tensorflow": "framework_version", "huggingface": "transformers_version"}
_BASES = {"pytorch_version": "pytorch", "tensorflow_version": "tensorflow"}

_JOB = {
    "entry_point": ("entry_point",),
    "source_dir": ("source_dir",),
    "hyperparameters": ("hyperparameters",),
    "instance_count": ("resources", "instance_count"),
    "train_instance_count": ("resources", "instance_count"),
    "instance_type": ("resources", "instance_type", "sagemaker"),
    "train_instance_type": ("resources", "instance_type", "sagemaker"),
    "image_uri": ("environment", "image", "sagemaker"),
    "training_image": ("environment", "image", "sagemaker"),
    "environment": ("environment", "variables"),
    "max_run": ("max_runtime",),
    "max_wait": ("spot", "max_wait"),
    "checkpoint_s3_uri": ("checkpoint", "sagemaker"),
}
"""Maps arguments of an estimator or a trainer to fields of a job."""

_SETTINGS = {
    "role": "role",
    "output_path": "output",
    "output_kms_key": "output_kms_key",
    "volume_kms_key": "volume_kms_key",
    "subnets": "subnets",
    "security_group_ids": "security_group_ids",
    "keep_alive_period_in_seconds": "keep_alive",
    "max_retry_attempts": "max_retries",
    "enable_network_isolation": "network_isolation",
    "encrypt_inter_container_traffic": "encrypt_inter_container_traffic",
}

_READ = {"base_job_name", "distribution", "distributed", "metric_definitions", "volume_size", "tags", "py_version"}
_NOTHING = {"sagemaker_session", "use_spot_instances", "checkpoint_local_path", "compute", "source_code", "input_mode"}
"""Arguments that other code reads, and arguments that a job does not need."""

_TRAINER_PARTS = {
    "SourceCode": {"source_dir": "source_dir", "entry_script": "entry_point", "command": "command"},
    "Compute": {
        "instance_type": "instance_type",
        "instance_count": "instance_count",
        "volume_size_in_gb": "volume_size",
    },
    "StoppingCondition": {"max_runtime_in_seconds": "max_run"},
}
"""Maps classes of version 3 to the names that an estimator of version 2 gives their arguments."""


def draft_of_calls(calls: Sequence[StaticCall]) -> tuple[Draft, dict[str, str]] | None:
    """Return the first job that the script creates, and the values that cannot be read from the script's text.

    Returns None if no call creates a job.
    """
    for call in calls:
        kind = call.name.rpartition(".")[2]
        if kind == "create_training_job":
            return _of_request(call.keywords)
        if kind in (*_FRAMEWORKS, "Estimator", "ModelTrainer"):
            fits = [one for one in calls if one.name in (f"{kind}().fit", f"{call.name}().fit", f"{call.name}().train")]
            return _Reader(kind, call.keywords).draft(fits[0] if fits else None)
    return None


def _of_request(keywords: Mapping[str, Any]) -> tuple[Draft, dict[str, str]]:
    unknown: dict[str, str] = {}
    request = said(dict(keywords), "", unknown)
    draft = next(drafts_of(Original("sagemaker", request, str(request.get("TrainingJobName", "training")), "")))
    return draft, unknown


class _Reader:
    """Turns the arguments of one estimator or trainer into a job."""

    def __init__(self, kind: str, keywords: Mapping[str, Any]) -> None:
        self.kind = kind
        self.given = dict(_flat(keywords))
        self.job: dict[str, Any] = {}
        self.settings: dict[str, Any] = {}
        self.unknown: dict[str, str] = {}

    def draft(self, fit: StaticCall | None) -> tuple[Draft, dict[str, str]]:
        name = self._known("base_job_name", self.given.get("base_job_name"))
        self.job["name"] = job_name_from(str(name or self.kind.lower()))
        self.job["source_dir"] = "."
        for argument, value in self.given.items():
            if argument in _JOB:
                self._put(_JOB[argument], value)
            elif argument in _SETTINGS:
                self._set(_SETTINGS[argument], self._known(f"[sagemaker] {_SETTINGS[argument]}", value))
            elif argument not in (*_READ, *_NOTHING, *_VERSIONS.values(), *_BASES) and value is not None:
                self._known(argument, value if isinstance(value, Unknown | StaticCall) else Unknown(f"{value!r}"))
        self._read_environment()
        self._read_distribution(self.given.get("distribution", self.given.get("distributed")))
        self._read_lists()
        if fit is not None:
            self._read_inputs(fit.arguments[0] if fit.arguments else fit.keywords.get("inputs"))
            self._read_channels(fit.keywords.get("input_data_config"))
        return Draft(self.job, self.settings), self.unknown

    def _known(self, path: str, value: Any) -> Any:
        return said(value, path, self.unknown)

    def _set(self, name: str, value: Any) -> None:
        if value is not None:
            self.settings[name] = value

    def _put(self, path: tuple[str, ...], value: Any) -> None:
        found = self._known(".".join(path), value)
        if found is None:
            return
        holder = self.job
        for part in path[:-1]:
            holder = holder.setdefault(part, {})
        holder[path[-1]] = found

    def _read_environment(self) -> None:
        framework = _FRAMEWORKS.get(self.kind)
        if framework is None or "image_uri" in self.given:
            return
        self._put(("environment", "framework"), framework)
        self._put(("environment", "version"), self.given.get(_VERSIONS[framework]))
        for argument, base in _BASES.items():
            if framework == "huggingface" and argument in self.given:
                version = self._known("environment.base", self.given[argument])
                self._put(("environment", "base"), f"{base}{version}" if version else None)
        python = self.given.get("py_version")
        if isinstance(python, str) and python.startswith("py3"):
            self._put(("environment", "python"), f"3.{python[3:]}")

    def _read_distribution(self, given: Any) -> None:
        if isinstance(given, StaticCall):
            launcher = {"Torchrun": "torch", "MPI": "mpi"}.get(given.name.rpartition(".")[2])
            count = given.keywords.get("process_count_per_node")
            if launcher:
                self._put(("distribution",), {"type": launcher} | ({"processes_per_instance": count} if count else {}))
                return
        known = self._known("distribution", given)
        if isinstance(known, dict):
            found = dict(_distribution(known))
            if found:
                self.job["distribution"] = found
            elif known:
                self.unknown["distribution"] = repr(known)

    def _read_lists(self) -> None:
        metrics = self._known("metrics", self.given.get("metric_definitions")) or []
        self._put(
            ("metrics",), {row["Name"]: row["Regex"] for row in metrics if {"Name", "Regex"} <= row.keys()} or None
        )
        tags = self._known("tags", self.given.get("tags")) or []
        self._put(("tags",), {row["Key"]: row["Value"] for row in tags if {"Key", "Value"} <= row.keys()} or None)
        size = self._known("resources.volume_size", self.given.get("volume_size"))
        self._put(("resources", "volume_size"), f"{size}g" if size else None)
        if self.given.get("use_spot_instances") is True:
            self.job.setdefault("spot", {})

    def _read_inputs(self, inputs: Any) -> None:
        for name, value in (inputs if isinstance(inputs, dict) else {"training": inputs}).items():
            place = value
            if isinstance(value, StaticCall) and value.name.rpartition(".")[2] == "TrainingInput":
                place = value.arguments[0] if value.arguments else value.keywords.get("s3_data")
            if place is not None:
                self._put(("inputs", name), {"sagemaker": place, "mode": "download"})

    def _read_channels(self, channels: Any) -> None:
        for row in channels if isinstance(channels, list) else ():
            if isinstance(row, StaticCall) and isinstance(row.keywords.get("channel_name"), str):
                place = row.keywords.get("data_source")
                self._put(("inputs", row.keywords["channel_name"]), {"sagemaker": place, "mode": "download"})


def _flat(keywords: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each argument's name and value. Those in nested objects, such as `Compute(...)`, get version 2's names."""
    for name, value in keywords.items():
        parts = _TRAINER_PARTS.get(value.name.rpartition(".")[2]) if isinstance(value, StaticCall) else None
        if parts is None:
            yield name, value
            continue
        for inner, one in value.keywords.items():
            yield parts.get(inner, inner), one


def _distribution(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the estimator argument `distribution` of SDK version 2 as fields of a job's distribution."""

    def on(key: str) -> Mapping[str, Any]:
        value = given.get(key)
        return value if isinstance(value, dict) and value.get("enabled") is not False else {}

    library = on("smdistributed")
    mpi = on("mpi")
    if "modelparallel" in library:
        yield "type", "smp"
        yield "version", 2 if "torch_distributed" in given else 1
        if library["modelparallel"].get("parameters"):
            yield "parameters", library["modelparallel"]["parameters"]
    elif "dataparallel" in library or "pytorchddp" in given:
        yield "type", "smddp"
    elif "torch_distributed" in given:
        yield "type", "torch"
    elif "parameter_server" in given:
        yield from {"type": "tensorflow", "strategy": "parameter_server"}.items()
    elif "multi_worker_mirrored_strategy" in given:
        yield "type", "tensorflow"
    elif mpi:
        yield "type", "mpi"
        if mpi.get("custom_mpi_options"):
            yield "options", shlex.join(shlex.split(mpi["custom_mpi_options"]))
    if mpi.get("processes_per_host"):
        yield "processes_per_instance", mpi["processes_per_host"]
