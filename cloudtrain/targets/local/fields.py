"""What this machine does with each field of a job.

An emulation of another target reads the request that this target would get, so these rows hold
only for runs without one.
"""

from __future__ import annotations

from cloudtrain.targets.common.fields import (
    ADDED_PROPERTY,
    Effect,
    Field,
    Needless,
    NoEffect,
)

_IS_CHOICE = Needless("the run is on this machine, whatever machine the job describes")
_IS_STORED = Needless("the store keeps it")
_ONE_COPY = NoEffect("the script reads the files where they are")
_NO_ASSET = NoEffect("this machine has no store of assets")
_NO_IMAGE = NoEffect("the script runs with an interpreter of this machine, without a container")
_HAS_CAPACITY = NoEffect(
    "this machine never lacks capacity", "put this machine last in the list of another target"
)
_ONE_PLACE = NoEffect("all instances run on this machine")

_ROWS: dict[str, str | Effect] = {
    "name": "name",
    "description": _IS_STORED,
    "tags": _IS_STORED,
    # The program.
    "source_dir": "code",
    "entry_point": "processes.*.argv",
    "command": "processes.*.argv",
    "hyperparameters": "processes.*.argv",
    "arguments": "processes.*.argv",
    "bare_flags": "processes.*.argv",
    "distribution": "launcher",
    "distribution.added_property": ADDED_PROPERTY,
    # The machines.
    "resources.instance_count": "instances",
    "resources.instance_type": _IS_CHOICE,
    "resources.gpu": _IS_CHOICE,
    "resources.gpus_per_instance": _IS_CHOICE,
    "resources.interconnect": _IS_CHOICE,
    "resources.instance_preferences": _IS_CHOICE,
    "resources.instance_groups": _ONE_PLACE,
    "resources.distribution_groups": _ONE_PLACE,
    "resources.volume_size": NoEffect("the run writes to this machine's disk, whatever its size"),
    "resources.shm_size": NoEffect(
        "the processes share this machine's `/dev/shm`, whatever its size"
    ),
    # The environment.
    "environment.framework": _IS_CHOICE,
    "environment.version": _IS_CHOICE,
    "environment.base": _IS_CHOICE,
    "environment.python": _NO_IMAGE,
    "environment.image": _IS_CHOICE,
    "environment.build": _NO_IMAGE,
    "environment.dockerfile": _NO_IMAGE,
    "environment.conda_file": _NO_IMAGE,
    "environment.asset_name": _NO_ASSET,
    "environment.asset_version": _NO_ASSET,
    "environment.description": _NO_ASSET,
    "environment.tags": _NO_ASSET,
    "environment.requirements": "processes.*.argv",
    "environment.groups": "processes.*.argv",
    "environment.extras": "processes.*.argv",
    "environment.variables": "processes.*.env",
    "environment.secrets": "processes.*.env",
    # Data.
    "inputs.*.value": "processes.*.argv",
    "inputs.*.mode": _ONE_COPY,
    "inputs.*.type": _ONE_COPY,
    "inputs.*.channel": _ONE_COPY,
    # A processing job deals its files out here, too.
    "inputs.*.shard": NoEffect(
        "every instance reads all files", when=lambda subject: subject.processing is None
    ),
    "inputs.*.content_type": _ONE_COPY,
    "inputs.*.compression": _ONE_COPY,
    "inputs.*.record_wrapper": _ONE_COPY,
    "inputs.*.data_type": _ONE_COPY,
    "inputs.*.attribute_names": _ONE_COPY,
    "inputs.*.shuffle_seed": _ONE_COPY,
    "inputs.*.instance_groups": _ONE_PLACE,
    "inputs.*.access": _ONE_COPY,
    "outputs.*.mode": NoEffect("the script writes to this machine's disk"),
    "outputs.*.type": _NO_ASSET,
    "outputs.*.asset_name": _NO_ASSET,
    "outputs.*.asset_version": _NO_ASSET,
    "checkpoint": "directories",
    "checkpoint.keep": "processes.*.env",
    # Limits and metrics.
    "capacity.alternatives": _HAS_CAPACITY,
    "capacity.wait": _HAS_CAPACITY,
    "capacity.give_up_after": _HAS_CAPACITY,
    "spot": Needless("nobody takes this machine away; `rehearse` tests an interruption"),
    "max_runtime": "max_runtime",
    "stop_when_stalled": "processes.*.env",
    "stop_when_idle": "stop_when_idle",
    "metrics": "metrics",
    "tracking.mlflow": "processes.*.env",
    "tracking.wandb": "processes.*.env",
    "tracking.tensorboard": "processes.*.env",
}
"""What each field of a job becomes in the launch specification, or why it becomes nothing."""


def _field(path: str, row: str | Effect) -> Field:
    return Field(path, row) if isinstance(row, str) else Field(path, effect=row)


FIELDS = tuple(map(_field, _ROWS, _ROWS.values()))
